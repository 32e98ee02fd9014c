//! The loaders of `paradisk run`, with any kernel, initial RAM disk and command line.
//!
//! The first byte says by which protocol the kernel is entered, and what the input changes: an ELF kernel with a PVH note, a bzImage, or
//! nothing, where the kernel is the input itself.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use paradisk_vmm::GuestMemory;
use paradisk_vmm::boot::{Linux, Protocol, command_line};
use tempfile::TempDir;
use vm_memory::{GuestAddress, GuestMemoryMmap};

use crate::common::folder::temporary;
use crate::common::input::Input;

const MEMORY: usize = 32 << 20;
/// Load address of the kernels.
const AT: u64 = 16 << 20;

struct Machine {
    folder: TempDir,
    memory: GuestMemory,
}

fn machine() -> Machine {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("memory");
    Machine { folder: temporary(), memory: Arc::new(memory) }
}

/// Two bytes of code, 4 MiB in memory, and a PVH note.
fn elf() -> Vec<u8> {
    let mut header = [0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // Executable, x86-64, version, entry, program headers, sizes.
    (header[16], header[18], header[20], header[32], header[52], header[54], header[56]) =
        (2, 62, 1, 64, 64, 56, 2);
    header[24..32].copy_from_slice(&(AT + 1).to_le_bytes());
    let segment = |kind: u32, offset: u64, len: u64, size: u64| {
        let mut segment = [0; 56];
        segment[..4].copy_from_slice(&kind.to_le_bytes());
        segment[8..16].copy_from_slice(&offset.to_le_bytes());
        segment[24..32].copy_from_slice(&AT.to_le_bytes());
        segment[32..40].copy_from_slice(&len.to_le_bytes());
        segment[40..48].copy_from_slice(&size.to_le_bytes());
        segment
    };
    let note =
        [&[4, 0, 0, 0, 4, 0, 0, 0, 18, 0, 0, 0][..], b"Xen\0", &(AT as u32).to_le_bytes(), &[0; 4]].concat();
    [&header[..], &segment(1, 200, 2, 4 << 20), &segment(4, 176, 20, 0), &note, &[0x90, 0xf4]].concat()
}

/// A setup header of protocol 2.15, and 1 KiB of code.
fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 2048];
    image[0x1f1] = 1;
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x202..0x206].copy_from_slice(b"HdrS");
    (image[0x206], image[0x207], image[0x211]) = (0x0f, 2, 1);
    image[0x22c..0x230].copy_from_slice(&0x7fff_ffffu32.to_le_bytes());
    image[0x230..0x234].copy_from_slice(&(2u32 << 20).to_le_bytes());
    (image[0x234], image[0x236]) = (1, 3);
    image[0x238..0x23c].copy_from_slice(&2047u32.to_le_bytes());
    image[0x258..0x260].copy_from_slice(&AT.to_le_bytes());
    image[0x260..0x264].copy_from_slice(&(4u32 << 20).to_le_bytes());
    image
}

thread_local! {
    // Not in a static: its folder is removed when the thread ends.
    static MACHINE: Machine = machine();
}

pub(crate) fn run(data: &[u8]) {
    MACHINE.with(|machine| run_with(machine, data));
}

fn run_with(machine: &Machine, data: &[u8]) {
    let mut input = Input(data);
    let how = input.u8();
    let path = |name: &str| -> PathBuf { machine.folder.path().join(name) };
    let len = input.u8();
    let own = String::from_utf8_lossy(input.bytes(len.into())).into_owned();
    let initrd = (how & 8 != 0).then(|| {
        // Up to 16 MiB, all of them a hole.
        let len = u64::from(input.u16()) << 8;
        fs::File::create(path("initrd")).and_then(|file| file.set_len(len)).expect("a file");
        path("initrd")
    });
    let mut kernel = match how & 6 {
        0 => input.bytes(usize::MAX).to_vec(),
        2 => bzimage(),
        _ => elf(),
    };
    while !input.is_empty() {
        // A place, and bytes that are put there.
        let at = usize::from(input.u16()) % kernel.len();
        let len = input.u8() % 9;
        for (byte, new) in kernel[at..].iter_mut().zip(input.bytes(len.into())) {
            *byte = *new;
        }
    }
    fs::write(path("kernel"), &kernel).expect("a file");
    let protocol = if how & 1 == 0 { Protocol::Linux64 } else { Protocol::Pvh };
    let cmdline = if how & 0x10 == 0 { own } else { command_line(how & 0x20 != 0, &own) };
    let linux = Linux { kernel: path("kernel"), initrd, cmdline, protocol };
    let _ = linux.load_into(&machine.memory, 1 + (how >> 6), how & 0x20 != 0);
}
