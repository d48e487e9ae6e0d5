//! Seeded pseudorandom numbers, the same on every machine, for synthetic data and for the order of
//! runs. Samplers of the workload use the generators of the tools that they follow instead.

/// SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// 2014); its field is the state, which starts as the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(pub u64);

/// Returns the low 53 bits of `bits` as a seed that a record can state: a JSON number has no more.
pub fn seed_of(bits: u128) -> u64 {
    (bits & ((1 << 53) - 1)) as u64
}

impl SplitMix64 {
    /// Returns the next uniform 64-bit number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next uniform number from 0 up to but excluding 1, with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a whole number in an f64")]
    pub fn share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` into random order, each order equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            // The remainder favors small numbers by less than one part in 2^32 for any list here.
            let from = self.draw() % (end as u64 + 1);
            items.swap(end, usize::try_from(from).unwrap_or(0));
        }
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
    fn every_order_comes_up_about_equally_often() {
        let (mut random, mut counts) = (SplitMix64(5), std::collections::BTreeMap::new());
        for _ in 0..6_000 {
            let mut order = [0, 1, 2];
            random.shuffle(&mut order);
            *counts.entry(order).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn shares_lie_below_one() {
        let mut random = SplitMix64(0);
        assert!((0..1_000).map(|_| random.share()).all(|share| (0.0..1.0).contains(&share)));
    }
}
