//! Handles the guest's messages. Each message that has an answer is answered, some later: Linux waits for answers without a timeout.

use vm_memory::GuestAddressSpace;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::channel::{Closed, Open};
use super::duplex::Duplex;
use super::link::{Answer, Link};
use super::spec::{
    ChannelMessage, GpadlHeader, GpadlTeardown, GpadlTorndown, InitiateContact, MessageHeader, ModifyChannel,
    ModifyChannelResponse, OfferChannel, OpenChannel, OpenResult, bytes_of, message, status, version,
};
use super::storvsc::spec::SCSI_CLASS;
use super::synic::HypercallStatus;
use super::{FIRST_RELID, Vmbus, gpadl};
use crate::hba::Hba;
use crate::time::Time;

/// Instance GUID of the controller, 9d0e1f53-2c6b-4a5c-8b1e-7061726b6469, as on the wire. Guests recognize the controller by it after a
/// reboot.
const INSTANCE: [u8; 16] =
    [0x53, 0x1f, 0x0e, 0x9d, 0x6b, 0x2c, 0x5c, 0x4a, 0x8b, 0x1e, 0x70, 0x61, 0x72, 0x6b, 0x64, 0x69];

impl<A: GuestAddressSpace> Vmbus<A> {
    /// Handle a message of the guest.
    pub(super) fn on_request(&mut self, payload: &[u8], now: Time) -> HypercallStatus {
        let Ok((header, _)) = MessageHeader::read_from_prefix(payload) else {
            return HypercallStatus::Success;
        };
        match (header.kind.get(), self.link) {
            (message::INITIATE_CONTACT, _) => {
                if let Ok((contact, _)) = InitiateContact::read_from_prefix(payload) {
                    self.reset_by_guest(Answer::of(&contact), Some(contact.target_vp.get()), now);
                }
            }
            (message::UNLOAD, _) => self.reset_by_guest(Answer::Unload, None, now),
            // The guest sends the message again.
            _ if !self.outbox.has_space() => return HypercallStatus::InsufficientBuffers,
            (kind, Link::Up { version }) => self.on_connected(version, kind, payload, now),
            (kind, link) => tracing::debug!(kind, ?link, "VMBus message ignored"),
        }
        HypercallStatus::Success
    }

    fn on_connected(&mut self, spoken: u32, kind: u32, payload: &[u8], now: Time) {
        match kind {
            message::REQUESTOFFERS => self.offer_all(),
            message::GPADL_HEADER => self.on_gpadl_header(payload),
            message::GPADL_BODY => {
                if let Some(answer) = self.gpadls.body(payload) {
                    self.send(&answer);
                }
            }
            message::GPADL_TEARDOWN => {
                if let Ok((teardown, _)) = GpadlTeardown::read_from_prefix(payload) {
                    self.on_gpadl_teardown(teardown.relid.get(), teardown.gpadl.get());
                }
            }
            message::OPENCHANNEL => {
                if let Ok((open, _)) = OpenChannel::read_from_prefix(payload) {
                    self.on_open(&open);
                }
            }
            message::CLOSECHANNEL => {
                if let Some(index) = self.index_of_message(payload) {
                    self.close(index, now);
                }
            }
            message::RELID_RELEASED => {
                if let Some(index) = self.index_of_message(payload) {
                    self.channels[index].release();
                    self.finish_closing();
                }
            }
            message::MODIFYCHANNEL => {
                if let Ok((modify, _)) = ModifyChannel::read_from_prefix(payload) {
                    self.on_modify(spoken, &modify);
                }
            }
            // Messages of Hyper-V sockets, of later versions, and answers.
            _ => tracing::debug!(kind, "VMBus message ignored"),
        }
    }

    /// Send a message, or queue it until the slot is free.
    pub(super) fn send<T: IntoBytes + Immutable>(&mut self, message: &T) {
        self.outbox.send(&mut *self.signals.synic, bytes_of(message));
    }

    fn offer_all(&mut self) {
        self.offer(0);
        self.send(&MessageHeader::new(message::ALLOFFERS_DELIVERED));
    }

    fn offer(&mut self, index: usize) {
        if !self.channels[index].offer() {
            return;
        }
        let number = index as u16;
        self.send(&OfferChannel {
            interface_type: SCSI_CLASS,
            interface_instance: INSTANCE,
            sub_channel_index: number.into(),
            ..OfferChannel::new(FIRST_RELID + u32::from(number), self.connections[index])
        });
    }

    /// Offer the sub-channels that the driver has requested. A rescinded one is offered again after its release.
    #[cold]
    pub(super) fn offer_sub_channels(&mut self) {
        for index in 1..=usize::from(self.storvsc.wanted_sub_channels()) {
            self.offer(index);
        }
    }

    fn on_gpadl_header(&mut self, payload: &[u8]) {
        let Ok((header, _)) = GpadlHeader::read_from_prefix(payload) else { return };
        let usable = self.index(header.relid.get()).is_some_and(|index| self.channels[index].usable());
        let answer = if usable { self.gpadls.header(payload) } else { Some(gpadl::refused(&header)) };
        if let Some(answer) = answer {
            self.send(&answer);
        }
    }

    /// A GPADL that a channel uses is torn down when the channel has closed.
    fn on_gpadl_teardown(&mut self, relid: u32, gpadl: u32) {
        let index = self.index(relid);
        if index.is_none_or(|index| self.channels[index].tear_down(gpadl)) {
            self.tear_down(relid, gpadl);
        }
    }

    fn tear_down(&mut self, relid: u32, gpadl: u32) {
        self.gpadls.remove(relid, gpadl);
        let header = MessageHeader::new(message::GPADL_TORNDOWN);
        self.send(&GpadlTorndown { header, gpadl: gpadl.into() });
    }

    fn on_open(&mut self, message: &OpenChannel) {
        let relid = message.relid.get();
        let open = Open {
            id: message.open_id.get(),
            gpadl: message.ringbuffer_gpadl.get(),
            split: message.downstream_page_offset.get(),
            vp: message.target_vp.get(),
        };
        let index = self.index(relid);
        match index.map_or(Err(()), |index| self.channels[index].may_open(open)) {
            Ok(true) => self.open(index.unwrap_or_default(), open),
            // Answered when the channel has closed.
            Ok(false) => {}
            Err(()) => self.send_open_result(relid, open.id, status::INVALID_DEVICE_STATE),
        }
    }

    fn open(&mut self, index: usize, open: Open) {
        let relid = FIRST_RELID + index as u32;
        let pages = self.gpadls.pages(relid, open.gpadl).filter(|_| open.vp < self.cpus);
        let duplex = pages.and_then(|pages| {
            let coalescing = *self.engine.moderator.options();
            Duplex::new(&mut self.engine.dma, (pages, open.split), (relid as u16, open.vp), coalescing)
        });
        let Some(duplex) = duplex else {
            return self.send_open_result(relid, open.id, status::INVALID_PARAMETER);
        };
        if index == 0 {
            self.storvsc.restart();
        }
        self.channels[index].opened(open.gpadl, duplex);
        // The ring may already hold packets.
        self.engine.has_work = true;
        self.send_open_result(relid, open.id, status::SUCCESS);
    }

    fn send_open_result(&mut self, relid: u32, open_id: u32, status: u32) {
        tracing::debug!(relid, status, "VMBus channel to be opened");
        self.send(&OpenResult {
            header: MessageHeader::new(message::OPENCHANNEL_RESULT),
            relid: relid.into(),
            open_id: open_id.into(),
            status: status.into(),
        });
    }

    /// The guest closes a channel. The close of the primary channel rescinds the sub-channels.
    fn close(&mut self, index: usize, now: Time) {
        self.close_channel(index);
        if index == 0 {
            self.storvsc.restart();
            for sub_channel in 1..self.channels.len() {
                if self.channels[sub_channel].rescind() {
                    self.close_channel(sub_channel);
                    let header = MessageHeader::new(message::RESCIND_CHANNELOFFER);
                    let relid = FIRST_RELID + sub_channel as u32;
                    self.send(&ChannelMessage { header, relid: relid.into() });
                }
            }
        }
        // Requests without a disk request in flight complete at once.
        self.complete(now);
    }

    fn close_channel(&mut self, index: usize) {
        let waiting = self.channels[index].close();
        self.abandon(index);
        if let Some(open) = waiting {
            self.send_open_result(FIRST_RELID + index as u32, open.id, status::INVALID_DEVICE_STATE);
        }
    }

    /// Send the answers that waited for the completion of requests.
    pub(super) fn finish_closing(&mut self) {
        self.finish_reset();
        for index in 0..self.channels.len() {
            if let Some(closed) = self.channels[index].finish() {
                self.on_closed(index, &closed);
            }
        }
    }

    #[cold]
    fn on_closed(&mut self, index: usize, closed: &Closed) {
        let relid = FIRST_RELID + index as u32;
        if let Some(gpadl) = closed.torn_down {
            self.tear_down(relid, gpadl);
        }
        if let Some(open) = closed.reopen {
            self.open(index, open);
        }
        if closed.gone {
            self.gpadls.remove_all(relid);
            self.offer_sub_channels();
        }
    }

    fn on_modify(&mut self, spoken: u32, modify: &ModifyChannel) {
        let (relid, vp) = (modify.relid.get(), modify.target_vp.get());
        let channel = self.index(relid).map(|index| &mut self.channels[index]);
        let channel = channel.filter(|channel| channel.is_open() && vp < self.cpus);
        let moved = channel.map(|channel| channel.duplex.iter_mut().for_each(|duplex| duplex.move_to(vp)));
        if spoken >= version(5, 3) {
            let status = moved.map_or(status::INVALID_PARAMETER, |()| status::SUCCESS);
            self.send(&ModifyChannelResponse {
                header: MessageHeader::new(message::MODIFYCHANNEL_RESPONSE),
                relid: relid.into(),
                status: status.into(),
            });
        }
    }

    /// The channel with this number.
    fn index(&self, relid: u32) -> Option<usize> {
        let index = usize::try_from(relid.checked_sub(FIRST_RELID)?).ok()?;
        (index < self.channels.len()).then_some(index)
    }

    fn index_of_message(&self, payload: &[u8]) -> Option<usize> {
        let (message, _) = ChannelMessage::read_from_prefix(payload).ok()?;
        self.index(message.relid.get())
    }
}
