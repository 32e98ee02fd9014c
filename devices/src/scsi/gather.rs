//! Copies between lists of buffers and own memory.

use paradisk_disk_formats::IoBuf;

/// Bytes compared at a time.
const CHUNK: usize = 512;

/// Append the range `[start, start + len)` of `bufs` to `out`, cut at the end of `bufs`.
pub(crate) fn slice(bufs: &[IoBuf], start: u64, len: u64, out: &mut Vec<IoBuf>) {
    let (mut start, mut len) = (start, len);
    for buf in bufs {
        let size = buf.len() as u64;
        if start >= size {
            start -= size;
            continue;
        }
        if len == 0 {
            break;
        }
        // Both fit: `start` is below the length of a buffer, `take` at most that length.
        let take = len.min(size - start);
        out.push(buf.slice(start as usize, take as usize));
        start = 0;
        len -= take;
    }
}

/// Copy `data` to the start of `bufs`. Returns the number of bytes copied.
pub(super) fn scatter(bufs: &[IoBuf], data: &[u8]) -> u64 {
    let mut rest = data;
    for buf in bufs {
        let done = buf.write(rest);
        rest = rest.get(done..).unwrap_or_default();
        if rest.is_empty() {
            break;
        }
    }
    (data.len() - rest.len()) as u64
}

/// Copy the start of `bufs` to `data`. Returns the number of bytes copied.
pub(super) fn gather(bufs: &[IoBuf], data: &mut [u8]) -> usize {
    let mut done = 0;
    for buf in bufs {
        let Some(rest) = data.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
        done += buf.read(rest);
    }
    done
}

/// Copy the start of `from` to the start of `bufs`, up to the shorter length.
pub(super) fn copy(bufs: &[IoBuf], from: IoBuf) {
    let mut bytes = [0; CHUNK];
    let mut at = 0;
    for buf in bufs {
        let mut start = 0;
        while start < buf.len() && at < from.len() {
            let len = CHUNK.min(buf.len() - start);
            let chunk = bytes.get_mut(..len).unwrap_or_default();
            let read = from.slice(at, len).read(chunk);
            start += buf.slice(start, read).write(chunk);
            at += read;
        }
    }
}

/// Offset of the first byte in which `bufs` and `other` differ, up to the shorter length.
pub(super) fn mismatch(bufs: &[IoBuf], other: IoBuf) -> Option<u64> {
    let (mut ours, mut theirs) = ([0; CHUNK], [0; CHUNK]);
    let mut at = 0;
    for buf in bufs {
        let mut start = 0;
        while start < buf.len() && at < other.len() {
            let len = CHUNK.min(buf.len() - start);
            let len = other.slice(at, len).read(theirs.get_mut(..len).unwrap_or_default());
            buf.slice(start, len).read(&mut ours);
            let differ = ours.iter().zip(&theirs).take(len).position(|(a, b)| a != b);
            if let Some(offset) = differ {
                return Some((at + offset) as u64);
            }
            start += len;
            at += len;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn ranges_across_buffers() {
        let memory = Scratch::new(4096);
        let bufs = [memory.buf(0, 3), memory.buf(100, 5), memory.buf(200, 0), memory.buf(300, 4)];
        assert_eq!(scatter(&bufs, b"abcdefghijklmnop"), 12);
        let mut out = Vec::new();
        slice(&bufs, 2, 7, &mut out);
        let mut data = [0; 16];
        assert_eq!(gather(&out, &mut data), 7);
        assert_eq!(&data[..7], b"cdefghi");
        out.clear();
        slice(&bufs, 12, 1, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn mismatches_and_copies() {
        let memory = Scratch::new(8192);
        let bufs = [memory.buf(0, 700), memory.buf(1000, 1300)];
        let other = memory.buf(4096, 2000);
        assert_eq!(mismatch(&bufs, other), None);
        memory.buf(4096 + 1900, 1).write(&[1]);
        assert_eq!(mismatch(&bufs, other), Some(1900));
        copy(&bufs, other);
        assert_eq!(mismatch(&bufs, other), None);
        let mut byte = [0];
        memory.buf(1000 + 1200, 1).read(&mut byte);
        assert_eq!(byte, [1]);
    }
}
