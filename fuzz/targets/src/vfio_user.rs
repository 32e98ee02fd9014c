//! A vfio-user server with any client.
//!
//! The first byte of the input says which adapter it is, and with its highest bit, that memory is mapped and rings are set up
//! before. What follows is taken for what the client does: messages with descriptors, accesses to registers, and changes of
//! the memory that it shares, rings and requests among it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;

use paradisk_devices::{AdapterConfig, AdapterKind, Attachment, Coalescing, Policy};
use paradisk_disk_formats::{EngineKind, RamDisk, SectorSize};
use paradisk_serve::vfio_user::Server;
use paradisk_serve::vfio_user::spec::{self, CONFIG_REGION, Header, NO_REPLY, command};
use zerocopy::IntoBytes;

use crate::common::client::{Client, MEMORY, listen, session};
use crate::common::input::Input;

const KINDS: [AdapterKind; 7] = [
    AdapterKind::Pvscsi,
    AdapterKind::VirtioBlk,
    AdapterKind::VirtioScsi,
    AdapterKind::Lsi,
    AdapterKind::LsiSas,
    AdapterKind::BusLogic,
    AdapterKind::IdeNative,
];
const PAGE: u64 = 4096;
/// Where rings are: three pages of them, for all that have rings.
const RINGS: u64 = PAGE;
const QUEUE_SIZE: u16 = 8;

fn start() {
    for kind in KINDS {
        let disk = Arc::new(RamDisk::new(1 << 20, SectorSize::B512).expect("a disk"));
        let target = kind.targets().next().expect("a target");
        let disks = [(target, Attachment { disk, engine: EngineKind::default(), serial: None })];
        let config = AdapterConfig {
            coalescing: Coalescing::policy(Policy::Batch),
            tasks: 64,
            ..AdapterConfig::new(kind)
        };
        let build = |memory, interrupts| Ok(paradisk_devices::build(memory, interrupts, config, &disks)?);
        let mut server = Server::new(listen(kind.as_str()), build).expect("a server");
        thread::spawn(move || {
            let (_stop, stopped) = UnixStream::pair().expect("a socket");
            server.run(stopped.as_fd(), |_| ()).expect("a server that goes on");
        });
    }
}

fn message(client: &Client, number: u16, flags: u32, payload: &[u8], fds: &[u8]) {
    let header = Header {
        command: number.into(),
        size: ((size_of::<Header>() + payload.len()) as u32).into(),
        flags: flags.into(),
        ..Header::default()
    };
    client.send(&[header.as_bytes(), payload].concat(), fds);
}

fn map(client: &Client, address: u64, size: u64, offset: u64, flags: u32, fds: &[u8]) {
    let map = spec::DmaMap {
        argsz: 32.into(),
        flags: flags.into(),
        offset: offset.into(),
        address: address.into(),
        size: size.into(),
    };
    message(client, command::DMA_MAP, 0, map.as_bytes(), fds);
}

fn write(client: &Client, region: u32, offset: u64, data: &[u8]) {
    let access = spec::RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: (data.len() as u32).into(),
    };
    message(client, command::REGION_WRITE, NO_REPLY, &[access.as_bytes(), data].concat(), &[]);
}

fn set_irqs(client: &Client, index: u32, fds: &[u8]) {
    let set = spec::SetIrqs {
        argsz: 20.into(),
        flags: (spec::IrqSet::DATA_EVENTFD | spec::IrqSet::TRIGGER).bits().into(),
        index: index.into(),
        start: 0.into(),
        count: (fds.len() as u32).into(),
    };
    message(client, command::SET_IRQS, 0, set.as_bytes(), fds);
}

/// What a VMM and a driver do first.
fn set_up(client: &Client, kind: AdapterKind) {
    map(client, 0, MEMORY, 0, 3, &[0]);
    set_irqs(client, spec::IRQ_INTX, &[1]);
    set_irqs(client, spec::IRQ_MSIX, &[1]);
    write(client, CONFIG_REGION, 4, &[7, 0]);
    match kind {
        AdapterKind::Pvscsi => {
            let mut command = [0u32; 132];
            (command[0], command[1]) = (1, 1);
            // State, requests, completions: page numbers.
            (command[2], command[4], command[68]) = (1, 2, 3);
            write(client, 0, 0, &3u32.to_le_bytes());
            for word in command {
                write(client, 0, 4, &word.to_le_bytes());
            }
        }
        AdapterKind::VirtioBlk | AdapterKind::VirtioScsi => {
            write(client, 0, 0x14, &[3]);
            // Bits 32 to 63 of the features: version 1.
            write(client, 0, 0x8, &1u32.to_le_bytes());
            write(client, 0, 0xc, &1u32.to_le_bytes());
            write(client, 0, 0x14, &[11]);
            let queue = if kind == AdapterKind::VirtioBlk { 0u16 } else { 2 };
            write(client, 0, 0x16, &queue.to_le_bytes());
            write(client, 0, 0x18, &QUEUE_SIZE.to_le_bytes());
            for (at, page) in [(0x20, 0), (0x28, 1), (0x30, 2)] {
                write(client, 0, at, &(RINGS + page * PAGE).to_le_bytes());
            }
            write(client, 0, 0x1c, &1u16.to_le_bytes());
            write(client, 0, 0x14, &[15]);
        }
        AdapterKind::BusLogic => {
            // Eight mailboxes of each kind, in turn, CCBs of the extended format.
            for byte in [0x81, QUEUE_SIZE as u8, 0, 0x10, 0, 0, 0x8f, 1, 0x96, 1] {
                write(client, 1, 1, &[byte]);
            }
        }
        _ => {}
    }
}

/// A request of the fuzzer's making, in its place in the ring.
fn request(client: &Client, kind: AdapterKind, input: &mut Input<'_>) {
    let slot = u64::from(input.u8() % 8);
    let address = u64::from(input.u16()) << 4;
    let len = u32::from(input.u16());
    if kind == AdapterKind::IdeNative {
        // A table of two regions, then the registers of a command, and the bus master.
        let mut table = [0; 16];
        table[..4].copy_from_slice(&(address as u32).to_le_bytes());
        table[4..6].copy_from_slice(&(len as u16).to_le_bytes());
        table[7] = input.u8();
        table[12..].copy_from_slice(&[0, 2, 0, 0x80]);
        client.poke(RINGS, &table);
        let channel = input.u8() & 1;
        let block = u32::from(2 * channel);
        write(client, 4, 8 * u64::from(channel) + 4, &(RINGS as u32).to_le_bytes());
        for (register, value) in (1..8).zip(input.bytes(7)) {
            write(client, block, register, &[*value]);
        }
        write(client, 4, 8 * u64::from(channel), &[9 & input.u8()]);
        write(client, block, 0, input.bytes(slot as usize));
    } else if kind == AdapterKind::Pvscsi {
        let mut descriptor = [0; 128];
        descriptor[8..16].copy_from_slice(&address.to_le_bytes());
        descriptor[16..20].copy_from_slice(&len.to_le_bytes());
        descriptor[36..40].copy_from_slice(&u32::from(input.u8()).to_le_bytes());
        let cdb = input.bytes(16);
        descriptor[40..40 + cdb.len()].copy_from_slice(cdb);
        descriptor[56] = 16;
        client.poke(RINGS + PAGE + 128 * slot, &descriptor);
        client.poke(RINGS, &u32::from(input.u8()).to_le_bytes());
        write(client, 0, 0x4018, &[0; 4]);
    } else if kind == AdapterKind::BusLogic {
        let mut ccb = [0; 40];
        (ccb[0], ccb[1], ccb[2], ccb[3]) = (input.u8(), input.u8(), 12, 32);
        ccb[4..8].copy_from_slice(&len.to_le_bytes());
        ccb[8..12].copy_from_slice(&(address as u32).to_le_bytes());
        (ccb[16], ccb[17]) = (input.u8() % 4, input.u8());
        let cdb = input.bytes(12);
        ccb[18..18 + cdb.len()].copy_from_slice(cdb);
        ccb[36..40].copy_from_slice(&(address as u32).to_le_bytes());
        let place = RINGS + PAGE + 64 * slot;
        client.poke(place, &ccb);
        let [a, b, c, d] = (place as u32).to_le_bytes();
        client.poke(RINGS + 8 * slot, &[a, b, c, d, 0, 0, 0, input.u8() % 4]);
        write(client, 1, 1, &[2]);
    } else {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&len.to_le_bytes());
        (descriptor[12], descriptor[14]) = (input.u8(), input.u8());
        client.poke(RINGS + 16 * slot, &descriptor);
        let (index, head) = (input.u8(), input.u8());
        client.poke(RINGS + PAGE + 4 + 2 * (u64::from(index.wrapping_sub(1)) % 8), &[head, 0]);
        client.poke(RINGS + PAGE + 2, &[index, 0]);
        let queue = if kind == AdapterKind::VirtioBlk { 0 } else { 2 };
        write(client, 0, 0x3000 + 4 * queue, &[0; 2]);
    }
}

fn act(client: &Client, kind: AdapterKind, input: &mut Input<'_>) {
    match input.u8() % 16 {
        0 => client.send_from(input),
        1..=5 => {
            let (number, flags, fds, len) = (input.u8() % 20, input.u8(), input.u8() % 5, input.u8());
            let fds = input.bytes(fds.into());
            message(client, number.into(), (flags & 0x11).into(), input.bytes(len.into()), fds);
        }
        6 => client.poke_from(input),
        7 | 8 => {
            let (region, offset, len) = (input.u8() % 10, input.u16(), input.u8() % 9);
            write(client, region.into(), offset.into(), input.bytes(len.into()));
        }
        9 => {
            let (region, offset, count) = (input.u8() % 10, input.u16(), input.u16());
            let access = spec::RegionAccess {
                offset: u64::from(offset).into(),
                region: u32::from(region).into(),
                count: u32::from(count).into(),
            };
            message(client, command::REGION_READ, 0, access.as_bytes(), &[]);
        }
        10 => {
            let [address, size, offset] = [(); 3].map(|()| u64::from(input.u8()) * PAGE);
            map(client, address, size, offset, (input.u8() & 3).into(), &[input.u8()]);
        }
        11 => {
            let [address, size] = [(); 2].map(|()| u64::from(input.u8()) * PAGE);
            let flags = u32::from(input.u8() & 3);
            let unmap = spec::DmaUnmap {
                argsz: 24.into(),
                flags: flags.into(),
                address: address.into(),
                size: size.into(),
            };
            message(client, command::DMA_UNMAP, 0, unmap.as_bytes(), &[]);
        }
        12 => client.resize(u64::from(input.u8()) * PAGE),
        _ => request(client, kind, input),
    }
}

pub(crate) fn run(data: &[u8]) {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(start);
    let mut input = Input(data);
    let first = input.u8();
    let kind = KINDS[usize::from(first & 0x7f) % KINDS.len()];
    session(kind.as_str(), |client| {
        if first & 0x80 != 0 {
            let text = br#"{"capabilities":{"max_msg_fds":16,"write_multiple":true}}"#;
            let version = [&[0; 4][..], &text[..], &[0]].concat();
            message(client, command::VERSION, 0, &version, &[]);
            set_up(client, kind);
        }
        while !input.is_empty() {
            act(client, kind, &mut input);
        }
    });
}
