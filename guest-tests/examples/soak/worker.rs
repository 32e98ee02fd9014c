//! A process of this program that does cycles: one for each line on its standard input, and what was verified as the answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use crate::server::Process;

/// The process, as a load.
pub(crate) struct Worker {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    events: String,
}

impl Worker {
    /// Start the process that is called so.
    pub(crate) fn new(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let process = Process::new(child);
        Self { process, orders, answers: BufReader::new(answers), events: String::new() }
    }
}

impl crate::load::Load for Worker {
    fn cycle(&mut self, _number: u64) -> u64 {
        self.orders.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let (verified, events) = line.trim().split_once(' ').unwrap_or_else(|| panic!("it ended: {line:?}"));
        events.clone_into(&mut self.events);
        verified.parse().unwrap()
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        self.events.clone()
    }
}

/// The process: `cycle` returns the bytes that it has verified, and what has happened since the start.
pub(crate) fn serve(mut cycle: impl FnMut(u64) -> (u64, String)) -> ExitCode {
    let stdin = std::io::stdin();
    for (_, number) in stdin.lock().lines().zip(0..) {
        let (verified, events) = cycle(number);
        println!("{verified} {events}");
    }
    ExitCode::SUCCESS
}
