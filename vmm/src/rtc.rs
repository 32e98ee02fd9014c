//! The clock of a PC (Motorola MC146818): the host's time in UTC, read-only, without alarm and interrupts.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bus::{BusHandler, Flow};
use crate::layout;

/// Register of the century, as in the ACPI table.
pub(crate) const CENTURY: u8 = 0x32;
/// 32,768 Hz time base, 1,024 Hz rate.
const REGISTER_A: u8 = 0x26;
/// In register A: an update is in progress, or imminent.
const UPDATE_IN_PROGRESS: u8 = 1 << 7;
/// While that bit is clear, the time does not change for at least this long (datasheet, "Update Cycle").
const BEFORE_UPDATE: Duration = Duration::from_micros(244);
/// 24 hours, numbers in BCD.
const REGISTER_B: u8 = 1 << 1;
/// The battery is good.
const REGISTER_D: u8 = 1 << 7;

/// Index and data port.
#[derive(Default)]
pub(crate) struct Rtc(AtomicU8);

impl BusHandler for Rtc {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        const DATA: u64 = (layout::RTC.end - layout::RTC.start - 1) as u64;
        if let (DATA, Some(byte)) = (offset, data.first_mut()) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            *byte = register(self.0.load(Ordering::Relaxed), now);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        if let (0, [index, ..]) = (offset, data) {
            // The top bit masks the non-maskable interrupt.
            self.0.store(index & 0x7f, Ordering::Relaxed);
        }
        Flow::Continue
    }
}

/// A register at a time since 1970.
fn register(index: u8, time: Duration) -> u8 {
    let now = time.as_secs();
    let (days, second) = (now / 86_400, now % 86_400);
    let (year, month, day) = date(days);
    let bcd = |number: u64| (((number / 10 % 10) << 4) | (number % 10)) as u8;
    match index {
        0x00 => bcd(second % 60),
        0x02 => bcd(second / 60 % 60),
        0x04 => bcd(second / 3600),
        // 1970 began on a Thursday; Sunday is 1.
        0x06 => bcd((days + 4) % 7 + 1),
        0x07 => bcd(day),
        0x08 => bcd(month),
        0x09 => bcd(year % 100),
        0x0a if (time + BEFORE_UPDATE).as_secs() != now => REGISTER_A | UPDATE_IN_PROGRESS,
        0x0a => REGISTER_A,
        0x0b => REGISTER_B,
        0x0d => REGISTER_D,
        CENTURY => bcd(year / 100),
        _ => 0,
    }
}

/// Year, month and day in the Gregorian calendar of a day since 1970-01-01. Years begin in March here, so that the leap
/// day is the last.
const fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const CYCLE: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (cycle * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
        assert_eq!(date(20_778), (2026, 11, 21));
        assert_eq!(date(47_540), (2100, 2, 28));
        assert_eq!(date(47_541), (2100, 3, 1));
    }

    #[test]
    fn the_time_is_in_bcd() {
        // 2026-11-21 09:48:39 UTC, a Saturday.
        let now = Duration::from_secs(1_795_254_519);
        let registers = [0x00, 0x02, 0x04, 0x06, 0x07, 0x08, 0x09, CENTURY];
        let expected = [0x39, 0x48, 0x09, 0x07, 0x21, 0x11, 0x26, 0x20];
        assert_eq!(registers.map(|index| register(index, now)), expected);
    }

    #[test]
    fn an_update_is_announced() {
        let at = |micros| register(0x0a, Duration::from_secs(7) + Duration::from_micros(micros));
        assert_eq!([0, 999_755].map(at), [REGISTER_A; 2]);
        assert_eq!([999_756, 999_999].map(at), [REGISTER_A | 0x80; 2]);
    }

    #[test]
    fn the_index_chooses() {
        let rtc = Rtc::default();
        rtc.write(0, &[0x8b]);
        let mut data = [0];
        rtc.read(1, &mut data);
        assert_eq!(data, [REGISTER_B]);
        rtc.read(0, &mut data);
        assert_eq!(data, [0xff], "the index is not readable");
    }
}
