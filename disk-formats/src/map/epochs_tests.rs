use super::epochs::Epochs;

#[test]
fn without_requests_it_is_over_at_once() {
    let epochs = Epochs::default();
    assert!(epochs.has_ended(epochs.current()));
    let queue = epochs.enter();
    assert!(epochs.has_ended(epochs.current()));
    drop(queue);
    assert!(epochs.has_ended(epochs.current()));
}

#[test]
fn a_request_that_was_there_before_is_waited_for_and_later_ones_are_not() {
    let epochs = Epochs::default();
    let (mut one, mut other) = (epochs.enter(), epochs.enter());
    let early = one.begin(&epochs);
    let epoch = epochs.current();
    let mut late = vec![other.begin(&epochs)];
    for _ in 0..10 {
        assert!(!epochs.has_ended(epoch));
        late.push(other.begin(&epochs));
        other.end(late.remove(0));
    }
    one.end(early);
    // The other queue always has requests in flight, but each of them only for a short time.
    let mut rounds = 0;
    while !epochs.has_ended(epoch) {
        late.push(other.begin(&epochs));
        other.end(late.remove(0));
        rounds += 1;
        assert!(rounds < 10);
    }
}

#[test]
fn a_queue_that_is_gone_holds_nothing_up() {
    let epochs = Epochs::default();
    let mut queue = epochs.enter();
    queue.begin(&epochs);
    let epoch = epochs.current();
    assert!(!epochs.has_ended(epoch));
    drop(queue);
    assert!(epochs.has_ended(epoch));
}
