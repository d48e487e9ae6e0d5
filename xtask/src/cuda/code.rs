//! Machine code of a kernel entry, as `cuobjdump` prints it, and its check against the budget.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Budget;

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
pub fn read(usage: &str, sass: &str) -> BTreeMap<String, Code> {
    let mut entries = BTreeMap::<String, Code>::new();
    let mut entry = None;
    for line in usage.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Function ") {
            entry = Some(name.trim_end_matches(':').to_owned());
        } else if let Some(name) = entry.take() {
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
        let entries = read(USAGE, SASS);
        let opcodes = ["HMMA.16816.F32.BF16", "IMAD.MOV.U32"].map(str::to_owned).into();
        let code = Code { registers: 13, shared_bytes: 1152, local_bytes: 8, opcodes };
        assert_eq!(entries, BTreeMap::from([("k".to_owned(), code)]));
    }

    #[test]
    fn every_breach_is_a_finding() {
        let mut entries = read(USAGE, SASS);
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
