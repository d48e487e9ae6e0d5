//! What a kernel's file says of its entries at its head, one line each:
//!
//! `//@ NAME: registers 40, shared 128, has HMMA LDG.E.128, lacks ATOMG`
//!
//! Registers are of a thread, shared memory is static and in bytes, both at most. Instructions are
//! named by the beginning of their SASS opcode. Local memory is never allowed: it is where
//! registers are spilled to.

use anyhow::{Context, Result, bail};

/// The limits of one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Budget {
    pub entry: String,
    pub registers_max: usize,
    pub shared_bytes_max: usize,
    pub has: Vec<String>,
    pub lacks: Vec<String>,
}

/// The budgets of every entry of a kernel's source.
///
/// # Errors
/// A line is not of the form, or there is none.
pub fn read(source: &str) -> Result<Vec<Budget>> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("//@ "));
    let budgets: Vec<Budget> = lines
        .map(|line| one(line).with_context(|| format!("`//@ {line}` is no budget")))
        .collect::<Result<_>>()?;
    if budgets.is_empty() {
        bail!("no line of the form `//@ NAME: registers 40, shared 128, has HMMA` at its head");
    }
    Ok(budgets)
}

fn one(line: &str) -> Result<Budget> {
    let (entry, limits) = line.split_once(": ").context("no `NAME: `")?;
    let (mut registers, mut shared) = (None, None);
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for limit in limits.split(", ") {
        let (what, value) = limit.split_once(' ').context("a limit has no value")?;
        let opcodes = || value.split(' ').map(str::to_owned);
        match what {
            "registers" => registers = Some(value.parse().context("registers")?),
            "shared" => shared = Some(value.parse().context("shared")?),
            "has" => has.extend(opcodes()),
            "lacks" => lacks.extend(opcodes()),
            _ => bail!("no limit is called `{what}`"),
        }
    }
    Ok(Budget {
        entry: entry.to_owned(),
        registers_max: registers.context("no `registers`")?,
        shared_bytes_max: shared.context("no `shared`")?,
        has,
        lacks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_line_is_read_whole() {
        let source =
            "//! x\n//@ k: registers 40, shared 128, has HMMA LDG.E.128, lacks ATOM\nint x;";
        let budget = Budget {
            entry: "k".to_owned(),
            registers_max: 40,
            shared_bytes_max: 128,
            has: vec!["HMMA".to_owned(), "LDG.E.128".to_owned()],
            lacks: vec!["ATOM".to_owned()],
        };
        assert_eq!(read(source).expect("of the form"), [budget]);
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        for head in [
            "int x;",
            "//@ k",
            "//@ k: registers 40",
            "//@ k: registers many, shared 0",
            "//@ k: registers 40, shared 0, fast very",
        ] {
            assert!(read(head).is_err(), "`{head}` was taken");
        }
    }
}
