//! What a program needs of Debian: the packages of its libraries, in the versions whose symbols it uses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::output;

/// Libraries, and Debian's package of each, with the prefix of the versions of its symbols.
const LIBRARIES: [(&str, &str, &str); 5] = [
    ("ld-linux-x86-64.so.2", "libc6", "GLIBC_"),
    ("libc.so.6", "libc6", "GLIBC_"),
    ("libdl.so.2", "libc6", "GLIBC_"),
    ("libm.so.6", "libc6", "GLIBC_"),
    ("libgcc_s.so.1", "libgcc-s1", "GCC_"),
];

/// The value of the field `Depends`.
pub(super) fn of(program: &Path) -> Result<String, String> {
    match shlibdeps(program) {
        Some(depends) => Ok(depends),
        None => from_symbols(&output(
            "readelf",
            &["--wide", "--dynamic", "--version-info", &program.display().to_string()],
        )?),
    }
}

/// As Debian's own tool says, if it is installed, and knows the libraries.
fn shlibdeps(program: &Path) -> Option<String> {
    let program = fs::canonicalize(program).ok()?;
    let folder = tempfile::tempdir().ok()?;
    // It looks at no more of the source package than at its name.
    fs::create_dir(folder.path().join("debian")).ok()?;
    fs::write(
        folder.path().join("debian/control"),
        "Source: paradisk\n\nPackage: paradisk\nArchitecture: any\n",
    )
    .ok()?;
    let mut tool = Command::new("dpkg-shlibdeps");
    tool.args(["-O", "-e"]).arg(program).current_dir(folder.path()).stdin(Stdio::null());
    let output = tool.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().strip_prefix("shlibs:Depends=").map(str::to_owned)
}

/// From what `readelf --dynamic --version-info` says.
fn from_symbols(listing: &str) -> Result<String, String> {
    let mut packages: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut newest = |library: &str, version: Vec<u32>| {
        let known = LIBRARIES.iter().find(|(name, ..)| *name == library);
        let (_, package, _) = known.ok_or_else(|| format!("{library}: no package is known for it"))?;
        let known = packages.entry(package).or_default();
        *known = version.max(std::mem::take(known));
        Ok::<(), String>(())
    };
    let mut library = "";
    for line in listing.lines() {
        if let Some((_, name)) = line.split_once("Shared library: [") {
            newest(name.trim_end_matches(']'), Vec::new())?;
        } else if let Some((_, file)) = line.split_once("  File: ") {
            library = file.split_whitespace().next().unwrap_or_default();
        } else if let Some((_, name)) = line.split_once("  Name: ") {
            let name = name.split_whitespace().next().unwrap_or_default();
            // Others than numbers (GLIBC_PRIVATE) are no versions.
            let prefix =
                LIBRARIES.iter().find(|(known, ..)| *known == library).map_or("", |(.., prefix)| prefix);
            let numbers = name.strip_prefix(prefix).unwrap_or_default().split('.').map(str::parse);
            if let Ok(version) = numbers.collect::<Result<Vec<u32>, _>>() {
                newest(library, version)?;
            }
        }
    }
    if packages.is_empty() {
        return Err("readelf names no libraries".to_owned());
    }
    let named = packages.iter().map(|(package, version)| {
        let version: Vec<String> = version.iter().map(u32::to_string).collect();
        if version.is_empty() {
            (*package).to_owned()
        } else {
            format!("{package} (>= {})", version.join("."))
        }
    });
    Ok(named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = " 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
Version needs section '.gnu.version_r' contains 3 entries:
  000000: Version: 1  File: ld-linux-x86-64.so.2  Cnt: 1
  0x0010:   Name: GLIBC_2.3  Flags: none  Version: 11
  0x0020: Version: 1  File: libgcc_s.so.1  Cnt: 2
  0x0030:   Name: GCC_4.2.0  Flags: none  Version: 9
  0x0040:   Name: GCC_3.3  Flags: none  Version: 8
  0x0050: Version: 1  File: libc.so.6  Cnt: 3
  0x0060:   Name: GLIBC_2.9  Flags: none  Version: 7
  0x0070:   Name: GLIBC_2.34  Flags: none  Version: 6
  0x0080:   Name: GLIBC_PRIVATE  Flags: none  Version: 5
";

    #[test]
    fn the_newest_symbol_says_which_version() {
        assert_eq!(from_symbols(LISTING).unwrap(), "libc6 (>= 2.34), libgcc-s1 (>= 4.2.0)");
        let other = LISTING.replace("libgcc_s.so.1", "libssl.so.3");
        assert!(from_symbols(&other).unwrap_err().contains("libssl.so.3"));
        assert!(from_symbols("").is_err());
    }
}
