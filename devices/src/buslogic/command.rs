//! The protocol of commands over the status and data registers. The driver writes an operation code and parameters, and reads the reply
//! byte by byte.
//!
//! HARDY is cleared by the operation code and set when the command completes. DIRRDY is set while bytes of the reply are unread. Commands
//! are executed when their last parameter is written, so CPRBSY is never set.

use super::spec::{Status, opcode};

/// Parameters that are stored. Further ones are only counted.
const MAX_PARAMETERS: usize = 5;

/// A command with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// No effect on an emulated adapter.
    Nothing,
    /// No effect, and no interrupt on completion.
    NothingQuiet,
    BoardId,
    Installed {
        first: u8,
    },
    Configuration,
    Setup {
        len: u8,
    },
    Echo(u8),
    Targets,
    EnableInterrupt(bool),
    Mailboxes {
        count: u8,
        base: u32,
    },
    Firmware3rd,
    FirmwareLetter,
    PciInfo,
    Model {
        len: u8,
    },
    SyncPeriod {
        len: u8,
    },
    ExtendedSetup {
        len: u8,
    },
    RoundRobin {
        strict: bool,
    },
    LocalRam {
        offset: u8,
        count: u8,
    },
    CcbFormat {
        extended: bool,
    },
}

/// Number of a command's parameters; `None`: unknown command. SET OPTIONS has further parameters, counted by the first.
const fn parameters(code: u8) -> Option<usize> {
    use opcode::*;
    match code {
        TEST_COMMAND_COMPLETE
        | INQUIRE_BOARD_ID
        | INQUIRE_INSTALLED_0_TO_7
        | INQUIRE_INSTALLED_8_TO_15
        | INQUIRE_CONFIGURATION
        | INQUIRE_TARGETS
        | INQUIRE_FIRMWARE_3RD
        | INQUIRE_FIRMWARE_LETTER
        | INQUIRE_PCI => Some(0),
        ENABLE_OMBR
        | SET_PREEMPT_TIME
        | SET_TIME_OFF_BUS
        | SET_TRANSFER_RATE
        | INQUIRE_SETUP
        | ECHO
        | SET_OPTIONS
        | ENABLE_INTERRUPT
        | INQUIRE_MODEL
        | INQUIRE_SYNC_PERIOD
        | INQUIRE_EXTENDED_SETUP
        | SET_ROUND_ROBIN
        | MODIFY_IO_ADDRESS
        | SET_CCB_FORMAT => Some(1),
        FETCH_LOCAL_RAM => Some(2),
        // INITIALIZE MAILBOX belongs to CCBs with 24-bit addresses, which no driver of a PCI adapter uses; `parse` rejects it.
        INITIALIZE_MAILBOX | SET_SELECTION_TIMEOUT => Some(4),
        INITIALIZE_EXTENDED_MAILBOX => Some(5),
        _ => None,
    }
}

impl Command {
    /// Parse a command with all its parameters. `None`: the command is not supported, or a parameter is invalid.
    fn parse(code: u8, parameters: [u8; MAX_PARAMETERS]) -> Option<Self> {
        use opcode::*;
        let [first, second, third, fourth, fifth] = parameters;
        Some(match code {
            TEST_COMMAND_COMPLETE
            | SET_SELECTION_TIMEOUT
            | SET_PREEMPT_TIME
            | SET_TIME_OFF_BUS
            | SET_TRANSFER_RATE
            | SET_OPTIONS => Self::Nothing,
            ENABLE_OMBR => Self::NothingQuiet,
            // There are no ISA ports to move.
            MODIFY_IO_ADDRESS if first <= 7 => Self::NothingQuiet,
            INQUIRE_BOARD_ID => Self::BoardId,
            INQUIRE_INSTALLED_0_TO_7 => Self::Installed { first: 0 },
            INQUIRE_INSTALLED_8_TO_15 => Self::Installed { first: 8 },
            INQUIRE_CONFIGURATION => Self::Configuration,
            INQUIRE_SETUP => Self::Setup { len: first },
            ECHO => Self::Echo(first),
            INQUIRE_TARGETS => Self::Targets,
            ENABLE_INTERRUPT if first <= 1 => Self::EnableInterrupt(first == 1),
            INITIALIZE_EXTENDED_MAILBOX if first > 0 => {
                Self::Mailboxes { count: first, base: u32::from_le_bytes([second, third, fourth, fifth]) }
            }
            INQUIRE_FIRMWARE_3RD => Self::Firmware3rd,
            INQUIRE_FIRMWARE_LETTER => Self::FirmwareLetter,
            INQUIRE_PCI => Self::PciInfo,
            INQUIRE_MODEL => Self::Model { len: first },
            INQUIRE_SYNC_PERIOD => Self::SyncPeriod { len: first },
            INQUIRE_EXTENDED_SETUP => Self::ExtendedSetup { len: first },
            SET_ROUND_ROBIN if first <= 1 => Self::RoundRobin { strict: first == 1 },
            FETCH_LOCAL_RAM => Self::LocalRam { offset: first, count: second },
            SET_CCB_FORMAT if first <= 1 => Self::CcbFormat { extended: first == 1 },
            _ => return None,
        })
    }
}

/// The result of an executed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// No reply.
    Done,
    /// No reply, and no interrupt.
    Quiet,
    /// Reply with these bytes.
    Reply(Vec<u8>),
    /// Reply with these bytes, and no interrupt after the last.
    QuietReply(Vec<u8>),
    /// A parameter is invalid.
    Invalid,
}

/// The effect of a byte written to the data register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Nothing,
    /// Poll the outgoing mailboxes.
    Doorbell,
    /// Execute this command, and pass its result to [`answer`](Protocol::answer).
    Command(Command),
    /// The command is invalid and has completed.
    Completed,
}

/// The state of the protocol.
#[derive(Clone, Debug)]
enum State {
    Idle,
    Parameters { code: u8, missing: usize, taken: usize, parameters: [u8; MAX_PARAMETERS] },
    Reply { bytes: Vec<u8>, read: usize, quiet: bool },
}

/// The protocol of commands.
#[derive(Clone, Debug)]
pub(super) struct Protocol {
    state: State,
    /// CMDINV.
    invalid: bool,
    /// DACT: the driver has reset the adapter, and not read the status since.
    diagnostic: bool,
}

impl Protocol {
    /// As after power-on.
    pub(super) const fn new() -> Self {
        Self { state: State::Idle, invalid: false, diagnostic: false }
    }

    /// The state after a reset by the driver. The driver polls until it has seen DACT set and then cleared, but the reset is complete when
    /// its write returns. So the next read of the status, and only that, returns DACT set.
    pub(super) fn reset() -> Self {
        Self { diagnostic: true, ..Self::new() }
    }

    /// Whether no command is in progress, so that an operation code may be written.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// The driver reads the status register.
    pub(super) fn read_status(&mut self, has_mailboxes: bool) -> u8 {
        let mut status = Status::empty();
        status.set(Status::MAILBOXES_REQUIRED, !has_mailboxes);
        if std::mem::take(&mut self.diagnostic) {
            return (status | Status::DIAGNOSTIC_ACTIVE).bits();
        }
        status.set(Status::READY, self.is_idle());
        status.set(Status::REPLY_READY, matches!(self.state, State::Reply { .. }));
        status.set(Status::COMMAND_INVALID, self.invalid);
        status.bits()
    }

    /// The driver acknowledges the interrupt, which clears CMDINV.
    pub(super) const fn acknowledge(&mut self) {
        self.invalid = false;
    }

    /// The driver writes a byte to the data register.
    pub(super) fn write(&mut self, byte: u8) -> Written {
        match &mut self.state {
            State::Idle if byte == opcode::EXECUTE_MAILBOX => Written::Doorbell,
            State::Idle => {
                self.invalid = false;
                let Some(missing) = parameters(byte) else { return self.refuse() };
                let parameters = [0; MAX_PARAMETERS];
                self.state = State::Parameters { code: byte, missing, taken: 0, parameters };
                self.run()
            }
            State::Parameters { code, missing, taken, parameters } => {
                if let Some(place) = parameters.get_mut(*taken) {
                    *place = byte;
                }
                *missing -= 1;
                if *code == opcode::SET_OPTIONS && *taken == 0 {
                    *missing = byte.into();
                }
                *taken += 1;
                self.run()
            }
            // Ignored until the driver has read the reply.
            State::Reply { .. } => Written::Nothing,
        }
    }

    /// Parse the command once all parameters are written.
    fn run(&mut self) -> Written {
        let State::Parameters { code, missing: 0, parameters, .. } = &self.state else {
            return Written::Nothing;
        };
        match Command::parse(*code, *parameters) {
            Some(command) => Written::Command(command),
            None => self.refuse(),
        }
    }

    fn refuse(&mut self) -> Written {
        self.state = State::Idle;
        self.invalid = true;
        Written::Completed
    }

    /// A command was executed. True: it has completed, and raises an interrupt.
    pub(super) fn answer(&mut self, answer: Answer) -> bool {
        let (bytes, quiet) = match answer {
            Answer::Done => (Vec::new(), false),
            Answer::Quiet => (Vec::new(), true),
            Answer::Reply(bytes) => (bytes, false),
            Answer::QuietReply(bytes) => (bytes, true),
            Answer::Invalid => return self.refuse() == Written::Completed,
        };
        if bytes.is_empty() {
            self.state = State::Idle;
            return !quiet;
        }
        self.state = State::Reply { bytes, read: 0, quiet };
        false
    }

    /// The driver reads the data register. True: this byte completes the reply, and raises an interrupt.
    pub(super) fn read(&mut self) -> (u8, bool) {
        let State::Reply { bytes, read, quiet } = &mut self.state else { return (0, false) };
        let byte = bytes.get(*read).copied().unwrap_or(0);
        *read += 1;
        if *read < bytes.len() {
            return (byte, false);
        }
        let interrupts = !*quiet;
        self.state = State::Idle;
        (byte, interrupts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: u8 = 0x30;

    #[test]
    fn a_command_waits_for_its_parameters_and_is_answered_byte_by_byte() {
        let mut protocol = Protocol::new();
        assert_eq!(protocol.read_status(false), IDLE);
        assert_eq!(protocol.read_status(true), 0x10);
        assert_eq!(protocol.write(opcode::FETCH_LOCAL_RAM), Written::Nothing);
        assert_eq!(protocol.read_status(false), 0x20);
        assert_eq!(protocol.write(2), Written::Nothing, "no doorbell while a command is in progress");
        let command = Command::LocalRam { offset: 2, count: 3 };
        assert_eq!(protocol.write(3), Written::Command(command));
        assert!(!protocol.answer(Answer::Reply(vec![7, 8, 9])));
        assert_eq!(protocol.read_status(false), 0x24);
        assert_eq!(protocol.write(opcode::ECHO), Written::Nothing);
        assert_eq!([protocol.read(), protocol.read(), protocol.read()], [(7, false), (8, false), (9, true)]);
        assert_eq!(protocol.read_status(false), IDLE);
        assert_eq!(protocol.read(), (0, false));
        assert_eq!(protocol.write(opcode::EXECUTE_MAILBOX), Written::Doorbell);
        assert!(protocol.is_idle());
    }

    #[test]
    fn what_is_invalid_completes_at_once() {
        let mut protocol = Protocol::new();
        for code in [0x03, 0x22, 0x83, 0xff] {
            assert_eq!(protocol.write(code), Written::Completed);
            assert_eq!(protocol.read_status(false), IDLE | 1);
        }
        protocol.acknowledge();
        assert_eq!(protocol.read_status(false), IDLE);
        // No mailboxes; other values than 0 and 1; an ISA port that does not exist; mailboxes of the other form.
        for command in
            [&[0x81, 0, 0, 0, 1, 0][..], &[0x8f, 2], &[0x96, 2], &[0x25, 2], &[0x95, 8], &[1, 1, 0, 0, 0]]
        {
            let (last, first) = command.split_last().unwrap();
            assert!(first.iter().all(|byte| protocol.write(*byte) == Written::Nothing));
            assert_eq!(protocol.write(*last), Written::Completed, "{command:x?}");
            assert_eq!(protocol.read_status(false), IDLE | 1);
        }
        assert_eq!(protocol.write(opcode::TEST_COMMAND_COMPLETE), Written::Command(Command::Nothing));
        assert!(protocol.answer(Answer::Done));
        assert_eq!(protocol.read_status(false), IDLE, "the next operation code clears it");
        protocol.write(opcode::FETCH_LOCAL_RAM);
        protocol.write(0xff);
        assert!(matches!(protocol.write(2), Written::Command(_)));
        assert!(protocol.answer(Answer::Invalid));
        assert_eq!(protocol.read_status(false), IDLE | 1);
    }

    #[test]
    fn quiet_commands_end_without_an_interrupt() {
        let mut protocol = Protocol::new();
        protocol.write(opcode::MODIFY_IO_ADDRESS);
        assert_eq!(protocol.write(6), Written::Command(Command::NothingQuiet));
        assert!(!protocol.answer(Answer::Quiet));
        assert!(!protocol.answer(Answer::QuietReply(vec![1])));
        assert_eq!(protocol.read(), (1, false));
        assert!(protocol.is_idle());
    }

    #[test]
    fn options_are_as_long_as_they_say() {
        let mut protocol = Protocol::new();
        for len in [0, 1, 200] {
            assert_eq!(protocol.write(opcode::SET_OPTIONS), Written::Nothing);
            let mut written = protocol.write(len);
            for _ in 0..len {
                assert_eq!(written, Written::Nothing);
                written = protocol.write(opcode::EXECUTE_MAILBOX);
            }
            assert_eq!(written, Written::Command(Command::Nothing));
            assert!(protocol.answer(Answer::Done));
        }
    }

    #[test]
    fn a_reset_is_seen_by_one_read_of_the_status() {
        let mut protocol = Protocol::reset();
        assert_eq!([0; 3].map(|_| protocol.read_status(false)), [0xa0, IDLE, IDLE]);
    }
}
