//! Program whose instructions `cargo xtask counts` counts: one call of an operation on one thread,
//! over fixed numbers. Lists the cases without arguments, and runs one case by its name.
//!
//! Only the function [`counted`] is counted, so that creating a case, and its first call with its
//! allocations, are excluded.

#![expect(clippy::duplicate_mod, reason = "each bench is a crate of its own that shares tables")]

mod trace;

use std::process::ExitCode;

use engine_core::{DeltaNetShape, KvType, WeightType};
use engine_cpu::{Arithmetic, Cpu, Isa};

macro_rules! benches {
    ($($op:ident: $path:literal),* $(,)?) => {
        $(
            #[expect(dead_code, reason = "cases are of sizes that are counted in seconds")]
            #[path = $path]
            mod $op;
        )*
    };
}

benches! {
    add_rms_norm: "../../benches/add_rms_norm.rs",
    attention: "../../benches/attention.rs",
    delta_net: "../../benches/delta_net.rs",
    matmul: "../../benches/matmul.rs",
    rope: "../../benches/rope.rs",
    silu_mul: "../../benches/silu_mul.rs",
}

/// Instruction sets to count, if the processor has them; the counting tool does not know others.
const ISAS: [&str; 2] = ["avx2", "portable"];

/// Name of a case, and function that creates the call to count.
type Case = (String, Box<dyn FnOnce() -> Call>);
type Make = fn(Cpu) -> Call;
type Call = Box<dyn FnMut()>;

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        for (name, _) in cases() {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, make)) = cases().into_iter().find(|(name, _)| *name == wanted) else {
        eprintln!("error: no case `{wanted}`\nhint: without arguments the cases are listed");
        return ExitCode::from(2);
    };
    let mut call = make();
    // The first call allocates working memory.
    call();
    counted(&mut call);
    ExitCode::SUCCESS
}

/// The only function whose instructions are counted, with those that it calls.
#[inline(never)]
fn counted(call: &mut Call) {
    call();
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = vec![("schedule".to_owned(), Box::new(|| Box::new(trace::run)))];
    for isa in Isa::detected().into_iter().filter(|isa| ISAS.contains(&isa.name())) {
        for (name, make) in of_each_isa() {
            let name = format!("{name}/{}", isa.name());
            cases.push((name, Box::new(move || make(Cpu::new(isa, 1)))));
        }
    }
    cases
}

/// Operations to count on each instruction set. Multiplication with quantized weights is in 8-bit
/// integers, and quantizes its rows first.
fn of_each_isa() -> Vec<(&'static str, Make)> {
    vec![
        ("matmul_int8/T1_q4_1", |cpu| matmul(cpu, 1, WeightType::Q4_1)),
        ("matmul_int8/T16_q4_1", |cpu| matmul(cpu, 16, WeightType::Q4_1)),
        ("matmul_int8/T1_q8_0", |cpu| matmul(cpu, 1, WeightType::Q8_0)),
        ("matmul_int8/T16_q8_0", |cpu| matmul(cpu, 16, WeightType::Q8_0)),
        ("matmul/T1_bf16", |cpu| matmul(cpu, 1, WeightType::Bf16)),
        ("matmul/T12_bf16", |cpu| matmul(cpu, 12, WeightType::Bf16)),
        ("matmul/T1_mxfp4", |cpu| matmul(cpu, 1, WeightType::Mxfp4)),
        ("matmul/T12_mxfp4", |cpu| matmul(cpu, 12, WeightType::Mxfp4)),
        ("attention/T1_C256_f16", |cpu| attend(cpu, KvType::F16, 1, 256)),
        ("attention/T32_C0_f16", |cpu| attend(cpu, KvType::F16, 32, 0)),
        ("attention/T1_C256_f32", |cpu| attend(cpu, KvType::F32, 1, 256)),
        ("attention/T32_C0_f32", |cpu| attend(cpu, KvType::F32, 32, 0)),
        ("add_rms_norm/T8", |cpu| add_rms_norm::case(cpu, 8, 576).run),
        ("silu_mul/T8", |cpu| silu_mul::case(cpu, 8, 1536).run),
        ("rope/T8", |cpu| rope::case(cpu, &rope::shapes::SMOLLM2_135M, 8).run),
        ("delta_net/T8", |cpu| delta_net::case(cpu, NET, 1, 8).run),
    ]
}

/// Gated-delta-net shape with two key heads of the layer that the benchmark measures.
const NET: DeltaNetShape =
    DeltaNetShape { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, taps: 4 };

/// Creates a call of a matrix multiplication whose weights have four tiles of columns.
fn matmul(cpu: Cpu, t: usize, weight_type: WeightType) -> Call {
    let shape = matmul::Product { t, k: 576, n: 192, weight_type };
    matmul::case("matmul", cpu, Arithmetic::AsStored, shape).run
}

fn attend(cpu: Cpu, kv_type: KvType, rows: usize, context: usize) -> Call {
    let work = attention::Work { sequences: 1, rows, context };
    attention::case(cpu, &attention::shapes::SMOLLM2_135M, kv_type, work).run
}
