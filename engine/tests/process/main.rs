//! Tests of the binary as its users see it: exit codes, messages, and real checkpoints over HTTP.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod chats;
#[cfg(test)]
mod checkpoints;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod crowds;
#[cfg(test)]
mod embeddings;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod launched;
#[cfg(test)]
mod panics;
#[cfg(test)]
mod published;
#[cfg(test)]
mod ranks;
#[cfg(test)]
mod real_tokenizers;
#[cfg(test)]
mod speculation;

#[path = "../../weights/tests/tiny_gguf/mod.rs"]
mod tiny_gguf;
