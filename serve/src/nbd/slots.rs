//! The limit on connections of a server, and which connection is closed when it is reached.
//!
//! Connections that negotiate and connections that are served have separate limits: a client that sends nothing does not keep
//! others from being served. At a limit, the peer with the most connections loses one: of negotiations the oldest, of served
//! connections the one that has been idle longest. A served connection is closed only if the new connection's peer has at least two
//! fewer. A peer is an address (of IPv6, the /64 network); all clients of a Unix socket are one peer.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
#[expect(clippy::disallowed_types, reason = "connections are no requests")]
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::net::{Shutdown, getpeername, shutdown};

/// Connections that negotiate at a time.
const NEGOTIATING: usize = 64;
/// Connections that were closed and still have requests in flight, at a time: of one peer, so that it is refused before others are, and of
/// all.
const LEAVING: usize = 64;
const LEAVING_IN_ALL: usize = 2 * LEAVING;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Address(IpAddr),
    /// Any client of a Unix socket.
    Local,
}

impl Peer {
    fn of(socket: impl AsFd) -> Self {
        let address = getpeername(socket).ok().flatten();
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        address.map_or(Self::Local, |address| Self::Address(network(address.ip())))
    }
}

/// The addresses that one host may own: of IPv6, a /64 network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Negotiating,
    Served,
    /// Disconnected while it negotiated: nothing is in flight, its thread ends when it runs.
    Ended,
    /// Disconnected while it was served: its thread ends when its requests have.
    Leaving,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    peer: Peer,
    phase: Phase,
    socket: Arc<OwnedFd>,
    asleep: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    next: u64,
}

/// The connections of a server.
#[expect(clippy::disallowed_types, reason = "connections are no requests")]
pub(super) struct Slots {
    table: Mutex<Table>,
    /// A connection has ended.
    ended: Condvar,
    begin: Instant,
    /// Maximum number of connections that are served at a time.
    most: usize,
    /// Called when the last connection that was served has ended.
    on_idle: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("table", &self.table).finish_non_exhaustive()
    }
}

/// A connection's slot, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    /// When its thread went to sleep, in milliseconds after [`Slots::begin`]; `u64::MAX`: it is awake.
    asleep: Arc<AtomicU64>,
}

impl Slots {
    #[expect(clippy::disallowed_types, reason = "connections are no requests")]
    pub(super) fn new(most: usize, on_idle: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            ended: Condvar::new(),
            begin: Instant::now(),
            most,
            on_idle,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No invariant spans several changes.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a connection that begins to negotiate; waits while the threads of as many disconnected negotiations have not
    /// ended. `None`: too many closed connections still have requests in flight, or the socket cannot be duplicated.
    pub(super) fn enter(self: &Arc<Self>, socket: &impl AsFd) -> Option<Slot> {
        let peer = Peer::of(socket);
        let socket = Arc::new(socket.as_fd().try_clone_to_owned().ok()?);
        let asleep = Arc::new(AtomicU64::new(u64::MAX));
        let too_many = |table: &mut Table| table.count(Phase::Ended) >= NEGOTIATING;
        let mut table = self.ended.wait_while(self.table(), too_many).unwrap_or_else(PoisonError::into_inner);
        if table.of(Phase::Leaving, peer) >= LEAVING || table.count(Phase::Leaving) >= LEAVING_IN_ALL {
            return None;
        }
        if table.count(Phase::Negotiating) >= NEGOTIATING {
            let peer = table.largest(Phase::Negotiating)?.0;
            let of_peer = |entry: &&mut Entry| entry.phase == Phase::Negotiating && entry.peer == peer;
            table.entries.iter_mut().filter(of_peer).min_by_key(|entry| entry.number)?.disconnect();
        }
        let number = table.next;
        table.next += 1;
        let phase = Phase::Negotiating;
        table.entries.push(Entry { number, peer, phase, socket, asleep: Arc::clone(&asleep) });
        Some(Slot { slots: Arc::clone(self), number, asleep })
    }
}

impl Table {
    fn count(&self, phase: Phase) -> usize {
        self.entries.iter().filter(|entry| entry.phase == phase).count()
    }

    fn of(&self, phase: Phase, peer: Peer) -> usize {
        self.entries.iter().filter(|entry| entry.phase == phase && entry.peer == peer).count()
    }

    /// The peer that has the most connections in a phase, and how many.
    fn largest(&self, phase: Phase) -> Option<(Peer, usize)> {
        let all = self.entries.iter().filter(|entry| entry.phase == phase);
        all.map(|entry| (entry.peer, self.of(phase, entry.peer))).max_by_key(|(_, count)| *count)
    }

    /// The connection goes from negotiating to served, if fewer than `most` are, or one can be closed. False: there is no slot for it.
    fn promote(&mut self, number: u64, most: usize) -> bool {
        let negotiating = |entry: &&Entry| entry.number == number && entry.phase == Phase::Negotiating;
        let Some(peer) = self.entries.iter().find(negotiating).map(|entry| entry.peer) else { return false };
        if self.count(Phase::Served) >= most {
            let Some((largest, count)) = self.largest(Phase::Served) else { return false };
            if count <= self.of(Phase::Served, peer) + 1 {
                return false;
            }
            let of_largest = |entry: &&mut Entry| entry.phase == Phase::Served && entry.peer == largest;
            let victim = self.entries.iter_mut().filter(of_largest);
            victim
                .min_by_key(|entry| entry.asleep.load(Ordering::Relaxed))
                .into_iter()
                .for_each(Entry::disconnect);
        }
        let entry = self.entries.iter_mut().find(|entry| entry.number == number);
        entry.map(|entry| entry.phase = Phase::Served).is_some()
    }

    /// The connection has ended. True: it was the last one that was served.
    fn remove(&mut self, number: u64) -> bool {
        let place = self.entries.iter().position(|entry| entry.number == number);
        let phase = place.map(|place| self.entries.remove(place).phase);
        phase == Some(Phase::Served) && self.count(Phase::Served) == 0
    }
}

impl Entry {
    fn disconnect(&mut self) {
        self.phase = if self.phase == Phase::Negotiating { Phase::Ended } else { Phase::Leaving };
        // Fails where the client has closed the connection.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Slot {
    /// The negotiation succeeded. False: there is no slot to serve the connection.
    pub(super) fn promote(&self) -> bool {
        self.slots.table().promote(self.number, self.slots.most)
    }

    /// The connection's thread goes to sleep.
    #[inline]
    pub(super) fn note_asleep(&self) {
        self.asleep.store(self.slots.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// The connection's thread is awake.
    #[inline]
    pub(super) fn note_awake(&self) {
        self.asleep.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let last = self.slots.table().remove(self.number);
        self.slots.ended.notify_one();
        if last {
            (self.slots.on_idle)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    const MOST: usize = 64;

    fn peer(number: u8) -> Peer {
        Peer::Address([10, 0, 0, number].into())
    }

    /// A table with so many served connections of each peer.
    fn served(counts: &[(u8, usize)]) -> (Arc<Slots>, Vec<Slot>, Vec<UnixStream>) {
        let (slots, mut all, mut clients) = (Slots::new(MOST, Box::new(|| ())), Vec::new(), Vec::new());
        for &(peer, count) in counts {
            for _ in 0..count {
                let (client, slot) = negotiating(&slots, peer);
                assert!(slot.promote());
                all.push(slot);
                clients.push(client);
            }
        }
        (slots, all, clients)
    }

    fn negotiating(slots: &Arc<Slots>, peer: u8) -> (UnixStream, Slot) {
        let (client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let slot = slots.enter(&server).unwrap();
        slots.table().entries.last_mut().unwrap().peer = self::peer(peer);
        (client, slot)
    }

    fn disconnected(clients: &[UnixStream]) -> Vec<usize> {
        let ended = |client: &UnixStream| matches!((&*client).read(&mut [0]), Ok(0));
        (0..clients.len()).filter(|&index| ended(&clients[index])).collect()
    }

    #[test]
    fn a_server_has_its_own_limit() {
        let slots = Slots::new(2, Box::new(|| ()));
        let (_clients, all): (Vec<_>, Vec<_>) = (0..3).map(|_| negotiating(&slots, 1)).unzip();
        assert_eq!(all.iter().map(Slot::promote).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn the_peer_with_the_most_connections_loses_one_to_a_peer_with_fewer() {
        let (slots, all, clients) = served(&[(1, 60), (2, 4)]);
        all.iter().for_each(Slot::note_awake);
        all[7].note_asleep();
        all[62].note_asleep();
        let (_client, slot) = negotiating(&slots, 2);
        assert!(slot.promote());
        assert_eq!(disconnected(&clients), [7], "the one that sleeps, of the peer with the most");
        let (_client, slot) = negotiating(&slots, 1);
        assert!(!slot.promote(), "it has the most itself");
    }

    #[test]
    fn a_peer_whose_closed_connections_do_not_end_is_refused_before_others() {
        let slots = Slots::new(MOST, Box::new(|| ()));
        let (_clients, all): (Vec<_>, Vec<_>) = (0..LEAVING).map(|_| negotiating(&slots, 1)).unzip();
        assert!(all.iter().all(Slot::promote));
        slots.table().entries.iter_mut().for_each(Entry::disconnect);
        let (_client, local) = UnixStream::pair().unwrap();
        assert!(slots.enter(&local).is_some());
        slots.table().entries.iter_mut().for_each(|entry| entry.peer = Peer::Local);
        assert!(slots.enter(&local).is_none());
    }

    /// Twice as many as may negotiate, none of whose threads has run yet: the next waits for one of them, and is not refused.
    #[test]
    fn negotiations_whose_threads_have_not_run_refuse_nobody() {
        let slots = Slots::new(MOST, Box::new(|| ()));
        let (_clients, mut all): (Vec<_>, Vec<_>) =
            (0..2 * NEGOTIATING).map(|_| negotiating(&slots, 1)).unzip();
        let (_client, server) = UnixStream::pair().unwrap();
        let waits = std::thread::spawn({
            let slots = Arc::clone(&slots);
            move || slots.enter(&server).is_some()
        });
        all.remove(0);
        assert!(waits.join().unwrap());
    }

    #[test]
    fn equal_shares_stay() {
        let (slots, _all, clients) = served(&[(1, 32), (2, 32)]);
        for peer in [1, 2] {
            assert!(!negotiating(&slots, peer).1.promote());
        }
        assert!(negotiating(&slots, 3).1.promote());
        assert_eq!(disconnected(&clients).len(), 1);
    }

    #[test]
    fn the_oldest_negotiation_is_closed() {
        let slots = Slots::new(MOST, Box::new(|| ()));
        let (clients, mut all): (Vec<_>, Vec<_>) =
            (0..NEGOTIATING).map(|n| negotiating(&slots, if n < 3 { 1 } else { 2 })).unzip();
        let _more = negotiating(&slots, 3);
        assert_eq!(disconnected(&clients), [3]);
        assert!(!all[3].promote(), "it was disconnected");
        assert!(all.remove(4).promote());
    }

    #[test]
    fn the_end_of_the_last_connection_that_was_served_is_reported() {
        let ends = Arc::new(AtomicU64::new(0));
        let slots = Slots::new(
            MOST,
            Box::new({
                let ends = Arc::clone(&ends);
                move || {
                    ends.fetch_add(1, Ordering::Relaxed);
                }
            }),
        );
        let (_client, scan) = negotiating(&slots, 1);
        drop(scan);
        assert_eq!(ends.load(Ordering::Relaxed), 0, "it only negotiated");
        let (_one, first) = negotiating(&slots, 1);
        let (_two, second) = negotiating(&slots, 1);
        let (_three, _negotiating) = negotiating(&slots, 1);
        assert!(first.promote() && second.promote());
        drop(first);
        assert_eq!(ends.load(Ordering::Relaxed), 0, "another is served");
        drop(second);
        assert_eq!(ends.load(Ordering::Relaxed), 1, "those that negotiate do not count");
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
