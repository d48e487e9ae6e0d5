//! Program whose instructions `cargo xtask counts` counts: one call of an operation on one thread,
//! over fixed numbers. Lists the cases without arguments, and runs one case by its name.
//!
//! Only the function [`counted`] is counted, so that creating a case, and its first call with its
//! allocations, are excluded.

mod trace;

use std::process::ExitCode;

use engine::bench::cases::{Case, Matmul, RowOp, SMOLLM2_135M, Step};
use engine::bench::setup::{Make, Setup};
use engine_core::{DeltaNetShape, DeviceError, KvType, WeightType};
use engine_cpu::{Cpu, Isa};

/// Names of the instruction sets on which instructions are counted, if the processor has them; the
/// counting tool does not support others.
const ISAS: [&str; 2] = ["avx2", "portable"];

/// Name of a case to count, and function that creates it as a call.
type Named = (String, Box<dyn FnOnce() -> Call>);
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

/// Runs `call`. It is the only function whose instructions are counted, with those that it calls.
#[inline(never)]
fn counted(call: &mut Call) {
    call();
}

fn cases() -> Vec<Named> {
    let mut cases: Vec<Named> = vec![("schedule".to_owned(), Box::new(|| Box::new(trace::run)))];
    for isa in Isa::detected().into_iter().filter(|isa| ISAS.contains(&isa.name())) {
        for (name, make) in of_each_isa() {
            let name = format!("{name}/{}", isa.name());
            let call = move || -> Call {
                let setup = Setup::new(Cpu::new(isa, 1), 0);
                let mut case = make(setup).expect("the case fits into memory");
                Box::new(move || (case.run)().expect("the operation succeeds"))
            };
            cases.push((name, Box::new(call)));
        }
    }
    cases
}

/// Returns the operations to count on each instruction set, by name. Multiplication with quantized
/// weights is in 8-bit integers, and quantizes its rows first.
fn of_each_isa() -> Vec<(&'static str, Make<Cpu>)> {
    let mut all: Vec<(&'static str, Make<Cpu>)> = vec![
        ("add_rms_norm/T8", Box::new(|setup| setup.rows(RowOp::AddRmsNorm, 8, 576))),
        ("silu_mul/T8", Box::new(|setup| setup.rows(RowOp::SiluMul, 8, 1536))),
        ("rope/T8", Box::new(|setup| setup.rope(&SMOLLM2_135M, 8))),
        ("delta_net/T8", Box::new(|setup| setup.delta_net(NET, 1, 8))),
    ];
    for (name, t, weight_type) in [
        ("matmul_int8/T1_q4_1", 1, WeightType::Q4_1),
        ("matmul_int8/T16_q4_1", 16, WeightType::Q4_1),
        ("matmul_int8/T1_q5_0", 1, WeightType::Q5_0),
        ("matmul_int8/T16_q5_0", 16, WeightType::Q5_0),
        ("matmul_int8/T1_q6_k", 1, WeightType::Q6K),
        ("matmul_int8/T16_q6_k", 16, WeightType::Q6K),
        ("matmul_int8/T1_q8_0", 1, WeightType::Q8_0),
        ("matmul_int8/T16_q8_0", 16, WeightType::Q8_0),
        ("matmul_int8/T1_mxfp4", 1, WeightType::Mxfp4),
        ("matmul_int8/T16_mxfp4", 16, WeightType::Mxfp4),
        ("matmul/T1_bf16", 1, WeightType::Bf16),
        ("matmul/T12_bf16", 12, WeightType::Bf16),
    ] {
        // Weights with four tiles of columns; rows are whole blocks.
        let k = 576usize.next_multiple_of(weight_type.block());
        let matmul = Matmul { t, k, n: 192, weight_type };
        all.push((name, Box::new(move |setup| setup.matmul("matmul", matmul, false))));
    }
    for (name, kv_type, rows, context) in [
        ("attention/T1_C256_f16", KvType::F16, 1, 256),
        ("attention/T32_C0_f16", KvType::F16, 32, 0),
        ("attention/T1_C256_f32", KvType::F32, 1, 256),
        ("attention/T32_C0_f32", KvType::F32, 32, 0),
    ] {
        let step = Step { sequences: 1, rows, context };
        all.push((name, Box::new(move |setup| attend(setup, kv_type, step))));
    }
    all
}

fn attend(setup: Setup<Cpu>, kv_type: KvType, step: Step) -> Result<Case, DeviceError> {
    setup.attention(("smollm2-135m", SMOLLM2_135M.attention(), None), kv_type, step)
}

/// Shape of the counted gated-delta-net layer: that of the benchmark's layer, with two key heads
/// only.
const NET: DeltaNetShape =
    DeltaNetShape { key_heads: 2, value_heads: 4, key_dim: 128, value_dim: 128, taps: 4 };
