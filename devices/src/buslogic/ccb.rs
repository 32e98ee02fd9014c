//! Parses a CCB into a task, and completes a CCB: its statuses, sense data, and the content of an incoming mailbox.

use paradisk_disk_formats::IoBuf;
use vm_memory::GuestAddressSpace;

use super::mailbox::Incoming;
use super::spec::{
    CCB_DATA_LEN, CCB_STATUS, CONTROL_DIRECTION, CONTROL_NO_DATA, Ccb, LUN_EXTENDED, LUN_LEGACY,
    SENSE_DEFAULT, SENSE_LEAST, SG_LIMIT, SgElement, TAG_ENABLE, TAG_SHIFT, adapter_status, ccb_opcode,
    completion,
};
use crate::dma::{Access, Dma};
use crate::scsi::{Address, Attribute, Direction, SenseData, Status, TaskEnd};

/// The fields of a CCB in flight that its completion needs.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Guest-physical address of the CCB.
    pub(super) ccb: u32,
    pub(super) sense_address: u32,
    sense_len: u8,
    /// The completion replaces the CCB's data length by the residual count.
    residual: bool,
    /// Bytes of data.
    len: u32,
}

/// Where the data of a CCB are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    None,
    /// In one piece.
    Piece {
        address: u32,
        len: u32,
    },
    /// In the pieces of a scatter-gather list with this many elements.
    List {
        address: u32,
        elements: u32,
    },
}

/// A SCSI command: everything is checked except the memory of its data.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub(super) pending: Pending,
    pub(super) address: Address,
    pub(super) attribute: Attribute,
    pub(super) direction: Direction,
    data: Data,
    cdb: [u8; 12],
    cdb_len: u8,
}

/// A checked CCB.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parsed {
    Command(Request),
    /// Reset this target.
    ResetTarget(u8, Pending),
}

impl Pending {
    fn of(address: u32, ccb: &Ccb) -> Self {
        let residual =
            matches!(ccb.opcode, ccb_opcode::INITIATOR_RESIDUAL | ccb_opcode::INITIATOR_SG_RESIDUAL);
        let sense_len = match ccb.sense_len {
            0 => SENSE_DEFAULT,
            len if len < SENSE_LEAST => 0,
            len => len,
        };
        Self { ccb: address, sense_address: ccb.sense_address.get(), sense_len, residual, len: 0 }
    }

    /// The same with `len` bytes of data.
    #[inline]
    pub(super) const fn with_data(self, len: u32) -> Self {
        Self { len, ..self }
    }

    /// Complete a CCB with this adapter status: write its statuses, and return its incoming mailbox.
    #[cold]
    pub(super) fn failed<A: GuestAddressSpace>(&self, status: u8, dma: &mut Dma<A>) -> Incoming {
        let code = if status == adapter_status::ABORTED { completion::ABORTED } else { completion::ERROR };
        self.finish(code, status, 0, self.len, dma)
    }

    /// Complete a CCB that succeeded and transfers no data.
    pub(super) fn done<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> Incoming {
        self.finish(completion::GOOD, adapter_status::NORMAL, Status::Good as u8, 0, dma)
    }

    /// Complete a CCB: write statuses and sense data, and return its incoming mailbox.
    #[inline]
    pub(super) fn ended<A: GuestAddressSpace>(&self, end: &TaskEnd, dma: &mut Dma<A>) -> Incoming {
        match end {
            TaskEnd::Answered { status: Status::Good, transferred, wanted, .. } if wanted == transferred => {
                let left = self.len.wrapping_sub(*transferred as u32);
                self.finish(completion::GOOD, adapter_status::NORMAL, Status::Good as u8, left, dma)
            }
            _ => self.ended_otherwise(end, dma),
        }
    }

    #[cold]
    fn ended_otherwise<A: GuestAddressSpace>(&self, end: &TaskEnd, dma: &mut Dma<A>) -> Incoming {
        match end {
            TaskEnd::NoTarget => self.failed(adapter_status::SELECTION_TIMEOUT, dma),
            TaskEnd::WrongDirection => self.failed(adapter_status::INVALID_BUS_PHASE, dma),
            TaskEnd::Aborted => self.failed(adapter_status::ABORTED, dma),
            TaskEnd::Reset => self.failed(adapter_status::DEVICE_RESET, dma),
            TaskEnd::Answered { status, transferred, wanted, sense } => {
                // If the command has more data than the buffer, it is an overrun, and the residual count wraps below zero. Less data are no
                // error: drivers pass a buffer for the longest possible reply.
                let overrun = *wanted > u64::from(self.len);
                let left = self.len.wrapping_sub((if overrun { *wanted } else { *transferred }) as u32);
                let adapter = match self.deliver_sense(sense.as_ref(), dma) {
                    Err(()) => adapter_status::AUTO_SENSE_FAILED,
                    Ok(()) if overrun && *status == Status::Good => adapter_status::DATA_OVERRUN,
                    Ok(()) => adapter_status::NORMAL,
                };
                let good = *status == Status::Good && adapter == adapter_status::NORMAL;
                let code = if good { completion::GOOD } else { completion::ERROR };
                self.finish(code, adapter, *status as u8, left, dma)
            }
        }
    }

    fn deliver_sense<A: GuestAddressSpace>(
        &self,
        sense: Option<&SenseData>,
        dma: &mut Dma<A>,
    ) -> Result<(), ()> {
        let sense = sense.map_or(&[][..], SenseData::as_slice);
        let sense = sense.get(..usize::from(self.sense_len)).unwrap_or(sense);
        if sense.is_empty() {
            return Ok(());
        }
        dma.write_bytes(self.sense_address.into(), sense).map_err(|_| ())
    }

    /// Write statuses and residual count. Before the incoming mailbox is loaded: until then the CCB belongs to the adapter.
    #[inline]
    fn finish<A: GuestAddressSpace>(
        &self,
        code: u8,
        adapter_status: u8,
        target_status: u8,
        left: u32,
        dma: &mut Dma<A>,
    ) -> Incoming {
        let mut written = Ok(());
        if self.residual {
            written = dma.write_bytes(self.ccb.wrapping_add(CCB_DATA_LEN).into(), &left.to_le_bytes());
        }
        let statuses = [adapter_status, target_status];
        let written =
            written.and_then(|()| dma.write_bytes(self.ccb.wrapping_add(CCB_STATUS).into(), &statuses));
        if written.is_err() {
            // The CCB was read from this address, so its memory was unmapped meanwhile.
            tracing::debug!(ccb = self.ccb, "BusLogic CCB is not in guest memory any more");
        }
        Incoming { ccb: self.ccb, adapter_status, target_status, code }
    }
}

impl Parsed {
    /// Check a CCB that was read from `address`. The error is the adapter status.
    #[inline]
    pub(super) fn of(address: u32, ccb: &Ccb, extended: bool) -> Result<Self, (u8, Pending)> {
        let pending = Pending::of(address, ccb);
        let list = match ccb.opcode {
            ccb_opcode::INITIATOR | ccb_opcode::INITIATOR_RESIDUAL => false,
            ccb_opcode::INITIATOR_SG | ccb_opcode::INITIATOR_SG_RESIDUAL => true,
            ccb_opcode::BUS_DEVICE_RESET => return Ok(Self::ResetTarget(ccb.target, pending)),
            _ => return Err((adapter_status::INVALID_OPCODE, pending)),
        };
        let (len, address) = (ccb.data_len.get(), ccb.data_address.get());
        let size = size_of::<SgElement>() as u32;
        // The CDB decides the direction: drivers leave it open, and some pass a buffer with commands that have no data.
        let (direction, data) = match ccb.control & CONTROL_DIRECTION {
            CONTROL_NO_DATA => (Direction::None, Data::None),
            _ if len == 0 => (Direction::Either, Data::None),
            _ if !list => (Direction::Either, Data::Piece { address, len }),
            _ if len.is_multiple_of(size) && len <= u32::from(SG_LIMIT) * size => {
                (Direction::Either, Data::List { address, elements: len / size })
            }
            _ => return Err((adapter_status::INVALID_PARAMETER, pending)),
        };
        let cdb_len = ccb.cdb_len;
        if cdb_len == 0 || usize::from(cdb_len) > ccb.cdb.len() {
            return Err((adapter_status::INVALID_PARAMETER, pending));
        }
        let (lun, tag) =
            if extended { (ccb.lun & LUN_EXTENDED, ccb.control) } else { (ccb.lun & LUN_LEGACY, ccb.lun) };
        let attribute = match (tag & TAG_ENABLE != 0, tag >> TAG_SHIFT) {
            (true, 1) => Attribute::HeadOfQueue,
            (true, 2) => Attribute::Ordered,
            _ => Attribute::Simple,
        };
        let unit = Address { target: ccb.target, lun: lun.into() };
        Ok(Self::Command(Request {
            pending,
            address: unit,
            attribute,
            direction,
            data,
            cdb: ccb.cdb,
            cdb_len,
        }))
    }
}

impl Request {
    pub(super) fn cdb(&self) -> &[u8] {
        self.cdb.get(..usize::from(self.cdb_len)).unwrap_or(&self.cdb)
    }

    /// Translate the data to host memory, appended to `bufs`. Returns the sum of the lengths. The error is the adapter status.
    #[inline]
    pub(super) fn map_data<A: GuestAddressSpace>(
        &self,
        dma: &mut Dma<A>,
        bufs: &mut Vec<IoBuf>,
    ) -> Result<u32, u8> {
        // Writable: the CCB does not tell the direction.
        match self.data {
            Data::None => Ok(0),
            Data::Piece { address, len } => {
                dma.translate(address.into(), len.into(), Access::Write, bufs)
                    .map_err(|_| adapter_status::SOFTWARE_ERROR)?;
                Ok(len)
            }
            Data::List { address, elements } => map_list(address.into(), elements, dma, bufs),
        }
    }
}

/// Translate all pieces of a list. A sum that does not fit the 32-bit residual count is an error.
#[inline]
fn map_list<A: GuestAddressSpace>(
    list: u64,
    elements: u32,
    dma: &mut Dma<A>,
    bufs: &mut Vec<IoBuf>,
) -> Result<u32, u8> {
    let mut sum = 0u32;
    for index in 0..u64::from(elements) {
        let at = list + index * size_of::<SgElement>() as u64;
        let element: SgElement = dma.read(at).map_err(|_| adapter_status::SOFTWARE_ERROR)?;
        let len = element.len.get();
        sum = sum.checked_add(len).ok_or(adapter_status::INVALID_PARAMETER)?;
        if len > 0 {
            dma.translate(element.address.get().into(), len.into(), Access::Write, bufs)
                .map_err(|_| adapter_status::SOFTWARE_ERROR)?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn ccb() -> Ccb {
        Ccb { cdb_len: 6, target: 3, ..Ccb::new_zeroed() }
    }

    fn request(ccb: &Ccb, extended: bool) -> Request {
        match Parsed::of(0x1000, ccb, extended) {
            Ok(Parsed::Command(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn refused(ccb: &Ccb) -> u8 {
        Parsed::of(0x1000, ccb, true).unwrap_err().0
    }

    #[test]
    fn units_and_tags_of_both_formats() {
        for (extended, control, lun, unit, attribute) in [
            (true, 0x20, 0x21, 0x21, Attribute::Simple),
            (true, 0x60, 5, 5, Attribute::HeadOfQueue),
            (true, 0xa0, 31, 31, Attribute::Ordered),
            (true, 0x80, 0xc0, 0, Attribute::Simple),
            (false, 0xa0, 0x25, 5, Attribute::Simple),
            (false, 0, 0x60, 0, Attribute::HeadOfQueue),
            (false, 0, 0xbf, 31, Attribute::Ordered),
        ] {
            let request = request(&Ccb { control, lun, ..ccb() }, extended);
            assert_eq!(request.address, Address { target: 3, lun: unit });
            assert_eq!(request.attribute, attribute, "{control:#x} {lun:#x}");
        }
    }

    #[test]
    fn data_by_operation_code_and_direction() {
        let with = |opcode, control, len: u32| {
            let ccb = Ccb { opcode, control, data_len: len.into(), data_address: 16.into(), ..ccb() };
            let request = request(&ccb, true);
            (request.direction, request.data, request.pending.residual)
        };
        let piece = Data::Piece { address: 16, len: 512 };
        assert_eq!(with(0x00, 0, 512), (Direction::Either, piece, false));
        assert_eq!(with(0x03, 0x08, 512), (Direction::Either, piece, true));
        assert_eq!(with(0x02, 0x10, 24), (Direction::Either, Data::List { address: 16, elements: 3 }, false));
        assert_eq!(with(0x04, 0, 65536).1, Data::List { address: 16, elements: 8192 });
        assert_eq!(with(0x00, 0x18, 512), (Direction::None, Data::None, false));
        assert_eq!(with(0x02, 0, 0).1, Data::None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(refused(&Ccb { opcode: 1, ..ccb() }), adapter_status::INVALID_OPCODE);
        assert_eq!(refused(&Ccb { opcode: 5, ..ccb() }), adapter_status::INVALID_OPCODE);
        for ccb in [
            Ccb { cdb_len: 0, ..ccb() },
            Ccb { cdb_len: 13, ..ccb() },
            Ccb { opcode: 2, data_len: 7.into(), ..ccb() },
            Ccb { opcode: 4, data_len: 65544.into(), ..ccb() },
        ] {
            assert_eq!(refused(&ccb), adapter_status::INVALID_PARAMETER, "{ccb:?}");
        }
    }

    #[test]
    fn sense_lengths() {
        let lens = [0, 1, 7, 8, 96].map(|sense_len| Pending::of(0, &Ccb { sense_len, ..ccb() }).sense_len);
        assert_eq!(lens, [14, 0, 0, 8, 96]);
    }
}
