//! A guest with its VMM: a process that is killed while it has requests in flight. The memory that its driver shares with the server goes
//! with it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use guest_driver::{Mode, Workload};
use paradisk_devices::AdapterKind;

use super::{Initiator, SPAN, Setup, job, options};
use crate::contested::{Contested, generations};
use crate::load::SERVED;
use crate::server::{Place, Process};
use crate::vmm::{Habits, Vmm};

/// Longer than a guest lives.
const CHURN: Duration = Duration::from_secs(120);

/// The process, as its parent sees it.
pub(super) struct Guest {
    process: Process,
    answers: BufReader<ChildStdout>,
    errors: PathBuf,
}

impl Guest {
    /// Start a guest. It verifies what the guest of the cycle before has left.
    pub(super) fn start(place: &Place, socket: &Path, setup: &Setup, cycle: u64) -> Self {
        let errors = place.file("guest-errors");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("vfio-guest").arg(socket).arg(setup.kind.as_str());
        command.args([setup.queues.to_string(), cycle.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&errors).unwrap());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { process: Process::new(child), answers, errors }
    }

    /// Wait until the guest has done its work; the bytes that it has verified, and the disk's capacity. Then it keeps requests in flight.
    pub(super) fn answer(&mut self) -> (u64, u64) {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let numbers = line.trim().split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        numbers.unwrap_or_else(|| panic!("a guest ended: {}", fs::read_to_string(&self.errors).unwrap()))
    }

    pub(super) fn kill(self) {
        drop(self.process);
    }
}

/// The process.
pub(crate) fn child(args: &[&str]) -> ExitCode {
    let [socket, adapter, queues, cycle] = *args else { return ExitCode::from(2) };
    let kind = SERVED.into_iter().find(|kind| kind.as_str() == adapter).expect("an adapter");
    let (queues, cycle): (u16, u64) = (queues.parse().unwrap(), cycle.parse().unwrap());
    let habits = Habits { ioeventfds: cycle.is_multiple_of(2), ..Habits::default() };
    let mut vmm = Vmm::at(Path::new(socket), habits);
    let mut initiator = Initiator::start(&mut vmm, options(kind, queues));
    let contested = Contested::new(&mut vmm);
    // Each access to a register is a message, and IDE has many.
    let less = |job| Workload { span: SPAN / 8, ios: 50, ..job };
    let job = |cycle| if kind == AdapterKind::IdeNative { less(job(cycle)) } else { job(cycle) };
    let mut verified = 0;
    if let Some(before) = cycle.checked_sub(1) {
        verified += initiator.run(&mut vmm, &Workload { mode: Mode::Check, ..job(before) });
        verified += contested.verify(&mut initiator.driver, &mut vmm, generations(before));
    }
    verified += initiator.work(&mut vmm, &job(cycle));
    let (bytes, capacity) = initiator.run_on(&mut vmm, &Workload { mode: Mode::Check, ..job(cycle) });
    verified += bytes;
    let [flushed, in_flight] = generations(cycle);
    contested.write(&mut initiator.driver, &mut vmm, flushed);
    println!("{verified} {capacity}");
    contested.churn(&mut initiator.driver, &mut vmm, in_flight, CHURN);
    ExitCode::FAILURE
}
