//! What this kernel lacks for the sandbox, in one line.

use std::io;

use landlock::{ABI, LandlockStatus};

/// What Landlock limits only from this ABI on, with the first version of Linux that has the ABI.
const LATER: [(ABI, &str); 4] = [
    (ABI::V3, "truncation (Linux 6.2)"),
    (ABI::V4, "TCP (Linux 6.7)"),
    (ABI::V5, "ioctls of devices (Linux 6.10)"),
    (ABI::V6, "signals and abstract sockets (Linux 6.12)"),
];

/// The line; `None` if nothing is missing. `rings` is the result of restricting rings.
pub(crate) fn lacking(rings: &io::Result<()>, landlock: LandlockStatus) -> Option<String> {
    let rings = rings.as_ref().err();
    let rings = rings.map(|error| format!("this kernel cannot restrict the operations of io_uring: {error}"));
    let parts: Vec<String> = rings.into_iter().chain(of_landlock(landlock)).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn of_landlock(status: LandlockStatus) -> Option<String> {
    let without = |why| Some(format!("{why}: files, TCP and signals are limited by system call alone"));
    let abi = match status {
        LandlockStatus::NotEnabled => {
            return without("Landlock is not enabled in this kernel (boot parameter `lsm`)");
        }
        LandlockStatus::NotImplemented => return without("this kernel has no Landlock (Linux 5.13)"),
        LandlockStatus::Available { effective_abi, .. } => effective_abi,
    };
    let missing: Vec<&str> = LATER.iter().filter(|(from, _)| abi < *from).map(|(_, what)| *what).collect();
    (!missing.is_empty()).then(|| format!("this kernel's Landlock does not limit {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Landlock of this ABI, as the kernel reports it.
    fn landlock(abi: i32) -> LandlockStatus {
        LandlockStatus::Available { effective_abi: abi.into(), kernel_abi: None }
    }

    #[test]
    fn each_abi_of_landlock_limits_more() {
        let old = "this kernel's Landlock does not limit truncation (Linux 6.2), TCP (Linux 6.7), ioctls of devices (Linux 6.10), \
                   signals and abstract sockets (Linux 6.12)";
        let with = |what| Some(format!("this kernel's Landlock does not limit {what}"));
        let expected = [
            (1, Some(old.to_owned())),
            (2, Some(old.to_owned())),
            (
                3,
                with(
                    "TCP (Linux 6.7), ioctls of devices (Linux 6.10), signals and abstract sockets (Linux 6.12)",
                ),
            ),
            (4, with("ioctls of devices (Linux 6.10), signals and abstract sockets (Linux 6.12)")),
            (5, with("signals and abstract sockets (Linux 6.12)")),
            (6, None),
            (7, None),
        ];
        for (abi, line) in expected {
            assert_eq!(lacking(&Ok(()), landlock(abi)), line, "ABI {abi}");
        }
    }

    #[test]
    fn without_landlock_only_calls_are_limited() {
        for (status, start) in [
            (LandlockStatus::NotImplemented, "this kernel has no Landlock (Linux 5.13): "),
            (LandlockStatus::NotEnabled, "Landlock is not enabled in this kernel (boot parameter `lsm`): "),
        ] {
            let line = lacking(&Ok(()), status).unwrap();
            let rest = line.strip_prefix(start).unwrap();
            assert_eq!(rest, "files, TCP and signals are limited by system call alone");
        }
    }

    #[test]
    fn all_that_is_missing_is_one_line() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        for status in [LandlockStatus::NotImplemented, LandlockStatus::NotEnabled, landlock(1), landlock(4)] {
            let line = lacking(&refused(), status).unwrap();
            let rings =
                "this kernel cannot restrict the operations of io_uring: Invalid argument (os error 22); ";
            assert_eq!(line.strip_prefix(rings), lacking(&Ok(()), status).as_deref());
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        let rings = lacking(&refused(), landlock(6)).unwrap();
        assert!(rings.ends_with("io_uring: Invalid argument (os error 22)"), "{rings}");
    }
}
