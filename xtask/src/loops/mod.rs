//! The innermost loops of the AVX-512 kernels in the built server: that their instructions are
//! those of the tile that was written, and that no value of it went to the stack.
//!
//! Kernels are compiled for every instruction set whatever the machine, so this runs on any x86-64
//! processor, where their instructions could not even be counted.

mod find;

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection, ObjectSymbol};
use serde::Deserialize;

use crate::shell::Shell;
use find::Loop;

/// What is expected, which is data.
const EXPECTED: &str = include_str!("expected.toml");

#[derive(Debug, Deserialize)]
struct Expected {
    #[serde(rename = "loop")]
    loops: Vec<Expectation>,
}

/// A loop that a function must have.
#[derive(Debug, Deserialize)]
struct Expectation {
    /// What the loop computes, for a person.
    tile: String,
    /// End of the demangled name.
    function: String,
    /// All instructions of the loop, at most: longer ones that also decode are others.
    instructions_max: usize,
    has: Vec<Count>,
}

/// Instructions of a name whose results are in so many 512-bit registers: a tile has each of its sums
/// in one of its own, which no other loop of its function has.
#[derive(Debug, Deserialize)]
struct Count {
    /// A mnemonic in lower case; `*` stands for any letters.
    name: String,
    registers: usize,
}

/// A function of the program.
struct Function<'a> {
    name: String,
    address: u64,
    code: &'a [u8],
}

/// Builds the server and checks it.
///
/// # Errors
/// It does not build, or is no program of this kind.
pub fn run(shell: &Shell) -> Result<u8> {
    let line = "build --quiet --locked --release --workspace --bin redline";
    shell.cargo(&line.split(' ').collect::<Vec<_>>())?;
    check(shell)
}

/// Checks the server that is built; exit code 1 when a loop is not as it has to be.
///
/// # Errors
/// There is no built server, or it is no program of this kind.
pub fn check(shell: &Shell) -> Result<u8> {
    let path = shell.built("redline");
    let bytes =
        std::fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("`{}` is no ELF file", path.display()))?;
    if file.architecture() != object::Architecture::X86_64 {
        eprintln!("no x86-64: there are no AVX-512 kernels to look at");
        return Ok(0);
    }
    let functions = functions(&file, &path)?;
    let expected: Expected = toml::from_str(EXPECTED).context("expected.toml")?;
    let mut findings = Vec::new();
    for expectation in &expected.loops {
        match expectation.judge(&functions) {
            Ok(line) => eprintln!("{line}"),
            Err(line) => findings.push(line),
        }
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(u8::from(!findings.is_empty()))
}

/// Every function that has a symbol.
fn functions<'a>(file: &object::File<'a>, path: &Path) -> Result<Vec<Function<'a>>> {
    let text = file.section_by_name(".text").context("there is no code")?;
    let (start, code) = (text.address(), text.data().context("there is no code")?);
    let function = |symbol: object::Symbol<'a, '_>| {
        let from = usize::try_from(symbol.address().checked_sub(start)?).ok()?;
        let to = from.checked_add(usize::try_from(symbol.size()).ok()?)?;
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
        Some(Function { name, address: symbol.address(), code: code.get(from..to)? })
    };
    let functions: Vec<Function<'_>> = file
        .symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
        .filter_map(function)
        .collect();
    if functions.is_empty() {
        bail!(
            "`{}` has no symbols: it was stripped of more than debug information",
            path.display()
        );
    }
    Ok(functions)
}

impl Expectation {
    /// A line about the loop that was found, or about what is wrong.
    fn judge(&self, functions: &[Function<'_>]) -> Result<String, String> {
        let (tile, name) = (&self.tile, &self.function);
        let mut found: Option<Loop> = None;
        let mut named =
            functions.iter().filter(|function| function.name.ends_with(name)).peekable();
        if named.peek().is_none() {
            return Err(format!("{tile}: no function `{name}`"));
        }
        for function in named {
            let loops = find::innermost(function.code, function.address);
            for one in loops.into_iter().filter(|one| self.is_met(one)) {
                if let Some(instruction) = one.stack_accesses().next() {
                    let address = instruction.ip();
                    return Err(format!("{tile}: `{name}` uses the stack at {address:#x}"));
                }
                found = Some(one);
            }
        }
        let wanted: Vec<String> =
            self.has.iter().map(|has| format!("{} {}", has.registers, has.name)).collect();
        let wanted = format!("{} in {} instructions", wanted.join(", "), self.instructions_max);
        match found {
            None => Err(format!("{tile}: no innermost loop of `{name}` has {wanted} at most")),
            Some(one) => {
                let (all, start) = (one.instructions().len(), one.start());
                Ok(format!("{tile}: {all} instructions at {start:#x}"))
            }
        }
    }

    fn is_met(&self, one: &Loop) -> bool {
        one.instructions().len() <= self.instructions_max
            && self.has.iter().all(|has| has.holds(one))
    }
}

impl Count {
    fn holds(&self, one: &Loop) -> bool {
        let (first, last) = self.name.split_once('*').unwrap_or((&self.name, ""));
        let matches = |name: &str| match self.name.contains('*') {
            true => name.starts_with(first) && name.ends_with(last),
            false => name == first,
        };
        one.wide_results(matches) >= self.registers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `again: vpdpbusd zmm0, zmm1, [rax]; dec rcx; jnz again; ret`
    const CLEAN: &[u8] = &[0x62, 0xf2, 0x75, 0x48, 0x50, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf5, 0xc3];
    /// The same with `[rsp]`.
    const SPILLED: &[u8] =
        &[0x62, 0xf2, 0x75, 0x48, 0x50, 0x04, 0x24, 0x48, 0xff, 0xc9, 0x75, 0xf4, 0xc3];

    fn judge(code: &[u8], name: &str, registers: usize) -> Result<String, String> {
        judge_short(code, name, registers, 3)
    }

    fn judge_short(
        code: &[u8],
        name: &str,
        registers: usize,
        instructions_max: usize,
    ) -> Result<String, String> {
        let has = vec![Count { name: name.to_owned(), registers }];
        let expectation = Expectation {
            tile: "a tile".to_owned(),
            function: "k".to_owned(),
            instructions_max,
            has,
        };
        expectation.judge(&[Function { name: "a::k".to_owned(), address: 0x100, code }])
    }

    #[test]
    fn a_loop_of_the_expected_instructions_is_found() {
        let line = "a tile: 3 instructions at 0x100";
        assert_eq!(judge(CLEAN, "vpdpbusd", 1), Ok(line.to_owned()));
        assert!(judge(CLEAN, "vpdp*d", 1).is_ok());
    }

    #[test]
    fn too_few_instructions_another_name_and_a_spill_are_findings() {
        let none = |count, name| {
            let wanted = format!("{count} {name} in 3 instructions at most");
            format!("a tile: no innermost loop of `k` has {wanted}")
        };
        assert_eq!(judge(CLEAN, "vpdpbusd", 2), Err(none(2, "vpdpbusd")));
        assert_eq!(judge(CLEAN, "vpdpbus", 1), Err(none(1, "vpdpbus")));
        assert_eq!(judge(&CLEAN[..9], "vpdpbusd", 1), Err(none(1, "vpdpbusd")));
        assert!(judge_short(CLEAN, "vpdpbusd", 1, 2).is_err());
        let spill = "a tile: `k` uses the stack at 0x100";
        assert_eq!(judge(SPILLED, "vpdpbusd", 1), Err(spill.to_owned()));
    }

    #[test]
    fn every_expectation_asks_for_something() {
        let expected: Expected = toml::from_str(EXPECTED).expect("the table is TOML");
        for expectation in expected.loops {
            assert!(expectation.has.iter().any(|has| has.registers > 0), "{expectation:?}");
        }
    }
}
