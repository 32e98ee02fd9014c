//! Executes commands.

use vm_memory::GuestAddressSpace;
use zerocopy::IntoBytes;

use super::BusLogic;
use super::command::{Answer, Command, Written};
use super::interrupts::Causes;
use super::mailbox::Mailboxes;
use super::replies;

/// Offset of the interrupt line register in configuration space.
const INTERRUPT_LINE: u16 = 0x3c;

impl<A: GuestAddressSpace> BusLogic<A> {
    /// The driver writes a byte to the data register.
    pub(super) fn write_data(&mut self, byte: u8) {
        let completed = match self.protocol.write(byte) {
            Written::Nothing => false,
            Written::Doorbell => {
                // `before_sleep` returns `No` while mailboxes are loaded, so they are taken, once for all doorbells until then.
                self.engine.stats.doorbells += u64::from(!self.loaded);
                self.loaded = true;
                false
            }
            Written::Command(command) => {
                tracing::debug!(?command, "BusLogic command");
                let answer = self.execute(command);
                self.protocol.answer(answer)
            }
            Written::Completed => true,
        };
        if completed {
            self.command_complete();
        }
    }

    /// The driver reads the data register.
    pub(super) fn read_data(&mut self) -> u8 {
        let (byte, completed) = self.protocol.read();
        if completed {
            self.command_complete();
        }
        byte
    }

    /// Raise CMDC, and update the line. Never held back by moderation: the driver polls for it.
    fn command_complete(&mut self) {
        self.change_interrupt(Causes::command_complete);
    }

    /// The driver acknowledges the cause in the interrupt register. The line falls, and rises again if another cause is pending.
    pub(super) fn acknowledge(&mut self) {
        let seen = self.causes.unread()
            && self.mailboxes.as_ref().is_none_or(|mailboxes| mailboxes.all_read(&mut self.engine.dma));
        self.protocol.acknowledge();
        self.change_interrupt(|causes| causes.acknowledge(seen));
        self.change_interrupt(Causes::present_pending);
    }

    fn execute(&mut self, command: Command) -> Answer {
        let mailboxes = self.mailboxes.as_ref();
        match command {
            Command::Nothing => Answer::Done,
            Command::NothingQuiet => Answer::Quiet,
            Command::BoardId => Answer::Reply(replies::board_id()),
            Command::Installed { first } => {
                Answer::Reply(replies::installed(self.engine.bus.addresses(), first))
            }
            Command::Configuration => Answer::Reply(replies::configuration(self.irq())),
            Command::Setup { len } => Answer::Reply(replies::cut(replies::setup(mailboxes).as_bytes(), len)),
            Command::Echo(byte) => Answer::Reply(vec![byte]),
            Command::Targets => Answer::Reply(replies::targets(self.engine.bus.addresses())),
            Command::EnableInterrupt(enabled) => {
                self.change_interrupt(|causes| causes.enable(enabled));
                Answer::Done
            }
            Command::Mailboxes { count, base } => {
                self.mailboxes = Some(Mailboxes::new(base, count));
                // Requests of the backlog may start again.
                self.engine.has_work |= std::mem::take(&mut self.engine.queue_refused);
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
            // Only HARDY reports the completion.
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

    /// The interrupt line, as firmware has set it in configuration space.
    fn irq(&self) -> u8 {
        let mut line = [0];
        self.function.config_read(INTERRUPT_LINE, &mut line);
        line[0]
    }
}
