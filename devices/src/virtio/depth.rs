//! An estimate of how many requests a guest keeps outstanding. A guest reuses the head descriptor of a completed request, so
//! the number of requests between two uses of one head is about the depth.

/// The weight of a new sample in the average is `1 / (1 << SMOOTHING)`.
const SMOOTHING: u32 = 3;

/// The estimate for one queue.
#[derive(Clone, Debug)]
pub(super) struct Depth {
    /// By head: the number of the request that used it last.
    last_use: Box<[u16]>,
    /// Requests that the guest keeps outstanding, times `1 << SMOOTHING`.
    average: u32,
}

impl Depth {
    pub(super) fn new(max_size: u16) -> Self {
        Self { last_use: (0..max_size).map(|_| 0).collect(), average: 0 }
    }

    /// Request `number` (counted by the available ring) came with this head.
    #[inline]
    pub(super) fn request(&mut self, number: u16, head: u16) {
        let Some(last_use) = self.last_use.get_mut(usize::from(head)) else { return };
        let distance = u32::from(number.wrapping_sub(std::mem::replace(last_use, number)));
        // A head that was unused for long says little about the depth: its distance is limited.
        let average = self.get();
        self.average = self.average - average + distance.min(2 * average + 1);
    }

    /// Requests that the guest keeps outstanding.
    pub(super) const fn get(&self) -> u32 {
        self.average >> SMOOTHING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest with `depth` requests outstanding. Each new request has the descriptor of the oldest one, which has completed.
    fn settled(depth: u16) -> Depth {
        let mut known = Depth::new(256);
        for number in 0..2000 {
            known.request(number, number % depth);
        }
        known
    }

    #[test]
    fn descriptors_that_come_again_tell_the_depth() {
        for depth in [1, 7, 8, 32, 100, 256] {
            let found = settled(depth).get();
            assert!(found <= depth.into() && found + 8 >= depth.into(), "{depth}: {found}");
        }
    }

    #[test]
    fn a_guest_that_was_at_many_and_is_at_one_is_seen() {
        let mut depth = settled(256);
        for number in 2000..2040 {
            depth.request(number, 7);
        }
        assert!(depth.get() < 8, "{}", depth.get());
    }

    #[test]
    fn heads_that_are_none_count_for_nothing() {
        let mut depth = Depth::new(16);
        for number in 0..100 {
            depth.request(number, 16 + number);
        }
        assert_eq!(depth.get(), 0);
    }
}
