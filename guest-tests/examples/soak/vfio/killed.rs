//! Servers that are killed with requests in flight: flushed data are there for the next guest, the sectors in flight are old or new.

use std::thread;
use std::time::Duration;

use super::Setup;
use super::guest::Guest;
use crate::load::{Load, SERVED};
use crate::server::Place;

/// An adapter with its disk.
struct Subject {
    place: Place,
    setup: Setup,
    /// With the cycle of the next guest; made when it is used first.
    disk: Option<(String, u64)>,
}

pub(crate) struct Killed {
    subjects: Vec<Subject>,
    kills: u64,
}

impl Killed {
    pub(crate) fn new(place: &Place) -> Self {
        let subject = |(setup, name): (Setup, &str)| Subject { place: place.within(name), setup, disk: None };
        let setups = SERVED.into_iter().map(|kind| (Setup::of(kind), kind.as_str()));
        let subjects = setups.chain([(Setup::threads(2), "threads")]).map(subject).collect();
        Self { subjects, kills: 0 }
    }
}

impl Load for Killed {
    fn cycle(&mut self, number: u64) -> u64 {
        let index = number as usize % self.subjects.len();
        let Subject { place, setup, disk } = &mut self.subjects[index];
        let socket = place.file("socket");
        let (disk, cycle) = disk.get_or_insert_with(|| setup.disk(place, &socket));
        let process = setup.serve(place, &socket, disk, &[]);
        let mut guest = Guest::start(place, &socket, setup, *cycle);
        let (before, _) = guest.answer();
        thread::sleep(Duration::from_millis(number % 8));
        drop(process);
        guest.kill();
        let process = setup.serve(place, &socket, disk, &[]);
        let mut guest = Guest::start(place, &socket, setup, *cycle + 1);
        let (after, _) = guest.answer();
        guest.kill();
        process.end();
        if let Some(kind) = setup.image {
            place.check(kind, disk);
        }
        *cycle += 2;
        self.kills += 1;
        before + after
    }

    fn events(&self) -> String {
        format!("{} servers killed, {} clients", self.kills, 2 * self.kills)
    }
}
