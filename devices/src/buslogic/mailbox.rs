//! The mailboxes in guest memory: outgoing ones hold CCBs to start, incoming ones hold completed CCBs.
//!
//! ```text
//!   base:              outgoing 0 .. count - 1      address of the CCB, action
//!   base + 8 * count:  incoming 0 .. count - 1      address of the CCB, statuses, completion code
//! ```
//!
//! A mailbox is read once. Each kind is used as a ring with its own position.

use std::ops::Range;

use vm_memory::GuestAddressSpace;

use super::spec::{MAILBOX_CODE, MAILBOX_SIZE, action, completion};
use crate::dma::Dma;

/// An outgoing mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    /// Address of the CCB.
    pub(super) ccb: u32,
    /// One of [`action`].
    pub(super) action: u8,
}

/// An incoming mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Address of the CCB, as in the outgoing mailbox.
    pub(super) ccb: u32,
    pub(super) adapter_status: u8,
    pub(super) target_status: u8,
    /// One of [`completion`].
    pub(super) code: u8,
}

/// The mailboxes of both kinds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mailboxes {
    base: u32,
    count: u32,
    /// Position in each ring.
    out_next: u32,
    in_next: u32,
}

impl Mailboxes {
    /// `count` mailboxes of each kind, at least one.
    pub(super) fn new(base: u32, count: u8) -> Self {
        Self { base, count: u32::from(count).max(1), out_next: 0, in_next: 0 }
    }

    pub(super) const fn base(&self) -> u32 {
        self.base
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The guest-physical range of all mailboxes.
    pub(super) fn area(&self) -> Range<u64> {
        let start = u64::from(self.base);
        start..start + u64::from(2 * self.count * MAILBOX_SIZE)
    }

    /// The address of a mailbox. It wraps at 32 bits, as the adapter's addresses do.
    const fn address(&self, index: u32) -> u32 {
        self.base.wrapping_add(index * MAILBOX_SIZE)
    }

    const fn after(&self, index: u32) -> u32 {
        if index + 1 < self.count { index + 1 } else { 0 }
    }

    /// Take an outgoing mailbox and mark it free. In strict mode that is the next one, else the first loaded one from there on.
    #[inline]
    pub(super) fn take<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>, strict: bool) -> Option<Outgoing> {
        if strict {
            return self.take_next(dma);
        }
        for _ in 0..self.count {
            let taken = self.take_next(dma);
            if taken.is_some() {
                return taken;
            }
            self.out_next = self.after(self.out_next);
        }
        None
    }

    #[inline]
    fn take_next<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>) -> Option<Outgoing> {
        let at = self.address(self.out_next);
        let mailbox = read_outgoing(dma, at)?;
        if mailbox.action == action::FREE {
            return None;
        }
        dma.write_byte(at.wrapping_add(MAILBOX_CODE).into(), action::FREE).ok()?;
        self.out_next = self.after(self.out_next);
        Some(mailbox)
    }

    /// Whether the next incoming mailbox is free. One outside memory counts as free: a completion posted there is lost.
    #[inline]
    pub(super) fn has_free_slot<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> bool {
        is_free(dma, self.address(self.count + self.in_next))
    }

    /// Whether the guest has read all loaded incoming mailboxes.
    pub(super) fn all_read<A: GuestAddressSpace>(&self, dma: &mut Dma<A>) -> bool {
        let last = self.in_next.checked_sub(1).unwrap_or(self.count - 1);
        is_free(dma, self.address(self.count + last))
    }

    /// Load the next incoming mailbox. Only after [`has_free_slot`](Self::has_free_slot) returned true.
    #[inline]
    pub(super) fn post<A: GuestAddressSpace>(&mut self, dma: &mut Dma<A>, incoming: Incoming) {
        let at = self.address(self.count + self.in_next);
        let Incoming { ccb, adapter_status, target_status, code } = incoming;
        let [a, b, c, d] = ccb.to_le_bytes();
        let written = dma.write_bytes(at.into(), &[a, b, c, d, adapter_status, target_status, 0]);
        // The code comes last: it makes the mailbox valid for the guest.
        if written.and_then(|()| dma.write_byte(at.wrapping_add(MAILBOX_CODE).into(), code)).is_err() {
            tracing::debug!(address = at, "BusLogic incoming mailbox outside guest memory");
        }
        self.in_next = self.after(self.in_next);
    }
}

/// Read the action, then the address: the guest writes them in the opposite order. If the mailbox is aligned, one load reads both.
#[inline]
fn read_outgoing<A: GuestAddressSpace>(dma: &mut Dma<A>, at: u32) -> Option<Outgoing> {
    if at.is_multiple_of(MAILBOX_SIZE) {
        let [word] = dma.read_qwords(at.into()).ok()?;
        return Some(Outgoing { ccb: word as u32, action: (word >> 56) as u8 });
    }
    let action = dma.read::<u8>(at.wrapping_add(MAILBOX_CODE).into()).ok()?;
    let ccb = dma.read::<[u8; 4]>(at.into()).ok()?;
    Some(Outgoing { ccb: u32::from_le_bytes(ccb), action })
}

#[inline]
fn is_free<A: GuestAddressSpace>(dma: &mut Dma<A>, at: u32) -> bool {
    !dma.read::<u8>(at.wrapping_add(MAILBOX_CODE).into()).is_ok_and(|code| code != completion::FREE)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    use super::*;

    type Memory = Arc<GuestMemoryMmap>;

    fn memory() -> (Memory, Dma<Memory>) {
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10_0000)]).unwrap());
        (memory.clone(), Dma::new(memory))
    }

    fn put(memory: &Memory, at: u32, ccb: u32, action: u8) {
        memory.write_obj(ccb, GuestAddress(at.into())).unwrap();
        memory.write_obj(action, GuestAddress(u64::from(at) + 7)).unwrap();
    }

    #[test]
    fn outgoing_mailboxes_are_taken_in_turn_and_freed() {
        let (memory, mut dma) = memory();
        // Aligned or not.
        for base in [0x1000, 0x2003] {
            let mut boxes = Mailboxes::new(base, 3);
            put(&memory, base, 0xdead_beef, action::START);
            put(&memory, base + 16, 5, action::ABORT);
            let first = Outgoing { ccb: 0xdead_beef, action: action::START };
            assert_eq!(boxes.take(&mut dma, true), Some(first));
            assert_eq!(memory.read_obj::<u8>(GuestAddress(u64::from(base) + 7)).unwrap(), 0);
            assert_eq!(boxes.take(&mut dma, true), None, "the next one is free");
            let other = Outgoing { ccb: 5, action: action::ABORT };
            assert_eq!(boxes.take(&mut dma, false), Some(other), "all are looked at");
            assert_eq!(boxes.take(&mut dma, false), None);
            put(&memory, base, 9, action::START);
            assert!(boxes.take(&mut dma, true).is_some(), "around");
        }
    }

    #[test]
    fn incoming_mailboxes_are_loaded_in_turn_once_they_are_free() {
        let (memory, mut dma) = memory();
        let mut boxes = Mailboxes::new(0x1000, 2);
        let incoming =
            Incoming { ccb: 0x1234_5678, adapter_status: 0x11, target_status: 2, code: completion::ERROR };
        assert!(boxes.has_free_slot(&mut dma) && boxes.all_read(&mut dma));
        boxes.post(&mut dma, incoming);
        let mut bytes = [0; 8];
        memory.read_slice(&mut bytes, GuestAddress(0x1010)).unwrap();
        assert_eq!(bytes, [0x78, 0x56, 0x34, 0x12, 0x11, 2, 0, 4]);
        assert!(boxes.has_free_slot(&mut dma) && !boxes.all_read(&mut dma));
        boxes.post(&mut dma, incoming);
        assert!(!boxes.has_free_slot(&mut dma));
        memory.write_obj(0u8, GuestAddress(0x1017)).unwrap();
        assert!(boxes.has_free_slot(&mut dma) && !boxes.all_read(&mut dma));
    }

    #[test]
    fn mailboxes_outside_memory_hold_nothing() {
        for base in [0x10_0000, u32::MAX, 0xffff_fff8, 0xf_fff9] {
            let (_, mut dma) = memory();
            let mut boxes = Mailboxes::new(base, 255);
            for strict in [true, false] {
                assert_eq!(boxes.take(&mut dma, strict), None, "{base:#x}");
            }
            assert!(boxes.has_free_slot(&mut dma), "{base:#x}");
            boxes.post(&mut dma, Incoming { ccb: 1, adapter_status: 0, target_status: 0, code: 1 });
        }
    }
}
