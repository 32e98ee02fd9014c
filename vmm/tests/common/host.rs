//! KVM, where there is one.

use paradisk_vmm::Host;

/// KVM; `None`: there is none, and a line says so.
pub(crate) fn host() -> Option<Host> {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    Host::open().map_err(|error| println!("SKIP: {test}: {error}")).ok()
}
