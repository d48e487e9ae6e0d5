//! Finds the innermost loops in x86-64 machine code, and counts their registers and stack accesses.
//! It must not know any kernel.

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

/// Instructions of one loop: from the target of a backward jump to that jump.
#[derive(Debug)]
pub struct Loop {
    pub instructions: Vec<Instruction>,
    /// True if the loop's function keeps its frame's start in `rbp`; otherwise `rbp` is an ordinary
    /// register.
    has_frame_pointer: bool,
}

/// Returns the innermost loops of a function, those that contain no other loop, by ascending
/// address. `address` is that of the first byte of `code`.
pub fn innermost(code: &[u8], address: u64) -> Vec<Loop> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    let has_frame_pointer = all.iter().any(sets_frame_pointer);
    let mut spans: Vec<(usize, usize)> = all
        .iter()
        .enumerate()
        .filter_map(|(end, jump)| Some((target(&all[..=end], jump)?, end)))
        .collect();
    spans.sort_unstable();
    spans.dedup();
    let holds_another = |&(start, end): &(usize, usize)| {
        spans.iter().any(|other| *other != (start, end) && start <= other.0 && other.1 <= end)
    };
    let innermost = spans.iter().filter(|span| !holds_another(span));
    let part = |&(start, end): &(usize, usize)| all[start..=end].to_vec();
    innermost.map(|span| Loop { instructions: part(span), has_frame_pointer }).collect()
}

/// Returns the index of the earlier instruction that `jump`, the last of `code`, jumps back to;
/// `None` if it is no backward jump within the function.
fn target(code: &[Instruction], jump: &Instruction) -> Option<usize> {
    let jumps = [FlowControl::ConditionalBranch, FlowControl::UnconditionalBranch];
    if !jumps.contains(&jump.flow_control()) {
        return None;
    }
    // A target outside the function is not found.
    code.binary_search_by_key(&jump.near_branch_target(), Instruction::ip).ok()
}

/// Returns true for `mov rbp, rsp`, and for an instruction that points `rbp` into the stack frame.
fn sets_frame_pointer(instruction: &Instruction) -> bool {
    let copies = instruction.op1_register() == Register::RSP;
    let points =
        instruction.code() == Code::Lea_r64_m && instruction.memory_base() == Register::RSP;
    let moves = matches!(instruction.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64);
    instruction.op0_register() == Register::RBP && ((copies && moves) || points)
}

impl Loop {
    /// Returns the address of the loop's first instruction.
    pub fn start(&self) -> u64 {
        self.instructions.first().map_or(0, Instruction::ip)
    }

    /// Returns the number of different 512-bit registers that hold results of the loop's
    /// instructions whose mnemonic, in lower case, is `wanted`.
    pub fn wide_results(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let name = |one: &Instruction| format!("{:?}", one.mnemonic()).to_lowercase();
        let wide = self.instructions.iter().filter(|one| one.op0_register().is_zmm());
        let results = wide.filter(|one| wanted(&name(one))).map(Instruction::op0_register);
        results.collect::<BTreeSet<_>>().len()
    }

    /// Returns the number of the loop's instructions that read or write the function's stack frame.
    pub fn stack_accesses(&self) -> usize {
        let on_stack = |one: &&Instruction| {
            let memory = (0..one.op_count()).any(|i| one.op_kind(i) == OpKind::Memory);
            let base = one.memory_base();
            // `rbp` points into the frame only where the function uses it as frame pointer.
            let frame = base == Register::RSP || (base == Register::RBP && self.has_frame_pointer);
            // Pushes, pops and calls use the stack without a memory operand.
            (memory && frame) || one.is_stack_instruction()
        };
        self.instructions.iter().filter(on_stack).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test helper: returns start address and number of instructions of every innermost loop in
    /// `code`, whose address is 0x10.
    fn spans(code: &[u8]) -> Vec<(u64, usize)> {
        let found = innermost(code, 0x10);
        found.iter().map(|one| (one.start(), one.instructions.len())).collect()
    }

    #[test]
    fn only_a_jump_backwards_makes_a_loop() {
        // dec rcx; jnz -5; ret
        assert_eq!(spans(&[0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3]), [(0x10, 2)]);
        // jnz +1; nop; ret
        assert_eq!(spans(&[0x75, 0x01, 0x90, 0xc3]), []);
        // A jump to before the function is not a loop of the function: jmp -0x10
        assert_eq!(spans(&[0xeb, 0xf0]), []);
    }

    #[test]
    fn a_loop_around_others_is_not_innermost() {
        // outer: nop; first: dec rcx; jnz first; second: dec rdx; jnz second; dec rsi; jnz outer
        let code = [
            0x90, 0x48, 0xff, 0xc9, 0x75, 0xfb, 0x48, 0xff, 0xca, 0x75, 0xfb, 0x48, 0xff, 0xce,
            0x75, 0xf0, 0xc3,
        ];
        assert_eq!(spans(&code), [(0x11, 2), (0x16, 2)]);
    }

    #[test]
    fn two_jumps_to_one_start_are_one_loop_within_another() {
        // start: dec rcx; jz start; dec rdx; jnz start
        let code = [0x48, 0xff, 0xc9, 0x74, 0xfb, 0x48, 0xff, 0xca, 0x75, 0xf6];
        assert_eq!(spans(&code), [(0x10, 2)]);
    }

    fn stack_accesses(code: &[u8]) -> usize {
        let found = innermost(code, 0);
        assert_eq!(found.len(), 1);
        found[0].stack_accesses()
    }

    #[test]
    fn rbp_is_the_stack_only_where_it_points_there() {
        // again: mov rax, [rbp-8]; jmp again
        let body = [0x48, 0x8b, 0x45, 0xf8, 0xeb, 0xfa];
        assert_eq!(stack_accesses(&body), 0);
        // mov rbp, rsp before it
        let framed = [&[0x48, 0x89, 0xe5], &body[..]].concat();
        assert_eq!(stack_accesses(&framed), 1);
        // again: mov rax, [rsp]; push rax; jmp again
        assert_eq!(stack_accesses(&[0x48, 0x8b, 0x04, 0x24, 0x50, 0xeb, 0xf9]), 2);
        // again: mov rax, [rdi]; jmp again
        assert_eq!(stack_accesses(&[0x48, 0x8b, 0x07, 0xeb, 0xfb]), 0);
    }

    #[test]
    fn results_are_counted_once_and_in_512_bits() {
        // again: vaddps zmm0, zmm0, zmm1, twice; vaddps zmm2, zmm0, zmm1; vaddps ymm3, ymm0, ymm1;
        // jmp again
        let one = [0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1];
        let another = [0x62, 0xf1, 0x7c, 0x48, 0x58, 0xd1];
        let code = [&one[..], &one, &another, &[0xc5, 0xfc, 0x58, 0xd9, 0xeb, 0xe8]].concat();
        let found = innermost(&code, 0);
        assert_eq!(found[0].instructions.len(), 5);
        assert_eq!(found[0].wide_results(|name| name == "vaddps"), 2);
        assert_eq!(found[0].wide_results(|name| name == "vaddpd"), 0);
    }
}
