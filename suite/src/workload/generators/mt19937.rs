//! MT19937 (Mersenne Twister) and the generators over it, bit for bit: CPython's `random.Random`
//! (`Lib/random.py`), and NumPy's legacy `RandomState`, whose sequences NumPy keeps stable: bounded
//! integers, exponential and gamma variates (`legacy-distributions.c`).
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998. Logarithms and
//! powers come from a Rust library, because those of C libraries differ in the last bit between
//! machines and the drawn requests must not.

use super::pcg64::words;

const N: usize = 624;
const M: usize = 397;

/// MT19937 generator, which gives 32 random bits at a time.
#[derive(Clone, Debug)]
pub(super) struct Mt19937 {
    state: Box<[u32; N]>,
    index: usize,
}

impl Mt19937 {
    /// Creates an MT19937 generator from a 32-bit seed, as `init_genrand` does.
    pub(super) fn from_seed(seed: u32) -> Self {
        let mut state = Box::new([0_u32; N]);
        state[0] = seed;
        for i in 1..N {
            let previous = state[i - 1];
            state[i] = 1_812_433_253_u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(u32::try_from(i).unwrap_or(0));
        }
        Self { state, index: N }
    }

    /// Creates an MT19937 generator from a key of at least one 32-bit word, as `init_by_array`
    /// does.
    pub(super) fn from_key(key: &[u32]) -> Self {
        let mut generator = Self::from_seed(19_650_218);
        let state = &mut generator.state;
        let narrow = |index: usize| u32::try_from(index).unwrap_or(0);
        let mut i = 1;
        let mut mix = |factor: u32, added: &dyn Fn(usize) -> u32| {
            let previous = state[i - 1];
            let mixed = (previous ^ (previous >> 30)).wrapping_mul(factor);
            state[i] = (state[i] ^ mixed).wrapping_add(added(i));
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        };
        for (j, word) in key.iter().enumerate().cycle().take(N.max(key.len())) {
            mix(1_664_525, &|_| word.wrapping_add(narrow(j)));
        }
        for _ in 1..N {
            mix(1_566_083_941, &|i| narrow(i).wrapping_neg());
        }
        state[0] = 0x8000_0000;
        generator
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        if self.index == N {
            self.twist();
        }
        let mut y = self.state[self.index];
        self.index += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Returns a number from 0 up to but excluding 1 with 53 random bits, from two 32-bit outputs
    /// of MT19937, as `genrand_res53` does.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
    pub(super) fn next_f64(&mut self) -> f64 {
        let (high, low) = (u64::from(self.next_u32() >> 5), u64::from(self.next_u32() >> 6));
        (high << 26 | low) as f64 / (1_u64 << 53) as f64
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.index = 0;
    }
}

/// Generator of CPython's module `random`, seeded with an integer.
#[derive(Clone, Debug)]
pub struct PythonRandom(Mt19937);

impl PythonRandom {
    /// Creates CPython's generator in the state after `random.seed(seed)`, for a non-negative
    /// integer.
    pub fn seed(seed: u64) -> Self {
        Self(Mt19937::from_key(&words(seed)))
    }

    /// Returns one value of CPython's `Random._randbelow(bound)`, for a bound from 1 to 2^32 - 1.
    /// `random.choice` of a list uses this method with the list's length.
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

    /// Returns the items that CPython's `random.choices(items, k=count)` would, which draws a
    /// fraction for each item instead of using `below`.
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

    /// Shuffles `items` as CPython's `random.shuffle(items)` does. A list of more than 2^32 - 1
    /// items is left as it is; no dataset is that long.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let Ok(bound) = u32::try_from(i + 1) else { return };
            let j = self.below(bound) as usize;
            items.swap(i, j);
        }
    }
}

/// NumPy's global generator, in the state after `numpy.random.seed(seed)`.
#[derive(Clone, Debug)]
pub struct NumpyRandom {
    bits: Mt19937,
    /// Second normal variate of a pair, kept for the next call of the normal distribution; `None`
    /// if there is none.
    spare: Option<f64>,
}

impl NumpyRandom {
    /// Creates NumPy's global generator in the state after `numpy.random.seed(seed)`.
    pub fn seed(seed: u32) -> Self {
        Self { bits: Mt19937::from_seed(seed), spare: None }
    }

    /// Returns one value of `numpy.random.randint(low, high)`, that is, from `[low, high)`.
    ///
    /// A range of one value uses no random bits. The caller ensures `low < high` and a range below
    /// 2^32, beyond which NumPy would use 64 bits.
    pub fn randint(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low < high, "an empty range");
        let range = (high - 1).saturating_sub(low);
        if range == 0 {
            return low;
        }
        let mask = u64::MAX >> range.leading_zeros();
        loop {
            let draw = u64::from(self.bits.next_u32()) & mask;
            if draw <= range {
                return low + draw;
            }
        }
    }

    /// Returns one value of `numpy.random.exponential(1.0)`.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.bits.next_f64())
    }

    /// Returns one value of `numpy.random.gamma(shape, 1.0)`, for a positive shape; shape 1 is the
    /// exponential distribution.
    #[expect(clippy::float_cmp, reason = "the shape is compared as NumPy compares it")]
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape == 1.0 {
            self.exponential()
        } else if shape < 1.0 {
            self.gamma_below_one(shape)
        } else {
            self.gamma_above_one(shape)
        }
    }

    /// Returns a gamma variate for a shape below 1, by the method of J. H. Ahrens and U. Dieter,
    /// Computing 12, 1974.
    fn gamma_below_one(&mut self, shape: f64) -> f64 {
        loop {
            let uniform = self.bits.next_f64();
            let bound = self.exponential();
            if uniform <= 1.0 - shape {
                let found = libm::pow(uniform, 1.0 / shape);
                if found <= bound {
                    return found;
                }
            } else {
                let tail = -libm::log((1.0 - uniform) / shape);
                let found = libm::pow(1.0 - shape + shape * tail, 1.0 / shape);
                if found <= bound + tail {
                    return found;
                }
            }
        }
    }

    /// Returns a gamma variate for a shape above 1, by the method of G. Marsaglia and W. W. Tsang,
    /// ACM TOMS 26(3), 2000.
    fn gamma_above_one(&mut self, shape: f64) -> f64 {
        let scale = shape - 1.0 / 3.0;
        let step = 1.0 / (9.0 * scale).sqrt();
        loop {
            let (normal, base) = loop {
                let normal = self.normal();
                let base = 1.0 + step * normal;
                if base > 0.0 {
                    break (normal, base);
                }
            };
            let cube = base * base * base;
            let uniform = self.bits.next_f64();
            let square = normal * normal;
            let surely = uniform < 1.0 - 0.0331 * square * square;
            if surely || libm::log(uniform) < 0.5 * square + scale * (1.0 - cube + libm::log(cube))
            {
                return scale * cube;
            }
        }
    }

    /// Returns a standard normal variate by the polar method, which gives two at a time.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let first = 2.0 * self.bits.next_f64() - 1.0;
            let second = 2.0 * self.bits.next_f64() - 1.0;
            let square = first * first + second * second;
            if square < 1.0 && square > 0.0 {
                let scale = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(scale * first);
                return scale * second;
            }
        }
    }
}

#[cfg(test)]
mod python_tests {
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

#[cfg(test)]
mod numpy_tests {
    use super::*;

    #[test]
    fn first_draws_equal_numpys() {
        let mut numpy = NumpyRandom::seed(1);
        let draws: Vec<u32> = (0..3).map(|_| numpy.bits.next_u32()).collect();
        assert_eq!(draws, [1_791_095_845, 4_282_876_139, 3_093_770_124]);
    }

    #[test]
    fn bounded_integers_equal_numpys_legacy_ones() {
        let mut numpy = NumpyRandom::seed(1);
        let draws: Vec<u64> = (0..5).map(|_| numpy.randint(512, 1025)).collect();
        assert_eq!(draws, [549, 747, 584, 656, 641]);
        let mut numpy = NumpyRandom::seed(0);
        let draws: Vec<u64> = (0..4).map(|_| numpy.randint(0, 49_152)).collect();
        assert_eq!(draws, [2732, 43567, 42613, 45891]);
    }

    #[test]
    fn a_range_of_one_value_consumes_no_draw() {
        let mut numpy = NumpyRandom::seed(1);
        assert_eq!(numpy.randint(1024, 1025), 1024);
        assert_eq!(numpy.bits.next_u32(), 1_791_095_845);
    }

    /// Expected values from NumPy 2.4: `numpy.random.seed(1)`, then one call of
    /// `numpy.random.exponential(1.0)` or `numpy.random.gamma(shape, 1.0)` for each value.
    #[test]
    fn exponential_and_gamma_variates_equal_numpys_legacy_ones() {
        type Case = (f64, &'static [f64]);
        let cases: [Case; 3] = [
            (
                1.0,
                &[
                    0.539_605_837_259_185_4,
                    1.274_125_253_013_304_3,
                    0.000_114_381_358_643_085_92,
                    0.360_012_754_853_919,
                ],
            ),
            (
                0.5,
                &[
                    0.173_907_352_406_153_65,
                    1.308_159_884_267_618e-8,
                    0.021_537_291_489_524_404,
                    0.034_692_866_342_454_644,
                    0.157_424_428_607_385_34,
                    0.175_724_040_905_814_14,
                ],
            ),
            (
                4.0,
                &[
                    7.739_446_914_739_497,
                    2.615_562_665_057_887,
                    2.745_433_350_512_604,
                    1.971_949_565_960_772,
                    8.125_257_778_213_568,
                    2.393_680_567_462_246_8,
                ],
            ),
        ];
        for (shape, expected) in cases {
            let mut numpy = NumpyRandom::seed(1);
            for value in expected {
                let found = numpy.gamma(shape);
                // The last bit depends on the C library that NumPy used.
                assert!((found - value).abs() <= value * 1e-14, "{shape}: {found} for {value}");
            }
        }
    }
}
