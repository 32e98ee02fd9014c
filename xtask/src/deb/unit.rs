//! The package's example units under a service manager: systemd is the first process of the package's root folder, in namespaces of its
//! own. For each protocol, the commands of the documentation set a disk up, and [clients](client) of two users connect to its socket.

mod client;

use std::fs;
use std::process::Command;

use guest_linux::{DebianRoot, Qemu};

use self::client::{BOOTED, MEMBER, OTHER, PROTOCOLS};
use super::contents::DOC;
use crate::command::output;

/// Has the commands that set a disk up, in the one block of code that enables a unit.
const DOCUMENT: &str = "docs/serving-disks.md";
const ENABLES: &str = "\nsystemctl enable --now ";
/// Which example the commands configure, and so the protocol.
const CONFIGURATION: &str = "vhost-user-blk.conf";

/// Where the root folder has the cache. Users other than root can go there.
const CACHE: &str = "/cache";
/// What the service manager makes first.
const STARTED: &str = "started";
/// What systemd starts. It ends with the last service.
const TRIAL: &str = "[Service]
Type=oneshot
ExecStart=/bin/sh /trial
ExecStopPost=systemctl exit
";

/// `clients` sets a disk up by the commands of the documentation, and prints what two clients of its socket do. Beside these commands it
/// adds the clients' users, and puts a boot sector on the disk.
const SCRIPT: &str = "is_active() { systemctl is-active paradisk-disk@scratch.$1; }
clients() {
    sh -e /steps-$1 || return
    systemd-sysusers /users.conf
    cp /booted.vhdx /srv/images/scratch.vhdx
    stat -c '%A %G' /run/paradisk/scratch.socket
    echo \"the socket is $(is_active socket), the service is $(is_active service)\"
    for user in $OTHER $MEMBER; do
        systemctl start client-$1@$user
        echo \"after $user, the service is $(is_active service)\"
    done
    systemctl show --property StatusText paradisk-disk@scratch.service
    ls -l /run/paradisk-scratch
    systemctl disable --now paradisk-disk@scratch.socket
    systemctl stop paradisk-disk@scratch.service
    systemctl show --property Result,ExecMainStatus paradisk-disk@scratch.service
    rm -r /srv/images /etc/paradisk
}
";

/// Makes the image with the boot sector. Services of systemd are masked that cannot run in the root folder. So is systemd-sysusers.service,
/// which would add the package's users before the commands of the documentation do.
const PREPARE: &str = "set -e
mkdir -p /sys /run /cache
paradisk image convert /booted.raw /booted.vhdx --format vhdx
systemctl mask --quiet systemd-sysusers.service systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket \\
    systemd-udevd.service systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-sysctl.service
";

/// The mounts of the root folder `$1`, with the folder `$2` as `/cache`, and its first process. The kernel's settings and devices cannot be
/// changed there.
const FIRST: &str = "set -e
mount --make-rprivate /
mount --bind \"$1\" \"$1\"
cd \"$1\"
mount -t tmpfs tmpfs dev
for name in null zero random urandom; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount -t tmpfs tmpfs run
mount --bind \"$2\" cache
mount -o remount,ro,bind cache
exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --system --unit=trial.service --log-target=console
";

/// Run the units. What this machine lacks for it, if it lacks something.
pub(super) fn check(root: &DebianRoot) -> Result<Option<String>, String> {
    // In a user namespace of its own, root has no other users to give files to.
    if output("id", &["-u"])?.trim() != "0" {
        return Ok(Some("units of the package: needs root".to_owned()));
    }
    let qemu = match Qemu::backported() {
        Ok(qemu) => qemu,
        Err(error) => return Ok(Some(format!("units of the package: QEMU: {error}"))),
    };
    let cache = guest_linux::cache().map_err(|error| error.to_string())?;
    // QEMU is in the cache.
    let system = client::shell(&qemu.system()).replace(&*cache.to_string_lossy(), CACHE);
    prepare(root, &system)?;
    let mut first = Command::new("timeout");
    first.args(["--kill-after=10", "300", "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
    first.args(["--cgroup", "sh", "-c", FIRST, "sh"]).arg(root.path()).arg(cache);
    let console = first.output().map_err(|error| format!("timeout: {error}"))?;
    if !root.path().join(STARTED).exists() {
        let said = String::from_utf8_lossy(&console.stderr);
        let said = said.lines().last().unwrap_or("no reason given");
        return Ok(Some(format!("units of the package: no service manager runs here: {said}")));
    }
    for (protocol, _) in PROTOCOLS {
        let result = root.path().join(client::result(protocol));
        let result = fs::read_to_string(&result).map_err(|error| format!("{}: {error}", result.display()))?;
        as_documented(&result)
            .map_err(|missing| format!("units for {protocol}: {missing} is not in: {result}"))?;
    }
    Ok(None)
}

/// Write the files that [`SCRIPT`] uses.
fn prepare(root: &DebianRoot, qemu: &str) -> Result<(), String> {
    let write = |path: &str, content: &[u8]| {
        fs::write(root.path().join(path), content).map_err(|error| format!("/{path}: {error}"))
    };
    let document = root.path().join(DOC).join(DOCUMENT);
    let document =
        fs::read_to_string(&document).map_err(|error| format!("{}: {error}", document.display()))?;
    let steps = document.split("```\n").find(|block| block.contains(ENABLES));
    let steps = steps.ok_or_else(|| format!("{DOCUMENT} has no commands that enable a unit"))?;
    let mut script = format!("touch /{STARTED}\nOTHER={OTHER} MEMBER={MEMBER}\n{SCRIPT}");
    for (protocol, options) in PROTOCOLS {
        let steps = steps.replace(CONFIGURATION, &format!("{protocol}.conf"));
        write(&format!("steps-{protocol}"), steps.as_bytes())?;
        write(&format!("client-{protocol}"), client::script(qemu, options).as_bytes())?;
        let unit = client::unit(protocol);
        write(&format!("etc/systemd/system/client-{protocol}@.service"), unit.as_bytes())?;
        script += &format!("clients {protocol} >> /{} 2>&1\n", client::result(protocol));
    }
    write("trial", script.as_bytes())?;
    write("etc/systemd/system/trial.service", TRIAL.as_bytes())?;
    write("users.conf", client::users().as_bytes())?;
    write("booted.raw", &client::disk())?;
    root.run(&["sh", "-c", PREPARE]).map(drop).map_err(|error| error.to_string())
}

/// That `clients` of [`SCRIPT`] has printed what the documentation promises; what is missing, if something is.
fn as_documented(found: &str) -> Result<(), String> {
    let expected = [
        "srw-rw---- kvm".to_owned(),
        "the socket is active, the service is inactive".to_owned(),
        format!("{OTHER}: QEMU ends with 1\n"),
        "Permission denied".to_owned(),
        format!("after {OTHER}, the service is inactive"),
        format!("{MEMBER}: QEMU ends with {BOOTED}\n"),
        format!("after {MEMBER}, the service is active"),
        "StatusText=serving ".to_owned(),
        "srw------- 1 paradisk".to_owned(),
        "Result=success".to_owned(),
        "ExecMainStatus=0".to_owned(),
    ];
    match expected.into_iter().find(|each| !found.contains(each)) {
        Some(missing) => Err(format!("`{}`", missing.trim())),
        None => Ok(()),
    }
}
