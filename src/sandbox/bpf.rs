//! Two changes of seccompiler's programs: several are joined into one, and a call is allowed before all tests of a program.
//!
//! Jumps of classic BPF are relative and forward, so instructions can be put before or after a program.

use seccompiler::{BpfProgram, sock_filter};

// Offsets in `struct seccomp_data` (include/uapi/linux/seccomp.h). The address and the arguments have 64 bits, little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION_POINTER: u32 = 8;
const ARGUMENT_1: u32 = 24;

/// `AUDIT_ARCH_X86_64` (include/uapi/linux/audit.h).
const X86_64: u32 = 0xc000_003e;

/// Join programs. The next program decides calls that a program does not name. All but the last must answer "allow" for calls that they do
/// not name, and must test no arguments: a program that names a call would allow it with other arguments before the next program runs.
pub(crate) fn joined(programs: Vec<BpfProgram>) -> BpfProgram {
    let mut joined = BpfProgram::new();
    for program in programs {
        // The last instruction is the answer for calls that the program does not name.
        joined.pop();
        joined.extend(program);
    }
    joined
}

/// The program, but `ioctl` with this request is allowed.
pub(crate) fn allowing_ioctl(request: u32, program: BpfProgram) -> BpfProgram {
    allowing(&[(ARCHITECTURE, X86_64), (NUMBER, libc::SYS_ioctl as u32), (ARGUMENT_1, request)], program)
}

/// The program, but all calls are allowed that are made by the instruction before this address.
pub(crate) fn allowing_calls_at(address: u64, program: BpfProgram) -> BpfProgram {
    let halves = [address as u32, (address >> 32) as u32];
    allowing(&[(INSTRUCTION_POINTER, halves[0]), (INSTRUCTION_POINTER + 4, halves[1])], program)
}

/// The program, but calls are allowed that have all these words, given by their offset in `struct seccomp_data`.
fn allowing(words: &[(u32, u32)], program: BpfProgram) -> BpfProgram {
    // include/uapi/linux/bpf_common.h: BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K.
    let load = |offset| sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let unless = |value, skipped| sock_filter { code: 0x15, jt: 0, jf: skipped, k: value };
    let allow = sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let left = (0..words.len()).rev();
    let tests = words.iter().zip(left).flat_map(|(&(offset, value), left)| {
        // The tests that are left, and the answer.
        [load(offset), unless(value, 2 * left as u8 + 1)]
    });
    tests.chain([allow]).chain(program).collect()
}
