//! The loads by name.

use std::path::Path;

use crate::load::{Load, SERVED};
use crate::server::Place;
use crate::vfio::Setup;
use crate::{kvm, nbd, vfio, vhost, worker};

pub(crate) type Make = Box<dyn FnOnce() -> Box<dyn Load> + Send>;
type InPlace = Box<dyn FnOnce(&Place) -> Box<dyn Load> + Send>;

/// All loads. Each has a folder of its own.
pub(crate) fn all(paradisk: &Path, folder: &Path) -> Vec<(String, Make)> {
    let mut loads: Vec<(String, Make)> = Vec::new();
    let mut add = |name: &str, make: InPlace| {
        let folder = folder.join(name.replace(' ', "-"));
        let place = Place { paradisk: paradisk.into(), folder, file_limit: None };
        std::fs::create_dir_all(&place.folder).unwrap();
        loads.push((name.to_owned(), Box::new(move || make(&place))));
    };
    add("nbd", Box::new(|place| Box::new(nbd::Steady::new(place))));
    add("nbd killed", Box::new(|place| Box::new(nbd::Killed::new(place))));
    add("nbd full host", Box::new(|place| Box::new(nbd::Full::new(place))));
    add("nbd host errors", Box::new(|place| Box::new(nbd::Errors::new(place))));
    add("nbd failed flushes", Box::new(|place| Box::new(nbd::Flushes::new(place))));
    add("vhost-user-blk", Box::new(|place| Box::new(vhost::Steady::new(place))));
    add("vhost-user-blk killed", Box::new(|place| Box::new(vhost::Killed::new(place))));
    for kind in SERVED {
        add(kind.as_str(), Box::new(move |place| Box::new(vfio::Steady::new(place, Setup::of(kind)))));
    }
    add("virtio-blk threads", Box::new(|place| Box::new(vfio::Steady::new(place, Setup::threads(2)))));
    add("slow disk", Box::new(|place| Box::new(vfio::Steady::new(place, Setup::slow()))));
    add("vfio-user killed", Box::new(|place| Box::new(vfio::Killed::new(place))));
    add("guests", Box::new(|_| Box::new(worker::Worker::new("guests"))));
    add("kvm", Box::new(|_| Box::new(kvm::Kvm::new())));
    loads
}
