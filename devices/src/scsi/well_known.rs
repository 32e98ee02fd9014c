//! The REPORT LUNS well known logical unit (SPC-4, 8.2), for adapters that can address it.

use super::bus::{Bus, lun_list};
use super::cdb::Command;
use super::data::data_in;
use super::inquiry;
use super::opcodes::Supported;
use super::sense::{Key, Sense, asc};
use super::task::{Address, Task, TaskEnd};

/// Peripheral qualifier 0, device type 1Eh.
const WELL_KNOWN: u8 = 0x1e;

impl Bus {
    /// The answer of the REPORT LUNS well known logical unit of all targets. Its own entry is `own`; `lun` encodes
    /// those of the units.
    pub fn report_luns_unit(
        &self,
        task: &Task<'_>,
        own: [u8; 8],
        lun: impl Fn(Address) -> [u8; 8],
    ) -> TaskEnd {
        let end = Command::parse(task.cdb, Supported::WITHOUT_DISCARDS).and_then(|command| match command {
            Command::TestUnitReady => Ok(TaskEnd::good(0, 0)),
            Command::Inquiry { page, alloc } => {
                inquiry::without_disk(WELL_KNOWN, page).map(|data| data_in(task, &data, alloc))
            }
            Command::RequestSense { descriptor, alloc } => {
                let sense = Sense::new(Key::NoSense, asc::NONE).encode(descriptor);
                Ok(data_in(task, sense.as_slice(), alloc))
            }
            Command::ReportLuns { select, alloc } => {
                let (units, well_known) = match select {
                    0 => (true, false),
                    1 => (false, true),
                    2 => (true, true),
                    _ => return Err(Sense::cdb(2)),
                };
                let mut addresses: Vec<_> = self.addresses().filter(|_| units).collect();
                addresses.sort_unstable();
                let mut luns: Vec<_> = well_known.then_some(own).into_iter().collect();
                luns.extend(addresses.into_iter().map(lun));
                Ok(data_in(task, &lun_list(luns.into_iter()), alloc))
            }
            _ => Err(Sense::illegal(asc::INVALID_OPERATION_CODE)),
        });
        end.unwrap_or_else(TaskEnd::check)
    }
}
