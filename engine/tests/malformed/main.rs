//! Files and requests that are not what they claim to be: a value or one clear error, never a crash.

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
