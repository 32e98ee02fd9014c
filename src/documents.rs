//! Documents of results from files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use benches::result::Document;

use paradisk_disk_formats::escaped;

use crate::failure::Failure;

/// Bytes of a document at the most; a thousand rows have about 2 MB.
const MOST_BYTES: u64 = 64 << 20;

/// Read results that `bench --json FILE` wrote.
pub(crate) fn read(path: &Path) -> Result<Document, Failure> {
    let failed = |error| Failure::on(path, "cannot read", error);
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::on(path, "cannot be results", format!("larger than {} MiB", MOST_BYTES >> 20)));
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| Failure::on(path, "not results of `bench --json`", error.utf8_error()))?;
    Document::read(&text).map_err(|error| Failure::Failed(format!("{}: {error}", escaped(path))))
}
