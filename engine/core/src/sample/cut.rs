//! Top-k, top-p and min-p sampling: cuts the candidates at a temperature above 0, with their
//! weights.

use super::DrawParams;

/// Fills `candidates` with pairs of token and weight. Weights are relative to the likeliest token,
/// which has 1.
///
/// Without top-k and top-p the candidates stay in the order of the vocabulary. With them they are
/// sorted, the likeliest first; for top-p only as far as needed, since few candidates are kept.
pub(super) fn keep_candidates(
    candidates: &mut Vec<(u32, f32)>,
    logits: &[f32],
    likeliest: u32,
    params: &DrawParams,
) {
    let largest = logits[likeliest as usize];
    candidates.clear();
    candidates.extend(logits.iter().zip(0u32..).filter_map(|(logit, token)| {
        // A weight that underflows to 0 could not be sampled.
        let weight = ((logit - largest) / params.temperature).exp();
        (weight > 0.0 && weight >= params.min_p).then_some((token, weight))
    }));
    let top_k = params.top_k as usize;
    if 0 < top_k && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, likelier);
        candidates.truncate(top_k);
    }
    if params.top_p < 1.0 {
        // In f64, because a vocabulary of small weights adds up inaccurately in f32.
        let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let kept = sort_until(candidates, f64::from(params.top_p) * total);
        candidates.truncate(kept);
    } else if top_k > 0 {
        candidates.sort_unstable_by(likelier);
    }
}

/// Sorts the head of the candidates, in growing parts, until their weights reach `wanted`; returns
/// the number of candidates that this takes.
fn sort_until(candidates: &mut [(u32, f32)], wanted: f64) -> usize {
    let (mut sorted, mut sum) = (0, 0.0);
    // Few candidates are enough for most rows; the parts grow for the others.
    let mut part = 256;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        if part < rest.len() {
            rest.select_nth_unstable_by(part, likelier);
        }
        let head = part.min(rest.len());
        rest[..head].sort_unstable_by(likelier);
        for (index, (_, weight)) in rest[..head].iter().enumerate() {
            sum += f64::from(*weight);
            if sum >= wanted {
                return sorted + index + 1;
            }
        }
        sorted += head;
        part *= 4;
    }
    candidates.len()
}

/// Order by falling weight, then by rising id, so that it is total and results are repeatable.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
