//! Memory, descriptors and threads of a process, sampled while it is idle, and whether they grow.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// What memory may grow by after the first third of the cycles.
pub(crate) const BOUND: &str = "4 MiB and 5 %";
const MEMORY: f64 = 4.0;
const MEMORY_SHARE: f64 = 0.05;
/// Descriptors and threads by which the line of least squares may rise.
const COUNT: f64 = 0.9;
/// With fewer samples after the warm-up, growth is not judged.
const LEAST: usize = 8;
/// A server needs a moment to notice that its client has gone.
const SETTLE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// Resident, in MiB.
    memory: f64,
    descriptors: f64,
    threads: f64,
}

/// A number in the text of `/proc/PID/status`.
fn field(status: &str, name: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of status");
    line.split_whitespace().next().and_then(|value| value.parse().ok()).expect("a number")
}

/// The largest resident memory of this process so far, in MiB.
pub(crate) fn own_peak() -> f64 {
    field(&fs::read_to_string("/proc/self/status").expect("/proc"), "VmHWM:") / 1024.0
}

impl Sample {
    fn of(process: u32) -> Self {
        let place = PathBuf::from(format!("/proc/{process}"));
        let status = fs::read_to_string(place.join("status")).expect("the process has ended");
        let field = |name| field(&status, name);
        let descriptors = fs::read_dir(place.join("fd")).expect("descriptors").count() as f64;
        Self { memory: field("VmRSS:") / 1024.0, descriptors, threads: field("Threads:") }
    }
}

/// Whether a process has grown.
#[derive(Debug, PartialEq)]
pub(crate) enum Growth {
    /// No process lives on.
    NoProcess,
    /// There are too few samples to tell.
    NotJudged,
    None,
    /// What has grown, and by how much.
    Grown(String),
}

/// Samples of a process, one a cycle.
#[derive(Default)]
pub(crate) struct Series {
    samples: Vec<Sample>,
}

impl Series {
    /// Sample, when the process is as idle as it was before.
    pub(crate) fn take(&mut self, process: u32) {
        let calm = |samples: &[Sample], field: fn(&Sample) -> f64| {
            samples.iter().map(field).fold(f64::INFINITY, f64::min)
        };
        let begin = Instant::now();
        let mut sample = Sample::of(process);
        while begin.elapsed() < SETTLE
            && (sample.descriptors > calm(&self.samples, |sample| sample.descriptors)
                || sample.threads > calm(&self.samples, |sample| sample.threads))
        {
            thread::sleep(Duration::from_millis(50));
            sample = Sample::of(process);
        }
        self.samples.push(sample);
    }

    /// The samples after the process has warmed up.
    fn warm(&self) -> &[Sample] {
        &self.samples[self.samples.len() / 3..]
    }

    pub(crate) fn growth(&self) -> Growth {
        let warm = self.warm();
        if self.samples.is_empty() {
            return Growth::NoProcess;
        }
        if warm.len() < LEAST {
            return Growth::NotJudged;
        }
        let rise = |field: fn(&Sample) -> f64| rise(&warm.iter().map(field).collect::<Vec<_>>());
        let allowed = MEMORY + MEMORY_SHARE * warm[0].memory;
        let grown = [
            ("memory, in MiB", rise(|sample| sample.memory), allowed),
            ("descriptors", rise(|sample| sample.descriptors), COUNT),
            ("threads", rise(|sample| sample.threads), COUNT),
        ];
        let found = grown.into_iter().find(|(_, by, allowed)| by > allowed);
        found.map_or(Growth::None, |(what, by, allowed)| {
            let cycles = warm.len();
            Growth::Grown(format!("{what} grew by {by:.1} in {cycles} cycles, allowed are {allowed:.1}"))
        })
    }

    /// First and last values of all three, as text.
    pub(crate) fn ends(&self) -> (String, String, String) {
        let (Some(first), Some(last)) = (self.warm().first(), self.samples.last()) else {
            return ("-".to_owned(), "-".to_owned(), "-".to_owned());
        };
        let pair = |a: f64, b: f64| format!("{a:.0} to {b:.0}");
        (
            format!("{:.1} to {:.1}", first.memory, last.memory),
            pair(first.descriptors, last.descriptors),
            pair(first.threads, last.threads),
        )
    }
}

/// By how much the line of least squares rises from the first value to the last.
fn rise(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count;
    let (middle, average) = ((count - 1.0) / 2.0, mean(&mut values.iter().copied()));
    let places = || values.iter().zip(0u32..).map(|(value, at)| (f64::from(at) - middle, value - average));
    let (together, alone) =
        places().fold((0.0, 0.0), |(together, alone), (x, y)| (together + x * y, alone + x * x));
    if alone > 0.0 { together / alone * (count - 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: impl Iterator<Item = Sample>) -> Series {
        Series { samples: samples.collect() }
    }

    const FLAT: Sample = Sample { memory: 10.0, descriptors: 12.0, threads: 4.0 };

    #[test]
    fn what_is_flat_does_not_grow() {
        let noisy = (0..60).map(|at| Sample { memory: 10.0 + f64::from(at % 3), ..FLAT });
        assert_eq!(series(noisy).growth(), Growth::None);
        // Warming up is no growth.
        let warming = (0..60).map(|at| Sample { memory: f64::from(at.min(15)), ..FLAT });
        assert_eq!(series(warming).growth(), Growth::None);
    }

    #[test]
    fn a_leak_is_growth() {
        let grown = |growth, what| matches!(growth, Growth::Grown(text) if text.starts_with(what));
        let memory = (0..60).map(|at| Sample { memory: 10.0 + 0.2 * f64::from(at), ..FLAT });
        assert!(grown(series(memory).growth(), "memory"));
        let descriptors = (0..60).map(|at| Sample { descriptors: 12.0 + f64::from(at / 20), ..FLAT });
        assert!(grown(series(descriptors).growth(), "descriptors"));
        let threads = (0..12).map(|at| Sample { threads: 4.0 + f64::from(at), ..FLAT });
        assert!(grown(series(threads).growth(), "threads"));
    }

    #[test]
    fn too_few_samples_are_not_judged() {
        assert_eq!(series(std::iter::empty()).growth(), Growth::NoProcess);
        let leak = |count| (0..count).map(|at| Sample { threads: 4.0 + f64::from(at), ..FLAT });
        assert_eq!(series(leak(10)).growth(), Growth::NotJudged);
        assert!(matches!(series(leak(12)).growth(), Growth::Grown(_)));
    }

    #[test]
    fn this_process_has_samples() {
        let mut series = Series::default();
        series.take(std::process::id());
        assert!(series.samples[0].memory > 0.5 && series.samples[0].descriptors >= 3.0);
    }
}
