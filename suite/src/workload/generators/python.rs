//! CPython's `random.Random` (`Lib/random.py` over MT19937), bit for bit.

use super::mt19937::Mt19937;

/// CPython's generator, seeded with an integer.
#[derive(Clone, Debug)]
pub struct PythonRandom(Mt19937);

impl PythonRandom {
    /// Creates the generator of `random.seed(seed)`, for a non-negative integer.
    pub fn seed(seed: u64) -> Self {
        let low = (seed & 0xffff_ffff) as u32;
        let high = (seed >> 32) as u32;
        let key: &[u32] = if high == 0 { &[low] } else { &[low, high] };
        Self(Mt19937::from_key(key))
    }

    /// Returns one value of `Random._randbelow(bound)`, for a bound from 1 to 2^32 - 1.
    /// `random.choice` of a list uses it with the list's length.
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0, "the bound must be above zero");
        let bits = u32::BITS - bound.leading_zeros();
        loop {
            let draw = self.0.next_u32() >> (u32::BITS - bits);
            if draw < bound {
                return draw;
            }
        }
    }

    /// Returns `random.choices(items, k=count)`, which draws a fraction for each item instead of
    /// using `below`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a position lies between zero and the length of a list"
    )]
    pub fn choices<T: Copy>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let length = items.len() as f64;
        (0..count).map(|_| items[(self.0.next_f64() * length) as usize]).collect()
    }

    /// Shuffles as `random.shuffle(items)` does. Items beyond 2^32 - 1 stay in place; no dataset is
    /// that long.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let Ok(bound) = u32::try_from(i + 1) else { return };
            let j = self.below(bound) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::canonical::sha256_hex;

    #[test]
    fn first_draws_equal_cpythons() {
        let mut python = PythonRandom::seed(1);
        let draws: Vec<u32> = (0..3).map(|_| python.0.next_u32()).collect();
        assert_eq!(draws, [577_090_037, 2_444_712_010, 3_639_700_191]);
    }

    #[test]
    fn short_shuffles_equal_cpythons() {
        for (seed, expected) in
            [(1, [6, 8, 9, 7, 5, 3, 0, 4, 1, 2]), (0, [7, 8, 1, 5, 3, 4, 2, 0, 9, 6])]
        {
            let mut items: Vec<u32> = (0..10).collect();
            PythonRandom::seed(seed).shuffle(&mut items);
            assert_eq!(items, expected, "seed {seed}");
        }
    }

    #[test]
    fn the_shuffle_of_the_whole_data_set_equals_cpythons() {
        let mut items: Vec<u32> = (0..94_145).collect();
        PythonRandom::seed(1).shuffle(&mut items);
        assert_eq!(items[..5], [79539, 2570, 31055, 67500, 65606]);
        let bytes: Vec<u8> = items.iter().flat_map(|item| item.to_le_bytes()).collect();
        assert_eq!(
            sha256_hex(&bytes),
            "cb779bdfcf46ecfb3e4b8255c178f01367b51981e7bc2c34fd717ed0ee0721ff"
        );
    }

    /// Expected values from CPython 3.11: `random.seed(1); random.choices(range(1000), k=6)` and
    /// `random.seed(0); [random.choice(range(7)) for _ in range(8)]`.
    #[test]
    fn choices_equal_cpythons() {
        let items: Vec<u32> = (0..1000).collect();
        let chosen = PythonRandom::seed(1).choices(&items, 6);
        assert_eq!(chosen, [134, 847, 763, 255, 495, 449]);
        let mut python = PythonRandom::seed(0);
        let chosen: Vec<u32> = (0..8).map(|_| python.below(7)).collect();
        assert_eq!(chosen, [6, 3, 6, 3, 0, 2, 4, 3]);
    }
}
