//! Resource budgets at the head of a CUDA kernel's file: for each kernel entry one line
//!
//! `//@ NAME: registers 40, shared 128, has HMMA LDG.E.128, lacks ATOMG`
//!
//! and `//@ for sm_90a` if the file is not for every GPU generation.
//!
//! The limits are registers per thread and bytes of static shared memory. Instructions are named by
//! the beginning of their SASS opcode. Local memory is never allowed: the compiler uses it to spill
//! registers.

use anyhow::{Context, Result, bail};

/// Budget of one kernel entry: its limits, and instructions that it must or must not have.
#[derive(Debug, PartialEq, Eq)]
pub struct Budget {
    pub entry: String,
    pub registers_max: usize,
    pub shared_bytes_max: usize,
    pub has: Vec<String>,
    pub lacks: Vec<String>,
}

/// Parsed head of a kernel's file: GPU generations and budgets.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// GPU generations that the file is for; empty if it is for all.
    generations: Vec<String>,
    pub budgets: Vec<Budget>,
}

impl Head {
    /// Parses the head of `source`. Every generation that it names must be one of `known`.
    ///
    /// # Errors
    /// A line has another form, a generation is unknown, or there is no budget.
    pub fn read(source: &str, known: &[&str]) -> Result<Self> {
        let mut head = Self { generations: Vec::new(), budgets: Vec::new() };
        for line in source.lines().filter_map(|line| line.strip_prefix("//@ ")) {
            if let Some(names) = line.strip_prefix("for ") {
                head.generations.extend(names.split(' ').map(str::to_owned));
            } else {
                let budget = one(line).with_context(|| format!("`//@ {line}` is no budget"))?;
                head.budgets.push(budget);
            }
        }
        // A misspelled name would exclude the kernel from every check.
        if let Some(name) = head.generations.iter().find(|name| !known.contains(&name.as_str())) {
            bail!("`//@ for {name}`: kernels are compiled for {}", known.join(", "));
        }
        if head.budgets.is_empty() {
            bail!("no line of the form `//@ NAME: registers 40, shared 128, has HMMA` at its head");
        }
        Ok(head)
    }

    /// Returns true if the kernel file is for this GPU generation, such as `sm_90a`.
    pub fn is_for(&self, generation: &str) -> bool {
        self.generations.is_empty() || self.generations.iter().any(|name| name == generation)
    }
}

/// Parses one budget line at the head of a kernel file, without its `//@ `.
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
        let head = Head { generations: vec![], budgets: vec![budget] };
        assert_eq!(Head::read(source, &["sm_80"]).expect("of the form"), head);
        assert!(head.is_for("sm_80"));
    }

    #[test]
    fn a_kernel_may_be_for_one_generation_of_those_that_there_are() {
        let source = "//@ for sm_90a\n//@ k: registers 40, shared 0";
        let head = Head::read(source, &["sm_80", "sm_90a"]).expect("of the form");
        assert!(head.is_for("sm_90a") && !head.is_for("sm_80"));
        assert!(Head::read(source, &["sm_80"]).is_err(), "a generation that nobody compiles for");
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
            assert!(Head::read(head, &["sm_80"]).is_err(), "`{head}` was taken");
        }
    }
}
