//! What the suite cannot do because of the guest's driver, whatever the target does.

use guest_init::Tested;

/// Something that a driver does not do.
pub(super) struct Limit {
    /// Why tests fail or are skipped.
    pub(super) reason: &'static str,
    /// Each of these tests prints one of these texts.
    said: &'static [&'static str],
    /// How their names begin.
    tests: &'static [&'static str],
}

/// For a command that could not be sent, the suite prints a sense key and a code that no target returns.
const NOT_SENT: &str = "(0xffff)";
/// The suite prints this if the ioctl fails.
const IOCTL_FAILED: &str = "SG_IO ioctl failed";

const BUSLOGIC: [Limit; 4] = [
    Limit {
        reason: "has commands of 16 bytes: a CCB has 12, and Linux sends none that is longer",
        said: &[NOT_SENT, "READCAPACITY16 is not implemented on this target"],
        tests: &[
            "CompareAndWrite.",
            "ExtendedCopy.",
            "GetLBAStatus.",
            "Mandatory.MandatorySBC",
            "ModeSense6.Control-D_SENSE",
            "OrWrite.",
            "Prefetch16.",
            "Read16.",
            "ReadCapacity16.",
            "ReceiveCopyResults.",
            "Verify16.",
            "Write16.",
            "WriteAtomic16.",
            "WriteSame16.",
            "WriteVerify16.",
        ],
    },
    Limit {
        reason: "transfers more than 64 KiB, the driver's limit",
        said: &[IOCTL_FAILED],
        tests: &["Read6.BeyondEol", "WriteSame10.Check"],
    },
    Limit {
        reason: "compares lengths of answers: the driver asks for no residual count, so a short answer looks as long as what was asked for",
        said: &["test_inquiry_alloc_length.c:97", "Invalid PageLength returned. Was 60 but expected 251"],
        tests: &["Inquiry.AllocLength", "Inquiry.BlockLimits"],
    },
    Limit {
        reason: "needs thin provisioning and physical blocks: READ CAPACITY (16), which tells of them, is not sent",
        said: &["LBPME is not set", "Logical unit is fully provisioned", "LBPPB < 2"],
        tests: &["GetLBAStatus.", "Unmap.", "WriteSame10.", "WriteSame16."],
    },
];

const STORVSC: [Limit; 1] = [Limit {
    reason: "has an INQUIRY fail: the driver reports success for each, whatever its status",
    said: &["INQUIRY successful but should have failed"],
    tests: &["Inquiry.EVPD"],
}];

/// The limits of the guest's driver.
pub(super) fn of(driver: &str) -> &'static [Limit] {
    match driver {
        "BusLogic" => &BUSLOGIC,
        "hv_storvsc" => &STORVSC,
        _ => &[],
    }
}

impl Limit {
    /// Whether this limit explains why a test failed or was skipped.
    pub(super) fn ends(&self, test: &Tested) -> bool {
        self.tests.iter().any(|name| test.name.starts_with(name))
            && test.said.iter().any(|line| self.said.iter().any(|text| line.contains(text)))
    }

    /// Those of `tests` for which no test has met the limit.
    pub(super) fn unused<'a>(
        &self,
        tests: impl Iterator<Item = &'a Tested> + Clone,
    ) -> impl Iterator<Item = &'static str> {
        let unused =
            move |name: &&str| !tests.clone().any(|test| test.name.starts_with(*name) && self.ends(test));
        self.tests.iter().copied().filter(unused)
    }
}
