//! The part of a chain that the response is written to: the start of its writable segments.

use vm_memory::GuestAddressSpace;

use super::super::chain::Segment;
use super::super::rings::Ended;
use crate::dma::Dma;

/// The segments of a response.
#[derive(Debug)]
pub(super) struct Answer {
    first: Segment,
    /// Further segments; drivers have none.
    rest: Box<[Segment]>,
}

impl Answer {
    /// Take `len` bytes (at least one) from the start of the segments. Returns them and the remainder. `None`: the segments are
    /// shorter.
    #[inline(always)]
    pub(super) fn take(segments: &[Segment], len: u64) -> Option<(Self, Remainder)> {
        let (first, others) = segments.split_first()?;
        if first.len >= len {
            let place = Segment { address: first.address, len };
            return Some((Self { first: place, rest: Box::default() }, Remainder { index: 0, cut: len }));
        }
        Self::take_cut(first, others, len)
    }

    /// The same for a response that does not fit into the first segment.
    #[cold]
    fn take_cut(first: &Segment, others: &[Segment], len: u64) -> Option<(Self, Remainder)> {
        let mut left = len - first.len;
        let mut rest = Vec::new();
        for (index, segment) in others.iter().enumerate() {
            let piece = segment.len.min(left);
            rest.push(Segment { address: segment.address, len: piece });
            left -= piece;
            if left == 0 {
                return Some((
                    Self { first: *first, rest: rest.into() },
                    Remainder { index: index + 1, cut: piece },
                ));
            }
        }
        None
    }

    /// Guest-physical address of its first byte.
    pub(super) const fn address(&self) -> u64 {
        self.first.address
    }

    /// Write the first 12 bytes of the response, a qword and a dword. `None`: they are not within one segment.
    #[inline(always)]
    pub(super) fn write_words<A: GuestAddressSpace>(
        &self,
        (first, second): (u64, u32),
        dma: &mut Dma<A>,
    ) -> Option<bool> {
        (self.first.len >= 12).then(|| dma.write_words(self.first.address, first, second).is_ok())
    }

    /// Write the start of the response. False: its address is not in memory.
    #[inline(always)]
    pub(super) fn write<A: GuestAddressSpace>(&self, bytes: &[u8], dma: &mut Dma<A>) -> bool {
        if bytes.len() as u64 <= self.first.len {
            return dma.write_bytes(self.first.address, bytes).is_ok();
        }
        self.write_cut(bytes, dma)
    }

    /// The same for a response in several segments.
    #[cold]
    fn write_cut<A: GuestAddressSpace>(&self, mut bytes: &[u8], dma: &mut Dma<A>) -> bool {
        for segment in std::iter::once(&self.first).chain(&self.rest) {
            let len = usize::try_from(segment.len).unwrap_or(usize::MAX).min(bytes.len());
            let (piece, after) = bytes.split_at(len);
            if dma.write_bytes(segment.address, piece).is_err() {
                return false;
            }
            bytes = after;
        }
        true
    }
}

/// The rest of the segments, after the response was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remainder {
    /// Index of the first segment that remains.
    index: usize,
    /// Bytes of that segment that were taken.
    cut: u64,
}

impl Remainder {
    /// The remaining segment, if the response is the first of two segments, as drivers have it.
    #[inline(always)]
    pub(super) fn other(self, segments: &[Segment]) -> Option<Segment> {
        match segments {
            [first, second] if self.index == 0 && self.cut == first.len => Some(*second),
            _ => None,
        }
    }

    /// The remaining segments.
    #[inline(always)]
    pub(super) fn of(self, segments: &[Segment]) -> impl Iterator<Item = Segment> + Clone + '_ {
        let mut cut = self.cut;
        segments.iter().skip(self.index).filter_map(move |segment| {
            let taken = std::mem::take(&mut cut);
            let len = segment.len.saturating_sub(taken);
            (len > 0).then(|| Segment { address: segment.address.wrapping_add(taken), len })
        })
    }
}

/// A response on the control queue, or an event.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) queue: usize,
    pub(super) head: u16,
    /// `None`: the guest's buffer is too short.
    pub(super) answer: Option<Answer>,
    pub(super) bytes: [u8; 16],
    /// Valid bytes of `bytes`.
    pub(super) len: usize,
}

impl Reply {
    /// Write it to guest memory.
    pub(super) fn write<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Ended {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        let written = match &self.answer {
            None => Some(0),
            Some(answer) => answer.write(bytes, dma).then_some(self.len as u32),
        };
        Ended { queue: self.queue, head: self.head, written, good: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn segment(address: u64, len: u64) -> Segment {
        Segment { address, len }
    }

    #[test]
    fn an_answer_and_the_rest_are_the_whole() {
        let lens = [3, 1, 20, 4];
        let segments: Vec<_> = (0..).zip(lens).map(|(n, len)| segment(n * 0x100, len)).collect();
        let bytes = |segments: &mut dyn Iterator<Item = Segment>| -> Vec<u64> {
            segments.flat_map(|segment| segment.address..segment.address + segment.len).collect()
        };
        let all = bytes(&mut segments.iter().copied());
        for len in 1..=28 {
            let (answer, rest) = Answer::take(&segments, len).unwrap();
            let mut place = bytes(&mut std::iter::once(answer.first).chain(answer.rest));
            assert_eq!(place.len(), len as usize);
            place.extend(bytes(&mut rest.of(&segments)));
            assert_eq!(place, all, "{len}");
        }
        assert!(Answer::take(&segments, 29).is_none());
        assert!(Answer::take(&[], 1).is_none());
    }
}
