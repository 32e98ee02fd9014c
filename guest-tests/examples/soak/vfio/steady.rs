//! A server that lives on while its guests are killed and its disk grows.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::guest::Guest;
use super::{MIB, SIZE, Setup};
use crate::images::Kind;
use crate::load::Load;
use crate::server::{Place, Process};
use crate::watch::Watch;

/// The disk grows up to here.
const MOST: u64 = 64 * MIB;

pub(crate) struct Steady {
    place: Place,
    setup: Setup,
    socket: PathBuf,
    process: Process,
    watch: Watch,
    /// Of the next guest.
    cycle: u64,
    verified: u64,
    capacity: u64,
    kills: u64,
}

impl Steady {
    pub(crate) fn new(place: &Place, setup: Setup) -> Self {
        let (socket, watch) = (place.file("socket"), Watch::new(place));
        let (disk, cycle) = setup.disk(place, &socket);
        let process = setup.serve(place, &socket, &disk, &watch.args());
        Self {
            place: place.clone(),
            setup,
            socket,
            process,
            watch,
            cycle,
            verified: 0,
            capacity: SIZE,
            kills: 0,
        }
    }
}

impl Load for Steady {
    fn cycle(&mut self, number: u64) -> u64 {
        let mut guest = Guest::start(&self.place, &self.socket, &self.setup, self.cycle);
        let (verified, capacity) = guest.answer();
        assert_eq!(capacity, self.capacity, "the capacity that the guest sees");
        self.cycle += 1;
        self.verified += verified;
        // Raw images can grow. The guest has requests in flight, and the next one sees the new capacity at once.
        if self.setup.image == Some(Kind::Raw) && self.capacity < MOST {
            self.capacity += MIB;
            self.watch.resize(self.capacity);
        }
        thread::sleep(Duration::from_millis(number % 8));
        guest.kill();
        self.kills += 1;
        self.watch.take(self.verified);
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        let grown = (self.capacity - SIZE) / MIB;
        let grown = if grown > 0 { format!(", grown {grown} times") } else { String::new() };
        format!("{} clients killed{grown}", self.kills)
    }
}
