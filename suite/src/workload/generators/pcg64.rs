//! NumPy's `default_rng` (`SeedSequence`, PCG64 and bounded integers), bit for bit.
//!
//! Sources: M. E. O'Neill, "PCG", HMC-CS-2014-0905 (XSL-RR 128/64) and her `seed_seq_fe`; D.
//! Lemire, ACM TOMACS 29(1), 2019 for bounded integers; NumPy's `bit_generator.pyx` and
//! `distributions.c` for their combination.

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// Number of 32-bit words in the pool of a seed sequence.
const POOL: usize = 4;
const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;

/// NumPy's random generator that `numpy.random.default_rng` returns.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// Upper 32 bits of the last 64-bit output of PCG64, kept for the next 32-bit number; `None` if
    /// they are used.
    half: Option<u32>,
}

impl Pcg64 {
    /// Creates the generator of NumPy's `default_rng(seed)`.
    pub fn seed(seed: u64) -> Self {
        Self::of_entropy(&words(seed))
    }

    /// Creates the generator of NumPy's `default_rng([first, second])`.
    pub fn of_pair(first: u64, second: u64) -> Self {
        Self::of_entropy(&[words(first), words(second)].concat())
    }

    fn of_entropy(entropy: &[u32]) -> Self {
        let state = seed_state(entropy);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = wide(state[2], state[3]) << 1 | 1;
        let mut generator = Self { state: 0, increment, half: None };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(state[0], state[1]));
        generator.step();
        generator
    }

    /// Returns one value of NumPy's `Generator.integers(low, high)`, that is, from `[low, high)`.
    /// The caller ensures `low < high` and a range of at most 2^32 values.
    ///
    /// A range of one value uses no random bits.
    pub fn integers(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low < high, "an empty range");
        let range = (high - 1).saturating_sub(low);
        if range == 0 {
            return low;
        }
        let count = range + 1;
        // Products below this bound would make some values more likely than others: draw again.
        let surplus = (1 << 32) % count;
        loop {
            let product = u64::from(self.next_u32()) * count;
            if product & 0xffff_ffff >= surplus {
                return low + (product >> 32);
            }
        }
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let draw = self.next_u64();
        self.half = Some((draw >> 32) as u32);
        (draw & 0xffff_ffff) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ (self.state & u128::from(u64::MAX)) as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }
}

/// Returns a non-negative integer as one or two 32-bit words, lowest first.
pub(super) fn words(value: u64) -> Vec<u32> {
    let (low, high) = ((value & 0xffff_ffff) as u32, (value >> 32) as u32);
    if high == 0 { vec![low] } else { vec![low, high] }
}

/// Returns the value of NumPy's `SeedSequence(entropy).generate_state(4, uint64)`.
fn seed_state(entropy: &[u32]) -> [u64; POOL] {
    let mut constant = INIT_A;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(MULT_A);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mix = |left: u32, right: u32| {
        let mixed = MIX_LEFT.wrapping_mul(left).wrapping_sub(MIX_RIGHT.wrapping_mul(right));
        mixed ^ mixed >> 16
    };
    let mut pool = [0; POOL];
    for (index, word) in pool.iter_mut().enumerate() {
        *word = hash(entropy.get(index).copied().unwrap_or(0));
    }
    for source in 0..POOL {
        for target in (0..POOL).filter(|target| *target != source) {
            pool[target] = mix(pool[target], hash(pool[source]));
        }
    }
    for word in entropy.iter().skip(POOL) {
        for target in &mut pool {
            *target = mix(*target, hash(*word));
        }
    }
    let mut constant = INIT_B;
    let mut drawn = pool.iter().cycle().map(|word| {
        let value = word ^ constant;
        constant = constant.wrapping_mul(MULT_B);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    });
    let mut next = || drawn.next().unwrap_or(0);
    std::array::from_fn(|_| next() | next() << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected value from NumPy 2.4: `SeedSequence(0).generate_state(4, numpy.uint64)`.
    #[test]
    fn a_seed_grows_as_numpys_does() {
        assert_eq!(
            seed_state(&[0]),
            [
                0xdb2c_d7e7_b0f4_78be,
                0xabf4_641a_2c71_ba49,
                0x20c6_ed6d_9d7b_8d41,
                0x2c40_99de_223c_39d4
            ]
        );
    }

    /// Checks values from NumPy 2.4, of `PCG64(seed).random_raw(3)`.
    #[test]
    fn raw_draws_equal_numpys() {
        let cases = [
            (0, [11_749_869_230_777_074_271, 4_976_686_463_289_251_617, 755_828_109_848_996_024]),
            (1, [9_441_442_522_235_856_127, 17_532_960_557_476_522_086, 2_659_275_481_604_167_885]),
            (
                (1 << 40) + 3,
                [14_271_435_802_380_633_900, 18_370_326_226_487_632_705, 8_728_610_338_774_297_736],
            ),
        ];
        for (seed, expected) in cases {
            let mut generator = Pcg64::seed(seed);
            let found: [u64; 3] = std::array::from_fn(|_| generator.next_u64());
            assert_eq!(found, expected, "seed {seed}");
        }
    }

    /// Expected values from NumPy 2.4: `g = default_rng(0)`, then `g.integers(low, high, count)`.
    #[test]
    fn bounded_integers_equal_numpys() {
        let mut generator = Pcg64::seed(0);
        let mut drawn = |low, high, count| -> Vec<u64> {
            (0..count).map(|_| generator.integers(low, high)).collect()
        };
        assert_eq!(drawn(921, 1128, 5), [1097, 1052, 1026, 976, 984]);
        assert_eq!(drawn(0, 151_643, 3), [6213, 11409, 2506]);
        assert_eq!(drawn(5, 6, 2), [5, 5]);
        assert_eq!(drawn(0, 1 << 32, 2), [752_767_291, 3_492_969_080]);
        assert_eq!(drawn(0, 10, 3), [6, 9, 5]);
    }

    /// Expected values from NumPy 2.4: `default_rng(0).integers(0, 3 * 2**30, 6)`, where one number
    /// in four is rejected, and `default_rng([7, 9]).integers(0, 1000, 5)`.
    #[test]
    fn refused_draws_and_seeds_of_two_numbers_equal_numpys() {
        let mut generator = Pcg64::seed(0);
        let found: [u64; 6] = std::array::from_fn(|_| generator.integers(0, 3 << 30));
        let expected =
            [2_740_052_423, 2_051_797_211, 1_646_485_848, 131_984_958, 242_365_461, 53_239_240];
        assert_eq!(found, expected);
        let mut generator = Pcg64::of_pair(7, 9);
        let found: [u64; 5] = std::array::from_fn(|_| generator.integers(0, 1000));
        assert_eq!(found, [876, 773, 350, 969, 585]);
    }
}
