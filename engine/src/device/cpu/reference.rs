//! The operations in plain loops and f64 sums: what the kernels are tested against.

use crate::device::{AttentionLayer, AttentionShape, Rotation};

/// `x * w^T`, `w` being `n` rows of `k`.
pub(super) fn matmul(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w) as f32)).collect()
}

/// Rows of `x / sqrt(mean(x^2) + epsilon) * weight`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(weight.len()) {
        let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(epsilon)).sqrt();
        out.extend(row.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * w));
    }
    out
}

/// Rows of `silu(gate) * up`, each row being `cols` gates and then `cols` ups.
pub(super) fn silu_mul(gate_up: &[f32], cols: usize) -> Vec<f32> {
    let one = |gate: f64, up: f64| (gate / (1.0 + (-gate).exp()) * up) as f32;
    let row = |row: &[f32]| -> Vec<f32> {
        (0..cols).map(|i| one(row[i].into(), row[cols + i].into())).collect()
    };
    gate_up.chunks_exact(2 * cols).flat_map(row).collect()
}

/// Rows of `(up' + 1) * gate' * sigmoid(alpha * gate')`, as [`silu_mul`] has them.
pub(super) fn clamped_swiglu(gate_up: &[f32], cols: usize, alpha: f64, limit: f64) -> Vec<f32> {
    let one = |gate: f64, up: f64| {
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        ((up + 1.0) * gate / (1.0 + (-alpha * gate).exp())) as f32
    };
    let row = |row: &[f32]| -> Vec<f32> {
        (0..cols).map(|i| one(row[i].into(), row[cols + i].into())).collect()
    };
    gate_up.chunks_exact(2 * cols).flat_map(row).collect()
}

/// A head at `position`, its first dimensions turned.
pub(super) fn rotate(head: &[f32], position: usize, rotation: &Rotation) -> Vec<f32> {
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

/// Causal attention over one whole sequence of `qkv` rows whose heads are already turned.
pub(super) fn attention(qkv: &[f32], layer: &AttentionLayer<Vec<f32>>) -> Vec<f32> {
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
