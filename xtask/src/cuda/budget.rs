//! Resource budgets at the head of a CUDA kernel's file, and the check of a kernel entry's machine
//! code, as `cuobjdump` prints it, against its budget. For each entry the head has one line
//!
//! `//@ NAME: registers 40, shared 128, has HMMA LDG.E.128, lacks ATOMG`
//!
//! and `//@ for sm_90a` if the file is not for every GPU generation.
//!
//! The limits are registers per thread and bytes of static shared memory. Instructions are named by
//! the beginning of their SASS opcode. Local memory is never allowed: the compiler uses it to spill
//! registers.

use std::collections::{BTreeMap, BTreeSet};

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

/// Resources and opcodes of one kernel entry in machine code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Code {
    pub registers: usize,
    /// Static shared memory per block of the kernel entry, in bytes, including what the system
    /// reserves.
    pub shared_bytes: usize,
    /// Stack and local memory per thread of the kernel entry, in bytes.
    pub local_bytes: usize,
    pub opcodes: BTreeSet<String>,
}

/// Parses the output of `cuobjdump -res-usage` and `cuobjdump -sass`; returns each kernel entry's
/// code by its name.
pub fn read_code(usage: &str, sass: &str) -> BTreeMap<String, Code> {
    let mut entries = BTreeMap::<String, Code>::new();
    let mut entry = None;
    for line in usage.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function ") {
            entry = Some(name.trim_end_matches(':').to_owned());
        } else if let Some(name) = entry.take() {
            // The line after a function's name has its resources.
            let of = |what| field(line, what).unwrap_or_default();
            let code = entries.entry(name).or_default();
            code.registers = of("REG:");
            code.shared_bytes = of("SHARED:");
            code.local_bytes = of("STACK:") + of("LOCAL:");
        }
    }
    let mut code = None;
    for line in sass.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function : ") {
            code = Some(entries.entry(name.to_owned()).or_default());
        } else if let (Some(code), Some(opcode)) = (&mut code, opcode(line)) {
            code.opcodes.insert(opcode.to_owned());
        }
    }
    entries
}

fn field(line: &str, what: &str) -> Option<usize> {
    line.split(' ').find_map(|word| word.strip_prefix(what))?.parse().ok()
}

/// Returns the opcode of a SASS line such as `/*0010*/ @!P0 OPCODE.MODIFIERS operands ;`, with its
/// modifiers; `None` for other lines.
fn opcode(line: &str) -> Option<&str> {
    let (_, instruction) = line.strip_prefix("/*")?.split_once("*/")?;
    let mut words = instruction.split_whitespace().filter(|word| !word.starts_with('@'));
    words.next().filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase()))
}

impl Code {
    /// Returns a finding for each limit of the budget that the kernel entry's code breaks.
    /// `reserved_bytes` of its shared memory belong to the system.
    pub fn judge(&self, budget: &Budget, reserved_bytes: usize) -> Vec<String> {
        let mut findings = Vec::new();
        let shared = self.shared_bytes.saturating_sub(reserved_bytes);
        for (found, most, what, remedy) in [
            (self.registers, budget.registers_max, "registers", "keep fewer values alive"),
            (shared, budget.shared_bytes_max, "bytes of static shared memory", "shrink its arrays"),
        ] {
            if found > most {
                let budget = format!("{most} allowed: {remedy}, or raise the budget");
                findings.push(format!("{found} {what}, {budget}"));
            }
        }
        let starts = |with: &str| self.opcodes.iter().any(|opcode| opcode.starts_with(with));
        // Accesses to local memory in the code are spills even if the reported sizes are 0.
        if self.local_bytes > 0 || starts("LDL") || starts("STL") {
            findings.push(format!(
                "{} bytes of local memory: registers were spilled, or an array is indexed by what \
                 the compiler does not know",
                self.local_bytes
            ));
        }
        for opcode in budget.has.iter().filter(|opcode| !starts(opcode)) {
            findings.push(format!("no `{opcode}`: see what the source compiles to"));
        }
        for opcode in budget.lacks.iter().filter(|opcode| starts(opcode)) {
            findings.push(format!("has `{opcode}`, which its head excludes"));
        }
        findings
    }
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

#[cfg(test)]
mod code_tests {
    use super::*;

    const USAGE: &str = "Resource usage:\n Common:\n  GLOBAL:0\n Function k:\n  REG:13 STACK:8 \
                         SHARED:1152 LOCAL:0 CONSTANT[0]:368 TEXTURE:0\n";
    const SASS: &str = "\tcode for sm_90a\n\t\tFunction : k\n\t.headerflags @\"EF\"\n\
        /*0000*/   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;   /* 0x00000a00ff017624 */\n\
        /* 0x000fe400078e00ff */\n\
        /*0010*/   @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ; /* 0x0 */\n";

    fn budget(registers_max: usize, shared_bytes_max: usize, has: &str, lacks: &str) -> Budget {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let entry = "k".to_owned();
        Budget { entry, registers_max, shared_bytes_max, has: words(has), lacks: words(lacks) }
    }

    #[test]
    fn usage_and_opcodes_are_read_by_entry() {
        let entries = read_code(USAGE, SASS);
        let opcodes = ["HMMA.16816.F32.BF16", "IMAD.MOV.U32"].map(str::to_owned).into();
        let code = Code { registers: 13, shared_bytes: 1152, local_bytes: 8, opcodes };
        assert_eq!(entries, BTreeMap::from([("k".to_owned(), code)]));
    }

    #[test]
    fn every_breach_is_a_finding() {
        let mut entries = read_code(USAGE, SASS);
        let code = entries.get_mut("k").expect("just read");
        assert_eq!(code.judge(&budget(13, 128, "HMMA", "ATOM"), 1024).len(), 1, "local memory");
        code.local_bytes = 0;
        assert_eq!(code.judge(&budget(13, 128, "HMMA", "ATOM"), 1024), [""; 0]);
        let findings = code.judge(&budget(12, 128, "HGMMA", "IMAD"), 0).join("\n");
        for part in ["13 registers, 12", "1152 bytes", "no `HGMMA`", "has `IMAD`"] {
            assert!(findings.contains(part), "`{part}` is not in {findings}");
        }
        code.opcodes.insert("STL.64".to_owned());
        assert_eq!(code.judge(&budget(13, 128, "", ""), 1024).len(), 1, "a store to local memory");
    }
}
