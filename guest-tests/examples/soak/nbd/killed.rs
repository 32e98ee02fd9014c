//! A server that is killed: flushed data are there afterwards, others are old or new. Then the image is checked.

use std::io::Write;

use super::{BLOCKS, Disk, at, flush, read, write};
use crate::images::Kind;
use crate::load::Load;
use crate::nbd_client::{Client, WRITE, request};
use crate::pattern::BLOCK;
use crate::server::Place;

pub(crate) struct Killed {
    place: Place,
    disks: Vec<Disk>,
    kills: u64,
}

impl Killed {
    pub(crate) fn new(place: &Place) -> Self {
        let disks = Kind::ALL.into_iter().zip(7..).map(|(kind, seed)| Disk::new(place, kind, seed)).collect();
        Self { place: place.clone(), disks, kills: 0 }
    }
}

impl Load for Killed {
    fn cycle(&mut self, number: u64) -> u64 {
        let index = number as usize % self.disks.len();
        let Disk { kind, disk, model } = &mut self.disks[index];
        let socket = self.place.file("socket");
        let serve = || self.place.serve("nbd", &socket, &["--disk", disk]);
        let process = serve();
        let mut client = Client::of(&socket, "", false);
        for _ in 0..100 {
            let block = model.block();
            write(&mut client, model, block);
        }
        flush(&mut client);
        let mut unflushed = Vec::new();
        for _ in 0..100 {
            let block = model.block();
            if !unflushed.iter().any(|(written, _)| *written == block) {
                unflushed.push((block, model.certain(block)));
                write(&mut client, model, block);
            }
        }
        for _ in 0..20 {
            // Requests in flight.
            let block = model.block();
            if !unflushed.iter().any(|(written, _)| *written == block) {
                let data = model.write(block);
                let head = request(WRITE, 0, block, at(block), BLOCK as u32);
                client.stream.write_all(&[&head[..], &data].concat()).unwrap();
            }
        }
        drop(process);
        self.kills += 1;
        unflushed.into_iter().for_each(|(block, before)| model.unflushed(block, before));
        let process = serve();
        let mut client = Client::of(&socket, "", false);
        let verified = (0..BLOCKS).map(|block| read(&mut client, model, block)).sum();
        drop(client);
        process.end();
        self.place.check(*kind, disk);
        verified
    }

    fn events(&self) -> String {
        format!("{} servers killed", self.kills)
    }
}
