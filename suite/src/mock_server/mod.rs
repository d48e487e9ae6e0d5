//! Mock server that emits server-sent events, for tests and measurements of clients. It writes what
//! its script says at the scripted time, and logs the true time. It parses HTTP only as far as a
//! client's requests need.
//!
//! With a script, it uses one thread for each connection, and only the kernel's sleep affects its
//! times. Paced, it uses one thread for thousands of streams.

pub mod generate;
pub mod paced;
pub mod script;
pub mod server;
