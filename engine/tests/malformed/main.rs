//! Tests of malformed files and requests: each gives a value or one clear error, never a crash.

#[cfg(test)]
mod configs;
#[cfg(test)]
mod mutated;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod refused;
#[cfg(test)]
#[path = "../../fuzz/targets.rs"]
mod targets;
