//! What a load is, and the adapters that several loads use.

use paradisk_devices::AdapterKind;

/// The adapters that `paradisk serve vfio-user` offers.
pub(crate) const SERVED: [AdapterKind; 7] = [
    AdapterKind::Pvscsi,
    AdapterKind::Lsi,
    AdapterKind::LsiSas,
    AdapterKind::BusLogic,
    AdapterKind::IdeNative,
    AdapterKind::VirtioBlk,
    AdapterKind::VirtioScsi,
];

/// Work that is repeated until the time is over. A panic is a failure.
pub(crate) trait Load {
    /// One cycle, after which its long-lived process is idle. The bytes that were verified.
    fn cycle(&mut self, number: u64) -> u64;

    /// The process that must not grow, if one lives on.
    fn process(&self) -> Option<u32> {
        None
    }

    /// What happened besides cycles: faults injected, resizes, and the like.
    fn events(&self) -> String {
        String::new()
    }
}
