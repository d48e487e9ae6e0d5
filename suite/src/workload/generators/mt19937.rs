//! MT19937 (Mersenne Twister), the generator under CPython's `random` and NumPy's `RandomState`.
//!
//! Source: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998.

const N: usize = 624;
const M: usize = 397;

/// MT19937 generator, with 32 random bits for each number.
#[derive(Clone, Debug)]
pub(super) struct Mt19937 {
    state: Box<[u32; N]>,
    index: usize,
}

impl Mt19937 {
    /// Creates a generator from a 32-bit seed, as `init_genrand` does.
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

    /// Creates a generator from a key of at least one 32-bit word, as `init_by_array` does.
    pub(super) fn from_key(key: &[u32]) -> Self {
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

    /// Returns a number from 0 up to but excluding 1 with 53 random bits, made of two 32-bit
    /// numbers, as `genrand_res53` does.
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
