//! Tools: wherever the host fails, their images read as before, or as after success.

mod change;
mod join;
mod make;
mod repair;

use std::collections::BTreeMap;
use std::path::Path;

use super::super::faults::{Fault, Host};
use super::images::{Template, look, mode, values};
use super::oracle::Places;
use super::{Outcome, Runs};
use crate::contract::error::OpenError;
use crate::disk::image::{Image, Shrink};
use crate::formats::copy::content::Content;
use crate::formats::findings::{CheckReport, Severity};
use crate::formats::name::FormatName;

/// The values of sectors, by their offsets.
type Known = BTreeMap<u64, u64>;

/// The state when the images are checked.
#[derive(Clone, Copy)]
struct After {
    /// The tool succeeded.
    done: bool,
    /// There was no power failure.
    powered: bool,
}

/// A tool that works on the images of a directory.
struct Tool<'a> {
    name: &'a str,
    /// The file system can clone.
    clones: bool,
    make: &'a dyn Fn(&Path),
    run: &'a dyn Fn(&Path) -> Result<(), String>,
    /// Whether the directory has a permitted state after the run.
    good: &'a dyn Fn(&Path, After) -> Result<(), String>,
    /// A failed run can be repeated.
    again: bool,
}

impl Tool<'_> {
    /// Run with every fault.
    fn test(&self, runs: &mut Runs) {
        let host = Host::new();
        host.allow_clones(self.clones);
        (self.make)(host.folder());
        let template = Template::of(&host);
        runs.every_fault(&host, self.name, |host, fault| self.once(host, &template, fault));
    }

    fn once(
        &self,
        host: &Host,
        template: &Template,
        fault: Option<(usize, Fault)>,
    ) -> Result<Outcome, String> {
        template.restore(host);
        host.arm(fault);
        let done = (self.run)(host.folder());
        let calls = host.disarm();
        if let (Err(error), None) = (&done, host.fault()) {
            return Err(format!("fails: {error}"));
        }
        let told = |view: &'static str| {
            let done = &done;
            move |why| format!("{done:?}, {view}: {why}")
        };
        let good = |powered| (self.good)(host.folder(), After { done: done.is_ok(), powered });
        good(true).map_err(told("in the cache"))?;
        if host.evict() {
            good(true).map_err(told("after an eviction"))?;
        }
        if host.power_loss() {
            good(false).map_err(told("after a power failure"))?;
        }
        if self.again && done.is_err() {
            (self.run)(host.folder()).map_err(told("again"))?;
            let after = After { done: true, powered: false };
            (self.good)(host.folder(), after).map_err(told("after it was done again"))?;
        }
        Ok(match fault.is_some() && !host.hit() {
            true => Outcome::Missed,
            false => Outcome::Done(calls),
        })
    }
}

/// The size and the values of an image.
fn known(path: &Path, block: u64) -> Result<(u64, Known), String> {
    let capacity = look(path)?.info().capacity;
    let places = Places::new(capacity, block);
    Ok((capacity, places.units.iter().copied().zip(values(path, &places)?).collect()))
}

/// Whether an image has one of these sizes, the known values, and zeros where it has grown.
fn holds(path: &Path, block: u64, (size, wanted): &(u64, Known), sizes: &[u64]) -> Result<(), String> {
    let (capacity, found) = known(path, block)?;
    if !sizes.contains(&capacity) {
        return Err(format!("{}: {capacity} bytes, expected one of {sizes:?}", path.display()));
    }
    for (at, value) in found {
        let expected = if at >= *size { Some(&0) } else { wanted.get(&at) };
        if expected.is_some_and(|expected| *expected != value) {
            let name = path.display();
            return Err(format!("{name}: {at:#x} holds {value:x}, expected {expected:x?}"));
        }
    }
    match check(path, false).map_err(|error| error.to_string())? {
        Some(report) if report.worst() == Some(Severity::Damage) => {
            Err(format!("its content is good, and check says {:?}", report.findings))
        }
        _ => Ok(()),
    }
}

/// An image, with its format from its extension.
fn image(path: &Path) -> Image {
    Image::of_format(path, FormatName::claimed(path).unwrap_or(FormatName::Raw))
}

/// Check an image that has blocks.
fn check(path: &Path, repair: bool) -> Result<Option<CheckReport>, OpenError> {
    let image = image(path);
    image.format().has_blocks().then(|| image.check(mode(repair))).transpose()
}

fn resize(path: &Path, size: u64) -> Result<(), OpenError> {
    image(path).resize(size, Shrink::Allow)
}

fn text<T>(result: Result<T, impl std::fmt::Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// Zero whole blocks.
fn clear(path: &Path, block: u64, blocks: &[u64]) {
    let format = crate::formats::open::OpenOptions::new(path).open_format().unwrap();
    for number in blocks {
        Content::new(&*format).write_at(&vec![0; block as usize], number * block).unwrap();
    }
    format.flush().unwrap();
}
