//! Random numbers by counter: the n-th number of a seed is known without the ones before it, so
//! that a sequence draws the same numbers whatever shares its batch.

/// A uniform number in [0, 1) for the token at `index` of a sequence with this seed.
///
/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014), its stream chosen by the seed and its state
/// by the index.
pub fn uniform(seed: u64, index: u64) -> f64 {
    const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = mix(seed.wrapping_add(GOLDEN_GAMMA));
    let bits = mix(start.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)));
    // The upper 53 bits fill the mantissa exactly.
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_streams_differ() {
        for seed in [0, 1, u64::MAX] {
            let mut buckets = [0; 10];
            for index in 0..100_000 {
                buckets[(uniform(seed, index) * 10.0) as usize] += 1;
            }
            // Nine sigmas of a binomial with p = 0.1.
            assert!(buckets.iter().all(|count: &i32| (count - 10_000).abs() < 860), "{buckets:?}");
        }
        assert_ne!(uniform(1, 0), uniform(2, 0));
        assert_ne!(uniform(1, 0), uniform(1, 1));
    }
}
