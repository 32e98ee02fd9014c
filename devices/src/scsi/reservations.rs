//! Persistent reservations (SPC-4, 5.13) and RESERVE/RELEASE (SPC-2), for the one I_T nexus that a bus is.
//!
//! All commands come from that nexus, so its own reservation never conflicts. REGISTER AND MOVE moves its reservation to another nexus,
//! which never sends a command. From then on the reservation conflicts with this nexus, until it preempts the other.

use zerocopy::{FromBytes, IntoBytes};

use super::cdb::{Command, Transfer};
use super::sense::{Sense, asc};
use super::spec::{
    FullStatus, MoveOut, ReservationDescriptor, ReserveCapabilities, ReserveInHeader, ReserveOut,
    SasTransportId, action,
};

/// Set in the parameter list: transport IDs follow; all target ports; persist through power loss. None is supported.
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
/// REGISTER AND MOVE: the nexus that moves its reservation is unregistered.
const UNREG: u8 = 0x02;
/// In a full status descriptor: the nexus holds the reservation.
const R_HOLDER: u8 = 0x01;
/// Length of the parameter list (bytes).
const OUT_BYTES: usize = size_of::<ReserveOut>();
/// Length of the parameter list of REGISTER AND MOVE (bytes).
const MOVE_BYTES: usize = size_of::<MoveOut>() + size_of::<SasTransportId>();
/// Types 1, 3, 5, 6, 7, 8, for REPORT CAPABILITIES.
const TYPE_MASK: u16 = 0xea01;
/// Protocol identifier of SAS; the TransportID's format is 0.
const SAS: u8 = 0x06;
/// The initiator port of the one nexus: a locally assigned address (NAA 3h), the same on every bus.
const INITIATOR: u64 = 0x3000_0000_0000_0001;
/// Relative target port identifier of the only port.
const TARGET_PORT: u16 = 1;

/// Why PERSISTENT RESERVE OUT failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

/// The registration and the reservation.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    generation: u32,
    key: Option<u64>,
    /// Type of the reservation.
    held: Option<u8>,
    /// The nexus that holds the reservation, if it is not ours. Then `held` is a type below 7.
    moved: Option<Moved>,
    /// Reserved by RESERVE (6) or (10).
    reserved: bool,
}

/// The registration of a nexus that REGISTER AND MOVE named.
#[derive(Clone, Copy, Debug)]
struct Moved {
    key: u64,
    /// SAS address of its initiator port.
    initiator: u64,
}

/// What another nexus' reservation forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptOut {
    /// Write Exclusive: no writing.
    OfWriting,
    /// Exclusive Access: no reading either.
    OfAll,
}

impl KeptOut {
    /// Whether a command conflicts with the reservation (SPC-4, table 67; SBC-3, table 13).
    pub(super) fn conflicts(self, command: &Command) -> bool {
        match command {
            Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry { .. }
            | Command::ReportLuns { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::LogSense { .. }
            | Command::ReportOpcodes { .. }
            | Command::ReportTaskManagement { .. }
            | Command::PersistentReserveIn { .. }
            | Command::StartStop { start: true, .. }
            // These check the registration themselves.
            | Command::PersistentReserveOut { .. }
            | Command::Reserve
            | Command::Release => false,
            Command::Transfer(Transfer { write: false, .. })
            | Command::Verify { .. }
            | Command::GetLbaStatus { .. } => self == Self::OfAll,
            _ => true,
        }
    }
}

/// Types 7 and 8 belong to all registrants.
const fn all_registrants(kind: u8) -> bool {
    kind >= 7
}

impl Reservations {
    /// RESERVE and RELEASE conflict with registrations.
    pub(super) fn reserve(&mut self, reserve: bool) -> Result<(), Refusal> {
        if self.key.is_some() || self.moved.is_some() {
            return Err(Refusal::Conflict);
        }
        self.reserved = reserve;
        Ok(())
    }

    /// A reset releases RESERVE; persistent reservations stay.
    pub(super) fn reset(&mut self) {
        self.reserved = false;
    }

    /// What another nexus' reservation forbids; `None`: nothing, or no such reservation.
    pub(super) fn kept_out(&self) -> Option<KeptOut> {
        self.moved?;
        match self.held? {
            1 => Some(KeptOut::OfWriting),
            3 => Some(KeptOut::OfAll),
            // Registrants Only.
            _ if self.key.is_some() => None,
            5 => Some(KeptOut::OfWriting),
            _ => Some(KeptOut::OfAll),
        }
    }

    /// Complete PERSISTENT RESERVE IN data.
    pub(super) fn report(&self, service_action: u8) -> Result<Vec<u8>, Refusal> {
        if self.reserved {
            return Err(Refusal::Conflict);
        }
        let with_header = |data: Vec<u8>| {
            let header =
                ReserveInHeader { generation: self.generation.into(), len: (data.len() as u32).into() };
            [header.as_bytes(), &data].concat()
        };
        Ok(match service_action {
            action::PR_IN_READ_KEYS => {
                let keys = self.key.into_iter().chain(self.moved.map(|moved| moved.key));
                with_header(keys.flat_map(u64::to_be_bytes).collect())
            }
            action::PR_IN_READ_RESERVATION => {
                let held = self.held.map(|kind| ReservationDescriptor {
                    key: if all_registrants(kind) { 0 } else { self.holders_key() }.into(),
                    scope_type: kind,
                    ..ReservationDescriptor::default()
                });
                with_header(held.as_ref().map_or(&[][..], IntoBytes::as_bytes).to_vec())
            }
            action::PR_IN_READ_FULL_STATUS => with_header(self.full_status()),
            // TMV: the type mask is valid. ALLOW COMMANDS is 0: no information.
            _ => ReserveCapabilities {
                len: (size_of::<ReserveCapabilities>() as u16).into(),
                flags: [0, 0x80],
                types: TYPE_MASK.into(),
                ..ReserveCapabilities::default()
            }
            .as_bytes()
            .to_vec(),
        })
    }

    /// The key of the nexus that holds the reservation; 0 without one.
    fn holders_key(&self) -> u64 {
        self.moved.map(|moved| moved.key).or(self.key).unwrap_or(0)
    }

    /// A descriptor for each registered nexus.
    fn full_status(&self) -> Vec<u8> {
        let ours = self.key.map(|key| (key, INITIATOR, self.moved.is_none()));
        let other = self.moved.map(|moved| (moved.key, moved.initiator, true));
        let descriptor = |(key, initiator, holds): (u64, u64, bool)| {
            let held = self.held.filter(|_| holds);
            let status = FullStatus {
                key: key.into(),
                flags: if held.is_some() { R_HOLDER } else { 0 },
                scope_type: held.unwrap_or(0),
                port: TARGET_PORT.into(),
                transport_len: (size_of::<SasTransportId>() as u32).into(),
                ..FullStatus::default()
            };
            let transport =
                SasTransportId { protocol: SAS, address: initiator.into(), ..SasTransportId::default() };
            [status.as_bytes(), transport.as_bytes()].concat()
        };
        ours.into_iter().chain(other).flat_map(descriptor).collect()
    }

    /// Whether a parameter list has the length that the service action requires.
    pub(super) fn takes(service_action: u8, len: u32) -> bool {
        let moves = service_action == action::PR_OUT_REGISTER_AND_MOVE;
        len as usize == if moves { MOVE_BYTES } else { OUT_BYTES }
    }

    /// PERSISTENT RESERVE OUT with its complete parameter list. PREEMPT AND ABORT aborts nothing, because no other nexus has tasks.
    pub(super) fn out(&mut self, service_action: u8, scope_type: u8, list: &[u8]) -> Result<(), Refusal> {
        if service_action == action::PR_OUT_REGISTER_AND_MOVE {
            return self.register_and_move(list);
        }
        let list = ReserveOut::ref_from_bytes(list)
            .map_err(|_| Refusal::Check(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR)))?;
        let (key, action_key) = (list.key.get(), list.action_key.get());
        if self.reserved {
            return Err(Refusal::Conflict);
        }
        for (flag, bit) in [(SPEC_I_PT, 3), (ALL_TG_PT, 2), (APTPL, 0)] {
            if list.flags & flag != 0 {
                return Err(Refusal::Check(Sense::list_bit(20, bit)));
            }
        }
        let ignore = service_action == action::PR_OUT_REGISTER_AND_IGNORE;
        if ignore || service_action == action::PR_OUT_REGISTER {
            // Without a registration the reservation key is zero (SPC-4, table 70).
            if !ignore && key != self.key.unwrap_or(0) {
                return Err(Refusal::Conflict);
            }
            self.register(action_key);
            return Ok(());
        }
        if self.key != Some(key) {
            return Err(Refusal::Conflict);
        }
        match service_action {
            action::PR_OUT_RESERVE => {
                let kind = reservation_type(scope_type)?;
                if self.moved.is_some() || self.held.is_some_and(|held| held != kind) {
                    return Err(Refusal::Conflict);
                }
                self.held = Some(kind);
            }
            action::PR_OUT_RELEASE => {
                // RELEASE by a nexus that does not hold the reservation is no error and has no effect.
                if let Some(held) = self.held
                    && self.moved.is_none()
                {
                    if reservation_type(scope_type)? != held {
                        let sense = Sense::illegal(asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
                        return Err(Refusal::Check(sense));
                    }
                    self.held = None;
                }
            }
            action::PR_OUT_CLEAR => {
                self.key = None;
                self.held = None;
                self.moved = None;
                self.generation = self.generation.wrapping_add(1);
            }
            _ => self.preempt(scope_type, action_key)?,
        }
        Ok(())
    }

    fn register(&mut self, action_key: u64) {
        // If an unregistered nexus registers key 0, only the generation changes.
        if action_key == 0 {
            self.key = None;
            // The holder, or the last registrant, is unregistered.
            if self.moved.is_none() {
                self.held = None;
            }
        } else {
            self.key = Some(action_key);
        }
        self.generation = self.generation.wrapping_add(1);
    }

    /// REGISTER AND MOVE (SPC-4, 5.13.8).
    fn register_and_move(&mut self, list: &[u8]) -> Result<(), Refusal> {
        let check = |sense| Err(Refusal::Check(sense));
        let short = Refusal::Check(Sense::illegal(asc::PARAMETER_LIST_LENGTH_ERROR));
        let (list, transport) = MoveOut::ref_from_prefix(list).map_err(|_| short)?;
        let transport = SasTransportId::ref_from_bytes(transport).map_err(|_| short)?;
        if self.reserved || self.key != Some(list.key.get()) {
            return Err(Refusal::Conflict);
        }
        match self.held {
            None => return check(Sense::cdb_bit(1, 4)),
            Some(held) if all_registrants(held) || self.moved.is_some() => return Err(Refusal::Conflict),
            Some(_) => {}
        }
        if list.action_key.get() == 0 {
            return check(Sense::list(8));
        }
        if list.flags & APTPL != 0 {
            return check(Sense::list_bit(17, 0));
        }
        if list.port.get() != TARGET_PORT {
            return check(Sense::list(18));
        }
        if list.transport_len.get() as usize != size_of::<SasTransportId>() {
            return check(Sense::list(20));
        }
        if transport.protocol != SAS {
            return check(Sense::list(24));
        }
        // The target of the move is the nexus itself.
        if transport.address.get() == INITIATOR {
            return check(Sense::list(28));
        }
        self.moved = Some(Moved { key: list.action_key.get(), initiator: transport.address.get() });
        if list.flags & UNREG != 0 {
            self.key = None;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    /// PREEMPT (SPC-4, 5.13.11.4). The nexus' own registration is never removed here.
    fn preempt(&mut self, scope_type: u8, action_key: u64) -> Result<(), Refusal> {
        if self.moved.is_some_and(|moved| moved.key == action_key) {
            self.held = Some(reservation_type(scope_type)?);
            self.moved = None;
            self.generation = self.generation.wrapping_add(1);
            return Ok(());
        }
        match self.held {
            Some(held) if all_registrants(held) && action_key == 0 => {
                self.held = Some(reservation_type(scope_type)?);
            }
            _ if action_key == 0 => return Err(Refusal::Check(Sense::list(8))),
            _ if self.key != Some(action_key) => return Err(Refusal::Conflict),
            Some(held) if !all_registrants(held) && self.moved.is_none() => {
                self.held = Some(reservation_type(scope_type)?);
            }
            _ => {}
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }
}

/// The type; fails if scope or type is not supported.
fn reservation_type(scope_type: u8) -> Result<u8, Refusal> {
    if scope_type & 0xf0 != 0 {
        return Err(Refusal::Check(Sense::cdb_bit(2, 7)));
    }
    match scope_type {
        1 | 3 | 5..=8 => Ok(scope_type),
        _ => Err(Refusal::Check(Sense::cdb_bit(2, 3))),
    }
}
