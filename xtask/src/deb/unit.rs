//! The package's example units under a service manager: systemd is the first process of the package's root folder, in namespaces of its own.

use std::fs;
use std::process::Command;

use guest_linux::DebianRoot;

use crate::command::output;

/// What systemd starts. It ends with the last service.
const TRIAL: &str = "[Unit]
Wants=paradisk-disk@scratch.socket
After=paradisk-disk@scratch.socket
[Service]
Type=oneshot
ExecStart=/bin/sh /trial
ExecStopPost=systemctl exit
";

/// Starts and ends the server as its unit says. The unit's options that confine it must allow all that it does.
const SCRIPT: &str = "exec > /result 2>&1
stat -c '%A %G' /run/paradisk/scratch.socket
systemctl start paradisk-disk@scratch.service
systemctl show --property ActiveState,StatusText paradisk-disk@scratch.service
ls -l /run/paradisk-scratch
systemctl stop paradisk-disk@scratch.socket paradisk-disk@scratch.service
systemctl show --property Result,ExecMainStatus paradisk-disk@scratch.service
";

/// Makes the users and the disk that the units name.
const PREPARE: &str = "set -e
echo 'paradisk:x:990:990::/:/bin/false' >> /etc/passwd
echo 'paradisk:x:990:' >> /etc/group
grep -q ^kvm: /etc/group || echo 'kvm:x:991:' >> /etc/group
mkdir -p /srv/images /etc/paradisk /sys /run
paradisk image create /srv/images/scratch.vhdx --format vhdx --size 64M
chown -R 990:990 /srv/images
cp /usr/share/doc/paradisk/examples/scratch.conf /etc/paradisk/scratch.conf
cp /usr/share/doc/paradisk/examples/paradisk-disk@.* /etc/systemd/system/
systemctl mask --quiet systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket \\
    systemd-udevd.service systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-sysctl.service
";

/// The mounts of the root folder `$1`, and its first process. The kernel's settings and devices cannot be changed there.
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
exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --system --unit=trial.service --log-target=console
";

/// Run the units. What this machine lacks for it, if it lacks something.
pub(super) fn check(root: &DebianRoot) -> Result<Option<String>, String> {
    // In a user namespace of its own, root has no other users to give files to.
    if output("id", &["-u"])?.trim() != "0" {
        return Ok(Some("units of the package: needs root".to_owned()));
    }
    let write = |path: &str, text: &str| {
        fs::write(root.path().join(path), text).map_err(|error| format!("/{path}: {error}"))
    };
    write("etc/systemd/system/trial.service", TRIAL)?;
    write("trial", SCRIPT)?;
    root.run(&["sh", "-c", PREPARE]).map_err(|error| error.to_string())?;
    let mut first = Command::new("timeout");
    first.args([
        "--kill-after=10",
        "120",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--cgroup",
    ]);
    first.args(["sh", "-c", FIRST, "sh"]).arg(root.path());
    let console = first.output().map_err(|error| format!("timeout: {error}"))?;
    let Ok(result) = fs::read_to_string(root.path().join("result")) else {
        let said = String::from_utf8_lossy(&console.stderr);
        let said = said.lines().last().unwrap_or("no reason given");
        return Ok(Some(format!("units of the package: no service manager runs here: {said}")));
    };
    for expected in [
        "srw-rw---- kvm",
        "ActiveState=active",
        "StatusText=serving /srv/images/scratch.vhdx",
        "srw------- 1 paradisk",
        "Result=success",
        "ExecMainStatus=0",
    ] {
        if !result.contains(expected) {
            return Err(format!("units of the package: `{expected}` is not in: {result}"));
        }
    }
    Ok(None)
}
