//! SplitMix64 random numbers (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014). Each number is a function of a counter, so that a stream can be started at
//! any index. This file must not know what the numbers are used for.

/// Increment of a SplitMix64 stream's counter from one random number to the next.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the SplitMix64 random number of counter value `z`: 64 uniform bits.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns random number `index` of the stream with seed `seed`, uniform in [0, 1).
pub fn uniform(seed: u64, index: u64) -> f64 {
    // Mixing the seed keeps the streams of neighboring seeds apart.
    let start = mix(seed.wrapping_add(GOLDEN_GAMMA));
    let bits = mix(start.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)));
    // The upper 53 bits fill the mantissa exactly.
    (bits >> 11) as f64 / (1u64 << 53) as f64
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
            // 860 is nine standard deviations of a binomial distribution with p = 0.1.
            assert!(buckets.iter().all(|count: &i32| (count - 10_000).abs() < 860), "{buckets:?}");
        }
        assert_ne!(uniform(1, 0), uniform(2, 0));
        assert_ne!(uniform(1, 0), uniform(1, 1));
    }
}
