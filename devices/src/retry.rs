//! When an adapter retries to post completions that found a ring or FIFO full. The guest does not notify the adapter when it frees a slot.

use std::time::Duration;

use crate::time::Time;

/// Time between two tries.
const INTERVAL: Duration = Duration::from_millis(1);

/// The time of the next try. Events that try nothing, such as accesses to other registers, do not move it.
#[derive(Debug, Default)]
pub(crate) struct Retry(Option<Time>);

impl Retry {
    /// Before the owner sleeps: the time of the next try, if something `waits`.
    pub(crate) fn deadline(&mut self, waits: bool, now: Time) -> Option<Time> {
        self.0 = waits.then(|| self.0.unwrap_or(now.after(INTERVAL)));
        self.0
    }

    /// This is a try: the next one is an interval later.
    pub(crate) const fn tried(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_try_moves_the_next_one() {
        let mut retry = Retry::default();
        let at = |us: u64| Time(us * 1000);
        assert_eq!(retry.deadline(false, at(0)), None);
        assert_eq!([0, 500, 999].map(|now| retry.deadline(true, at(now))), [Some(at(1000)); 3]);
        retry.tried();
        assert_eq!(retry.deadline(true, at(1100)), Some(at(2100)));
        assert_eq!(retry.deadline(false, at(1200)), None);
        assert_eq!(retry.deadline(true, at(1300)), Some(at(2300)), "nothing waited meanwhile");
    }
}
