//! NumPy's legacy `RandomState`, whose sequences NumPy keeps stable: bounded integers, exponential
//! and gamma variates over MT19937 (`legacy-distributions.c`).
//!
//! Logarithms and powers come from a Rust library, because those of C libraries differ in the last
//! bit between machines and the drawn requests must not.

use super::mt19937::Mt19937;

/// NumPy's global generator, in the state after `numpy.random.seed(seed)`.
#[derive(Clone, Debug)]
pub struct NumpyRandom {
    bits: Mt19937,
    /// Second normal variate of a pair, kept for the next call.
    spare: Option<f64>,
}

impl NumpyRandom {
    /// Creates the generator of `numpy.random.seed(seed)`.
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

    /// Gamma variate for a shape below 1: J. H. Ahrens and U. Dieter, Computing 12, 1974.
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

    /// Gamma variate for a shape above 1: G. Marsaglia and W. W. Tsang, ACM TOMS 26(3), 2000.
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

    /// Normal variate by the polar method, which makes two at a time.
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
mod tests {
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
