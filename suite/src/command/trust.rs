//! Flags that say whose word is taken for who a server is.

use std::path::PathBuf;

use clap::Args;

use crate::client::control::Trust;

/// Of every command that asks a server behind `https://`.
#[derive(Debug, Args)]
pub struct TrustFlags {
    /// Certificates, as PEM, of the authorities that may have signed that of the server; by default
    /// those that this machine trusts.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Take any certificate, so that anyone on the way may read and write. The record says so.
    #[arg(long, visible_alias = "insecure", conflicts_with = "ca_file")]
    insecure_tls: bool,
}

impl TrustFlags {
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust { ca_file: self.ca_file.clone(), insecure: self.insecure_tls }
    }
}
