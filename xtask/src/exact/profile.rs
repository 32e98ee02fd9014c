//! Which functions of the host's kernel executed the instructions of a load.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;

/// Functions that are printed.
const MOST: usize = 60;

/// Instructions of each function so far, at each mark.
pub(super) struct Profile(Vec<BTreeMap<String, u64>>);

impl Profile {
    /// Of the plugin's lines and `/proc/kallsyms`.
    ///
    /// # Errors
    /// A line cannot be read.
    pub(super) fn parse(lines: &str, symbols: &str) -> Result<Self, Box<dyn Error>> {
        let mut functions = BTreeMap::new();
        for line in symbols.lines() {
            // ADDRESS TYPE NAME [MODULE]
            if let [address, "t" | "T" | "w" | "W", name, ..] =
                line.split_whitespace().collect::<Vec<_>>()[..]
            {
                functions.insert(u64::from_str_radix(address, 16)?, name);
            }
        }
        let (mut marks, mut now) = (Vec::new(), BTreeMap::new());
        for line in lines.lines() {
            let Some((address, count)) = line.split_once(' ') else {
                marks.push(std::mem::take(&mut now));
                continue;
            };
            let function = functions.range(..=u64::from_str_radix(address, 16)?).next_back();
            let name = function.map_or("?", |(_, name)| name);
            *now.entry(name.to_owned()).or_insert(0) += count.parse::<u64>()?;
        }
        Ok(Self(marks))
    }

    /// Instructions per request of two runs, from the mark of this number on, the second with this many more requests: a line for each of the
    /// longest functions.
    pub(super) fn between(&self, mark: usize, requests: u64) -> String {
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| self.0.get(mark + at));
        let (Some(a), Some(b), Some(c), Some(d)) = (a, b, c, d) else { return "no profile\n".to_owned() };
        let of = |name: &str, at: &BTreeMap<String, u64>| at.get(name).copied().unwrap_or_default() as f64;
        let each = |name: &String| (of(name, d) - of(name, c) - of(name, b) + of(name, a)) / requests as f64;
        let mut all: Vec<_> = d.keys().map(|name| (each(name), name)).collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut text = String::new();
        for (count, name) in all.into_iter().take(MOST) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{count:>9.1} {name}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_sorted_by_their_instructions() {
        let symbols = "ff00 T start\nff10 t middle\nff20 d data\nff30 T end [kvm]\n";
        let lines = "ff00 10\nff18 10\nmark\nff00 20\nff18 30\nmark\nff00 20\nff18 30\nmark\n\
                     ff00 40\nff18 70\nff30 5\nmark\n";
        let profile = Profile::parse(lines, symbols).unwrap();
        // From one run to the next: start 10 and 20, middle 20 and 40, end 0 and 5.
        assert_eq!(profile.between(0, 10), "      2.0 middle\n      1.0 start\n      0.5 end\n");
        assert_eq!(profile.between(1, 10), "no profile\n");
        assert!(Profile::parse("x 1\n", symbols).is_err() && Profile::parse("1 x\n", symbols).is_err());
    }
}
