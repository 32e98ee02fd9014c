//! All functions except SCSI I/O and task management: facts, initialization, events, configuration pages.

use vm_memory::GuestAddressSpace;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::Lsi;
use super::pages::{Attached, MAX_PAGE, Name, Page};
use super::personality::Personality;
use super::port::REQUEST_CREDITS;
use super::reply::Reply;
use super::sgl::{self, SglError, Start};
use super::spec::{
    ConfigReply, ConfigRequest, Header, IocFactsReply, IocInitRequest, IocState, PortFactsReply,
    config_action, function, ioc_status,
};
use crate::dma::Access;
use crate::hba::Engine;

/// Minimum number of credits: Linux reserves ten of them.
const LEAST_CREDITS: usize = 32;

/// The start of a request as a structure; `None` if the request is too short.
pub(super) fn parse<T: FromBytes + KnownLayout + Immutable + Copy>(frame: &[u8]) -> Option<T> {
    T::read_from_prefix(frame).ok().map(|(value, _)| value)
}

impl<A: GuestAddressSpace> Lsi<A> {
    /// Answer a request from the handshake (`frame` has the announced length) or from the FIFO.
    pub(super) fn answer(&mut self, frame: &[u8]) -> Reply {
        let Some(header) = parse::<Header>(frame) else {
            return Reply::default_to(&Header::default(), ioc_status::INVALID_FIELD);
        };
        let needs_operational = !matches!(
            header.function,
            function::IOC_FACTS | function::PORT_FACTS | function::IOC_INIT | function::FW_UPLOAD
        );
        if needs_operational && self.state != IocState::Operational {
            return Reply::default_to(&header, ioc_status::INVALID_STATE);
        }
        match header.function {
            function::IOC_FACTS => self.ioc_facts(&header),
            function::PORT_FACTS => self.port_facts(&header),
            function::IOC_INIT => self.ioc_init(&header, frame),
            function::PORT_ENABLE | function::EVENT_ACK => Reply::default_to(&header, ioc_status::SUCCESS),
            function::EVENT_NOTIFICATION => self.event_notification(&header),
            function::CONFIG => self.config(&header, frame),
            // Link resets and device removals complete at once, because there is no hardware.
            function::SAS_IO_UNIT_CONTROL if self.personality == Personality::Sas1068 => {
                Reply::default_to(&header, ioc_status::SUCCESS)
            }
            _ => Reply::default_to(&header, ioc_status::INVALID_FUNCTION),
        }
    }

    fn ioc_facts(&self, header: &Header) -> Reply {
        Reply::new(&IocFactsReply {
            function: header.function,
            msg_context: header.msg_context,
            who_init: self.who_init,
            global_credits: self.credits().into(),
            event_state: self.event_context.is_some().into(),
            current_host_mfa_high_addr: ((self.mfa_high >> 32) as u32).into(),
            current_sense_buffer_high_addr: ((self.sense_high >> 32) as u32).into(),
            cur_reply_frame_size: self.reply_frame_size.into(),
            ..self.personality.ioc_facts()
        })
    }

    /// Number of requests that the guest may post at a time: the number of task numbers, but at least
    /// [`LEAST_CREDITS`]. If a request has to wait for a task number, task management passes it.
    fn credits(&self) -> u16 {
        self.engine.in_flight.limit().clamp(LEAST_CREDITS, REQUEST_CREDITS) as u16
    }

    fn port_facts(&self, header: &Header) -> Reply {
        let port = header.by_function2[2];
        let reply = PortFactsReply {
            function: header.function,
            port_number: port,
            msg_context: header.msg_context,
            ..PortFactsReply::default()
        };
        if port != 0 {
            return Reply::new(&PortFactsReply { ioc_status: ioc_status::INVALID_FIELD.into(), ..reply });
        }
        Reply::new(&PortFactsReply {
            function: reply.function,
            msg_context: reply.msg_context,
            ..self.personality.port_facts()
        })
    }

    fn ioc_init(&mut self, header: &Header, frame: &[u8]) -> Reply {
        let Some(init) = parse::<IocInitRequest>(frame) else {
            return Reply::default_to(header, ioc_status::INVALID_FIELD);
        };
        if self.state != IocState::Ready {
            return Reply::default_to(header, ioc_status::INVALID_STATE);
        }
        self.who_init = init.who_init;
        // Replies are truncated to this size. SeaBIOS has frames of 4 bytes, because it only checks whether there is a
        // reply.
        self.reply_frame_size = init.reply_frame_size.get();
        self.mfa_high = u64::from(init.host_mfa_high_addr.get()) << 32;
        self.sense_high = u64::from(init.sense_buffer_high_addr.get()) << 32;
        self.state = IocState::Operational;
        let by_function = [init.who_init, header.by_function[1]];
        Reply::default_to(&Header { by_function, ..*header }, ioc_status::SUCCESS)
    }

    fn event_notification(&mut self, header: &Header) -> Reply {
        // The reply that confirms the switch has no event data: 7 dwords.
        let on = header.by_function[0] != 0;
        self.event_context = on.then_some(header.msg_context.get());
        Reply::with_len(&Header { by_function: [0; 2], ..*header }, ioc_status::SUCCESS, 28)
    }

    fn config(&mut self, header: &Header, frame: &[u8]) -> Reply {
        let Some(request) = parse::<ConfigRequest>(frame) else {
            return Reply::default_to(header, ioc_status::INVALID_FIELD);
        };
        let mut reply = ConfigReply {
            action: request.action,
            reserved: 0,
            msg_length: 0,
            function: header.function,
            ext_page_length: request.ext_page_length,
            ext_page_type: request.ext_page_type,
            msg_flags: header.msg_flags,
            msg_context: header.msg_context,
            reserved2: [0; 2],
            ioc_status: ioc_status::SUCCESS.into(),
            ioc_log_info: 0.into(),
            header: request.header,
        };
        match self.config_page(&request, frame) {
            Ok(found) => {
                reply.header = found.header();
                if let Some((dwords, kind)) = found.extension() {
                    reply.ext_page_length = dwords.into();
                    reply.ext_page_type = kind;
                }
            }
            Err(status) => reply.ioc_status = status.into(),
        }
        Reply::new(&reply)
    }

    fn config_page(&mut self, request: &ConfigRequest, frame: &[u8]) -> Result<Page, u16> {
        let (name, attached) = (Name::of(request), self.attached());
        let page = self.pages.find(name, attached)?;
        match request.action {
            config_action::PAGE_HEADER => {}
            config_action::READ_CURRENT | config_action::READ_DEFAULT | config_action::READ_NVRAM => {
                self.map_config(frame, page.as_slice().len(), Access::Write)?;
                let mut content = page.as_slice();
                for buf in &self.bufs {
                    content = &content[buf.write(content)..];
                }
            }
            action @ (config_action::WRITE_CURRENT | config_action::WRITE_NVRAM) => {
                self.map_config(frame, page.as_slice().len(), Access::Read)?;
                let mut data = [0; MAX_PAGE];
                let mut len = 0;
                for buf in &self.bufs {
                    len += buf.read(&mut data[len..]);
                }
                self.pages.write(action, name, attached, &data[..len])?;
            }
            config_action::RESET_DEFAULT => {}
            _ => return Err(ioc_status::CONFIG_INVALID_ACTION),
        }
        Ok(page)
    }

    /// The targets with at least one unit.
    fn attached(&self) -> Attached {
        let bit = |target: u8| 1u32.checked_shl(target.into()).unwrap_or(0);
        Attached(self.engine.bus.addresses().fold(0, |bits, address| bits | bit(address.target)))
    }

    /// Map the page's buffer: `len` bytes, or fewer if the request's element is shorter.
    fn map_config(&mut self, frame: &[u8], len: usize, access: Access) -> Result<(), u16> {
        let at = size_of::<ConfigRequest>();
        let head = frame.get(at..at + 4).ok_or(ioc_status::INVALID_SGL)?;
        let given = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        self.map_list(frame, Start { offset: at, chain: 0 }, len.min(given) as u64, access)
            .map_err(|_| ioc_status::INVALID_SGL)
    }

    /// Translate the first `wanted` bytes of a scatter-gather list into `self.bufs`.
    pub(super) fn map_list(
        &mut self,
        frame: &[u8],
        start: Start,
        wanted: u64,
        access: Access,
    ) -> Result<(), SglError> {
        let Self { engine: Engine { dma, .. }, bufs, segment, .. } = self;
        bufs.clear();
        // Both closures borrow `dma`, but never at the same time.
        let dma = std::cell::RefCell::new(dma);
        sgl::walk(
            frame,
            start,
            wanted,
            segment,
            |address, bytes| dma.borrow_mut().read_bytes(address, bytes).map_err(|_| SglError::Memory),
            |address, len| {
                dma.borrow_mut().translate(address, len as u64, access, bufs).map_err(|_| SglError::Memory)
            },
        )
    }
}
