//! The messages of one client, from its connection to its disconnection.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
#[expect(
    clippy::disallowed_types,
    reason = "what the vhost crate has for a handler; messages are no requests"
)]
use std::sync::Mutex;

use paradisk_devices::virtio::blk::{Configuration, MAX_QUEUE_SIZE, RingSetup};
use paradisk_devices::virtio::spec::Features;
use paradisk_devices::worker::{Gone, Worker};
use paradisk_disk_formats::Disk;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::backchannel::Backchannel;
use super::inflight::Inflight;
use super::memory::{MAX_SLOTS, Regions};
use super::queue_thread::{self, Eventfds, Queue};
use super::relay::{Refused, Relay};
use crate::client_socket::ClientSocket;
use crate::memory_sources::MemorySources;
use crate::notifier::{Notifier, require_eventfd};

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The client closed the connection.
    Closed,
    /// The server closed the connection, for this reason.
    Disconnected(String),
    /// The host lacks what a session needs.
    NotServed(String),
    /// The server stops.
    Stopped,
}

/// A queue's state, as the client's messages have set it.
#[derive(Debug, Default)]
struct Vring {
    size: u16,
    /// Addresses of descriptors, available ring and used ring in the client.
    addresses: Option<[u64; 3]>,
    /// Index of the next chain, while the queue does not run.
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    enabled: bool,
    running: bool,
}

/// A client.
pub(super) struct Session {
    disk: Arc<dyn Disk>,
    workers: Arc<[Worker<Queue>]>,
    backchannel: Arc<Backchannel>,
    vrings: Vec<Vring>,
    regions: Regions,
    config: Configuration,
    features: u64,
    inflight: Option<Inflight>,
}

/// Send a job to the thread of a queue, and wait for its result.
fn ask<R: Send + 'static>(
    worker: &Worker<Queue>,
    job: impl FnOnce(&mut Queue) -> R + Send + 'static,
) -> Result<R> {
    let gone = |Gone| Error::ReqHandlerError(io::Error::other("the queue's thread has ended"));
    worker.ask(job).map_err(gone)
}

const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

impl Session {
    /// Before the first message.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        queues: u16,
        workers: Arc<[Worker<Queue>]>,
        backchannel: Arc<Backchannel>,
    ) -> Self {
        Self {
            vrings: workers.iter().map(|_| Vring::default()).collect(),
            workers,
            backchannel,
            regions: Regions::default(),
            config: Configuration::new(disk.info(), queues, MAX_QUEUE_SIZE),
            disk,
            features: 0,
            inflight: None,
        }
    }

    /// Answer messages until the client disconnects. None of its requests is in flight when this returns.
    pub(super) fn run(self, client: &ClientSocket, memory: &MemorySources) -> Outcome {
        let (relay, stream) = match Relay::new(client) {
            Ok(made) => made,
            Err(error) => return Outcome::NotServed(error.to_string()),
        };
        let backchannel = Arc::clone(&self.backchannel);
        #[expect(clippy::disallowed_types, reason = "what the vhost crate has for a handler")]
        let session = Arc::new(Mutex::new(self));
        let mut messages = BackendReqHandler::from_stream(stream, session);
        loop {
            let socket = match relay.forward(memory) {
                Ok(socket) => socket,
                Err(Refused::Closed) => return Outcome::Closed,
                Err(refused) => return Outcome::Disconnected(refused.to_string()),
            };
            let handled = messages.handle_request();
            // A refusal has a reply, too.
            let returned = relay.return_replies();
            match handled {
                Ok(()) if socket.is_some() => backchannel.set(socket),
                Ok(()) => {}
                Err(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)) => {
                    return Outcome::Closed;
                }
                Err(error) => return Outcome::Disconnected(error.to_string()),
            }
            if returned.is_err() {
                return Outcome::Closed;
            }
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// A queue that may be changed, as it does not run.
    fn stopped_vring(&mut self, index: u32) -> Result<&mut Vring> {
        let vring = self.vring(index)?;
        if vring.running { Err(Error::InvalidOperation("the queue is running")) } else { Ok(vring) }
    }

    /// Stop a queue, and wait for its requests in flight.
    fn stop(&mut self, index: usize) -> Result<()> {
        let (Some(vring), Some(worker)) = (self.vrings.get_mut(index), self.workers.get(index)) else {
            return Err(Error::InvalidParam);
        };
        if vring.running {
            vring.running = false;
            if let Some(next) = ask(worker, queue_thread::stop)? {
                vring.base = next;
            }
        }
        Ok(())
    }

    /// Start a queue if it has addresses and a kick and is enabled.
    fn start(&mut self, index: usize) -> Result<()> {
        let (Some(vring), Some(worker)) = (self.vrings.get_mut(index), self.workers.get(index)) else {
            return Err(Error::InvalidParam);
        };
        let (Some(addresses), Some(kick), true, false) =
            (vring.addresses, &vring.kick, vring.enabled && vring.size > 0, vring.running)
        else {
            return Ok(());
        };
        let [descriptors, available, used] = addresses;
        let setup = RingSetup {
            size: vring.size,
            descriptors: self.regions.guest_address(descriptors)?,
            available: self.regions.guest_address(available)?,
            used: self.regions.guest_address(used)?,
            next_avail: Some(vring.base),
            event_index: self.features & Features::RING_EVENT_IDX.bits() != 0,
        };
        let eventfds = Eventfds {
            kick: kick.try_clone().map_err(Error::ReqHandlerError)?,
            call: notifier(vring.call.as_ref())?,
            err: notifier(vring.err.as_ref())?,
        };
        let inflight = self.inflight.as_ref().and_then(|inflight| inflight.queue(index, vring.size));
        let write_through = self.config.write_through();
        let started = ask(worker, move |queue| {
            queue.rings.set_write_through(write_through);
            queue_thread::start(queue, setup, eventfds, inflight)
        })?;
        started.map_err(Error::ReqHandlerError)?;
        vring.running = true;
        tracing::info!(queue = index, "vhost-user queue started");
        Ok(())
    }

    /// Stop all queues, apply a change, and restart the queues that ran. After an error the queues stay stopped, because an error ends the
    /// session.
    fn paused<R>(&mut self, change: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let running: Vec<_> = (0..self.vrings.len()).filter(|&index| self.vrings[index].running).collect();
        running.iter().try_for_each(|&index| self.stop(index))?;
        let result = change(self)?;
        running.iter().try_for_each(|&index| self.start(index))?;
        Ok(result)
    }

    /// Replace the memory of the queues.
    fn set_regions(&mut self, regions: Regions) -> Result<()> {
        let memory = regions.memory()?;
        self.paused(|session| {
            session.regions = regions;
            for worker in session.workers.iter() {
                let memory = Arc::clone(&memory);
                ask(worker, move |queue| queue.rings.set_memory(memory))?;
            }
            Ok(())
        })
    }

    fn enable_all(&mut self, enabled: bool) {
        self.vrings.iter_mut().for_each(|vring| vring.enabled = enabled);
    }

    fn start_all(&mut self) -> Result<()> {
        (0..self.vrings.len()).try_for_each(|index| self.start(index))
    }

    fn stop_all(&mut self) -> Result<()> {
        (0..self.vrings.len()).try_for_each(|index| self.stop(index))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.backchannel.set(None);
        // Fails for threads that have ended, which have neither requests nor memory.
        let _ = self.stop_all();
        for worker in self.workers.iter() {
            let _ = worker.ask(|queue| queue.rings.set_memory(Arc::default()));
        }
    }
}

/// Refuse a descriptor that is not an eventfd.
fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    file.map(|file| require_eventfd(file.as_fd()).map(|()| file.into()))
        .transpose()
        .map_err(|errno| Error::ReqHandlerError(errno.into()))
}

/// Signals an eventfd of the client from a queue's thread.
fn notifier(event: Option<&OwnedFd>) -> Result<Option<Notifier>> {
    event.map(|event| Notifier::new(event.try_clone()?)).transpose().map_err(Error::ReqHandlerError)
}

const NOT_OFFERED: Error = Error::InvalidOperation("not offered");

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        self.enable_all(false);
        self.features = 0;
        self.config.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.config.offered_with_rings() | PROTOCOL_FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidParam);
        }
        self.paused(|session| {
            session.features = features;
            session.config.accept(features);
            Ok(())
        })?;
        // Without protocol features, queues are enabled from the start.
        if features & PROTOCOL_FEATURES == 0 {
            self.enable_all(true);
            self.start_all()?;
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        described: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut regions = Regions::default();
        described.iter().zip(files).try_for_each(|(region, file)| regions.add(region, file))?;
        self.set_regions(regions).map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
        self.stopped_vring(index)?.size = size.ok_or(Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let addresses = [descriptor, available, used];
        addresses.iter().try_for_each(|&address| self.regions.guest_address(address).map(drop))?;
        self.stop(index as usize)?;
        self.vring(index)?.addresses = Some(addresses);
        self.start(index as usize)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.stopped_vring(index)?.base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index as usize)?;
        let vring = self.vring(index)?;
        // The next SET_VRING_KICK starts the queue again.
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = event(file)?.ok_or(Error::InvalidOperation("queues without a kick are not offered"))?;
        self.stop(index.into())?;
        self.vring(index.into())?.kick = Some(kick);
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = event(file)?;
        let vring = self.vring(index.into())?;
        vring.call = call;
        let call = notifier(vring.call.as_ref())?;
        let worker = self.workers.get(usize::from(index)).ok_or(Error::InvalidParam)?;
        ask(worker, |queue| queue.rings.front().set_call(call))
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let err = event(file)?;
        let vring = self.vring(index.into())?;
        vring.err = err;
        let err = notifier(vring.err.as_ref())?;
        let worker = self.workers.get(usize::from(index)).ok_or(Error::InvalidParam)?;
        ask(worker, |queue| queue.rings.front().set_err(err))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        if enable { self.start(index as usize) } else { self.stop(index as usize) }
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let capacity = self.disk.info().capacity;
        if self.config.set_capacity(capacity) {
            // The guest may use the new capacity as soon as the client has read it: the queues must accept it before.
            for worker in self.workers.iter() {
                ask(worker, move |queue| queue.rings.set_capacity(capacity))?;
            }
        }
        // Clients with a longer structure read zeros behind this one.
        let bytes = self.config.bytes().get(offset as usize..).unwrap_or_default();
        Ok(bytes.iter().copied().chain(std::iter::repeat(0)).take(size as usize).collect())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        let mut value = [0; 8];
        value.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
        self.config.write(offset.into(), u64::from_le_bytes(value), bytes.len());
        let write_through = self.config.write_through();
        for worker in self.workers.iter() {
            ask(worker, move |queue| queue.rings.set_write_through(write_through))?;
        }
        Ok(())
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, requested: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Inflight::create(requested, self.vrings.len() as u16)
    }

    fn set_inflight_fd(&mut self, described: &VhostUserInflight, file: File) -> Result<()> {
        let inflight = Inflight::map(described, file, self.vrings.len() as u16)?;
        self.paused(|session| {
            session.inflight = Some(inflight);
            Ok(())
        })
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_SLOTS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<u64>> {
        let mut regions = self.regions.clone();
        regions.add(region, file)?;
        self.set_regions(regions).map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut regions = self.regions.clone();
        regions.remove(region.guest_phys_addr, region.user_addr, region.memory_size)?;
        self.set_regions(regions)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
