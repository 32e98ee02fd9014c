//! The probe in Linux's order, and coming up again after a reset.

use super::adapter::{BusLogic, Options, Shared};
use super::facts::Facts;
use super::spec::*;
use crate::adapter::Counters;
use crate::pci::{Function, InterruptMode};
use crate::platform::Platform;
use crate::workload::Fault;

crate::steps! {
    /// The options make no sense.
    Options = 1,
    /// The function was not found or lacks the register space.
    Function = 2,
    /// The registers are not those of such an adapter.
    Registers = 3,
    /// A reset does not end, or has failed.
    Reset = 4,
    /// A command is invalid, does not end, or has a reply of another length.
    Command = 5,
    /// What the adapter says of itself makes no sense.
    Facts = 6,
    /// Too little DMA memory with addresses of 32 bits.
    Memory = 7,
    /// The function has no interrupt line.
    Interrupts = 8,
}

impl BusLogic {
    /// Find the adapter and bring it up.
    pub fn start<P: Platform>(platform: &mut P, options: Options) -> Result<Self, Fault> {
        if options.mailboxes < 2 {
            return Err(failed(Step::Options));
        }
        let function =
            Function::enable(platform, PCI_ID, REGISTER_SPACE).map_err(|_| failed(Step::Function))?;
        let shared = Shared::allocate(platform, &options).ok_or(failed(Step::Memory))?;
        let mut driver = Self {
            function,
            options,
            facts: Facts::default(),
            shared,
            out_next: 0,
            in_next: 0,
            loaded: false,
            counters: Counters::default(),
        };
        driver.identify(platform)?;
        driver.reset_registers(platform, CONTROL_HARD_RESET)?;
        driver.read_facts(platform)?;
        let interrupts = function.set_interrupts(platform, InterruptMode::Intx);
        interrupts.map_err(|_| failed(Step::Interrupts))?;
        driver.initialise(platform)?;
        let mut targets = [0; 2];
        driver.command(platform, INQUIRE_TARGETS, &[], &mut targets)?;
        driver.facts.targets = u16::from_le_bytes(targets);
        driver.command(platform, INQUIRE_SETUP, &[34], &mut [0; 34])?;
        driver.command(platform, INQUIRE_PERIODS, &[16], &mut [0; 16])?;
        Ok(driver)
    }

    /// Soft reset, and up again on the same memory. What was in flight is dropped.
    pub fn reset_adapter<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.reset_registers(platform, CONTROL_SOFT_RESET)?;
        self.initialise(platform)
    }

    /// What is asked before the adapter is reset for the first time.
    fn identify<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        self.acknowledge(platform);
        self.command(platform, INQUIRE_PCI, &[], &mut [0; 4])?;
        self.command(platform, SET_ISA_PORTS, &[6], &mut [])?;
        self.command(platform, READ_LOCAL_RAM, &[0x6d, 1], &mut [0; 1])?;
        self.command(platform, INQUIRE_BOARD, &[], &mut [0; 4])?;
        let status = self.register_read(platform, STATUS);
        let not = STATUS_DIAGNOSTIC_ACTIVE | STATUS_PARAMETER_BUSY | STATUS_INVALID | 1 << 1;
        let interrupt = self.register_read(platform, INTERRUPT);
        let geometry = self.register_read(platform, GEOMETRY);
        if status == 0 || status & not != 0 || interrupt & 0x70 != 0 || geometry == 0xff {
            return Err(failed(Step::Registers));
        }
        Ok(())
    }

    fn read_facts<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        let mut facts = Facts::default();
        let (mut board, mut digit, mut letter) = ([0; 4], [0; 1], [0; 1]);
        let (mut configuration, mut setup, mut extended, mut auto) = ([0; 3], [0; 34], [0; 14], [0; 64]);
        self.command(platform, INQUIRE_EXTENDED_SETUP, &[14], &mut extended)?;
        self.command(platform, INQUIRE_BOARD, &[], &mut board)?;
        self.command(platform, INQUIRE_CONFIGURATION, &[], &mut configuration)?;
        self.command(platform, INQUIRE_SETUP, &[34], &mut setup)?;
        self.command(platform, INQUIRE_EXTENDED_SETUP, &[14], &mut extended)?;
        self.command(platform, INQUIRE_FIRMWARE_DIGIT, &[], &mut digit)?;
        self.command(platform, INQUIRE_MODEL, &[5], &mut facts.model)?;
        self.command(platform, INQUIRE_FIRMWARE_LETTER, &[], &mut letter)?;
        let geometry = self.register_read(platform, GEOMETRY);
        self.command(platform, INQUIRE_PCI, &[], &mut [0; 4])?;
        self.command(platform, READ_LOCAL_RAM, &[64, 64], &mut auto)?;
        facts.firmware = [board[2], board[3], digit[0], letter[0]];
        facts.sg_limit = u16::from_le_bytes([extended[2], extended[3]]);
        facts.id = configuration[2] & 0xf;
        facts.disconnect = u16::from_le_bytes([auto[27], auto[28]]);
        let usable = extended[0] == b'E'
            // Its first character is the bus.
            && (b'4'..=b'9').contains(&facts.model[0])
            && facts.firmware >= *b"331 "
            && facts.sg_limit != 0
            // Level-triggered.
            && extended[9] & 1 << 6 != 0
            && geometry & 0x80 != 0;
        self.facts = facts;
        if usable { Ok(()) } else { Err(failed(Step::Facts)) }
    }

    /// Mailboxes, strict round robin, CCBs of the extended format.
    fn initialise<P: Platform>(&mut self, platform: &mut P) -> Result<(), Fault> {
        for offset in (0..self.shared.mailboxes.len()).step_by(8) {
            self.shared.mailboxes.write(offset, 0u64);
        }
        (self.out_next, self.in_next, self.loaded) = (0, 0, false);
        let [a, b, c, d] = (self.shared.mailboxes.address() as u32).to_le_bytes();
        self.command(platform, INITIALIZE_MAILBOXES, &[self.options.mailboxes, a, b, c, d], &mut [])?;
        self.command(platform, STRICT_ROUND_ROBIN, &[1], &mut [])?;
        self.command(platform, EXTENDED_CCBS, &[1], &mut [])
    }
}
