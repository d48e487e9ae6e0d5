//! `cargo xtask loops`: checks the innermost loops of the AVX-512 kernels in the built server. Each
//! must have the instructions of its GEMM tile, and no register spilled to the stack.
//!
//! Kernels for every instruction set are compiled on every machine, so the check runs on any x86-64
//! processor, also one that cannot run the kernels.

mod find;

use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection, ObjectSymbol};
use serde::Deserialize;

use crate::shell::Shell;
use find::Loop;

/// Hint in the message that a function of the server was not found: the likely cause is that the
/// build's symbol names lack the type parameters.
const OLD_SYMBOLS: &str = "\
hint: RUSTFLAGS in the environment take the place of those in .cargo/config.toml, which name types";

/// Text of the TOML file that lists the expected loops of the server.
const EXPECTED: &str = include_str!("expected.toml");

#[derive(Debug, Deserialize)]
struct Expected {
    #[serde(rename = "loop")]
    loops: Vec<Expectation>,
}

/// One loop that a function of the server must contain.
#[derive(Debug, Deserialize)]
struct Expectation {
    /// Text that names the GEMM tile that the loop computes, for messages.
    tile: String,
    /// End of the demangled name of the function that contains the loop.
    function: String,
    /// Largest number of instructions that the loop may have.
    instructions_max: usize,
    /// Largest number of the loop's instructions that may read or write the stack, for a loop that is
    /// longer than a step of k.
    #[serde(default)]
    stack_max: usize,
    has: Vec<Count>,
}

/// Instruction of a GEMM tile, with the number of 512-bit registers that hold its results. A tile
/// keeps each of its accumulators in a register of its own, by which its loop differs from the
/// function's other loops.
#[derive(Debug, Deserialize)]
struct Count {
    /// Mnemonic of the instruction in lower case; one `*` in it stands for any characters.
    name: String,
    registers: usize,
}

/// Function of the server's program file: demangled name, address and machine code.
struct Function<'a> {
    name: String,
    address: u64,
    code: &'a [u8],
}

/// Builds the server and checks its loops; returns exit code 1 if one is not as expected.
///
/// # Errors
/// The server does not build, or its file cannot be read or is not an ELF program with symbols.
pub fn run(shell: &Shell) -> Result<u8> {
    shell.cargo("build --quiet --locked --release --workspace --bin redline")?;
    check(shell)
}

/// Checks the loops of the server as it was last built; returns exit code 1 if one is not as
/// expected. A server for another processor than x86-64 has none to check.
///
/// # Errors
/// The server is missing, cannot be read, or is not an ELF program with symbols.
pub fn check(shell: &Shell) -> Result<u8> {
    let path = shell.built("redline");
    let bytes =
        std::fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let file = object::File::parse(&*bytes)
        .with_context(|| format!("`{}` is no ELF file", path.display()))?;
    if file.architecture() != object::Architecture::X86_64 {
        eprintln!("not x86-64: there are no AVX-512 kernels to check");
        return Ok(0);
    }
    let functions = functions(&file, &path)?;
    let expected: Expected = toml::from_str(EXPECTED).context("expected.toml")?;
    let mut lines: Vec<Result<String, String>> =
        expected.loops.iter().flat_map(|expectation| expectation.judge(&functions)).collect();
    // Findings are printed last.
    lines.sort_by_key(Result::is_err);
    for Ok(line) | Err(line) in &lines {
        eprintln!("{line}");
    }
    Ok(u8::from(lines.iter().any(Result::is_err)))
}

/// Returns all functions of the server that have a symbol; an error if there is none.
fn functions<'a>(file: &object::File<'a>, path: &Path) -> Result<Vec<Function<'a>>> {
    let text = file.section_by_name(".text").context("there is no code")?;
    let (start, code) = (text.address(), text.data().context("there is no code")?);
    let function = |symbol: object::Symbol<'a, '_>| {
        let from = usize::try_from(symbol.address().checked_sub(start)?).ok()?;
        let to = from.checked_add(usize::try_from(symbol.size()).ok()?)?;
        // The alternate form leaves out the hash at the name's end.
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
        Some(Function { name, address: symbol.address(), code: code.get(from..to)? })
    };
    let code = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text);
    let functions: Vec<Function<'_>> = code.filter_map(function).collect();
    if functions.is_empty() {
        bail!(
            "`{}` has no symbols: it was stripped of more than debug information",
            path.display()
        );
    }
    Ok(functions)
}

impl Expectation {
    /// Returns one line for each function with the expected name: the tile that was found, or the
    /// finding. If no function has the name, that is the only finding.
    fn judge(&self, functions: &[Function<'_>]) -> Vec<Result<String, String>> {
        let (tile, name) = (&self.tile, &self.function);
        let named = functions.iter().filter(|function| function.name.ends_with(name));
        let lines: Vec<_> = named.map(|function| self.judge_one(function)).collect();
        if lines.is_empty() {
            return vec![Err(format!("{tile}: no function `{name}`\n{OLD_SYMBOLS}"))];
        }
        lines
    }

    /// Checks the expected loop of one function. The tile is the shortest loop with results in all
    /// the registers; longer loops of a function also dequantize.
    fn judge_one(&self, function: &Function<'_>) -> Result<String, String> {
        let (tile, max) = (&self.tile, self.instructions_max);
        let loops = find::innermost(function.code, function.address).into_iter();
        let with_all = loops.filter(|one| self.has.iter().all(|has| has.is_met_by(one)));
        let Some(found) = with_all.min_by_key(|one| one.instructions.len()) else {
            let has =
                self.has.iter().map(|of| format!("{} of {} registers", of.name, of.registers));
            let (has, name) = (has.collect::<Vec<_>>().join(" and "), &self.function);
            return Err(format!("{tile}: no innermost loop of `{name}` has {has}"));
        };
        let (all, stack) = (found.instructions.len(), found.stack_accesses());
        let line = format!("{tile}: {all} instructions at {:#x}", found.start());
        match (stack <= self.stack_max, self.stack_max) {
            (true, _) if all <= max => Ok(line),
            (true, _) => Err(format!("{line}, where {max} were enough")),
            (false, 0) => {
                Err(format!("{line}, {stack} of them on the stack, which none may touch"))
            }
            (false, few) => {
                Err(format!("{line}, {stack} of them on the stack, where {few} may be"))
            }
        }
    }
}

impl Count {
    fn is_met_by(&self, one: &Loop) -> bool {
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

    /// Machine code of `again: vpdpbusd zmm0, zmm1, [rax]; dec rcx; jnz again; ret`.
    const CLEAN: &[u8] = &[0x62, 0xf2, 0x75, 0x48, 0x50, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf5, 0xc3];
    /// Machine code of `again: vpdpbusd zmm0, zmm1, [rsp]; dec rcx; jnz again; ret`, a loop that
    /// reads the stack.
    const SPILLED: &[u8] =
        &[0x62, 0xf2, 0x75, 0x48, 0x50, 0x04, 0x24, 0x48, 0xff, 0xc9, 0x75, 0xf4, 0xc3];

    fn judge(code: &[u8], name: &str, registers: usize, instructions_max: usize) -> String {
        let has = vec![Count { name: name.to_owned(), registers }];
        let (tile, function) = ("a tile".to_owned(), "k".to_owned());
        let expectation = Expectation { tile, function, instructions_max, stack_max: 0, has };
        let lines =
            expectation.judge(&[Function { name: "a::k".to_owned(), address: 0x100, code }]);
        let lines = lines.into_iter().map(|line| match line {
            Ok(line) => format!("well: {line}"),
            Err(line) => line,
        });
        lines.collect()
    }

    #[test]
    fn a_loop_of_the_expected_instructions_is_found() {
        let line = "well: a tile: 3 instructions at 0x100";
        assert_eq!(judge(CLEAN, "vpdpbusd", 1, 3), line);
        assert_eq!(judge(CLEAN, "vpdp*d", 1, 4), line);
    }

    #[test]
    fn too_few_registers_a_spill_and_a_longer_loop_are_findings() {
        let none = "a tile: no innermost loop of `k` has vpdpbusd of 2 registers";
        assert_eq!(judge(CLEAN, "vpdpbusd", 2, 3), none);
        let other = "a tile: no innermost loop of `k` has vpdpbus of 1 registers";
        assert_eq!(judge(CLEAN, "vpdpbus", 1, 3), other);
        let straight = "a tile: no innermost loop of `k` has vpdpbusd of 1 registers";
        assert_eq!(judge(&CLEAN[..9], "vpdpbusd", 1, 3), straight);
        let spill = "a tile: 3 instructions at 0x100, 1 of them on the stack, which none may touch";
        assert_eq!(judge(SPILLED, "vpdpbusd", 1, 3), spill);
        let long = "a tile: 3 instructions at 0x100, where 2 were enough";
        assert_eq!(judge(CLEAN, "vpdpbusd", 1, 2), long);
    }

    #[test]
    fn a_function_that_is_not_there_is_a_finding() {
        let has = vec![Count { name: "vpdpbusd".to_owned(), registers: 1 }];
        let (tile, function) = ("a tile".to_owned(), "k".to_owned());
        let lines =
            Expectation { tile, function, instructions_max: 3, stack_max: 0, has }.judge(&[]);
        assert!(matches!(&lines[..], [Err(line)] if line.contains("no function `k`")), "{lines:?}");
    }

    #[test]
    fn every_expectation_asks_for_something() {
        let expected: Expected = toml::from_str(EXPECTED).expect("the table is TOML");
        for expectation in expected.loops {
            assert!(expectation.has.iter().any(|has| has.registers > 0), "{expectation:?}");
        }
    }
}
