//! Log-probabilities of a token and its alternatives, from the model's logits before penalties,
//! bias and temperature.

/// Token with its log-probability (natural logarithm).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Id of the token that the log-probability belongs to.
    pub token: u32,
    /// Natural logarithm of the token's probability, at least -9999.
    pub logprob: f32,
}

/// Log-probabilities of a token of the prompt or output, and of the likeliest tokens at its
/// position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Token that the prompt or output actually has, with its log-probability.
    pub chosen: Candidate,
    /// Likeliest tokens at the position, likeliest first, in the number that the request wants.
    /// They may include the token that the prompt or output has.
    pub top: Vec<Candidate>,
}

impl TokenLogprobs {
    /// Computes the log-probabilities of `token` and of the `top` likeliest tokens from a row of
    /// logits.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let log_sum = f64::from(largest) + sum.ln();
        let candidate = |token: u32| {
            let logprob = f64::from(logits[token as usize]) - log_sum;
            // JSON has no infinity; other servers print -9999 too.
            Candidate { token, logprob: logprob.max(-9999.0) as f32 }
        };
        let top = top.min(logits.len());
        let mut order: Vec<u32> = Vec::new();
        if top > 0 {
            order.extend(0..u32::try_from(logits.len()).expect("a vocabulary has u32 ids"));
            let likelier = |a: &u32, b: &u32| {
                logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
            };
            // Few of a large vocabulary are needed, so they are selected before sorting.
            order.select_nth_unstable_by(top - 1, likelier);
            order.truncate(top);
            order.sort_unstable_by(likelier);
        }
        Self { chosen: candidate(token), top: order.into_iter().map(candidate).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_those_of_the_model() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln() + 4.0).collect();
        let logprobs = TokenLogprobs::of(&logits, 2, 2);
        assert!((logprobs.chosen.logprob - 0.2f32.ln()).abs() < 1e-6);
        assert_eq!(logprobs.top.iter().map(|c| c.token).collect::<Vec<_>>(), [0, 1]);
        assert!((logprobs.top[1].logprob - 0.3f32.ln()).abs() < 1e-6);
        assert!(TokenLogprobs::of(&logits, 0, 0).top.is_empty());
    }
}
