//! The tables as seccomp filters, and their installation.
//!
//! A thread has up to three filters beside those that it inherits. The kernel runs all of them at each call and takes the most severe answer,
//! for which "trap" is more severe than an error number, which is more severe than "allow":
//!
//! 1. calls that are refused with EACCES,
//! 2. `clone3` is refused with ENOSYS, in kinds that start threads: the C library then uses `clone`, whose flags a filter sees,
//! 3. the calls of the kind, and those of 1 and 2; any other is trapped ([`denied`](crate::denied)).
//!
//! Since Linux 5.11 the kernel notes for each call number whether all filters allow it whatever the arguments are, and then runs none. The calls
//! of the I/O path (io_uring_enter, epoll, reads and writes) are such. Of the frequent calls only KVM_RUN has a condition; seccompiler tests
//! call numbers one after the other from the lowest, and that of ioctl, 16, is among the first.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use libc::c_long;
use paradisk_disk_formats::{ThreadKind, on_thread_start};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use crate::denied;
use crate::error::Error;
use crate::mode::{Mode, Program};
use crate::tables::{self, Kind, Rule, Test};

/// Every kind that has a filter.
pub(crate) const KINDS: [Kind; 19] = {
    use ThreadKind::*;
    [
        Kind::Main(Program::Run),
        Kind::Main(Program::Nbd),
        Kind::Main(Program::VhostUser),
        Kind::Main(Program::VfioUser),
        Kind::Thread(DiskTransfer),
        Kind::Thread(DiskHelper),
        Kind::Thread(Adapter),
        Kind::Thread(Vcpu),
        Kind::Thread(Console),
        Kind::Thread(Terminal),
        Kind::Thread(Signals),
        Kind::Thread(ControlListener),
        Kind::Thread(ControlClient),
        Kind::Thread(Metrics),
        Kind::Thread(NbdListener),
        Kind::Thread(NbdClient),
        Kind::Thread(VhostUserSession),
        Kind::Thread(VhostUserQueue),
        Kind::Thread(Notifier),
    ]
};

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;
type Compiled = Result<Vec<BpfProgram>, seccompiler::Error>;

/// The filters, made before the first thread.
static FILTERS: OnceLock<BTreeMap<Kind, Vec<BpfProgram>>> = OnceLock::new();

/// Make all filters, and have each thread that starts from now on install its own.
pub(crate) fn prepare(mode: Mode) -> Result<(), Error> {
    if FILTERS.get().is_none() {
        let compiled = KINDS.iter().map(|kind| Ok((*kind, compile(*kind, mode)?)));
        let _ = FILTERS.set(compiled.collect::<Result<_, seccompiler::Error>>()?);
    }
    denied::handle(mode).map_err(Error::Handler)?;
    on_thread_start(|kind| {
        if let Err(error) = install(Kind::Thread(kind)) {
            // A thread without its filter must not run.
            eprintln!("error: sandbox: filter of {kind:?}: {error}");
            std::process::exit(1);
        }
    });
    Ok(())
}

/// Install the filters of this kind on this thread.
pub(crate) fn install(kind: Kind) -> Result<(), seccompiler::Error> {
    denied::name_this_thread(kind);
    // A kind that is not among them has the least calls.
    let least = Kind::Thread(ThreadKind::Console);
    let filters = FILTERS.get().and_then(|filters| filters.get(&kind).or_else(|| filters.get(&least)));
    filters.into_iter().flatten().try_for_each(|program| apply_filter(program))
}

/// The filters of a kind, in the order of installation: the last is the one that may not allow `seccomp`.
pub(crate) fn compile(kind: Kind, mode: Mode) -> Compiled {
    let refused: Vec<c_long> = tables::refused(kind).collect();
    let threads = (!tables::starts(kind).is_empty()).then_some(libc::SYS_clone3);
    let any = |numbers: &[c_long]| numbers.iter().map(|number| (*number, Vec::new())).collect::<Rules>();
    let mut programs = Vec::new();
    // In this mode they are reported and made as others are.
    if mode == Mode::On {
        programs.push(program(
            any(&refused),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::EACCES as u32),
        )?);
    }
    if let Some(clone3) = threads {
        programs.push(program(
            any(&[clone3]),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::ENOSYS as u32),
        )?);
    }
    let mut rules = Rules::new();
    for (number, alternatives) in tables::allowed(kind) {
        rules.insert(number, alternatives_of(&alternatives)?);
    }
    if mode == Mode::On {
        rules.extend(any(&refused));
    }
    rules.extend(threads.map(|clone3| (clone3, Vec::new())));
    programs.push(program(rules, SeccompAction::Trap, SeccompAction::Allow)?);
    if mode == Mode::Log {
        programs.iter_mut().for_each(|program| *program = denied::made_by_the_handler(program));
    }
    Ok(programs)
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    Ok(SeccompFilter::new(rules, otherwise, then, TargetArch::x86_64)?.try_into()?)
}

/// Rules of one call; none where any arguments will do.
fn alternatives_of(rules: &[&Rule]) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    if rules.iter().any(|rule| rule.tests.is_empty()) {
        return Ok(Vec::new());
    }
    let rule = |rule: &&Rule| {
        let conditions = rule.tests.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
        Ok(SeccompRule::new(conditions)?)
    };
    rules.iter().map(rule).collect()
}

fn condition(test: &Test) -> Result<SeccompCondition, seccompiler::Error> {
    let (argument, operator, value) = match *test {
        Test::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
        Test::Not(argument, value) => (argument, SeccompCmpOp::Ne, value),
        Test::Has(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits.into()), bits),
        Test::Lacks(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits.into()), 0),
        Test::Own(argument) => (argument, SeccompCmpOp::Eq, std::process::id()),
    };
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())?)
}
