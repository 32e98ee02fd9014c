//! Text that others have chosen, in messages and tables: names of files, and what images contain.
//!
//! Such text must not move the cursor of a terminal, look like another line of a log, or change the order of what is read.

use std::ffi::OsStr;
use std::fmt::{self, Display, Write};

/// A path or text, which is displayed in one line: control characters, line separators, marks that change the direction of text, and bytes
/// that are not UTF-8 appear as `\x1b` or `\u{202e}`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(&'a OsStr);

/// Display a path or text that others have chosen.
pub fn escaped<T: AsRef<OsStr> + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped(text.as_ref())
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.as_encoded_bytes().utf8_chunks() {
            for character in chunk.valid().chars() {
                match u32::from(character) {
                    code if character.is_control() && code < 0x100 => write!(f, "\\x{code:02x}")?,
                    code if is_format(character) => write!(f, "\\u{{{code:x}}}")?,
                    _ => f.write_char(character)?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Line and paragraph separators, marks and overrides of the direction, and tags (Unicode 16, categories Zl, Zp and Cf).
const fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn nothing_moves_the_cursor_or_ends_the_line() {
        for (text, shown) in [
            (r"C:\disks\Größe 磁盘.vhdx", r"C:\disks\Größe 磁盘.vhdx"),
            ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
            ("a\nerror: b\r\t\x7f\u{9b}2J", r"a\x0aerror: b\x0d\x09\x7f\x9b2J"),
            ("a\u{202e}b\u{2028}c\u{feff}", r"a\u{202e}b\u{2028}c\u{feff}"),
        ] {
            assert_eq!(escaped(text).to_string(), shown);
        }
        assert_eq!(escaped(OsStr::from_bytes(b"a\xff\xc3(\xf0\x9f")).to_string(), r"a\xff\xc3(\xf0\x9f");
    }
}
