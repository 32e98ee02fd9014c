//! The client can change the flags and the counter of each shared eventfd at any time, because it shares the open file
//! descriptions. No such change blocks the server.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use paradisk_devices::AdapterKind;
use paradisk_serve::vfio_user::spec::{CONFIG_REGION, IRQ_INTX, IRQ_MSIX, IrqSet};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::client::Client;
use crate::drivers::serve;
use crate::vmm::was_rung;
use crate::within::within;

const SET: IrqSet = IrqSet::DATA_EVENTFD.union(IrqSet::TRIGGER);
const TRIGGER: IrqSet = IrqSet::DATA_NONE.union(IrqSet::TRIGGER);

/// An eventfd to which writes block: its counter is full, and `O_NONBLOCK` is not set.
fn plugged() -> OwnedFd {
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    event
}

/// Clear `O_NONBLOCK`, which the server may have set.
fn unblock_nothing(event: &OwnedFd) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_setfl(event, fcntl_getfl(event).unwrap() - OFlags::NONBLOCK).unwrap();
}

#[test]
fn eventfds_that_cannot_be_written_block_nothing() {
    for index in [IRQ_MSIX, IRQ_INTX] {
        let served = serve(AdapterKind::VirtioBlk);
        let socket = served.socket.clone();
        let client = within("message", move || {
            let mut client = Client::new(&socket);
            let event = plugged();
            client.set_irqs(SET, index, 0..1, &[], &[&event]).unwrap();
            unblock_nothing(&event);
            client.set_irqs(TRIGGER, index, 0..1, &[], &[]).unwrap();
            assert_eq!(client.read(CONFIG_REGION, 0, 2).unwrap(), [0xf4, 0x1a]);
            // The vector works again once its full counter has been read.
            assert!(was_rung(&event));
            client.set_irqs(TRIGGER, index, 0..1, &[], &[]).unwrap();
            assert!(was_rung(&event));
            rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            client.set_irqs(TRIGGER, index, 0..1, &[], &[]).unwrap();
            (client, event)
        });
        within("stop", move || served.stop());
        drop(client);
    }
}

#[test]
fn an_unmask_event_that_blocks_is_not_read() {
    let served = serve(AdapterKind::Pvscsi);
    let socket = served.socket.clone();
    let client = within("message", move || {
        let mut client = Client::new(&socket);
        let (unmask, line) = (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), plugged());
        client.set_irqs(SET, IRQ_INTX, 0..1, &[], &[&line]).unwrap();
        client.set_irqs(IrqSet::DATA_EVENTFD | IrqSet::UNMASK, IRQ_INTX, 0..1, &[], &[&unmask]).unwrap();
        unblock_nothing(&unmask);
        for _ in 0..100 {
            rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
            assert!(was_rung(&unmask));
            assert_eq!(client.read(CONFIG_REGION, 0, 2).unwrap(), [0xad, 0x15]);
        }
        client
    });
    within("stop", move || served.stop());
    drop(client);
}

/// Doorbells are eventfds of the server that the client shares. The client reads them, so that a server that read them, too, would
/// block, and it fills them.
#[test]
fn doorbells_that_are_read_or_full_block_nothing() {
    for kind in [AdapterKind::Pvscsi, AdapterKind::VirtioBlk] {
        let served = serve(kind);
        let socket = served.socket.clone();
        let client = within("message", move || {
            let mut client = Client::new(&socket);
            let bells: Vec<OwnedFd> =
                (0..6).flat_map(|bar| client.io_fds(bar)).map(|(_, bell)| bell).collect();
            assert!(!bells.is_empty(), "{kind}: no doorbells");
            let id = client.read(CONFIG_REGION, 0, 2).unwrap();
            for round in 0..100u64 {
                for bell in &bells {
                    unblock_nothing(bell);
                    let value = if round % 2 == 0 { 1 } else { u64::MAX - 1 };
                    rustix::io::write(bell, &value.to_ne_bytes()).unwrap();
                    // The last time, it stays full.
                    assert!(round == 99 || was_rung(bell));
                }
                assert_eq!(client.read(CONFIG_REGION, 0, 2).unwrap(), id);
            }
            (client, bells)
        });
        within("stop", move || served.stop());
        drop(client);
    }
}

#[test]
fn what_is_no_eventfd_is_refused() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let (socket, mut other) = UnixStream::pair().unwrap();
    let socket = OwnedFd::from(socket);
    let (_reader, writer) = std::io::pipe().unwrap();
    let pipe = OwnedFd::from(writer);
    let good = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let unmask = IrqSet::DATA_EVENTFD | IrqSet::UNMASK;
    assert_eq!(client.set_irqs(SET, IRQ_INTX, 0..1, &[], &[&pipe]), Err(Errno::INVAL));
    assert_eq!(client.set_irqs(unmask, IRQ_INTX, 0..1, &[], &[&pipe]), Err(Errno::INVAL));
    for wrong in [SET, unmask] {
        assert_eq!(client.set_irqs(wrong, IRQ_INTX, 0..1, &[], &[&socket]), Err(Errno::INVAL));
    }
    assert_eq!(client.set_irqs(SET, IRQ_MSIX, 0..1, &[], &[&socket]), Err(Errno::INVAL));
    drop(socket);
    assert_eq!(other.read(&mut [0]).unwrap(), 0, "it was written to, or is still open");
    assert_eq!(client.set_irqs(SET, IRQ_MSIX, 0..2, &[], &[&good, &pipe]), Err(Errno::INVAL));
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..1, &[], &[]).unwrap();
    let flags = rustix::fs::fcntl_getfl(&good).unwrap();
    rustix::fs::fcntl_setfl(&good, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(!was_rung(&good), "all or none");
}
