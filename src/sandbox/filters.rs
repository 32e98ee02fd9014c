//! The tables as seccomp filters, and their installation.
//!
//! A thread has one filter beside those that it inherits. The filter has parts, and the first one that has an answer for a call decides:
//!
//! 1. KVM_RUN is allowed, in a virtual CPU's thread,
//! 2. calls that are refused with EACCES,
//! 3. `clone3` is refused with ENOSYS, in kinds that start threads: the C library then uses `clone`, whose flags a filter sees,
//! 4. the calls of the kind; any other is trapped ([`denied`](crate::denied)).
//!
//! The kernel runs all filters of a thread at each call, and takes the most severe answer. Since Linux 5.11 it notes for each call number
//! whether all filters allow it whatever the arguments are, and then runs none. The calls of the I/O path (io_uring_enter, epoll, reads and
//! writes) are such. Of the frequent calls only KVM_RUN has a condition. seccompiler tests call numbers one after the other from the
//! lowest, and alternatives in their order, so KVM_RUN has a test of its own before them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use libc::c_long;
use paradisk_disk_formats::{ThreadKind, on_thread_start};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use crate::bpf;
use crate::denied;
use crate::error::Error;
use crate::mode::{Mode, Program};
use crate::tables::{self, Kind, Rule, Test};

/// Every kind that has a filter.
pub(crate) const KINDS: [Kind; 27] = {
    use ThreadKind::*;
    [
        Kind::Main(Program::Run),
        Kind::Main(Program::RunAttaching),
        Kind::Main(Program::Nbd),
        Kind::Main(Program::VhostUser),
        Kind::Main(Program::VfioUser),
        Kind::Thread(DiskTransfer),
        Kind::Thread(DiskHelper),
        Kind::Thread(RingMaker),
        Kind::Thread(Adapter),
        Kind::Thread(AdapterQueue),
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
        Kind::Thread(VfioUserSession),
        Kind::Thread(Notifier),
        Kind::Thread(Closer),
        Kind::Thread(Close),
        Kind::Thread(Deadline),
        Kind::Thread(Messages),
    ]
};

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// The filters, made before the first thread.
static FILTERS: OnceLock<BTreeMap<Kind, BpfProgram>> = OnceLock::new();

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
            denied::say(format_args!("error: sandbox: filter of {kind:?}: {error}"));
            std::process::exit(1);
        }
    });
    Ok(())
}

/// Install the filter of this kind on this thread.
pub(crate) fn install(kind: Kind) -> Result<(), seccompiler::Error> {
    denied::name_this_thread(kind);
    // A kind without a filter of its own gets the filter that allows the fewest calls.
    let least = Kind::Thread(ThreadKind::Console);
    let filters = FILTERS.get().and_then(|filters| filters.get(&kind).or_else(|| filters.get(&least)));
    filters.map_or(Ok(()), |program| apply_filter(program))
}

/// The filter of a kind.
pub(crate) fn compile(kind: Kind, mode: Mode) -> Result<BpfProgram, seccompiler::Error> {
    let any = |numbers: &[c_long]| numbers.iter().map(|number| (*number, Vec::new())).collect::<Rules>();
    let mut parts = Vec::new();
    // In `Mode::Log`, these calls are reported and made like all others.
    let refused: Vec<c_long> = tables::refused(kind).filter(|_| mode == Mode::On).collect();
    if !refused.is_empty() {
        let answer = SeccompAction::Errno(libc::EACCES as u32);
        parts.push(program(any(&refused), SeccompAction::Allow, answer)?);
    }
    if !tables::starts(kind).is_empty() {
        let answer = SeccompAction::Errno(libc::ENOSYS as u32);
        parts.push(program(any(&[libc::SYS_clone3]), SeccompAction::Allow, answer)?);
    }
    let mut rules = Rules::new();
    for (number, alternatives) in tables::allowed(kind) {
        rules.insert(number, alternatives_of(&alternatives)?);
    }
    parts.push(program(rules, SeccompAction::Trap, SeccompAction::Allow)?);
    let filter = bpf::joined(parts);
    let filter = if kind == Kind::Thread(ThreadKind::Vcpu) {
        bpf::allowing_ioctl(tables::KVM_RUN, filter)
    } else {
        filter
    };
    Ok(if mode == Mode::Log { bpf::allowing_calls_at(denied::address_of_calls(), filter) } else { filter })
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    Ok(SeccompFilter::new(rules, otherwise, then, TargetArch::x86_64)?.try_into()?)
}

/// Rules of one call; empty if any arguments are allowed.
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
        Test::Null(argument) => {
            return Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?);
        }
        Test::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
        Test::Not(argument, value) => (argument, SeccompCmpOp::Ne, value),
        Test::Has(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits.into()), bits),
        Test::Lacks(argument, bits) => (argument, SeccompCmpOp::MaskedEq(bits.into()), 0),
        Test::Own(argument) => (argument, SeccompCmpOp::Eq, std::process::id()),
    };
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())?)
}
