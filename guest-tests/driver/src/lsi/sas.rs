//! The disks behind a SAS controller, found as Linux's `mptsas` finds them: phys first, then every device in turn.

use super::adapter::Lsi;
use super::message::{PageAddress, action};
use super::step::{Step, failed};
use crate::platform::Platform;
use crate::workload::Fault;

/// Types of extended pages.
const IO_UNIT: u8 = 0x10;
const DEVICE: u8 = 0x12;
const PHY: u8 = 0x13;
/// Forms of a device page's address.
const GET_NEXT: u32 = 0;
const HANDLE: u32 = 2 << 28;
const BEFORE_FIRST: u32 = 0xffff;
/// Device information: any kind of target.
const ANY_TARGET: u32 = 0x780;
/// Device flags: present and mapped.
const USABLE: u32 = 3;
/// IOCStatus: no such page, here the end of a list.
const INVALID_PAGE: u32 = 0x22 << 8;
/// A list longer than this does not end.
const MOST_DEVICES: u32 = 256;

impl Lsi {
    /// Look for disks; their targets, bit by bit, those from 32 on left out.
    ///
    /// # Errors
    /// [`Fault::BRING_UP`] with [`Step::Pages`] where pages do not agree, [`Fault::STATUS`] where one is missing,
    /// [`Fault::TIMEOUT`].
    pub fn scan<P: Platform>(&mut self, platform: &mut P) -> Result<u32, Fault> {
        self.page(platform, IO_UNIT, 1, 0)?;
        self.page(platform, IO_UNIT, 0, 0)?;
        let phys = self.page_word(0x0c) & 0xff;
        for phy in 0..phys {
            self.page(platform, IO_UNIT, 0, 0)?;
            let linked = self.page_word(16 + phy as usize * 16 + 8) & 0xffff;
            self.page(platform, PHY, 0, phy)?;
            let (owner, attached) = (self.page_word(0x08) & 0xffff, self.page_word(0x14) & 0xffff);
            self.page(platform, DEVICE, 0, HANDLE | owner)?;
            if attached != linked {
                return Err(failed(Step::Pages));
            }
            if attached != 0 {
                self.page(platform, DEVICE, 0, HANDLE | attached)?;
            }
        }
        let (mut handle, mut disks) = (BEFORE_FIRST, 0u32);
        for _ in 0..MOST_DEVICES {
            match self.page(platform, DEVICE, 0, GET_NEXT | handle) {
                Ok(()) => {}
                Err(fault) if fault.kind == Fault::STATUS && fault.status == INVALID_PAGE => {
                    return Ok(disks);
                }
                Err(fault) => return Err(fault),
            }
            handle = self.page_word(0x18) & 0xffff;
            let (target, info) = (self.page_word(0x18) >> 16 & 0xff, self.page_word(0x1c));
            let parent = self.page_word(0x14) & 0xffff;
            if info & ANY_TARGET != 0 && self.page_word(0x20) & USABLE == USABLE && parent != 0 {
                disks |= 1u32.checked_shl(target).unwrap_or(0);
            }
        }
        Err(failed(Step::Pages))
    }

    fn page<P: Platform>(
        &mut self,
        platform: &mut P,
        kind: u8,
        number: u8,
        address: u32,
    ) -> Result<(), Fault> {
        let page = PageAddress::extended(kind, number, address);
        self.read_page(platform, page, action::READ_CURRENT).map(|_| ())
    }
}
