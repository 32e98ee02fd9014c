//! Firmware that boots from our adapters: SeaBIOS, which has a driver of its own for each but BusLogic, without interrupts and in real
//! mode.

use guest_linux::Qemu;
use guest_tests::qemu::Vm;
use paradisk_devices::AdapterKind;

use crate::medium::{Format, Medium};
use crate::vfio_user::{Device, Protocol, TIMEOUT, devices};
use crate::{MEMORY, needed};

/// A boot sector that reads sector 8 by BIOS interrupt 13h, writes it to sector 9, prints it on the serial port and ends QEMU.
const BOOT_SECTOR: [u8; 65] = [
    0x31, 0xc0, //                    xor ax, ax
    0x8e, 0xd8, //                    mov ds, ax
    0x8e, 0xd0, //                    mov ss, ax
    0xbc, 0x00, 0x7c, //              mov sp, 7c00h
    0xbe, 0x31, 0x7c, //              mov si, packet
    0xb4, 0x42, //                    mov ah, 42h: extended read
    0xcd, 0x13, //                    int 13h
    0x72, 0x1a, //                    jc end
    0xc6, 0x06, 0x39, 0x7c, 0x09, //  mov byte [packet + 8], 9
    0xb8, 0x00, 0x43, //              mov ax, 4300h: extended write
    0xcd, 0x13, //                    int 13h
    0x72, 0x0e, //                    jc end
    0xbe, 0x00, 0x80, //              mov si, 8000h
    0xba, 0xf8, 0x03, //              mov dx, 3f8h
    0xac, //                   print: lodsb
    0x84, 0xc0, //                    test al, al
    0x74, 0x03, //                    jz end
    0xee, //                          out dx, al
    0xeb, 0xf8, //                    jmp print
    0xba, 0x01, 0x05, //         end: mov dx, 501h: debug exit
    0xee, //                          out dx, al
    0xf4, //                          hlt
    // packet: its length, one sector, to 0000:8000h, from sector 8
    0x10, 0x00, 0x01, 0x00, 0x00, 0x80, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
const SECTOR: usize = 512;
const GREETING: &[u8] = b"this came from sector 8";

#[test]
fn firmware_boots_from_each_adapter() {
    let Some(qemu) = needed("firmware_boots_from_each_adapter", Qemu::backported()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let ide = folder.path().join("ide");
    std::fs::create_dir(&ide).unwrap();
    let medium = Medium::new(&ide, Format::VhdxDifferencing, 8 << 20).unwrap();
    let ide = Device::new(&ide, Protocol::VfioUser(AdapterKind::IdeNative), "ata_piix", vec![medium]);
    for device in [ide]
        .into_iter()
        .chain(devices(folder.path(), &[Format::VhdxDifferencing]).into_iter().filter(is_known))
    {
        let (protocol, medium) = (device.protocol, &device.media[0]);
        medium.write(&boot_sector(), 0);
        medium.write(&sector(GREETING), 8 * SECTOR as u64);
        let mut options = device.options();
        options.extend(["-device", "isa-debug-exit"].map(str::to_owned));
        let served = device.serve();
        let console = folder.path().join("console");
        let vm = Vm::power_on(qemu.system(), "pc", MEMORY, &options, console).unwrap();
        let printed =
            vm.output_within(TIMEOUT, |_| {}).unwrap_or_else(|error| panic!("{protocol:?}: {error}"));
        served.stop().unwrap();
        assert!(printed.ends_with(&*String::from_utf8_lossy(GREETING)), "{protocol:?}: {printed}");
        let content = medium.content();
        assert_eq!(content[9 * SECTOR..10 * SECTOR], sector(GREETING), "{protocol:?}");
        medium.check();
    }
}

/// Whether SeaBIOS has a driver of the adapter: it has none of BusLogic's, whose boards have a BIOS of their own.
fn is_known(device: &Device) -> bool {
    !matches!(device.protocol, Protocol::VfioUser(AdapterKind::BusLogic))
}

fn boot_sector() -> [u8; SECTOR] {
    let mut sector = sector(&BOOT_SECTOR);
    sector[SECTOR - SIGNATURE.len()..].copy_from_slice(&SIGNATURE);
    sector
}

fn sector(content: &[u8]) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..content.len()].copy_from_slice(content);
    sector
}
