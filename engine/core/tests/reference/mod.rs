//! Reference implementation of the device operations in plain loops with f64 sums, for tests.

use engine_core::{AttentionLayer, AttentionShape, DeltaNetLayer, DeltaNetShape, Rotation};

/// Returns pseudo-random numbers from -1 to 1, the same on every run.
pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[track_caller]
pub fn check_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}, element {i}: {a}, not {b}");
    }
}

/// Returns `x * w^T`, where `w` is `n` rows of `k`.
pub fn matmul(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w) as f32)).collect()
}

/// Returns the RMS norm of each row: `x / sqrt(mean(x^2) + epsilon) * weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(weight.len()) {
        let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(epsilon)).sqrt();
        out.extend(row.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * w));
    }
    out
}

/// Returns `silu(gate) * up` of each row, which holds `cols` gates and then `cols` ups.
pub fn silu_mul(gate_up: &[f32], cols: usize) -> Vec<f32> {
    let one = |gate: f64, up: f64| (gate / (1.0 + (-gate).exp()) * up) as f32;
    let row = |row: &[f32]| -> Vec<f32> {
        (0..cols).map(|i| one(row[i].into(), row[cols + i].into())).collect()
    };
    gate_up.chunks_exact(2 * cols).flat_map(row).collect()
}

/// Returns `(up' + 1) * gate' * sigmoid(alpha * gate')` of each row, laid out as for [`silu_mul`].
pub fn clamped_swiglu(gate_up: &[f32], cols: usize, alpha: f64, limit: f64) -> Vec<f32> {
    let one = |gate: f64, up: f64| {
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        ((up + 1.0) * gate / (1.0 + (-alpha * gate).exp())) as f32
    };
    let row = |row: &[f32]| -> Vec<f32> {
        (0..cols).map(|i| one(row[i].into(), row[cols + i].into())).collect()
    };
    gate_up.chunks_exact(2 * cols).flat_map(row).collect()
}

/// Returns a head at `position` with its first dimensions rotated (RoPE).
pub fn rotate(head: &[f32], position: usize, rotation: &Rotation) -> Vec<f32> {
    let pairs = rotation.inverse_frequencies.len();
    let mut out = head.to_vec();
    for (i, frequency) in rotation.inverse_frequencies.iter().enumerate() {
        let (sin, cos) = (position as f32 * frequency).sin_cos();
        let (sin, cos) = (sin * rotation.factor, cos * rotation.factor);
        out[i] = head[i] * cos - head[i + pairs] * sin;
        out[i + pairs] = head[i + pairs] * cos + head[i] * sin;
    }
    out
}

/// Returns causal attention over one whole sequence of `qkv` rows whose heads are already rotated.
pub fn attention(qkv: &[f32], layer: &AttentionLayer<Vec<f32>>) -> Vec<f32> {
    let shape = &layer.shape;
    let AttentionShape { heads, kv_heads, head_dim: d, scale } = *shape;
    let rows: Vec<&[f32]> = qkv.chunks_exact(shape.qkv_cols()).collect();
    let mut out = Vec::new();
    for (t, row) in rows.iter().enumerate() {
        let seen = &rows[layer.window.map_or(0, |window| (t + 1).saturating_sub(window))..=t];
        for head in 0..heads {
            let query = &row[head * d..(head + 1) * d];
            let key = (heads + head / shape.group()) * d;
            let value = key + kv_heads * d;
            let score = |row: &&[f32]| {
                let products = query.iter().zip(&row[key..key + d]);
                let sum: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                sum * f64::from(scale)
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sink = layer.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head].into());
            let largest = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
            out.extend((0..d).map(|i| {
                let sum: f64 =
                    seen.iter().zip(&weights).map(|(row, w)| f64::from(row[value + i]) * w).sum();
                (sum / total) as f32
            }));
        }
    }
    out
}

/// Returns gated DeltaNet over one whole sequence of `projected` rows.
pub fn delta_net(projected: &[f32], layer: &DeltaNetLayer<Vec<f32>>) -> Vec<f32> {
    let DeltaNetShape { key_heads, value_heads, key_dim, value_dim, taps } = layer.shape;
    let (conv_cols, gates) = (layer.shape.conv_cols(), layer.shape.conv_cols());
    let scalars = gates + value_heads * value_dim;
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let rows: Vec<&[f32]> = projected.chunks_exact(layer.shape.cols()).collect();
    let convolved = |t: usize, col: usize| {
        let past = (0..taps).filter_map(|tap| {
            let row = rows.get((t + tap).checked_sub(taps - 1)?)?;
            Some(f64::from(layer.conv[tap * conv_cols + col]) * f64::from(row[col]))
        });
        silu(past.sum())
    };
    let vector = |t: usize, col: usize, len: usize| -> Vec<f64> {
        (col..col + len).map(|col| convolved(t, col)).collect()
    };
    let unit = |x: Vec<f64>| -> Vec<f64> {
        let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / norm).collect()
    };
    let mut out = vec![0.0; rows.len() * value_heads * value_dim];
    for head in 0..value_heads {
        let key_head = head / layer.shape.group();
        let mut state = vec![vec![0.0; value_dim]; key_dim];
        for (t, row) in rows.iter().enumerate() {
            let query = unit(vector(t, key_head * key_dim, key_dim));
            let key = unit(vector(t, (key_heads + key_head) * key_dim, key_dim));
            let values = vector(t, 2 * key_heads * key_dim + head * value_dim, value_dim);
            let beta = 1.0 / (1.0 + (-f64::from(row[scalars + head])).exp());
            let input = f64::from(row[scalars + value_heads + head] + layer.bias[head]);
            let decay = (f64::from(layer.rate[head]) * (1.0 + input.exp()).ln()).exp();
            let mut y = vec![0.0; value_dim];
            for v in 0..value_dim {
                state.iter_mut().for_each(|row| row[v] *= decay);
                let known: f64 = state.iter().zip(&key).map(|(row, k)| row[v] * k).sum();
                let delta = (values[v] - known) * beta;
                state.iter_mut().zip(&key).for_each(|(row, k)| row[v] += k * delta);
                let read: f64 = state.iter().zip(&query).map(|(row, q)| row[v] * q).sum();
                y[v] = read / (key_dim as f64).sqrt();
            }
            let mean = y.iter().map(|y| y * y).sum::<f64>() / value_dim as f64;
            let scale = 1.0 / (mean + f64::from(layer.epsilon)).sqrt();
            for v in 0..value_dim {
                let gate = silu(f64::from(row[gates + head * value_dim + v]));
                let weighed = y[v] * scale * f64::from(layer.norm[v]);
                out[(t * value_heads + head) * value_dim + v] = (weighed * gate) as f32;
            }
        }
    }
    out
}
