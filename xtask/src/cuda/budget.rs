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

use std::collections::BTreeMap;

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

/// Registers of one multiprocessor, on all generations that kernels are compiled for.
const PROCESSOR_REGISTERS: usize = 64 << 10;
/// Registers of a thread are allocated in multiples of this number.
const REGISTERS_STEP: usize = 8;
/// Opcodes of warpgroup kernels that are counted in the list of entries: warpgroup matrix
/// multiplications, bulk copies, operations on barriers in shared memory, and waits for
/// multiplications.
const COUNTED: [&str; 4] = ["HGMMA", "UBLKCP", "SYNCS", "WARPGROUP.DEPBAR"];

/// Block size that a kernel entry declares with `__launch_bounds__`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest number of threads of a block.
    pub threads: usize,
    /// Number of blocks that a multiprocessor has to run at once, 1 if it is not declared.
    pub blocks: usize,
}

/// Parses PTX; returns the declared block size of each kernel entry that has one.
pub fn read_bounds(ptx: &str) -> BTreeMap<String, Bounds> {
    let mut bounds = BTreeMap::<String, Bounds>::new();
    let mut entry = None;
    for line in ptx.lines().map(str::trim) {
        let first = |rest: &str| rest.split(',').next()?.trim().parse().ok();
        if let Some((_, rest)) = line.split_once(".entry ") {
            let name = rest.split(['(', ' ']).next().unwrap_or_default();
            entry = Some(name.to_owned());
        } else if let (Some(name), Some(rest)) = (&entry, line.strip_prefix(".maxntid ")) {
            let threads = first(rest).unwrap_or_default();
            bounds.insert(name.clone(), Bounds { threads, blocks: 1 });
        } else if let Some(rest) = line.strip_prefix(".minnctapersm ") {
            let own = entry.as_ref().and_then(|name| bounds.get_mut(name));
            own.into_iter().for_each(|own| own.blocks = first(rest).unwrap_or(1));
        } else if line == "{" {
            entry = None;
        }
    }
    bounds
}

/// Returns the messages of ptxas that are findings: those about matrix multiplications that it
/// serialized, C7510 to C7519, which make a warpgroup kernel several times slower.
pub fn serialized(messages: &str) -> Vec<&str> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("(C")?;
        rest.split(')').next()?.parse::<u32>().ok()
    };
    let is_one = |line: &&str| number(line).is_some_and(|number| (7510..7520).contains(&number));
    messages.lines().map(str::trim).filter(is_one).collect()
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
    /// Number of instructions of each opcode, with its modifiers.
    pub opcodes: BTreeMap<String, usize>,
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
            *code.opcodes.entry(opcode.to_owned()).or_default() += 1;
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
    /// Returns the numbers of the instructions [`COUNTED`] that the code has, such as `, HGMMA 16`.
    pub fn counts(&self) -> String {
        let count = |prefix: &str| -> usize {
            let own = self.opcodes.iter().filter(|(opcode, _)| opcode.starts_with(prefix));
            own.map(|(_, count)| count).sum()
        };
        let counts = COUNTED.map(|prefix| (prefix, count(prefix)));
        let shown = counts.iter().filter(|(_, count)| *count > 0);
        shown.map(|(prefix, count)| format!(", {prefix} {count}")).collect()
    }

    /// Returns a finding if a multiprocessor has too few registers for the declared blocks.
    pub fn overflow(&self, bounds: Bounds) -> Option<String> {
        let Bounds { threads, blocks } = bounds;
        let needed = self.registers.next_multiple_of(REGISTERS_STEP) * threads * blocks;
        (needed > PROCESSOR_REGISTERS).then(|| {
            format!(
                "{} registers x {threads} threads x {blocks} blocks are {needed} of the \
                 {PROCESSOR_REGISTERS} registers of a multiprocessor: it does not run that many",
                self.registers
            )
        })
    }

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
        let starts = |with: &str| self.opcodes.keys().any(|opcode| opcode.starts_with(with));
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
        let opcodes = ["HMMA.16816.F32.BF16", "IMAD.MOV.U32"].map(|opcode| (opcode.to_owned(), 1));
        let opcodes = opcodes.into();
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
        code.opcodes.insert("STL.64".to_owned(), 1);
        assert_eq!(code.judge(&budget(13, 128, "", ""), 1024).len(), 1, "a store to local memory");
    }

    #[test]
    fn warpgroup_instructions_are_counted() {
        let opcodes = [("HGMMA.64x128x16.F32.BF16", 16), ("HGMMA.64x8x16.F32", 2), ("IADD3", 9)];
        let opcodes = opcodes.map(|(opcode, count)| (opcode.to_owned(), count)).into();
        let code = Code { opcodes, ..Code::default() };
        assert_eq!(code.counts(), ", HGMMA 18");
    }

    #[test]
    fn blocks_that_do_not_fit_a_multiprocessor_are_a_finding() {
        let ptx = ".visible .entry k(\n.param .u64 k_param_0\n)\n.maxntid 256, 1, 1\n\
                   .minnctapersm 2\n{\n}\n.visible .entry other(\n)\n{\n}\n";
        let bounds = read_bounds(ptx);
        let own = Bounds { threads: 256, blocks: 2 };
        assert_eq!(bounds, BTreeMap::from([("k".to_owned(), own)]));
        let code = |registers| Code { registers, ..Code::default() };
        assert_eq!(code(128).overflow(own), None);
        let finding = code(129).overflow(own).expect("it does not fit");
        assert!(finding.contains("129 registers x 256 threads x 2 blocks are 69632"), "{finding}");
    }

    #[test]
    fn messages_about_serialized_multiplications_are_findings() {
        // The first two are those of CUDA 13.0 for `serialized.cu`.
        let found = [
            "ptxas info    : (C7519) warpgroup.arrive is injected in around line 75 by compiler to \
             allow use of registers in GMMA in function 'unawaited'",
            "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are \
             serialized due to non wgmma instructions reading accumulator registers of  a wgmma \
             between start and end of the pipeline stage in the function 'unawaited'",
        ];
        let others = "ptxas info    : Used 90 registers\nptxas info    : (C7600) something else";
        let text = format!("{}\n{others}\n{}\n", found[0], found[1]);
        assert_eq!(serialized(&text), found);
    }
}
