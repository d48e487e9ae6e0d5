//! Tests with clients of other projects, unchanged, against the built server. They make the table in
//! `docs/reference/clients.md`. The clients are installed from the package registries; where those
//! cannot be reached the tests are skipped and say so.

#[cfg(test)]
mod benchmarks;
#[cfg(test)]
mod document;
#[cfg(test)]
mod installed;
#[cfg(test)]
#[path = "../process/launched.rs"]
#[expect(dead_code, reason = "tests of the process need more of it")]
mod launched;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod one_answer_model;
#[cfg(test)]
#[path = "../process/published.rs"]
#[expect(dead_code, reason = "tests of the process need more of it")]
mod published;

#[path = "../../weights/tests/tiny_gguf/mod.rs"]
mod tiny_gguf;
