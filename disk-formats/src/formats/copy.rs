//! The content of a disk as its [`Format`](crate::Format) maps it, and copies of it: for tools, and for merge and rebase.

pub(crate) mod content;
pub(crate) mod holes;
pub(crate) mod offload;
pub(crate) mod overlay;
pub(crate) mod rebase_copy;
pub(crate) mod runs;
#[cfg(test)]
pub(crate) mod scattered;
