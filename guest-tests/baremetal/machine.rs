//! The machine as the driver sees it, at CPL 3: everything is mapped at its own address.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::Ordering;

use guest_driver::ide::spec::{CLASS, COMPATIBILITY_IRQS, COMPATIBILITY_PORTS, IDE, NATIVE};
use guest_driver::vmbus::spec::MSR_HYPERCALL;
use guest_driver::{DmaRegion, Platform};

use crate::abi::{FUNCTION, INTX_PIN};
use crate::entry::{self, DEVICE_VECTOR, INTERRUPTS};

const BAR0: u16 = 0x10;
const IO_APIC: u64 = 0xfec0_0000;
/// Where messages to the first processor go.
const MESSAGE_ADDRESS: u64 = 0xfee0_0000;

unsafe extern "C" {
    static end_of_image: u8;
}

/// One processor, one PCI function.
pub struct Machine {
    next_dma: u64,
    memory_end: u64,
    bars: [Space; 6],
    /// Where the hypervisor was told to put its code.
    hypercall_page: u64,
    timeout: u64,
}

/// Where a base address register is.
#[derive(Clone, Copy)]
enum Space {
    Memory(u64),
    Ports(u16),
}

impl Machine {
    /// A machine whose RAM ends at `memory_end`; the lines of its function arrive as the message does.
    pub fn new(memory_end: u64, timeout: u64) -> Self {
        // Edge-triggered: a line that stays high interrupts once, so the handler needs not know the device.
        // The pins of ISA interrupts have the interrupts' numbers.
        let [primary, secondary] = COMPATIBILITY_IRQS;
        for redirection in [INTX_PIN, primary, secondary].map(|pin| 0x10 + 2 * pin) {
            for (register, value) in [(redirection + 1, 0), (redirection, DEVICE_VECTOR)] {
                write(IO_APIC, register);
                write(IO_APIC + 0x10, value);
            }
        }
        let mut machine =
            Self { next_dma: (&raw const end_of_image) as u64, memory_end, bars: [Space::Memory(0); 6], hypercall_page: 0, timeout };
        machine.read_bars();
        machine
    }

    fn read_bars(&mut self) {
        let mut index = 0;
        while index < 6 {
            let low = self.config_read(BAR0 + 4 * index as u16);
            let wide = low & 7 == 4 && index < 5;
            let high = if wide { self.config_read(BAR0 + 4 * index as u16 + 4) } else { 0 };
            self.bars[index] = match low & 1 {
                0 => Space::Memory(u64::from(high) << 32 | u64::from(low & !0xf)),
                _ => Space::Ports(low as u16 & !3),
            };
            index += 1 + usize::from(wide);
        }
        let class = self.config_read(CLASS) >> 8;
        if class >> 8 == IDE && class & NATIVE == 0 {
            for (bar, port) in self.bars.iter_mut().zip(COMPATIBILITY_PORTS) {
                *bar = Space::Ports(port);
            }
        }
    }
}

/// Read a dword register at any address.
pub fn read(address: u64) -> u32 {
    // SAFETY: all addresses that this guest uses are mapped; a device's registers are no Rust memory.
    unsafe { (address as *const u32).read_volatile() }
}

/// Write a dword register at any address.
pub fn write(address: u64, value: u32) {
    // SAFETY: as in `read`.
    unsafe { (address as *mut u32).write_volatile(value) }
}

impl Platform for Machine {
    fn config_read(&mut self, offset: u16) -> u32 {
        read(FUNCTION + u64::from(offset))
    }

    fn config_write(&mut self, offset: u16, value: u32) {
        write(FUNCTION + u64::from(offset), value);
        if (BAR0..BAR0 + 24).contains(&offset) {
            self.read_bars();
        }
    }

    #[inline]
    fn read(&mut self, bar: u8, offset: u64, len: usize) -> u32 {
        let address = match self.bars[usize::from(bar)] {
            Space::Memory(base) => base + offset,
            Space::Ports(base) => return entry::port_read(base + offset as u16, len),
        };
        // SAFETY: as in `read`.
        unsafe {
            match len {
                1 => u32::from((address as *const u8).read_volatile()),
                2 => u32::from((address as *const u16).read_volatile()),
                _ => read(address),
            }
        }
    }

    #[inline]
    fn write(&mut self, bar: u8, offset: u64, len: usize, value: u32) {
        let address = match self.bars[usize::from(bar)] {
            Space::Memory(base) => base + offset,
            Space::Ports(base) => return entry::port_write(base + offset as u16, len, value),
        };
        // SAFETY: as in `read`.
        unsafe {
            match len {
                1 => (address as *mut u8).write_volatile(value as u8),
                2 => (address as *mut u16).write_volatile(value as u16),
                _ => write(address, value),
            }
        }
    }

    fn dma(&mut self, len: usize, align: usize) -> Option<DmaRegion> {
        let start = self.next_dma.checked_next_multiple_of(align.max(8) as u64)?;
        let end = start.checked_add(len as u64)?;
        if end > self.memory_end {
            return None;
        }
        self.next_dma = end;
        // SAFETY: RAM behind the image, zero at first, given away only once.
        Some(unsafe { DmaRegion::new(start as *mut u8, start, len) })
    }

    fn region(&mut self, address: u64, len: usize) -> Option<DmaRegion> {
        let end = address.checked_add(len as u64)?;
        if !address.is_multiple_of(8) || address < (&raw const end_of_image) as u64 || end > self.next_dma {
            return None;
        }
        // SAFETY: part of what `dma` has given away.
        Some(unsafe { DmaRegion::new(address as *mut u8, address, len) })
    }

    fn msi_message(&self) -> (u64, u32) {
        (MESSAGE_ADDRESS, DEVICE_VECTOR)
    }

    fn msr_write(&mut self, msr: u32, value: u64) {
        if msr == MSR_HYPERCALL {
            self.hypercall_page = value & !0xfff;
        }
        entry::write_msr(msr, value);
    }

    fn hypercall(&mut self, control: u64, input: u64, output: u64) -> u64 {
        entry::call_hypervisor(self.hypercall_page, control, input, output)
    }

    #[inline]
    fn interrupts(&self) -> u32 {
        INTERRUPTS.load(Ordering::Relaxed)
    }

    fn wait_interrupt(&mut self, seen: u32) {
        entry::wait(seen);
    }

    #[inline]
    fn ticks(&self) -> u64 {
        // SAFETY: x86-64 has the instruction, and CR4.TSD is clear.
        unsafe { _rdtsc() }
    }

    fn timeout_ticks(&self) -> u64 {
        self.timeout
    }
}
