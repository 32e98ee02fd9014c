//! CPU time of a thread of this process, from `/proc/self/task` (proc(5), and Linux
//! `Documentation/scheduler/sched-stats.rst`).

use std::fs;
use std::io;
use std::time::Duration;

/// CPU time of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Time on a CPU, in nanoseconds.
    pub on_cpu: Duration,
    /// Share of user mode, including the guest, in clock ticks of the kernel's accounting (10 ms).
    pub user: u64,
    /// Share of system calls.
    pub system: u64,
    /// Share of guest mode, part of `user`.
    pub guest: u64,
}

impl ThreadTime {
    /// CPU time of the thread `tid`.
    ///
    /// # Errors
    /// No such thread, or a kernel without scheduler statistics.
    pub fn of(tid: u32) -> io::Result<Self> {
        let schedstat = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat"))?;
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat"))?;
        parse(&schedstat, &stat).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/task/{tid}: unknown format"))
        })
    }

    /// The sum of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            on_cpu: self.on_cpu + other.on_cpu,
            user: self.user + other.user,
            system: self.system + other.system,
            guest: self.guest + other.guest,
        }
    }

    /// CPU time since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            guest: self.guest.saturating_sub(earlier.guest),
        }
    }
}

fn parse(schedstat: &str, stat: &str) -> Option<ThreadTime> {
    let on_cpu = Duration::from_nanos(schedstat.split_ascii_whitespace().next()?.parse().ok()?);
    // The name, field 2, may have spaces and parentheses; field 3 follows the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some(ThreadTime { on_cpu, user: field(14)?, system: field(15)?, guest: field(43)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let rest = (3..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let time = parse("1500000000 7 9\n", &format!("12 (a ) b) {rest}\n")).unwrap();
        assert_eq!(time, ThreadTime { on_cpu: Duration::from_millis(1500), user: 14, system: 15, guest: 43 });
        assert_eq!(parse("", ""), None);
        assert_eq!(parse("1", "1 (x) R 1"), None);
    }

    #[test]
    fn a_spinning_thread_uses_time() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let before = ThreadTime::of(tid).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(ThreadTime::of(tid).unwrap().since(&before).on_cpu > Duration::from_millis(1));
    }
}
