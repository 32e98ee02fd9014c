//! Job files of fio: the keys that describe the load. A file with an unsupported key is refused.
//!
//! A section is a load. fio's engine, its files and direct I/O are properties of the disk here: those keys are accepted with a note.

use std::time::Duration;

use facts::units::parse_size;

use super::Mix;

/// Supported keys.
const KEYS: &str = "rw (readwrite), bs (blocksize), iodepth, rwmixread, rwmixwrite, percentage_random, runtime, size, numjobs, \
                    blockalign, random_distribution, thinktime, thinktime_blocks, stonewall";
/// Keys without effect here.
const WITHOUT_EFFECT: [&str; 11] = [
    "name",
    "description",
    "group_reporting",
    "time_based",
    "thread",
    "norandommap",
    "randrepeat",
    "write_bw_log",
    "write_lat_log",
    "write_iops_log",
    "log_avg_msec",
];
/// Keys that are properties of the disk.
const OF_THE_DISK: [&str; 5] = ["filename", "directory", "direct", "ioengine", "buffered"];

/// The jobs of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Jobs {
    /// One for each section.
    pub mixes: Vec<Mix>,
    /// Length of each run.
    pub runtime: Option<Duration>,
    /// Ignored keys, and the reasons.
    pub notes: Vec<String>,
}

/// Why a job file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// An unknown key.
    #[error("line {line}: key `{key}` is not known; keys are: {KEYS}")]
    Key {
        /// Line number, from 1.
        line: usize,
        /// The key.
        key: String,
    },
    /// An invalid or unsupported value.
    #[error("line {line}: {key}={value}: {reason}")]
    Value {
        /// Line number, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The error, and the allowed values.
        reason: String,
    },
    /// The section as a whole is invalid.
    #[error("[{section}]: {reason}")]
    Section {
        /// Its name.
        section: String,
        /// The error.
        reason: String,
    },
}

/// A section while it is parsed; the others start with the values of `[global]`.
#[derive(Clone, Default)]
struct Section {
    name: String,
    rw: Option<String>,
    block_size: Option<u32>,
    depth: Option<u32>,
    read_percent: Option<u32>,
    random_percent: Option<u32>,
    runtime: Option<Duration>,
    size: Option<u64>,
    workers: Option<u32>,
    align: Option<u32>,
    zipf: Option<f64>,
    think: Option<Duration>,
    burst: Option<u32>,
    alone: bool,
}

/// Read a job file.
///
/// # Errors
/// [`JobError`] with the line and the allowed values.
pub fn read(text: &str) -> Result<Jobs, JobError> {
    let mut global = Section::default();
    let mut sections: Vec<Section> = Vec::new();
    let mut in_global = true;
    let mut notes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            in_global = name == "global";
            if in_global && !sections.is_empty() {
                let reason = "stands behind a job, which would change for those after it alone".to_owned();
                return Err(JobError::Section { section: name.to_owned(), reason });
            }
            if !in_global {
                sections.push(Section { name: name.to_owned(), ..global.clone() });
            }
            continue;
        }
        let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| (key.trim(), value.trim()));
        let section = match sections.last_mut() {
            Some(section) if !in_global => section,
            _ => &mut global,
        };
        if OF_THE_DISK.contains(&key) {
            notes.push(format!("fio: {line} is not used: disks and how they are opened are given with --disk (direct=, engine=)"));
        } else if !WITHOUT_EFFECT.contains(&key) {
            section.set(key, value).map_err(|wrong| match wrong {
                None => JobError::Key { line: line_number, key: key.to_owned() },
                Some(reason) => JobError::Value {
                    line: line_number,
                    key: key.to_owned(),
                    value: value.to_owned(),
                    reason,
                },
            })?;
        }
    }
    conclude(sections, notes)
}

fn conclude(sections: Vec<Section>, mut notes: Vec<String>) -> Result<Jobs, JobError> {
    let refuse = |section: &Section, reason: &str| {
        Err(JobError::Section { section: section.name.clone(), reason: reason.to_owned() })
    };
    let Some(first) = sections.first() else {
        return refuse(
            &Section { name: "global".to_owned(), ..Section::default() },
            "there is no job section",
        );
    };
    if let Some(beside) = sections.iter().skip(1).find(|section| !section.alone) {
        return refuse(
            beside,
            "runs beside the section before it: jobs run one after another here, as with `stonewall`",
        );
    }
    if let Some(other) = sections.iter().find(|section| section.runtime != first.runtime) {
        return refuse(other, "all sections have the same runtime here");
    }
    if sections.iter().any(|section| section.workers.is_some_and(|workers| workers > 1)) {
        notes.push(
            "fio: numjobs are streams of one queue here; sequential ones start evenly spread over the disk"
                .to_owned(),
        );
    }
    notes.push("fio: random offsets are drawn with repetition (norandommap)".to_owned());
    let runtime = first.runtime;
    let mixes = sections.into_iter().map(Section::mix).collect::<Result<Vec<_>, _>>()?;
    if let Some(mix) =
        mixes.iter().find(|mix| mixes.iter().filter(|other| other.name == mix.name).count() > 1)
    {
        let reason = "two sections have this name".to_owned();
        return Err(JobError::Section { section: mix.name.clone(), reason });
    }
    Ok(Jobs { mixes, runtime, notes })
}

impl Section {
    /// Apply a key's value. The error is the reason, or `None` for an unknown key.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Option<String>> {
        let number = || value.parse::<u32>().map_err(|_| Some("expected a number".to_owned()));
        let percent = || match value.parse::<u32>() {
            Ok(percent @ 0..=100) => Ok(percent),
            _ => Err(Some("expected 0 to 100; one value for reads and writes".to_owned())),
        };
        match key {
            "rw" | "readwrite" => self.rw = Some(value.to_owned()),
            "bs" | "blocksize" => self.block_size = Some(bytes(value)?),
            "blockalign" | "ba" => self.align = Some(bytes(value)?),
            "iodepth" => self.depth = Some(number()?),
            "numjobs" => self.workers = Some(number()?),
            "rwmixread" => self.read_percent = Some(percent()?),
            "rwmixwrite" => self.read_percent = Some(100 - percent()?),
            "percentage_random" => self.random_percent = Some(percent()?),
            "size" if value.ends_with('%') => {
                return Err(Some("a part of the disk is not known here: give bytes, as 1G".to_owned()));
            }
            "size" => self.size = Some(parse_size(value.trim_end_matches(['i', 'b', 'B'])).map_err(Some)?),
            "runtime" => self.runtime = Some(time(value, 1e6)?),
            "thinktime" => self.think = Some(time(value, 1.0)?),
            "thinktime_blocks" => self.burst = Some(number()?),
            "random_distribution" => match value.split_once(':') {
                None if value == "random" => self.zipf = None,
                Some(("zipf", exponent)) => {
                    let exponent =
                        exponent.parse::<f64>().map_err(|_| Some("expected zipf:NUMBER".to_owned()))?;
                    self.zipf = Some(exponent);
                }
                _ => return Err(Some("expected random or zipf:NUMBER".to_owned())),
            },
            "stonewall" | "wait_for_previous" => self.alone = value != "0",
            _ => return Err(None),
        }
        Ok(())
    }

    fn mix(self) -> Result<Mix, JobError> {
        let refuse = |reason: String| JobError::Section { section: self.name.clone(), reason };
        let rw = self.rw.as_deref().unwrap_or("read");
        let (reads, random) = match rw {
            "read" => (Some(100), 0),
            "write" => (Some(0), 0),
            "randread" => (Some(100), 100),
            "randwrite" => (Some(0), 100),
            "rw" | "readwrite" => (None, 0),
            "randrw" => (None, 100),
            _ => {
                return Err(refuse(format!(
                    "rw={rw}: expected read, write, randread, randwrite, rw, readwrite or randrw"
                )));
            }
        };
        if self.random_percent.is_some() && random == 0 {
            return Err(refuse(format!("percentage_random is for random patterns, and rw={rw}")));
        }
        let plain = Mix::plain(
            self.name.clone(),
            self.block_size.unwrap_or(4096),
            reads.or(self.read_percent).unwrap_or(50),
            self.random_percent.unwrap_or(random),
        );
        let think_time = self.think.unwrap_or_default();
        let mix = Mix {
            alignment: self.align,
            working_set: self.size,
            queue_depths: vec![self.depth.unwrap_or(1)],
            workers: vec![self.workers.unwrap_or(1)],
            zipf: self.zipf,
            burst: if think_time.is_zero() { 0 } else { self.burst.unwrap_or(1) },
            think_time,
            ..plain
        };
        mix.check().map_err(|error| refuse(error.to_string()))?;
        Ok(mix)
    }
}

/// The size of an access; the same for reads and writes.
fn bytes(value: &str) -> Result<u32, Option<String>> {
    if value.contains([',', '-', ':']) {
        return Err(Some("expected one size, for reads and writes alike".to_owned()));
    }
    let bytes = parse_size(value.trim_end_matches(['i', 'b', 'B'])).map_err(Some)?;
    u32::try_from(bytes).map_err(|_| Some("expected at most 1M".to_owned()))
}

/// A time with `us`, `ms`, `s`, `m`, or in units of `unit` microseconds.
fn time(value: &str, unit: f64) -> Result<Duration, Option<String>> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    let (number, unit) = units
        .into_iter()
        .find_map(|(name, each)| Some((value.strip_suffix(name)?, each)))
        .unwrap_or((value, unit));
    let wrong = || Some("expected a number, with us, ms, s or m behind it".to_owned());
    let number = number.parse::<u32>().map_err(|_| wrong())?;
    Ok(Duration::from_secs_f64(f64::from(number) * unit / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_is_read() {
        let text = "; a comment\n[global]\nioengine=libaio\ndirect=1\nbs=8k\nruntime=30\ntime_based\nsize=1Gi\n\n[oltp]\nrw=randrw\n\
                    rwmixread=70\niodepth=32\nnumjobs=2\npercentage_random=80\n[log]\nstonewall\nrw=write\nbs=64k\nthinktime=500\n\
                    thinktime_blocks=4\n[hot]\nstonewall\nrw=randread\nrandom_distribution=zipf:1.1\nblockalign=512\n";
        let jobs = read(text).unwrap();
        assert_eq!(jobs.runtime, Some(Duration::from_secs(30)));
        let [oltp, log, hot] = &jobs.mixes[..] else { panic!("three jobs") };
        assert_eq!(oltp.summary(), "8K, 70% read, 80% random, 1G accessed, depth 32, workers 2");
        assert_eq!(
            log.summary(),
            "64K, 0% read, 0% random, 1G accessed, bursts of 4, 500µs apart, depth 1, workers 1"
        );
        assert_eq!((hot.zipf, hot.alignment, hot.name.as_str()), (Some(1.1), Some(512), "hot"));
        assert_eq!(jobs.notes.iter().filter(|note| note.contains("--disk")).count(), 2);
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_name() {
        for (text, wanted) in [
            ("[a]\nverify=crc32c\n", "line 2: key `verify` is not known; keys are: rw (readwrite), bs"),
            ("[a]\nbs=4k,8k\n", "line 2: bs=4k,8k: expected one size"),
            ("[a]\nsize=50%\n", "line 2: size=50%: a part of the disk"),
            (
                "[a]\nrandom_distribution=pareto:0.5\n",
                "line 2: random_distribution=pareto:0.5: expected random or zipf",
            ),
            ("[a]\nrwmixread=101\n", "line 2: rwmixread=101: expected 0 to 100"),
            ("[a]\niodepth=x\n", "line 2: iodepth=x: expected a number"),
            ("[a]\nrw=trim\n", "[a]: rw=trim: expected read, write"),
            ("[a]\nrw=rw\npercentage_random=5\n", "[a]: percentage_random is for random patterns"),
            ("[a]\niodepth=1000\n", "[a]: queue-depth: expected 1 to 256"),
            ("[a]\nrw=read\n[b]\nrw=write\n", "[b]: runs beside the section before it"),
            ("[a]\nruntime=5\n[b]\nruntime=6\nstonewall\n", "[b]: all sections have the same runtime"),
            ("[a]\n[a]\nstonewall\n", "[a]: two sections have this name"),
            ("[a]\n[global]\n", "[global]: stands behind a job"),
            ("[global]\nbs=4k\n", "[global]: there is no job section"),
            ("[a]\nwhat is this\n", "line 2: key `what is this`"),
            ("", "[global]: there is no job section"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
    }
}
