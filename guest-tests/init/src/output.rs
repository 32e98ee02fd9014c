//! What is printed for the test outside of the guest.

use guest_init::Line;

/// A line of its own, also when the kernel has just printed something. It is sent before this returns: a long one would be mixed with what
/// the kernel says when it powers off.
pub(crate) fn print(line: &Line) {
    match serde_json::to_string(line) {
        Ok(text) => println!("\n{text}"),
        Err(error) => println!("\n{error}"),
    }
    // Fails where the output is no terminal.
    let _ = rustix::termios::tcdrain(std::io::stdout());
}
