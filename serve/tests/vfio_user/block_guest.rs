//! A guest with a driver of a virtio block device that has several queues. Its memory and its rings are those of the vhost-user tests;
//! registers, doorbells and interrupts go over vfio-user.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use paradisk_devices::virtio::spec::*;
use paradisk_serve::vfio_user::spec::{CONFIG_REGION, DMA_READ, DMA_WRITE, IRQ_MSIX, IrqSet};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::client::Client;
use crate::vhost_client::{AVAIL, Guest, Shape, USED};

/// The BAR with all registers, and the offset of the first doorbell in it.
const BAR: u32 = 0;
const NOTIFY: u64 = 0x3000;
/// Bytes from one queue's doorbell to the next.
const NOTIFY_STEP: u64 = 4;
/// Bytes of a queue's rings.
const RINGS_SIZE: usize = 0x1_0000;
/// Memory space and bus mastering, in the command register.
const COMMAND: (u64, u16) = (4, 6);
const MSIX_ENABLE: u16 = 1 << 15;
const TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

pub(crate) struct BlockGuest {
    pub(crate) client: Client,
    pub(crate) guest: Guest,
    /// By queue.
    pub(crate) doorbells: Vec<OwnedFd>,
    /// Of each queue, the eventfd of its MSI-X vector. Vector 0, of configuration changes, has none.
    vectors: Vec<OwnedFd>,
}

impl BlockGuest {
    /// Connect, share memory, and set interrupts. The device is not started.
    pub(crate) fn connect(socket: &Path, shape: Shape) -> Self {
        let mut client = Client::new(socket);
        let guest = Guest::new(shape);
        for region in guest.memory.iter() {
            let file = region.file_offset().unwrap();
            let (fd, flags) = (Some(file.file().as_fd()), DMA_READ | DMA_WRITE);
            client.map(region.start_addr().0, region.len(), file.start(), flags, fd).unwrap();
        }
        let queues = guest.shape.queues;
        let event = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let vectors: Vec<_> = (0..queues).map(event).collect();
        let (set, fds) = (IrqSet::DATA_EVENTFD | IrqSet::TRIGGER, vectors.iter().collect::<Vec<_>>());
        client.set_irqs(set, IRQ_MSIX, 1..u32::from(queues) + 1, &[], &fds).unwrap();
        let mut doorbells = client.io_fds(BAR);
        let doorbell = |queue: u16| {
            let offset = NOTIFY + NOTIFY_STEP * u64::from(queue);
            let found = doorbells.iter().position(|(place, _)| place.offset.get() == offset);
            doorbells.swap_remove(found.unwrap()).1
        };
        let doorbells = (0..queues).map(doorbell).collect();
        Self { client, guest, doorbells, vectors }
    }

    /// Start the device with empty rings, after power-on or a reset (VIRTIO 1.2, 3.1.1).
    pub(crate) fn start(&mut self) {
        let (command, value) = COMMAND;
        self.client.write(CONFIG_REGION, command, &value.to_le_bytes(), false).unwrap();
        let control = self.msix_control();
        self.client.write(CONFIG_REGION, control, &MSIX_ENABLE.to_le_bytes(), false).unwrap();
        let mut status = DeviceStatus::ACKNOWLEDGE;
        self.set(DEVICE_STATUS, 1, status.bits().into());
        status |= DeviceStatus::DRIVER;
        self.set(DEVICE_STATUS, 1, status.bits().into());
        let Shape { queues, event_index, indirect, .. } = self.guest.shape;
        let mut features = Features::VERSION_1;
        features.set(Features::RING_EVENT_IDX, event_index);
        features.set(Features::RING_INDIRECT_DESC, indirect);
        for half in [0, 1] {
            self.set(DRIVER_FEATURE_SELECT, 4, half);
            self.set(DRIVER_FEATURE, 4, features.bits() >> (32 * half) & u64::from(u32::MAX));
        }
        status |= DeviceStatus::FEATURES_OK;
        self.set(DEVICE_STATUS, 1, status.bits().into());
        assert_eq!(self.status(), status);
        (0..queues).for_each(|queue| self.start_queue(queue));
        status |= DeviceStatus::DRIVER_OK;
        self.set(DEVICE_STATUS, 1, status.bits().into());
        assert_eq!(self.status(), status);
        // What was signalled before the reset is not for this driver.
        for queue in 0..queues.into() {
            let _ = self.interrupted(queue);
        }
    }

    fn start_queue(&mut self, queue: u16) {
        let index = usize::from(queue);
        let [descriptors, available, used] = [0, AVAIL, USED].map(|offset| self.guest.at(index, offset));
        self.guest.memory.write_slice(&[0; RINGS_SIZE], descriptors).unwrap();
        let ring = &mut self.guest.rings[index];
        (ring.avail, ring.published, ring.used) = (0, 0, 0);
        self.set(QUEUE_SELECT, 2, queue.into());
        self.set(QUEUE_SIZE, 2, self.guest.shape.size.into());
        self.set(QUEUE_MSIX_VECTOR, 2, u64::from(queue) + 1);
        for (register, GuestAddress(address)) in
            [(QUEUE_DESC, descriptors), (QUEUE_DRIVER, available), (QUEUE_DEVICE, used)]
        {
            self.set(register, 8, address);
        }
        self.set(QUEUE_ENABLE, 2, 1);
    }

    /// The offset of the control register of MSI-X in configuration space.
    fn msix_control(&mut self) -> u64 {
        let mut at = self.client.read(CONFIG_REGION, 0x34, 1).unwrap()[0];
        loop {
            assert_ne!(at, 0, "no MSI-X");
            let header = self.client.read(CONFIG_REGION, at.into(), 2).unwrap();
            if header[0] == 0x11 {
                return u64::from(at) + 2;
            }
            at = header[1];
        }
    }

    /// Write a register.
    pub(crate) fn set(&mut self, register: u64, len: usize, value: u64) {
        self.client.write(BAR, register, &value.to_le_bytes()[..len], false).unwrap();
    }

    pub(crate) fn status(&mut self) -> DeviceStatus {
        DeviceStatus::from_bits_retain(self.client.read(BAR, DEVICE_STATUS, 1).unwrap()[0])
    }

    /// Make the added requests available, and ring the doorbell unless the device suppresses it.
    pub(crate) fn kick(&mut self, queue: usize) {
        self.guest.publish(queue);
        if self.guest.rings[queue].kick.read().is_ok() {
            rustix::io::write(&self.doorbells[queue], &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Whether the queue has signalled since the last call.
    pub(crate) fn interrupted(&self, queue: usize) -> bool {
        rustix::io::read(&self.vectors[queue], &mut [0; 8]).is_ok()
    }

    /// Wait for an interrupt of the queue.
    pub(crate) fn wait_interrupt(&self, queue: usize) {
        let mut fds = [PollFd::new(&self.vectors[queue], PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&TIMEOUT))).unwrap();
        assert!(ready == 1 && self.interrupted(queue), "no interrupt of queue {queue}");
    }

    /// Wait for `count` completions: slot and status of each. Only interrupts of the queue wake the wait.
    pub(crate) fn wait(&mut self, queue: usize, count: usize) -> Vec<(u16, u8)> {
        let (mut ended, begin) = (Vec::new(), Instant::now());
        loop {
            ended.extend(self.guest.take(queue));
            if ended.len() >= count {
                return ended;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{} of {count} ended", ended.len());
            if self.guest.ask(queue) {
                self.wait_interrupt(queue);
            }
        }
    }

    /// Make one request in slot 0, with no other in flight on the queue. Returns its status.
    pub(crate) fn run(&mut self, queue: usize, request_type: u32, sector: u64, len: u32) -> u8 {
        self.guest.add(queue, 0, request_type, sector, len);
        self.kick(queue);
        let ended = self.wait(queue, 1);
        assert_eq!((ended.len(), ended[0].0), (1, 0));
        ended[0].1
    }
}
