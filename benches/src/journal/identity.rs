//! The identity of a measurement. Two processes with the same identity may share runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use facts::host::Host;
use serde::{Deserialize, Serialize};

/// The properties of a measurement, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity(BTreeMap<String, String>);

impl Identity {
    /// The properties of this host.
    #[must_use]
    pub fn of(host: &Host) -> Self {
        Self::default()
            .with("program", &env!("CARGO_PKG_VERSION"))
            .with("CPU", &host.cpu)
            .with("CPUs", &host.cores)
            .with("kernel", &host.kernel)
            .with("KVM", &host.kvm)
            .with("source of cycles", &host.cycles_source)
    }

    /// Add a property.
    #[must_use]
    pub fn with(mut self, name: &str, value: &dyn Debug) -> Self {
        self.0.insert(name.to_owned(), format!("{value:?}"));
        self
    }

    /// The differences from another identity; `None`: they are equal.
    pub(super) fn differences(&self, here: &Self) -> Option<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(here.0.keys()).collect();
        let none = String::from("nothing");
        let different = names.into_iter().filter(|name| self.0.get(*name) != here.0.get(*name)).map(|name| {
            let [there, here] = [self, here].map(|each| clean(each.0.get(name).unwrap_or(&none)));
            format!("{} was {there}, and is {here} here", clean(name))
        });
        let different: Vec<String> = different.collect();
        (!different.is_empty()).then(|| different.join("; "))
    }
}

/// A text from a file, safe to print on a terminal.
fn clean(text: &str) -> String {
    const MOST: usize = 200;
    let cut: String = text.chars().take(MOST).collect();
    let end = if cut.len() < text.len() { "..." } else { "" };
    cut.replace(char::is_control, "\u{fffd}") + end
}
