//! Reports of the tools check and compact.

use std::io;

use crate::contract::error::{BadField, ReadError, or_bad};

/// Maximum number of findings in the list: a table may have millions of invalid entries.
const MOST: usize = 10_000;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Unused space in the file. No data are at risk; compacting frees it.
    Leak,
    /// One of two copies is missing or differs. The disk is readable, but the other copy is the only one.
    Redundancy,
    /// Data are lost, or a write would lose data.
    Damage,
}

/// One defect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The field, by its name in the specification.
    pub field: &'static str,
    /// What was found.
    pub value: String,
    /// What is allowed.
    pub expected: String,
    /// The repair that was made; `None` if none.
    pub repaired: Option<&'static str>,
}

/// Whether a repair may truncate the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Unused space at the end may be cut off.
    MayBeCut,
    /// The file may not be truncated: the image is nested, and space of the outer disk follows it.
    Stays,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// In the order of the file's structures.
    pub findings: Vec<Finding>,
    /// Blocks with data in the file.
    pub allocated_blocks: u64,
    /// Blocks of the virtual size.
    pub total_blocks: u64,
    /// Unused bytes in the file.
    pub leaked: u64,
    /// Number of findings beyond the list, and the highest severity among them that was not repaired.
    pub more: (u64, Option<Severity>),
}

impl CheckReport {
    /// Highest severity that was not repaired.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings
            .iter()
            .filter(|finding| finding.repaired.is_none())
            .map(|finding| finding.severity)
            .max()
            .max(self.more.1)
    }

    /// What was read. An invalid field is added as damage.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn found<T>(&mut self, read: Result<T, ReadError>) -> io::Result<Option<T>> {
        Ok(or_bad(read)?.map_err(|bad| self.add(Severity::Damage, bad, None)).ok())
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

    /// The report without leaks, for a nested image: the image may grow into the unused space of the outer disk.
    pub(crate) fn without_leaks(mut self) -> Self {
        self.leaked = 0;
        self.findings.retain(|finding| finding.severity != Severity::Leak);
        self
    }

    /// Add a finding about unused bytes.
    pub(crate) fn leak(&mut self, bytes: u64, what: &'static str) {
        if bytes > 0 {
            self.leaked += bytes;
            self.add(Severity::Leak, BadField::new(what, bytes.to_string(), "0"), None);
        }
    }
}

/// The result of compacting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Number of freed blocks.
    pub released: u64,
    /// Number of moved blocks.
    pub moved: u64,
    /// Bytes of the file before.
    pub before: u64,
    /// Bytes of the file after.
    pub after: u64,
}
