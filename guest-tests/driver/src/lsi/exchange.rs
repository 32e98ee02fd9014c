//! Messages other than SCSI I/O, through the FIFOs: configuration pages, task management, events.

use super::adapter::Lsi;
use super::message::*;
use super::spec::*;
use crate::adapter::PAGE;
use crate::platform::Platform;
use crate::workload::Fault;

impl Lsi {
    /// Read a page to the start of the scratch memory; its length in bytes.
    ///
    /// # Errors
    /// [`Fault::STATUS`] with the IOCStatus as host status, [`Fault::TIMEOUT`].
    pub fn read_page<P: Platform>(
        &mut self,
        platform: &mut P,
        page: PageAddress,
        action: u8,
    ) -> Result<usize, Fault> {
        let header = self.page_header(platform, page)?;
        let bytes = usize::from(header.dwords) * 4;
        let reply = self.config(platform, page, action, header, bytes.min(PAGE))?;
        // Linux frees its memory by the second length.
        match config_header(&reply, page) {
            same if same == header => Ok(bytes),
            other => Err(Fault {
                kind: Fault::STATUS,
                expected: header.dwords.into(),
                found: other.dwords.into(),
                ..Fault::EMPTY
            }),
        }
    }

    /// A dword of the page that was read last.
    #[must_use]
    pub fn page_word(&self, offset: usize) -> u32 {
        self.shared.scratch.read(offset)
    }

    /// Write a page.
    ///
    /// # Errors
    /// As [`read_page`](Self::read_page).
    pub fn write_page<P: Platform>(
        &mut self,
        platform: &mut P,
        page: PageAddress,
        action: u8,
        words: &[u32],
    ) -> Result<(), Fault> {
        let header = self.page_header(platform, page)?;
        for (index, &word) in words.iter().enumerate() {
            self.shared.scratch.write(index * 4, word);
        }
        self.config(platform, page, action, header, words.len() * 4).map(|_| ())
    }

    /// A page's header.
    ///
    /// # Errors
    /// As [`read_page`](Self::read_page).
    pub fn page_header<P: Platform>(
        &mut self,
        platform: &mut P,
        page: PageAddress,
    ) -> Result<PageHeader, Fault> {
        let none = PageHeader { version: 0, dwords: 0 };
        let reply = self.config(platform, page, action::HEADER, none, 0)?;
        Ok(config_header(&reply, page))
    }

    fn config<P: Platform>(
        &mut self,
        platform: &mut P,
        page: PageAddress,
        action: u8,
        header: PageHeader,
        bytes: usize,
    ) -> Result<Reply, Fault> {
        let extended = page.kind == TYPE_EXTENDED;
        let (short, long) = if extended { (0, u32::from(header.dwords)) } else { (header.dwords as u8, 0) };
        let way = if action == action::WRITE_CURRENT { SGE_WRITE } else { 0 };
        let address = self.shared.scratch.address();
        // Nothing to move: an address of all ones that must not be touched.
        let (low, high) =
            if bytes == 0 { (u32::MAX, u32::MAX) } else { (address as u32, (address >> 32) as u32) };
        let words = [
            u32::from(action) | u32::from(CONFIG) << 24,
            long | u32::from(page.extended) << 16,
            0,
            0,
            0,
            u32::from_le_bytes([header.version, short, page.number, page.kind]),
            page.address,
            SGE_SIMPLE | SGE_END | SGE_64 | way | bytes as u32,
            low,
            high,
        ];
        let reply = self.message(platform, &words)?;
        match reply.ioc_status() {
            0 => Ok(reply),
            status => Err(Fault { kind: Fault::STATUS, status: u32::from(status) << 8, ..Fault::EMPTY }),
        }
    }

    /// Post task management; its reply comes through the FIFO, behind those of the tasks: [`take_reply`](Self::take_reply).
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] where the handshake goes wrong (`by_doorbell`).
    pub fn manage<P: Platform>(
        &mut self,
        platform: &mut P,
        management: &TaskManagement,
        by_doorbell: bool,
    ) -> Result<(), Fault> {
        let mut words = [0u32; 13];
        words[0] = u32::from(management.target) | u32::from(TASK_MGMT) << 24;
        words[1] = u32::from(management.kind) << 8;
        words[2] = MESSAGE_CONTEXT | self.message_tag();
        words[3] = u32::from(management.lun) << 8;
        words[12] = IO_CONTEXT | management.tag;
        self.reply = None;
        if by_doorbell {
            self.doorbell().send(platform, &words)?;
            return self.doorbell().finish(platform);
        }
        self.post(platform, self.message_tag(), &words);
        Ok(())
    }

    /// The answer to the last message.
    pub const fn take_reply(&mut self) -> Option<Reply> {
        self.reply.take()
    }

    /// The last event, where one came since the last call.
    pub const fn take_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Events so far.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Post a message and wait for its answer, with no I/O in flight.
    ///
    /// # Errors
    /// [`Fault::TIMEOUT`]; [`Fault::SPURIOUS`] where an I/O ends.
    pub fn message<P: Platform>(&mut self, platform: &mut P, words: &[u32]) -> Result<Reply, Fault> {
        let tag = self.message_tag();
        self.reply = None;
        self.post(platform, tag, words);
        let answer = platform.wait_for(|platform| {
            if let Some(end) = self.take_completion(platform) {
                let found = end.completion.tag.into();
                return Some(Err(Fault {
                    kind: Fault::SPURIOUS,
                    expected: tag.into(),
                    found,
                    ..Fault::EMPTY
                }));
            }
            self.reply.take().map(Ok)
        });
        answer.unwrap_or(Err(Fault { kind: Fault::TIMEOUT, ..Fault::EMPTY }))
    }

    /// Post a message in a frame of the driver's own.
    fn post<P: Platform>(&mut self, platform: &mut P, tag: u32, words: &[u32]) {
        let frame = Self::frame(tag);
        for (index, &word) in words.iter().enumerate() {
            self.shared.requests.write(frame + index * 4, word);
        }
        self.shared.requests.write(frame + MSG_CONTEXT, MESSAGE_CONTEXT | tag);
        self.post_frame(platform, tag);
    }

    /// A reply to a message other than SCSI I/O. The frame belongs to the driver until the driver returns it to the controller.
    pub(super) fn other_reply<P: Platform>(&mut self, platform: &mut P, at: usize) {
        let frame = &self.shared.replies;
        let mut reply = Reply { words: [0; REPLY_FRAME / 4] };
        for (index, word) in reply.words.iter_mut().enumerate() {
            *word = frame.read(at + index * 4);
        }
        let flags = frame.read::<u8>(at + MSG_FLAGS);
        if reply.function() == EVENT_NOTIFICATION && flags & MSG_FLAGS_CONTINUATION != 0 {
            let word = |index: usize| reply.words[EVENT / 4 + index];
            self.event = Some(Event { event: word(0), data: [word(2), word(3)] });
            self.events += 1;
            if frame.read::<u8>(at + EVENT_ACK_REQUIRED) != 0 {
                let (event, context) = (word(0), word(1));
                self.post(platform, self.ack_tag(), &[u32::from(EVENT_ACK) << 24, 0, 0, event, context]);
            }
        } else if reply.words[MSG_CONTEXT / 4] & 0xffff != self.ack_tag() {
            self.reply = Some(reply);
        }
    }
}
