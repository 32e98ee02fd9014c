//! The PCI root: bus 0 with single-function devices, configuration mechanism 1 and ECAM (PCI Express Base 5.0,
//! section 7.2), base address registers, and doorbells as ioeventfds.
//!
//! An access finds its register in a table, and is then made on the virtual CPU's thread under the device's lock, or by a message to the
//! device's I/O thread ([`AccessKind`](paradisk_devices::AccessKind)). Meanwhile no lock of another device is held: a
//! device that waits for its disk stops no other.
#![expect(
    clippy::disallowed_types,
    reason = "an access that gets here has left the guest, which costs microseconds: a lock adds little"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use paradisk_devices::{Bar, BarKind, PciDevice, Time};

use crate::error::Error;
use crate::io_thread::DeviceHandle;
use crate::io_thread::shared::Accessed;
use crate::layout::{CONFIG_ADDRESS, CONFIG_DATA, PCI_IO, PCI_MEMORY, intx_gsi};
use crate::mailbox::DeviceGone;
use crate::memory::Vm;

/// Slots on bus 0; the host bridge has the first.
const SLOTS: usize = 32;
/// Red Hat's identifiers for a virtual PCI Express host bridge.
const HOST_BRIDGE: u32 = 0x0008_1b36;
/// Class 06h bridge, subclass 00h host bridge.
const BRIDGE_CLASS: u32 = 0x0600_0000;
const CONFIG_ENABLE: u32 = 1 << 31;
const COMMAND: u16 = 0x04;
const COMMAND_IO_AND_MEMORY: u8 = 0b11;
const BAR0: u16 = 0x10;
const INTERRUPT_LINE: u16 = 0x3c;

/// The PCI root of a machine.
pub struct PciRoot {
    vm: Arc<Vm>,
    address: AtomicU32,
    /// By slot, from slot 1 on.
    functions: [OnceLock<Function>; SLOTS - 1],
    decoded: RwLock<Decoded>,
}

/// The type of devices in calls.
type Device = dyn PciDevice;

struct Function {
    handle: DeviceHandle<Device>,
    /// Locked during a write to configuration space, so that changes by two processors are applied in the device's order.
    bars: Mutex<Vec<Bar>>,
}

/// The address ranges that functions decode, in ascending order.
#[derive(Debug, Default)]
struct Decoded(Vec<Window>);

#[derive(Clone, Copy, Debug)]
struct Window {
    io: bool,
    start: u64,
    size: u64,
    /// Index of the function.
    function: usize,
    bar: u8,
}

/// A register in a device's space.
#[derive(Clone, Copy)]
struct Target<'a> {
    function: &'a Function,
    bar: u8,
    offset: u64,
}

impl Decoded {
    fn set(&mut self, function: usize, bars: &[Bar]) {
        self.0.retain(|window| window.function != function);
        self.0.extend(bars.iter().filter_map(|bar| {
            let start = bar.address?;
            Some(Window { io: bar.kind.is_io(), start, size: bar.size, function, bar: bar.index })
        }));
        self.0.sort_by_key(|window| (window.io, window.start));
    }

    /// The function, base address register and offset of an access. Where ranges overlap, the one that begins last decodes.
    fn find(&self, io: bool, address: u64, len: usize) -> Option<(usize, u8, u64)> {
        let end = self.0.partition_point(|window| (window.io, window.start) <= (io, address));
        self.0.get(..end)?.iter().rev().take_while(|window| window.io == io).find_map(|window| {
            let offset = address - window.start;
            let inside = offset < window.size && window.size - offset >= len as u64;
            inside.then_some((window.function, window.bar, offset))
        })
    }
}

impl PciRoot {
    pub(crate) fn new(vm: Arc<Vm>) -> Self {
        let functions = [const { OnceLock::new() }; SLOTS - 1];
        Self { vm, address: AtomicU32::new(0), functions, decoded: RwLock::default() }
    }

    fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().map_while(OnceLock::get)
    }

    /// The slot of the next device.
    pub(crate) fn next_slot(&self) -> Result<u8, Error> {
        let number = self.functions().count() + 1;
        if number >= SLOTS { Err(Error::NoSlot(number)) } else { Ok(number as u8) }
    }

    /// Check that the fixed ports of a new function are free.
    pub(crate) fn check_fixed_ports(&self, slot: u8, bars: &[Bar]) -> Result<(), Error> {
        let has_fixed = |bars: &[Bar]| bars.iter().any(|bar| bar.kind == BarKind::FixedIo);
        let taken = self.functions().position(|other| has_fixed(&lock(&other.bars)));
        match taken {
            Some(index) if has_fixed(bars) => Err(Error::FixedPorts { slot, taken: index as u8 + 1 }),
            _ => Ok(()),
        }
    }

    /// Add a device. Its doorbells work once its memory is decoded.
    pub(crate) fn add(&self, handle: DeviceHandle<Device>) -> Result<(), DeviceGone> {
        let bars = handle.mailbox.call(|device, _| device.bars())?;
        let index = self.functions().count();
        if let Some(place) = self.functions.get(index) {
            let function = place.get_or_init(|| Function { handle, bars: Mutex::default() });
            self.moved(index, function, &mut lock(&function.bars), bars);
        }
        Ok(())
    }

    /// Assign addresses to all base address registers and interrupt lines to all devices, as firmware does, and enable
    /// decoding of memory and I/O. The driver enables bus mastering.
    pub(crate) fn assign(&self) -> Result<(), Error> {
        let (mut memory, mut io) = (PCI_MEMORY.start, PCI_IO.start);
        for (function, number) in self.functions().zip(1_u8..) {
            let gone = |DeviceGone| Error::DeviceGone(number);
            let mut writes = vec![(INTERRUPT_LINE, vec![intx_gsi(number) as u8])];
            let bars = function.handle.mailbox.call(|device, _| device.bars()).map_err(gone)?;
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
            let bars = function.handle.mailbox.call(move |device, _| {
                for (offset, data) in writes {
                    device.config_write(offset, &data);
                }
                let mut command = [0; 2];
                device.config_read(COMMAND, &mut command);
                device.config_write(COMMAND, &[command[0] | COMMAND_IO_AND_MEMORY, command[1]]);
                device.bars()
            });
            let bars = bars.map_err(gone)?;
            self.moved(usize::from(number - 1), function, &mut lock(&function.bars), bars);
        }
        Ok(())
    }

    /// The guest may have moved the base address registers of a function: update the table and its ioeventfds.
    fn moved(&self, index: usize, function: &Function, before: &mut Vec<Bar>, bars: Vec<Bar>) {
        if *before != bars {
            self.decoded.write().unwrap_or_else(PoisonError::into_inner).set(index, &bars);
            function.handle.doorbells.moved(&self.vm, &bars);
            *before = bars;
        }
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
            let dword = host_bridge(offset).to_le_bytes();
            for (byte, from) in data.iter_mut().zip(dword.iter().skip(usize::from(offset % 4))) {
                *byte = *from;
            }
            return;
        }
        data.fill(0);
        let function = device_at(at).and_then(|index| self.functions.get(index)?.get());
        if function.is_none_or(|function| function.handle.shared.config_read(offset, data) == Accessed::No) {
            data.fill(0xff);
        }
    }

    fn config_write(&self, at: u64, data: &[u8]) {
        let offset = (at & 0xfff) as u16;
        let data = data.to_vec();
        let Some(index) = device_at(at) else { return };
        let Some(function) = self.functions.get(index).and_then(OnceLock::get) else { return };
        let mut before = lock(&function.bars);
        let bars = function.handle.mailbox.call(move |device, _| {
            device.config_write(offset, &data);
            device.bars()
        });
        self.moved(index, function, &mut before, bars.unwrap_or_default());
    }

    pub(crate) fn memory_read(&self, address: u64, data: &mut [u8]) {
        read(self.target(false, address, data.len()), data);
    }

    pub(crate) fn memory_write(&self, address: u64, data: &[u8]) {
        write(self.target(false, address, data.len()), data);
    }

    pub(crate) fn io_read(&self, port: u16, data: &mut [u8]) {
        read(self.target(true, port.into(), data.len()), data);
    }

    pub(crate) fn io_write(&self, port: u16, data: &[u8]) {
        write(self.target(true, port.into(), data.len()), data);
    }

    /// All reads of a string instruction from a port, in one call.
    pub(crate) fn io_read_string(&self, port: u16, width: usize, data: &mut [u8]) {
        let target = self.target(true, port.into(), width);
        read_by(target, data, move |device, bar, offset, data, now| {
            device.port_read_string(bar, offset, width, data, now);
        });
    }

    /// All writes of a string instruction to a port, in one call.
    pub(crate) fn io_write_string(&self, port: u16, width: usize, data: &[u8]) {
        let target = self.target(true, port.into(), width);
        if ring_doorbell(target, width) {
            return;
        }
        write_by(target, data, move |device, bar, offset, data, now| {
            device.port_write_string(bar, offset, width, data, now);
        });
    }

    /// The register at an address.
    fn target(&self, io: bool, address: u64, len: usize) -> Option<Target<'_>> {
        let decoded = self.decoded.read().unwrap_or_else(PoisonError::into_inner);
        let (index, bar, offset) = decoded.find(io, address, len)?;
        Some(Target { function: self.functions.get(index)?.get()?, bar, offset })
    }
}

fn lock(bars: &Mutex<Vec<Bar>>) -> std::sync::MutexGuard<'_, Vec<Bar>> {
    bars.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(target: Option<Target<'_>>, data: &mut [u8]) {
    read_by(target, data, |device, bar, offset, data, now| device.bar_read(bar, offset, data, now));
}

/// Read by a method of the device. All ones if no device answers.
#[inline]
fn read_by(
    target: Option<Target<'_>>,
    data: &mut [u8],
    read: impl FnOnce(&mut Device, u8, u64, &mut [u8], Time) + Copy + Send + 'static,
) {
    let Some(Target { function, bar, offset }) = target else { return data.fill(0xff) };
    data.fill(0);
    let access = |device: &mut Device, now| read(device, bar, offset, data, now);
    match function.handle.shared.access((bar, offset), None, access) {
        Accessed::Done(()) => {}
        Accessed::Wake(()) => function.handle.mailbox.nudge(),
        Accessed::No => {
            let len = data.len();
            let answer = function.handle.mailbox.call(move |device, now| {
                let mut bytes = vec![0; len];
                read(device, bar, offset, &mut bytes, now);
                bytes
            });
            match answer {
                Ok(bytes) => data.copy_from_slice(&bytes),
                Err(DeviceGone) => data.fill(0xff),
            }
        }
    }
}

fn write(target: Option<Target<'_>>, data: &[u8]) {
    if !ring_doorbell(target, data.len()) {
        write_by(target, data, |device, bar, offset, data, now| device.bar_write(bar, offset, data, now));
    }
}

/// Ring the doorbell that KVM has no ioeventfd for. False: there is none at this register.
fn ring_doorbell(target: Option<Target<'_>>, width: usize) -> bool {
    let Some(Target { function, bar, offset }) = target else { return false };
    let bell = function.handle.doorbells.find(bar, offset, width);
    bell.inspect(|index| function.handle.doorbells.ring(*index)).is_some()
}

/// Write by a method of the device. A device that has ended takes no writes; its end was reported.
#[inline]
fn write_by(
    target: Option<Target<'_>>,
    data: &[u8],
    write: impl FnOnce(&mut Device, u8, u64, &[u8], Time) + Copy + Send + 'static,
) {
    let Some(Target { function, bar, offset }) = target else { return };
    let access = |device: &mut Device, now| write(device, bar, offset, data, now);
    match function.handle.shared.access((bar, offset), Some(data), access) {
        Accessed::Done(()) => {}
        Accessed::Wake(()) => function.handle.mailbox.nudge(),
        Accessed::No => {
            let data = data.to_vec();
            let _ = function.handle.mailbox.call(move |device, now| write(device, bar, offset, &data, now));
        }
    }
}

/// The dword at a configuration space offset of the host bridge in slot 0, by which guests detect the bus (PCI Local Bus 3.0, section 6.1).
/// Nothing is writable.
const fn host_bridge(offset: u16) -> u32 {
    match offset & !3 {
        0x00 => HOST_BRIDGE,
        0x08 => BRIDGE_CLASS,
        _ => 0,
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

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::{Duration, Instant};

    use paradisk_devices::{AccessKind, Coalescing, Doorbell, IoDevice, Sleep, Stats};

    use super::*;
    use crate::capabilities::Host;
    use crate::io_thread::{IoThread, Options};
    use crate::memory;

    const SOON: Duration = Duration::from_secs(60);

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

    #[test]
    fn what_begins_last_decodes() {
        let bar = |index, kind, address, size| Bar { index, kind, size, address: Some(address) };
        let mut decoded = Decoded::default();
        decoded.set(1, &[bar(0, BarKind::Io, 0x100, 0x10), bar(1, BarKind::Memory32, 0x100, 0x1000)]);
        decoded.set(0, &[bar(2, BarKind::Memory64, 0x200, 0x100)]);
        assert_eq!(decoded.find(true, 0x10c, 4), Some((1, 0, 0xc)));
        assert_eq!(decoded.find(true, 0x10d, 4), None, "beyond the end");
        assert_eq!(decoded.find(false, 0xff, 1), None);
        assert_eq!(decoded.find(false, 0x1fc, 8), Some((1, 1, 0xfc)), "begins before the inner range");
        assert_eq!(decoded.find(false, 0x200, 8), Some((0, 2, 0)));
        assert_eq!(decoded.find(false, 0x300, 8), Some((1, 1, 0x200)));
        decoded.set(1, &[Bar { address: None, ..bar(0, BarKind::Io, 0, 0x10) }]);
        assert_eq!((decoded.find(true, 0x100, 4), decoded.find(false, 0x300, 8)), (None, None));
    }

    /// A function whose bus master waits for its disk when it is stopped.
    struct Stalled {
        begun: Sender<()>,
        completed: Receiver<()>,
        command: u8,
        bar: [u8; 4],
    }

    impl PciDevice for Stalled {
        fn config_read(&mut self, offset: u16, data: &mut [u8]) {
            data.fill(0);
            if let (COMMAND, Some(byte)) = (offset, data.first_mut()) {
                *byte = self.command;
            }
        }

        fn config_write(&mut self, offset: u16, data: &[u8]) {
            match (offset, data) {
                (COMMAND, [command, ..]) => {
                    if self.command & 4 != 0 && command & 4 == 0 {
                        self.begun.send(()).unwrap();
                        self.completed.recv().unwrap();
                    }
                    self.command = *command;
                }
                (BAR0, &[a, b, c, d]) => self.bar = [a & !0xf, b, c, d],
                _ => {}
            }
        }

        fn bars(&self) -> Vec<Bar> {
            let address = (self.command & 1 != 0).then_some(u32::from_le_bytes(self.bar).into());
            vec![Bar { index: 0, kind: BarKind::Io, size: 16, address }]
        }

        fn access_kind(&self, _: u8, offset: u64, _: Option<&[u8]>) -> AccessKind {
            if offset < 8 { AccessKind::Register } else { AccessKind::Command }
        }

        fn bar_read(&mut self, _: u8, _: u64, data: &mut [u8], _: Time) {
            data.fill(0x5a);
        }

        fn bar_write(&mut self, _: u8, _: u64, _: &[u8], _: Time) {}

        fn doorbells(&self) -> &[Doorbell] {
            &[]
        }
    }

    impl IoDevice for Stalled {
        fn on_doorbell(&mut self, _: usize, _: Time) {}

        fn completion_events(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }

        fn on_completions(&mut self, _: Time) {}

        fn before_sleep(&mut self, _: Time) -> Sleep {
            Sleep::Forever
        }

        fn reset(&mut self, _: Time) {}

        fn quiesce(&mut self, _: Time) {}

        fn set_coalescing(&mut self, _: Coalescing) {}

        fn stats(&self) -> Stats {
            Stats::default()
        }
    }

    /// A virtual CPU stops the bus master of one function over a disk that does not complete. Others access, move and configure another
    /// function meanwhile.
    #[test]
    fn a_stalled_function_stops_no_other() {
        let host = match Host::open() {
            Ok(host) => host,
            Err(error) => return println!("SKIP: a_stalled_function_stops_no_other: {error}"),
        };
        let vm = Vm::new(host.create_vm().unwrap(), memory::allocate(1 << 20).unwrap()).unwrap();
        let root = PciRoot::new(Arc::new(vm));
        let (begun, has_begun) = channel();
        let mut threads = Vec::new();
        let completed: Vec<Sender<()>> = (0..2)
            .map(|_| {
                let (complete, completed) = channel();
                let device: Box<Device> =
                    Box::new(Stalled { begun: begun.clone(), completed, command: 0, bar: [0; 4] });
                let (thread, handle) =
                    IoThread::start("io".to_owned(), device, Options::default(), Instant::now(), |_| ())
                        .unwrap();
                root.add(handle).unwrap();
                threads.push(thread);
                complete
            })
            .collect();
        root.assign().unwrap();
        let slot = |number: u64| number << 15;
        let [first, second] = [PCI_IO.start as u16, PCI_IO.start as u16 + 16];
        let command = u64::from(COMMAND);
        root.ecam_write(slot(1) + command, &[7, 0]);
        let read = |port: u16| {
            let mut data = [0];
            root.io_read(port, &mut data);
            data[0]
        };
        assert_eq!((read(first), read(second)), (0x5a, 0x5a));
        let configure = || {
            root.ecam_write(slot(2) + command, &[7, 0]);
            root.ecam_write(slot(2) + u64::from(BAR0), &u32::from(second).to_le_bytes());
        };
        let access = || {
            for _ in 0..200 {
                // The second is made by a message.
                assert_eq!((read(second), read(second + 8)), (0x5a, 0x5a));
                configure();
                let mut enabled = [0];
                root.ecam_read(slot(2) + command, &mut enabled);
                assert_eq!(enabled, [7]);
            }
        };
        thread::scope(|scope| {
            let stalled = scope.spawn(|| root.ecam_write(slot(1) + command, &[3, 0]));
            has_begun.recv_timeout(SOON).unwrap();
            let cpus: Vec<_> = (0..8).map(|_| scope.spawn(access)).collect();
            let begin = Instant::now();
            let all = || cpus.iter().all(thread::ScopedJoinHandle::is_finished);
            while !all() && begin.elapsed() < SOON {
                thread::sleep(Duration::from_millis(1));
            }
            let (others, first_waits) = (all(), !stalled.is_finished());
            completed[0].send(()).unwrap();
            assert!(others && first_waits, "virtual CPUs wait for a disk of another function");
        });
        assert_eq!(read(first), 0x5a);
    }
}
