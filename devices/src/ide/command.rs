//! Parses a command code and the task file into a [`Command`]: valid, or an error for the guest.

use paradisk_disk_formats::DiskInfo;

use super::settings::{Settings, TransferMode};
use super::spec::{Error, MAX_MULTIPLE, MAX_TRIM_BLOCKS, TRIM, command, feature, smart};
use super::taskfile::{Addressing, Geometry, Sectors, Taskfile};

/// What a command does with sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    /// Read, and discard the data.
    Verify,
}

/// How data are transferred between drive and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Programmed I/O, in blocks of at most this many sectors.
    Pio(u8),
    /// DMA by the bus master.
    Dma,
}

/// A command that transfers or verifies sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) operation: Operation,
    pub(super) protocol: Protocol,
    pub(super) addressing: Addressing,
    /// The range; checked against the disk's capacity.
    pub(super) sectors: Sectors,
}

/// A block of data that describes the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriveData {
    Identify,
    SmartAttributes,
    SmartLog,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Transfer(Transfer),
    Flush,
    /// DATA SET MANAGEMENT with this many blocks of ranges.
    Trim(u16),
    DriveData(DriveData),
    /// Change the settings.
    Set(Settings),
    /// Flush the write cache, then change the settings.
    SetAndFlush(Settings),
    CheckPower,
    SmartStatus,
    NativeMax(Addressing),
    /// Succeeds without effect.
    Nothing,
}

impl Command {
    /// Parse a command other than EXECUTE DEVICE DIAGNOSTIC, which addresses both drives. The error goes to the error register.
    pub(super) fn parse(
        code: u8,
        taskfile: &Taskfile,
        settings: &Settings,
        info: &DiskInfo,
    ) -> Result<Self, Error> {
        let multiple = Protocol::Pio(settings.multiple);
        let one = Protocol::Pio(1);
        let transfer = |operation, protocol, ext| {
            let addressing = taskfile.addressing(ext, settings.geometry);
            transfer(operation, protocol, addressing, taskfile, info).map(Self::Transfer)
        };
        let set = |settings| Ok(Self::Set(settings));
        match code {
            command::READ_SECTORS | command::READ_SECTORS_ONCE => transfer(Operation::Read, one, false),
            command::READ_SECTORS_EXT => transfer(Operation::Read, one, true),
            command::READ_MULTIPLE => transfer(Operation::Read, multiple, false),
            command::READ_MULTIPLE_EXT => transfer(Operation::Read, multiple, true),
            command::READ_DMA | command::READ_DMA_ONCE => transfer(Operation::Read, Protocol::Dma, false),
            command::READ_DMA_EXT => transfer(Operation::Read, Protocol::Dma, true),
            command::WRITE_SECTORS | command::WRITE_SECTORS_ONCE => transfer(Operation::Write, one, false),
            command::WRITE_SECTORS_EXT => transfer(Operation::Write, one, true),
            command::WRITE_MULTIPLE => transfer(Operation::Write, multiple, false),
            command::WRITE_MULTIPLE_EXT => transfer(Operation::Write, multiple, true),
            command::WRITE_DMA | command::WRITE_DMA_ONCE => transfer(Operation::Write, Protocol::Dma, false),
            command::WRITE_DMA_EXT => transfer(Operation::Write, Protocol::Dma, true),
            command::READ_VERIFY | command::READ_VERIFY_ONCE => {
                transfer(Operation::Verify, Protocol::Pio(MAX_MULTIPLE), false)
            }
            command::READ_VERIFY_EXT => transfer(Operation::Verify, Protocol::Pio(MAX_MULTIPLE), true),
            command::FLUSH_CACHE | command::FLUSH_CACHE_EXT => Ok(Self::Flush),
            command::DATA_SET_MANAGEMENT => trim(taskfile, info),
            command::IDENTIFY => Ok(Self::DriveData(DriveData::Identify)),
            command::SET_FEATURES => set_features(taskfile, settings),
            command::SET_MULTIPLE => match taskfile.count() {
                multiple if multiple.is_power_of_two() && multiple <= MAX_MULTIPLE => {
                    set(Settings { multiple, ..*settings })
                }
                0 => set(Settings { multiple: 0, ..*settings }),
                _ => Err(Error::ABRT),
            },
            command::INITIALIZE_PARAMETERS => match taskfile.count() {
                0 => Err(Error::ABRT),
                sectors => {
                    set(Settings { geometry: Geometry { heads: taskfile.head() + 1, sectors }, ..*settings })
                }
            },
            command::SMART => parse_smart(taskfile, settings),
            command::READ_NATIVE_MAX => Ok(Self::NativeMax(taskfile.addressing(false, settings.geometry))),
            command::READ_NATIVE_MAX_EXT => Ok(Self::NativeMax(Addressing::Lba48)),
            _ if code & 0xf0 == command::RECALIBRATE || code & 0xf0 == command::SEEK => Ok(Self::Nothing),
            _ => parse_power(code).ok_or(Error::ABRT),
        }
    }
}

fn transfer(
    operation: Operation,
    protocol: Protocol,
    addressing: Addressing,
    taskfile: &Taskfile,
    info: &DiskInfo,
) -> Result<Transfer, Error> {
    if protocol == Protocol::Pio(0) || operation == Operation::Write && info.read_only {
        return Err(Error::ABRT);
    }
    let sectors = taskfile.sectors(addressing).ok_or(Error::IDNF)?;
    // No overflow: `lba` has 48 bits, `count` is at most 65,536.
    if sectors.lba + u64::from(sectors.count) > info.sectors() {
        return Err(Error::IDNF);
    }
    Ok(Transfer { operation, protocol, addressing, sectors })
}

fn trim(taskfile: &Taskfile, info: &DiskInfo) -> Result<Command, Error> {
    let blocks = taskfile.count16();
    let possible = info.discard.is_some() && !info.read_only && taskfile.features() == TRIM;
    match possible && (1..=MAX_TRIM_BLOCKS).contains(&blocks) {
        true => Ok(Command::Trim(blocks)),
        false => Err(Error::ABRT),
    }
}

fn set_features(taskfile: &Taskfile, settings: &Settings) -> Result<Command, Error> {
    let settings = *settings;
    Ok(match taskfile.features() {
        feature::TRANSFER_MODE => {
            let transfer = TransferMode::parse(taskfile.count()).ok_or(Error::ABRT)?;
            Command::Set(Settings { transfer, ..settings })
        }
        feature::ENABLE_WRITE_CACHE => Command::Set(Settings { write_cache: true, ..settings }),
        // Cached data must be on stable storage before IDENTIFY reports the cache as off.
        feature::DISABLE_WRITE_CACHE => Command::SetAndFlush(Settings { write_cache: false, ..settings }),
        feature::ENABLE_LOOK_AHEAD => Command::Set(Settings { look_ahead: true, ..settings }),
        feature::DISABLE_LOOK_AHEAD => Command::Set(Settings { look_ahead: false, ..settings }),
        _ => return Err(Error::ABRT),
    })
}

fn parse_smart(taskfile: &Taskfile, settings: &Settings) -> Result<Command, Error> {
    let [log, mid, high] = taskfile.bytes();
    let features = taskfile.features();
    if [mid, high] != smart::SIGNATURE || !settings.smart && features != smart::ENABLE {
        return Err(Error::ABRT);
    }
    match features {
        smart::READ_DATA | smart::READ_THRESHOLDS => Ok(Command::DriveData(DriveData::SmartAttributes)),
        smart::READ_LOG if matches!((log, taskfile.count()), (1 | 6, 1)) => {
            Ok(Command::DriveData(DriveData::SmartLog))
        }
        smart::AUTOSAVE | smart::EXECUTE_OFFLINE => Ok(Command::Nothing),
        smart::ENABLE => Ok(Command::Set(Settings { smart: true, ..*settings })),
        smart::DISABLE => Ok(Command::Set(Settings { smart: false, ..*settings })),
        smart::RETURN_STATUS => Ok(Command::SmartStatus),
        _ => Err(Error::ABRT),
    }
}

/// Power commands. The drive is always active; commands that would stop it flush the cache.
fn parse_power(code: u8) -> Option<Command> {
    let place = |codes: &[u8]| codes.iter().position(|each| *each == code);
    match place(&command::POWER).or_else(|| place(&command::OLD_POWER))? {
        // STANDBY IMMEDIATE, STANDBY, SLEEP.
        0 | 2 | 5 => Some(Command::Flush),
        4 => Some(Command::CheckPower),
        _ => Some(Command::Nothing),
    }
}
