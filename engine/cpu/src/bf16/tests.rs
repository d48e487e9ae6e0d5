//! Tests of the bf16 GEMM against plain sums, on every instruction set: with bf16 instructions
//! where they exist, otherwise as plain loops.

use half::bf16;

use super::*;
use crate::isa::{Isa, PairKernel};
use crate::reference::{check_close, numbers};
use crate::tests::{buffer, stored};
use crate::{Arithmetic, Cpu, reference};
use engine_core::{Device, HostMatrix, RowOrder, WeightType};

/// Largest relative error of a number rounded to bf16, which has 8 significant bits.
const ROUNDING: f32 = 1.0 / 256.0;
/// Numbers of activation rows to test the bf16 GEMM with: they cover every height of a micro-kernel
/// tile, and enough tiles to spread prefetches.
const ROWS: [usize; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 25, 40, 129, 137];
/// Weight shapes (N, K) to test the bf16 GEMM with: edges of groups and tiles, of pairs, vectors
/// and blocks of k.
const SHAPES: [(usize, usize); 10] = [
    (16, 32),
    (1, 1),
    (15, 2),
    (17, 3),
    (47, 15),
    (48, 17),
    (49, 127),
    (95, 128),
    (97, 131),
    (30, 576),
];

fn on_every_device(check: impl Fn(&mut Cpu, &str)) {
    for isa in Isa::detected() {
        for threads in [1, 3] {
            let mut cpu = Cpu::new(isa, threads).with(Arithmetic::Bf16);
            check(&mut cpu, &format!("{} x {threads}", isa.name()));
        }
    }
}

fn host(weight_type: WeightType, n: usize, k: usize, bytes: &[u8]) -> HostMatrix<'_> {
    HostMatrix { weight_type, n, k, bytes, order: RowOrder::AsStored }
}

fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect()
}

#[test]
fn products_are_those_of_rounded_rows_at_every_tail() {
    on_every_device(|cpu, device| {
        for (n, k) in SHAPES {
            let (bytes, exact) = stored(WeightType::Bf16, n, k, 1);
            let w = cpu.matrix(&[host(WeightType::Bf16, n, k, &bytes)]).unwrap();
            for rows in ROWS {
                let x = buffer(k, numbers(rows * k, 2));
                let mut out = buffer(n, vec![f32::NAN; rows * n]);
                cpu.matmul(&x, &w, &mut out).unwrap();
                let what = format!("{device} T{rows} N{n} K{k}");
                let want = reference::matmul(&rounded(x.values()), &exact, k);
                check_close(out.values(), &want, 1e-5, &what);
                check_rounding(out.values(), x.values(), &exact, k, &what);
            }
        }
    });
}

/// Checks that `got` differs from the matrix product of the unrounded `x` and `w` by at most the
/// error that rounding `x` to bf16 can cause.
fn check_rounding(got: &[f32], x: &[f32], w: &[f32], k: usize, what: &str) {
    let sizes = |values: &[f32]| values.iter().map(|x| x.abs()).collect::<Vec<f32>>();
    let (want, size) = (reference::matmul(x, w, k), reference::matmul(&sizes(x), &sizes(w), k));
    for (i, ((got, want), size)) in got.iter().zip(&want).zip(&size).enumerate() {
        let bound = (ROUNDING + 1e-5) * size;
        assert!((got - want).abs() <= bound, "{what}, element {i}: {got}, not {want} +- {bound}");
    }
}

#[test]
fn every_type_can_be_kept_as_bf16() {
    on_every_device(|cpu, device| {
        for weight_type in WeightType::ALL {
            let (n, k) = (50, 256);
            let (bytes, exact) = stored(weight_type, n, k, 3);
            let w = cpu.matrix(&[host(weight_type, n, k, &bytes)]).unwrap();
            let mut kept = vec![0.0; n * k];
            kept.chunks_exact_mut(k).enumerate().for_each(|(row, out)| w.row(row, out));
            let is_exact = weight_type == WeightType::F8E4M3;
            let want = if is_exact { exact } else { rounded(&exact) };
            assert!(kept == want, "{device} {}", weight_type.name());
            let x = buffer(k, numbers(9 * k, 2));
            let mut out = buffer(n, vec![f32::NAN; 9 * n]);
            cpu.matmul(&x, &w, &mut out).unwrap();
            let want = reference::matmul(&rounded(x.values()), &kept, k);
            check_close(out.values(), &want, 1e-5, &format!("{device} {}", weight_type.name()));
        }
    });
}

/// Rows of an identity matrix select one weight each, whose product with 1 is the dequantized
/// weight.
#[test]
fn every_fp8_weight_is_exact_at_any_scale() {
    let k = 256;
    let mut bytes = Vec::new();
    for (block, scale) in (0..).zip([1.0f32, 0.37, 3e-5, -2.5, 1e10, 0.0625, 7.0, 1e-20]) {
        bytes.extend(scale.to_le_bytes());
        // Zeros replace the bit patterns of NaN.
        let values = (0..32u8).map(|i| 32 * block + i);
        bytes.extend(values.map(|value| if value & 0x7f == 0x7f { 0 } else { value }));
    }
    let mut exact = vec![0.0; k];
    dequantize(WeightType::F8E4M3, &bytes, &mut exact);
    let mut identity = vec![0.0; k * k];
    identity.iter_mut().step_by(k + 1).for_each(|x| *x = 1.0);
    on_every_device(|cpu, device| {
        let w = cpu.matrix(&[host(WeightType::F8E4M3, 1, k, &bytes)]).unwrap();
        let mut out = buffer(1, vec![f32::NAN; k]);
        cpu.matmul(&buffer(k, identity.clone()), &w, &mut out).unwrap();
        assert!(out.values() == exact, "{device}");
    });
}

/// Instruction sets with and without a bf16 instruction must give the same sums.
#[test]
fn every_instruction_set_gives_the_same_bits() {
    let (rows, n) = (19, 100);
    for (weight_type, k) in [(WeightType::Bf16, 703), (WeightType::F8E4M3, 704)] {
        let (bytes, _) = stored(weight_type, n, k, 3);
        let x = numbers(rows * k, 4);
        let product = |isa| {
            let mut cpu = Cpu::new(isa, 2).with(Arithmetic::Bf16);
            let w = cpu.matrix(&[host(weight_type, n, k, &bytes)]).unwrap();
            let mut out = buffer(n, vec![f32::NAN; rows * n]);
            cpu.matmul(&buffer(k, x.clone()), &w, &mut out).unwrap();
            out.values().to_vec()
        };
        let isas = Isa::detected();
        let portable = product(isas[isas.len() - 1]);
        for isa in isas {
            assert!(product(isa) == portable, "{} on {}", weight_type.name(), isa.name());
        }
    }
}

/// Test kernel that rounds 16 f32 values to bf16.
struct Round<'a>(&'a [f32; LANES], &'a mut [u16; LANES]);

impl PairKernel for Round<'_> {
    #[inline(always)]
    fn run<P: Pairs>(self, pairs: P) {
        *self.1 = pairs.round(self.0);
    }
}

#[test]
fn ties_round_to_even_and_what_is_no_number_stays_none() {
    let below = f32::from_bits(0x3f80_7fff);
    let ties = [0x3f80_8000, 0x3f81_8000, 0xbf80_8000, 0xbf81_8000].map(f32::from_bits);
    let limits = [0.0, -0.0, below, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let mut x = [1.0; LANES];
    x[..4].copy_from_slice(&ties);
    x[4..12].copy_from_slice(&limits);
    for isa in Isa::detected() {
        let mut got = [0; LANES];
        isa.run_pairs(Round(&x, &mut got));
        assert_eq!(got[..4], [0x3f80, 0x3f82, 0xbf80, 0xbf82], "{}", isa.name());
        let want = [0, 0x8000, 0x3f80, 0x7f80, 0xff80, 0x7f80, 0xff80];
        assert_eq!(got[4..11], want, "{}", isa.name());
        assert!(bf16::from_bits(got[11]).is_nan(), "{}", isa.name());
    }
}

#[test]
fn floats_take_bf16_where_the_processor_multiplies_it() {
    let dtype = |isa, arithmetic, weight_type| {
        let (bytes, _) = stored(weight_type, 16, 256, 1);
        let mut cpu = Cpu::new(isa, 1).with(arithmetic);
        cpu.matrix(&[host(weight_type, 16, 256, &bytes)]).unwrap();
        cpu.compute_dtype()
    };
    for isa in Isa::detected() {
        for weight_type in WeightType::ALL {
            let what = format!("{} on {}", weight_type.name(), isa.name());
            let is_bf16 = dtype(isa, Arithmetic::AsStored, weight_type) == "bf16";
            assert_eq!(is_bf16, !weight_type.is_integer_blocks() && isa.has_bf16(), "{what}");
            assert_eq!(dtype(isa, Arithmetic::Bf16, weight_type), "bf16", "{what}");
            assert_eq!(dtype(isa, Arithmetic::F32, weight_type), "f32", "{what}");
        }
    }
}

#[test]
fn the_coarsest_type_of_a_model_is_its_type() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut seen = vec![cpu.compute_dtype()];
    for (weight_type, arithmetic) in
        [(WeightType::Bf16, Arithmetic::Bf16), (WeightType::Q8_0, Arithmetic::AsStored)]
    {
        let (bytes, _) = stored(weight_type, 16, 32, 1);
        cpu = cpu.with(arithmetic);
        cpu.matrix(&[host(weight_type, 16, 32, &bytes)]).unwrap();
        seen.push(cpu.compute_dtype());
    }
    assert_eq!(seen, ["f32", "bf16", "int8"]);
}
