//! The claims of each suite, and observations of suites without claims.

mod adapters;
mod chain;
mod coalescing;
mod creation;
mod hyperv_analysis;
mod pvscsi_vs_lsi;
mod vhd_workloads;

pub(super) use adapters::observations as adapters;
pub(super) use chain::claims as chain;
pub(super) use coalescing::claims as coalescing;
pub(super) use creation::claims as creation;
pub(super) use hyperv_analysis::claims as hyperv_analysis;
pub(super) use pvscsi_vs_lsi::claims as pvscsi_vs_lsi;
pub(super) use vhd_workloads::claims as vhd_workloads;

#[cfg(test)]
mod tests;
