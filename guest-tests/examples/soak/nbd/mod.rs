//! NBD servers: one that lives on, one that is killed again and again, one whose file system is full now and then.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Load;
use crate::nbd_client::{Client, FLUSH, WRITE, WRITE_ZEROES, request};
use crate::pattern::{BLOCK, Model};
use crate::server::{Place, Process};

const FORMATS: [&str; 3] = ["raw", "vhd", "vhdx"];
/// Blocks of a disk that are used: so few that most are written often.
const BLOCKS: u64 = 1024;

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

/// The images of all formats as exports of one server.
fn serve_all(place: &Place, images: &[String]) -> (PathBuf, Process) {
    let socket = place.file("socket");
    let args = images.iter().zip(FORMATS).flat_map(|(image, name)| ["--disk", image, "--export", name]);
    let process = place.serve("nbd", &socket, &args.collect::<Vec<_>>());
    (socket, process)
}

fn models() -> Vec<Model> {
    (0..FORMATS.len() as u64).map(|seed| Model::new(BLOCKS, seed + 7)).collect()
}

/// Clients come and go, some of them without a goodbye.
pub(crate) struct Steady {
    socket: PathBuf,
    process: Process,
    models: Vec<Model>,
    vanished: u64,
}

impl Steady {
    pub(crate) fn new(place: &Place) -> Self {
        let images = FORMATS.map(|format| place.image(format, "64M"));
        let (socket, process) = serve_all(place, &images);
        Self { socket, process, models: models(), vanished: 0 }
    }
}

impl Load for Steady {
    fn cycle(&mut self, number: u64) -> u64 {
        let mut verified = 0;
        for (name, model) in FORMATS.into_iter().zip(&mut self.models) {
            let mut clients = [false, true].map(|structured| Client::of(&self.socket, name, structured));
            for step in 0..200 {
                let client = &mut clients[step % 2];
                let block = model.block();
                match model.below(10) {
                    0..5 => write(client, model, block),
                    5..8 => verified += read(client, model, block),
                    8 => {
                        client.ask(WRITE_ZEROES, 0, at(block), BLOCK as u32).unwrap();
                        model.zeroed(block);
                    }
                    _ => flush(client),
                }
            }
            // This one is gone before its requests are done.
            let mut gone = Client::of(&self.socket, name, number.is_multiple_of(2));
            for _ in 0..32 {
                let block = model.block();
                let data = model.write(block);
                let head = request(WRITE, 0, block, at(block), BLOCK as u32);
                gone.stream.write_all(&[&head[..], &data].concat()).unwrap();
            }
            self.vanished += 1;
        }
        // The server has to take what was sent before others write the same blocks.
        thread::sleep(Duration::from_millis(100));
        verified
    }

    fn process(&self) -> Option<u32> {
        Some(self.process.0.id())
    }

    fn events(&self) -> String {
        format!("{} clients vanished", self.vanished)
    }
}

/// The server is killed: flushed data are there afterwards, others are old or new. Then the image is checked.
pub(crate) struct Killed {
    place: Place,
    images: [String; 3],
    models: Vec<Model>,
}

impl Killed {
    pub(crate) fn new(place: &Place) -> Self {
        let images = FORMATS.map(|format| place.image(format, "64M"));
        Self { place: place.clone(), images, models: models() }
    }
}

impl Load for Killed {
    fn cycle(&mut self, number: u64) -> u64 {
        let index = number as usize % FORMATS.len();
        let (image, model) = (&self.images[index], &mut self.models[index]);
        let socket = self.place.file("socket");
        let serve = || self.place.serve("nbd", &socket, &["--disk", image]);
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
        unflushed.into_iter().for_each(|(block, before)| model.unflushed(block, before));
        let process = serve();
        let mut client = Client::of(&socket, "", false);
        let verified = (0..BLOCKS).map(|block| read(&mut client, model, block)).sum();
        drop(client);
        process.end();
        if FORMATS[index] != "raw" {
            // What a killed server has lost is space at the most, which a repair finds.
            self.place.run(&["image", "check", "--repair", image]);
        }
        verified
    }

    fn events(&self) -> String {
        "a server killed in each".to_owned()
    }
}

/// The images are on a small file system that something else fills. A write without space fails, and no other data change.
pub(crate) struct Full {
    place: Place,
    /// Why there is no such file system.
    skipped: Option<String>,
    served: Option<(PathBuf, Process)>,
    models: Vec<Model>,
    failed: u64,
}

const SPACE: &str = "size=40m";

impl Full {
    pub(crate) fn new(place: &Place) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SPACE, "none"]).arg(&place.folder);
        let skipped = match mount.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(format!("mount: {error}")),
        };
        let served = skipped.is_none().then(|| {
            let images = FORMATS.map(|format| place.image(format, "64M"));
            serve_all(place, &images)
        });
        Self { place: place.clone(), skipped, served, models: models(), failed: 0 }
    }
}

impl Load for Full {
    fn cycle(&mut self, _number: u64) -> u64 {
        let Some((socket, _)) = &self.served else {
            thread::sleep(Duration::from_secs(1));
            return 0;
        };
        let ballast = self.place.file("ballast");
        let free = || rustix::fs::statvfs(&self.place.folder).unwrap().f_bavail;
        let before = free();
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[0xaa; 1 << 16]).is_ok() {}
        let mut verified = 0;
        let mut again = Vec::new();
        for (name, model) in FORMATS.into_iter().zip(&mut self.models) {
            let mut client = Client::of(socket, name, false);
            for _ in 0..100 {
                let block = model.block();
                let data = model.write(block);
                match client.write(0, at(block), &data) {
                    Ok(_) => model.written(block),
                    Err(_) => {
                        self.failed += 1;
                        again.push((name, block));
                    }
                }
                let block = model.block();
                verified += read(&mut client, model, block);
            }
            // May fail: there is no space for metadata.
            let _ = client.ask(FLUSH, 0, 0, 0);
        }
        drop(file);
        fs::remove_file(ballast).unwrap();
        // A process that another load is starting has the file open until it executes its program.
        while free() < before / 2 {
            thread::sleep(Duration::from_millis(10));
        }
        for (name, model) in FORMATS.into_iter().zip(&mut self.models) {
            let mut client = Client::of(socket, name, false);
            for (_, block) in again.iter().filter(|(failed, _)| *failed == name) {
                let data = model.write(*block);
                if let Err(error) = client.write(0, at(*block), &data) {
                    panic!("{name}: error {error} with free space: {}", self.place.used());
                }
                model.written(*block);
            }
            flush(&mut client);
            for block in 0..BLOCKS {
                verified += read(&mut client, model, block);
            }
            // Space is freed, so that writes need some again.
            for block in 0..BLOCKS {
                client.ask(WRITE_ZEROES, 0, at(block), BLOCK as u32).unwrap();
                model.zeroed(block);
            }
            flush(&mut client);
        }
        verified
    }

    fn process(&self) -> Option<u32> {
        self.served.as_ref().map(|(_, process)| process.0.id())
    }

    fn events(&self) -> String {
        match &self.skipped {
            Some(reason) => format!("skipped: {reason}"),
            None => format!("{} writes without space", self.failed),
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.served = None;
        if self.skipped.is_none() {
            let _ = Command::new("umount").arg("-l").arg(&self.place.folder).status();
        }
    }
}
