//! What is printed for the test outside of the guest.

use guest_init::Line;

/// A line of its own, also when the kernel has just printed something.
pub(crate) fn print(line: &Line) {
    match serde_json::to_string(line) {
        Ok(text) => println!("\n{text}"),
        Err(error) => println!("\n{error}"),
    }
}
