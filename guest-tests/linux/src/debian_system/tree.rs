//! The files of a Debian system: packages unpacked in a folder, and what their scripts would have left.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ext4;
use crate::error::Error;
use crate::run::run;

/// Folders that are in `/usr`, with links to them (package `usr-is-merged`).
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
const JOB: &str = include_str!("job");
const SERVICE: &str = include_str!("job.service");
/// On a busy machine a boot in a machine in a machine takes longer than systemd waits for devices and services.
const TIMEOUTS: &str = "[Manager]\nDefaultDeviceTimeoutSec=1800\nDefaultTimeoutStartSec=1800\n";
const UNITS: &str = "/etc/systemd/system";
/// dpkg's records.
const DPKG: &str = "/var/lib/dpkg";
/// Where the packages are that the job installs.
const ARCHIVES: &str = "/var/cache/apt/archives";
/// Beside those of `base-passwd`: of dbus, systemd and udev's rules.
const GROUPS: [(&str, u32); 7] = [
    ("input", 101),
    ("kvm", 102),
    ("messagebus", 103),
    ("render", 104),
    ("sgx", 105),
    ("systemd-journal", 106),
    ("systemd-network", 107),
];
const USERS: &str = "messagebus:x:103:103::/nonexistent:/usr/sbin/nologin
systemd-network:x:107:107:systemd Network Management:/:/usr/sbin/nologin
";
/// Templates of `base-passwd` and `base-files`, and what is made of them.
const COPIES: [(&str, &str); 3] = [
    ("/usr/share/base-passwd/group.master", "/etc/group"),
    ("/usr/share/base-passwd/passwd.master", "/etc/passwd"),
    ("/usr/share/base-files/profile", "/etc/profile"),
];
/// What `pam-auth-update` writes, where there is no other module than for Unix's passwords.
const PAM: [(&str, &str); 5] = [
    ("account", "account required pam_unix.so\n"),
    ("auth", "auth required pam_unix.so nullok\n"),
    ("password", "password required pam_unix.so yescrypt\n"),
    ("session", "session required pam_unix.so\nsession optional pam_systemd.so\n"),
    ("session-noninteractive", "session required pam_unix.so\n"),
];
/// Empty stamps: nothing that systemd would bring up to date at the first boot is older than `/usr`.
const EMPTY: [&str; 4] = ["/etc/.updated", "/var/.updated", "/etc/security/opasswd", "/var/log/wtmp"];
/// dpkg wants them, also where they say nothing.
const RECORDS: [(&str, &str); 2] = [("info/format", "1\n"), ("available", "")];
const RECORD_FOLDERS: [&str; 4] = ["updates", "triggers", "alternatives", "parts"];
const FOLDERS: [&str; 6] = ["/proc", "/sys", "/dev", "/run", "/tmp", "/root"];

/// Text files, whole.
fn texts() -> Vec<(String, String)> {
    let fixed = [
        ("/etc/fstab", format!("UUID={} / ext4 errors=remount-ro 0 1\n", ext4::UUID)),
        ("/etc/hostname", "debian\n".to_owned()),
        ("/etc/hosts", "127.0.0.1 localhost debian\n".to_owned()),
        ("/etc/machine-id", "706172616469736b2d64656269616e31\n".to_owned()),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n".to_owned()),
        ("/etc/systemd/system.conf.d/timeouts.conf", TIMEOUTS.to_owned()),
        ("/etc/ld.so.conf", "/usr/lib/x86_64-linux-gnu\n".to_owned()),
        (&format!("{UNITS}/paradisk-job.service"), SERVICE.to_owned()),
        ("/usr/local/sbin/paradisk-job", JOB.to_owned()),
    ]
    .map(|(path, text)| (path.to_owned(), text));
    let pam = PAM.map(|(name, text)| (format!("/etc/pam.d/common-{name}"), text.to_owned()));
    fixed.into_iter().chain(pam).collect()
}

/// All that decides what [`configure`] makes, for the name in the cache.
pub(super) fn configuration() -> String {
    format!("{:?}{GROUPS:?}{USERS}{EMPTY:?}{:?}{}", texts(), include_str!("ext4.rs"), records())
}

/// All that decides what [`settle`] makes.
pub(crate) fn records() -> String {
    format!("{FOLDERS:?}{RECORD_FOLDERS:?}{RECORDS:?}{COPIES:?}")
}

/// Unpack packages into the empty folder `tree`, with dpkg's records of them.
pub(crate) fn unpack(packages: &[PathBuf], tree: &Path) -> Result<(), Error> {
    for name in MERGED {
        let folder = tree.join("usr").join(name);
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let link = tree.join(name);
        symlink(format!("usr/{name}"), &link).map_err(Error::file(&link))?;
    }
    let mut status = String::new();
    for package in packages {
        let field = |name: &str| run(Command::new("dpkg-deb").arg("--field").arg(package).arg(name));
        let (name, multi) = (field("Package")?.trim().to_owned(), field("Multi-Arch")?);
        let mut unpack = Command::new("sh");
        unpack.args(["-c", r#"dpkg-deb --fsys-tarfile "$1" | tar -xpv --keep-directory-symlink -C "$2""#]);
        let unpacked = run(unpack.arg("sh").arg(package).arg(tree))?;
        let qualified = if multi.trim() == "same" { format!("{name}:amd64") } else { name };
        write(tree, &format!("{DPKG}/info/{qualified}.list"), &list(&unpacked))?;
        // A few packages have none; `dpkg --audit` wants the file.
        let sums = run(Command::new("dpkg-deb").arg("--info").arg(package).arg("md5sums"));
        write(tree, &format!("{DPKG}/info/{qualified}.md5sums"), &sums.unwrap_or_default())?;
        status += &installed(&run(Command::new("dpkg-deb").arg("--field").arg(package))?);
    }
    write(tree, &format!("{DPKG}/status"), &status)
}

/// dpkg's list of a package's files, of what tar has unpacked: `./`, `./usr/`, `./usr/bin/x`.
fn list(unpacked: &str) -> String {
    let paths = unpacked.lines().map(|line| line.trim_start_matches('.').trim_end_matches('/'));
    paths.fold(String::new(), |mut list, path| {
        let _ = writeln!(list, "{}", if path.is_empty() { "/." } else { path });
        list
    })
}

/// The entry of a package in dpkg's `status`, of its control file.
fn installed(control: &str) -> String {
    let (package, rest) = control.trim_end().split_once('\n').unwrap_or((control, ""));
    format!("{package}\nStatus: install ok installed\n{rest}\n\n")
}

/// What dpkg and users cannot do without.
pub(crate) fn settle(tree: &Path) -> Result<(), Error> {
    for folder in FOLDERS {
        let folder = below(tree, folder);
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    }
    for folder in RECORD_FOLDERS {
        let folder = below(tree, DPKG).join(folder);
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    }
    for (name, text) in RECORDS {
        write(tree, &format!("{DPKG}/{name}"), text)?;
    }
    for (template, path) in COPIES {
        write(tree, path, &read(tree, template)?)?;
    }
    Ok(())
}

/// What the packages' scripts and an installer would have left; `archives` are for the job.
pub(super) fn configure(tree: &Path, archives: &[PathBuf]) -> Result<(), Error> {
    settle(tree)?;
    let groups: String = GROUPS.iter().map(|(name, number)| format!("{name}:x:{number}:\n")).collect();
    write(tree, "/etc/group", &(read(tree, "/etc/group")? + &groups))?;
    // An "x" sends to the shadow file, where nobody has a password but root has an empty one.
    let users = read(tree, "/etc/passwd")?.replace(":*:", ":x:") + USERS;
    let shadow = users.lines().filter_map(|line| line.split(':').next()).map(|name| {
        let password = if name == "root" { "" } else { "*" };
        format!("{name}:{password}:19000:0:99999:7:::\n")
    });
    write(tree, "/etc/shadow", &shadow.collect::<String>())?;
    write(tree, "/etc/passwd", &users)?;
    for (path, text) in texts() {
        write(tree, &path, &text)?;
    }
    for path in EMPTY {
        write(tree, path, "")?;
    }
    let job = below(tree, "/usr/local/sbin/paradisk-job");
    fs::set_permissions(&job, PermissionsExt::from_mode(0o755)).map_err(Error::file(&job))?;
    let wants = below(tree, UNITS).join("multi-user.target.wants");
    fs::create_dir_all(&wants).map_err(Error::file(&wants))?;
    let link = wants.join("paradisk-job.service");
    symlink("../paradisk-job.service", &link).map_err(Error::file(&link))?;
    for archive in archives {
        let copy = below(tree, ARCHIVES).join(archive.file_name().unwrap_or_default());
        fs::create_dir_all(below(tree, ARCHIVES)).map_err(Error::file(&copy))?;
        fs::copy(archive, &copy).map_err(Error::file(&copy))?;
    }
    Ok(())
}

fn read(tree: &Path, path: &str) -> Result<String, Error> {
    let path = below(tree, path);
    fs::read_to_string(&path).map_err(Error::file(&path))
}

/// A file that all may read, in place of one that a package may have had there.
fn write(tree: &Path, path: &str, text: &str) -> Result<(), Error> {
    let path = below(tree, path);
    let folder = path.parent().unwrap_or(tree);
    fs::create_dir_all(folder).map_err(Error::file(folder))?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::file(&path)(error)),
        _ => {}
    }
    fs::write(&path, text).map_err(Error::file(&path))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).map_err(Error::file(&path))
}

/// Where a path that begins with `/` is in a tree.
fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpkg_knows_what_was_unpacked() {
        assert_eq!(list("./\n./usr/\n./usr/bin/x\n./a b\n"), "/.\n/usr\n/usr/bin/x\n/a b\n");
        let status = installed("Package: a\nVersion: 1\nDescription: b\n c\n");
        assert_eq!(status, "Package: a\nStatus: install ok installed\nVersion: 1\nDescription: b\n c\n\n");
    }
}
