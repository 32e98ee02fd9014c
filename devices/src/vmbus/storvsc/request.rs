//! Parses a SCSI request into a task, and makes the answer of a completed task.
//!
//! Packets are copied from and to the ring in words of 64 bits. A load that is wider than the preceding store, or spans two stores, stalls:
//! the processor cannot forward the stored data. So fields that span two words are assembled from these words, and an answer is made of
//! whole words.

use std::mem::offset_of;

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;
use zerocopy::little_endian::U64;
use zerocopy::{IntoBytes, transmute, transmute_ref};

use super::super::packet::{Malformed, Packet, Pages};
use super::super::spec::{PacketHeader, VM_PKT_COMP};
use super::spec::{
    HostPacket, MAX_CDB, READ_TYPE, SRB_FLAGS_QUEUE_ACTION_ENABLE, SRB_HEAD_OF_QUEUE_TAG_REQUEST,
    SRB_ORDERED_QUEUE_TAG_REQUEST, ScsiRequest, VstorPacket, WRITE_TYPE, nt_status, operation, srb_status,
};
use crate::dma::{Access, Dma, PAGE_SIZE};
use crate::scsi::{Address, Attribute, Direction, SenseData, Status, Task, TaskEnd};

/// A target without units: stands for every address other than path 0, target 0.
pub(super) const NOWHERE: u8 = 1;

/// Words of a storage packet.
type Words = [U64; size_of::<VstorPacket>() / 8];

/// Index of the word of a storage packet that begins with the port.
const PLACE: usize = 2;
const _: () = assert!(offset_of!(VstorPacket, srb) + offset_of!(ScsiRequest, port) == 8 * PLACE);
/// The bits of that word that an answer repeats: path, target, unit, and the direction of the data.
const REPEATED: u64 = 0x00ff_0000_ffff_ff00;
/// Index of the word of a storage packet in whose second half the CDB begins.
const COMMAND: usize = 3;
const _: () =
    assert!(offset_of!(VstorPacket, srb) + offset_of!(ScsiRequest, cdb_or_sense) == 8 * COMMAND + 4);
/// The first word of an answer's header: type, offset of the payload and length in words, no flags.
const ANSWER: u64 = VM_PKT_COMP as u64
    | (size_of::<PacketHeader>() as u64 / 8) << 16
    | (size_of::<HostPacket>() as u64 / 8) << 32;

/// The fields of a request in flight that its answer needs.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    transaction: U64,
    /// The bits that the answer [repeats](REPEATED).
    place: u64,
    /// Bytes of data.
    len: u32,
    /// Index of the channel of the request, which also gets the answer.
    pub(in crate::vmbus) channel: u8,
}

/// A checked request, without the memory of its data.
#[derive(Clone, Copy)]
pub(super) struct Parsed<'a> {
    pub(super) address: Address,
    attribute: Attribute,
    direction: Direction,
    cdb: [U64; MAX_CDB / 8],
    /// 1 to [`MAX_CDB`].
    cdb_len: usize,
    /// Bytes of data.
    len: u32,
    pages: Option<Pages<'a>>,
}

/// The address of a request or of RESET_LUN. Units are on path 0, target 0.
pub(super) fn address(srb: &ScsiRequest) -> Address {
    let there = srb.path == 0 && srb.target == 0;
    Address { target: if there { 0 } else { NOWHERE }, lun: srb.lun.into() }
}

impl<'a> Parsed<'a> {
    /// Check a request.
    #[inline]
    pub(super) fn new(packet: &Packet<'a>, payload: &VstorPacket) -> Result<Self, Malformed> {
        let srb = &payload.srb;
        let cdb_len = usize::from(srb.cdb_length);
        let pages = packet.pages()?;
        let len = srb.data_transfer_length.get();
        if len > pages.map_or(0, |pages| pages.bytes) || !(1..=MAX_CDB).contains(&cdb_len) {
            return Err(Malformed);
        }
        let [.., first, second, third, _, _] = *words_of(payload);
        let joined = |low: U64, high: U64| U64::new(low.get() >> 32 | high.get() << 32);
        let action = srb.srb_flags.get() & SRB_FLAGS_QUEUE_ACTION_ENABLE != 0;
        Ok(Self {
            address: address(srb),
            attribute: match srb.queue_action {
                SRB_HEAD_OF_QUEUE_TAG_REQUEST if action => Attribute::HeadOfQueue,
                SRB_ORDERED_QUEUE_TAG_REQUEST if action => Attribute::Ordered,
                _ => Attribute::Simple,
            },
            direction: match srb.data_in {
                WRITE_TYPE => Direction::Out,
                READ_TYPE => Direction::In,
                _ if len == 0 => Direction::None,
                _ => Direction::Either,
            },
            cdb: [joined(first, second), joined(second, third)],
            cdb_len,
            len,
            pages,
        })
    }

    /// The task, whose data are in `bufs`.
    #[inline(always)]
    pub(super) fn task<'b>(&'b self, bufs: &'b [IoBuf]) -> Task<'b> {
        Task {
            id: 0,
            address: self.address,
            // The bound, which holds anyhow, spares a check for each byte of the CDB.
            cdb: self.cdb.as_bytes().get(..self.cdb_len.min(MAX_CDB)).unwrap_or_default(),
            attribute: self.attribute,
            direction: self.direction,
            bufs,
            len: self.len.into(),
        }
    }

    /// Translate the data to host memory, in total `len` bytes: `one` piece, or a `list`.
    #[inline(always)]
    pub(super) fn map<'b, A: GuestAddressSpace>(
        &self,
        dma: &mut Dma<A>,
        one: &'b mut IoBuf,
        list: &'b mut Vec<IoBuf>,
    ) -> Result<&'b [IoBuf], Malformed> {
        if let Some(Pages { offset, numbers: [number], .. }) = self.pages
            && let Some(page) = number.get().checked_mul(PAGE_SIZE)
            && let Some(piece) = dma.piece(page + u64::from(offset), self.len.into())
        {
            // The page covers all bytes of the range, and the data are no longer.
            *one = piece;
            return Ok(std::slice::from_ref(one));
        }
        list.clear();
        // A copy, so that the request need not be in memory on the fast path.
        { *self }.map_pages(dma, list)?;
        Ok(list)
    }

    /// Append the host memory of all pages.
    fn map_pages<A: GuestAddressSpace>(
        &self,
        dma: &mut Dma<A>,
        bufs: &mut Vec<IoBuf>,
    ) -> Result<(), Malformed> {
        let Some(pages) = &self.pages else { return Ok(()) };
        let access = if self.direction == Direction::Out { Access::Read } else { Access::Write };
        let mut translate = |start: u64, len: u64| match len {
            0 => Ok(()),
            _ => dma.translate(start, len, access, bufs).map_err(|_| Malformed),
        };
        let (mut offset, mut left) = (u64::from(pages.offset), u64::from(self.len));
        // Contiguous pages are joined.
        let (mut start, mut run) = (0u64, 0);
        for number in pages.numbers {
            let piece = left.min(PAGE_SIZE - offset);
            let address = number.get().checked_mul(PAGE_SIZE).ok_or(Malformed)? + offset;
            if run > 0 && start.checked_add(run) == Some(address) {
                run += piece;
            } else {
                translate(start, run)?;
                (start, run) = (address, piece);
            }
            offset = 0;
            left -= piece;
            if left == 0 {
                break;
            }
        }
        translate(start, run)?;
        // The pages cover all bytes of the range, and the data are no longer.
        if left == 0 { Ok(()) } else { Err(Malformed) }
    }
}

impl Pending {
    #[inline]
    pub(super) fn new(channel: u8, packet: &Packet<'_>, payload: &VstorPacket) -> Self {
        let [_, _, place, ..] = *words_of(payload);
        Self {
            transaction: packet.transaction(),
            place: place.get() & REPEATED,
            len: payload.srb.data_transfer_length.get(),
            channel,
        }
    }

    /// The answer, and whether the request succeeded.
    #[inline]
    pub(in crate::vmbus) fn answer(&self, end: &TaskEnd) -> (HostPacket, bool) {
        match end {
            TaskEnd::Answered { status: Status::Good, transferred, wanted, .. }
                if *wanted <= self.len.into() =>
            {
                (self.complete(nt_status::SUCCESS, srb_status::SUCCESS, Status::Good, *transferred), true)
            }
            end => (self.failure(end), false),
        }
    }

    #[cold]
    fn failure(&self, end: &TaskEnd) -> HostPacket {
        match end {
            TaskEnd::Answered { status: Status::CheckCondition, transferred, sense: Some(sense), .. } => {
                let srb = srb_status::ERROR | srb_status::AUTOSENSE_VALID;
                let answer =
                    self.complete(nt_status::IO_DEVICE_ERROR, srb, Status::CheckCondition, *transferred);
                with_sense(answer, sense)
            }
            TaskEnd::Answered { status, transferred, .. } => {
                let (nt, srb) = match status {
                    Status::Good => (nt_status::SUCCESS, srb_status::DATA_OVERRUN),
                    Status::ConditionMet => (nt_status::SUCCESS, srb_status::SUCCESS),
                    Status::Busy | Status::TaskSetFull => (nt_status::DEVICE_BUSY, srb_status::BUSY),
                    Status::TaskAborted => (nt_status::CANCELLED, srb_status::ABORTED),
                    Status::CheckCondition | Status::ReservationConflict => {
                        (nt_status::IO_DEVICE_ERROR, srb_status::ERROR)
                    }
                };
                self.complete(nt, srb, *status, *transferred)
            }
            TaskEnd::NoTarget => self.no_unit(),
            TaskEnd::WrongDirection => self.malformed(),
            TaskEnd::Aborted => self.complete(nt_status::CANCELLED, srb_status::ABORTED, Status::Good, 0),
            TaskEnd::Reset => self.complete(nt_status::CANCELLED, srb_status::BUS_RESET, Status::Good, 0),
        }
    }

    /// The answer if there is no such unit. The guest then removes the unit.
    pub(super) fn no_unit(&self) -> HostPacket {
        self.complete(nt_status::DEVICE_DOES_NOT_EXIST, srb_status::INVALID_LUN, Status::Good, 0)
    }

    /// The answer to an invalid request.
    pub(super) fn malformed(&self) -> HostPacket {
        self.complete(nt_status::INVALID_PARAMETER, srb_status::INVALID_REQUEST, Status::Good, 0)
    }

    /// The answer before the initialization is complete.
    pub(super) fn not_ready(&self) -> HostPacket {
        self.complete(nt_status::INVALID_DEVICE_STATE, srb_status::ERROR, Status::Good, 0)
    }

    #[inline]
    fn complete(&self, nt: u32, srb: u8, scsi: Status, transferred: u64) -> HostPacket {
        let len = size_of::<ScsiRequest>() as u64;
        let status = u64::from(nt) | len << 32 | u64::from(srb) << 48 | (scsi as u64) << 56;
        // Not `map`, which the compiler does not inline.
        transmute!([
            U64::new(ANSWER),
            self.transaction,
            U64::new(operation::COMPLETE_IO.into()),
            U64::new(status),
            U64::new(self.place),
            U64::new(transferred & 0xffff_ffff),
            U64::ZERO,
            U64::ZERO,
            U64::ZERO,
            U64::ZERO,
        ])
    }
}

/// The words of a storage packet.
#[inline]
fn words_of(payload: &VstorPacket) -> &Words {
    transmute_ref!(payload)
}

/// Put sense data into an answer, in place of the CDB.
fn with_sense(mut answer: HostPacket, sense: &SenseData) -> HostPacket {
    let srb = &mut answer.payload.srb;
    let places = srb.cdb_or_sense.iter_mut().zip(sense.as_slice());
    srb.sense_info_length = places.map(|(to, from)| *to = *from).count() as u8;
    answer
}

/// The answer to a packet.
#[inline]
pub(super) fn completion(transaction: U64, payload: VstorPacket) -> HostPacket {
    host_packet(VM_PKT_COMP, transaction, payload)
}

/// A packet from the host, without flags.
pub(super) fn host_packet(kind: u16, transaction: U64, payload: VstorPacket) -> HostPacket {
    let words = |bytes: usize| (bytes as u16 / 8).into();
    let header = PacketHeader {
        kind: kind.into(),
        offset8: words(size_of::<PacketHeader>()),
        len8: words(size_of::<HostPacket>()),
        flags: 0.into(),
        trans_id: transaction,
    };
    HostPacket { header, payload }
}
