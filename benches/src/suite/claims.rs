//! The published claims of the suites that have some.

mod coalescing;
mod hyperv_analysis;
mod pvscsi_vs_lsi;

pub(super) use coalescing::claims as coalescing;
pub(super) use hyperv_analysis::claims as hyperv_analysis;
pub(super) use pvscsi_vs_lsi::claims as pvscsi_vs_lsi;
