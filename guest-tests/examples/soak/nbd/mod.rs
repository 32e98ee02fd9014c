//! NBD servers: one that lives on, one that is killed again and again, one whose file system is full now and then, one whose host has
//! errors, one whose flushes fail.

mod errors;
mod flushes;
mod full;
mod killed;
mod steady;

use std::path::{Path, PathBuf};

use crate::images::Kind;
use crate::nbd_client::{Client, FLUSH};
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};

pub(crate) use errors::Errors;
pub(crate) use flushes::Flushes;
pub(crate) use full::Full;
pub(crate) use killed::Killed;
pub(crate) use steady::Steady;

/// Blocks of a disk that are used: so few that most are written often.
const BLOCKS: u64 = 1024;
const SIZE: u64 = 64 << 20;

/// A disk, and what it must hold.
pub(crate) struct Disk {
    pub(crate) kind: Kind,
    /// As `--disk` takes it.
    pub(crate) disk: String,
    pub(crate) model: Model,
}

impl Disk {
    /// Create an image. The files of a chain have some of the blocks each.
    pub(crate) fn new(place: &Place, kind: Kind, seed: u64) -> Self {
        let mut model = Model::new(BLOCKS, seed);
        let disk = place.image(kind, SIZE, |path| {
            let socket = place.file("socket");
            let process = place.serve("nbd", &socket, &["--disk", path]);
            let mut client = Client::of(&socket, "", false);
            for _ in 0..BLOCKS / 2 {
                let block = model.block();
                write(&mut client, &mut model, block);
            }
            flush(&mut client);
            drop(client);
            process.end();
        });
        Self { kind, disk, model }
    }
}

fn at(block: u64) -> u64 {
    block * BLOCK as u64
}

fn read(client: &mut Client, model: &mut Model, block: u64) -> u64 {
    let data = client.read(at(block), BLOCK as u32).unwrap();
    model.verify(block, &data)
}

fn write(client: &mut Client, model: &mut Model, block: u64) {
    let data = model.write(block);
    client.write(0, at(block), &data).unwrap();
    model.written(block);
}

fn flush(client: &mut Client) {
    client.ask(FLUSH, 0, 0, 0).unwrap();
}

/// All disks as exports of one server: the name of each is its number.
fn serve_all(place: &Place, disks: &[Disk], more: &[&str]) -> (PathBuf, Process) {
    let socket = place.file("socket");
    let names: Vec<String> = (0..disks.len()).map(name).collect();
    let mut args: Vec<&str> = Vec::new();
    for (Disk { disk, .. }, name) in disks.iter().zip(&names) {
        args.extend(["--disk", disk, "--export", name]);
    }
    let process = place.serve("nbd", &socket, &[&args[..], more].concat());
    (socket, process)
}

fn name(index: usize) -> String {
    index.to_string()
}

/// A client of an export.
fn connect(socket: &Path, index: usize, structured: bool) -> Client {
    Client::of(socket, &name(index), structured)
}
