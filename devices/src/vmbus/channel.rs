//! The state of a channel: offered or not, open or closed, rescinded or not.
//!
//! ```text
//!   absent -- offer --> closed -- OPEN --> open -- CLOSE --> closing -- all requests completed --> closed
//! ```
//!
//! A rescinded channel is closed, and its number stays in use until the guest has released it. While a channel is closing, the guest may
//! send OPEN, and GPADL_TEARDOWN for the GPADL of its rings: both are answered when the channel is closed.

use super::duplex::Duplex;

/// The parameters of OPENCHANNEL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// Returned in the answer.
    pub(super) id: u32,
    /// The GPADL of the rings.
    pub(super) gpadl: u32,
    /// Page of the GPADL at which the host's ring begins.
    pub(super) split: u32,
    /// Virtual processor to be signalled.
    pub(super) vp: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Absent,
    Closed,
    Open,
    Closing,
}

/// Whether the channel is rescinded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rescind {
    #[default]
    No,
    /// RESCIND_CHANNELOFFER was sent.
    Sent,
    /// The guest has released the channel's number.
    Released,
}

/// The actions that follow when a channel has closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed {
    /// Tear this GPADL down, and answer.
    pub(super) torn_down: Option<u32>,
    /// Open the channel again, and answer.
    pub(super) reopen: Option<Open>,
    /// The channel's number is free: free its GPADLs.
    pub(super) gone: bool,
}

/// A channel.
pub(super) struct Channel<M> {
    phase: Phase,
    rescind: Rescind,
    /// The rings of an open channel. `None` while open: the guest has broken the rules of a ring.
    pub(super) duplex: Option<Duplex<M>>,
    /// Requests that were taken from the channel and have not completed.
    pub(super) requests: u32,
    /// The GPADL of the rings, from the open to the end of the close.
    gpadl: Option<u32>,
    /// The guest waits for the teardown of that GPADL.
    tear_down: bool,
    reopen: Option<Open>,
}

impl<M> Default for Channel<M> {
    fn default() -> Self {
        Self {
            phase: Phase::Absent,
            rescind: Rescind::No,
            duplex: None,
            requests: 0,
            gpadl: None,
            tear_down: false,
            reopen: None,
        }
    }
}

impl<M> Channel<M> {
    /// Mark the channel as offered. False: it was offered before.
    pub(super) fn offer(&mut self) -> bool {
        let absent = self.phase == Phase::Absent;
        if absent {
            self.phase = Phase::Closed;
        }
        absent
    }

    /// Whether the channel is offered and not rescinded.
    pub(super) fn usable(&self) -> bool {
        self.phase != Phase::Absent && self.rescind == Rescind::No
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether the channel can be opened now. `Err`: refuse. `Ok(false)`: it is closing, and is [opened](Closed::reopen) when it is closed.
    pub(super) fn may_open(&mut self, open: Open) -> Result<bool, ()> {
        match self.phase {
            Phase::Closed if self.usable() => Ok(true),
            Phase::Closing if self.usable() && self.reopen.is_none() => {
                self.reopen = Some(open);
                Ok(false)
            }
            _ => Err(()),
        }
    }

    /// Mark the channel as open, with these rings.
    pub(super) fn opened(&mut self, gpadl: u32, duplex: Duplex<M>) {
        self.phase = Phase::Open;
        self.gpadl = Some(gpadl);
        self.duplex = Some(duplex);
    }

    /// Close the channel: its rings are not written from here on. Returns a waiting OPEN, which is dropped.
    pub(super) fn close(&mut self) -> Option<Open> {
        self.duplex = None;
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
        self.reopen.take()
    }

    /// Rescind the channel. True: send the message. False: the channel is not offered, or already rescinded.
    pub(super) fn rescind(&mut self) -> bool {
        let send = self.usable();
        if send {
            self.rescind = Rescind::Sent;
        }
        send
    }

    /// The guest has released the number of a rescinded channel.
    pub(super) fn release(&mut self) {
        if self.rescind == Rescind::Sent {
            self.rescind = Rescind::Released;
        }
    }

    /// The guest tears a GPADL down. False: the channel uses it; the teardown waits for the close.
    pub(super) fn tear_down(&mut self, gpadl: u32) -> bool {
        let used = self.gpadl == Some(gpadl);
        self.tear_down |= used;
        !used
    }

    /// Finish a close or a release, if all requests have completed. `None`: there is nothing to finish yet.
    pub(super) fn finish(&mut self) -> Option<Closed> {
        let closed = self.phase == Phase::Closing && self.requests == 0;
        if closed {
            self.phase = Phase::Closed;
        }
        let gone = self.phase == Phase::Closed && self.rescind == Rescind::Released;
        if gone {
            (self.phase, self.rescind) = (Phase::Absent, Rescind::No);
        }
        if !closed && !gone {
            return None;
        }
        let tear_down = std::mem::take(&mut self.tear_down);
        let torn_down = self.gpadl.take().filter(|_| tear_down);
        Some(Closed { torn_down, reopen: self.reopen.take(), gone })
    }

    /// Reset the channel to absent. Its requests are still counted.
    pub(super) fn forget(&mut self) {
        *self = Self { requests: self.requests, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Open = Open { id: 7, gpadl: 5, split: 2, vp: 0 };

    fn open() -> Channel<()> {
        let mut channel = Channel::<()>::default();
        assert!(channel.offer() && !channel.offer());
        assert_eq!(channel.may_open(OPEN), Ok(true));
        (channel.phase, channel.gpadl) = (Phase::Open, Some(OPEN.gpadl));
        channel
    }

    #[test]
    fn a_channel_closes_when_its_requests_have_ended() {
        let mut channel = open();
        channel.requests = 1;
        assert_eq!(channel.may_open(OPEN), Err(()), "it is open");
        assert!(channel.tear_down(4) && !channel.tear_down(5));
        assert_eq!((channel.close(), channel.finish()), (None, None));
        assert_eq!(channel.may_open(OPEN), Ok(false));
        assert_eq!(channel.may_open(OPEN), Err(()), "one waits");
        channel.requests = 0;
        let closed = Closed { torn_down: Some(5), reopen: Some(OPEN), gone: false };
        assert_eq!((channel.finish(), channel.finish()), (Some(closed), None));
        assert!(channel.tear_down(5), "it does not use the list any more");
        assert_eq!(channel.may_open(OPEN), Ok(true));
    }

    #[test]
    fn a_close_takes_a_waiting_open_back() {
        let mut channel = open();
        channel.requests = 1;
        channel.close();
        channel.may_open(OPEN).unwrap();
        assert_eq!((channel.close(), channel.close()), (Some(OPEN), None));
    }

    #[test]
    fn a_number_is_free_once_it_is_released_and_the_requests_have_ended() {
        for first in [true, false] {
            let mut channel = open();
            channel.requests = 1;
            assert!(channel.rescind() && !channel.rescind());
            channel.close();
            assert_eq!(channel.may_open(OPEN), Err(()));
            if first {
                channel.release();
                assert_eq!(channel.finish(), None);
            }
            channel.requests = 0;
            assert_eq!(channel.finish().map(|closed| closed.gone), Some(first));
            if !first {
                channel.release();
                assert_eq!(channel.finish().map(|closed| closed.gone), Some(true));
            }
            assert!(!channel.usable() && channel.offer() && channel.usable());
        }
        let mut channel = open();
        channel.release();
        assert!(channel.usable(), "nobody took it away");
        assert!(!Channel::<()>::default().rescind());
    }
}
