//! VHDX.

#[allow(dead_code, unused_imports)]
mod log;
