//! Persistent reservations (SPC-4, 5.13) and RESERVE/RELEASE (SPC-2), for the one I_T nexus that a bus is.
//!
//! The nexus is alone, so its reservations never stand in its own way: what is kept is what the commands report.

use zerocopy::{FromBytes, IntoBytes};

use super::sense::{Sense, asc};
use super::spec::{ReservationDescriptor, ReserveCapabilities, ReserveInHeader, ReserveOut, action};

/// Set in the parameter list: transport IDs follow; all target ports; persist through power loss. None is supported.
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
/// Length of the parameter list (bytes).
pub(super) const OUT_BYTES: u32 = size_of::<ReserveOut>() as u32;
/// Types 1, 3, 5, 6, 7, 8, as REPORT CAPABILITIES gives them.
const TYPE_MASK: u16 = 0xea01;

/// Why PERSISTENT RESERVE OUT failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

/// What is registered and reserved.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    generation: u32,
    key: Option<u64>,
    /// Type of the reservation that the nexus holds.
    held: Option<u8>,
    /// RESERVE (6) or (10).
    reserved: bool,
}

/// Types 7 and 8 belong to all registrants.
const fn all_registrants(kind: u8) -> bool {
    kind >= 7
}

impl Reservations {
    /// RESERVE and RELEASE conflict with registrations.
    pub(super) fn reserve(&mut self, reserve: bool) -> Result<(), Refusal> {
        if self.key.is_some() {
            return Err(Refusal::Conflict);
        }
        self.reserved = reserve;
        Ok(())
    }

    /// A reset ends what RESERVE began; persistent reservations stay.
    pub(super) fn reset(&mut self) {
        self.reserved = false;
    }

    /// PERSISTENT RESERVE IN data, whole.
    pub(super) fn report(&self, service_action: u8) -> Result<Vec<u8>, Refusal> {
        if self.reserved {
            return Err(Refusal::Conflict);
        }
        let header =
            |len: usize| ReserveInHeader { generation: self.generation.into(), len: (len as u32).into() };
        Ok(match service_action {
            action::PR_IN_READ_KEYS => {
                let keys = self.key.map(u64::to_be_bytes);
                let keys = keys.as_ref().map_or(&[][..], |key| &key[..]);
                [header(keys.len()).as_bytes(), keys].concat()
            }
            action::PR_IN_READ_RESERVATION => {
                let held = self.held.map(|kind| ReservationDescriptor {
                    key: if all_registrants(kind) { 0 } else { self.key.unwrap_or(0) }.into(),
                    scope_type: kind,
                    ..ReservationDescriptor::default()
                });
                let held = held.as_ref().map_or(&[][..], IntoBytes::as_bytes);
                [header(held.len()).as_bytes(), held].concat()
            }
            // TMV: the type mask is valid; ALLOW COMMANDS 0, nothing else is claimed.
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

    /// PERSISTENT RESERVE OUT with its whole parameter list. PREEMPT AND ABORT finds no other nexus whose tasks it
    /// would abort.
    pub(super) fn out(&mut self, service_action: u8, scope_type: u8, list: &[u8]) -> Result<(), Refusal> {
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
                if self.held.is_some_and(|held| held != kind) {
                    return Err(Refusal::Conflict);
                }
                self.held = Some(kind);
            }
            action::PR_OUT_RELEASE => {
                if let Some(held) = self.held {
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
                self.generation = self.generation.wrapping_add(1);
            }
            _ => self.preempt(scope_type, action_key)?,
        }
        Ok(())
    }

    fn register(&mut self, action_key: u64) {
        // An unregistered nexus that registers no key changes nothing but the generation.
        if action_key == 0 {
            self.key = None;
            // The holder, or the last registrant, is gone.
            self.held = None;
        } else {
            self.key = Some(action_key);
        }
        self.generation = self.generation.wrapping_add(1);
    }

    /// PREEMPT (SPC-4, 5.13.11.4). The only registration is the nexus' own, which is never removed here.
    fn preempt(&mut self, scope_type: u8, action_key: u64) -> Result<(), Refusal> {
        match self.held {
            Some(held) if all_registrants(held) && action_key == 0 => {
                self.held = Some(reservation_type(scope_type)?);
            }
            _ if action_key == 0 => return Err(Refusal::Check(Sense::list(8))),
            _ if self.key != Some(action_key) => return Err(Refusal::Conflict),
            Some(held) if !all_registrants(held) => self.held = Some(reservation_type(scope_type)?),
            _ => {}
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }
}

/// The type, where scope and type are supported.
fn reservation_type(scope_type: u8) -> Result<u8, Refusal> {
    if scope_type & 0xf0 != 0 {
        return Err(Refusal::Check(Sense::cdb_bit(2, 7)));
    }
    match scope_type {
        1 | 3 | 5..=8 => Ok(scope_type),
        _ => Err(Refusal::Check(Sense::cdb_bit(2, 3))),
    }
}
