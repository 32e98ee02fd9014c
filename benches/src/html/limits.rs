//! Limits of a document's environment.

use facts::host::{CyclesSource, Kvm};

use crate::result::Document;

/// With fewer processors, guest, device and load generator share them.
const FEW_CORES: usize = 4;
/// With fewer runs, intervals are wide: see [`crate::confidence`].
const FEW_RUNS: u32 = 5;

/// One sentence for each limit.
pub(super) fn of(document: &Document) -> Vec<String> {
    let host = &document.host;
    let engine = |name: &str| document.results.iter().any(|result| result.engine == name);
    let mut limits = Vec::new();
    if host.cycles_source == CyclesSource::Instructions {
        limits.push(
            "Instructions are counted in place of cycles. They are the length of a path: cache misses cost nothing, and an exit costs only the \
             instructions around it. IOPS compare lengths too, not times."
                .to_owned(),
        );
    }
    if engine("harness") {
        limits.push(
            "Rows of the harness have no virtual CPU: exits and interrupts cost nothing in them. They compare devices and disks, and cannot \
             tell which adapter is cheaper in a virtual machine."
                .to_owned(),
        );
    }
    if engine("kvm") && host.kvm == Kvm::Nested && host.cycles_source != CyclesSource::Instructions {
        limits.push(
            "KVM is nested: an exit costs many times what it costs on hardware. Adapters that exit often look too expensive; compare disks, \
             not adapters."
                .to_owned(),
        );
    }
    if !document.results.is_empty() && host.cores < FEW_CORES {
        limits.push(format!(
            "The host has {} processor(s), which guest, device and load share: throughput with several workers says little.",
            host.cores
        ));
    }
    let fewest = document.results.iter().map(|result| result.runs).min();
    if let Some(runs) = fewest.filter(|runs| *runs < FEW_RUNS) {
        limits.push(format!(
            "Rows have as few as {runs} run(s): intervals are wide, and many differences are not decided."
        ));
    }
    limits
}
