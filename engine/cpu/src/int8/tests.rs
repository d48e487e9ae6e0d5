//! Tests of the int8 GEMM against its definition in plain sums, on every instruction set.

use super::*;
use crate::gemm::Weights;
use crate::matmul::Matrix;
use crate::reference::{check_close, numbers};
use crate::tests::{buffer, stored};
use crate::{Arithmetic, Buffer, Cpu, Isa, Pool, reference};
use engine_core::{Device, HostMatrix, RowOrder, WeightType};

fn on_every_device(check: impl Fn(&mut Cpu, &str)) {
    for isa in Isa::detected() {
        for threads in [1, 3] {
            let mut cpu = Cpu::new(isa, threads).with(Arithmetic::Int8);
            check(&mut cpu, &format!("{} x {threads}", isa.name()));
        }
    }
}

fn host(weight_type: WeightType, n: usize, k: usize, bytes: &[u8]) -> HostMatrix<'_> {
    HostMatrix { weight_type, n, k, bytes, order: RowOrder::AsStored }
}

/// Returns rows of activations of `k` values after quantization to int8, with one scale per
/// quantization group, and dequantization.
fn rounded(x: &[f32], k: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for quant_group in x.chunks_exact(k).flat_map(|row| row.chunks(QUANT_GROUP)) {
        let top = quant_group.iter().fold(0.0f32, |top, x| top.max(x.abs()));
        out.extend(
            quant_group.iter().map(|x| (x * (127.0 / top)).round_ties_even() * (top / 127.0)),
        );
    }
    out
}

#[test]
fn products_are_those_of_the_quantized_values_for_every_type_and_tail() {
    on_every_device(|cpu, device| {
        for weight_type in WeightType::ALL {
            for (n, k) in [(16, 32usize), (1, 64), (49, 96), (95, 160), (144, 32), (30, 576)] {
                let k = k.next_multiple_of(weight_type.block());
                let (bytes, _) = stored(weight_type, n, k, 1);
                let w = cpu.matrix(&[host(weight_type, n, k, &bytes)]).unwrap();
                let mut kept = vec![0.0; n * k];
                kept.chunks_exact_mut(k).enumerate().for_each(|(row, out)| w.row(row, out));
                for rows in [1, 2, 3, 5, 8, 9, 15, 17, 40] {
                    let x = buffer(k, numbers(rows * k, 2));
                    let mut out = buffer(n, vec![f32::NAN; rows * n]);
                    cpu.matmul(&x, &w, &mut out).unwrap();
                    let want = reference::matmul(&rounded(x.values(), k), &kept, k);
                    let what = format!("{device} {} T{rows} N{n} K{k}", weight_type.name());
                    check_close(out.values(), &want, 1e-5, &what);
                }
            }
        }
    });
}

#[test]
fn weights_are_kept_to_half_a_quantization_step() {
    let mut pool = Pool::new(1);
    for weight_type in WeightType::ALL {
        let (n, k) = (50, 768);
        let (bytes, exact) = stored(weight_type, n, k, 3);
        let parts = [host(weight_type, n, k, &bytes)];
        let w = Matrix::pack(&parts, Arithmetic::Int8, Isa::best(), &mut pool);
        let [weights] = &w.int8[..] else { panic!("one run of bytes") };
        if weights.format == Width::Mxfp4 {
            // They are exact, and have no scale for a whole column.
            continue;
        }
        let mut kept = vec![0.0; k];
        for (row, exact) in exact.chunks_exact(k).enumerate() {
            w.row(row, &mut kept);
            let scale = weights::scales(weights.tile(row / TILE))[row % TILE];
            let top = exact.iter().fold(0.0f32, |top, w| top.max(w.abs()));
            assert!(scale * 127.0 >= top * 0.999_9, "{} row {row}", weight_type.name());
            for (got, want) in kept.iter().zip(exact) {
                // Factors of 4-bit weights are rounded too, to a fraction of a quantization step.
                let off = (got - want).abs();
                assert!(off <= 0.54 * scale, "{}: {got}, not {want}", weight_type.name());
            }
        }
    }
}

/// Weights of 5 and 6 bits are widened to the bytes to which their dequantized values round, and
/// then multiplied like bytes. Only weights between two bytes may become the one or the other: of 6
/// bits those exactly in the middle, of 5 bits in few blocks those next to it.
#[test]
fn weights_of_five_and_six_bits_are_multiplied_as_if_they_were_expanded_to_bytes() {
    let types = [
        (WeightType::Q5_0, 160, 0.03),
        (WeightType::Q5_1, 96, 0.03),
        (WeightType::Q5K, 768, 0.03),
        (WeightType::Q6K, 768, 1e-4),
    ];
    on_every_device(|cpu, device| {
        for (weight_type, k, margin) in types {
            let (n, name) = (95, weight_type.name());
            let (bytes, exact) = stored(weight_type, n, k, 4);
            let parts = [host(weight_type, n, k, &bytes)];
            let w = cpu.matrix(&parts).unwrap();
            let mut expanded = cpu.matrix(&parts).unwrap();
            expanded.int8 = vec![Weights::pack(&parts, Width::Eight, 0, &mut Pool::new(1))];
            let row = |w: &Matrix, row: usize| {
                let mut out = vec![0.0; k];
                w.row(row, &mut out);
                out
            };
            let mut others = 0;
            let is_equal: Vec<bool> = (0..n)
                .map(|column| {
                    let (got, want) = (row(&w, column), row(&expanded, column));
                    let tile = expanded.int8[0].tile(column / TILE);
                    let scale = weights::scales(tile)[column % TILE];
                    for ((got, want), exact) in got.iter().zip(&want).zip(&exact[column * k..]) {
                        let middle = ((exact / scale).fract().abs() - 0.5).abs();
                        assert!(
                            got == want || middle < margin,
                            "{name}: {got}, not {want}: {exact}"
                        );
                        others += usize::from(got != want);
                    }
                    got == want
                })
                .collect();
            assert!(others * 1000 <= n * k, "{name}: {others} of {} weights differ", n * k);
            for rows in [1, 9, 150] {
                let x = buffer(k, numbers(rows * k, 2));
                let product = |cpu: &mut Cpu, w: &Matrix| {
                    let mut out = buffer(n, vec![f32::NAN; rows * n]);
                    cpu.matmul(&x, w, &mut out).unwrap();
                    out.values().to_vec()
                };
                let (got, want) = (product(cpu, &w), product(cpu, &expanded));
                let columns = is_equal.iter().cycle();
                for ((got, want), is_equal) in got.iter().zip(&want).zip(columns) {
                    assert!(got == want || !is_equal, "{device} {name} T{rows}: {got}, not {want}");
                }
            }
        }
    });
}

/// Returns a stored row of MXFP4 weights whose blocks have the given scales, and the weights. Each
/// block has all 16 values.
fn mxfp4_row(scales: &[u8]) -> (Vec<u8>, Vec<f64>) {
    const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |i: usize| (i + i / 16 * 5) % 16;
    let (mut bytes, mut weights) = (Vec::new(), Vec::new());
    for scale in scales {
        bytes.push(*scale);
        bytes.extend((0..BLOCK / 2).map(|i| (value(i) | value(i + BLOCK / 2) << 4) as u8));
        let power = if *scale == 255 { f64::NAN } else { 2f64.powi(i32::from(*scale) - 127) };
        weights.extend((0..BLOCK).map(|i| {
            let magnitude = power * E2M1[value(i) % 8];
            if value(i) < 8 { magnitude } else { -magnitude }
        }));
    }
    (bytes, weights)
}

/// MXFP4 weights lose nothing. With activations that lose nothing either, products are exact, also
/// with the smallest and the largest scale; the scale that is NaN makes them NaN.
#[test]
fn products_with_mxfp4_weights_are_exact_at_every_scale() {
    const CASES: [([u8; 5], i32); 4] = [
        ([126, 127, 128, 127, 126], 0),
        ([0; 5], 20),
        ([254; 5], -20),
        ([127, 255, 127, 127, 127], 0),
    ];
    let k = 5 * BLOCK;
    let is_same = |got: f32, want: f64| got == want as f32 || (got.is_nan() && want.is_nan());
    on_every_device(|cpu, device| {
        for (scales, exponent) in CASES {
            let (bytes, weights) = mxfp4_row(&scales);
            let w = cpu.matrix(&[host(WeightType::Mxfp4, 1, k, &bytes)]).unwrap();
            let what = format!("{device} {scales:?}");
            let mut kept = vec![0.0; k];
            w.row(0, &mut kept);
            assert!(kept.iter().zip(&weights).all(|(got, want)| is_same(*got, *want)), "{what}");
            for rows in [1, 3, 9] {
                // Whole numbers up to the largest quantized value, times a power of two: where a
                // quantization group has the largest one, they are not rounded.
                let size = 2f32.powi(exponent);
                let mut x: Vec<f32> =
                    numbers(rows * k, 2).iter().map(|x| (127.0 * x).round() * size).collect();
                for row in x.chunks_exact_mut(k) {
                    row.iter_mut().step_by(QUANT_GROUP).for_each(|x| *x = 127.0 * size);
                }
                let mut out = buffer(1, vec![0.0; rows]);
                cpu.matmul(&buffer(k, x.clone()), &w, &mut out).unwrap();
                for (got, x) in out.values().iter().zip(x.chunks_exact(k)) {
                    let want: f64 = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * w).sum();
                    assert!(is_same(*got, want), "{what} T{rows}: {got}, not {want}");
                }
            }
        }
    });
}

/// Instruction sets with fused multiply-add differ only in how they add whole numbers.
#[test]
fn vector_instruction_sets_give_the_same_bits() {
    let (rows, n, k) = (19, 100, 768);
    let x = numbers(rows * k, 4);
    for weight_type in [WeightType::Q4_0, WeightType::Q6K, WeightType::Q8_0, WeightType::Mxfp4] {
        let (bytes, _) = stored(weight_type, n, k, 3);
        let product = |isa: &Isa| {
            let mut cpu = Cpu::new(*isa, 2).with(Arithmetic::Int8);
            let w = cpu.matrix(&[host(weight_type, n, k, &bytes)]).unwrap();
            let mut out = buffer(n, vec![f32::NAN; rows * n]);
            cpu.matmul(&buffer(k, x.clone()), &w, &mut out).unwrap();
            out.values().to_vec()
        };
        let isas = Isa::detected();
        let (_, vectors) = isas.split_last().unwrap();
        for isa in vectors {
            let what = format!("{} on {}", weight_type.name(), isa.name());
            assert!(product(isa) == product(&vectors[0]), "{what}");
        }
    }
}

#[test]
fn zeros_and_extremes_are_what_they_are() {
    on_every_device(|cpu, device| {
        let (n, k) = (48, 128);
        let (bytes, _) = stored(WeightType::Q8_0, n, k, 5);
        let w = cpu.matrix(&[host(WeightType::Q8_0, n, k, &bytes)]).unwrap();
        let mut first = vec![0.0; k];
        w.row(0, &mut first);
        for factor in [0.0, 1e-35, 1e-20, 1.0, 1e20] {
            let mut out = buffer(n, vec![f32::NAN; n]);
            cpu.matmul(&buffer(k, first.iter().map(|x| x * factor).collect()), &w, &mut out)
                .unwrap();
            let want = reference::matmul(&first, &first, k)[0] * factor;
            let off = (out.values()[0] - want).abs();
            assert!(
                off <= 0.01 * want.abs() + 1e-30,
                "{device} {factor}: {} {want}",
                out.values()[0]
            );
        }
    });
}

#[test]
fn what_is_stored_in_integer_blocks_takes_the_byte_path() {
    for weight_type in WeightType::ALL {
        let (bytes, _) = stored(weight_type, 16, 256, 1);
        for (arithmetic, wanted) in [
            (Arithmetic::F32, false),
            (Arithmetic::AsStored, weight_type.is_integer_blocks()),
            (Arithmetic::Int8, true),
        ] {
            let mut cpu = Cpu::new(Isa::best(), 1).with(arithmetic);
            cpu.matrix(&[host(weight_type, 16, 256, &bytes)]).unwrap();
            assert_eq!(cpu.compute_dtype() == "int8", wanted, "{}", weight_type.name());
        }
    }
}

/// An operation before an int8 matmul stores a quantized copy together with its output rows; a
/// later change of the rows invalidates the copy.
#[test]
fn rows_quantized_as_they_are_written_give_the_same_product() {
    on_every_device(|cpu, device| {
        let (n, k) = (50, 160);
        let (bytes, _) = stored(WeightType::Q8_0, n, k, 1);
        let w = cpu.matrix(&[host(WeightType::Q8_0, n, k, &bytes)]).unwrap();
        let (weight, bias) = (numbers(k, 2), numbers(k, 3));
        for rows in [1, 9, 230] {
            let product = |cpu: &mut Cpu, x: &Buffer| {
                let mut out = buffer(n, vec![f32::NAN; rows * n]);
                cpu.matmul(x, &w, &mut out).unwrap();
                out.values().to_vec()
            };
            let mut normed = buffer(k, vec![0.0; rows * k]);
            cpu.rms_norm(&buffer(k, numbers(rows * k, 4)), &weight, 1e-5, &mut normed).unwrap();
            assert!(normed.quantized().is_some(), "{device}");
            let plain = buffer(k, normed.values().to_vec());
            assert!(plain.quantized().is_none(), "{device}");
            assert!(product(cpu, &normed) == product(cpu, &plain), "{device}, {rows} rows");
            cpu.add_bias(&mut normed, &bias).unwrap();
            assert!(
                normed.quantized().is_none(),
                "{device}: the quantized copy is of other values"
            );
            assert!(product(cpu, &normed) != product(cpu, &plain), "{device}, {rows} rows");
        }
    });
}
