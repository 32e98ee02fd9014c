use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// `count` connections of a pool.
fn connections(pool: &Pool, count: usize) -> Vec<Reservation<'_>> {
    (0..count).map(|_| Reservation::new(pool).unwrap()).collect()
}

/// A pool of so many of the largest requests.
fn pool(large: usize) -> Pool {
    Pool::new(large * LARGEST, Duration::ZERO)
}

/// Whether a connection was woken. Acknowledges the wake-up.
fn woken(reservation: &Reservation<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(reservation.event(), PollFlags::IN)];
    let woken = poll(&mut fds, Some(&now)).unwrap() > 0;
    reservation.acknowledge();
    woken
}

/// Eight slow clients hold the whole pool, and each asks again as soon as it has released memory.
#[test]
fn what_comes_back_goes_to_who_was_refused_first() {
    let pool = pool(8);
    let mut all = connections(&pool, 10);
    let (slow, others) = all.split_at_mut(8);
    assert!(slow.iter_mut().all(|reservation| reservation.want(LARGEST)));
    let [large, small] = others else { unreachable!() };
    assert!(!large.want(LARGEST));
    assert!(!small.want(4096));
    // Half of a request each: not enough for the large one at first, and nobody else gets it.
    for (reservation, enough) in slow[..2].iter_mut().zip([false, true]) {
        reservation.reduce(LARGEST / 2);
        assert!(!reservation.want(LARGEST) && !small.want(4096) && !woken(small));
        assert_eq!(woken(large), enough);
    }
    assert!(large.want(LARGEST), "it was refused first");
    assert!(!woken(small) && !small.want(4096));
    // Then in turn, the slow ones behind the small one.
    slow[2].reduce(0);
    assert!(woken(small) && small.want(4096));
    assert!(woken(&slow[0]) && slow[0].want(LARGEST));
    assert!(!woken(&slow[1]) && pool.waiting() == 1);
}

/// A connection that has its share does not delay connections that have less, whatever the order.
#[test]
fn who_has_a_share_comes_after_those_who_have_less() {
    let pool = pool(2);
    let mut all = connections(&pool, 2);
    let [greedy, other] = &mut all[..] else { unreachable!() };
    assert!(greedy.want(2 * LARGEST));
    greedy.reduce(2 * LARGEST - 4096);
    assert!(!greedy.want(2 * LARGEST + 4096));
    assert!(other.want(4096), "the other one is passed over");
    assert!(!other.want(8192) && !woken(other));
    greedy.reduce(LARGEST);
    assert!(woken(other) && other.want(8192));
    // Alone, it may have more than its share.
    assert!(!woken(greedy));
    greedy.withdraw();
    assert!(greedy.want(2 * LARGEST - 8192));
}

#[test]
fn of_those_who_have_a_share_the_first_is_served_first() {
    let pool = pool(2);
    let mut all = connections(&pool, 3);
    let [first, second, other] = &mut all[..] else { unreachable!() };
    assert!(first.want(LARGEST) && second.want(LARGEST - 8192) && other.want(8192));
    assert!(!first.want(LARGEST + 8192) && !second.want(LARGEST + 1));
    other.reduce(0);
    assert!(woken(first) && !woken(second) && first.want(LARGEST + 8192));
}

/// A waiter leaves with a grant that it has not taken, withdraws, or wants less.
#[test]
fn who_goes_away_or_wants_less_does_not_hold_up_the_next() {
    for end in 0..4 {
        let pool = pool(2);
        let mut all = connections(&pool, 3);
        let mut first = all.pop().unwrap();
        let [holder, second] = &mut all[..] else { unreachable!() };
        assert!(holder.want(LARGEST + LARGEST / 2));
        assert!(!first.want(LARGEST) && !second.want(LARGEST / 4));
        assert_eq!(pool.waiting(), 2);
        match end {
            0 => drop(first),
            1 => first.withdraw(),
            2 => assert!(first.want(LARGEST / 4), "it is first, and so much is there"),
            // Granted, and not taken yet.
            _ => {
                holder.reduce(LARGEST - 4096);
                assert!(woken(&first) && !woken(second));
                first.withdraw();
            }
        }
        assert!(woken(second) && second.want(LARGEST / 4), "{end}");
        assert_eq!(pool.waiting(), 0);
    }
}

#[test]
fn all_comes_back() {
    let pool = pool(1);
    let mut all = connections(&pool, 3);
    assert!(all[0].want(LARGEST) && !all[1].want(LARGEST) && !all[2].want(1));
    all[0].reduce(7);
    assert!(all[2].others_wait() && !all[1].others_wait() | all[2].queued);
    // One with a grant that it has not taken, one that waits, one that holds some.
    drop(all);
    let state = pool.state.into_inner().unwrap();
    assert_eq!((state.left, state.connections, state.queue.len()), (LARGEST, 0, 0));
}

/// A connection of [`nobody_is_forgotten`].
struct Client<'a> {
    reservation: Reservation<'a>,
    /// What it waits for, in all.
    wants: Option<usize>,
    requests: usize,
}

/// Whatever connections do, a connection that waits is woken when it can go on: each asks again only when it is woken, and all
/// of them make all their requests.
#[test]
fn nobody_is_forgotten() {
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (seed >> 33) as usize % below
    };
    for round in 0..200 {
        let pool = pool(1 + round % 4);
        let client = |reservation| Client { reservation, wants: None, requests: 0 };
        let mut all: Vec<_> = connections(&pool, 9).into_iter().map(client).collect();
        let mut steps = 0;
        while all.iter().any(|client| client.requests < 20) {
            steps += 1;
            assert!(steps < 20_000, "round {round}: nobody goes on: {pool:?}");
            let number = random(all.len());
            let client = &mut all[number];
            match (client.wants, random(50)) {
                // It hangs up, and another one comes.
                (_, 0) => {
                    let requests = client.requests + 1;
                    all[number] =
                        Client { reservation: Reservation::new(&pool).unwrap(), wants: None, requests };
                }
                (Some(_), 1) => {
                    client.reservation.withdraw();
                    client.reservation.acknowledge();
                    client.wants = None;
                }
                (Some(bytes), 2) => {
                    let less = bytes - (bytes - client.reservation.bytes()) / 2;
                    client.wants = (!client.reservation.want(less)).then_some(less);
                    client.reservation.acknowledge();
                }
                (Some(bytes), _) => {
                    if woken(&client.reservation) {
                        assert!(client.reservation.want(bytes), "it was woken for nothing");
                        client.wants = None;
                    }
                }
                (None, kind) if client.reservation.bytes() > 0 && kind % 2 == 0 => {
                    client.reservation.reduce(random(2) * client.reservation.bytes() / 2);
                }
                (None, _) => {
                    let bytes = client.reservation.bytes().max(1 + random(LARGEST));
                    client.wants = (!client.reservation.want(bytes)).then_some(bytes);
                    client.requests += 1;
                }
            }
            let held: usize = all.iter().map(|client| client.reservation.bytes()).sum();
            let state = pool.state();
            let lent = state.queue.iter().filter(|waiter| waiter.granted).map(|waiter| waiter.wanted);
            assert_eq!(state.left + held + lent.sum::<usize>(), pool.bytes);
        }
    }
}
