//! The doorbell handshake: the host writes a request dword by dword, and reads the reply half-word by half-word.
//!
//! Host and IOC alternate by the doorbell register and bit 0 of the interrupt status. Each write is processed at once,
//! so the status bit "doorbell write not yet taken" is never set.

use super::spec::doorbell;

/// Maximum length of a request in dwords.
const MAX_REQUEST: usize = 32;
/// Maximum length of a reply in half-words: `MsgLength` counts dwords in one byte, and no handshake reply is above 64
/// dwords.
const MAX_REPLY: usize = 128;

/// State of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The host writes the request; number of its dwords.
    Request {
        expected: u8,
    },
    /// The host reads the reply.
    Reply,
    /// The host has read the last half-word. One more interrupt tells it that the IOC is done.
    Closing,
}

/// What the device has to do after a doorbell write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing yet.
    Wait,
    /// The request is complete: [`Handshake::request`].
    Request,
}

/// A doorbell handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    phase: Phase,
    request: [u32; MAX_REQUEST],
    received: u8,
    reply: [u16; MAX_REPLY],
    reply_len: u8,
    sent: u8,
    /// The host has read the current half-word since it last acknowledged an interrupt.
    seen: bool,
    /// Bit 0 of the interrupt status.
    interrupt: bool,
}

impl Handshake {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Idle,
            request: [0; MAX_REQUEST],
            received: 0,
            reply: [0; MAX_REPLY],
            reply_len: 0,
            sent: 0,
            seen: false,
            interrupt: false,
        }
    }

    /// Whether the doorbell interrupt is pending.
    pub(super) const fn interrupt(&self) -> bool {
        self.interrupt
    }

    /// Whether doorbell writes are dwords of a request.
    pub(super) const fn collecting(&self) -> bool {
        matches!(self.phase, Phase::Request { .. })
    }

    /// Start a request of `dwords`. An invalid length is ignored: the host times out and resets the controller.
    pub(super) fn expect(&mut self, dwords: u8) {
        *self = Self::new();
        if dwords == 0 || usize::from(dwords) > MAX_REQUEST {
            return;
        }
        self.phase = Phase::Request { expected: dwords };
        self.interrupt = true;
    }

    /// Add the next dword of the request.
    pub(super) fn push(&mut self, value: u32) -> Progress {
        let Phase::Request { expected } = self.phase else { return Progress::Wait };
        if self.received >= expected {
            return Progress::Wait;
        }
        self.request[usize::from(self.received)] = value;
        self.received += 1;
        if self.received == expected { Progress::Request } else { Progress::Wait }
    }

    /// Copy the request to `bytes` in memory order; returns its length.
    pub(super) fn request(&self, bytes: &mut [u8; MAX_REQUEST * 4]) -> usize {
        for (dword, chunk) in self.request.iter().zip(bytes.chunks_exact_mut(4)) {
            chunk.copy_from_slice(&dword.to_le_bytes());
        }
        usize::from(self.received) * 4
    }

    /// Start the reply. Its third byte is its length in dwords, as the host expects.
    pub(super) fn reply(&mut self, bytes: &[u8]) {
        let words = bytes.chunks_exact(2).take(MAX_REPLY);
        self.reply_len = words.len() as u8;
        for (slot, word) in self.reply.iter_mut().zip(words) {
            *slot = u16::from_le_bytes([word[0], word[1]]);
        }
        self.sent = 0;
        self.seen = false;
        self.phase = Phase::Reply;
        self.interrupt = true;
    }

    /// The request has no handshake reply (task management). One interrupt tells the host that the request was taken.
    pub(super) fn no_reply(&mut self) {
        self.phase = Phase::Closing;
        self.interrupt = true;
    }

    /// The lower half of the doorbell register, with the in-use bit during a handshake. A host that reads again without
    /// an acknowledgement gets the next half-word: SeaBIOS reads the whole reply before it acknowledges.
    pub(super) fn read(&mut self) -> u32 {
        match self.phase {
            Phase::Idle => 0,
            Phase::Request { .. } => doorbell::USED,
            Phase::Reply => {
                if self.seen && self.sent + 1 < self.reply_len {
                    self.sent += 1;
                }
                self.seen = true;
                doorbell::USED | u32::from(self.reply[usize::from(self.sent)])
            }
            // The in-use bit is cleared when the host has read the whole reply.
            Phase::Closing => 0,
        }
    }

    /// The host has acknowledged the interrupt by writing the interrupt status, and thereby the current half-word.
    pub(super) fn acknowledge(&mut self) {
        if !self.interrupt {
            return;
        }
        self.interrupt = false;
        match self.phase {
            Phase::Idle | Phase::Request { .. } => {}
            Phase::Reply => {
                self.sent += 1;
                self.seen = false;
                if self.sent >= self.reply_len {
                    self.phase = Phase::Closing;
                }
                self.interrupt = true;
            }
            Phase::Closing => self.phase = Phase::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's side of a handshake, as drivers implement it.
    fn exchange(shake: &mut Handshake, request: &[u32], reply: &[u8]) -> Vec<u16> {
        shake.expect(request.len() as u8);
        assert!(shake.interrupt());
        assert_eq!(shake.read() & doorbell::USED, doorbell::USED);
        shake.acknowledge();
        for (index, dword) in request.iter().enumerate() {
            let last = index + 1 == request.len();
            assert_eq!(shake.push(*dword) == Progress::Request, last);
        }
        shake.reply(reply);
        let mut words = Vec::new();
        for _ in 0..reply.len() / 2 {
            assert!(shake.interrupt());
            words.push(shake.read() as u16);
            shake.acknowledge();
        }
        assert!(shake.interrupt(), "one more interrupt after the last half-word");
        shake.acknowledge();
        assert!(!shake.interrupt());
        assert_eq!(shake.read(), 0);
        words
    }

    #[test]
    fn request_and_reply_pass_in_memory_order() {
        let mut shake = Handshake::new();
        let words = exchange(&mut shake, &[0x0300_0000, 0, 0x000f_0000], &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(words, [0x0201, 0x0403, 0x0605, 0x0807]);
        let mut bytes = [0; MAX_REQUEST * 4];
        let mut shake = Handshake::new();
        shake.expect(2);
        shake.push(0x0403_0201);
        shake.push(0x0807_0605);
        assert_eq!(shake.request(&mut bytes), 8);
        assert_eq!(&bytes[..8], &[1, 2, 3, 4, 5, 6, 7, 8]);
    }

    /// As SeaBIOS does (`src/hw/mpt-scsi.c`).
    #[test]
    fn a_reply_can_be_read_at_once() {
        let mut shake = Handshake::new();
        shake.expect(1);
        shake.push(7);
        shake.reply(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let words = [(); 4].map(|()| shake.read() as u16);
        assert_eq!(words, [0x0201, 0x0403, 0x0605, 0x0807]);
        assert_eq!(shake.read() as u16, 0x0807, "nothing comes after the last half-word");
        shake.acknowledge();
        assert_eq!(shake.read(), 0, "the handshake is over");
        assert_eq!(exchange(&mut shake, &[7], &[9, 9, 1, 0]), [0x0909, 0x0001]);
    }

    #[test]
    fn an_impossible_length_is_ignored() {
        for dwords in [0, 33, 255] {
            let mut shake = Handshake::new();
            shake.expect(dwords);
            assert_eq!(shake.read(), 0);
            assert!(!shake.interrupt());
            assert_eq!(shake.push(1), Progress::Wait);
        }
    }

    #[test]
    fn a_request_cut_short_is_dropped_by_the_next() {
        let mut shake = Handshake::new();
        shake.expect(11);
        shake.push(1);
        assert_eq!(exchange(&mut shake, &[7], &[9, 9, 1, 0]), [0x0909, 0x0001]);
    }

    #[test]
    fn reads_beyond_the_protocol_change_nothing() {
        let mut shake = Handshake::new();
        shake.acknowledge();
        assert_eq!(shake.read(), 0);
        shake.expect(1);
        shake.push(0);
        assert_eq!(shake.push(0), Progress::Wait, "a dword too many is dropped");
    }
}
