//! Which files a server maps as the memory of its clients.

use std::path::PathBuf;

use paradisk_serve::MemorySources;

use crate::failure::Failure;

#[derive(clap::Args)]
pub(super) struct ClientMemory {
    /// Also map memory of clients in files on the file system that PATH is on, or in the DAX device PATH; may be repeated. By default only
    /// memfds and files on tmpfs and hugetlbfs are mapped: any other file system may keep the server waiting for a page
    #[arg(long, value_name = "PATH")]
    client_memory: Vec<PathBuf>,
}

impl ClientMemory {
    pub(super) fn sources(&self) -> Result<MemorySources, Failure> {
        let mut sources = MemorySources::default();
        for path in &self.client_memory {
            sources.add(path).map_err(|error| Failure::on(path, "--client-memory", error))?;
        }
        Ok(sources)
    }
}
