//! A root file system on each adapter.
