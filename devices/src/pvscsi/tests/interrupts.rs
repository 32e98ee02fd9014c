//! Interrupts: the line, messages, the mask, and signals that moderation holds back.

use super::small_tables::ABSENT;
use super::*;
use crate::testing::backstop;

fn guest(policy: Policy) -> Guest {
    Guest::up(1, Config { coalescing: Coalescing::policy(policy), ..Config::default() })
}

fn read_batch(guest: &mut Guest, count: u32) {
    for n in 0..count {
        let request = guest.transfer(false, n, 1);
        guest.put(&request);
    }
    guest.kick();
}

#[test]
fn the_line_is_status_and_mask() {
    let mut guest = guest(Policy::Batch);
    guest.write(REG_INTR_STATUS, 0xf);
    assert!(!guest.line());
    read_batch(&mut guest, 3);
    assert!(guest.line());
    assert_eq!(guest.read(REG_INTR_STATUS), 1);
    guest.write(REG_INTR_MASK, 0);
    assert!(!guest.line());
    guest.write(REG_INTR_MASK, 1);
    assert!(guest.line());
    guest.write(REG_INTR_STATUS, 1);
    assert!(!guest.line());
    assert_eq!(guest.messages_sent(), 0);
}

/// The driver reads the status, acknowledges, and polls the rings. The acknowledgement arrives after another completion was posted.
#[test]
fn an_acknowledgement_that_arrives_late_loses_no_completion() {
    for reads_late in [false, true] {
        let mut guest = guest(Policy::Batch);
        guest.read(REG_INTR_STATUS);
        guest.write(REG_INTR_STATUS, 0xf);
        read_batch(&mut guest, 3);
        assert_eq!(guest.read(REG_INTR_STATUS), 1);
        assert_eq!(guest.completions().len(), 3);
        read_batch(&mut guest, 2);
        if reads_late {
            assert_eq!(guest.completions().len(), 2);
        }
        let told = guest.device.stats().interrupts;
        guest.write(REG_INTR_STATUS, 1);
        assert_eq!(guest.line(), !reads_late, "asserted while something is unread");
        let again = guest.device.stats().interrupts - told;
        assert_eq!(again, u64::from(!reads_late), "anew, for interrupt controllers that look for edges");
        if !reads_late {
            assert_eq!(guest.read(REG_INTR_STATUS), 1);
            guest.write(REG_INTR_STATUS, 1);
            assert!(
                !guest.line(),
                "what it has read about it acknowledges, with the rings still to be looked at"
            );
            assert_eq!(guest.completions().len(), 2);
        }
    }
}

#[test]
fn a_driver_that_never_reads_the_status_is_not_interrupted_for_ever() {
    let mut guest = guest(Policy::Batch);
    read_batch(&mut guest, 1);
    guest.write(REG_INTR_STATUS, 1);
    assert!(guest.line());
    guest.write(REG_INTR_STATUS, 1);
    assert!(!guest.line());
}

#[test]
fn messages_do_not_wait_for_the_status_to_be_cleared() {
    let mut guest = guest(Policy::Batch);
    guest.enable_msi();
    assert!(!guest.line());
    let before = guest.device.stats().interrupts;
    for _ in 0..3 {
        read_batch(&mut guest, 4);
        assert_eq!(guest.messages_sent(), 1);
    }
    assert_eq!(guest.device.stats().interrupts, before + 3);
    // With causes masked, one message is sent when they are unmasked.
    guest.write(REG_INTR_MASK, 0);
    read_batch(&mut guest, 4);
    read_batch(&mut guest, 4);
    assert_eq!(guest.messages_sent(), 0);
    guest.write(REG_INTR_MASK, 1);
    assert_eq!(guest.messages_sent(), 1);
    guest.write(REG_INTR_MASK, 1);
    assert_eq!(guest.messages_sent(), 0);
}

/// The owner quiesces the device while bus mastering is off. A signal that moderation held back is sent when bus mastering is on again.
#[test]
fn what_was_held_back_is_told_when_bus_mastering_is_back() {
    let mut guest = guest(Policy::Oio);
    guest.enable_msi();
    guest.hold.set(true);
    read_batch(&mut guest, 31);
    // Enough completions for an epoch, after which the ratio holds signals back.
    let mut absent = guest.request(&[0; 6]);
    absent.target = 1;
    for _ in 0..100 {
        guest.now.0 += 50_000_000;
        guest.put(&absent);
        guest.kick();
        assert_eq!(guest.completions().len(), 1);
    }
    while guest.messages_sent() > 0 {
        guest.put(&absent);
        guest.kick();
    }
    assert!(!guest.completions().is_empty(), "posted, and held back");
    guest.hold.set(false);
    guest.device.config_write(4, &2u16.to_le_bytes());
    guest.device.quiesce(guest.now);
    guest.device.config_write(4, &6u16.to_le_bytes());
    assert_eq!(guest.messages_sent(), 1);
    guest.device.on_completions(guest.now);
    assert_eq!(guest.completions().len(), 31);
}

#[test]
fn policies_differ_in_signals() {
    let mut off = guest(Policy::Off);
    off.enable_msi();
    read_batch(&mut off, 20);
    assert_eq!(off.messages_sent(), 20);
    let mut batch = guest(Policy::Batch);
    batch.enable_msi();
    read_batch(&mut batch, 20);
    assert_eq!(batch.messages_sent(), 1);
    batch.device.set_coalescing(Coalescing::policy(Policy::Off));
    read_batch(&mut batch, 20);
    assert_eq!(batch.messages_sent(), 20);
}

#[test]
fn withheld_signals_have_a_backstop() {
    let mut guest = guest(Policy::OioIops);
    guest.enable_msi();
    let counts = guest.counts.clone();
    backstop::play(&mut guest, &counts, ABSENT, |_| {});
}
