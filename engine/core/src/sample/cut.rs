//! Which tokens may still be chosen at a temperature above 0, and with which weight.

use super::DrawParams;

/// Fills `candidates` with (token, weight); weights are relative to the likeliest, which has 1.
///
/// Without `top_k` and `top_p` the order is that of the vocabulary. Both need the likeliest first,
/// but seldom many of them, so that a part is sorted at a time.
pub(super) fn keep_candidates(
    candidates: &mut Vec<(u32, f32)>,
    logits: &[f32],
    likeliest: u32,
    params: &DrawParams,
) {
    let largest = logits[likeliest as usize];
    candidates.clear();
    candidates.extend(logits.iter().zip(0u32..).filter_map(|(logit, token)| {
        let weight = ((logit - largest) / params.temperature).exp();
        (weight > 0.0 && weight >= params.min_p).then_some((token, weight))
    }));
    let top_k = params.top_k as usize;
    if 0 < top_k && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, likelier);
        candidates.truncate(top_k);
    }
    if params.top_p < 1.0 {
        let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let kept = sort_until(candidates, f64::from(params.top_p) * total);
        candidates.truncate(kept);
    } else if top_k > 0 {
        candidates.sort_unstable_by(likelier);
    }
}

/// Sorts a growing head until its weights reach `wanted`; returns how many that takes.
fn sort_until(candidates: &mut [(u32, f32)], wanted: f64) -> usize {
    let (mut sorted, mut sum) = (0, 0.0);
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

/// Likelier first, the lower id of equals first, so that the order is total.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
