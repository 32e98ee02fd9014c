//! The table of supported commands: it validates CDBs, and answers REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).

use zerocopy::IntoBytes;

use super::sense::{Sense, asc};
use super::spec::{CommandDescriptor, CommandTimeouts, action, opcode};

/// The commands that REPORT SUPPORTED OPERATION CODES requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpcodeQuery {
    All,
    /// 001b: a command without service actions.
    Opcode(u8),
    /// 010b: a command with a service action.
    Action(u8, u16),
    /// 011b: a command with or without service actions.
    Either(u8, u16),
}

/// Properties that determine which commands of the table a unit supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supported {
    /// The disk discards.
    pub(super) discards: bool,
    /// Bytes of the longest CDB that reaches the unit. Longer commands are not reported as supported: initiators trust the report, even if
    /// their adapter cannot send the command.
    pub(super) longest_cdb: u8,
}

impl Supported {
    /// All commands of a disk that does not discard.
    pub(super) const WITHOUT_DISCARDS: Self = Self { discards: false, longest_cdb: LONGEST_CDB };

    /// All commands.
    #[cfg(test)]
    pub(super) const ALL: Self = Self { discards: true, longest_cdb: LONGEST_CDB };

    /// Whether 16-byte commands are supported.
    pub(super) const fn has_long(self) -> bool {
        self.longest_cdb >= LONGEST_CDB
    }

    fn has(self, entry: &Entry) -> bool {
        (self.discards || !entry.discards) && entry.len() <= usize::from(self.longest_cdb)
    }
}

/// A command of the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) opcode: u8,
    /// Service action, in the low five bits of byte 1.
    pub(super) action: Option<u8>,
    /// Bits that the device server evaluates, from byte 1 on; a CDB with another bit set is refused.
    usage: &'static [u8],
    /// Supported only if the disk discards.
    discards: bool,
}

/// Bytes of the longest CDB in the table.
pub(super) const LONGEST_CDB: u8 = 16;
/// The bits of byte 1 with the service action.
const SERVICE_ACTION: u8 = 0x1f;

const fn plain(opcode: u8, usage: &'static [u8]) -> Entry {
    Entry { opcode, action: None, usage, discards: false }
}

const fn with_action(opcode: u8, action: u8, usage: &'static [u8]) -> Entry {
    Entry { opcode, action: Some(action), usage, discards: false }
}

const RW_6: &[u8] = &[0x1f, 0xff, 0xff, 0xff, 0];
const RW_10: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
const RW_12: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const RW_16: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const VERIFY_10: &[u8] = &[0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
const VERIFY_12: &[u8] = &[0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const VERIFY_16: &[u8] =
    &[0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
/// As WRITE, without FUA; and with the low bit of BYTCHK.
const WRITE_AND_VERIFY_10: &[u8] = &[0x12, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
const WRITE_AND_VERIFY_12: &[u8] = &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const WRITE_AND_VERIFY_16: &[u8] =
    &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const SYNC_10: &[u8] = &[0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
const SYNC_16: &[u8] = &[0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const SAME_10: &[u8] = &[0x08, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
const SAME_16: &[u8] = &[0x09, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const COMPARE: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0, 0];
const CAPACITY_16: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
const LBA_STATUS: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
const PR_IN: &[u8] = &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
const PR_OUT: &[u8] = &[0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];
const RESERVE_10: &[u8] = &[0; 9];

/// In ascending order of operation code and service action.
const TABLE: &[Entry] = &[
    plain(opcode::TEST_UNIT_READY, &[0; 5]),
    plain(opcode::REQUEST_SENSE, &[0x01, 0, 0, 0xff, 0]),
    plain(opcode::READ_6, RW_6),
    plain(opcode::WRITE_6, RW_6),
    plain(opcode::INQUIRY, &[0x01, 0xff, 0xff, 0xff, 0]),
    plain(opcode::MODE_SELECT_6, &[0x11, 0, 0, 0xff, 0]),
    plain(opcode::RESERVE_6, &[0; 5]),
    plain(opcode::RELEASE_6, &[0; 5]),
    plain(opcode::MODE_SENSE_6, &[0x08, 0xff, 0xff, 0xff, 0]),
    plain(opcode::START_STOP_UNIT, &[0x01, 0, 0, 0xf7, 0]),
    plain(opcode::SEND_DIAGNOSTIC, &[0x17, 0, 0xff, 0xff, 0]),
    plain(opcode::READ_CAPACITY_10, &[0; 9]),
    plain(opcode::READ_10, RW_10),
    plain(opcode::WRITE_10, RW_10),
    plain(opcode::WRITE_AND_VERIFY_10, WRITE_AND_VERIFY_10),
    plain(opcode::VERIFY_10, VERIFY_10),
    plain(opcode::SYNCHRONIZE_CACHE_10, SYNC_10),
    plain(opcode::WRITE_SAME_10, SAME_10),
    Entry { opcode: opcode::UNMAP, action: None, usage: &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0], discards: true },
    plain(opcode::LOG_SENSE, &[0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0]),
    plain(opcode::MODE_SELECT_10, &[0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
    plain(opcode::RESERVE_10, RESERVE_10),
    plain(opcode::RELEASE_10, RESERVE_10),
    plain(opcode::MODE_SENSE_10, &[0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0]),
    with_action(opcode::PERSISTENT_RESERVE_IN, action::PR_IN_READ_KEYS, PR_IN),
    with_action(opcode::PERSISTENT_RESERVE_IN, action::PR_IN_READ_RESERVATION, PR_IN),
    with_action(opcode::PERSISTENT_RESERVE_IN, action::PR_IN_REPORT_CAPABILITIES, PR_IN),
    with_action(opcode::PERSISTENT_RESERVE_IN, action::PR_IN_READ_FULL_STATUS, PR_IN),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_REGISTER, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_RESERVE, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_RELEASE, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_CLEAR, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_PREEMPT, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_PREEMPT_AND_ABORT, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_REGISTER_AND_IGNORE, PR_OUT),
    with_action(opcode::PERSISTENT_RESERVE_OUT, action::PR_OUT_REGISTER_AND_MOVE, PR_OUT),
    plain(opcode::READ_16, RW_16),
    plain(opcode::COMPARE_AND_WRITE, COMPARE),
    plain(opcode::WRITE_16, RW_16),
    plain(opcode::WRITE_AND_VERIFY_16, WRITE_AND_VERIFY_16),
    plain(opcode::VERIFY_16, VERIFY_16),
    plain(opcode::SYNCHRONIZE_CACHE_16, SYNC_16),
    plain(opcode::WRITE_SAME_16, SAME_16),
    with_action(opcode::SERVICE_ACTION_IN_16, action::IN_16_READ_CAPACITY, CAPACITY_16),
    with_action(opcode::SERVICE_ACTION_IN_16, action::IN_16_GET_LBA_STATUS, LBA_STATUS),
    plain(opcode::REPORT_LUNS, &[0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    with_action(
        opcode::MAINTENANCE_IN,
        action::MAINTENANCE_IN_REPORT_OPCODES,
        &[0, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    with_action(
        opcode::MAINTENANCE_IN,
        action::MAINTENANCE_IN_REPORT_TMFS,
        &[0, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    plain(opcode::READ_12, RW_12),
    plain(opcode::WRITE_12, RW_12),
    plain(opcode::WRITE_AND_VERIFY_12, WRITE_AND_VERIFY_12),
    plain(opcode::VERIFY_12, VERIFY_12),
];

impl Entry {
    /// CDB length in bytes.
    fn len(&self) -> usize {
        1 + self.usage.len()
    }

    /// CDB usage data for REPORT SUPPORTED OPERATION CODES.
    fn usage_data(&self) -> impl Iterator<Item = u8> + '_ {
        let rest = self.usage.iter().enumerate();
        let action = self.action.unwrap_or(0);
        std::iter::once(self.opcode)
            .chain(rest.map(move |(at, &bits)| if at == 0 { bits | action } else { bits }))
    }
}

/// Check a CDB against the table: operation code, service action, length, and that no unknown bit is set.
pub(super) fn validate(cdb: &[u8], supported: Supported) -> Result<&'static Entry, Sense> {
    let &[code, flags, ..] = cdb else {
        return Err(Sense::illegal(asc::INVALID_OPERATION_CODE));
    };
    let mut known = false;
    for entry in TABLE.iter().filter(|entry| entry.opcode == code && supported.has(entry)) {
        known = true;
        if entry.action.is_none_or(|action| action == flags & SERVICE_ACTION) {
            return entry_allows(entry, cdb).map(|()| entry);
        }
    }
    Err(if known { Sense::cdb_bit(1, 4) } else { Sense::illegal(asc::INVALID_OPERATION_CODE) })
}

fn entry_allows(entry: &Entry, cdb: &[u8]) -> Result<(), Sense> {
    if cdb.len() < entry.len() {
        return Err(Sense::illegal(asc::INVALID_FIELD_IN_CDB));
    }
    for (at, (&byte, &usage)) in (1u16..).zip(cdb.iter().skip(1).zip(entry.usage)) {
        let service_action = if at == 1 && entry.action.is_some() { SERVICE_ACTION } else { 0 };
        let unknown = byte & !(usage | service_action);
        if unknown != 0 {
            return Err(Sense::cdb_bit(at, 7 - unknown.leading_zeros() as u8));
        }
    }
    Ok(())
}

/// Parameter data of REPORT SUPPORTED OPERATION CODES.
pub(super) fn report(query: OpcodeQuery, timeouts: bool, supported: Supported) -> Result<Vec<u8>, Sense> {
    let entries = || TABLE.iter().filter(|entry| supported.has(entry));
    let (code, action) = match query {
        OpcodeQuery::All => {
            let mut list = Vec::new();
            for entry in entries() {
                let flags = u8::from(entry.action.is_some()) | if timeouts { 0x02 } else { 0 };
                let descriptor = CommandDescriptor {
                    opcode: entry.opcode,
                    action: u16::from(entry.action.unwrap_or(0)).into(),
                    flags,
                    len: (entry.len() as u16).into(),
                    ..CommandDescriptor::default()
                };
                list.extend_from_slice(descriptor.as_bytes());
                if timeouts {
                    list.extend_from_slice(no_timeouts().as_bytes());
                }
            }
            let mut data = (list.len() as u32).to_be_bytes().to_vec();
            data.append(&mut list);
            return Ok(data);
        }
        OpcodeQuery::Opcode(code) => {
            if entries().any(|entry| entry.opcode == code && entry.action.is_some()) {
                return Err(Sense::cdb(3));
            }
            (code, None)
        }
        OpcodeQuery::Action(code, action) => {
            if entries().any(|entry| entry.opcode == code && entry.action.is_none()) {
                return Err(Sense::cdb(3));
            }
            (code, Some(action))
        }
        OpcodeQuery::Either(code, action) => {
            let has_actions = entries().any(|entry| entry.opcode == code && entry.action.is_some());
            (code, has_actions.then_some(action))
        }
    };
    let found = entries().find(|entry| entry.opcode == code && entry.action.map(u16::from) == action);
    // Support: 1, not supported; 3, supported as in the standard.
    let Some(entry) = found else {
        return Ok(vec![0, 1, 0, 0]);
    };
    let mut data = vec![0, if timeouts { 0x83 } else { 0x03 }, 0, entry.len() as u8];
    data.extend(entry.usage_data());
    if timeouts {
        data.extend_from_slice(no_timeouts().as_bytes());
    }
    Ok(data)
}

/// No timeouts are indicated.
fn no_timeouts() -> CommandTimeouts {
    CommandTimeouts { len: 10.into(), ..CommandTimeouts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Supported = Supported::ALL;

    #[test]
    fn the_table_is_in_order_and_has_the_length_of_each_group() {
        for pair in TABLE.windows(2) {
            assert!((pair[0].opcode, pair[0].action) < (pair[1].opcode, pair[1].action));
        }
        for entry in TABLE {
            let len = match entry.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("operation code group {group}"),
            };
            assert_eq!(entry.len(), len, "{:#04x}", entry.opcode);
        }
    }

    #[test]
    fn unknown_bits_are_pointed_at() {
        assert_eq!(validate(&[0x00, 0, 0, 0, 0, 0], ALL).map(|entry| entry.opcode), Ok(0));
        assert_eq!(validate(&[0x00, 0, 0x28, 0, 0, 0], ALL).unwrap_err(), Sense::cdb_bit(2, 5));
        assert_eq!(validate(&[0x00, 0, 0, 0, 0, 0x04], ALL).unwrap_err(), Sense::cdb_bit(5, 2));
        assert_eq!(validate(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 0, 0], ALL).unwrap_err(), Sense::cdb_bit(1, 5));
        assert_eq!(validate(&[0x9e, 0x0f], ALL).unwrap_err(), Sense::cdb_bit(1, 4));
        assert_eq!(validate(&[0xff, 0], ALL).unwrap_err(), Sense::illegal(asc::INVALID_OPERATION_CODE));
        assert_eq!(validate(&[0x28, 0, 0], ALL).unwrap_err(), Sense::illegal(asc::INVALID_FIELD_IN_CDB));
        assert_eq!(validate(&[], ALL).unwrap_err(), Sense::illegal(asc::INVALID_OPERATION_CODE));
        let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(validate(&unmap, ALL).is_ok());
        assert_eq!(
            validate(&unmap, Supported::WITHOUT_DISCARDS).unwrap_err(),
            Sense::illegal(asc::INVALID_OPERATION_CODE)
        );
    }

    #[test]
    fn reports_one_command() {
        let usage = [0, 3, 0, 10, 0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];
        assert_eq!(report(OpcodeQuery::Opcode(0x28), false, ALL).unwrap(), usage);
        assert_eq!(report(OpcodeQuery::Either(0x28, 7), false, ALL).unwrap(), usage);
        let action = report(OpcodeQuery::Action(0x9e, 0x10), true, ALL).unwrap();
        assert_eq!(action[..6], [0, 0x83, 0, 16, 0x9e, 0x10]);
        assert_eq!(action[20..], [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(report(OpcodeQuery::Opcode(0xff), false, ALL).unwrap(), [0, 1, 0, 0]);
        assert_eq!(
            report(OpcodeQuery::Opcode(0x42), false, Supported::WITHOUT_DISCARDS).unwrap(),
            [0, 1, 0, 0]
        );
        assert_eq!(report(OpcodeQuery::Opcode(0x9e), false, ALL).unwrap_err(), Sense::cdb(3));
        assert_eq!(report(OpcodeQuery::Action(0x28, 0), false, ALL).unwrap_err(), Sense::cdb(3));
    }

    #[test]
    fn reports_all_commands() {
        let data = report(OpcodeQuery::All, false, ALL).unwrap();
        assert_eq!(data.len(), 4 + 8 * TABLE.len());
        assert_eq!(data[..4], (8 * TABLE.len() as u32).to_be_bytes());
        assert_eq!(data[12..20], [0x03, 0, 0, 0, 0, 0, 0, 6]);
        let without = report(OpcodeQuery::All, true, Supported::WITHOUT_DISCARDS).unwrap();
        assert_eq!(without.len(), 4 + 20 * (TABLE.len() - 1));
        assert_eq!(without[4..24], [0, 0, 0, 0, 0, 2, 0, 6, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn commands_that_are_too_long_are_not_supported() {
        let supported = Supported { longest_cdb: 12, ..ALL };
        let invalid = Sense::illegal(asc::INVALID_OPERATION_CODE);
        let mut long = 0;
        for Entry { opcode, action, .. } in TABLE.iter().filter(|entry| entry.len() == 16) {
            let query = action
                .map_or(OpcodeQuery::Opcode(*opcode), |action| OpcodeQuery::Action(*opcode, action.into()));
            assert_eq!(report(query, false, supported).unwrap(), [0, 1, 0, 0], "{opcode:#04x}");
            assert_eq!(validate(&[*opcode; 12], supported).unwrap_err(), invalid, "{opcode:#04x}");
            long += 1;
        }
        let all = report(OpcodeQuery::All, false, supported).unwrap();
        assert_eq!((long, all.len()), (9, 4 + 8 * (TABLE.len() - long)));
        assert_eq!(report(OpcodeQuery::Opcode(0xa8), false, supported).unwrap()[..4], [0, 3, 0, 12]);
    }
}
