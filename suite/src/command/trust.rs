//! TLS flags: which certificates of a server are accepted.

use std::path::PathBuf;

use clap::Args;

use crate::client::control::Trust;

/// TLS flags of every command that connects to a server with `https://`.
#[derive(Debug, Args)]
pub struct TrustFlags {
    /// File with PEM certificates of the authorities that may have signed the server's certificate;
    /// by default the authorities that this machine trusts.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Accept any certificate. Anyone on the network path can then read and change the traffic; the
    /// record says so.
    #[arg(long, visible_alias = "insecure", conflicts_with = "ca_file")]
    insecure_tls: bool,
}

impl TrustFlags {
    pub fn trust(&self) -> Trust {
        Trust { ca_file: self.ca_file.clone(), insecure: self.insecure_tls }
    }
}
