//! CPU time of a thread of this process, from `/proc/self/task` (proc(5), and Linux
//! `Documentation/scheduler/sched-stats.rst`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
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

/// Bytes of `stat` at the most: 52 numbers and a short name.
const LONGEST: usize = 2048;

/// The clock of a thread. It is read without opening a file, which a thread in a sandbox may not.
#[derive(Debug)]
pub struct ThreadClock {
    schedstat: File,
    stat: File,
}

impl ThreadClock {
    /// Of the thread `tid`.
    ///
    /// # Errors
    /// No such thread, or a kernel without scheduler statistics.
    pub fn of(tid: u32) -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/self/task/{tid}/{name}"));
        Ok(Self { schedstat: open("schedstat")?, stat: open("stat")? })
    }

    /// What the thread has used so far.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn read(&self) -> io::Result<ThreadTime> {
        let (schedstat, stat) = (text(&self.schedstat)?, text(&self.stat)?);
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "/proc/self/task: unknown format");
        parse(&schedstat, &stat).ok_or_else(unknown)
    }
}

/// The kernel makes the whole text at each read from the start.
fn text(file: &File) -> io::Result<String> {
    let mut bytes = [0; LONGEST];
    let len = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(bytes.get(..len).unwrap_or_default()).into_owned())
}

impl ThreadTime {
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
        let clock = ThreadClock::of(tid).unwrap();
        let before = clock.read().unwrap();
        let start = std::time::Instant::now();
        while clock.read().unwrap().since(&before).on_cpu <= Duration::from_millis(1) {
            assert!(start.elapsed() < Duration::from_secs(60), "no time is counted");
        }
    }

    #[test]
    fn the_clock_of_a_thread_that_has_ended_cannot_be_read() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = wait.recv();
        });
        let clock = ThreadClock::of(receiver.recv().unwrap()).unwrap();
        clock.read().unwrap();
        drop(go);
        thread.join().unwrap();
        // The kernel may take a moment after the end of the thread is known.
        while clock.read().is_ok() {
            std::thread::yield_now();
        }
    }
}
