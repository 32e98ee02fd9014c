//! The first process of a Linux test guest. Finds the disks by driver, verifies them, prints a line of JSON for each and
//! one for the kernel's log, and powers off. One process, one thread, unless the job asks for fio or libiscsi's suite: see
//! `guest-tests/linux/README.md`.

mod change;
mod channels;
mod find;
mod fio;
mod grow;
mod interrupts;
mod ioctl;
mod kernel_log;
mod libiscsi;
mod mark;
mod output;
mod provisioning;
mod stall;
mod system;
mod verify;

use std::slice;
use std::time::Duration;

use guest_init::{Disk, Done, Fio, FioDone, Job, Line};

use crate::fio::{Load, Running};
use crate::output::print;

/// Time for the kernel to find the disks that the job promises.
const TIMEOUT: Duration = Duration::from_secs(180);

fn main() {
    let mut done = Done::default();
    let job = prepare().unwrap_or_else(|error| {
        done.error = Some(error);
        Job::default()
    });
    if done.error.is_none()
        && let Err(error) = run(&job, &mut done)
    {
        done.error = Some(error);
    }
    done.log = kernel_log::complaints().unwrap_or_else(|error| vec![format!("/dev/kmsg: {error}")]);
    done.channels = channels::open();
    done.virtio_queues = interrupts::of_virtio_queues();
    print(&Line::Done(done));
    system::power_off(job.power);
}

/// Make the kernel's file systems visible, load modules, read the job.
fn prepare() -> Result<Job, String> {
    system::mount()?;
    system::load_modules()?;
    let words =
        std::fs::read_to_string("/proc/cmdline").map_err(|error| format!("/proc/cmdline: {error}"))?;
    Job::parse(&words)
}

fn run(job: &Job, done: &mut Done) -> Result<(), String> {
    let names = find::wait(job.disks, TIMEOUT)?;
    if job.grows {
        grow::wait(&names, TIMEOUT)?;
    }
    let mut buffer = verify::Buffer::new();
    if job.stalls || job.changes {
        let run = if job.stalls { stall::run } else { change::run };
        for disk in run(&names, &mut buffer)? {
            print(&Line::Disk(Box::new(disk)));
            done.disks += 1;
        }
        return Ok(());
    }
    let counted = matches!(job.fio, Some(Fio::Counted(_)));
    for name in &names {
        let mut disk = find::describe(name)?;
        if let Some(fio) = &job.fio {
            let on = if counted { &names[..] } else { slice::from_ref(name) };
            // Counted runs on all disks are reported with the first.
            if !counted || done.disks == 0 {
                disk.error = run_fio(&mut disk, on, fio, &mut buffer).err();
            }
        } else if job.libiscsi {
            match libiscsi::run(&disk) {
                Ok(tests) => disk.libiscsi = tests,
                Err(error) => disk.error = Some(error),
            }
        } else if !job.probe {
            check(&mut disk, job, &mut buffer);
        }
        print(&Line::Disk(Box::new(disk)));
        done.disks += 1;
    }
    Ok(())
}

fn check(disk: &mut Disk, job: &Job, buffer: &mut verify::Buffer) {
    let verified = provisioning::allow_discards(disk).and_then(|()| verify::verify(disk, job, buffer));
    match verified {
        Ok(checked) => disk.checked = Some(checked),
        Err(error) => disk.error = Some(error),
    }
}

fn run_fio(disk: &mut Disk, names: &[String], job: &Fio, buffer: &mut verify::Buffer) -> Result<(), String> {
    for load in Load::of(job) {
        print(&Line::Fio(disk.name.clone()));
        let done = match load {
            Load::Counted(_) => count(disk, names, load)?,
            _ => Running::start(disk, names, load, load.depth())?.finish()?,
        };
        if !matches!(load, Load::Warm(_)) {
            disk.fio.push(done);
        }
    }
    if matches!(job, Fio::Verify | Fio::VerifyOnCpus { .. }) {
        disk.after_fio = Some(verify::checksum(disk, buffer)?);
    }
    Ok(())
}

/// A run of fio between two marks. The marks are close to the run: lines are printed outside of them.
fn count(disk: &Disk, names: &[String], load: Load) -> Result<FioDone, String> {
    let before = interrupts::of_devices()?;
    mark::begin();
    let done = Running::start(disk, names, load, load.depth())?.finish();
    mark::end();
    Ok(FioDone { interrupts: interrupts::of_devices()?.checked_sub(before), ..done? })
}
