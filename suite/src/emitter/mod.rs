//! The one emitter of server-sent events: what every test and every measurement of a client talks
//! to. It does what it is told when it is told, and logs when it truly did. It is no server: it
//! knows HTTP only as far as a client's requests need.
//!
//! Played from a script it has one thread a connection: its times are the kernel's sleep and
//! nothing else. Paced, it has one thread for thousands of streams.

mod dialects;
pub mod generate;
pub mod log;
pub mod paced;
pub mod script;
pub mod server;
mod stream;
