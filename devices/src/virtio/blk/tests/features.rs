//! The features and the configuration that the guest reads.

use paradisk_disk_formats::DiscardLimits;

use super::*;

fn config_of(
    change: impl FnOnce(&mut paradisk_disk_formats::DiskInfo),
    config: Config,
) -> (BlkFeatures, BlkConfig) {
    let mut disk = TestDisk::new(MIB, Hold::default());
    change(&mut disk.info);
    let mut guest = Guest::powered(Arc::new(disk), Hold::default(), config);
    let features = guest.offered();
    let mut configuration = BlkConfig::default();
    for (at, byte) in (DEVICE_CFG..).zip(configuration.as_mut_bytes()) {
        *byte = guest.read(at, 1) as u8;
    }
    // Bytes beyond the configuration read as zero.
    assert_eq!(guest.read(DEVICE_CFG + size_of::<BlkConfig>() as u64, 8), 0);
    (BlkFeatures::from_bits_truncate(features), configuration)
}

#[test]
fn a_disk_as_it_is() {
    let (features, config) = config_of(|_| {}, Config { queue_size: 64, ..Config::default() });
    assert_eq!((config.capacity.get(), config.blk_size.get(), config.seg_max.get()), (2048, 512, 62));
    assert_eq!((config.physical_block_exp, config.min_io_size.get(), config.writeback), (0, 1, 0));
    assert_eq!((config.write_zeroes_may_unmap, config.num_queues.get()), (0, 1));
    assert!(features.contains(BlkFeatures::FLUSH | BlkFeatures::TOPOLOGY | BlkFeatures::WRITE_ZEROES));
    assert!(!features.intersects(BlkFeatures::RO | BlkFeatures::MQ | BlkFeatures::DISCARD));
}

#[test]
fn sectors_queues_and_discards() {
    let (features, config) = config_of(
        |info| {
            info.physical_sector = 4096;
            info.volatile_cache = true;
            info.discard = Some(DiscardLimits { granularity: 65536, reads_zero: true });
        },
        Config { queues: 8, ..Config::default() },
    );
    assert!(features.contains(BlkFeatures::MQ | BlkFeatures::DISCARD));
    assert_eq!((config.physical_block_exp, config.min_io_size.get(), config.writeback), (3, 8, 1));
    assert_eq!((config.discard_sector_alignment.get(), config.max_discard_seg.get()), (128, 16));
    assert_eq!((config.write_zeroes_may_unmap, config.num_queues.get()), (1, 8));

    let (_, config) = config_of(
        |info| {
            info.logical_sector = SectorSize::B4096;
            info.physical_sector = 4096;
        },
        Config::default(),
    );
    assert_eq!((config.capacity.get(), config.blk_size.get(), config.physical_block_exp), (2048, 4096, 0));
}

#[test]
fn read_only_disks_only_read() {
    let (features, _) = config_of(
        |info| {
            info.read_only = true;
            info.discard = Some(DiscardLimits { granularity: 4096, reads_zero: true });
        },
        Config::default(),
    );
    assert!(features.contains(BlkFeatures::RO));
    assert!(!features.intersects(BlkFeatures::DISCARD | BlkFeatures::WRITE_ZEROES));
}

#[test]
fn the_cache_mode_is_the_drivers_where_it_may_be() {
    let mut guest = Guest::held(batch());
    let read = |guest: &mut Guest| guest.read(DEVICE_CFG + WRITEBACK, 1);
    assert_eq!(read(&mut guest), 0);
    guest.write(DEVICE_CFG + WRITEBACK, 1, 1);
    assert_eq!(read(&mut guest), 1);
    // All other fields are read-only.
    for at in (0..60).filter(|at| *at != WRITEBACK) {
        guest.write(DEVICE_CFG + at, 1, 0xff);
    }
    guest.write(DEVICE_CFG + WRITEBACK, 4, 0);
    assert_eq!((read(&mut guest), guest.read(DEVICE_CFG, 4)), (1, 2048));
    guest.bring_up(!BlkFeatures::CONFIG_WCE.bits(), 64);
    assert_eq!(read(&mut guest), 0);
    guest.write(DEVICE_CFG + WRITEBACK, 1, 1);
    assert_eq!(read(&mut guest), 0);
}

#[test]
fn queues_of_any_size_and_number() {
    for (asked, size) in [(0, 4), (4, 4), (100, 128), (256, 256), (1024, 1024), (0xffff, 1024)] {
        let config = Config { queue_size: asked, queues: asked, ..Config::default() };
        let mut guest =
            Guest::powered(Arc::new(TestDisk::new(MIB, Hold::default())), Hold::default(), config);
        assert_eq!(guest.read(QUEUE_SIZE, 2), size);
        assert_eq!(guest.read(NUM_QUEUES, 2), u64::from(asked.clamp(1, MAX_QUEUES)));
        assert_eq!(guest.read(DEVICE_CFG + 12, 4), size - 2);
        assert_eq!(guest.device.doorbells().len(), usize::from(asked.clamp(1, MAX_QUEUES)));
    }
}

#[test]
fn a_disk_that_grows_while_its_driver_starts_is_told_of_when_that_is_ready() {
    let hold = Hold::default();
    let disk = Arc::new(TestDisk::new(MIB, hold.clone()));
    let mut guest = Guest::powered(disk.clone(), hold, batch());
    guest.write(DEVICE_STATUS, 1, 0);
    guest.add_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let offered = guest.offered();
    guest.accept(offered);
    guest.add_status(DeviceStatus::FEATURES_OK);
    disk.grow(2 * MIB);
    let now = guest.now;
    guest.device.refresh(now);
    assert_eq!(guest.read(ISR, 1), 0);
    guest.add_status(DeviceStatus::DRIVER_OK);
    assert_eq!(guest.read(ISR, 1), 2);
    // A driver that reads the configuration after a reset needs no notification.
    guest.bring_up(ALL, 64);
    assert_eq!(guest.read(ISR, 1), 0);
}

#[test]
fn a_disk_that_grows_is_told_of() {
    for msix in [false, true] {
        let hold = Hold::default();
        let disk = Arc::new(TestDisk::new(MIB, hold.clone()));
        let mut guest = Guest::powered(disk.clone(), hold, batch());
        if msix {
            guest.enable_msix();
        }
        guest.bring_up(ALL, 64);
        guest.write(CONFIG_MSIX_VECTOR, 2, 1);
        let now = guest.now;
        guest.device.refresh(now);
        assert_eq!((guest.read(CONFIG_GENERATION, 1), guest.device.stats().interrupts), (0, 0));
        disk.grow(2 * MIB);
        guest.device.refresh(now);
        assert_eq!(guest.read(CONFIG_GENERATION, 1), 1);
        assert_eq!(guest.read(DEVICE_CFG, 8), 2 * MIB / 512);
        assert_eq!((guest.device.stats().interrupts, guest.read(ISR, 1)), if msix { (1, 0) } else { (1, 2) });
        guest.device.refresh(now);
        assert_eq!(guest.read(CONFIG_GENERATION, 1), 1, "once");
    }
}
