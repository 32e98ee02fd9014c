//! The host calls that can fail, and the ways in which each can fail.
//!
//! A call fails only in one of the ways of [`Fault::of`]. So a test that arms each of them for each call covers every
//! single failure.

use rustix::io::Errno;

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    Write,
    /// With RWF_DSYNC.
    WriteThrough,
    Sync,
    /// Writeback that is started and not waited for.
    Writeback,
    Allocate,
    Punch,
    Zero,
    Truncate,
    Clone,
    Copy,
    Create,
    Rename,
    Link,
    Unlink,
    SyncFolder,
}

/// A way of failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// With this error and without effect: a write that did not reach the file, a call that was interrupted.
    Fails(Errno),
    /// A flush fails with this error. The dirty pages become clean, with the content of stable storage.
    Loses(Errno),
    /// As `Loses`, but the cache has the written content until the pages are evicted.
    LosesLater(Errno),
    /// Half of the bytes are moved.
    Short,
}

impl Fault {
    /// The ways in which a call can fail.
    pub(crate) fn of(call: Call) -> &'static [Self] {
        use Fault::{Fails, Loses, LosesLater, Short};
        const READ: [Fault; 4] = [Fails(Errno::IO), Fails(Errno::INTR), Fails(Errno::AGAIN), Short];
        const WRITE: [Fault; 5] =
            [Fails(Errno::IO), Fails(Errno::NOSPC), Fails(Errno::INTR), Fails(Errno::AGAIN), Short];
        const SYNC: [Fault; 6] = [
            Loses(Errno::IO),
            LosesLater(Errno::IO),
            Loses(Errno::NOSPC),
            LosesLater(Errno::NOSPC),
            Fails(Errno::INTR),
            Fails(Errno::AGAIN),
        ];
        const THROUGH: [Fault; 8] = [
            Fails(Errno::IO),
            Loses(Errno::IO),
            LosesLater(Errno::IO),
            Loses(Errno::NOSPC),
            LosesLater(Errno::NOSPC),
            Fails(Errno::INTR),
            Fails(Errno::AGAIN),
            Short,
        ];
        match call {
            Call::Read => &READ,
            Call::Write | Call::Copy => &WRITE,
            Call::WriteThrough => &THROUGH,
            Call::Sync | Call::Writeback => &SYNC,
            _ => WRITE.split_last().map_or(&[], |(_, others)| others),
        }
    }

    /// This fault, or the first fault that is possible for `call`: threads may make their calls in another order than
    /// when they were counted.
    pub(super) fn for_call(self, call: Call) -> Self {
        let ways = Self::of(call);
        if ways.contains(&self) { self } else { ways[0] }
    }

    /// The effect on a call.
    pub(super) fn verdict(self) -> Verdict {
        match self {
            Self::Fails(errno) => Verdict::Fails(errno),
            Self::Loses(errno) => Verdict::Loses { errno, at_once: true },
            Self::LosesLater(errno) => Verdict::Loses { errno, at_once: false },
            Self::Short => Verdict::Short,
        }
    }
}

/// Effect on a call.
pub(super) enum Verdict {
    Works,
    Fails(Errno),
    Loses { errno: Errno, at_once: bool },
    Short,
}
