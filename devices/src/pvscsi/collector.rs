//! The command registers: a number, then its descriptor dword by dword, then it runs.

use zerocopy::{FromBytes, IntoBytes};

use super::spec::{
    self, CmdDescAbortCmd, CmdDescConfigCmd, CmdDescResetDevice, CmdDescSetupMsgRing, CmdDescSetupRings,
    command,
};

/// A command with its descriptor.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, handed on by reference, on no hot path")]
pub(super) enum Command {
    AdapterReset,
    SetupRings(CmdDescSetupRings),
    ResetBus,
    ResetDevice(CmdDescResetDevice),
    AbortCmd(CmdDescAbortCmd),
    Config(CmdDescConfigCmd),
    SetupMsgRing(CmdDescSetupMsgRing),
    SetupReqCallThreshold(u32),
}

/// Dwords of the longest descriptor.
const MAX_DWORDS: usize = size_of::<CmdDescSetupRings>() / 4;

/// Collects a command.
pub(super) struct Collector {
    number: u32,
    expected: usize,
    len: usize,
    dwords: [u32; MAX_DWORDS],
    /// What COMMAND_STATUS reads.
    pub(super) status: u32,
}

impl Collector {
    pub(super) const fn new() -> Self {
        Self { number: 0, expected: 0, len: 0, dwords: [0; MAX_DWORDS], status: spec::COMMAND_SUCCEEDED }
    }

    /// A write to COMMAND. Drops a command half collected.
    pub(super) fn start(&mut self, number: u32) -> Option<Command> {
        let bytes = match number {
            command::ADAPTER_RESET | command::RESET_BUS => 0,
            command::SETUP_RINGS => size_of::<CmdDescSetupRings>(),
            command::RESET_DEVICE => size_of::<CmdDescResetDevice>(),
            command::ABORT_CMD => size_of::<CmdDescAbortCmd>(),
            command::CONFIG => size_of::<CmdDescConfigCmd>(),
            command::SETUP_MSG_RING => size_of::<CmdDescSetupMsgRing>(),
            command::SETUP_REQCALLTHRESHOLD => size_of::<u32>(),
            _ => {
                self.expected = 0;
                self.status = spec::COMMAND_FAILED;
                return None;
            }
        };
        self.number = number;
        self.expected = bytes / 4;
        self.len = 0;
        // Not -1, so supported; the number of dwords that are still to come.
        self.status = self.expected as u32;
        match number {
            command::ADAPTER_RESET => Some(Command::AdapterReset),
            command::RESET_BUS => Some(Command::ResetBus),
            _ => None,
        }
    }

    /// A write to COMMAND_DATA. Ignored while no command wants data.
    pub(super) fn data(&mut self, dword: u32) -> Option<Command> {
        if self.len >= self.expected {
            return None;
        }
        *self.dwords.get_mut(self.len)? = dword.to_le();
        self.len += 1;
        if self.len < self.expected {
            return None;
        }
        self.expected = 0;
        let bytes = self.dwords.get(..self.len)?.as_bytes();
        Some(match self.number {
            command::SETUP_RINGS => Command::SetupRings(CmdDescSetupRings::read_from_bytes(bytes).ok()?),
            command::RESET_DEVICE => Command::ResetDevice(CmdDescResetDevice::read_from_bytes(bytes).ok()?),
            command::ABORT_CMD => Command::AbortCmd(CmdDescAbortCmd::read_from_bytes(bytes).ok()?),
            command::CONFIG => Command::Config(CmdDescConfigCmd::read_from_bytes(bytes).ok()?),
            command::SETUP_MSG_RING => {
                Command::SetupMsgRing(CmdDescSetupMsgRing::read_from_bytes(bytes).ok()?)
            }
            _ => Command::SetupReqCallThreshold(dword),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_collected_and_dropped() {
        let mut collector = Collector::new();
        assert!(matches!(collector.start(command::RESET_BUS), Some(Command::ResetBus)));
        assert!(collector.data(1).is_none());
        assert!(collector.start(command::SETUP_MSG_RING).is_none());
        assert_eq!(collector.status, 34);
        assert!(collector.data(7).is_none());
        // Another command: the dword above is not part of it.
        assert!(collector.start(command::ABORT_CMD).is_none());
        for dword in [0x1122_3344, 0x5566_7788, 9] {
            assert!(collector.data(dword).is_none());
        }
        let Some(Command::AbortCmd(abort)) = collector.data(0) else { panic!() };
        assert_eq!((abort.context.get(), abort.target.get()), (0x5566_7788_1122_3344, 9));
        assert!(collector.data(0).is_none());
    }

    #[test]
    fn unknown_commands_fail_and_take_no_data() {
        let mut collector = Collector::new();
        for number in [0, command::ISSUE_SCSI, command::DEVICE_UNPLUG, 11, u32::MAX] {
            assert!(collector.start(command::SETUP_REQCALLTHRESHOLD).is_none());
            assert!(collector.start(number).is_none());
            assert_eq!(collector.status, spec::COMMAND_FAILED);
            assert!(collector.data(1).is_none());
        }
    }
}
