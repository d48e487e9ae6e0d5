//! Load generator client: HTTP/1.1 over non-blocking sockets on one thread, with a receive time
//! stamp for every read, and blocking control requests. No other part of `redline-bench` speaks
//! HTTP to a server; `measure` turns times into metrics.

pub(crate) mod abort;
mod api_format;
mod channel;
mod connection;
pub mod control;
pub mod delta;
pub mod drive;
mod embeddings;
pub mod headers;
mod http;
mod load;
pub mod orders;
pub mod payload;
pub(crate) mod probe;
pub mod sample;
mod schedule;
mod sse;
pub mod stream;
pub mod tls;
