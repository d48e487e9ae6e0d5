//! `cargo xtask codegen`: writes or checks the committed files that are generated from code, the
//! JSON Schemas.

use anyhow::Result;

use crate::shell::{Shell, cargo};

/// Writes the generated files, or with `check` prints which of them are stale.
///
/// # Errors
/// The generator cannot be built or run.
pub fn run(shell: &Shell, check: bool) -> Result<u8> {
    let mut arguments = vec![
        "run",
        "--quiet",
        "--release",
        "--locked",
        "--bin",
        "redline-schema",
        "--",
        "schema/json",
    ];
    if check {
        arguments.push("--check");
    }
    shell.exit_code(&cargo(), &arguments)
}
