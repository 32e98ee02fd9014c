//! The user's terminal: in raw mode while the guest runs, restored at the end; input for the guest, and the keys that control the
//! machine.

use std::io::{self, Read};

use paradisk_disk_formats::{ThreadKind, spawn};
use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr};

/// Begins a command to the machine: Ctrl-A.
const ESCAPE: u8 = 1;

/// What Ctrl-A h shows.
const HELP: &str =
    "\r\nCtrl-A x  end the machine\r\nCtrl-A h  this help\r\nCtrl-A Ctrl-A  send Ctrl-A to the guest\r";

/// The terminal on standard input in raw mode. Dropping this restores it.
pub(super) struct Raw(Option<Termios>);

impl Raw {
    /// Does nothing if standard input is no terminal, or is the terminal of another job.
    ///
    /// # Errors
    /// The mode cannot be set.
    pub(super) fn enter() -> io::Result<Self> {
        if !is_typed_at() || in_background() {
            return Ok(Self(None));
        }
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Output processing stays on, for lines that others print; the guest sends carriage returns itself.
        raw.output_modes = before.output_modes;
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If another job has the terminal now, that job has set the modes.
        if let Some(before) = self.0.as_ref().filter(|_| !in_background()) {
            // Fails where the terminal is closed. Does not wait for output, which a stopped terminal never takes.
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

/// Whether standard input is a terminal.
pub(super) fn is_typed_at() -> bool {
    isatty(stdin())
}

/// Whether the terminal is another job's, as when a shell has started this process in the background: then to read from it
/// or to set its modes would stop the process.
fn in_background() -> bool {
    // Fails where the terminal controls no jobs of this session.
    tcgetpgrp(stdin()).is_ok_and(|foreground| foreground != getpgrp())
}

/// What a typed byte means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Input for the guest.
    Guest(u8),
    /// End the machine.
    End,
    /// Show the help.
    Help,
    /// Part of a command.
    Nothing,
}

/// Separates commands from input.
#[derive(Default)]
struct Keys {
    escaped: bool,
}

impl Keys {
    fn read(&mut self, byte: u8) -> Key {
        if !std::mem::take(&mut self.escaped) {
            self.escaped = byte == ESCAPE;
            return if self.escaped { Key::Nothing } else { Key::Guest(byte) };
        }
        match byte {
            b'x' | b'X' => Key::End,
            b'h' | b'H' | b'?' => Key::Help,
            ESCAPE => Key::Guest(ESCAPE),
            _ => Key::Nothing,
        }
    }
}

/// Read standard input on a thread of its own. Bytes go to `guest`, which may wait; Ctrl-A x calls `end`. The machine does not end with
/// the input. A terminal of another job is not read.
pub(super) fn read_input(
    mut guest: impl FnMut(&[u8]) + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    if in_background() {
        return Ok(());
    }
    let read = move || {
        let mut keys = Keys::default();
        let mut bytes = [0; 256];
        loop {
            let count = match io::stdin().lock().read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            let mut input = Vec::with_capacity(count);
            for &byte in bytes.get(..count).unwrap_or_default() {
                match keys.read(byte) {
                    Key::Guest(byte) => input.push(byte),
                    Key::Help => tell!("{HELP}"),
                    Key::Nothing => {}
                    Key::End => {
                        end();
                        return;
                    }
                }
            }
            guest(&input);
        }
    };
    spawn(ThreadKind::Terminal, "terminal", read).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_a_begins_a_command() {
        let mut keys = Keys::default();
        let read: Vec<Key> = b"a\x01\x01x\x01zb\x01h\x01x".iter().map(|byte| keys.read(*byte)).collect();
        let guest = Key::Guest;
        assert_eq!(
            read,
            [
                guest(b'a'),
                Key::Nothing,
                guest(1),
                guest(b'x'),
                Key::Nothing,
                Key::Nothing,
                guest(b'b'),
                Key::Nothing,
                Key::Help,
                Key::Nothing,
                Key::End
            ]
        );
    }
}
