//! Published figures that the suites are compared with.
//!
//! - PVSCSI and LSI Logic: VMware, "PVSCSI Storage Performance" (performance study, ESX 4.0), and "High-performance PVSCSI storage
//!   adapter can reduce CPIO by 10-30%" (VMware performance blog, February 2010). 100% random read, 32 outstanding I/Os, 1 KiB to
//!   512 KiB, working set of 100 MB in the array's cache.
//! - Coalescing: Ahmad, Gulati and Mashtizadeh, "vIC: Interrupt Coalescing for Virtual Machine Storage Device IO" (USENIX ATC
//!   2011) for the thresholds; VMware's advice of 2010 (knowledge base 1017652) for the flaw of the first PVSCSI, which
//!   coalesced by outstanding I/Os alone.
//! - VHD performance: Yang and Voellm, "Virtual Hard Disk Performance: Windows Server 2008, Windows Server 2008 R2, Windows 7" (Microsoft,
//!   March 2010): loads, depths and targets. The order of performance is that of its table of storage containers, as quoted in J. Baker's
//!   note on the paper (Microsoft's archive of blogs). Dynamic VHDs of Windows Server 2008: T. Litton, "Hyper-V and VHD Performance -
//!   Dynamic vs. Fixed" (Windows Server performance team's blog, September 2008): 16 virtual machines.
//! - Creation: D. Van Hoof, "Lightning Fast Fixed VHDX File Creation Speed With ReFS on Windows Server 2016": fixed VHDX of 50 GB to 1 TB.
//! - Hyper-V's disks and adapters: the study "Hyper-V Storage Analysis"; only its statements are compared, not its figures.

/// Who published the comparison of adapters, for readers.
pub(super) const SOURCE: &str =
    "VMware, PVSCSI Storage Performance (ESX 4.0) and performance blog, February 2010";

/// Throughput of PVSCSI over LSI Logic's, by block size in bytes.
pub(super) const THROUGHPUT: [(u32, f64); 3] = [(1 << 10, 1.18), (2 << 10, 1.13), (4 << 10, 1.07)];

/// A range of PVSCSI's CPU cycles for each I/O over LSI Logic's.
pub(super) struct Cpio {
    pub(super) storage: &'static str,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// 10-30% lower on Fibre Channel, 1-25% on software iSCSI.
pub(super) const CPIO: [Cpio; 2] = [
    Cpio { storage: "Fibre Channel", low: 0.70, high: 0.90 },
    Cpio { storage: "software iSCSI", low: 0.75, high: 0.99 },
];

/// Who published the flaw of coalescing by outstanding I/Os alone.
pub(super) const FLAW_SOURCE: &str = "VMware's advice on the first PVSCSI, 2010";
/// With fewer completions per second, coalescing adds latency and saves little.
pub(super) const SLOW_IOPS: f64 = 2000.0;

/// Who published the study of VHD performance.
pub(super) const VHD_SOURCE: &str = "Yang and Voellm, Virtual Hard Disk Performance (Microsoft, March 2010)";
/// Its order of performance; peaks as figures are not on record here.
pub(super) const VHD_ORDER: &str = "a pass-through disk is the fastest, a fixed VHD the fastest of all VHD types, then come dynamic and differencing ones \
                                    (the order alone: its peaks are charts)";

/// Who published the figures of Windows Server 2008's dynamic VHDs.
pub(super) const DYNAMIC_SOURCE: &str =
    "T. Litton, Hyper-V and VHD Performance: Dynamic vs. Fixed (Microsoft, September 2008)";
/// Throughput of a fixed VHD over a dynamic one's on Windows Server 2008, in most scenarios: "roughly 10% to 15%" more. With writes of
/// 4K the difference was larger.
pub(super) const FIXED_OVER_DYNAMIC: [f64; 2] = [1.10, 1.15];

/// A published time of creating a fixed disk.
pub(super) struct Creation {
    pub(super) format: &'static str,
    pub(super) size: u64,
    pub(super) storage: &'static str,
    /// "Just over" this many.
    pub(super) seconds: f64,
}

/// Accelerated creation: by the file system's metadata, or offloaded to the storage array.
pub(super) const CREATION: [Creation; 2] = [
    Creation { format: "vhdx", size: 1 << 40, storage: "ReFS", seconds: 1.0 },
    Creation { format: "vhdx", size: 1 << 40, storage: "NTFS, ODX", seconds: 5.0 },
];
/// "Just over" a time of [`CREATION`] means up to this share more.
pub(super) const JUST_OVER: f64 = 0.10;
/// Source of [`CREATION`], in short.
pub(super) const CREATION_AUTHOR: &str = "D. Van Hoof, fixed VHDX files on Windows Server 2016";
/// Who published them.
pub(super) const CREATION_SOURCE: &str = "D. Van Hoof, fixed VHDX files on Windows Server 2016: just over 1 s on ReFS for any size from 50 GB to 1 TB; \
                                          1 TB on NTFS with an array that offloads zeroing (ODX) just over 5 s";

/// Who published the comparison of Hyper-V's disks and adapters.
pub(super) const HYPERV_SOURCE: &str = "Hyper-V Storage Analysis";
/// Note on rows of IDE, in every suite.
pub(super) const IDE_NOTE: &str = "ide: one access in flight whatever the depth, as a channel has no more.";
/// The study's statements on emulated IDE, and on a VHD that the host mounts.
pub(super) const IDE_STATEMENT: &str = "emulated IDE is never a good choice";
/// See [`IDE_STATEMENT`].
pub(super) const LOOPBACK_STATEMENT: &str = "loopback within 1% of bare";

/// I/Os outstanding from which interrupts are coalesced.
pub(super) const MANY_OUTSTANDING: u32 = 4;
