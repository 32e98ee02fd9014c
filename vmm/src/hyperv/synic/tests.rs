use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::*;
use crate::memory;

const SOON: Duration = Duration::from_secs(60);
const MEMORY: u64 = 0x10_0000;
const MESSAGES: u64 = 0x3000;
const FLAGS_PAGE: u64 = 0x5000;
const SLOT: GuestAddress = GuestAddress(MESSAGES + 0x200);
const EVENTS: GuestAddress = GuestAddress(FLAGS_PAGE + 0x200);
const SOURCE: Register = Register::Source(2);

/// Interrupts and routes that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    Route(u16, Option<MsiMessage>),
    Message(u16),
}

struct Recorder(Sender<Out>);

impl InterruptSink for Recorder {
    fn route(&mut self, vector: u16, message: Option<MsiMessage>) {
        self.0.send(Out::Route(vector, message)).unwrap();
    }

    fn message(&mut self, vector: u16) {
        self.0.send(Out::Message(vector)).unwrap();
    }

    fn line(&mut self, _: bool) {}
}

struct Rig {
    synic: VmbusSynic,
    processors: Arc<Processors>,
    out: Receiver<Out>,
}

impl Rig {
    fn new() -> Self {
        let processors = Arc::new(Processors::new(memory::allocate(MEMORY).unwrap(), 2));
        let (sender, out) = channel();
        let synic = VmbusSynic::new(Arc::clone(&processors), Box::new(Recorder(sender)));
        Self { synic, processors, out }
    }

    /// Processor 1 set up as by Linux.
    fn enabled() -> Self {
        let rig = Self::new();
        for (register, value) in [
            (Register::Messages, MESSAGES | 1),
            (Register::EventFlags, FLAGS_PAGE | 1),
            (SOURCE, 0xf3),
            (Register::Control, 1),
        ] {
            rig.write(register, value).unwrap();
        }
        rig
    }

    fn processor(&self) -> &Processor {
        self.processors.get(1).unwrap()
    }

    fn write(&self, register: Register, value: u64) -> Result<(), Refused> {
        self.processor().write(register, value, &self.processors.memory)
    }

    fn slot(&self) -> [u8; 256] {
        let mut slot = [0; 256];
        self.processors.memory.read_slice(&mut slot, SLOT).unwrap();
        slot
    }

    /// The guest takes the message.
    fn free(&self) {
        self.processors.memory.write_obj(0_u32, SLOT).unwrap();
    }

    fn event_word(&self, index: u64) -> u64 {
        self.processors.memory.read_obj(GuestAddress(EVENTS.0 + index * 8)).unwrap()
    }

    fn sent(&self) -> Vec<Out> {
        self.out.try_iter().collect()
    }
}

fn route(data: u32) -> Out {
    Out::Route(1, Some(MsiMessage { address: 0xfee0_1000, data }))
}

#[test]
fn a_message_is_in_the_slot_and_interrupts() {
    let mut rig = Rig::enabled();
    assert_eq!(rig.synic.post_message(1, b"offer"), Posted::Done);
    let slot = rig.slot();
    assert_eq!(slot[..16], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((&slot[16..21], slot[21]), (b"offer".as_slice(), 0));
    assert_eq!(rig.sent(), [route(0xf3), Out::Message(1)]);
    rig.free();
    let longest: Vec<u8> = (0..240).collect();
    assert_eq!(rig.synic.post_message(1, &longest), Posted::Done);
    assert_eq!((rig.slot()[4], &rig.slot()[16..]), (240, &longest[..]));
    assert_eq!(rig.sent(), [Out::Message(1)], "routed once");
}

#[test]
fn a_slot_that_is_taken_asks_for_its_end() {
    let mut rig = Rig::enabled();
    assert_eq!(rig.synic.post_message(1, b"first"), Posted::Done);
    assert!(!rig.processor().take_waiting());
    assert_eq!(rig.synic.post_message(1, b"second"), Posted::Busy);
    let slot = rig.slot();
    assert_eq!((slot[4], slot[5], &slot[16..21]), (5, 1, b"first".as_slice()));
    assert_eq!(rig.sent(), [route(0xf3), Out::Message(1)], "one interrupt");
    rig.free();
    assert!(rig.processor().take_waiting());
    assert!(!rig.processor().take_waiting(), "once");
    assert_eq!(rig.synic.post_message(1, b"second"), Posted::Done);
    let slot = rig.slot();
    assert_eq!((slot[4], slot[5], &slot[16..22]), (6, 0, b"second".as_slice()));
}

/// The guest frees the slot after the check that it is occupied, and before the flag is set: it sends no end of message.
#[test]
fn a_slot_that_is_freed_meanwhile_is_not_waited_for() {
    let rig = Rig::enabled();
    let slot = rig.processors.memory.get_slice(SLOT, AREA).unwrap();
    let kind = slot.get_atomic_ref::<AtomicU32>(TYPE).unwrap();
    kind.store(VMBUS_MESSAGE, Ordering::Relaxed);
    assert!(rig.processor().mark_pending(&slot, kind));
    kind.store(FREE, Ordering::Relaxed);
    assert!(!rig.processor().mark_pending(&slot, kind));
}

/// A guest that takes messages on its own thread, and signals the end of a message only if the flag is set: no message waits for ever.
#[test]
fn no_end_of_a_message_is_missed() {
    const COUNT: u32 = 20_000;
    let mut rig = Rig::enabled();
    let processors = Arc::clone(&rig.processors);
    let (end, ended) = channel();
    let guest = move || {
        let processor = processors.get(1).unwrap();
        let slot = processors.memory.get_slice(SLOT, AREA).unwrap();
        let kind = slot.get_atomic_ref::<AtomicU32>(TYPE).unwrap();
        let flags = slot.get_atomic_ref::<AtomicU8>(FLAGS).unwrap();
        for expected in 0..COUNT {
            while kind.load(Ordering::Acquire) == FREE {
                std::hint::spin_loop();
            }
            assert_eq!(slot.read_obj::<u32>(PAYLOAD).unwrap(), expected);
            kind.swap(FREE, Ordering::SeqCst);
            if flags.load(Ordering::SeqCst) & PENDING != 0 && processor.take_waiting() {
                end.send(()).unwrap();
            }
        }
    };
    let guest = thread::spawn(guest);
    for number in 0..COUNT {
        // Vary the guest's position.
        for _ in 0..number % 97 {
            std::hint::spin_loop();
        }
        while rig.synic.post_message(1, &number.to_le_bytes()) == Posted::Busy {
            ended.recv_timeout(SOON).unwrap_or_else(|_| panic!("message {number} waits for ever"));
        }
    }
    guest.join().unwrap();
}

#[test]
fn an_event_interrupts_when_its_flag_was_clear() {
    let mut rig = Rig::enabled();
    rig.synic.signal_event(1, 65);
    assert_eq!((rig.event_word(0), rig.event_word(1)), (0, 2));
    rig.synic.signal_event(1, 65);
    assert_eq!(rig.sent(), [route(0xf3), Out::Message(1)]);
    rig.synic.signal_event(1, 2047);
    assert_eq!((rig.event_word(31), rig.sent()), (1 << 63, vec![Out::Message(1)]));
    rig.processors.memory.write_obj(0_u64, GuestAddress(EVENTS.0 + 8)).unwrap();
    rig.synic.signal_event(1, 65);
    assert_eq!(rig.sent(), [Out::Message(1)]);
    // Not for the flag after the last one, nor for processors that do not exist or are not enabled.
    rig.synic.signal_event(1, 2048);
    rig.synic.signal_event(0, 1);
    rig.synic.signal_event(2, 1);
    let mut after = [0; 8];
    rig.processors.memory.read_slice(&mut after, GuestAddress(EVENTS.0 + 256)).unwrap();
    assert_eq!((after, rig.sent()), ([0; 8], Vec::new()));
}

#[test]
fn what_is_off_takes_nothing() {
    assert_eq!(Rig::new().synic.processors(), Some(2));
    for register in [Register::Control, Register::Messages, Register::EventFlags] {
        let mut rig = Rig::enabled();
        rig.write(register, 0).unwrap();
        let posted = rig.synic.post_message(1, b"offer");
        rig.synic.signal_event(1, 1);
        let messages = register == Register::EventFlags;
        let events = register == Register::Messages;
        assert_eq!(posted, if messages { Posted::Done } else { Posted::Off }, "{register:?}");
        assert_eq!(rig.slot()[0], u8::from(messages), "{register:?}");
        assert_eq!(rig.event_word(0), if events { 2 } else { 0 }, "{register:?}");
    }
    let mut rig = Rig::enabled();
    assert_eq!(rig.synic.post_message(0, b"offer"), Posted::Off);
    assert_eq!(rig.synic.post_message(2, b"offer"), Posted::Off);
    assert_eq!(rig.sent(), []);
}

#[test]
fn a_masked_source_interrupts_nobody() {
    let mut rig = Rig::enabled();
    for off in [0x1_00f3, 0x4_00f3] {
        rig.write(SOURCE, 0x31).unwrap();
        rig.synic.signal_event(1, 1);
        assert_eq!(rig.sent(), [route(0x31), Out::Message(1)]);
        rig.write(SOURCE, off).unwrap();
        rig.synic.signal_event(1, 2);
        // A vector without a route sends nothing.
        assert_eq!(rig.sent(), [Out::Route(1, None), Out::Message(1)], "{off:#x}");
        rig.processors.memory.write_obj(0_u64, EVENTS).unwrap();
    }
    // Masked before its first use.
    let mut rig = Rig::enabled();
    rig.write(SOURCE, 0x1_0000).unwrap();
    assert_eq!(rig.synic.post_message(1, b"offer"), Posted::Done);
    assert_eq!(rig.sent(), [Out::Message(1)], "no route");
}

#[test]
fn registers_that_cannot_be_are_refused() {
    let rig = Rig::enabled();
    for (register, value) in [
        (Register::Messages, MEMORY | 1),
        (Register::EventFlags, !0xfff | 1),
        // An exception's vector; automatic end of interrupt.
        (SOURCE, 0x0f),
        (SOURCE, 0x2_00f3),
        (Register::Source(16), 0x30),
        (Register::Version, 1),
    ] {
        assert_eq!(rig.write(register, value), Err(Refused), "{register:?} {value:#x}");
    }
    assert_eq!(rig.processor().read(Register::Messages), Some(MESSAGES | 1));
    assert_eq!(rig.processor().read(SOURCE), Some(0xf3));
    assert_eq!(rig.processor().read(Register::Version), Some(1));
    assert_eq!(rig.processor().read(Register::Source(15)), Some(0x1_0000));
    // A masked source accepts any vector; a disabled page accepts any address.
    rig.write(SOURCE, 0x1_0000).unwrap();
    rig.write(Register::Messages, MEMORY).unwrap();
}

#[test]
fn a_page_is_zeroed_when_it_is_enabled() {
    let mut rig = Rig::enabled();
    rig.processors.memory.write_obj(7_u32, SLOT).unwrap();
    rig.write(Register::Messages, MESSAGES | 1).unwrap();
    assert_eq!(rig.slot()[0], 7, "it was enabled there");
    rig.write(Register::Messages, MESSAGES).unwrap();
    rig.write(Register::Messages, MESSAGES | 1).unwrap();
    assert_eq!(rig.synic.post_message(1, b"offer"), Posted::Done, "what was there before is no message");
}
