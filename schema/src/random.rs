//! Numbers drawn from a seed, the same on every machine: for made-up data alone. Knows no source of
//! chance, and nothing of the workloads of tools, each of which is drawn as its tool draws it.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
/// begun at its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Any number of 64 bits, each as often as the others.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to 1, without 1, of 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a whole number in an f64")]
    pub fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut random = SplitMix64(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(drawn, published);
    }

    #[test]
    fn shares_lie_below_one() {
        let mut random = SplitMix64(0);
        assert!((0..1_000).map(|_| random.share()).all(|share| (0.0..1.0).contains(&share)));
    }
}
