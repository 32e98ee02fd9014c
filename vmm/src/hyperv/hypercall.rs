//! Hypercalls (Hypervisor Top-Level Functional Specification 6.0, chapter 3): the code of the hypercall page, and the parsing of its
//! registers.
//!
//! The code writes to a port, which exits. A fast HvSignalEvent, which guests use for I/O, writes the connection ID to a second port: there
//! KVM has an ioeventfd for each connection, and the guest runs on.

use paradisk_devices::vmbus::HypercallStatus;
use vm_memory::{Bytes, GuestAddress};

use crate::layout;
use crate::memory::GuestMemory;

const POST_MESSAGE: u16 = 0x5c;
const SIGNAL_EVENT: u16 = 0x5d;
/// Bit of the control word: the input is in registers.
const FAST: u64 = 1 << 16;
/// The valid bits of the control word for calls without repetitions and variable headers.
const CONTROL: u64 = 0x1_ffff;

/// Bytes before the payload of a message: connection, zero, type, size.
const HEADER: usize = 16;
const MOST_PAYLOAD: usize = 240;

/// The hypercall page: RCX is the control word, RDX the input, RAX the status.
#[rustfmt::skip]
pub(super) const CODE: [u8; 22] = [
    0xf3, 0x0f, 0x1e, 0xfa,                   // endbr64: it is called through a pointer
    0x81, 0xf9, 0x5d, 0x00, 0x01, 0x00,       // cmp ecx, SIGNAL_EVENT | FAST
    0x75, 0x07,                               // jne other
    0x89, 0xd0,                               // mov eax, edx
    0xe7, layout::SIGNAL_EVENT as u8,         // out SIGNAL_EVENT, eax
    0x31, 0xc0,                               // xor eax, eax
    0xc3,                                     // ret
    0xe7, layout::HYPERCALL as u8,            // other: out HYPERCALL, eax
    0xc3,                                     // ret
];

/// A hypercall's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u16);

impl Status {
    /// There is no such hypercall.
    pub(super) const INVALID_CODE: Self = Self(2);
    /// The input's address is not a multiple of eight.
    const INVALID_ALIGNMENT: Self = Self(4);
    /// The caller is not allowed to make hypercalls.
    pub(super) const ACCESS_DENIED: Self = Self(6);

    /// The value of RAX.
    pub(crate) const fn register(self) -> u64 {
        self.0 as u64
    }
}

impl From<HypercallStatus> for Status {
    fn from(status: HypercallStatus) -> Self {
        Self(status as u16)
    }
}

/// The caller of a hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// 64-bit code of the kernel.
    Kernel64,
    /// The kernel in another mode, in which hypercalls use other registers.
    KernelOther,
    /// A user program with access to the port.
    User,
}

/// The registers of a hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) caller: Caller,
    /// RCX.
    pub(crate) control: u64,
    /// RDX: the input or its guest-physical address.
    pub(crate) parameters: u64,
}

/// A parsed hypercall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    PostMessage { connection: u32, kind: u32, payload: Vec<u8> },
    SignalEvent { connection: u32 },
}

/// Parse the call in registers and guest memory.
pub(super) fn parse(input: Input, memory: &GuestMemory) -> Result<Call, Status> {
    match input.caller {
        Caller::Kernel64 => {}
        Caller::KernelOther => return Err(Status::INVALID_CODE),
        Caller::User => return Err(Status::ACCESS_DENIED),
    }
    let Input { control, parameters, .. } = input;
    let code = control as u16;
    let is_fast = control & FAST != 0;
    let is_valid = match code {
        POST_MESSAGE => control & !CONTROL == 0 && !is_fast,
        SIGNAL_EVENT => control & !CONTROL == 0,
        _ => return Err(Status::INVALID_CODE),
    };
    if !is_valid {
        return Err(HypercallStatus::InvalidHypercallInput.into());
    }
    match code {
        POST_MESSAGE => post_message(parameters, memory),
        _ if is_fast => signal_event(parameters),
        _ => signal_event(u64::from_le_bytes(read(parameters, memory)?)),
    }
}

fn post_message(address: u64, memory: &GuestMemory) -> Result<Call, Status> {
    let header: [u8; HEADER] = read(address, memory)?;
    let [connection, _, kind, size] = words(header);
    if size as usize > MOST_PAYLOAD {
        return Err(HypercallStatus::InvalidHypercallInput.into());
    }
    let mut payload = vec![0; size as usize];
    let at = address.checked_add(HEADER as u64).map(GuestAddress);
    let read = at.and_then(|at| memory.read_slice(&mut payload, at).ok());
    read.ok_or(HypercallStatus::InvalidHypercallInput)?;
    Ok(Call::PostMessage { connection, kind, payload })
}

/// The connection's ID in the low dword. The high dword is a flag number, which must be 0: the connections here have one flag.
fn signal_event(parameters: u64) -> Result<Call, Status> {
    if parameters >> 32 != 0 {
        return Err(HypercallStatus::InvalidHypercallInput.into());
    }
    Ok(Call::SignalEvent { connection: parameters as u32 })
}

fn read<const LEN: usize>(address: u64, memory: &GuestMemory) -> Result<[u8; LEN], Status> {
    if !address.is_multiple_of(8) {
        return Err(Status::INVALID_ALIGNMENT);
    }
    let mut bytes = [0; LEN];
    let read = memory.read_slice(&mut bytes, GuestAddress(address));
    read.map_err(|_| HypercallStatus::InvalidHypercallInput)?;
    Ok(bytes)
}

fn words(header: [u8; HEADER]) -> [u32; 4] {
    let (words, _) = header.as_chunks::<4>();
    std::array::from_fn(|index| words.get(index).copied().map_or(0, u32::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    const MEMORY: u64 = 0x2000;
    const FAST_SIGNAL: u64 = 0x1_005d;
    const INVALID_INPUT: Status = Status(3);

    fn call(control: u64, parameters: u64, memory: &GuestMemory) -> Result<Call, Status> {
        parse(Input { caller: Caller::Kernel64, control, parameters }, memory)
    }

    /// A message with this header at an address.
    fn put(memory: &GuestMemory, at: u64, header: [u32; 4], payload: &[u8]) {
        let header = header.map(u32::to_le_bytes).concat();
        memory.write_slice(&[&header, payload].concat(), GuestAddress(at)).unwrap();
    }

    #[test]
    fn a_message_is_copied() {
        let memory = memory::allocate(MEMORY).unwrap();
        put(&memory, 0x108, [4, 0, 1, 5], b"hello!");
        let expected = Call::PostMessage { connection: 4, kind: 1, payload: b"hello".to_vec() };
        assert_eq!(call(0x5c, 0x108, &memory), Ok(expected));
        // The longest one ends with memory.
        put(&memory, MEMORY - 256, [1, 0, 1, 240], &[7; 240]);
        let expected = Call::PostMessage { connection: 1, kind: 1, payload: vec![7; 240] };
        assert_eq!(call(0x5c, MEMORY - 256, &memory), Ok(expected));
    }

    #[test]
    fn messages_that_cannot_be_are_refused() {
        let memory = memory::allocate(MEMORY).unwrap();
        put(&memory, 0x100, [1, 0, 1, 241], &[]);
        assert_eq!(call(0x5c, 0x100, &memory), Err(INVALID_INPUT), "too long");
        put(&memory, MEMORY - 16, [1, 0, 1, 1], &[]);
        assert_eq!(call(0x5c, MEMORY - 16, &memory), Err(INVALID_INPUT), "beyond memory");
        assert_eq!(call(0x5c, MEMORY, &memory), Err(INVALID_INPUT), "not in memory");
        assert_eq!(call(0x5c, !7, &memory), Err(INVALID_INPUT), "at the end of addresses");
        assert_eq!(call(0x5c, 0x104, &memory), Err(Status::INVALID_ALIGNMENT));
        put(&memory, 0x100, [1, 0, 1, 0], &[]);
        assert_eq!(call(0x1_005c, 0x100, &memory), Err(INVALID_INPUT), "a message in registers");
        assert_eq!(call(0x5c | 1 << 32, 0x100, &memory), Err(INVALID_INPUT), "repeated");
    }

    #[test]
    fn a_signal_is_in_registers_or_in_memory() {
        let memory = memory::allocate(MEMORY).unwrap();
        let expected = Ok(Call::SignalEvent { connection: 0x2003 });
        assert_eq!(call(FAST_SIGNAL, 0x2003, &memory), expected);
        memory.write_obj(0x2003_u64, GuestAddress(8)).unwrap();
        assert_eq!(call(0x5d, 8, &memory), expected);
        assert_eq!(call(FAST_SIGNAL, 0x2003 | 1 << 32, &memory), Err(INVALID_INPUT), "flag 1");
        assert_eq!(call(FAST_SIGNAL | 1 << 17, 0x2003, &memory), Err(INVALID_INPUT), "a variable header");
    }

    #[test]
    fn only_the_kernel_calls_and_only_what_there_is() {
        let memory = memory::allocate(MEMORY).unwrap();
        let from = |caller| parse(Input { caller, control: FAST_SIGNAL, parameters: 1 }, &memory);
        assert!(from(Caller::Kernel64).is_ok());
        assert_eq!(from(Caller::User), Err(Status::ACCESS_DENIED));
        assert_eq!(from(Caller::KernelOther), Err(Status::INVALID_CODE));
        for code in [0, 0x46, 0x8001, 0xffff] {
            assert_eq!(call(code, 0, &memory), Err(Status::INVALID_CODE), "{code:#x}");
        }
    }
}
