//! A real system on paradisk's machine: Debian with systemd on a dynamic VHDX, or on a differencing one above it, in L1's KVM. It boots to
//! a login, installs packages while files are replaced as dpkg replaces them, is killed, and boots again.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use guest_linux::{Clock, DebianSystem, Error, HostJob, KvmHost};
use paradisk_disk_formats::image::Content;
use paradisk_disk_formats::{Image, OpenOptions, Repair, Severity};

use crate::matrix::NOT_OURS;
use crate::needed;

const TEST: &str = "long_debian_boots_installs_packages_and_survives_being_killed";
const TIMEOUT: Duration = Duration::from_secs(2400);
/// Bytes of L1's memory. Half of them are for files: the disks, which may grow to four times 513 MiB the longer the load runs.
const MEMORY: u64 = 6 << 30;
/// Adapters, each with the name of its disk in the guest.
const ADAPTERS: [(&str, &str); 3] = [("pvscsi", "sda"), ("lsi", "sda"), ("virtio-blk", "vda")];
const LINE: &str = "paradisk: ";
/// Bytes of the disk up to the end of its partition.
const USED: usize = 513 << 20;
/// Where the root file system begins on the disk, as `e2fsck` takes it.
const PARTITION: &str = "?offset=1048576";
/// A guest's life, by adapter and disk. It is killed after 150 replacements of files; `typed` is its console.
const LIFE: &str = r#"
set -e
adapter=$1 disk=$2
image=/out/$adapter.vhdx
dd if=/dev/vdb of=$image bs=1M 2> /dev/null
# As docs/booting-linux.md has it for a cloud image.
if [ $adapter = virtio-blk ]; then
    mv $image /out/debian.vhdx
    ./paradisk image resize /out/debian.vhdx 20G
    ./paradisk image create $image --format vhdx --subformat differencing --parent /out/debian.vhdx
fi
mkfifo $adapter.typed
exec 3<> $adapter.typed
# The console's file, and words for the guest.
boot() {
    console=$1
    ./paradisk run --kernel vmlinuz --initrd initrd --memory 256M --disk path=$image,adapter=$adapter \
        --cmdline "root=/dev/${disk}1 mitigations=off quiet systemd.service_watchdogs=no $2" > $console < $adapter.typed &
    pid=$!
}
wait_for() {
    until grep -q "$1" $console; do
        ! grep 'paradisk: FAILED' $console || exit 1
        kill -0 $pid || exit 1
        sleep 1
    done
}
boot /out/$adapter.first paradisk.job=load
wait_for 'login:'
wait_for 'synced 149'
kill -9 $pid
wait $pid || true
synced=$(grep -o 'synced [0-9]*' $console | tail -n 1)
boot /out/$adapter.second paradisk.job=verify:${synced#synced }
wait_for 'paradisk: installed'
wait_for 'login:'
echo root >&3
wait_for 'root@debian'
echo 'systemctl poweroff' >&3
wait $pid
./paradisk image check $image
"#;
/// All guests at the same time, each with its own log. Every two minutes the ends of the logs are printed on L1's console, to show where a
/// job that does not end has stopped.
const ALL: &str = r#"
while sleep 120; do tail -n 4 /out/*.log /out/*.first /out/*.second; done &
status=0
for pid in $pids; do wait $pid || status=1; done
df -h / | tail -n 1
ls -l /out
[ $status = 0 ] || { dmesg | tail -n 5; tail -n 5 /out/*.first /out/*.second /out/*.log; }
exit $status
"#;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_debian_boots_installs_packages_and_survives_being_killed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("debian.vhdx");
    let Some((host, job)) = needed(TEST, prepare(&disk)) else { return };
    let ended = host.run(&job, folder.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ended.status, 0, "{}", ended.console);
    for (adapter, _) in ADAPTERS {
        let [first, second] = ["first", "second"].map(|boot| Console::read(folder.path(), adapter, boot));
        for console in [&first, &second] {
            console.has("state running ");
            console.has("installed 1");
            let complaints = console.complaints();
            assert!(complaints.is_empty(), "{adapter}: {complaints:#?}");
        }
        second.has("verified 100");
        assert!(second.lines.iter().any(|line| line.contains("recovery complete")), "{:#?}", second.lines);
        check(folder.path(), adapter);
    }
}

/// L1, and the job with the disk as a VHDX in the file `image`.
fn prepare(image: &Path) -> Result<(KvmHost, HostJob), Error> {
    let host = KvmHost::prepare()?;
    let system = DebianSystem::prepare()?;
    let mut convert = Command::new(KvmHost::paradisk()?);
    convert.args(["image", "convert", "--format", "vhdx"]).arg(&system.disk).arg(image);
    let converted = convert.output().unwrap();
    assert!(converted.status.success(), "{converted:?}");
    let life = image.with_extension("life");
    fs::write(&life, LIFE).unwrap();
    let files = [("vmlinuz", system.kernel), ("initrd", system.initrd), ("life", life)];
    let files = files.map(|(name, path)| (name.to_owned(), path));
    let files = [KvmHost::program()?, files.into()].concat();
    let start = |(adapter, disk)| {
        format!("sh ./life {adapter} {disk} > /out/{adapter}.log 2>&1 &\npids=\"$pids $!\"\n")
    };
    let script = ADAPTERS.map(start).concat() + ALL;
    let (disks, clock) = (vec![image.to_owned()], Clock::Host);
    Ok((host, HostJob { script, files, disks, cpus: 1, clock, memory: MEMORY, timeout: TIMEOUT }))
}

/// What the job printed in one boot.
struct Console {
    lines: Vec<String>,
}

impl Console {
    fn read(folder: &Path, adapter: &str, boot: &str) -> Self {
        let text = fs::read(folder.join(format!("{adapter}.{boot}"))).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines =
            text.lines().filter_map(|line| line.strip_prefix(LINE)).map(|line| line.trim_end_matches('\r'));
        Self { lines: lines.map(str::to_owned).collect() }
    }

    fn has(&self, wanted: &str) {
        assert!(self.lines.iter().any(|line| line == wanted), "no {wanted:?}: {:#?}", self.lines);
    }

    /// Messages of the guest's kernel, without their continuation lines.
    fn complaints(&self) -> Vec<&String> {
        let is_ours = |line: &&String| !NOT_OURS.iter().any(|known| line.contains(known));
        self.lines.iter().filter(|line| line.starts_with("kernel [")).filter(is_ours).collect()
    }
}

/// The image has no fault, and neither has the file system in it.
fn check(folder: &Path, adapter: &str) {
    let image = folder.join(format!("{adapter}.vhdx"));
    let report = Image::open(&image).unwrap().check(Repair::ReportOnly).unwrap();
    // A block that was being allocated when the machine was killed may be leaked.
    let fine = report.worst().is_none_or(|worst| worst == Severity::Leak);
    assert!(fine, "{adapter}: {:?}", report.findings);
    let format = OpenOptions { read_only: true, ..OpenOptions::new(&image) }.open_format().unwrap();
    let mut content = vec![0; USED];
    Content::new(&*format).read_at(&mut content, 0).unwrap();
    let raw = folder.join(format!("{adapter}.raw"));
    fs::write(&raw, content).unwrap();
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.args(["-f", "-n"]).arg(format!("{}{PARTITION}", raw.display()));
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let checked = e2fsck.env("PATH", path).output().unwrap();
    assert!(checked.status.success(), "{adapter}: {checked:?}");
    fs::remove_file(&raw).unwrap();
}
