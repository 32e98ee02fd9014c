//! `paradisk serve nbd`: disks for NBD clients, among them the Linux kernel.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use facts::disk::OpenDisk;
use paradisk_serve::nbd::{self, Export, Exports, Server, Tls};
use sandbox::{Grants, Program};

use super::control::Control;
use super::lifecycle::{Lifetime, announce, close, ends};
use super::listen::{Listen, refuse_unused};
use crate::confinement::Confinement;
use crate::deadline::wait_for_byte;
use crate::disk;
use crate::disk_spec::{DiskSpec, disk_help};
use crate::failure::Failure;
use crate::metrics::DiskSnapshot;
use crate::monitoring::Monitoring;
use crate::service_manager::Manager;

/// Serve disks by the Network Block Device protocol, until SIGTERM or SIGINT.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  paradisk serve nbd --socket disk.socket --disk disk.vhdx
  paradisk serve nbd --listen 127.0.0.1:10809 --disk a.vhd --disk path=b.raw,readonly=on --export a --export b
  paradisk serve nbd --socket disk.socket --disk disk.vhdx --control control.socket --metrics 127.0.0.1:9500
  nbd-client -unix disk.socket /dev/nbd0 && mount /dev/nbd0p1 /mnt
  qemu-img info 'nbd+unix:///?socket=disk.socket'")]
pub(crate) struct Args {
    #[command(flatten)]
    unix: Listen,
    /// Listen at this TCP address or host name, for everybody who reaches it; port 0 is any that is free
    #[arg(long, value_name = "ADDR:PORT", value_parser = resolve, conflicts_with = "socket")]
    listen: Option<SocketAddr>,
    /// A disk, as a path or KEY=VALUE,...; may be repeated
    #[arg(long, value_name = "SPEC", required = true, long_help = disk_help!("A disk, as a path or KEY=VALUE,...; may be repeated"))]
    disk: Vec<DiskSpec>,
    /// The name that clients ask for, of each disk in turn; clients that name none get the first disk
    #[arg(long, value_name = "NAME")]
    export: Vec<String>,
    /// Serve under TLS only: the server's certificate, as PEM, followed by those between it and its authority
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Take clients only that have a certificate by one of these authorities, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
    /// Maximum number of clients that are served at a time
    #[arg(long, value_name = "N", default_value_t = Server::CONNECTIONS as u16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    #[command(flatten)]
    lifetime: Lifetime,
    #[command(flatten)]
    monitoring: Monitoring,
    #[command(flatten)]
    confinement: Confinement,
}

/// The first address of a host.
fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the host has no address".to_owned())
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.disk.len() > 1 && args.export.len() != args.disk.len() || args.export.len() > args.disk.len() {
        return Err(Failure::Usage(format!(
            "{} --disk and {} --export; expected a name for each disk, or one disk alone",
            args.disk.len(),
            args.export.len()
        )));
    }
    if args.disk.iter().any(|disk| disk.adapter.is_some()) {
        return Err(Failure::Usage("--disk: adapter is not for this command: there is none".to_owned()));
    }
    // Signals are handled before disks are opened that would have to be closed.
    let (stop, end) = ends()?;
    let metering = args.monitoring.metering();
    let open = |spec| disk::open_metered(spec, metering);
    let opened = args.disk.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let names = args.export.iter().cloned().chain(std::iter::repeat(String::new()));
    let exports = opened.iter().zip(names).map(|(opened, name)| Export {
        name,
        description: description(opened),
        disk: Arc::clone(&opened.disk),
        engine: opened.engine,
    });
    let exports = Exports::new(exports.collect()).map_err(|error| Failure::Usage(error.to_string()))?;
    let exports = match (&args.tls_certificate, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let tls = Tls::from_files(certificate, key, args.tls_client_ca.as_deref());
            exports.with_tls(tls.map_err(|error| Failure::Failed(format!("TLS: {error}")))?)
        }
        _ => exports,
    };
    let (listener, place) = listen(args)?;
    let listeners = args.monitoring.listen()?;
    let manager = Manager::connect();
    let sockets = args.unix.path().into_iter().chain(args.monitoring.paths()).collect();
    let sandbox = args.confinement.enter(Program::Nbd, &Grants { sockets, ..Grants::default() })?;
    let clients = args.lifetime.watch(&stop, &end)?;
    let server =
        Server::start_with(listener, exports, args.connections.into(), move || clients.disconnected())
            .map_err(|error| Failure::Failed(format!("{place}: cannot listen: {error}")))?;
    let names = (0..).map(|index| format!("disk{index}"));
    let disks = names.zip(opened.iter().cloned()).collect();
    let report = Box::new(|_: &[DiskSnapshot]| None);
    let adapter = "nbd".to_owned();
    let control =
        Control { disks, adapter, report, refresh: None, coalescing: None, end }.serve(listeners)?;
    let disks: Vec<String> = args.disk.iter().map(|disk| disk.source.to_string()).collect();
    let address = server.local_addr().map_or(place, |address| address.to_string());
    if let Some(warning) = exposed(args) {
        tell!("{warning}");
    }
    sandbox.close()?;
    announce(&manager, &format!("serving {} at {address}", disks.join(", ")));
    // An error stops the server as a signal does.
    let _ = wait_for_byte(&stop);
    let pending = control.end();
    server.stop();
    close(&manager, opened, Ok(()), pending)
}

/// The socket of `--listen`, or the Unix socket, and its name for messages.
fn listen(args: &Args) -> Result<(nbd::Listener, String), Failure> {
    let Some(address) = args.listen else {
        return args.unix.open().map(|(socket, place)| (socket.into(), place));
    };
    refuse_unused()?;
    let listener = TcpListener::bind(address)
        .map_err(|error| Failure::Failed(format!("{address}: cannot listen: {error}")))?;
    Ok((listener.into(), address.to_string()))
}

/// A warning where other machines may reach the address without TLS.
fn exposed(args: &Args) -> Option<String> {
    let address = args.listen.filter(|address| !address.ip().to_canonical().is_loopback())?;
    args.tls_certificate.is_none().then(|| {
        format!(
            "warning: {address} is not a loopback address, and there is no TLS: everybody who can reach it can read and write the \
             disks, and anybody in between can read the data (--tls-certificate, --tls-key, --tls-client-ca)"
        )
    })
}

/// The description of an export: format and kind.
fn description(opened: &OpenDisk) -> String {
    let kind = opened.disk.info().kind;
    kind.subformat.map_or_else(|| kind.format.to_owned(), |subformat| format!("{}, {subformat}", kind.format))
}
