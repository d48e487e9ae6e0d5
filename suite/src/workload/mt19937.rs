//! MT19937 as CPython's `random` and NumPy's legacy `RandomState` drive it, bit for bit.
//!
//! The published numbers of the field were drawn by these two generators; a suite that wants the
//! same requests must draw the same bits. Knows nothing of workloads.
//!
//! Sources: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998;
//! `Lib/random.py` of CPython for `shuffle` and `randbelow`; `legacy` bounded integers of NumPy.

const N: usize = 624;
const M: usize = 397;

/// The generator itself: 32 bits a draw.
#[derive(Clone, Debug)]
struct Mt19937 {
    state: Box<[u32; N]>,
    index: usize,
}

impl Mt19937 {
    /// `init_genrand`: one 32-bit seed.
    fn from_seed(seed: u32) -> Self {
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

    /// `init_by_array`: a key of at least one word.
    fn from_key(key: &[u32]) -> Self {
        let mut generator = Self::from_seed(19_650_218);
        let state = &mut generator.state;
        let (mut i, mut j) = (1, 0);
        for _ in 0..N.max(key.len()) {
            let previous = state[i - 1];
            let mixed = (previous ^ (previous >> 30)).wrapping_mul(1_664_525);
            let position = u32::try_from(j).unwrap_or(0);
            state[i] = (state[i] ^ mixed).wrapping_add(key[j]).wrapping_add(position);
            i += 1;
            j = (j + 1) % key.len();
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        for _ in 1..N {
            let previous = state[i - 1];
            let mixed = (previous ^ (previous >> 30)).wrapping_mul(1_566_083_941);
            state[i] = (state[i] ^ mixed).wrapping_sub(u32::try_from(i).unwrap_or(0));
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        state[0] = 0x8000_0000;
        generator
    }

    fn next_u32(&mut self) -> u32 {
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

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if y & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.index = 0;
    }
}

/// CPython's `random.Random`, seeded with an integer.
#[derive(Clone, Debug)]
pub struct PythonRandom(Mt19937);

impl PythonRandom {
    /// `random.seed(seed)` with a non-negative integer.
    #[must_use]
    pub fn seed(seed: u64) -> Self {
        let low = (seed & 0xffff_ffff) as u32;
        let high = (seed >> 32) as u32;
        let key: &[u32] = if high == 0 { &[low] } else { &[low, high] };
        Self(Mt19937::from_key(key))
    }

    /// `Random._randbelow(bound)` for a bound from 1 to 2^32 - 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0, "nothing lies below zero");
        let bits = u32::BITS - bound.leading_zeros();
        loop {
            let draw = self.0.next_u32() >> (u32::BITS - bits);
            if draw < bound {
                return draw;
            }
        }
    }

    /// `random.shuffle(items)`. Lists beyond 2^32 - 1 items are not shuffled further: no data set
    /// is that long.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let Ok(bound) = u32::try_from(i + 1) else { return };
            let j = self.below(bound) as usize;
            items.swap(i, j);
        }
    }
}

/// NumPy's legacy global generator, as `numpy.random.seed(seed)` leaves it.
#[derive(Clone, Debug)]
pub struct NumpyRandom(Mt19937);

impl NumpyRandom {
    /// `numpy.random.seed(seed)`.
    #[must_use]
    pub fn seed(seed: u32) -> Self {
        Self(Mt19937::from_seed(seed))
    }

    /// One value of `numpy.random.randint(low, high)`, that is from `[low, high)`.
    ///
    /// A range of one value consumes no draw. The caller sees to `low < high`, and to a range
    /// below 2^32, beyond which NumPy draws 64 bits.
    pub fn randint(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low < high, "an empty range");
        let range = (high - 1).saturating_sub(low);
        if range == 0 {
            return low;
        }
        let mask = u64::MAX >> range.leading_zeros();
        loop {
            let draw = u64::from(self.0.next_u32()) & mask;
            if draw <= range {
                return low + draw;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::canonical::sha256_hex;

    #[test]
    fn first_draws_equal_cpythons_and_numpys() {
        let mut python = PythonRandom::seed(1);
        let draws: Vec<u32> = (0..3).map(|_| python.0.next_u32()).collect();
        assert_eq!(draws, [577_090_037, 2_444_712_010, 3_639_700_191]);
        let mut numpy = NumpyRandom::seed(1);
        let draws: Vec<u32> = (0..3).map(|_| numpy.0.next_u32()).collect();
        assert_eq!(draws, [1_791_095_845, 4_282_876_139, 3_093_770_124]);
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

    #[test]
    fn bounded_integers_equal_numpys_legacy_ones() {
        let mut numpy = NumpyRandom::seed(1);
        let draws: Vec<u64> = (0..5).map(|_| numpy.randint(512, 1025)).collect();
        assert_eq!(draws, [549, 747, 584, 656, 641]);
    }

    #[test]
    fn a_range_of_one_value_consumes_no_draw() {
        let mut numpy = NumpyRandom::seed(1);
        assert_eq!(numpy.randint(1024, 1025), 1024);
        assert_eq!(numpy.0.next_u32(), 1_791_095_845);
    }
}
