//! Options of a command that serves metrics, and the socket that they name.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use paradisk_serve::{Permissions, Socket};

use super::Metering;
use crate::failure::Failure;
use crate::units;

const HEADING: &str = "Metrics";

/// Where metrics are served.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Count requests and measure their latencies, and serve the figures as OpenMetrics text: HTTP, GET /metrics, at this loopback address
    /// or Unix socket; port 0 is any that is free
    #[arg(long, help_heading = HEADING, value_name = "ADDR:PORT|SOCKET")]
    metrics: Option<Place>,
    /// Allow an address that other machines can reach: everybody there can read the metrics
    #[arg(long, help_heading = HEADING, requires = "metrics")]
    metrics_public: bool,
    /// Permissions of the socket's file, in octal; to connect, a process needs the permission to write
    #[arg(long, help_heading = HEADING, value_name = "MODE", value_parser = units::mode, default_value = "600", requires = "metrics")]
    metrics_mode: u32,
    /// Group of the socket's file: its number, or its name in /etc/group
    #[arg(long, help_heading = HEADING, value_name = "GROUP", value_parser = units::group, requires = "metrics")]
    metrics_group: Option<u32>,
}

/// The value of `--metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket that listens.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(Socket),
}

impl FromStr for Place {
    type Err = String;

    /// What ends in a colon and a number, and has no slash, is an address.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_port =
            |(_, port): (&str, &str)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if text.contains('/') || !text.rsplit_once(':').is_some_and(is_port) {
            return if text.is_empty() {
                Err("expected an address or a path".to_owned())
            } else {
                Ok(Self::Unix(text.into()))
            };
        }
        let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
        found.next().map(Self::Tcp).ok_or_else(|| "the host has no address".to_owned())
    }
}

impl Options {
    /// What is counted; `control`: a client may ask for statistics at a control socket.
    pub(crate) fn metering(&self, control: bool) -> Metering {
        match (&self.metrics, control) {
            (Some(_), _) => Metering::Latencies,
            (None, true) => Metering::Counts,
            (None, false) => Metering::Off,
        }
    }

    /// The path of the socket, if it has one.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match &self.metrics {
            Some(Place::Unix(path)) => Some(path.clone()),
            _ => None,
        }
    }

    /// Listen, if metrics are served.
    pub(crate) fn listen(&self) -> Result<Option<Listener>, Failure> {
        match &self.metrics {
            None => Ok(None),
            Some(Place::Unix(path)) => {
                let permissions = Permissions { mode: self.metrics_mode, group: self.metrics_group };
                let socket = Socket::listen_for(path, permissions);
                socket
                    .map(|socket| Some(Listener::Unix(socket)))
                    .map_err(|error| Failure::on(path, "metrics", error))
            }
            Some(Place::Tcp(address)) => {
                if !self.metrics_public && !address.ip().to_canonical().is_loopback() {
                    return Err(Failure::Usage(format!(
                        "--metrics: {address} is not a loopback address; with --metrics-public everybody who reaches it can read the metrics"
                    )));
                }
                let listener = TcpListener::bind(address);
                listener
                    .map(|listener| Some(Listener::Tcp(listener)))
                    .map_err(|error| Failure::Failed(format!("--metrics {address}: {error}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_path() {
        let tcp = |text: &str| Ok(Place::Tcp(text.parse().unwrap()));
        assert_eq!("127.0.0.1:9100".parse(), tcp("127.0.0.1:9100"));
        assert_eq!("[::1]:0".parse(), tcp("[::1]:0"));
        for path in ["metrics.socket", "/run/a:1", "./a:1", "a:", "a:b"] {
            assert_eq!(path.parse(), Ok(Place::Unix(path.into())));
        }
        for wrong in ["", "127.0.0.1:70000", "no host:1"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
