use std::fs;

use linux_loader::elf::{Elf64_Ehdr, Elf64_Nhdr, Elf64_Phdr};
use linux_loader::loader::bootparam::{boot_params, setup_header};
use linux_loader::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::ByteValued;

use super::*;
use crate::layout::HIGH_RAM;
use crate::memory::allocate;

const MIB: u64 = 1 << 20;
/// Load address of the kernels here.
const AT: u64 = 16 * MIB;

/// A kernel of two bytes at [`AT`] that uses 4 MiB after them, with a PVH note.
struct TestElf {
    header: Elf64_Ehdr,
    load: Elf64_Phdr,
    note: Elf64_Phdr,
    pvh: u32,
}

impl TestElf {
    fn new() -> Self {
        let mut header = Elf64_Ehdr {
            e_type: 2,
            e_machine: 62,
            e_version: 1,
            e_entry: AT + 1,
            e_phoff: 64,
            e_ehsize: 64,
            e_phentsize: 56,
            e_phnum: 2,
            ..Default::default()
        };
        header.e_ident[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let load = Elf64_Phdr {
            p_type: 1,
            p_offset: 200,
            p_paddr: AT,
            p_filesz: 2,
            p_memsz: 4 * MIB,
            ..Default::default()
        };
        let note = Elf64_Phdr { p_type: 4, p_offset: 176, p_filesz: 20, ..Default::default() };
        Self { header, load, note, pvh: AT as u32 }
    }

    fn bytes(&self) -> Vec<u8> {
        let note = Elf64_Nhdr { n_namesz: 4, n_descsz: 4, n_type: 18 };
        [
            self.header.as_slice(),
            self.load.as_slice(),
            self.note.as_slice(),
            note.as_slice(),
            b"Xen\0",
            &self.pvh.to_le_bytes(),
            &[0; 4],
            &[0x90, 0xf4],
        ]
        .concat()
    }
}

/// A kernel whose protected-mode part is `0..=255` twice, and which uses 4 MiB at [`AT`].
fn bzimage(change: impl FnOnce(&mut setup_header)) -> Vec<u8> {
    let mut header = setup_header {
        setup_sects: 1,
        boot_flag: 0xaa55,
        header: u32::from_le_bytes(*b"HdrS"),
        version: 0x020f,
        loadflags: 1,
        initrd_addr_max: 0x7fff_ffff,
        kernel_alignment: 2 << 20,
        relocatable_kernel: 1,
        xloadflags: 0b11,
        cmdline_size: 2047,
        pref_address: AT,
        init_size: 4 << 20,
        ..Default::default()
    };
    change(&mut header);
    let mut bytes = vec![0; 1024];
    bytes[0x1f1..0x1f1 + size_of::<setup_header>()].copy_from_slice(header.as_slice());
    bytes.extend((0..=255).chain(0..=255));
    bytes.push(0xf4);
    bytes
}

fn memory(size: u64) -> GuestMemory {
    allocate(size).unwrap()
}

/// A system's files.
struct Files {
    directory: tempfile::TempDir,
    linux: Linux,
}

impl Files {
    fn new(kernel: &[u8], initrd: Option<&[u8]>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let linux = Linux {
            kernel: write("kernel", kernel),
            initrd: initrd.map(|bytes| write("initrd", bytes)),
            cmdline: "console=ttyS0".to_owned(),
            protocol: Protocol::Linux64,
        };
        Self { directory, linux }
    }

    fn load(&self, memory: &GuestMemory) -> Result<Loaded, LinuxError> {
        self.linux.load_into(memory, 1, false)
    }

    /// The error, without the directory.
    fn error(&self, memory: &GuestMemory) -> String {
        let directory = format!("{}/", self.directory.path().display());
        self.load(memory).unwrap_err().to_string().replace(&directory, "")
    }
}

fn elf_error(change: impl FnOnce(&mut TestElf)) -> String {
    let mut elf = TestElf::new();
    change(&mut elf);
    Files::new(&elf.bytes(), None).error(&memory(64 * MIB))
}

fn bzimage_error(change: impl FnOnce(&mut setup_header)) -> String {
    Files::new(&bzimage(change), None).error(&memory(64 * MIB))
}

fn read<T: ByteValued>(memory: &GuestMemory, address: u64) -> T {
    memory.read_obj(GuestAddress(address)).unwrap()
}

/// The zero page's memory map.
fn e820(page: &boot_params) -> Vec<(u64, u64, u32)> {
    let table = page.e820_table;
    table[..page.e820_entries.into()].iter().map(|entry| (entry.addr, entry.size, entry.r#type)).collect()
}

#[test]
fn an_elf_kernel_finds_its_zero_page() {
    let memory = memory(64 * MIB);
    let files = Files::new(&TestElf::new().bytes(), Some(b"the initrd"));
    assert_eq!(files.load(&memory).unwrap(), Loaded { protocol: Protocol::Linux64, entry: AT + 1 });
    assert_eq!(read::<[u8; 3]>(&memory, AT), [0x90, 0xf4, 0]);
    let page: boot_params = read(&memory, START_INFO);
    let header = page.hdr;
    let (magic, boot_flag, loader) = (header.header, header.boot_flag, header.type_of_loader);
    assert_eq!((&magic.to_le_bytes(), boot_flag, loader), (b"HdrS", 0xaa55, 0xff));
    let (cmdline, initrd, len) = (header.cmd_line_ptr, header.ramdisk_image, header.ramdisk_size);
    assert_eq!(read::<[u8; 14]>(&memory, cmdline.into()), *b"console=ttyS0\0");
    assert_eq!((u64::from(initrd), len), (64 * MIB - 4096, 10), "at the end of RAM");
    assert_eq!(read::<[u8; 10]>(&memory, initrd.into()), *b"the initrd");
    let rsdp = page.acpi_rsdp_addr;
    assert_eq!(read::<[u8; 8]>(&memory, rsdp), *b"RSD PTR ");
    let expected =
        [(0, 0x9_fc00, 1), (0x9_fc00, 0x6_0400, 2), (MIB, 63 * MIB, 1), (0xe000_0000, 0x1000_0000, 2)];
    assert_eq!(e820(&page), expected);
}

#[test]
fn memory_beyond_the_hole_is_told() {
    let memory = memory(4 << 30);
    let files = Files::new(&TestElf::new().bytes(), Some(b"the initrd"));
    files.load(&memory).unwrap();
    let page: boot_params = read(&memory, START_INFO);
    assert_eq!(
        e820(&page)[2..],
        [(MIB, (3 << 30) - MIB, 1), (0xe000_0000, 0x1000_0000, 2), (HIGH_RAM, 1 << 30, 1)]
    );
    let initrd = page.hdr.ramdisk_image;
    assert_eq!(u64::from(initrd), (3 << 30) - 4096, "below the hole");
}

#[test]
fn a_bzimage_is_entered_in_64_bit_mode() {
    let memory = memory(4 << 30);
    let files = Files::new(&bzimage(|header| header.xloadflags = 1), Some(&[7; 5000]));
    assert_eq!(files.load(&memory).unwrap(), Loaded { protocol: Protocol::Linux64, entry: AT + 0x200 });
    assert_eq!(read::<[u8; 3]>(&memory, AT + 255), [255, 0, 1]);
    let header = read::<boot_params>(&memory, START_INFO).hdr;
    let (alignment, initrd, version) = (header.kernel_alignment, header.ramdisk_image, header.version);
    assert_eq!((alignment, version), (2 << 20, 0x020f), "the file's own header");
    assert_eq!(initrd, 0x8000_0000 - 8192, "as high as this kernel allows");
}

#[test]
fn pvh_finds_its_start_information() {
    let memory = memory(4 << 30);
    let mut files = Files::new(&TestElf::new().bytes(), Some(b"the initrd"));
    files.linux.protocol = Protocol::Pvh;
    assert_eq!(files.load(&memory).unwrap(), Loaded { protocol: Protocol::Pvh, entry: AT });
    let info: hvm_start_info = read(&memory, START_INFO);
    assert_eq!((info.magic, info.version, info.nr_modules), (0x336e_c578, 1, 1));
    assert_eq!(read::<[u8; 8]>(&memory, info.rsdp_paddr), *b"RSD PTR ");
    assert_eq!(read::<[u8; 14]>(&memory, info.cmdline_paddr), *b"console=ttyS0\0");
    let module: hvm_modlist_entry = read(&memory, info.modlist_paddr);
    assert_eq!((module.paddr, module.size), ((3 << 30) - 4096, 10));
    let entry = |index: u64| read::<hvm_memmap_table_entry>(&memory, info.memmap_paddr + 24 * index);
    assert_eq!(info.memmap_entries, 5);
    assert_eq!((entry(0).addr, entry(0).size, entry(0).type_), (0, 0x9_fc00, 1));
    assert_eq!((entry(4).addr, entry(4).size, entry(4).type_), (HIGH_RAM, 1 << 30, 1));

    files.linux.kernel = files.directory.path().join("bzimage");
    fs::write(&files.linux.kernel, bzimage(|_| {})).unwrap();
    assert_eq!(files.error(&memory), "bzimage: no PVH entry point");
}

#[test]
fn files_that_are_no_kernel() {
    let error = |bytes: &[u8]| Files::new(bytes, None).error(&memory(64 * MIB));
    let none = "kernel: no Linux kernel for x86-64: ";
    assert_eq!(error(b""), format!("{none}neither ELF nor bzImage"));
    assert_eq!(error(&[0; 4096]), format!("{none}neither ELF nor bzImage"));
    assert_eq!(error(b"\x7fELF"), format!("{none}ELF header: file too short"));
    let mut files = Files::new(b"", None);
    files.linux.kernel = files.directory.path().to_owned();
    assert!(files.error(&memory(64 * MIB)).ends_with("no regular file"));
    files.linux.kernel.push("absent");
    assert!(files.error(&memory(64 * MIB)).starts_with("absent: No such file"));
}

#[test]
fn broken_elf_kernels() {
    let none = "kernel: no Linux kernel for x86-64: ";
    assert_eq!(
        elf_error(|elf| elf.header.e_machine = 3),
        format!("{none}ELF class 2, data encoding 1, machine 3: expected 2, 1, 62, 64-bit x86")
    );
    assert!(elf_error(|elf| elf.header.e_ident[4] = 1).starts_with(&format!("{none}ELF class 1,")));
    assert_eq!(elf_error(|elf| elf.header.e_type = 1), format!("{none}ELF type 1: expected an executable"));
    for count in [0, 65, u16::MAX] {
        let error = elf_error(|elf| elf.header.e_phnum = count);
        assert_eq!(error, format!("{none}{count} ELF segments: expected 1 to 64"));
    }
    for offset in [1 << 20, u64::MAX - 8, u64::MAX] {
        let error = elf_error(|elf| elf.header.e_phoff = offset);
        assert_eq!(error, format!("{none}ELF segment 0: file too short"), "{offset:#x}");
    }
    for (offset, len) in [(201, 2), (u64::MAX, 2), (200, u64::MAX)] {
        let error = elf_error(|elf| (elf.load.p_offset, elf.load.p_filesz) = (offset, len));
        assert_eq!(error, format!("{none}ELF segment 0: {len} bytes at {offset}, in a file of 202 bytes"));
    }
    assert_eq!(
        elf_error(|elf| elf.load.p_memsz = 1),
        format!("{none}ELF segment 0: 2 bytes in the file, 1 in memory")
    );
    for (at, len) in [(0x8000, 2), (u64::MAX, 2), (AT, u64::MAX), (0xbfff_f000, 0x1001)] {
        let error = elf_error(|elf| (elf.load.p_paddr, elf.load.p_memsz) = (at, len));
        assert!(error.starts_with(&format!("{none}wants to lie at {at:#x}, {len:#x} bytes")), "{error}");
    }
    for entry in [0, AT - 1, AT + 4 * MIB] {
        let error = elf_error(|elf| elf.header.e_entry = entry);
        assert_eq!(error, format!("{none}entry point {entry:#x}: in no segment"));
    }
    assert_eq!(elf_error(|elf| elf.pvh = 7), format!("{none}PVH entry point 0x7: in no segment"));
    assert!(elf_error(|elf| elf.note.p_offset = u64::MAX - 4).contains("ELF segment 1: 20 bytes at"));
    assert!(elf_error(|elf| elf.header.e_phentsize = 1).contains("Invalid program header size"));
    assert!(elf_error(|elf| elf.load.p_type = 0).contains("in no segment"), "nothing to load");
}

#[test]
fn broken_bzimages() {
    let none = "kernel: no Linux kernel for x86-64: ";
    let old =
        |version: u16| format!("{none}bzImage of boot protocol 2.{version:02} without a 64-bit entry point");
    assert_eq!(bzimage_error(|header| header.version = 0x0209), old(9));
    assert_eq!(bzimage_error(|header| header.xloadflags = 2), old(15));
    assert_eq!(bzimage_error(|header| header.loadflags = 0), old(15));
    assert_eq!(
        bzimage_error(|header| header.setup_sects = 255),
        format!("{none}bzImage of 1537 bytes, of which 131072 are setup code")
    );
    assert!(bzimage_error(|header| header.setup_sects = 0).contains("of which 2560 are setup code"));
    for at in [0, 0xf_ffff, u64::MAX, u64::MAX - 0x10_0000, 0xc000_0000] {
        let error = bzimage_error(|header| header.pref_address = at);
        assert!(error.starts_with(&format!("{none}wants to lie at {at:#x}, 0x400000 bytes")), "{error}");
    }
}

#[test]
fn what_has_no_room() {
    let elf = TestElf::new().bytes();
    assert_eq!(
        Files::new(&elf, None).error(&memory(20 * MIB - 4096)),
        "kernel: needs 0x1400000 bytes of guest memory, there are 0x13ff000 below the PCI hole"
    );
    let whole = Files::new(&bzimage(|_| {}), None);
    assert!(whole.load(&memory(20 * MIB)).is_ok());
    assert!(whole.error(&memory(20 * MIB - 4096)).contains("needs 0x1400000 bytes"));
    assert!(
        Files::new(&elf, None).error(&memory(4096)).starts_with("firmware's tables: needs 0x100000 bytes")
    );

    let fits = Files::new(&elf, Some(&vec![0; 8192]));
    assert!(fits.load(&memory(20 * MIB + 8192)).is_ok());
    let error = Files::new(&elf, Some(&vec![0; 8193])).error(&memory(20 * MIB + 8192));
    assert_eq!(
        error,
        "initrd: initrd of 8193 bytes, expected at most the 8192 that guest memory and the kernel leave for it"
    );
}

#[test]
fn command_lines_that_the_kernel_would_cut() {
    let mut files = Files::new(&bzimage(|header| header.cmdline_size = 20), None);
    files.linux.cmdline = "x".repeat(20);
    assert!(files.load(&memory(64 * MIB)).is_ok());
    files.linux.cmdline.push('x');
    assert_eq!(files.error(&memory(64 * MIB)), "command line of 21 bytes, expected at most 20");
    files.linux.cmdline = "a\0b".to_owned();
    assert_eq!(files.error(&memory(64 * MIB)), "command line with a zero byte");
    fs::write(&files.linux.kernel, bzimage(|header| header.cmdline_size = u32::MAX)).unwrap();
    files.linux.cmdline = "x".repeat(65_536);
    assert_eq!(files.error(&memory(64 * MIB)), "command line of 65536 bytes, expected at most 65535");
}

proptest::proptest! {
    /// For any headers, a kernel is refused or loaded into permitted RAM.
    #[test]
    fn damaged_kernels(
        elf: bool,
        changes in proptest::collection::vec((0..200_usize, proptest::prelude::any::<u8>()), 1..6),
    ) {
        let (mut bytes, first) = if elf { (TestElf::new().bytes(), 0) } else { (bzimage(|_| {}), 0x1f1) };
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(first + at) {
                *place = byte;
            }
        }
        let mut files = Files::new(&bytes, Some(b"the initrd"));
        let memory = memory(32 * MIB);
        for protocol in [Protocol::Linux64, Protocol::Pvh] {
            files.linux.protocol = protocol;
            if let Ok(loaded) = files.load(&memory) {
                proptest::prop_assert!((MIB..32 * MIB).contains(&loaded.entry), "{loaded:?}");
            }
        }
    }
}

#[test]
fn a_command_line_ends_in_the_users_own() {
    assert_eq!(command_line(true, ""), "panic=-1 console=ttyS0");
    assert_eq!(command_line(true, "quiet -- 1"), "panic=-1 console=ttyS0 quiet -- 1");
    assert_eq!(command_line(true, "console=hvc0"), "panic=-1 console=hvc0");
    assert_eq!(command_line(false, "quiet"), format!("panic=-1 console=ttyS0 {NESTED_OPTIONS} quiet"));
}
