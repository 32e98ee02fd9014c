//! A root file system on each adapter that neither [`root`](crate::root) nor [`system`](crate::system) boots from: stock kernels find it,
//! mount it, write to it and power off.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use guest_linux::StockKernel;
use paradisk_vmm::layout;

use super::Rig;
use crate::needed;
use crate::root::output;

/// Each disk is `sda` in the guest.
const ADAPTERS: [&str; 3] = ["ide", "storvsc", "buslogic"];
/// How the files' names of a kernel end.
const KERNELS: [&str; 2] = ["", "-newer"];
const SIZE: u64 = 16 << 20;
/// A guest's life, by name, kernel and adapter.
const LIFE: &str = r#"
set -e
use() {
    name=$1 which=$2 adapter=$3
    mkfifo typed-$name
    ./paradisk image convert --format vhdx root.raw $name.vhdx > /dev/null
    exec 3<> typed-$name
    ./paradisk run --kernel vmlinuz$which --initrd root$which --memory 256M --disk path=$name.vhdx,adapter=$adapter \
        --cmdline "root=/dev/sda rw init=/init mitigations=off quiet" > /out/$name < typed-$name &
    pid=$!
    wait_for() { until grep -q "$1" /out/$name; do kill -0 $pid || exit 1; sleep 0.2; done; }
    wait_for '^paradisk# '
    echo 'echo written $((6*7)) > file; cat file; sync' >&3
    wait_for '^written 42'
    echo power-off >&3
    wait $pid
    ./paradisk image check $name.vhdx > /dev/null
    ./paradisk image convert --format raw $name.vhdx /out/$name.raw > /dev/null
}
"#;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn long_stock_kernels_boot_from_other_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let raw = folder.path().join("root.raw");
    let prepared = Rig::with_newer_kernel().and_then(|mut rig| {
        for (which, kernel) in KERNELS.into_iter().zip([StockKernel::newest()?, StockKernel::newer()?]) {
            rig.files.push((format!("root{which}"), guest_linux::root_initramfs(&kernel)?));
        }
        guest_linux::root_file_system(&raw, SIZE, (layout::POWER_CONTROL.start, layout::POWER_OFF))?;
        Ok(rig)
    });
    let Some(rig) = needed("long_stock_kernels_boot_from_other_adapters", prepared) else { return };
    let boots = || KERNELS.into_iter().flat_map(|which| ADAPTERS.map(|adapter| (which, adapter)));
    let mut script = LIFE.to_owned();
    for (which, adapter) in boots() {
        let _ = writeln!(script, "use {adapter}{which} '{which}' {adapter}");
    }
    rig.run(script, &[("root.raw", &raw)], folder.path());
    for (which, adapter) in boots() {
        let content = folder.path().join(format!("{adapter}{which}.raw"));
        assert_eq!(
            output(Command::new("debugfs").args(["-R", "cat /root/file"]).arg(&content)),
            "written 42\n"
        );
        output(Command::new("e2fsck").args(["-f", "-n"]).arg(&content));
        fs::remove_file(content).unwrap();
    }
}
