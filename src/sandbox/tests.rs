//! The tables agree with each other, and the kernel enforces what they say: each call is made by a child process, whose end is looked at.

mod child;
mod rings;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use child::{Act, act};
use paradisk_disk_formats::ThreadKind;

use crate::denied::label;
use crate::filters::{KINDS, compile};
use crate::mode::{Mode, Program};
use crate::tables::{ALL, Kind, Rule, Test, allowed, name, refused, starts};

const MAINS: [Kind; 5] = [
    Kind::Main(Program::Run),
    Kind::Main(Program::RunAttaching),
    Kind::Main(Program::Nbd),
    Kind::Main(Program::VhostUser),
    Kind::Main(Program::VfioUser),
];

/// It opens images: the only kind that opens anything by path, or asks for attributes by path.
const OPENER: Kind = Kind::Main(Program::RunAttaching);

/// It makes all rings, and uses none.
const RING_MAKER: Kind = Kind::Thread(ThreadKind::RingMaker);

/// Kinds beside main threads that use the rings of disks. The listener uses none, but starts threads that do.
const USE_RINGS: [Kind; 7] = [
    Kind::Thread(ThreadKind::Deadline),
    Kind::Thread(ThreadKind::Adapter),
    Kind::Thread(ThreadKind::AdapterQueue),
    Kind::Thread(ThreadKind::NbdListener),
    Kind::Thread(ThreadKind::NbdClient),
    Kind::Thread(ThreadKind::VfioUserSession),
    Kind::Thread(ThreadKind::VhostUserQueue),
];

/// Kinds that make queues of disks after the start.
const MAKE_QUEUES: [Kind; 8] = [
    Kind::Thread(ThreadKind::Deadline),
    Kind::Main(Program::Run),
    Kind::Main(Program::RunAttaching),
    Kind::Main(Program::Nbd),
    Kind::Main(Program::VhostUser),
    Kind::Main(Program::VfioUser),
    Kind::Thread(ThreadKind::NbdClient),
    Kind::Thread(ThreadKind::VfioUserSession),
];

fn uses_rings(kind: Kind) -> bool {
    MAINS.contains(&kind) || USE_RINGS.contains(&kind)
}

#[track_caller]
fn assert_succeeds(child: &Output, kind: Kind) {
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}: {}: {text}", label(kind), child.status);
}

/// The child was killed because a thread of this kind made this call.
#[track_caller]
fn assert_killed(child: &Output, kind: Kind, call: &str) {
    let text = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGSYS), "{}: {}: {text}", label(kind), child.status);
    let (thread, call) = (format!("thread `{}`, system call ", label(kind)), format!(" ({call}): "));
    assert!(text.lines().any(|line| line.contains(&thread) && line.contains(&call)), "{text}");
}

/// Whether a thread with these rules may make each call that `rule` allows.
fn covers(rules: &[&Rule], rule: &Rule) -> bool {
    rules.iter().any(|wider| wider.tests.iter().all(|test| rule.tests.contains(test)))
}

#[test]
fn a_thread_may_do_all_that_the_threads_may_that_it_starts() {
    for kind in KINDS {
        let mine = allowed(kind);
        for started in starts(kind) {
            for (number, rules) in allowed(*started) {
                for rule in rules {
                    let known = mine.get(&number).is_some_and(|mine| covers(mine, rule));
                    assert!(known, "{} starts {}, but lacks {}", label(kind), label(*started), rule.name);
                }
            }
            // A thread inherits the refusals of the thread that starts it.
            let refused: BTreeSet<_> = refused(kind).collect();
            assert!(allowed(*started).keys().all(|number| !refused.contains(number)));
        }
    }
}

#[test]
fn nobody_makes_the_calls_that_lead_out() {
    for kind in KINDS {
        let allowed = allowed(kind);
        for number in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_kill,
            libc::SYS_unshare,
            libc::SYS_mount,
            libc::SYS_rename,
            libc::SYS_openat2,
            libc::SYS_open_by_handle_at,
            libc::SYS_setrlimit,
            libc::SYS_prlimit64,
        ] {
            assert!(!allowed.contains_key(&number), "{}: {:?}", label(kind), name(number));
        }
        let unlimited =
            |number| allowed.get(&number).is_some_and(|rules| rules.iter().any(|r| r.tests.is_empty()));
        for number in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_ioctl, libc::SYS_fcntl, libc::SYS_prctl]
        {
            assert!(!unlimited(number), "{}: {:?}", label(kind), name(number));
        }
    }
    // These calls take a path, and a filter cannot see which.
    for number in [
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_access,
        libc::SYS_faccessat2,
        libc::SYS_readlink,
        libc::SYS_unlink,
        libc::SYS_truncate,
    ] {
        let may: Vec<Kind> = KINDS.into_iter().filter(|kind| allowed(*kind).contains_key(&number)).collect();
        let opener = [
            libc::SYS_openat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_readlink,
            libc::SYS_faccessat2,
        ];
        let expected: &[Kind] = if opener.contains(&number) { &[OPENER] } else { &[] };
        assert_eq!(may, expected, "{:?}", name(number));
    }
    let may = |number| {
        let kinds = KINDS.into_iter().filter(move |kind| allowed(*kind).contains_key(&number));
        kinds.collect::<Vec<Kind>>()
    };
    // The socket's file.
    assert_eq!(may(libc::SYS_unlinkat), MAINS);
    assert_eq!(may(libc::SYS_io_uring_setup), [RING_MAKER]);
}

/// No call sends to any other address than that of the socket's peer, or connects to one.
#[test]
fn what_is_sent_goes_to_the_peer() {
    for rule in KINDS.into_iter().flat_map(|kind| allowed(kind).into_values().flatten()) {
        match rule.number {
            libc::SYS_sendto => assert!(
                rule.tests.contains(&Test::Null(4)) && rule.tests.contains(&Test::Lacks(3, 0x2000_0000)),
                "{rule:?}"
            ),
            libc::SYS_sendmsg => assert!(rule.tests.contains(&Test::Lacks(2, 0x2000_0000)), "{rule:?}"),
            libc::SYS_sendmmsg => panic!("{rule:?}: its flags are in memory"),
            _ => {}
        }
    }
}

/// No rule is made useless by another one: each is written once in its table, and each condition limits the call in some kind of thread.
#[test]
fn no_wider_rule_undoes_a_condition() {
    for rules in ALL {
        for (index, rule) in rules.iter().enumerate() {
            let others = rules.iter().enumerate().filter(|(other, _)| *other != index);
            let same = others.map(|(_, other)| other).filter(|other| other.number == rule.number);
            assert!(!covers(&same.collect::<Vec<_>>(), rule), "{rule:?}");
        }
    }
    let limits = |kind: Kind, rule: &Rule| {
        let rules = allowed(kind).remove(&rule.number).unwrap_or_default();
        let (same, others): (Vec<_>, Vec<_>) = rules.into_iter().partition(|other| other.tests == rule.tests);
        !same.is_empty() && !covers(&others, rule)
    };
    for rule in ALL.iter().copied().flatten().filter(|rule| !rule.tests.is_empty()) {
        assert!(KINDS.into_iter().any(|kind| limits(kind, rule)), "{rule:?}");
    }
}

#[test]
fn each_rule_says_what_needs_it() {
    for rule in KINDS.into_iter().flat_map(|kind| allowed(kind).into_values().flatten()) {
        assert!(rule.why.len() > 3 && rule.name.starts_with("SYS_"), "{rule:?}");
        let arguments = rule.tests.iter().map(|test| match *test {
            Test::Is(argument, _)
            | Test::Not(argument, _)
            | Test::Has(argument, _)
            | Test::Lacks(argument, _)
            | Test::Own(argument)
            | Test::Null(argument) => argument,
        });
        assert!(arguments.into_iter().all(|argument| argument < 6));
    }
}

/// Their sizes, for those who compare: `cargo test -p paradisk-sandbox sizes -- --nocapture`.
#[test]
fn sizes_of_the_filters() {
    for kind in KINDS {
        let size = compile(kind, Mode::On).unwrap().len();
        println!("{:24} {size} instructions", label(kind));
        // The kernel takes 4096 for one filter, 32768 for all of a thread.
        assert!(size < 2048, "{size}");
    }
}

#[test]
fn a_call_outside_of_its_filter_kills_each_kind_of_thread() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        assert_killed(&act(Act::Socket, Mode::On, index), kind, "socket");
    }
}

#[test]
fn arguments_count() {
    let of = |program| KINDS.iter().position(|kind| *kind == Kind::Main(program)).unwrap();
    for act_of in [
        Act::Exec,
        Act::MapCode,
        Act::SignalOther,
        Act::ReplaceHandler,
        Act::TypeInto,
        Act::SendToAddress,
        Act::SendToHighAddress,
        Act::SendFastOpen,
    ] {
        let child = act(act_of, Mode::On, of(Program::VfioUser));
        assert_eq!(child.status.signal(), Some(libc::SIGSYS), "{act_of:?}: {child:?}");
    }
    let child = act(Act::SendToPeer, Mode::On, of(Program::VfioUser));
    assert!(child.status.success(), "{child:?}");
    // KVM_RUN is allowed on a virtual CPU's thread only, and no other ioctl of this test is allowed there.
    let vcpu = KINDS.iter().position(|kind| *kind == Kind::Thread(ThreadKind::Vcpu)).unwrap();
    let child = act(Act::RunGuest, Mode::On, vcpu);
    assert!(child.status.success(), "{child:?}");
    for (act_of, kind) in
        [(Act::TypeInto, vcpu), (Act::SocketLikeRunGuest, vcpu), (Act::RunGuest, of(Program::Run))]
    {
        let child = act(act_of, Mode::On, kind);
        assert_eq!(child.status.signal(), Some(libc::SIGSYS), "{act_of:?}: {child:?}");
    }
}

/// The seventh instruction allows KVM_RUN, and the six before it test for nothing else.
#[test]
fn kvm_run_is_allowed_before_all_other_tests() {
    for kind in KINDS {
        let filter = compile(kind, Mode::On).unwrap();
        let first = (filter[6].code, filter[6].k) == (0x06, libc::SECCOMP_RET_ALLOW);
        assert_eq!(first, kind == Kind::Thread(ThreadKind::Vcpu), "{}", label(kind));
    }
}

#[test]
fn what_the_allocator_and_panics_do_is_refused_and_survived() {
    let of = |kind| KINDS.iter().position(|other| *other == kind).unwrap();
    let (vcpu, main) = (of(Kind::Thread(ThreadKind::Vcpu)), of(Kind::Main(Program::Nbd)));
    for (act_of, kind) in [(Act::Open, vcpu), (Act::Panic, vcpu), (Act::StartThread, main)] {
        let child = act(act_of, Mode::On, kind);
        assert!(child.status.success(), "{act_of:?}: {child:?}");
    }
}

#[test]
fn each_kind_of_thread_opens_no_path_but_those_that_were_granted_to_it() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        assert_succeeds(&act(Act::Open, Mode::On, index), kind);
        // `Act::Paths` has what that kind may write.
        if kind != OPENER {
            assert_succeeds(&act(Act::OpenForWriting, Mode::On, index), kind);
        }
    }
}

#[test]
fn no_thread_but_the_one_that_opens_images_learns_attributes_by_path() {
    for (index, kind) in KINDS.into_iter().enumerate().filter(|(_, kind)| *kind != OPENER) {
        assert_succeeds(&act(Act::Attributes, Mode::On, index), kind);
    }
}

#[test]
fn what_an_old_kernel_lacks_is_one_line_and_threads_still_open_nothing() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        if let Kind::Thread(_) = kind {
            assert_succeeds(&act(Act::OpenOnOldKernel, Mode::On, index), kind);
        }
    }
}

#[test]
fn no_thread_but_the_ring_maker_makes_a_ring() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        let child = act(Act::OwnRing, Mode::On, index);
        // The maker uses no ring.
        assert_killed(&child, kind, if kind == RING_MAKER { "io_uring_enter" } else { "io_uring_setup" });
    }
}

#[test]
fn a_ring_of_a_disk_transfers_and_does_nothing_else() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        let given = act(Act::DiskRing, Mode::On, index);
        if uses_rings(kind) {
            assert_succeeds(&given, kind);
        } else {
            assert_killed(&given, kind, "io_uring_enter");
        }
    }
}

/// The ring maker makes the ring.
#[test]
fn a_queue_that_a_thread_makes_has_a_restricted_ring() {
    for (index, kind) in KINDS.into_iter().enumerate().filter(|(_, kind)| MAKE_QUEUES.contains(kind)) {
        assert_succeeds(&act(Act::NewDiskRing, Mode::On, index), kind);
    }
}

#[test]
fn paths_are_limited_to_those_that_were_granted() {
    let kind = KINDS.iter().position(|kind| *kind == OPENER).unwrap();
    let child = act(Act::Paths, Mode::On, kind);
    assert!(child.status.success(), "{child:?}");
}

#[test]
fn log_reports_and_makes_the_call() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        let child = act(Act::Socket, Mode::Log, index);
        assert!(child.status.success(), "{}: {child:?}", label(kind));
        let text = String::from_utf8(child.stderr).unwrap();
        assert_eq!(text.matches("(socket): it would not be allowed").count(), 1, "once: {text}");
    }
}

#[test]
fn off_does_nothing() {
    let child = act(Act::Status, Mode::Off, 0);
    assert!(child.status.success(), "{child:?}");
    let child = act(Act::Status, Mode::On, 0);
    assert!(!child.status.success(), "the test finds a sandbox");
}
