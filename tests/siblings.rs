//! Families of images and the real binary: after any command, ended by itself or by a signal at any moment, each image reads as
//! before or is refused with a reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{Image, OpenError, OpenOptions, ParentRules, Scope};
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;
/// From the root up; the one in a folder of its own is the sibling of the one before.
const NAMES: [&str; 5] = ["root", "parent", "child", "elsewhere/sibling", "grandchild"];
/// The parent of each.
const PARENTS: [Option<usize>; 5] = [None, Some(0), Some(1), Some(1), Some(2)];
/// Families of each kind, and commands in each.
const ROUNDS: usize = 14;
const COMMANDS: usize = 3;
/// What a merge says that a signal has stopped.
const STOPPED: &str = "reads as before and can be merged again";
/// For what depends on when a signal or the kernel is done.
const TIMEOUT: Duration = Duration::from_secs(600);

fn command(args: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paradisk"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn words(args: &[&str]) -> Vec<String> {
    args.iter().map(|&word| word.to_owned()).collect()
}

fn done(args: &[String]) {
    let output = command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

struct Family {
    folder: PathBuf,
    format: &'static str,
    /// What each image reads where it opens.
    expected: Vec<Vec<u8>>,
}

impl Family {
    /// A new family: each image has some data of its own, most of all the child.
    fn new(folder: &Path, format: &'static str, subformat: &str) -> Self {
        let mut family = Self { folder: folder.into(), format, expected: Vec::new() };
        fs::create_dir(folder.join("elsewhere")).unwrap();
        for (number, parent) in PARENTS.into_iter().enumerate() {
            let path = family.path(number);
            let base = match parent {
                None => words(&["--subformat", subformat, "--size", &SIZE.to_string()]),
                Some(parent) => words(&["--parent", &family.path(parent)]),
            };
            done(&[words(&["image", "create", &path, "--format", format]), base].concat());
            let mut data = parent.map_or_else(|| vec![0; SIZE], |parent| family.expected[parent].clone());
            let disk = family.options(number, false).open_format().unwrap();
            let len = if number == 2 { 10 * MIB } else { MIB };
            for at in [number * MIB, 12 * MIB + number * 4096] {
                let len = len.min(SIZE - at);
                let bytes: Vec<u8> = (0..len).map(|byte| (byte / 512 * 7 + number * 31 + 1) as u8).collect();
                Content::new(&*disk).write_at(&bytes, at as u64).unwrap();
                data[at..at + len].copy_from_slice(&bytes);
            }
            disk.flush().unwrap();
            family.expected.push(data);
        }
        family
    }

    /// The same in another folder.
    fn copy(&self, folder: &Path) -> Self {
        fs::create_dir(folder.join("elsewhere")).unwrap();
        let copy = Self { folder: folder.into(), format: self.format, expected: self.expected.clone() };
        for number in 0..NAMES.len() {
            fs::copy(self.path(number), copy.path(number)).unwrap();
        }
        copy
    }

    fn path(&self, number: usize) -> String {
        self.folder.join(NAMES[number]).with_extension(self.format).display().to_string()
    }

    fn options(&self, number: usize, read_only: bool) -> OpenOptions {
        let parents = ParentRules { directories: vec![self.folder.clone()], ..ParentRules::default() };
        OpenOptions { read_only, parents, ..OpenOptions::new(self.path(number)) }
    }

    /// From an image down: as far as they are named, which changes as images are rebased.
    fn chain(&self, number: usize) -> Vec<usize> {
        let rules = self.options(number, true).parents;
        let format = self.format.parse().expect("a format");
        let image = Image::of_format(self.path(number), format).with_parents(rules);
        let chain = image.info(Scope::Chain).unwrap_or_default();
        let number = |path: &PathBuf| (0..NAMES.len()).find(|number| Path::new(&self.path(*number)) == path);
        chain.iter().filter_map(|image| number(&image.path)).collect()
    }

    /// What an image reads, or why it is refused; `None` where it is gone.
    fn read(&self, number: usize) -> Option<Result<Vec<u8>, String>> {
        if !Path::new(&self.path(number)).exists() {
            return None;
        }
        let began = Instant::now();
        loop {
            let disk = match self.options(number, true).open_format() {
                // The kernel may hold the files of a process that was killed a moment longer.
                Err(OpenError::Busy { .. }) if began.elapsed() < TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(error) => return Some(Err(error.to_string())),
                Ok(disk) => disk,
            };
            let content = Content::new(&*disk);
            let mut data = vec![0; SIZE];
            return Some(content.read_at(&mut data, 0).map(|()| data).map_err(|error| error.to_string()));
        }
    }
}

/// A command, and which image may read otherwise afterwards.
struct Step {
    args: Vec<String>,
    changes: Vec<usize>,
    /// The image that is merged.
    merges: Option<usize>,
}

fn step(family: &Family, random: &mut Rng) -> Step {
    let folder = family.folder.display().to_string();
    let rules = ["--parent-dir", &folder];
    let target = 1 + random.usize(..NAMES.len() - 1);
    let path = family.path(target);
    let plain = |args: &[&str]| Step { args: words(args), changes: Vec::new(), merges: None };
    let chain = family.chain(target);
    let merge = |more: &[&str], changes: Vec<usize>| Step {
        args: words(&[&["image", "merge", &path, "--force"][..], more, &rules].concat()),
        changes,
        merges: Some(target),
    };
    let new = family.folder.join("new").with_extension(family.format).display().to_string();
    let size = if random.usize(..2) == 0 { "20M" } else { "16M" };
    match random.usize(..14) {
        0..4 | 13 => merge(&[], chain.get(1).copied().into_iter().collect()),
        4 if chain.len() > 2 => {
            // It is merged into the images between first, and these are deleted, too.
            Step { merges: None, ..merge(&["--into", &family.path(0)], chain.into_iter().skip(1).collect()) }
        }
        4 => plain(&[&["image", "merge", &path, "--to", &new][..], &rules].concat()),
        5 | 6 => {
            let number = random.usize(..NAMES.len());
            let spec = format!("path={},parent-dir={folder}", family.path(number));
            let load =
                ["--rw", "randwrite", "--destroy", "--raw-size", "1M", "--duration", "20ms", "--runs", "1"];
            Step { changes: vec![number], ..plain(&[&["image", "bench", &spec][..], &load].concat()) }
        }
        7 => plain(
            &[
                &["image", "resize", &family.path(random.usize(..NAMES.len())), size, "--shrink", "--force"]
                    [..],
                &rules,
            ]
            .concat(),
        ),
        8 => plain(&["image", "compact", &family.path(random.usize(..NAMES.len()))]),
        9 => {
            plain(&[&["image", "rebase", &path, "--safe", "--parent", &family.path(0)][..], &rules].concat())
        }
        10 | 11 => plain(&["image", "check", &family.path(random.usize(..NAMES.len())), "--repair"]),
        _ => plain(&["image", "create", &new, "--format", family.format, "--parent", &family.path(2)]),
    }
}

/// Run it, and end it at some moment: as a user does, or at once.
fn ended(args: &[String], random: &mut Rng) -> (Output, &'static str) {
    let child = command(args).spawn().unwrap();
    let (signal, name) = [
        (None, "nothing"),
        (Some(Signal::INT), "SIGINT"),
        (Some(Signal::KILL), "SIGKILL"),
        (Some(Signal::KILL), "SIGKILL"),
    ][random.usize(..4)];
    if let Some(signal) = signal {
        // A command takes some milliseconds: most kills hit it while it runs.
        std::thread::sleep(Duration::from_micros(random.u64(..40_000)));
        send(&child, signal);
    }
    (child.wait_with_output().unwrap(), name)
}

fn send(child: &Child, signal: Signal) {
    // It may have ended already.
    let _ = kill_process(Pid::from_child(child), signal);
}

#[derive(Default, Debug)]
struct Seen {
    good: usize,
    refused: usize,
    ended: usize,
}

/// Run commands on a family, and check all of it after each.
fn life(mut family: Family, random: &mut Rng, seen: &mut Seen) {
    for _ in 0..COMMANDS {
        let step = step(&family, random);
        let before: Vec<bool> =
            (0..NAMES.len()).map(|number| matches!(family.read(number), Some(Ok(_)))).collect();
        let (output, signal) = ended(&step.args, random);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let place = format!("{:?}, {signal}, {:?}: {text}", step.args, output.status);
        seen.ended += usize::from(output.status.code().is_none());
        for (number, was_good) in before.into_iter().enumerate() {
            match family.read(number) {
                None => {
                    let merges = step.args.iter().any(|word| word == "merge");
                    assert!(!was_good || merges, "{place}: image {number} is gone");
                }
                Some(Ok(found)) if step.changes.contains(&number) => family.expected[number] = found,
                Some(Ok(found)) => {
                    assert!(found == family.expected[number], "{place}: image {number} reads otherwise");
                    seen.good += 1;
                }
                Some(Err(why)) => {
                    assert!(why.contains(&family.folder.display().to_string()), "{place}: {why}");
                    assert!(
                        !was_good || step.merges != Some(number),
                        "{place}: what is merged is refused: {why}"
                    );
                    seen.refused += 1;
                }
            }
        }
        if let (Some(child), true) = (step.merges, text.contains("stopped:")) {
            assert!(text.contains(STOPPED), "{place}");
            assert!(matches!(family.read(child), Some(Ok(_))), "{place}");
        }
        let _ = fs::remove_file(family.folder.join("new").with_extension(family.format));
    }
}

#[test]
fn each_image_of_a_family_reads_as_before_or_is_refused() {
    let mut seen = Seen::default();
    let mut random = Rng::with_seed(0x5EED_1234_5678);
    for (format, subformat) in [("vhd", "fixed"), ("vhd", "dynamic"), ("vhdx", "fixed"), ("vhdx", "dynamic")]
    {
        let folder = tempfile::tempdir().unwrap();
        let family = Family::new(folder.path(), format, subformat);
        for _ in 0..ROUNDS {
            let copy = tempfile::tempdir().unwrap();
            life(family.copy(copy.path()), &mut random, &mut seen);
        }
    }
    println!("{seen:?}");
    assert!(seen.good > 200 && seen.refused > 50 && seen.ended > 10, "{seen:?}");
}

#[test]
fn a_merge_that_was_stopped_can_be_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let family = Family::new(folder.path(), "vhdx", "dynamic");
    let (began, mut delay) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < TIMEOUT {
        let copy = tempfile::tempdir().unwrap();
        let family = family.copy(copy.path());
        let merge = words(&["image", "merge", &family.path(2), "--force"]);
        let child = command(&merge).spawn().unwrap();
        std::thread::sleep(delay);
        send(&child, Signal::INT);
        let output = child.wait_with_output().unwrap();
        if String::from_utf8_lossy(&output.stderr).contains(STOPPED) {
            assert_eq!(family.read(2).as_ref(), Some(&Ok(family.expected[2].clone())));
            done(&merge);
            assert_eq!(family.read(1).as_ref(), Some(&Ok(family.expected[2].clone())));
            return;
        }
        // The signal came too late, or before the program was ready for it.
        delay = if output.status.success() { Duration::ZERO } else { delay + Duration::from_millis(1) };
    }
    panic!("no signal came in time");
}
