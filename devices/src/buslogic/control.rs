//! What the commands do.

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::BusLogic;
use super::command::{Answer, Command, Written};
use super::interrupts::Causes;
use super::mailbox::Mailboxes;
use super::replies;

/// Where configuration space has the interrupt line.
const INTERRUPT_LINE: u16 = 0x3c;

impl<A: GuestAddressSpace> BusLogic<A> {
    /// A byte is written to the data register.
    pub(super) fn write_data(&mut self, byte: u8) {
        let completed = match self.protocol.write(byte) {
            Written::Nothing => false,
            Written::Doorbell => {
                // Served with all others that come before the owner asks whether it may sleep.
                self.port.ring();
                false
            }
            Written::Command(command) => {
                tracing::debug!(?command, "BusLogic command");
                let answer = self.execute(command);
                self.protocol.answer(answer)
            }
            Written::Completed => true,
        };
        self.port.set_idle(self.protocol.is_idle());
        if completed {
            self.command_complete();
        }
    }

    /// The data register is read.
    pub(super) fn read_data(&mut self) -> u8 {
        let (byte, completed) = self.protocol.read();
        self.port.set_idle(self.protocol.is_idle());
        if completed {
            self.command_complete();
        }
        byte
    }

    /// CMDC, and the line. It is never held back: the driver polls for it.
    fn command_complete(&mut self) {
        self.change_interrupt(Causes::command_complete);
    }

    /// The driver acknowledges what the interrupt register shows. The line falls, and rises for what was postponed.
    pub(super) fn acknowledge(&mut self) {
        let seen = self.port.line.unread()
            && self.mailboxes.as_ref().is_none_or(|mailboxes| mailboxes.all_read(&mut self.dma));
        self.protocol.acknowledge();
        let asserted = self.port.line.acknowledge(&mut self.function, seen);
        self.stats.interrupts += u64::from(asserted);
    }

    fn execute(&mut self, command: Command) -> Answer {
        let mailboxes = self.mailboxes.as_ref();
        match command {
            Command::Nothing => Answer::Done,
            Command::NothingQuiet => Answer::Quiet,
            Command::BoardId => Answer::Reply(replies::board_id()),
            Command::Installed { first } => Answer::Reply(replies::installed(self.bus.addresses(), first)),
            Command::Configuration => Answer::Reply(replies::configuration(self.irq())),
            Command::Setup { len } => Answer::Reply(replies::cut(replies::setup(mailboxes).as_bytes(), len)),
            Command::Echo(byte) => Answer::Reply(vec![byte]),
            Command::Targets => Answer::Reply(replies::targets(self.bus.addresses())),
            Command::EnableInterrupt(enabled) => {
                self.change_interrupt(|causes| causes.enable(enabled));
                Answer::Done
            }
            Command::Mailboxes { count, base } => {
                self.mailboxes = Some(Mailboxes::new(base, count));
                self.mailboxes_refused = false;
                Answer::Done
            }
            Command::Firmware3rd => Answer::Reply(vec![replies::FIRMWARE_3RD]),
            Command::FirmwareLetter => Answer::Reply(vec![replies::FIRMWARE_LETTER]),
            Command::PciInfo => Answer::Reply(replies::pci_info(self.irq())),
            Command::Model { len } => Answer::Reply(replies::cut(&replies::MODEL, len)),
            Command::SyncPeriod { len } => Answer::Reply(replies::cut(&[], len)),
            Command::ExtendedSetup { len } => {
                Answer::Reply(replies::cut(replies::extended_setup(mailboxes).as_bytes(), len))
            }
            Command::RoundRobin { strict } => {
                self.strict = strict;
                Answer::Done
            }
            // Its end is told by HARDY alone.
            Command::LocalRam { offset, count } => match replies::local_ram(offset, count, self.irq()) {
                Some(bytes) => Answer::QuietReply(bytes),
                None => Answer::Invalid,
            },
            Command::CcbFormat { extended } => {
                self.extended = extended;
                Answer::Done
            }
        }
    }

    /// The interrupt line, as firmware has left it in configuration space.
    fn irq(&self) -> u8 {
        let mut line = [0];
        self.function.config_read(INTERRUPT_LINE, &mut line);
        line[0]
    }
}
