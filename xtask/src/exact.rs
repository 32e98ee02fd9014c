//! `cargo xtask exact`: instructions per I/O of each adapter, split into guest and host, user and kernel, on an emulated host whose
//! clock counts instructions.
//!
//! The count includes all instructions of the machine between two marks of the guest. The bare-metal guest marks each of its jobs; a
//! stock Linux marks its runs of fio.

mod baremetal;
mod counters;
mod figures;
mod gate;
mod linux;
mod measured;
mod options;
mod profile;
mod suite;

use std::error::Error;
use std::fmt::Write;
use std::thread;

use guest_linux::KvmHost;
use serde_json::Value;

use self::figures::Figures;
use self::options::{BaselineMode, Guest, HELP, Options};

/// Measure one adapter after the other, and each time print the rows, write JSON and update the baseline if requested. Then check the
/// baseline. True if no path got longer.
///
/// # Errors
/// Invalid options, an unavailable package, or a failed run, after the other adapters were measured.
pub(crate) fn run(args: &[&str]) -> Result<bool, Box<dyn Error>> {
    if args.iter().any(|word| ["--help", "-h"].contains(word)) {
        print!("{HELP}");
        return Ok(true);
    }
    let options = Options::parse(args)?;
    if let Some(name) = &options.suite {
        return suite::run(name, &options).map(|()| true);
    }
    let mut figures = Figures::new(&options, args)?;
    let mut failed = Vec::new();
    println!("{HEADER}");
    for adapter in &options.adapters {
        if figures.of(adapter).next().is_none() {
            match measure(adapter, &options) {
                Ok(rows) => figures.add(rows)?,
                Err(error) => failed.push(format!("{adapter}: {error}")),
            }
        }
        let rows: Vec<_> = figures.of(adapter).cloned().collect();
        print!("{}", lines(&rows));
        if options.baseline == BaselineMode::Update {
            gate::update(&rows)?;
        }
    }
    if !failed.is_empty() {
        return Err(failed.join("\n").into());
    }
    if options.baseline != BaselineMode::Check {
        return Ok(true);
    }
    let longer = gate::check(figures.rows())?;
    longer.iter().for_each(|line| println!("{line}"));
    Ok(longer.is_empty())
}

/// Measurements that `cargo xtask test --all` compares with the baseline in `benches/exact.json`. Linux with many requests in flight is
/// not in the first group: devices adapt to the guest's pace, so that any change of the pace changes its counts by more than 1%.
///
/// The measurements of a group run in parallel. The second group has one, of how soon PVSCSI adapts to batches: beside other emulators the
/// guest's pace is another one.
const GATE: [&[&str]; 2] = [
    &[
        "--queue-depth 1,32",
        "--guest linux --adapter virtio-blk,pvscsi --disk async --halt-poll 0 --queue-depth 1 --block-size 4K,64K,256K",
        "--adapter pvscsi,lsi-sas,virtio-scsi,virtio-blk --disk passthrough --queue-depth 1",
        "--guest linux --adapter pvscsi,lsi-sas,virtio-scsi,virtio-blk,storvsc,buslogic --queue-depth 1",
    ],
    &["--guest linux --adapter pvscsi --queue-depth 32 --batch 32 --after-singles 3200"],
];

/// Run the [`GATE`] measurements, and compare. Returns the reason if some were skipped.
///
/// # Errors
/// The paths that got longer, or a failed measurement.
pub(crate) fn check() -> Result<Option<String>, String> {
    // An unavailable package skips the measurement: it is no regression.
    let prepared = KvmHost::prepare().and_then(|host| {
        KvmHost::measured_guest()?;
        KvmHost::versions()?;
        Ok(host)
    });
    let host = match prepared {
        Ok(host) => host,
        Err(error) => return Ok(Some(error.to_string())),
    };
    let one = |options: Options| -> Result<(String, Vec<String>), String> {
        let each = options.adapters.iter().map(|adapter| measure(adapter, &options));
        let rows = each.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?.concat();
        Ok((format!("{HEADER}\n{}", lines(&rows)), gate::check(&rows).map_err(|error| error.to_string())?))
    };
    let (mut skipped, mut longer) = (None, Vec::new());
    for group in GATE {
        let mut wanted = Vec::new();
        for words in group {
            let options = Options::parse(&words.split(' ').collect::<Vec<_>>())?;
            match host.emulates(options.host_cpus) {
                Ok(()) => wanted.push(options),
                Err(error) => skipped = Some(error.to_string()),
            }
        }
        let all: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> =
                wanted.into_iter().map(|options| scope.spawn(move || one(options))).collect();
            let joined = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("a measurement panicked".to_owned()))
            };
            running.into_iter().map(joined).collect()
        });
        for done in all {
            let (table, own) = done?;
            print!("{table}");
            longer.extend(own);
        }
    }
    if longer.is_empty() { Ok(skipped) } else { Err(longer.join("\n")) }
}

/// Measure one adapter, in one boot of the host.
fn measure(adapter: &str, options: &Options) -> Result<Vec<Value>, Box<dyn Error>> {
    let options = &Options { adapters: vec![adapter.to_owned()], ..options.clone() };
    match options.guest {
        Guest::BareMetal => baremetal::measure(options),
        Guest::Linux => linux::measure(options),
    }
}

/// The VMMs that a row of `vmm` is compared with; the first that was measured counts.
fn compared(vmm: &str) -> &[&str] {
    const QEMU: [&str; 4] = ["qemu-iothread", "qemu-polling", "qemu", "qemu-storage-daemon"];
    match vmm {
        "vhost-user" => &["qemu-storage-daemon"],
        _ if QEMU.contains(&vmm) => &[],
        _ => &QEMU[..3],
    }
}

/// Above the [`lines`].
const HEADER: &str = "vmm                 adapter     rw        block depth batch   total  guest user  guest kernel  host user  host kernel   exits  \
                      interrupts  latency us  / qemu";

fn lines(rows: &[Value]) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let mut text = String::new();
    for row in rows {
        let each = |name: &str| number(&row["instructions_per_io"][name]);
        let same = |other: &&Value| gate::KEY.iter().all(|key| *key == "vmm" || other[key] == row[key]);
        let peer = |vmm: &&str| rows.iter().filter(same).find(|other| other["vmm"] == **vmm);
        let peer = compared(row["vmm"].as_str().unwrap_or_default()).iter().find_map(peer);
        let ratio = peer.map(|peer| each("total") / number(&peer["instructions_per_io"]["total"]));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<19} {:<11} {:<9} {:>5} {:>5} {:>5} {:>7.0} {:>11.0} {:>13.0} {:>10.0} {:>12.0} {:>7.3} {:>11.3} {:>11}  {}",
            word(&row["vmm"]),
            word(&row["adapter"]),
            word(&row["rw"]),
            word(&row["block_size"]),
            word(&row["queue_depth"]),
            word(&row["batch"]),
            each("total"),
            each("guest_user"),
            each("guest_kernel"),
            each("host_user"),
            each("host_kernel"),
            number(&row["exits_per_io"]),
            number(&row["interrupts_per_io"]),
            row["mean_latency_us"].as_f64().map(|time| format!("{time:.1}")).unwrap_or_default(),
            ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
        );
    }
    text
}
