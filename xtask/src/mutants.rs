//! `cargo xtask mutants`: changes the code under test in one place at a time, and looks whether a test of its crate fails (cargo-mutants).

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::command::{output, run as run_program, target_dir};
use crate::nextest;
use crate::tools::MUTANTS;

const USAGE: &str = "usage: cargo xtask mutants FOLDER [--sample N] [--jobs N] [-- ARGUMENT...]\n\n  \
    FOLDER    of one crate, such as devices/src/scsi\n  \
    --sample  at most about so many changes, evenly spread, the same each time (default: all)\n  \
    --jobs    changes that are tested at a time (default 1)\n  \
    ARGUMENT  of cargo nextest run, such as --lib: what survives the unit tests may die by the others\n\n\
    What survived is in target/mutants/FOLDER/mutants.out/missed.txt. Exit status 1: something survived.\n";

/// Of nextest: the first test that fails is enough.
const PROFILE: &str = "mutants";

struct Options<'a> {
    folder: &'a str,
    sample: Option<usize>,
    jobs: usize,
    nextest: &'a [&'a str],
}

impl<'a> Options<'a> {
    fn parse(args: &'a [&'a str]) -> Result<Self, String> {
        let end = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        let (args, nextest) = (&args[..end], args.get(end + 1..).unwrap_or_default());
        let (mut folder, mut sample, mut jobs) = (None, None, 1);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
                value.ok_or(format!("{arg}: expected a number"))
            };
            match *arg {
                "--sample" => sample = Some(number()?),
                "--jobs" => jobs = number()?,
                name if !name.starts_with('-') && folder.is_none() => {
                    folder = Some(name.trim_end_matches('/'))
                }
                other => return Err(format!("{other}: no such option")),
            }
        }
        Ok(Self { folder: folder.ok_or("FOLDER is missing")?, sample, jobs, nextest })
    }
}

/// # Errors
/// Wrong arguments, or something survived.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    if args.iter().any(|arg| ["--help", "-h"].contains(arg)) {
        print!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(args).map_err(|error| format!("{error}\n\n{USAGE}"))?;
    let package = package_of(Path::new(options.folder))?;
    let (mutants, nextest) = (MUTANTS.path()?, nextest::program()?);
    let files = format!("{}/**/*.rs", options.folder);
    let results = target_dir().join("mutants").join(options.folder);
    std::fs::create_dir_all(&results).map_err(|error| format!("{}: {error}", results.display()))?;

    let mut common = vec!["mutants", "--package", &package, "--file", &files];
    let all = output(&mutants.display().to_string(), &[&common[..], &["--list"]].concat())?.lines().count();
    let shard = format!("0/{}", options.sample.map_or(1, |sample| all.div_ceil(sample)));
    let jobs = options.jobs.to_string();
    common.extend(["--shard", &shard, "--sharding", "round-robin", "--jobs", &jobs]);
    common.extend(["--test-tool", "nextest", "--all-features", "--no-shuffle", "--colors", "never"]);
    println!("{all} changes in {}, of which shard {shard} is tested", options.folder);
    let mut command = Command::new(mutants);
    command.args(common).arg("--output").arg(&results).arg("--").args(options.nextest);
    // It calls cargo, which looks for nextest on the path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = nextest.parent().map(PathBuf::from).into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).map_err(|error| error.to_string())?;
    run_program(command.env("PATH", path).env("NEXTEST_PROFILE", PROFILE), "cargo mutants")
}

/// The package that a folder belongs to: the name in the nearest manifest above it.
fn package_of(folder: &Path) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let text = output(&cargo, &["metadata", "--no-deps", "--offline", "--format-version", "1"])?;
    let metadata: Metadata =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let above =
        |package: &Package| package.manifest_path.parent().is_some_and(|root| folder.starts_with(root));
    let owner = metadata
        .packages
        .into_iter()
        .filter(above)
        .max_by_key(|package| package.manifest_path.components().count());
    owner.map(|package| package.name).ok_or_else(|| format!("{}: no package", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_belongs_to_the_nearest_package() {
        assert_eq!(package_of(Path::new("src")).unwrap(), "xtask");
        assert_eq!(package_of(Path::new("../guest-tests/linux/src")).unwrap(), "paradisk-guest-linux");
        assert!(package_of(Path::new("no-such-folder")).is_err());
    }

    #[test]
    fn arguments() {
        let options = Options::parse(&["devices/src/scsi/", "--sample", "50", "--", "--lib"]).unwrap();
        assert_eq!((options.folder, options.sample, options.jobs), ("devices/src/scsi", Some(50), 1));
        assert_eq!(options.nextest, ["--lib"]);
        for wrong in [&["--sample", "3"][..], &["a", "--sample"], &["a", "b"], &["a", "--jobs", "0"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
