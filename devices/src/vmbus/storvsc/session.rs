//! The initialization of a controller by its driver, on the primary channel: begin, version, properties, end. Sub-channels follow.

use zerocopy::{FromZeros, IntoBytes};

use super::spec::{
    Properties, STORAGE_CHANNEL_SUPPORTS_MULTI_CHANNEL, VERSIONS, VstorPacket, nt_status, operation,
};

/// Maximum length of a request's data in bytes: the value that Microsoft's OpenVMM reports.
pub(super) const MAX_TRANSFER: u32 = 0x4_0000;

/// The stage of the initialization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    New,
    Begun,
    Version,
    Properties,
    Ready,
}

/// The state of the initialization.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Session {
    stage: Stage,
    /// Sub-channels that the driver has requested.
    sub_channels: u16,
}

impl Session {
    /// Whether the initialization is complete.
    pub(super) fn ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Sub-channels that the driver has requested.
    pub(super) const fn sub_channels(&self) -> u16 {
        self.sub_channels
    }

    /// Execute an operation of the primary channel; `sub_channels`: the controller's limit. Returns the answer.
    pub(super) fn control(&mut self, packet: &VstorPacket, sub_channels: u16) -> VstorPacket {
        let mut answer = VstorPacket::new_zeroed();
        answer.operation = operation::COMPLETE_IO.into();
        let content = packet.srb.as_bytes();
        let first = u16::from_le_bytes([content[0], content[1]]);
        let (stage, next) = (self.stage, packet.operation.get());
        let status = match next {
            operation::BEGIN_INITIALIZATION => {
                *self = Self { stage: Stage::Begun, ..*self };
                nt_status::SUCCESS
            }
            operation::QUERY_PROTOCOL_VERSION if stage == Stage::Begun || stage == Stage::Version => {
                if VERSIONS.contains(&first) {
                    self.stage = Stage::Version;
                    nt_status::SUCCESS
                } else {
                    nt_status::REVISION_MISMATCH
                }
            }
            operation::QUERY_PROPERTIES if stage == Stage::Version || stage == Stage::Properties => {
                self.stage = Stage::Properties;
                let multiple = if sub_channels > 0 { STORAGE_CHANNEL_SUPPORTS_MULTI_CHANNEL } else { 0 };
                let properties = Properties {
                    max_channel_count: sub_channels.into(),
                    flags: multiple.into(),
                    max_transfer_bytes: MAX_TRANSFER.into(),
                    ..Properties::new_zeroed()
                };
                let place = answer.srb.as_mut_bytes().iter_mut();
                place.zip(properties.as_bytes()).for_each(|(to, from)| *to = *from);
                nt_status::SUCCESS
            }
            operation::END_INITIALIZATION if stage == Stage::Properties => {
                self.stage = Stage::Ready;
                nt_status::SUCCESS
            }
            operation::CREATE_SUB_CHANNELS if stage >= Stage::Properties => {
                if first > 0 && first <= sub_channels {
                    self.sub_channels = self.sub_channels.max(first);
                    nt_status::SUCCESS
                } else {
                    nt_status::INVALID_PARAMETER
                }
            }
            operation::QUERY_PROTOCOL_VERSION
            | operation::QUERY_PROPERTIES
            | operation::END_INITIALIZATION
            | operation::CREATE_SUB_CHANNELS => nt_status::INVALID_DEVICE_STATE,
            _ => nt_status::INVALID_DEVICE_REQUEST,
        };
        tracing::debug!(operation = next, content = first, status, "vstor initialization");
        answer.status = status.into();
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(session: &mut Session, operation: u32, content: u16) -> u32 {
        let mut packet = VstorPacket::new_zeroed();
        packet.operation = operation.into();
        packet.srb.length = content.into();
        let answer = session.control(&packet, 3);
        assert_eq!(answer.operation.get(), 1);
        answer.status.get()
    }

    #[test]
    fn steps_come_in_their_order() {
        let mut session = Session::default();
        for operation in [8, 9, 10, 13] {
            assert_eq!(control(&mut session, operation, 0x0602), 0xc000_0184, "{operation}");
        }
        assert_eq!(control(&mut session, 7, 0), 0);
        for version in [0x0603, 0x0700, 0x0402, 0] {
            assert_eq!(control(&mut session, 9, version), 0xc000_0059);
        }
        assert_eq!(control(&mut session, 10, 0), 0xc000_0184);
        assert_eq!(control(&mut session, 9, 0x0600), 0);
        assert_eq!(control(&mut session, 8, 0), 0xc000_0184);
        assert_eq!(control(&mut session, 10, 0), 0);
        assert!(!session.ready());
        assert_eq!(control(&mut session, 8, 0), 0);
        assert!(session.ready());
        assert_eq!([0, 4, 0xffff].map(|count| control(&mut session, 13, count)), [0xc000_000d; 3]);
        assert_eq!((control(&mut session, 13, 2), session.sub_channels()), (0, 2));
        assert_eq!(control(&mut session, 12, 0), 0xc000_0010);
        assert_eq!((control(&mut session, 7, 0), session.ready()), (0, false));
    }

    #[test]
    fn properties_lie_where_drivers_read_them() {
        let mut session = Session::default();
        control(&mut session, 7, 0);
        control(&mut session, 9, 0x0501);
        let mut packet = VstorPacket::new_zeroed();
        packet.operation = 10.into();
        let answer = session.control(&packet, 3);
        let bytes = answer.as_bytes();
        assert_eq!(bytes[16..18], [3, 0]);
        assert_eq!(bytes[20..28], [1, 0, 0, 0, 0, 0, 4, 0]);
        let mut alone = Session { stage: Stage::Version, sub_channels: 0 };
        assert_eq!(alone.control(&packet, 0).as_bytes()[16..24], [0; 8]);
    }
}
