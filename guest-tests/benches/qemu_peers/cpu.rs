//! CPU time of threads while fio runs, by what the guest prints before and after.

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Of all threads of the server, if there is one beside QEMU.
    pub(crate) server: u64,
    /// Of QEMU's threads that run no guest CPU.
    pub(crate) qemu: u64,
}

/// Looks at the clocks whenever fio begins or a disk is done.
pub(crate) struct Sampler {
    server: Option<u32>,
    qemu: u32,
    /// Whether fio began then, and the clocks.
    marks: Vec<(bool, Spent)>,
}

impl Sampler {
    pub(crate) fn new(server: Option<u32>, qemu: u32) -> Self {
        Self { server, qemu, marks: Vec::new() }
    }

    /// To be called often with all that the guest has printed.
    pub(crate) fn look(&mut self, printed: &str) {
        let marks =
            printed.lines().filter(|line| line.starts_with(r#"{"fio":"#) || line.starts_with(r#"{"disk":"#));
        for line in marks.skip(self.marks.len()) {
            let server = self.server.map_or(0, |process| of_threads(process, |_| true));
            let qemu = of_threads(self.qemu, |name| !name.starts_with("CPU "));
            self.marks.push((line.starts_with(r#"{"fio""#), Spent { server, qemu }));
        }
    }

    /// What each run of fio took.
    pub(crate) fn spent(&self) -> Vec<Spent> {
        let pairs = self.marks.iter().zip(self.marks.iter().skip(1)).filter(|((fio, _), _)| *fio);
        pairs
            .map(|((_, before), (_, after))| Spent {
                server: after.server.saturating_sub(before.server),
                qemu: after.qemu.saturating_sub(before.qemu),
            })
            .collect()
    }
}

/// Time on a CPU of a process's threads with such names so far, and of the kernel's that work for them (`schedstat`).
fn of_threads(process: u32, wanted: impl Fn(&str) -> bool) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return 0 };
    let of = |task: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let time = read("schedstat").split_whitespace().next().and_then(|word| word.parse().ok());
        if wanted(&read("comm")) { time.unwrap_or(0) } else { 0u64 }
    };
    tasks.flatten().map(of).sum()
}
