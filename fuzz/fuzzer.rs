//! libFuzzer with all targets in one program: `PARADISK_FUZZ_TARGET` has the name of the one that is run.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use paradisk_fuzz_targets::TARGETS;

const VARIABLE: &str = "PARADISK_FUZZ_TARGET";

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        match TARGETS.iter().find(|(target, _)| *target == name) {
            Some((_, run)) => drop(TARGET.set(*run)),
            None => {
                eprintln!("{VARIABLE}={name}: no such target");
                std::process::exit(2);
            }
        }
    },
    |data: &[u8]| TARGET.wait()(data)
);
