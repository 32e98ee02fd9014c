//! `--disk SPEC`: `KEY=VALUE,...`, or a bare path.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use facts::names::{Adapter, UnknownName};
use paradisk_disk_formats::{EngineKind, FormatName, SectorSize, Sectors, escaped};

use crate::units;

/// What stores the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An image file or a block device, or an image inside one (`FILE//`, `FILE//N`).
    Path(PathBuf),
    /// An image file or a block device that the process was started with.
    Descriptor(RawFd),
    /// Memory of this size.
    Ram(u64),
    /// Nothing: a disk of this size that discards writes and transfers no data.
    Null(u64),
}

impl Source {
    const fn is_file(&self) -> bool {
        matches!(self, Self::Path(_) | Self::Descriptor(_))
    }
}

/// A disk as the user described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpec {
    /// What stores the data.
    pub(crate) source: Source,
    /// The format; `None`: probed.
    pub(crate) format: Option<FormatName>,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// O_DIRECT; `None`: the default of the format.
    pub(crate) direct: Option<bool>,
    /// Which I/O engine transfers data.
    pub(crate) engine: EngineKind,
    /// The adapter that the disk is attached to; `None`: the command's.
    pub(crate) adapter: Option<Adapter>,
    /// The serial number that the guest reads.
    pub(crate) serial: Option<String>,
    /// Latency added to each request.
    pub(crate) delay: Option<Duration>,
    /// Sector sizes of a raw or pass-through disk.
    pub(crate) sectors: Sectors,
    /// The parent of a differencing disk.
    pub(crate) parent: Option<PathBuf>,
    /// Directory where parents of a differencing disk may be, beside its own.
    pub(crate) parent_dir: Option<PathBuf>,
    /// Bytes of memory for the map of a VHD or VHDX at the most; `None`: the default.
    pub(crate) map_memory: Option<u64>,
    /// Request queues of the adapter; `None`: as another disk on it has, else one.
    pub(crate) queues: Option<u16>,
    /// Threads that serve the queues of the adapter; `None`: its one I/O thread.
    pub(crate) threads: Option<u16>,
}

/// The keys with their values.
pub(crate) const KEYS: &str = "path=FILE[//[N]], fd=N, ram=SIZE, null=SIZE, format=auto|raw|passthrough|vhd|vhdx, readonly=on|off, \
     direct=on|off, engine=io_uring|threads, adapter=pvscsi|lsi|lsi-sas|buslogic|ide|ide-native|virtio-blk|virtio-scsi|storvsc, serial=TEXT, delay=TIME, logical-sector-size=512|4096, physical-sector-size=SIZE, parent=FILE, parent-dir=DIR, map-memory=SIZE, queues=N, threads=N";

/// The help of `--disk`: the command's sentence, and then the keys.
macro_rules! disk_help {
    ($sentence:literal) => {
        concat!(
            $sentence,
            "

  path=FILE      image file or block device; FILE//: the image inside its disk, FILE//N: the one in partition N
  fd=N           the same, open already: a descriptor that the process was started with; name the format
  ram=SIZE       a disk in memory
  null=SIZE      a disk that completes at once and moves no data
  format=        auto (probed; a block device is passthrough), raw, passthrough, vhd, vhdx
  readonly=      on, off
  direct=        on, off: O_DIRECT [default: on for passthrough]
  engine=        io_uring, threads: how I/O is done
  adapter=       bench, run: pvscsi, lsi, lsi-sas, buslogic, ide, ide-native, virtio-blk, virtio-scsi, storvsc: the adapter
                 that this disk is attached to
  queues=N       run: request queues of a virtio adapter [default: 1]
  threads=N      run: threads that serve the queues of a virtio-blk [default: the adapter's I/O thread alone]
  serial=TEXT    serial number shown to the guest
  logical-sector-size=
                 raw, passthrough: 512, 4096: smallest unit that guests address [default: that of the device; 512 for a file, or what
                 its GPT counts in]
  physical-sector-size=
                 raw, passthrough: the unit that guests should write [default: that of the device; 4096 for a file]
  parent=FILE    the parent of a differencing disk, wherever it is; the disk itself is not written
  parent-dir=DIR where parents of a differencing disk may be, besides its own directory; they are looked for by name
  map-memory=    maximum memory for the map of a VHD or VHDX, as 256M [default: 64M]
  delay=TIME     ram, null: latency added to each request, as 100us or 5ms"
        )
    };
}
pub(crate) use disk_help;

/// Characters of a serial number at the most.
const SERIAL_MOST: usize = 36;
/// The longest latency that can be added.
const DELAY_MOST: Duration = Duration::from_secs(10);

const FORMATS: [(&str, Option<FormatName>); 5] = [
    ("auto", None),
    ("raw", Some(FormatName::Raw)),
    ("passthrough", Some(FormatName::Passthrough)),
    ("vhd", Some(FormatName::Vhd)),
    ("vhdx", Some(FormatName::Vhdx)),
];
const SECTORS: [(&str, SectorSize); 2] = [("512", SectorSize::B512), ("4096", SectorSize::B4096)];
const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
const ENGINES: [(&str, EngineKind); 2] =
    [("io_uring", EngineKind::IoUring), ("threads", EngineKind::Threads)];

/// Each key as it was given, once at the most.
#[derive(Default)]
struct Keys {
    source: Option<Source>,
    format: Option<Option<FormatName>>,
    read_only: Option<bool>,
    direct: Option<bool>,
    engine: Option<EngineKind>,
    adapter: Option<Adapter>,
    serial: Option<String>,
    delay: Option<Duration>,
    logical_sector: Option<SectorSize>,
    physical_sector: Option<u32>,
    parent: Option<PathBuf>,
    parent_dir: Option<PathBuf>,
    map_memory: Option<u64>,
    queues: Option<u16>,
    threads: Option<u16>,
}

impl FromStr for DiskSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(OsStr::new(text))
    }
}

/// Options take paths that are not UTF-8.
impl ValueParserFactory for DiskSpec {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        ValueParser::new(OsStringValueParser::new().try_map(|text| Self::parse(&text)))
    }
}

impl DiskSpec {
    fn parse(text: &OsStr) -> Result<Self, String> {
        let wrong = |reason: String| format!("disk `{}`: {reason}", escaped(text));
        if text.is_empty() {
            return Err(format!("a disk is empty; expected a path, or: {KEYS}"));
        }
        if !text.as_bytes().contains(&b'=') {
            return Ok(Self::new(Source::Path(text.into()), Keys::default()));
        }
        let mut keys = Keys::default();
        for pair in text.as_bytes().split(|byte| *byte == b',').map(OsStr::from_bytes) {
            let (key, value) = split_once(pair)
                .ok_or_else(|| wrong(format!("`{}` is not KEY=VALUE; keys are: {KEYS}", escaped(pair))))?;
            keys.set(key, value).map_err(&wrong)?;
        }
        let source =
            keys.source.take().ok_or_else(|| wrong("one of path, fd, ram, null is needed".to_owned()))?;
        if !source.is_file()
            && (keys.format.is_some()
                || keys.direct.is_some()
                || keys.logical_sector.is_some()
                || keys.physical_sector.is_some()
                || keys.parent.is_some()
                || keys.parent_dir.is_some()
                || keys.map_memory.is_some())
        {
            let reason = "format, direct, sector sizes, parent, parent-dir and map-memory are for files and devices (path=, fd=)";
            return Err(wrong(reason.to_owned()));
        }
        if !source.is_file() && keys.read_only == Some(true) {
            return Err(wrong("readonly is for files and devices (path=, fd=)".to_owned()));
        }
        if source.is_file() && keys.delay.is_some() {
            return Err(wrong("delay is for disks without files (ram=, null=)".to_owned()));
        }
        if let Some(queues) = keys.queues {
            let most = keys.adapter.map_or(1, |adapter| adapter.kind().max_queues());
            if most == 1 {
                return Err(wrong("queues is for adapter=virtio-blk and adapter=virtio-scsi".to_owned()));
            }
            if !(1..=most).contains(&queues) {
                return Err(wrong(format!("`queues={queues}`: expected 1 to {most}")));
            }
        }
        if let Some(threads) = keys.threads {
            if keys.adapter.is_none_or(|adapter| adapter.kind().max_threads() == 0) {
                return Err(wrong("threads is for adapter=virtio-blk".to_owned()));
            }
            // More threads than queues would have nothing to do.
            let most = keys.queues.unwrap_or(1);
            if !(1..=most).contains(&threads) {
                return Err(wrong(format!(
                    "`threads={threads}`: expected 1 to {most}, a thread for each of its queues"
                )));
            }
        }
        Ok(Self::new(source, keys))
    }

    /// An image file or a block device, with the defaults for everything else.
    pub(crate) fn file(path: PathBuf, read_only: bool) -> Self {
        Self::new(Source::Path(path), Keys { read_only: Some(read_only), ..Keys::default() })
    }

    fn new(source: Source, keys: Keys) -> Self {
        Self {
            source,
            format: keys.format.unwrap_or_default(),
            read_only: keys.read_only.unwrap_or(false),
            direct: keys.direct,
            engine: keys.engine.unwrap_or_default(),
            adapter: keys.adapter,
            serial: keys.serial,
            delay: keys.delay,
            sectors: Sectors { logical: keys.logical_sector, physical: keys.physical_sector },
            parent: keys.parent,
            parent_dir: keys.parent_dir,
            map_memory: keys.map_memory,
            queues: keys.queues,
            threads: keys.threads,
        }
    }
}

impl Keys {
    fn set(&mut self, key: &str, value: &OsStr) -> Result<(), String> {
        match key {
            "path" if value.is_empty() => Err("path is empty".to_owned()),
            "path" => self.source(Source::Path(value.into())),
            "parent" => once(&mut self.parent, key, value.into()),
            "parent-dir" => once(&mut self.parent_dir, key, value.into()),
            _ => match value.to_str() {
                Some(value) => self.set_text(key, value),
                None => Err(format!("`{key}={}`: expected text", escaped(value))),
            },
        }
    }

    fn set_text(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "fd" => self.source(Source::Descriptor(
                value.parse().map_err(|_| format!("`fd={value}`: expected a number"))?,
            )),
            "logical-sector-size" => once(&mut self.logical_sector, key, word(key, value, &SECTORS)?),
            "physical-sector-size" => {
                let size = units::size(value)?;
                let size =
                    u32::try_from(size).map_err(|_| format!("`{key}={value}`: expected at most 1M"))?;
                once(&mut self.physical_sector, key, size)
            }
            "map-memory" => once(&mut self.map_memory, key, units::size(value)?),
            "queues" => once(&mut self.queues, key, number(key, value)?),
            "threads" => once(&mut self.threads, key, number(key, value)?),
            "ram" => self.source(Source::Ram(units::size(value)?)),
            "null" => self.source(Source::Null(units::size(value)?)),
            "format" => once(&mut self.format, key, word(key, value, &FORMATS)?),
            "readonly" => once(&mut self.read_only, key, word(key, value, &SWITCH)?),
            "direct" => once(&mut self.direct, key, word(key, value, &SWITCH)?),
            "engine" => once(&mut self.engine, key, word(key, value, &ENGINES)?),
            "adapter" => {
                let adapter = value.parse().map_err(|error: UnknownName| error.to_string())?;
                once(&mut self.adapter, key, adapter)
            }
            "serial" => {
                let printable = (1..=SERIAL_MOST).contains(&value.len())
                    && value.bytes().all(|byte| byte.is_ascii_graphic());
                if !printable {
                    return Err(format!(
                        "`serial={value}`: expected 1 to {SERIAL_MOST} printable ASCII characters"
                    ));
                }
                once(&mut self.serial, key, value.to_owned())
            }
            "delay" => {
                let delay = units::duration(value)?;
                if delay > DELAY_MOST {
                    return Err(format!("`delay={value}`: expected at most {}s", DELAY_MOST.as_secs()));
                }
                once(&mut self.delay, key, delay)
            }
            _ => Err(format!("unknown key `{key}`; keys are: {KEYS}")),
        }
    }

    fn source(&mut self, source: Source) -> Result<(), String> {
        if self.source.is_some() {
            return Err("only one of path, fd, ram, null".to_owned());
        }
        self.source = Some(source);
        Ok(())
    }
}

/// `KEY=VALUE`.
fn split_once(pair: &OsStr) -> Option<(&str, &OsStr)> {
    let at = pair.as_bytes().iter().position(|byte| *byte == b'=')?;
    let (key, value) = pair.as_bytes().split_at(at);
    Some((std::str::from_utf8(key).ok()?, OsStr::from_bytes(value.get(1..)?)))
}

fn number(key: &str, value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("`{key}={value}`: expected a number"))
}

fn once<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    if slot.is_some() {
        return Err(format!("`{key}` is given twice"));
    }
    *slot = Some(value);
    Ok(())
}

fn word<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("`{key}={value}`: expected one of: {}", allowed.join(", "))
    })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", escaped(path)),
            Self::Descriptor(number) => write!(f, "fd={number}"),
            Self::Ram(size) => write!(f, "ram={size}"),
            Self::Null(size) => write!(f, "null={size}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> DiskSpec {
        text.parse().unwrap()
    }

    fn refused(text: &str) -> String {
        text.parse::<DiskSpec>().unwrap_err()
    }

    #[test]
    fn a_bare_path_takes_the_defaults() {
        let disk = spec("/images/a.vhd");
        assert_eq!(disk.source, Source::Path("/images/a.vhd".into()));
        assert_eq!((disk.format, disk.direct, disk.adapter), (None, None, None));
        assert_eq!((disk.read_only, disk.engine), (false, EngineKind::IoUring));
    }

    #[test]
    fn all_keys() {
        let disk = spec(
            "path=/dev/sdb,format=passthrough,readonly=on,direct=off,engine=threads,adapter=pvscsi,serial=S-1",
        );
        let expected = DiskSpec {
            source: Source::Path("/dev/sdb".into()),
            format: Some(FormatName::Passthrough),
            read_only: true,
            direct: Some(false),
            engine: EngineKind::Threads,
            adapter: Some(Adapter::Pvscsi),
            serial: Some("S-1".into()),
            delay: None,
            sectors: Sectors::default(),
            parent: None,
            parent_dir: None,
            map_memory: None,
            queues: None,
            threads: None,
        };
        assert_eq!(disk, expected);
        assert_eq!(spec("queues=4,threads=2,ram=1M,adapter=virtio-blk").threads, Some(2));
        assert_eq!(spec("queues=4,ram=1M,adapter=virtio-scsi").queues, Some(4));
        let sectors = spec("path=a,logical-sector-size=512,physical-sector-size=4K").sectors;
        assert_eq!(sectors, Sectors { logical: Some(SectorSize::B512), physical: Some(4096) });
        assert_eq!(spec("path=a.vhdx,map-memory=256M").map_memory, Some(256 << 20));
        assert_eq!(spec("ram=256M").source, Source::Ram(256 << 20));
        assert_eq!(spec("readonly=off,null=4G").source, Source::Null(4 << 30));
        assert_eq!(spec("null=4G,delay=100us").delay, Some(Duration::from_micros(100)));
    }

    #[test]
    fn paths_need_not_be_utf_8() {
        let parse = |text: &[u8]| DiskSpec::parse(OsStr::from_bytes(text));
        let path = |text: &[u8]| PathBuf::from(OsStr::from_bytes(text));
        assert_eq!(parse(b"/d/\xff.vhd").unwrap().source, Source::Path(path(b"/d/\xff.vhd")));
        let disk = parse(b"path=\xff,parent=p\xfe,parent-dir=\xfd,readonly=on").unwrap();
        assert_eq!(disk.source, Source::Path(path(b"\xff")));
        assert_eq!((disk.parent, disk.parent_dir), (Some(path(b"p\xfe")), Some(path(b"\xfd"))));
        for (text, expected) in [
            (&b"path=a,serial=\xff"[..], r"disk `path=a,serial=\xff`: `serial=\xff`: expected text"),
            (b"path=a,\xff=on", r"`\xff=on` is not KEY=VALUE"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong_and_what_is_allowed() {
        for (text, expected) in [
            ("", "expected a path"),
            ("path=a,colour=red", "unknown key `colour`; keys are: path=FILE"),
            ("path=a,format=qcow2", "`format=qcow2`: expected one of: auto, raw, passthrough, vhd"),
            ("path=a,readonly=yes", "expected one of: on, off"),
            ("path=a,direct=", "expected one of: on, off"),
            ("path=a,engine=aio", "expected one of: io_uring, threads"),
            ("path=a,adapter=floppy", "adapter `floppy` is not one of: pvscsi, lsi"),
            ("path=a,serial=", "expected 1 to 36 printable"),
            ("path=a,serial=a b", "expected 1 to 36 printable"),
            ("path=a,readonly", "`readonly` is not KEY=VALUE"),
            ("path=a,", "`` is not KEY=VALUE"),
            ("path=", "path is empty"),
            ("ram=4X", "size `4X`"),
            ("ram=1M,null=1M", "only one of path, fd, ram, null"),
            ("path=a,path=b", "only one of path, fd, ram, null"),
            ("path=a,engine=threads,engine=threads", "`engine` is given twice"),
            ("readonly=on", "one of path, fd, ram, null is needed"),
            ("ram=1M,readonly=on", "readonly is for files"),
            (
                "ram=1M,format=raw",
                "format, direct, sector sizes, parent, parent-dir and map-memory are for files",
            ),
            ("path=a,delay=1ms", "delay is for disks without files"),
            ("ram=1M,queues=2", "queues is for adapter=virtio-blk and adapter=virtio-scsi"),
            ("ram=1M,queues=2,adapter=pvscsi", "queues is for adapter=virtio-blk"),
            ("ram=1M,queues=0,adapter=virtio-blk", "`queues=0`: expected 1 to 64"),
            ("ram=1M,queues=63,adapter=virtio-scsi", "`queues=63`: expected 1 to 62"),
            ("ram=1M,queues=two,adapter=virtio-blk", "`queues=two`: expected a number"),
            ("ram=1M,threads=1", "threads is for adapter=virtio-blk"),
            ("ram=1M,queues=2,threads=2,adapter=virtio-scsi", "threads is for adapter=virtio-blk"),
            ("ram=1M,threads=2,adapter=virtio-blk", "`threads=2`: expected 1 to 1, a thread"),
            ("ram=1M,queues=2,threads=0,adapter=virtio-blk", "`threads=0`: expected 1 to 2"),
            ("ram=1M,delay=1", "duration `1`"),
            ("ram=1M,delay=11s", "at most 10s"),
        ] {
            let error = refused(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
