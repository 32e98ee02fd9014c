//! Command descriptor blocks, parsed once into typed commands (SPC-4, 4.3; SBC-3, 5).

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::opcodes::{self, OpcodeQuery, Supported};
use super::sense::{Sense, asc};
use super::spec::{Cdb6, Cdb10, Cdb12, Cdb16, action, bits, opcode};

/// The block range of a CDB, not yet checked against the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) lba: u64,
    pub(super) count: u32,
}

/// READ or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) write: bool,
    pub(super) fua: bool,
    pub(super) blocks: Blocks,
}

/// What VERIFY compares the medium with (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Against {
    /// 00b: nothing, the blocks are only read.
    Nothing,
    /// 01b: the Data-Out Buffer.
    Data,
    /// 11b: each block with the one block in the Data-Out Buffer.
    OneBlock,
}

/// WRITE SAME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Same {
    pub(super) blocks: Blocks,
    pub(super) unmap: bool,
    /// No Data-Out Buffer: zeros.
    pub(super) ndob: bool,
}

/// MODE SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModeSense {
    /// The 10-byte form of header and block descriptor.
    pub(super) ten: bool,
    pub(super) block_descriptor: bool,
    pub(super) long_lba: bool,
    /// PC: 0 current, 1 changeable, 2 default, 3 saved.
    pub(super) control: u8,
    pub(super) page: u8,
    pub(super) subpage: u8,
    pub(super) alloc: u32,
}

/// A command whose CDB is valid; checks that need the logical unit are still to be made. `alloc` is the allocation
/// length, `len` the parameter list length (0 for SEND DIAGNOSTIC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    TestUnitReady,
    RequestSense { descriptor: bool, alloc: u32 },
    Inquiry { page: Option<u8>, alloc: u32 },
    ReportLuns { select: u8, alloc: u32 },
    ReadCapacity10,
    ReadCapacity16 { alloc: u32 },
    GetLbaStatus { lba: u64, alloc: u32 },
    ModeSense(ModeSense),
    ModeSelect { ten: bool, len: u32 },
    Transfer(Transfer),
    Verify { blocks: Blocks, against: Against },
    WriteAndVerify { blocks: Blocks, against: Against },
    WriteSame(Same),
    Unmap { len: u32 },
    SynchronizeCache { blocks: Blocks, immediate: bool },
    CompareAndWrite { blocks: Blocks, fua: bool },
    SendDiagnostic { self_test: bool },
    LogSense { page: u8, subpage: u8, alloc: u32 },
    StartStop { immediate: bool, start: bool, flush: bool },
    Reserve,
    Release,
    PersistentReserveIn { action: u8, alloc: u32 },
    PersistentReserveOut { action: u8, scope_type: u8, len: u32 },
    ReportOpcodes { query: OpcodeQuery, timeouts: bool, alloc: u32 },
    ReportTaskManagement { extended: bool, alloc: u32 },
}

/// The CDB as one of the common layouts; `None` if it is too short.
fn layout<T: FromBytes + Immutable + KnownLayout + zerocopy::Unaligned>(cdb: &[u8]) -> Option<&T> {
    T::ref_from_prefix(cdb).ok().map(|(layout, _)| layout)
}

/// The bit that distinguishes the operation codes of READ and WRITE of the same length.
const WRITE: u8 = 0x02;
const _: () = assert!(
    opcode::READ_6 | WRITE == opcode::WRITE_6
        && opcode::READ_10 | WRITE == opcode::WRITE_10
        && opcode::READ_12 | WRITE == opcode::WRITE_12
        && opcode::READ_16 | WRITE == opcode::WRITE_16
);

impl Transfer {
    /// The fast path of nearly all tasks: READ and WRITE without unsupported bits. `None` for all other CDBs: call
    /// [`Command::parse`].
    #[inline(always)]
    pub(super) fn parse(cdb: &[u8]) -> Option<Self> {
        let code = *cdb.first()?;
        let (flags, other, lba, count) = match code & !WRITE {
            opcode::READ_10 => {
                let cdb = layout::<Cdb10>(cdb)?;
                (cdb.flags, cdb.group | cdb.control, cdb.lba.get().into(), cdb.len.get().into())
            }
            opcode::READ_16 => {
                let cdb = layout::<Cdb16>(cdb)?;
                (cdb.flags, cdb.group | cdb.control, cdb.lba.get(), cdb.len.get())
            }
            opcode::READ_6 => {
                let cdb = layout::<Cdb6>(cdb)?;
                let [high, middle, low] = cdb.lba;
                let lba = u32::from_be_bytes([0, high & 0x1f, middle, low]);
                // Length 0 means 256 here (SBC-3, 5.10).
                let count = if cdb.len == 0 { 256 } else { u32::from(cdb.len) };
                (0, (high & 0xe0) | cdb.control, lba.into(), count)
            }
            opcode::READ_12 => {
                let cdb = layout::<Cdb12>(cdb)?;
                (cdb.flags, cdb.group | cdb.control, cdb.lba.get().into(), cdb.len.get())
            }
            _ => return None,
        };
        if flags & !(bits::DPO | bits::FUA) | other != 0 {
            return None;
        }
        let write = code & WRITE != 0;
        Some(Self { write, fua: flags & bits::FUA != 0, blocks: Blocks { lba, count } })
    }
}

impl Command {
    /// Parse the CDB of a supported command.
    ///
    /// # Errors
    /// INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB with the field.
    pub(super) fn parse(cdb: &[u8], supported: Supported) -> Result<Self, Sense> {
        if let Some(transfer) = Transfer::parse(cdb) {
            return Ok(Self::Transfer(transfer));
        }
        let entry = opcodes::validate(cdb, supported)?;
        let short = || Sense::illegal(asc::INVALID_FIELD_IN_CDB);
        match cdb.first().map_or(0, |code| code >> 5) {
            0 => Self::six(entry, layout(cdb).ok_or_else(short)?),
            4 => Self::sixteen(entry, layout(cdb).ok_or_else(short)?),
            5 => Self::twelve(entry, layout(cdb).ok_or_else(short)?),
            _ => Self::ten(entry, layout(cdb).ok_or_else(short)?),
        }
    }

    fn six(entry: &opcodes::Entry, cdb: &Cdb6) -> Result<Self, Sense> {
        let [flags, page, subpage] = cdb.lba;
        let alloc = u32::from(cdb.len);
        Ok(match entry.opcode {
            opcode::TEST_UNIT_READY => Self::TestUnitReady,
            opcode::REQUEST_SENSE => Self::RequestSense { descriptor: flags & bits::DESC != 0, alloc },
            opcode::INQUIRY => {
                let vital = flags & bits::EVPD != 0;
                if !vital && page != 0 {
                    return Err(Sense::cdb(2));
                }
                Self::Inquiry {
                    page: vital.then_some(page),
                    alloc: u16::from_be_bytes([subpage, cdb.len]).into(),
                }
            }
            opcode::MODE_SENSE_6 => Self::ModeSense(ModeSense {
                ten: false,
                block_descriptor: flags & bits::DBD == 0,
                long_lba: false,
                control: page >> 6,
                page: page & 0x3f,
                subpage,
                alloc,
            }),
            opcode::MODE_SELECT_6 => Self::mode_select(false, flags, alloc)?,
            opcode::RESERVE_6 => Self::Reserve,
            opcode::RELEASE_6 => Self::Release,
            opcode::SEND_DIAGNOSTIC => {
                if [subpage, cdb.len] != [0; 2] {
                    return Err(Sense::cdb(3));
                }
                Self::SendDiagnostic { self_test: flags & bits::SELFTEST != 0 }
            }
            opcode::START_STOP_UNIT => {
                if cdb.len & 0xf0 != 0 {
                    return Err(Sense::cdb_bit(4, 7));
                }
                if cdb.len & bits::LOEJ != 0 {
                    return Err(Sense::cdb_bit(4, 1));
                }
                Self::StartStop {
                    immediate: flags & bits::START_IMMED != 0,
                    start: cdb.len & bits::START != 0,
                    flush: cdb.len & bits::NO_FLUSH == 0,
                }
            }
            _ => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE)),
        })
    }

    fn ten(entry: &opcodes::Entry, cdb: &Cdb10) -> Result<Self, Sense> {
        let blocks = Blocks { lba: cdb.lba.get().into(), count: cdb.len.get().into() };
        let alloc = u32::from(cdb.len.get());
        let [page, subpage, ..] = cdb.lba.to_bytes();
        Ok(match entry.opcode {
            opcode::READ_CAPACITY_10 => Self::ReadCapacity10,
            opcode::WRITE_AND_VERIFY_10 => Self::write_and_verify(blocks, cdb.flags),
            opcode::VERIFY_10 => Self::verify(blocks, cdb.flags)?,
            opcode::SYNCHRONIZE_CACHE_10 => Self::synchronize(blocks, cdb.flags),
            opcode::WRITE_SAME_10 => {
                Self::WriteSame(Same { blocks, unmap: cdb.flags & bits::UNMAP != 0, ndob: false })
            }
            opcode::UNMAP => Self::Unmap { len: alloc },
            opcode::LOG_SENSE => {
                // The parameter pointer; no page has parameters.
                let [.., high] = cdb.lba.to_bytes();
                if [high, cdb.group] != [0; 2] {
                    return Err(Sense::cdb(5));
                }
                Self::LogSense { page: page & 0x3f, subpage, alloc }
            }
            opcode::MODE_SELECT_10 => Self::mode_select(true, cdb.flags, alloc)?,
            opcode::MODE_SENSE_10 => Self::ModeSense(ModeSense {
                ten: true,
                block_descriptor: cdb.flags & bits::DBD == 0,
                long_lba: cdb.flags & bits::LLBAA != 0,
                control: page >> 6,
                page: page & 0x3f,
                subpage,
                alloc,
            }),
            opcode::RESERVE_10 => Self::Reserve,
            opcode::RELEASE_10 => Self::Release,
            opcode::PERSISTENT_RESERVE_IN => {
                Self::PersistentReserveIn { action: entry.action.unwrap_or(0), alloc }
            }
            opcode::PERSISTENT_RESERVE_OUT => {
                // The parameter list length is bytes 5 to 8, over three fields of the common layout.
                let [.., low] = cdb.lba.to_bytes();
                let [len1, len0] = cdb.len.to_bytes();
                Self::PersistentReserveOut {
                    action: entry.action.unwrap_or(0),
                    scope_type: page,
                    len: u32::from_be_bytes([low, cdb.group, len1, len0]),
                }
            }
            _ => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE)),
        })
    }

    fn twelve(entry: &opcodes::Entry, cdb: &Cdb12) -> Result<Self, Sense> {
        let blocks = Blocks { lba: cdb.lba.get().into(), count: cdb.len.get() };
        let [select, code, action1, action0] = cdb.lba.to_bytes();
        let alloc = cdb.len.get();
        Ok(match (entry.opcode, entry.action) {
            (opcode::WRITE_AND_VERIFY_12, _) => Self::write_and_verify(blocks, cdb.flags),
            (opcode::VERIFY_12, _) => Self::verify(blocks, cdb.flags)?,
            (opcode::REPORT_LUNS, _) => Self::ReportLuns { select, alloc },
            (opcode::MAINTENANCE_IN, Some(action::MAINTENANCE_IN_REPORT_OPCODES)) => {
                let action = u16::from_be_bytes([action1, action0]);
                let query = match select & 0x07 {
                    0 => OpcodeQuery::All,
                    1 => OpcodeQuery::Opcode(code),
                    2 => OpcodeQuery::Action(code, action),
                    3 => OpcodeQuery::Either(code, action),
                    _ => return Err(Sense::cdb_bit(2, 2)),
                };
                Self::ReportOpcodes { query, timeouts: select & bits::RCTD != 0, alloc }
            }
            (opcode::MAINTENANCE_IN, Some(action::MAINTENANCE_IN_REPORT_TMFS)) => {
                Self::ReportTaskManagement { extended: select & bits::REPD != 0, alloc }
            }
            _ => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE)),
        })
    }

    fn sixteen(entry: &opcodes::Entry, cdb: &Cdb16) -> Result<Self, Sense> {
        let blocks = Blocks { lba: cdb.lba.get(), count: cdb.len.get() };
        let alloc = cdb.len.get();
        Ok(match (entry.opcode, entry.action) {
            (opcode::WRITE_AND_VERIFY_16, _) => Self::write_and_verify(blocks, cdb.flags),
            (opcode::VERIFY_16, _) => Self::verify(blocks, cdb.flags)?,
            (opcode::SYNCHRONIZE_CACHE_16, _) => Self::synchronize(blocks, cdb.flags),
            (opcode::WRITE_SAME_16, _) => Self::WriteSame(Same {
                blocks,
                unmap: cdb.flags & bits::UNMAP != 0,
                ndob: cdb.flags & bits::NDOB != 0,
            }),
            // The number of blocks is the byte before the group number; the three bytes before that are reserved.
            (opcode::COMPARE_AND_WRITE, _) => {
                Self::CompareAndWrite { blocks, fua: cdb.flags & bits::FUA != 0 }
            }
            (opcode::SERVICE_ACTION_IN_16, Some(action::IN_16_READ_CAPACITY)) => {
                Self::ReadCapacity16 { alloc }
            }
            (opcode::SERVICE_ACTION_IN_16, Some(action::IN_16_GET_LBA_STATUS)) => {
                Self::GetLbaStatus { lba: cdb.lba.get(), alloc }
            }
            _ => return Err(Sense::illegal(asc::INVALID_OPERATION_CODE)),
        })
    }

    fn verify(blocks: Blocks, flags: u8) -> Result<Self, Sense> {
        let against = match flags & bits::BYTCHK {
            0x00 => Against::Nothing,
            0x02 => Against::Data,
            0x06 => Against::OneBlock,
            _ => return Err(Sense::cdb_bit(1, 2)),
        };
        Ok(Self::Verify { blocks, against })
    }

    fn write_and_verify(blocks: Blocks, flags: u8) -> Self {
        let against = if flags & bits::BYTCHK_DATA != 0 { Against::Data } else { Against::Nothing };
        Self::WriteAndVerify { blocks, against }
    }

    fn synchronize(blocks: Blocks, flags: u8) -> Self {
        Self::SynchronizeCache { blocks, immediate: flags & bits::SYNC_IMMED != 0 }
    }

    fn mode_select(ten: bool, flags: u8, len: u32) -> Result<Self, Sense> {
        if flags & bits::PF == 0 {
            return Err(Sense::cdb_bit(1, 4));
        }
        if flags & bits::SP != 0 {
            return Err(Sense::cdb_bit(1, 0));
        }
        Ok(Self::ModeSelect { ten, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(write: bool, fua: bool, lba: u64, count: u32) -> Result<Command, Sense> {
        Ok(Command::Transfer(Transfer { write, fua, blocks: Blocks { lba, count } }))
    }

    #[test]
    fn reads_and_writes_of_every_length() {
        let parse = |cdb: &[u8]| Command::parse(cdb, Supported::ALL);
        assert_eq!(parse(&[0x08, 0x1f, 0xff, 0xfe, 0, 0]), transfer(false, false, 0x1f_fffe, 256));
        assert_eq!(parse(&[0x0a, 0, 0, 1, 2, 0]), transfer(true, false, 1, 2));
        assert_eq!(parse(&[0x28, 0x18, 1, 2, 3, 4, 0, 5, 6, 0]), transfer(false, true, 0x0102_0304, 0x0506));
        assert_eq!(parse(&[0x2a, 0x10, 1, 2, 3, 4, 0, 0, 0, 0]), transfer(true, false, 0x0102_0304, 0));
        assert_eq!(parse(&[0xa8, 0, 0, 0, 0, 9, 1, 2, 3, 4, 0, 0]), transfer(false, false, 9, 0x0102_0304));
        assert_eq!(parse(&[0xaa, 8, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0]), transfer(true, true, 9, 4));
        let long = [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0, 0, 0xff, 0xff];
        assert_eq!(parse(&long), transfer(false, false, 0x0102_0304_0506_0708, 9));
        assert_eq!(
            parse(&[&[0x8a][..], &long[1..16]].concat()),
            transfer(true, false, 0x0102_0304_0506_0708, 9)
        );
    }

    #[test]
    fn unsupported_bits_of_reads_and_writes() {
        let parse = |cdb: &[u8]| Command::parse(cdb, Supported::ALL).unwrap_err();
        assert_eq!(parse(&[0x08, 0x20, 0, 0, 1, 0]), Sense::cdb_bit(1, 5));
        assert_eq!(parse(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0]), Sense::cdb_bit(1, 5));
        assert_eq!(parse(&[0x28, 0, 0, 0, 0, 0, 0x11, 0, 1, 0]), Sense::cdb_bit(6, 4));
        assert_eq!(parse(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 4]), Sense::cdb_bit(9, 2));
        assert_eq!(parse(&[0x28, 0, 0, 0]), Sense::illegal(0x2400));
    }

    #[test]
    fn parameter_commands() {
        let parse = |cdb: &[u8]| Command::parse(cdb, Supported::ALL);
        assert_eq!(
            parse(&[0x12, 1, 0x83, 0x12, 0x34, 0]),
            Ok(Command::Inquiry { page: Some(0x83), alloc: 0x1234 })
        );
        assert_eq!(parse(&[0x12, 0, 0x83, 0, 0xff, 0]), Err(Sense::cdb(2)));
        assert_eq!(
            parse(&[0x5f, 6, 0x05, 0, 0, 1, 2, 3, 4, 0]),
            Ok(Command::PersistentReserveOut { action: 6, scope_type: 5, len: 0x0102_0304 })
        );
        let mut compare = [0x89, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0];
        assert_eq!(
            parse(&compare),
            Ok(Command::CompareAndWrite { blocks: Blocks { lba: 7, count: 3 }, fua: true })
        );
        compare[12] = 1;
        assert_eq!(parse(&compare), Err(Sense::cdb_bit(12, 0)));
        assert_eq!(parse(&[0x2f, 0x04, 0, 0, 0, 0, 0, 0, 1, 0]), Err(Sense::cdb_bit(1, 2)));
        assert_eq!(parse(&[0x1b, 0, 0, 0, 0x10, 0]), Err(Sense::cdb_bit(4, 7)));
        assert_eq!(parse(&[0x1b, 0, 0, 0, 0x03, 0]), Err(Sense::cdb_bit(4, 1)));
        assert_eq!(
            parse(&[0xa3, 0x0c, 0x83, 0x9e, 0, 0x10, 0, 0, 1, 0, 0, 0]),
            Ok(Command::ReportOpcodes { query: OpcodeQuery::Either(0x9e, 0x10), timeouts: true, alloc: 256 })
        );
        assert_eq!(parse(&[0xa3, 0x0c, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0]), Err(Sense::cdb_bit(2, 2)));
        assert_eq!(parse(&[0x15, 0x01, 0, 0, 4, 0]), Err(Sense::cdb_bit(1, 4)));
        assert_eq!(parse(&[0x15, 0x11, 0, 0, 4, 0]), Err(Sense::cdb_bit(1, 0)));
        // UNMAP is not supported if the disk does not discard.
        assert_eq!(
            Command::parse(&[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], Supported::WITHOUT_DISCARDS),
            Err(Sense::illegal(0x2000))
        );
    }
}
