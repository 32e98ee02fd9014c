//! Interrupts by eventfd: set, masked, triggered, removed.

use paradisk_devices::AdapterKind;
use paradisk_serve::vfio_user::spec::{
    IRQ_AUTOMASKED, IRQ_EVENTFD, IRQ_INTX, IRQ_MASKABLE, IRQ_MSI, IRQ_MSIX, IRQS, IrqSet,
};
use rustix::io::Errno;

use crate::client::Client;
use crate::drivers::serve;
use crate::vmm::{Habits, Vmm, new_event, was_rung};

const SET: IrqSet = IrqSet::DATA_EVENTFD.union(IrqSet::TRIGGER);
const TRIGGER: IrqSet = IrqSet::DATA_NONE.union(IrqSet::TRIGGER);
const MASK: IrqSet = IrqSet::DATA_NONE.union(IrqSet::MASK);
const UNMASK: IrqSet = IrqSet::DATA_NONE.union(IrqSet::UNMASK);

#[test]
fn types_are_told() {
    let served = serve(AdapterKind::VirtioBlk);
    let mut client = Client::new(&served.socket);
    let line = client.irq_info(IRQ_INTX).unwrap();
    assert_eq!(line.count.get(), 1);
    assert_eq!(line.flags.get(), IRQ_EVENTFD | IRQ_MASKABLE | IRQ_AUTOMASKED);
    assert_eq!(client.irq_info(IRQ_MSI).unwrap().count.get(), 0);
    assert!(client.irq_info(IRQ_MSIX).unwrap().count.get() >= 2);
    assert_eq!(client.irq_info(IRQS), Err(Errno::INVAL));
}

#[test]
fn vectors_are_triggered_masked_and_taken_away() {
    let served = serve(AdapterKind::VirtioBlk);
    let mut client = Client::new(&served.socket);
    let (a, b) = (new_event(), new_event());
    client.set_irqs(SET, IRQ_MSIX, 0..2, &[], &[&a, &b]).unwrap();
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..1, &[], &[]).unwrap();
    assert!(was_rung(&a) && !was_rung(&b));
    let one_of_both = IrqSet::DATA_BOOL | IrqSet::TRIGGER;
    client.set_irqs(one_of_both, IRQ_MSIX, 0..2, &[0, 1], &[]).unwrap();
    assert!(!was_rung(&a) && was_rung(&b));
    client.set_irqs(MASK, IRQ_MSIX, 0..2, &[], &[]).unwrap();
    client.set_irqs(TRIGGER, IRQ_MSIX, 1..2, &[], &[]).unwrap();
    assert!(!was_rung(&b));
    client.set_irqs(UNMASK, IRQ_MSIX, 0..2, &[], &[]).unwrap();
    assert!(!was_rung(&a) && was_rung(&b), "what was pending comes, and nothing else");
    // Without descriptors, the eventfd is removed.
    client.set_irqs(SET, IRQ_MSIX, 1..2, &[], &[]).unwrap();
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..2, &[], &[]).unwrap();
    assert!(was_rung(&a) && !was_rung(&b));
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..0, &[], &[]).unwrap();
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..2, &[], &[]).unwrap();
    assert!(!was_rung(&a) && !was_rung(&b));
}

#[test]
fn the_line_masks_itself_until_it_is_unmasked() {
    let served = serve(AdapterKind::Pvscsi);
    let mut vmm = Vmm::new(&served, Habits::default());
    let unmask = new_event();
    vmm.client.set_irqs(IrqSet::DATA_EVENTFD | IrqSet::UNMASK, IRQ_INTX, 0..1, &[], &[&unmask]).unwrap();
    vmm.client.set_irqs(TRIGGER, IRQ_INTX, 0..1, &[], &[]).unwrap();
    assert!(was_rung(&vmm.line));
    vmm.client.set_irqs(MASK, IRQ_INTX, 0..1, &[], &[]).unwrap();
    vmm.client.set_irqs(TRIGGER, IRQ_INTX, 0..1, &[], &[]).unwrap();
    assert!(!was_rung(&vmm.line));
    rustix::io::write(&unmask, &1u64.to_ne_bytes()).unwrap();
    let pending = std::time::Instant::now();
    while !was_rung(&vmm.line) {
        assert!(pending.elapsed().as_secs() < 60, "the eventfd unmasks nothing");
        std::thread::yield_now();
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let event = new_event();
    let file = std::os::fd::OwnedFd::from(tempfile::tempfile().unwrap());
    let bool_trigger = IrqSet::DATA_BOOL | IrqSet::TRIGGER;
    for (flags, index, vectors, bytes, fds) in [
        (SET, IRQ_MSIX, 0..2, &[][..], &[&event][..]),
        (SET, IRQ_MSIX, 1..2, &[], &[&event]),
        (SET, IRQ_MSIX, 0..1, &[], &[&event, &event]),
        (SET, IRQ_MSIX, 0..1, &[], &[&file]),
        (SET, IRQS, 0..1, &[], &[&event]),
        (SET, u32::MAX, 0..1, &[], &[&event]),
        (TRIGGER, IRQ_MSIX, 0..u32::MAX, &[], &[]),
        (TRIGGER, IRQ_MSIX, 1..1, &[], &[]),
        (MASK, IRQ_MSIX, 0..0, &[], &[]),
        (bool_trigger, IRQ_MSIX, 0..1, &[], &[]),
        (IrqSet::DATA_NONE, IRQ_MSIX, 0..1, &[], &[]),
        (IrqSet::TRIGGER, IRQ_MSIX, 0..1, &[], &[]),
        (IrqSet::all(), IRQ_MSIX, 0..1, &[], &[]),
        (IrqSet::from_bits_retain(1 << 6 | TRIGGER.bits()), IRQ_MSIX, 0..1, &[], &[]),
        (IrqSet::DATA_EVENTFD | IrqSet::MASK, IRQ_INTX, 0..1, &[], &[&event]),
        (IrqSet::DATA_EVENTFD | IrqSet::UNMASK, IRQ_MSIX, 0..1, &[], &[&event]),
    ] {
        let refused = client.set_irqs(flags, index, vectors.clone(), bytes, fds);
        assert_eq!(refused, Err(Errno::INVAL), "{flags:?} {index} {vectors:?}");
    }
    client.set_irqs(SET, IRQ_MSIX, 0..1, &[], &[&event]).unwrap();
}

/// A write to a full eventfd without `O_NONBLOCK` would block: the server must not block.
#[test]
fn a_full_eventfd_holds_up_nobody() {
    let served = serve(AdapterKind::Pvscsi);
    let mut client = Client::new(&served.socket);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    client.set_irqs(SET, IRQ_MSIX, 0..1, &[], &[&event]).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.set_irqs(TRIGGER, IRQ_MSIX, 0..1, &[], &[]).unwrap();
}
