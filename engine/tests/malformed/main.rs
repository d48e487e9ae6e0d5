//! Tests of malformed files and requests: each gives a value or one clear error, never a crash.

#[cfg(test)]
mod configs;
#[cfg(test)]
mod mutated;
#[cfg(test)]
#[path = "../../../tests/fuzz/mutation.rs"]
mod mutation;
#[cfg(test)]
mod refused;
#[cfg(test)]
#[path = "../../../tests/fuzz/engine.rs"]
mod targets;
