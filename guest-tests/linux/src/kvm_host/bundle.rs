//! What a job needs to set up a disk of L1: modules of its kernel, a program, and the script that uses both.

use std::fs;
use std::path::PathBuf;

use crate::cache;
use crate::error::Error;
use crate::stock::StockKernel;
use crate::with_libraries::Packaged;

pub(super) struct Bundle<'a> {
    /// Of the folder in the job and in the cache.
    pub(super) name: &'a str,
    pub(super) modules: &'a [&'a str],
    pub(super) program: Packaged,
    /// The script `up`. Beside it are the modules (`NAME.ko`), the names of all in the order of their loading (`order`), the program and its
    /// libraries.
    pub(super) up: &'a str,
}

impl Bundle<'_> {
    /// The folder, for [`HostJob::files`](super::HostJob::files).
    ///
    /// # Errors
    /// A package is not to be had, or the kernel lacks a module.
    pub(super) fn files(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let kernel = StockKernel::cloud()?;
        let modules = kernel.modules(self.modules)?;
        if let Some(name) =
            self.modules.iter().find(|name| modules.iter().all(|module| module.name != **name))
        {
            return Err(Error::Package { package: kernel.version(), what: format!("module {name}") });
        }
        let order: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
        let mut files = self.program.contents()?;
        files.extend([("up", self.up), ("order", &order)].map(|(name, text)| (name.to_owned(), text.into())));
        files.extend(modules.into_iter().map(|module| (format!("{}.ko", module.name), module.content)));
        let inputs: Vec<_> =
            files.iter().flat_map(|(name, content)| [name.as_bytes(), content.as_slice()]).collect();
        let folder =
            cache::directory(&format!("{}-{}", self.name, cache::fingerprint(&inputs)), |directory| {
                files.iter().try_for_each(|(name, content)| {
                    let path = directory.join(name);
                    fs::write(&path, content).map_err(Error::file(&path))
                })
            })?;
        Ok(vec![(self.name.to_owned(), folder)])
    }
}
