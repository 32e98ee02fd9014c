//! Reports of tools: what a check found, what compacting did.

use crate::formats::field::BadField;

/// Findings that are listed: a table may have millions of bad entries.
const MOST: usize = 10_000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Space of the file that nothing uses. No data is in danger; compacting frees it.
    Leak,
    /// One of two copies is missing or differs. Reading works; the other copy must last.
    Redundancy,
    /// Data is lost or would be by writing.
    Damage,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The field, in the specification's words.
    pub field: &'static str,
    /// What was found.
    pub value: String,
    /// What is allowed.
    pub expected: String,
    /// What repairing did about it; `None` where nothing.
    pub repaired: Option<&'static str>,
}

/// What repairing may do with the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Cut off what nothing uses.
    MayBeCut,
    /// Nothing: the image is the content of another disk, the rest of which is behind it.
    Stays,
}

/// What a check has found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// In the order of the file's structures.
    pub findings: Vec<Finding>,
    /// Blocks with data in the file.
    pub allocated_blocks: u64,
    /// Blocks of the virtual size.
    pub total_blocks: u64,
    /// Bytes of the file that nothing uses.
    pub leaked: u64,
    /// Findings beyond those in the list, and the worst of them that is still there.
    pub more: (u64, Option<Severity>),
}

impl CheckReport {
    /// The worst that is still there.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings
            .iter()
            .filter(|finding| finding.repaired.is_none())
            .map(|finding| finding.severity)
            .max()
            .max(self.more.1)
    }

    pub(crate) fn add(&mut self, severity: Severity, bad: BadField, repaired: Option<&'static str>) {
        if self.findings.len() >= MOST {
            let worst = self.more.1.max(repaired.is_none().then_some(severity));
            self.more = (self.more.0 + 1, worst);
            return;
        }
        let BadField { field, value, expected } = bad;
        self.findings.push(Finding { severity, field, value, expected, repaired });
    }

    /// The same of an image inside a disk: what it does not use of that disk is free for it to grow into.
    pub(crate) fn without_leaks(mut self) -> Self {
        self.leaked = 0;
        self.findings.retain(|finding| finding.severity != Severity::Leak);
        self
    }

    /// Bytes that nothing uses.
    pub(crate) fn leak(&mut self, bytes: u64, what: &'static str) {
        if bytes > 0 {
            self.leaked += bytes;
            self.add(Severity::Leak, BadField::new(what, bytes.to_string(), "0"), None);
        }
    }
}

/// What compacting has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Blocks that held nothing, and are gone.
    pub released: u64,
    /// Blocks that went to a place further down.
    pub moved: u64,
    /// Bytes of the file before.
    pub before: u64,
    /// Bytes of the file now.
    pub after: u64,
}
