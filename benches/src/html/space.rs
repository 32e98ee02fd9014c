//! The limit on the size of the page.

/// Maximum number of characters of a text of the results (a file name, the host's processor), outside of tables.
const LONGEST_TEXT: usize = 200;

/// Remaining space on the page.
pub(super) struct Budget {
    pub(super) free: usize,
    /// Maximum number of bytes of the page.
    pub(super) most: usize,
}

impl Budget {
    /// The parts that fit. One note replaces all others.
    pub(super) fn take(&mut self, parts: impl IntoIterator<Item = String>) -> String {
        let (mut text, mut left_out) = (String::new(), 0_usize);
        for part in parts {
            match self.free.checked_sub(part.len()) {
                Some(free) => {
                    self.free = free;
                    text += &part;
                }
                None => left_out += 1,
            }
        }
        if left_out > 0 {
            text += &format!(
                "<p class=\"limit\">Left out: {left_out} part(s) with which the page would exceed {} KB. The JSON document has all values.</p>\n",
                self.most / 1000
            );
        }
        text
    }
}

/// A text of the results, cut to fit on a line.
pub(super) fn clipped(text: &str) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
