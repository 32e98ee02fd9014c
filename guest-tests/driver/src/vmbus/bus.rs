//! The guest's half of the bus: the SynIC of one virtual processor, messages, and a channel.

use core::sync::atomic::{Ordering, fence};

use super::spec::*;
use super::{Step, failed};
use crate::adapter::PAGE;
use crate::platform::DmaRegion;
use crate::platform::Platform;
use crate::workload::Fault;

/// Attempts to post a message for which the host has no buffer.
const POSTS: u32 = 1000;
/// The only list of pages.
const GPADL: u32 = 0xe1e10;
/// Words of a message.
const WORDS: usize = PAYLOAD / 8;

/// A message from the host: its payload.
type Message = [u64; WORDS];

/// A channel that was offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    relid: u32,
    /// Where signals go.
    pub(super) connection: u32,
}

/// The SynIC with its pages, and the connection that messages go to.
#[derive(Debug)]
pub(super) struct Bus {
    messages: DmaRegion,
    flags: DmaRegion,
    /// Input of hypercalls.
    input: DmaRegion,
    connection: u32,
}

/// Two dwords as a word.
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl Bus {
    /// Set the SynIC up, and agree on a version.
    pub(super) fn connect<P: Platform>(platform: &mut P) -> Result<Self, Fault> {
        let mut page = || platform.dma(PAGE, PAGE).ok_or(failed(Step::Memory));
        let (code, messages, flags, input) = (page()?, page()?, page()?, page()?);
        let monitors = [page()?, page()?];
        platform.msr_write(MSR_GUEST_OS_ID, GUEST_OS_ID);
        platform.msr_write(MSR_HYPERCALL, code.address() | ENABLE);
        platform.msr_write(MSR_SIMP, messages.address() | ENABLE);
        platform.msr_write(MSR_SIEFP, flags.address() | ENABLE);
        let (_, vector) = platform.msi_message();
        platform.msr_write(MSR_SINT0 + SINT, u64::from(vector & 0xff));
        platform.msr_write(MSR_SCONTROL, ENABLE);
        let mut bus = Self { messages, flags, input, connection: CONTACT_CONNECTION };
        let [to_guest, to_host] = monitors.map(|page| page.address());
        // Version, virtual processor 0, then the interrupt source in place of an interrupt page.
        bus.post(platform, &[INITIATE_CONTACT.into(), pair(VERSION, 0), u64::from(SINT), to_guest, to_host])?;
        let answer = bus.wait(platform, VERSION_RESPONSE)?;
        if answer[1] as u8 == 0 {
            return Err(failed(Step::Version));
        }
        bus.connection = (answer[1] >> 32) as u32;
        Ok(bus)
    }

    /// The first SCSI controller that is offered.
    pub(super) fn find_scsi<P: Platform>(&mut self, platform: &mut P) -> Result<Offer, Fault> {
        self.post(platform, &[REQUEST_OFFERS.into()])?;
        let mut found = None;
        loop {
            let message = self.next(platform)?;
            match message[0] as u32 {
                OFFER_CHANNEL if message[1..3] == SCSI_CLASS && found.is_none() => {
                    // Bytes 184 and 192.
                    found = Some(Offer { relid: message[23] as u32, connection: message[24] as u32 });
                }
                ALL_OFFERS_DELIVERED => return found.ok_or(failed(Step::Offer)),
                _ => {}
            }
        }
    }

    /// Share both rings of a channel, and open it. `to_guest`: page of the second ring.
    pub(super) fn open<P: Platform>(
        &mut self,
        platform: &mut P,
        offer: Offer,
        rings: &DmaRegion,
        to_guest: u32,
    ) -> Result<(), Fault> {
        self.share(platform, offer, rings)?;
        let id = offer.relid;
        // Identity, list of pages, virtual processor 0, then the page where the second ring begins, and user data.
        let mut message = [0; 19];
        message[..4].copy_from_slice(&[
            OPEN_CHANNEL.into(),
            pair(offer.relid, id),
            pair(GPADL, 0),
            to_guest.into(),
        ]);
        self.post_sized(platform, &message, 148)?;
        let answer = self.wait(platform, OPEN_RESULT)?;
        if answer[1] != pair(offer.relid, id) || answer[2] as u32 != 0 {
            return Err(failed(Step::Open));
        }
        Ok(())
    }

    /// Close a channel, and take its rings back: the host writes nothing there afterwards.
    pub(super) fn close<P: Platform>(&mut self, platform: &mut P, offer: Offer) -> Result<(), Fault> {
        self.post_sized(platform, &[CLOSE_CHANNEL.into(), offer.relid.into()], 12)?;
        self.post(platform, &[GPADL_TEARDOWN.into(), pair(offer.relid, GPADL)])?;
        self.wait(platform, GPADL_TORNDOWN).map(drop)
    }

    /// Tell the host which pages the rings have.
    fn share<P: Platform>(&mut self, platform: &mut P, offer: Offer, rings: &DmaRegion) -> Result<(), Fault> {
        let count = rings.len() / PAGE;
        let number = |page: usize| rings.address() / PAGE as u64 + page as u64;
        let mut message = [0; WORDS];
        message[0] = GPADL_HEADER.into();
        message[1] = pair(offer.relid, GPADL);
        // Bytes of the range, one range; from byte 20 on its length, its offset, and page numbers, none of them aligned.
        let range = 8 + 8 * count as u64;
        message[2] = range | 1 << 16 | (rings.len() as u64) << 32;
        message[3] = 0;
        let first = count.min(PAGES_IN_HEADER);
        for page in 0..first {
            message[3 + page] |= number(page) << 32;
            message[4 + page] |= number(page) >> 32;
        }
        self.post_sized(platform, &message, 28 + 8 * first)?;
        let mut sent = first;
        while sent < count {
            let pages = (count - sent).min(PAGES_IN_BODY);
            let mut message = [0; WORDS];
            message[0] = GPADL_BODY.into();
            message[1] = pair(0, GPADL);
            for page in 0..pages {
                message[2 + page] = number(sent + page);
            }
            self.post(platform, &message[..2 + pages])?;
            sent += pages;
        }
        let answer = self.wait(platform, GPADL_CREATED)?;
        if answer[1] != pair(offer.relid, GPADL) || answer[2] as u32 != 0 {
            return Err(failed(Step::Gpadl));
        }
        Ok(())
    }

    /// Clear the word with the channel's event flag. The rings are read after this, so no packet is missed.
    pub(super) fn clear_flags(&self, offer: Offer) {
        let word = offer.relid as usize % (8 * FLAGS_LEN) / 64;
        self.flags.write(FLAGS + 8 * word, 0u64);
        // A flag that is set after this comes with an interrupt. The packets of the cleared flags are in the rings.
        fence(Ordering::SeqCst);
    }

    fn post<P: Platform>(&self, platform: &mut P, message: &[u64]) -> Result<(), Fault> {
        self.post_sized(platform, message, 8 * message.len())
    }

    /// Post a message whose last word may be cut.
    fn post_sized<P: Platform>(&self, platform: &mut P, message: &[u64], len: usize) -> Result<(), Fault> {
        self.input.write(0, u64::from(self.connection));
        self.input.write(8, pair(1, len as u32));
        for (index, word) in message.iter().enumerate() {
            self.input.write(16 + 8 * index, *word);
        }
        for _ in 0..POSTS {
            match platform.hypercall(POST_MESSAGE, self.input.address(), 0) & 0xffff {
                0 => return Ok(()),
                STATUS_INSUFFICIENT_BUFFERS => {
                    let seen = platform.interrupts();
                    platform.wait_interrupt(seen);
                }
                status => return Err(Fault { status: status as u32, ..failed(Step::Hypercall) }),
            }
        }
        Err(failed(Step::Hypercall))
    }

    /// The next message of a kind; others are dropped.
    fn wait<P: Platform>(&self, platform: &mut P, kind: u32) -> Result<Message, Fault> {
        loop {
            let message = self.next(platform)?;
            if message[0] as u32 == kind {
                return Ok(message);
            }
        }
    }

    fn next<P: Platform>(&self, platform: &mut P) -> Result<Message, Fault> {
        platform.wait_for(|platform| self.take(platform)).ok_or(failed(Step::Silence))
    }

    /// The message in the slot, which is free afterwards.
    fn take<P: Platform>(&self, platform: &mut P) -> Option<Message> {
        if self.messages.read::<u32>(SLOT) == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        let mut message = [0; WORDS];
        for (index, word) in message.iter_mut().enumerate() {
            *word = self.messages.read(SLOT_PAYLOAD + 8 * index);
        }
        self.messages.write(SLOT, 0u32);
        // The host marks the message after it has found the slot taken, and looks again afterwards.
        fence(Ordering::SeqCst);
        if self.messages.read::<u8>(SLOT_FLAGS) & MESSAGE_PENDING != 0 {
            platform.msr_write(MSR_EOM, 0);
        }
        Some(message)
    }
}
