//! Tests of CPU kernels against the reference implementation, on every instruction set that the
//! processor has.

mod attention;
mod delta_net;
mod moe;

use half::{bf16, f16};

use super::lanes::{LANES, Lanes};
use super::*;
use crate::reference::{check_close, numbers};
use engine_core::sample::Sampling;
use engine_core::{KvType, LogitRows, RowOrder, ScheduledSequence, StepToken, WeightType};
use engine_weights::format::dequantize;

/// Returns `n` stored rows of weights of a type and their dequantized values: random bytes with
/// scales up to 0.05.
pub(super) fn stored(
    weight_type: WeightType,
    n: usize,
    k: usize,
    seed: u32,
) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    let values = numbers(n * k, seed);
    match weight_type {
        WeightType::F32 => values.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
        WeightType::F16 => {
            values.iter().for_each(|x| bytes.extend(f16::from_f32(*x).to_le_bytes()));
        }
        WeightType::Bf16 => {
            values.iter().for_each(|x| bytes.extend(bf16::from_f32(*x).to_le_bytes()));
        }
        _ => {
            for block in values.chunks_exact(weight_type.block()) {
                let start = bytes.len();
                let size = weight_type.block_bytes();
                bytes.extend(block.iter().map(|x| (x * 127.0) as i8 as u8));
                bytes.resize(start + size, 0x5a);
                sound_head(weight_type, block, &mut bytes[start..]);
            }
        }
    }
    let mut exact = vec![0.0; n * k];
    dequantize(weight_type, &bytes, &mut exact);
    (bytes, exact)
}

/// Replaces the scales of a random quantization block by finite ones, and removes bit patterns that
/// stand for NaN.
fn sound_head(weight_type: WeightType, numbers: &[f32], block: &mut [u8]) {
    let (heads, scale): (&[usize], f32) = match weight_type {
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => (&[0], 0.05),
        WeightType::Q4_1 | WeightType::Q5_1 => (&[0, 2], 0.05),
        WeightType::Q4K | WeightType::Q5K => (&[0, 2], 0.001),
        WeightType::Q6K => (&[208], 0.0005),
        _ => (&[], 0.0),
    };
    for (at, x) in heads.iter().zip(numbers) {
        block[*at..at + 2].copy_from_slice(&f16::from_f32(scale * x).to_le_bytes());
    }
    match weight_type {
        WeightType::Mxfp4 => block[0] = 118 + block[0] % 8,
        WeightType::F8E4M3 => {
            block[..4].copy_from_slice(&(0.001 * numbers[0]).to_le_bytes());
            block[4..].iter_mut().for_each(|quants| *quants &= 0xf7);
        }
        _ => {}
    }
}

pub(super) fn buffer(cols: usize, data: Vec<f32>) -> Buffer {
    let mut buffer = Buffer::new(cols);
    buffer.reshape(data.len() / cols, cols);
    buffer.values_mut().copy_from_slice(&data);
    buffer
}

/// Calls `check` with a CPU device in f32 arithmetic for each instruction set that the processor
/// has, with one thread and with three.
fn on_every_device(check: impl Fn(&mut Cpu, &str)) {
    for isa in Isa::detected() {
        for threads in [1, 3] {
            let mut cpu = Cpu::new(isa, threads).with(Arithmetic::F32);
            check(&mut cpu, &format!("{} x {threads}", isa.name()));
        }
    }
}

#[test]
fn matmul_is_the_product_for_every_type_and_tail() {
    on_every_device(|cpu, device| {
        for weight_type in WeightType::ALL {
            for (n, k) in [(16, 32usize), (1, 64), (33, 96), (80, 160), (144, 32), (30, 576)] {
                let k = k.next_multiple_of(weight_type.block());
                let (bytes, exact) = stored(weight_type, n, k, 1);
                let order = RowOrder::AsStored;
                let host = HostMatrix { weight_type, n, k, bytes: &bytes, order };
                let w = cpu.matrix(&[host]).unwrap();
                for rows in [1, 2, 3, 4, 5, 6, 7, 12, 17, 40] {
                    let x = buffer(k, numbers(rows * k, 2));
                    let mut out = buffer(n, vec![f32::NAN; rows * n]);
                    cpu.matmul(&x, &w, &mut out).unwrap();
                    let want = reference::matmul(x.values(), &exact, k);
                    let what = format!("{device} {} T{rows} N{n} K{k}", weight_type.name());
                    check_close(out.values(), &want, 1e-4, &what);
                }
            }
        }
    });
}

#[test]
fn matmul_gives_a_row_the_same_bits_in_any_company() {
    on_every_device(check_company);
    for isa in Isa::detected() {
        for (arithmetic, name) in [(Arithmetic::Int8, "bytes"), (Arithmetic::Bf16, "bf16")] {
            let mut cpu = Cpu::new(isa, 3).with(arithmetic);
            check_company(&mut cpu, &format!("{} in {name}", isa.name()));
        }
    }
}

fn check_company(cpu: &mut Cpu, device: &str) {
    for weight_type in WeightType::ALL {
        let (n, k) = (100, 704usize.next_multiple_of(weight_type.block()));
        let (bytes, _) = stored(weight_type, n, k, 3);
        let order = RowOrder::AsStored;
        let w = cpu.matrix(&[HostMatrix { weight_type, n, k, bytes: &bytes, order }]).unwrap();
        let row = numbers(k, 4);
        let mut alone = buffer(n, vec![0.0; n]);
        cpu.matmul(&buffer(k, row.clone()), &w, &mut alone).unwrap();
        for (rows, at) in [(2, 1), (3, 2), (4, 0), (5, 4), (6, 3), (19, 11), (140, 139), (200, 150)]
        {
            let mut x = numbers(rows * k, 5);
            x[at * k..(at + 1) * k].copy_from_slice(&row);
            let mut out = buffer(n, vec![0.0; rows * n]);
            cpu.matmul(&buffer(k, x), &w, &mut out).unwrap();
            let got = &out.values()[at * n..(at + 1) * n];
            assert!(got == alone.values(), "{device} {} row {at} of {rows}", weight_type.name());
        }
    }
}

#[test]
fn parts_of_several_types_stand_side_by_side() {
    on_every_device(|cpu, device| {
        let k = 512;
        let mut parts = vec![
            (WeightType::Q4_1, 24, RowOrder::AsStored),
            (WeightType::Q4_1, 32, RowOrder::RopePairs { head_dim: 16 }),
        ];
        // Neighbors of different types may share a layout, with borders inside of a group of
        // columns.
        parts.extend(WeightType::ALL.map(|weight_type| (weight_type, 21, RowOrder::AsStored)));
        let stored: Vec<_> =
            (1..).zip(&parts).map(|(seed, (kind, n, _))| stored(*kind, *n, k, seed)).collect();
        let hosts: Vec<_> = stored
            .iter()
            .zip(&parts)
            .map(|((bytes, _), (weight_type, n, order))| HostMatrix {
                weight_type: *weight_type,
                n: *n,
                k,
                bytes,
                order: *order,
            })
            .collect();
        let w = cpu.matrix(&hosts).unwrap();
        let mut exact = Vec::new();
        for ((_, values), (_, n, order)) in stored.iter().zip(&parts) {
            for row in (0..*n).map(|n| order.stored_row(n)) {
                exact.extend_from_slice(&values[row * k..(row + 1) * k]);
            }
        }
        let n = exact.len() / k;
        let x = buffer(k, numbers(9 * k, 7));
        let mut out = buffer(n, vec![0.0; 9 * n]);
        cpu.matmul(&x, &w, &mut out).unwrap();
        check_close(out.values(), &reference::matmul(x.values(), &exact, k), 1e-4, device);
        let ids: Vec<u32> = (0..n as u32).collect();
        let mut rows = buffer(k, vec![0.0; n * k]);
        let step = step_of(cpu, &ids);
        cpu.embed(&w, 0, &step, &mut rows).unwrap();
        assert!(rows.values() == exact, "{device}: rows come back as they were stored");
    });
}

#[test]
fn routers_are_multiplied_in_f32_whatever_other_matrices_are() {
    let (n, k) = (20, 256);
    let x = buffer(k, numbers(3 * k, 2));
    for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::Q8_0] {
        let (bytes, _) = stored(weight_type, n, k, 1);
        let host = [HostMatrix { weight_type, n, k, bytes: &bytes, order: RowOrder::AsStored }];
        let logits = |cpu: &mut Cpu, w: &Matrix| {
            let mut out = buffer(n, vec![f32::NAN; 3 * n]);
            cpu.matmul(&x, w, &mut out).unwrap();
            out.values().to_vec()
        };
        let mut exact = Cpu::new(Isa::best(), 1).with(Arithmetic::F32);
        let w = exact.matrix(&host).unwrap();
        let want = logits(&mut exact, &w);
        for arithmetic in [Arithmetic::AsStored, Arithmetic::Bf16, Arithmetic::Int8] {
            let mut cpu = Cpu::new(Isa::best(), 1).with(arithmetic);
            let w = cpu.router_matrix(&host).unwrap();
            assert!(logits(&mut cpu, &w) == want, "{} {arithmetic:?}", weight_type.name());
        }
    }
}

/// Prepares a step over the token ids `ids` at the beginning of one sequence.
fn step_of(cpu: &mut Cpu, ids: &[u32]) -> StepMetadata {
    let tokens = ids.iter().copied().map(StepToken::Known).collect();
    step_of_tokens(cpu, tokens, &[LogitRows::None])
}

/// Prepares a step of new sequences that divide `tokens` equally; `logits` says for each sequence
/// which rows need logits.
fn step_of_tokens(cpu: &mut Cpu, tokens: Vec<StepToken>, logits: &[LogitRows]) -> StepMetadata {
    let (page_tokens, kv_type) = (16, KvType::F32);
    let rows = tokens.len() / logits.len();
    let each = rows.div_ceil(page_tokens);
    let pages = each * logits.len();
    let kv = KvShape { layers: 1, kv_heads: 1, head_dim: 16, pages, page_tokens, kv_type };
    let kv = cpu.kv(kv).unwrap();
    let sequence = |(i, logits): (usize, &LogitRows)| {
        let pages = (i * each..(i + 1) * each).map(|page| page as u32).collect();
        ScheduledSequence { row: 0, rows, position: 0, pages, logits: *logits, state: None }
    };
    let sequences = logits.iter().enumerate().map(sequence).collect();
    let rotation = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
    let batch = StepBatch { tokens, ..StepBatch::known(&[], sequences) };
    cpu.prepare_step(&batch, &kv, &[rotation]).unwrap()
}

#[test]
fn rows_are_drawn_from_after_those_that_are_read_and_name_rows_of_the_next_step() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let draw = LogitRows::Sample(Sampling::greedy().sample_params(0));
    let wanted = [draw, LogitRows::Last, draw];
    let step = step_of_tokens(&mut cpu, vec![StepToken::Known(0); 3], &wanted);
    let mut rows = buffer(1, vec![0.0; 3]);
    cpu.gather(&buffer(1, vec![10.0, 11.0, 12.0]), &step, &mut rows).unwrap();
    assert_eq!(rows.values(), [11.0, 10.0, 12.0]);
    let nan = f32::NAN;
    let mut logits = buffer(3, [[7.0, 8.0, 9.0], [1.0, 3.0, 2.0], [nan; 3]].concat());
    cpu.sample(&mut logits, &step).unwrap();
    cpu.submit(&mut logits, step).unwrap();
    let output = cpu.complete(&mut logits).unwrap();
    assert_eq!((output.logits, output.tokens), (&[7.0, 8.0, 9.0][..], &[Some(1), None][..]));
    // A row from which no token could be sampled still has an entry.
    let (values, order) = ([1.0f32, 2.0, 3.0], RowOrder::AsStored);
    let bytes = bytemuck::cast_slice(&values);
    let host = HostMatrix { weight_type: WeightType::F32, n: 3, k: 1, bytes, order };
    let table = cpu.matrix(&[host]).unwrap();
    let tokens = vec![StepToken::Sampled(1), StepToken::Sampled(0), StepToken::Known(2)];
    let step = step_of_tokens(&mut cpu, tokens, &[LogitRows::None]);
    cpu.embed(&table, 0, &step, &mut rows).unwrap();
    assert_eq!(rows.values(), [0.0, 2.0, 3.0]);
}

#[test]
fn rope_pairs_are_undone_for_each_head() {
    let order = RowOrder::RopePairs { head_dim: 6 };
    let rows: Vec<usize> = (0..12).map(|n| order.stored_row(n)).collect();
    assert_eq!(rows, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
}

#[test]
fn interleaved_rows_come_one_half_after_the_other() {
    let order = RowOrder::Interleaved { half: 3 };
    let rows: Vec<usize> = (0..6).map(|n| order.stored_row(n)).collect();
    assert_eq!(rows, [0, 2, 4, 1, 3, 5]);
}

/// Returns `gelu(gate) * up` of each row, which holds `cols` gates and then `cols` ups.
fn gelu_mul(gate_up: &[f32], cols: usize) -> Vec<f32> {
    let one = |x: f64, up: f64| {
        let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        (0.5 * x * (1.0 + z.tanh()) * up) as f32
    };
    let row = |row: &[f32]| -> Vec<f32> {
        (0..cols).map(|i| one(row[i].into(), row[cols + i].into())).collect()
    };
    gate_up.chunks_exact(2 * cols).flat_map(row).collect()
}

#[test]
fn norms_and_activation_follow_the_reference_at_every_tail() {
    on_every_device(|cpu, device| {
        for cols in [1, 15, 16, 17, 48, 100, 576] {
            for rows in [1, 3, 64] {
                let what = format!("{device} T{rows} N{cols}");
                let (x, weight) = (numbers(rows * cols, 1), numbers(cols, 2));
                let delta = numbers(rows * cols, 3);
                let mut out = buffer(cols, vec![0.0; rows * cols]);
                cpu.rms_norm(&buffer(cols, x.clone()), &weight, 1e-5, &mut out).unwrap();
                check_close(out.values(), &reference::rms_norm(&x, &weight, 1e-5), 1e-5, &what);

                let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
                let mut stream = buffer(cols, x);
                let delta = buffer(cols, delta);
                cpu.add_rms_norm(&mut stream, &delta, &weight, 1e-5, &mut out).unwrap();
                assert!(stream.values() == sum, "{what}: the stream takes the sum");
                check_close(out.values(), &reference::rms_norm(&sum, &weight, 1e-5), 1e-5, &what);

                let gates = numbers(2 * rows * cols, 4).iter().map(|x| 30.0 * x).collect();
                let gates = buffer(2 * cols, gates);
                cpu.silu_mul(&gates, &mut out).unwrap();
                check_close(out.values(), &reference::silu_mul(gates.values(), cols), 1e-6, &what);

                cpu.gelu_mul(&gates, &mut out).unwrap();
                check_close(out.values(), &gelu_mul(gates.values(), cols), 1e-6, &what);

                cpu.clamped_swiglu(&gates, 1.702, 7.0, &mut out).unwrap();
                let want = reference::clamped_swiglu(gates.values(), cols, 1.702, 7.0);
                check_close(out.values(), &want, 1e-6, &what);

                cpu.add_bias(&mut stream, &weight).unwrap();
                let biased = sum.iter().zip(weight.iter().cycle()).map(|(x, b)| x + b);
                assert!(stream.values() == biased.collect::<Vec<_>>(), "{what}: biases");

                let gates = buffer(cols, gates.values()[..rows * cols].to_vec());
                let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
                let want: Vec<f32> = out
                    .values()
                    .iter()
                    .zip(gates.values())
                    .map(|(x, gate)| x * sigmoid(*gate))
                    .collect();
                cpu.sigmoid_mul(&mut out, &gates).unwrap();
                check_close(out.values(), &want, 1e-5, &what);
            }
        }
    });
}

/// Test kernel that measures the largest relative error of the vector exponential over its range,
/// and checks its values at the limits.
struct Exponential<'a>(&'a mut f64);

impl isa::Kernel for Exponential<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for i in -87_000i32..88_000 {
            let x = i as f32 / 1000.0;
            let got = lanes.lower(lanes.exp(lanes.splat(x)))[LANES - 1];
            let error = (f64::from(got) / f64::from(x).exp() - 1.0).abs();
            *self.0 = self.0.max(error);
        }
        assert_eq!(lanes.lower(lanes.exp(lanes.splat(0.0))), [1.0; LANES]);
        assert!(lanes.lower(lanes.exp(lanes.splat(f32::NEG_INFINITY)))[0] < 1e-37);
        assert!(lanes.lower(lanes.exp(lanes.splat(f32::INFINITY)))[0] > 1e38);
    }
}

#[test]
fn the_exponential_is_right_to_the_last_places() {
    for isa in Isa::detected() {
        let mut worst = 0.0;
        isa.run(Exponential(&mut worst));
        assert!(worst < 2e-7, "{}: {worst}", isa.name());
    }
}
