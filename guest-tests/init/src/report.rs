//! What the guest prints: one JSON document a line, a disk each, then what the kernel complained of. Before each run of fio, a line
//! says so.

use serde::{Deserialize, Serialize};
use serde_json::Deserializer;

use crate::cunit::Tested;

/// One line of the guest's console that is for the test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// All disks are there, and may grow.
    Growing,
    /// All disks are to be stalled, and a line typed then.
    Stalling,
    /// This is to be changed while fio runs, and a line typed then.
    Changing(Change),
    /// fio is about to run on the disk of this name.
    Fio(String),
    /// A disk.
    Disk(Box<Disk>),
    /// The end.
    Done(Done),
}

impl Line {
    /// Those in what the guest's console printed. The kernel may have printed something behind one.
    pub fn all(console: &str) -> impl Iterator<Item = Self> {
        console.lines().filter_map(|line| Deserializer::from_str(line.trim()).into_iter().next()?.ok())
    }
}

/// A disk as the guest's kernel sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Name of the block device: `sda`.
    pub name: String,
    /// Driver of the adapter: `vmw_pvscsi`, `mptspi`, `virtio_blk`.
    pub driver: String,
    /// Name of the device above the block device: `0:0:1:0` for SCSI, `virtio3`.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub logical_sector: u64,
    /// Bytes of a physical sector.
    pub physical_sector: u64,
    /// Of SCSI's INQUIRY data.
    pub vendor: String,
    /// Of SCSI's INQUIRY data.
    pub model: String,
    /// SCSI's VPD page 80h or virtio-blk's identification.
    pub serial: String,
    /// Whether it spins.
    pub rotational: bool,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Whether it has a volatile write cache, so that flushes reach it.
    pub write_back: bool,
    /// Most bytes in one discard; 0: no discards.
    pub discard_max: u64,
    /// Most bytes in one command that writes zeros; 0: the kernel writes them itself.
    pub write_zeroes_max: u64,
    /// Queues that the kernel uses.
    pub queues: usize,
    /// What became of the verification, where the job asked for one.
    pub checked: Option<Checked>,
    /// What fio did, each time that the job has it run.
    pub fio: Vec<FioDone>,
    /// CRC-32C of the whole disk after fio verified it.
    pub after_fio: Option<u32>,
    /// The tests of libiscsi's suite, where the job has it run.
    #[serde(default)]
    pub libiscsi: Vec<Tested>,
    /// The resets that the job asked for.
    #[serde(default)]
    pub resets: Vec<ResetDone>,
    /// Why the verification, fio or libiscsi's suite ended early.
    pub error: Option<String>,
}

/// The verification went through the whole [`Plan`](crate::Plan), and every comparison held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// CRC-32C of the whole disk before.
    pub before: u32,
    /// CRC-32C of the whole disk after.
    pub after: u32,
    /// Writes done; 0 on a disk that can only be read.
    pub writes: usize,
    /// Whether the plan's discards read as zeros after; none without discards.
    pub discarded_zero: Option<bool>,
    /// Random reads of the workload.
    pub reads: u32,
    /// Time that they took, in microseconds.
    pub reads_us: u64,
}

/// fio ended without an error, and found all that it wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FioDone {
    /// Reads, those that compare among them.
    pub reads: u64,
    /// Writes and discards.
    pub writes: u64,
    /// Bytes read, written and discarded.
    pub bytes: u64,
    /// Reads, writes and discards a second.
    pub iops: f64,
    /// Mean time of a request from its submission to its completion, in microseconds.
    #[serde(default)]
    pub latency: f64,
    /// Interrupts of devices meanwhile, where they were counted.
    #[serde(default)]
    pub interrupts: Option<u64>,
}

/// What the host changes for a job with [`changes`](crate::Job::changes), in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Each adapter of SCSI disks gets one more.
    Attach,
    /// Those disks go.
    Detach,
    /// The other disks become larger.
    Resize,
    /// The moderation of interrupts is switched a few times.
    Coalescing,
}

/// What the guest resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// A disk.
    Device,
    /// All disks of a bus.
    Bus,
    /// The adapter.
    Host,
}

/// A reset that the guest asked its driver for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetDone {
    /// Of what.
    pub what: Reset,
    /// Requests that the disk had in flight just before.
    pub in_flight: u32,
    /// Why it failed.
    pub error: Option<String>,
}

/// A range of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where.
    pub offset: u64,
    /// How much.
    pub len: u64,
}

impl Extent {
    /// Its part of a whole disk's content.
    ///
    /// # Panics
    /// It does not lie inside.
    pub fn part(self, content: &mut [u8]) -> &mut [u8] {
        &mut content[self.offset as usize..][..self.len as usize]
    }
}

/// The end of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Disks reported.
    pub disks: usize,
    /// Why the job could not be done.
    pub error: Option<String>,
    /// Records of the kernel's log of the severity of a warning or worse, `LEVEL: text`.
    pub log: Vec<String>,
    /// Channels of a VMBus that are open, by device and number.
    #[serde(default)]
    pub channels: Vec<Channel>,
    /// Interrupts of each request queue of a virtio device that has one of its own.
    #[serde(default)]
    pub virtio_queues: Vec<u64>,
}

/// A channel of a VMBus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Its number.
    pub number: u32,
    /// Signals of the guest's.
    pub signals: u64,
    /// Signals of the host's.
    pub interrupts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_among_those_of_the_kernel() {
        let console = "[    1.0] boot\r\n\r\n\"growing\"\r\n{\"fio\":\"sda\"}[    2.0] clocksource: late\r\n{\"fio\":\"sd\r\n";
        assert_eq!(Line::all(console).collect::<Vec<_>>(), [Line::Growing, Line::Fio("sda".to_owned())]);
    }
}
