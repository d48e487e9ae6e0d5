//! The one scripted emitter of server-sent events: what every test of a client talks to.
//!
//! It does what its script says when it says so, and logs when it truly did. One thread a
//! connection: its times are the kernel's sleep and nothing else. It is no server: it knows
//! HTTP only as far as a client's requests need.

pub mod generate;
pub mod log;
pub mod script;
pub mod server;
