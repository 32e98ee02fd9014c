//! The PCI root: bus 0 with single-function devices, configuration mechanism 1 and ECAM (PCI Express Base 5.0,
//! section 7.2), base address registers, and doorbells as ioeventfds.
#![expect(
    clippy::disallowed_types,
    reason = "an access that gets here has left the guest: microseconds already"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paradisk_devices::{Access, Bar, BarKind, FastRegisters, FastWrite, PciDevice, Time};

use crate::error::Error;
use crate::host_bridge;
use crate::io_thread::bus_device::DeviceHandle;
use crate::io_thread::shared::{Notification, Served};
use crate::layout::{CONFIG_ADDRESS, CONFIG_DATA, PCI_IO, PCI_MEMORY, intx_gsi};
use crate::mailbox::DeviceGone;
use crate::memory::Vm;
use crate::posted::{PostedWrites, ZoneId};

/// Slots on bus 0; the host bridge has the first.
const SLOTS: usize = 32;
const CONFIG_ENABLE: u32 = 1 << 31;
const COMMAND: u16 = 0x04;
const COMMAND_IO_AND_MEMORY: u8 = 0b11;
const BAR0: u16 = 0x10;
const INTERRUPT_LINE: u16 = 0x3c;

/// The PCI root of a machine.
pub struct PciRoot {
    vm: Arc<Vm>,
    posted: Option<Arc<PostedWrites>>,
    address: AtomicU32,
    slots: Mutex<Vec<Slot>>,
}

struct Slot {
    device: Arc<Endpoint>,
    bars: Vec<Bar>,
    posted: Option<ZoneId>,
}

/// The type of devices in calls.
type Device = dyn PciDevice;

/// A device, with the registers that do not need its thread.
struct Endpoint {
    reach: DeviceHandle<Device>,
    fast: Option<Arc<dyn FastRegisters>>,
    /// Locked during a write to configuration space, so that changes by two processors are applied in the device's order.
    configuration: Mutex<()>,
}

impl Endpoint {
    fn new(reach: DeviceHandle<Device>, fast: Option<Arc<dyn FastRegisters>>) -> Self {
        Self { reach, fast, configuration: Mutex::default() }
    }

    /// Whether a string instruction is split into single accesses: fast registers and doorbells have no string
    /// accesses.
    fn splits_strings(&self) -> bool {
        self.fast.is_some() || !self.reach.doorbells.is_empty()
    }
}

/// A register in a device's space.
#[derive(Clone)]
struct Target {
    device: Arc<Endpoint>,
    bar: u8,
    offset: u64,
}

impl PciRoot {
    pub(crate) fn new(vm: Arc<Vm>, posted: Option<Arc<PostedWrites>>) -> Self {
        Self { vm, posted, address: AtomicU32::new(0), slots: Mutex::default() }
    }

    /// Process posted writes before the access that caused the exit.
    #[inline]
    pub(crate) fn take_posted(&self) {
        if let Some(posted) = &self.posted {
            posted.take_on_exit();
        }
    }

    /// The slot of the next device.
    pub(crate) fn next_slot(&self) -> Result<u8, Error> {
        let number = self.lock().len() + 1;
        if number >= SLOTS { Err(Error::NoSlot(number)) } else { Ok(number as u8) }
    }

    /// Check that the fixed ports of a new function are free.
    pub(crate) fn check_fixed_ports(&self, slot: u8, bars: &[Bar]) -> Result<(), Error> {
        let has_fixed = |bars: &[Bar]| bars.iter().any(|bar| bar.kind == BarKind::FixedIo);
        let taken = self.lock().iter().position(|other| has_fixed(&other.bars));
        match taken {
            Some(index) if has_fixed(bars) => Err(Error::FixedPorts { slot, taken: index as u8 + 1 }),
            _ => Ok(()),
        }
    }

    /// Add a device with its posted writes. Its doorbells work once its memory is decoded.
    pub(crate) fn add(&self, reach: DeviceHandle<Device>, posted: Option<ZoneId>) -> Result<(), DeviceGone> {
        let (bars, fast) = reach.mailbox.call(|device, _| (device.bars(), device.fast_registers()))?;
        let mut slot = Slot { device: Arc::new(Endpoint::new(reach, fast)), bars: Vec::new(), posted };
        slot.moved(&self.vm, self.posted.as_deref(), bars);
        self.lock().push(slot);
        Ok(())
    }

    /// Assign addresses to all base address registers and interrupt lines to all devices, as firmware does, and enable
    /// decoding of memory and I/O. The driver enables bus mastering.
    pub(crate) fn assign(&self) -> Result<(), Error> {
        let (mut memory, mut io) = (PCI_MEMORY.start, PCI_IO.start);
        for (slot, number) in self.lock().iter_mut().zip(1_u8..) {
            let gone = |DeviceGone| Error::DeviceGone(number);
            let mut writes = vec![(INTERRUPT_LINE, vec![intx_gsi(number) as u8])];
            let bars = slot.device.reach.mailbox.call(|device, _| device.bars()).map_err(gone)?;
            for bar in bars.into_iter().filter(|bar| bar.kind != BarKind::FixedIo) {
                let (next, end) = if bar.kind == BarKind::Io {
                    (&mut io, PCI_IO.end)
                } else {
                    (&mut memory, PCI_MEMORY.end)
                };
                let address = place(next, end, bar.size).ok_or(Error::NoRoom {
                    slot: number,
                    bar: bar.index,
                    size: bar.size,
                })?;
                let register = BAR0 + 4 * u16::from(bar.index);
                writes.push((register, (address as u32).to_le_bytes().to_vec()));
                if bar.kind == BarKind::Memory64 {
                    writes.push((register + 4, ((address >> 32) as u32).to_le_bytes().to_vec()));
                }
            }
            let bars = slot.device.reach.mailbox.call(move |device, _| {
                for (offset, data) in writes {
                    device.config_write(offset, &data);
                }
                let mut command = [0; 2];
                device.config_read(COMMAND, &mut command);
                device.config_write(COMMAND, &[command[0] | COMMAND_IO_AND_MEMORY, command[1]]);
                device.bars()
            });
            slot.moved(&self.vm, self.posted.as_deref(), bars.map_err(gone)?);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read configuration space through a window: bits 20 and above bus, 15 to 19 slot, 12 to 14 function.
    pub(crate) fn ecam_read(&self, offset: u64, data: &mut [u8]) {
        for (at, part) in aligned_parts(offset, data.len()) {
            let Some(piece) = data.get_mut(part) else { return };
            self.config_read(at, piece);
        }
    }

    pub(crate) fn ecam_write(&self, offset: u64, data: &[u8]) {
        for (at, part) in aligned_parts(offset, data.len()) {
            let Some(piece) = data.get(part) else { return };
            self.config_write(at, piece);
        }
    }

    pub(crate) fn mechanism1_read(&self, port: u16, data: &mut [u8]) {
        if port == CONFIG_ADDRESS && data.len() == 4 {
            data.copy_from_slice(&self.address.load(Ordering::Relaxed).to_le_bytes());
            return;
        }
        match self.mechanism1_offset(port, data.len()) {
            Some(offset) => self.ecam_read(offset, data),
            None => data.fill(0xff),
        }
    }

    pub(crate) fn mechanism1_write(&self, port: u16, data: &[u8]) {
        if port == CONFIG_ADDRESS {
            // A smaller write to this port is for another register, which does not exist here.
            if let Ok(bytes) = data.try_into() {
                self.address.store(u32::from_le_bytes(bytes), Ordering::Relaxed);
            }
        } else if let Some(offset) = self.mechanism1_offset(port, data.len()) {
            self.ecam_write(offset, data);
        }
    }

    /// The window offset of a data port access: mechanism 1 has 256 registers, ECAM 4,096.
    fn mechanism1_offset(&self, port: u16, len: usize) -> Option<u64> {
        let address = self.address.load(Ordering::Relaxed);
        let byte = port.checked_sub(CONFIG_DATA)?;
        if address & CONFIG_ENABLE == 0 || usize::from(byte) + len > 4 {
            return None;
        }
        let function = u64::from((address >> 8) & 0xffff);
        Some((function << 12) + u64::from(address & 0xfc) + u64::from(byte))
    }

    fn config_read(&self, at: u64, data: &mut [u8]) {
        let offset = (at & 0xfff) as u16;
        if at >> 12 == 0 {
            let dword = host_bridge::config_dword(offset).to_le_bytes();
            for (byte, from) in data.iter_mut().zip(dword.iter().skip(usize::from(offset % 4))) {
                *byte = *from;
            }
            return;
        }
        let mailbox =
            device_at(at).and_then(|index| Some(self.lock().get(index)?.device.reach.mailbox.clone()));
        let len = data.len().min(4);
        let answer = mailbox.and_then(|mailbox| {
            let read = move |device: &mut Device, _: Time| {
                let mut bytes = [0; 4];
                device.config_read(offset, &mut bytes[..len]);
                bytes
            };
            mailbox.call(read).ok()
        });
        fill(data, answer.as_ref().map(<[u8; 4]>::as_slice));
    }

    fn config_write(&self, at: u64, data: &[u8]) {
        let offset = (at & 0xfff) as u16;
        let data = data.to_vec();
        let Some(index) = device_at(at) else { return };
        let Some(device) = self.lock().get(index).map(|slot| Arc::clone(&slot.device)) else { return };
        let _ordered = device.configuration.lock().unwrap_or_else(PoisonError::into_inner);
        // The device may wait for its disk. Meanwhile the other devices are reachable: the slots are not locked.
        let bars = device.reach.mailbox.call(move |device, _| {
            device.config_write(offset, &data);
            device.bars()
        });
        if let Some(slot) = self.lock().get_mut(index) {
            slot.moved(&self.vm, self.posted.as_deref(), bars.unwrap_or_default());
        }
    }

    pub(crate) fn memory_read(&self, address: u64, data: &mut [u8]) {
        self.read(self.target(false, address, data.len()), data);
    }

    pub(crate) fn memory_write(&self, address: u64, data: &[u8]) {
        write(self.target(false, address, data.len()), data);
    }

    pub(crate) fn io_read(&self, port: u16, data: &mut [u8]) {
        self.read(self.target(true, port.into(), data.len()), data);
    }

    pub(crate) fn io_write(&self, port: u16, data: &[u8]) {
        write(self.target(true, port.into(), data.len()), data);
    }

    /// All reads of a string instruction from a port, in one call.
    pub(crate) fn io_read_string(&self, port: u16, width: usize, data: &mut [u8]) {
        let target = self.target(true, port.into(), width);
        if target.as_ref().is_some_and(|target| target.device.splits_strings()) {
            return data.chunks_mut(width).for_each(|data| self.read(target.clone(), data));
        }
        let len = data.len();
        let answer = target.and_then(|Target { device, bar, offset }| {
            let read = move |device: &mut Device, now: Time| {
                let mut bytes = vec![0; len];
                device.port_read_string(bar, offset, width, &mut bytes, now);
                bytes
            };
            let here = device.reach.shared.access_registers(bar, offset, Access::Read, read);
            here.or_else(|| device.reach.mailbox.call(read).ok())
        });
        fill(data, answer.as_deref());
    }

    /// All writes of a string instruction to a port, in one call.
    pub(crate) fn io_write_string(&self, port: u16, width: usize, data: &[u8]) {
        let Some(target) = self.target(true, port.into(), width) else { return };
        if target.device.splits_strings() {
            return data.chunks(width).for_each(|data| write(Some(target.clone()), data));
        }
        let Target { device, bar, offset } = target;
        let write = |device: &mut Device, now: Time| device.port_write_string(bar, offset, width, data, now);
        if device.reach.shared.access_registers(bar, offset, Access::Write, write).is_some() {
            return;
        }
        let data = data.to_vec();
        // A device that has ended takes no writes; its end was reported.
        let _ = device
            .reach
            .mailbox
            .call(move |device, now| device.port_write_string(bar, offset, width, &data, now));
    }

    /// The register at an address.
    fn target(&self, io: bool, address: u64, len: usize) -> Option<Target> {
        let slots = self.lock();
        slots.iter().find_map(|slot| {
            let (bar, offset) = slot.bars.iter().find_map(|bar| {
                let offset = address.checked_sub(bar.address?)?;
                let inside = offset < bar.size && bar.size - offset >= len as u64;
                (inside && bar.kind.is_io() == io).then_some((bar.index, offset))
            })?;
            Some(Target { device: Arc::clone(&slot.device), bar, offset })
        })
    }

    #[expect(clippy::unused_self, reason = "beside its siblings")]
    fn read(&self, target: Option<Target>, data: &mut [u8]) {
        let len = data.len().min(8);
        if let Some(Target { device, bar, offset }) = &target
            && let Some(fast) = &device.fast
            && fast.read(*bar, *offset, data)
        {
            return;
        }
        let answer = target.and_then(|Target { device, bar, offset }| {
            let read = move |device: &mut Device, now: Time| {
                let mut bytes = [0; 8];
                device.bar_read(bar, offset, &mut bytes[..len], now);
                bytes
            };
            let here = device.reach.shared.access_registers(bar, offset, Access::Read, read);
            here.or_else(|| device.reach.mailbox.call(read).ok())
        });
        fill(data, answer.as_ref().map(<[u8; 8]>::as_slice));
    }
}

fn write(target: Option<Target>, data: &[u8]) {
    let Some(Target { device, bar, offset }) = target else { return };
    match device.fast.as_ref().map_or(FastWrite::Forward, |fast| fast.write(bar, offset, data)) {
        FastWrite::Forward => {}
        FastWrite::Taken => return,
        FastWrite::Wake { .. } => {
            if device.reach.shared.serve(Notification::FastRegisters) != Served::Done {
                device.reach.mailbox.nudge();
            }
            return;
        }
    }
    if let Some(index) = device.reach.doorbells.find(bar, offset, data.len()) {
        return device.reach.ring(index);
    }
    let write = |device: &mut Device, now: Time| device.bar_write(bar, offset, data, now);
    if device.reach.shared.access_registers(bar, offset, Access::Write, write).is_some() {
        return;
    }
    let data = data.to_vec();
    // A device that has ended takes no writes; its end was reported.
    let _ = device.reach.mailbox.call(move |device, now| device.bar_write(bar, offset, &data, now));
}

/// The data of a read; all ones if no device answers.
fn fill(data: &mut [u8], answer: Option<&[u8]>) {
    data.fill(0xff);
    for (byte, from) in data.iter_mut().zip(answer.unwrap_or_default()) {
        *byte = *from;
    }
}

/// Index of the device at a window offset: bus 0, function 0, slot 1 and above.
fn device_at(at: u64) -> Option<usize> {
    let function = at >> 12;
    let slot = (function >> 3) as usize;
    if function & 7 != 0 || slot >= SLOTS { None } else { slot.checked_sub(1) }
}

/// Split an access into naturally aligned ones of at most four bytes.
fn aligned_parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let size =
            [4, 2, 1].into_iter().find(|size| len - done >= *size && at.is_multiple_of(*size as u64))?;
        let part = done..done + size;
        done += size;
        Some((at, part))
    })
}

/// Next naturally aligned address of `size` bytes before `end`.
fn place(next: &mut u64, end: u64, size: u64) -> Option<u64> {
    let address = next.checked_next_multiple_of(size)?;
    let after = address.checked_add(size)?;
    if after > end {
        return None;
    }
    *next = after;
    Some(address)
}

impl Slot {
    /// The guest may have moved the base address registers: update ioeventfds and posted writes.
    fn moved(&mut self, vm: &Arc<Vm>, posted: Option<&PostedWrites>, bars: Vec<Bar>) {
        if bars == self.bars {
            return;
        }
        self.bars = bars;
        if let (Some(posted), Some(zone)) = (posted, self.posted) {
            posted.moved(zone, &self.bars);
        }
        self.device.reach.doorbells.moved(vm, &self.bars);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_cut_into_aligned_ones() {
        let cut = |offset, len| aligned_parts(offset, len).collect::<Vec<_>>();
        assert_eq!(cut(0x10, 4), [(0x10, 0..4)]);
        assert_eq!(cut(0x10, 8), [(0x10, 0..4), (0x14, 4..8)]);
        assert_eq!(cut(0x11, 4), [(0x11, 0..1), (0x12, 1..3), (0x14, 3..4)]);
        assert_eq!(cut(0x13, 1), [(0x13, 0..1)]);
        assert_eq!(cut(0, 0), []);
    }

    #[test]
    fn functions_are_found_by_address() {
        assert_eq!(device_at(1 << 15), Some(0));
        assert_eq!(device_at(31 << 15 | 0xfff), Some(30));
        assert_eq!(device_at(0), None);
        assert_eq!(device_at(1 << 15 | 1 << 12), None, "function 1");
        assert_eq!(device_at(1 << 20), None, "bus 1");
    }

    #[test]
    fn registers_are_placed_by_their_size() {
        let mut next = 0x1000;
        assert_eq!(place(&mut next, 0x10000, 0x4000), Some(0x4000));
        assert_eq!(place(&mut next, 0x10000, 0x1000), Some(0x8000));
        assert_eq!(place(&mut next, 0x10000, 0x8000), None);
        assert_eq!(place(&mut next, 0x10000, 0x4000), Some(0xc000));
    }
}
