//! Journals: runs survive a round trip, and hostile files are refused.

use std::fs;
use std::time::Duration;

use facts::host::Host;
use guest_driver::Report;
use guest_driver::workload::Fault;
use guest_tests::rig::{CpuSplit, Measurement};

use super::*;
use crate::meter::tests::host;

fn measurement() -> Measurement {
    let mut report = Report { ios: 1000, bytes: 4_096_000, ticks: 77, ..Report::EMPTY };
    (1..=1000).for_each(|latency| report.latency.record(latency * 1000));
    report.note(Fault { kind: Fault::STATUS, offset: 4096, status: 2, ..Fault::EMPTY });
    let cpu = CpuSplit { total: 5, guest: 1, exit: 2, device: 3, kernel: 4 };
    Measurement { report, cpu, exits: 250, interrupts: 50, doorbells: 40, wall: Duration::from_millis(11) }
}

fn identity() -> Identity {
    Identity::of(&host()).with("runs", &3)
}

#[test]
fn runs_are_as_they_were_and_a_torn_line_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json.partial");
    let run = |round| Record::Run(Run::new(Engine::Harness, round, 7, &measurement()));
    let mut journal = Journal::begin(&path, identity()).unwrap();
    (1..=2).for_each(|round| journal.add(&run(round)));
    assert!(journal.notes().is_empty());
    drop(journal);
    let whole = fs::read(&path).unwrap();
    // Killed in the middle of the second line.
    let first = whole.len() - 20;
    fs::write(&path, &whole[..first]).unwrap();
    let mut journal = Journal::resume(&path, &identity()).unwrap();
    let [run_1] = &journal.runs(Engine::Harness).collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((run_1.round, run_1.row), (1, 7));
    assert_eq!(format!("{:?}", run_1.measurement()), format!("{:?}", measurement()));
    assert_eq!(journal.runs(Engine::Kvm).count(), 0);
    assert!(journal.notes()[0].starts_with("resumed: 1 runs"), "{:?}", journal.notes());
    journal.add(&run(2));
    drop(journal);
    assert_eq!(fs::read(&path).unwrap(), whole);
    let journal = Journal::resume(&path, &identity()).unwrap();
    assert_eq!(journal.kept.len(), 2);
    journal.finish().unwrap();
    assert!(!path.exists());
}

#[test]
fn another_measurement_or_machine_is_refused_with_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json.partial");
    drop(Journal::begin(&path, identity()).unwrap());
    let refusal = |here: &Identity| Journal::resume(&path, here).unwrap_err().to_string();
    let other = identity().with("runs", &5);
    assert!(
        refusal(&other).ends_with("another measurement: runs was 3, and is 5 here"),
        "{}",
        refusal(&other)
    );
    let host = Host { cpu: "B".into(), ..host() };
    let other = Identity::of(&host).with("runs", &3);
    assert!(refusal(&other).contains("CPU was \"CPU\", and is \"B\" here"), "{}", refusal(&other));
    let missing = Journal::resume(&folder.path().join("none"), &identity()).unwrap_err();
    assert!(missing.to_string().contains("none: cannot go on: No such file"), "{missing}");
}

#[test]
fn files_of_others_are_refused_by_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json.partial");
    let mut journal = Journal::begin(&path, identity()).unwrap();
    journal.add(&Record::Run(Run::new(Engine::Kvm, 1, 0, &measurement())));
    drop(journal);
    let good = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"ios\":1000", "\"ios\":-1"),
        ("\"ios\":1000", "\"ios\":18446744073709551615"),
        ("\"latency\":[[", "\"latency\":[[99999,1],["),
        ("\"latency\":[[", "\"latency\":[[1,18446744073709551615],["),
        ("\"run\"", "\"walk\""),
    ] {
        assert!(good.contains(from), "{from} in {good}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let error = Journal::resume(&path, &identity()).unwrap_err().to_string();
        assert!(error.ends_with("not an unfinished measurement: line 2"), "{to}: {error}");
    }
    for text in ["", "{}\n", "\u{1b}[2J\n", "{\"unfinished\":9,\"measurement\":{}}\n"] {
        fs::write(&path, text).unwrap();
        let error = Journal::resume(&path, &identity()).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
    }
}
