//! Tests of the element-wise and row-wise kernels: embedding, norms, biases, gated activations.

use super::*;

const COLS: [usize; 4] = [8, 24, 264, 2880];

/// Returns buffer sizes (rows, columns) at and around the ends of blocks, warps and rows.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    let all_rows = ROWS.iter().map(|rows| (*rows, 264));
    all_rows.chain(COLS.iter().map(|cols| (3, *cols)))
}

/// Bit that marks an input token id as an index among the tokens that the previous step sampled.
const SAMPLED: u32 = 1 << 31;

#[test]
fn rows_are_embedded_and_gathered() {
    let (Some(embed), Some(gather)) = (Program::compile("embed"), Program::compile("gather"))
    else {
        return;
    };
    for (rows, cols) in sizes() {
        // The table holds ids 10 to 19, one rank's share of the vocabulary.
        let table = rounded(10 * cols, 1);
        let ids: Vec<u32> = (0..rows as u32).map(|i| 5 + 7 * i % 20).collect();
        // Every third id was sampled by the previous step.
        let given = ids.iter().zip(0..).map(|(id, i)| if i % 3 == 1 { SAMPLED | i } else { *id });
        let call = Call::new("embed", Launch::row_copies(rows, cols))
            .buffer(&vec![7u16; rows * cols])
            .buffer(&narrow(&table))
            .buffer(&given.collect::<Vec<u32>>())
            .buffer(&ids)
            .value(10u32)
            .value(10u32)
            .value(cols as u32);
        let want: Vec<f32> = ids
            .iter()
            .flat_map(|id| match id.checked_sub(10) {
                Some(row) if row < 10 => table[row as usize * cols..][..cols].to_vec(),
                _ => vec![0.0; cols],
            })
            .collect();
        assert_eq!(widen(&embed.run(&[call])[0][0]), want, "T{rows} K{cols}");

        let from: Vec<u32> = (0..rows as u32).map(|i| 3 * i % 10).collect();
        let call = Call::new("gather", Launch::row_copies(rows, cols))
            .buffer(&vec![7u16; rows * cols])
            .buffer(&narrow(&table))
            .buffer(&from)
            .value(cols as u32);
        let want: Vec<f32> =
            from.iter().flat_map(|row| table[*row as usize * cols..][..cols].to_vec()).collect();
        assert_eq!(widen(&gather.run(&[call])[0][0]), want, "T{rows} N{cols}");
    }
}

#[test]
fn norms_are_those_of_the_reference() {
    let Some(program) = Program::compile("rms_norm") else { return };
    for (rows, cols) in sizes().chain([(2, 8192)]) {
        let (x, delta) = (rounded(rows * cols, 2), rounded(rows * cols, 3));
        let weight = numbers(cols, 4);
        let out = vec![7u16; rows * cols];
        let launch = Launch::norms(rows, cols);
        let norm = Call::new("rms_norm", launch)
            .buffer(&out)
            .buffer(&narrow(&x))
            .buffer(&weight)
            .value(cols as u32)
            .value(1e-5f32);
        let add_norm = Call::new("add_rms_norm", launch)
            .buffer(&out)
            .buffer(&narrow(&x))
            .buffer(&narrow(&delta))
            .buffer(&weight)
            .value(cols as u32)
            .value(1e-5f32);
        let got = program.run(&[norm, add_norm]);
        let what = format!("T{rows} N{cols}");
        let want = reference::rms_norm(&x, &weight, 1e-5);
        check_close(&widen(&got[0][0]), &want, BF16_ROUNDING, &what);

        let sums: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
        assert_eq!(elements::<u16>(&got[1][1]), narrow(&sums), "{what}: x is the sum");
        let want = reference::rms_norm(&widen(&got[1][1]), &weight, 1e-5);
        check_close(&widen(&got[1][0]), &want, BF16_ROUNDING, &what);
    }
}

#[test]
fn a_bias_is_added_to_every_row() {
    let Some(program) = Program::compile("add_bias") else { return };
    for (rows, cols) in sizes() {
        let (x, bias) = (rounded(rows * cols, 5), numbers(cols, 6));
        let call = Call::new("add_bias", Launch::elements(rows, cols))
            .buffer(&narrow(&x))
            .buffer(&bias)
            .value(rows as u32)
            .value(cols as u32);
        let want: Vec<f32> = x.iter().zip(bias.iter().cycle()).map(|(x, bias)| x + bias).collect();
        let got = program.run(&[call]);
        assert_eq!(elements::<u16>(&got[0][0]), narrow(&want), "T{rows} N{cols}");
    }
}

#[test]
fn gates_let_through_what_the_reference_does() {
    let Some(program) = Program::compile("gated") else { return };
    for (rows, cols) in sizes() {
        let gate_up: Vec<f32> = rounded(2 * rows * cols, 7).iter().map(|x| 16.0 * x).collect();
        let (x, gate) = gate_up.split_at(rows * cols);
        let out = vec![7u16; rows * cols];
        let launch = Launch::elements(rows, cols);
        let gated = |entry: &str| {
            Call::new(entry, launch)
                .buffer(&out)
                .buffer(&narrow(&gate_up))
                .value(rows as u32)
                .value(cols as u32)
        };
        let sigmoid = Call::new("sigmoid_mul", launch)
            .buffer(&narrow(x))
            .buffer(&narrow(gate))
            .value(rows as u32)
            .value(cols as u32);
        let swiglu = gated("clamped_swiglu").value(1.702f32).value(7.0f32);
        let got = program.run(&[gated("silu_mul"), swiglu, sigmoid]);
        let what = format!("T{rows} N{cols}");
        let want = reference::silu_mul(&gate_up, cols);
        check_close(&widen(&got[0][0]), &want, BF16_ROUNDING, &what);
        let want = reference::clamped_swiglu(&gate_up, cols, 1.702, 7.0);
        check_close(&widen(&got[1][0]), &want, BF16_ROUNDING, &what);
        let want: Vec<f32> =
            x.iter().zip(gate).map(|(x, gate)| x / (1.0 + (-gate).exp())).collect();
        check_close(&widen(&got[2][0]), &want, BF16_ROUNDING, &what);
    }
}
