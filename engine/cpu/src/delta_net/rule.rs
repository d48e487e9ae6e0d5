//! Delta rule of gated DeltaNet over consecutive tokens of one value head; knows nothing of
//! sequences, convolution and norm.

#![expect(unsafe_code, reason = "strided columns of a matrix")]

use crate::lanes::{LANES, Lanes, Part};

/// Gates of the delta rule for one token and one value head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gates {
    /// Factor of the previous recurrent state for this token, from 0 to 1.
    pub decay: f32,
    /// Fraction, from 0 to 1, by which the value that the recurrent state has for the key is
    /// replaced by the token's value.
    pub beta: f32,
}

/// Inputs of the delta rule (gated DeltaNet) for consecutive tokens of one value head, except their
/// values.
pub(super) struct Tokens<'a> {
    /// Queries, scaled to the L2 norm `1 / sqrt(key dim)`, `[tokens][key dim]`, padded.
    pub queries: &'a [f32],
    /// Keys, scaled to the L2 norm 1, `[tokens][key dim]`, padded.
    pub keys: &'a [f32],
    pub key_dim: usize,
    /// Gates of each token.
    pub gates: &'a [Gates],
    /// Number of groups of 16 columns of the recurrent state matrix.
    pub groups: usize,
}

impl Tokens<'_> {
    /// Applies the delta rule to the recurrent state matrix S, token by token: `S = decay S; S +=
    /// key (value - S^T key)^T beta; result = S^T query`. The results replace the values.
    #[inline(always)]
    pub(super) fn update<L: Lanes>(
        &self,
        lanes: L,
        matrix: &mut [[f32; LANES]],
        values: &mut [[f32; LANES]],
    ) {
        let mut first = 0;
        // Several groups side by side hide the latency of the sums. The order of additions within a
        // column stays the same, and so do the bits. A group has three vectors in registers: its
        // change of the state, and its products with a query and with a key.
        while first < self.groups {
            first += match (self.groups - first).min(L::ACCUMULATORS / 3) {
                4.. => self.columns::<L, 4>(lanes, first, matrix, values),
                2..4 => self.columns::<L, 2>(lanes, first, matrix, values),
                _ => self.columns::<L, 1>(lanes, first, matrix, values),
            };
        }
    }

    /// Applies the delta rule to `G` groups of columns from group `first` on, and returns `G`.
    #[inline(always)]
    fn columns<L: Lanes, const G: usize>(
        &self,
        lanes: L,
        first: usize,
        matrix: &mut [[f32; LANES]],
        values: &mut [[f32; LANES]],
    ) -> usize {
        let matrix = &mut matrix[first * self.key_dim..][..G * self.key_dim];
        lanes.call(Columns::<G> { tokens: self, matrix, values: &mut values[first..] });
        G
    }

    #[inline(always)]
    fn query(&self, token: usize) -> &[f32] {
        &self.queries[token * self.key_dim.next_multiple_of(LANES)..][..self.key_dim]
    }

    #[inline(always)]
    fn key(&self, token: usize) -> &[f32] {
        &self.keys[token * self.key_dim.next_multiple_of(LANES)..][..self.key_dim]
    }
}

/// `G` groups of 16 columns of a recurrent state matrix, to which the delta rule is applied for all
/// tokens of a block.
struct Columns<'a, const G: usize> {
    tokens: &'a Tokens<'a>,
    /// Columns of the recurrent state matrix, `[G][key dim][16]`.
    matrix: &'a mut [[f32; LANES]],
    /// Values of the first token from these columns on; those of each further token begin as many
    /// vectors later as the whole matrix has groups of columns.
    values: &'a mut [[f32; LANES]],
}

impl<L: Lanes, const G: usize> Part<L> for Columns<'_, G> {
    type Output = ();

    /// Passes over the columns once for each token, and once before the first one: a pass that
    /// updates the state also reads the value that the new state has for the next token's key.
    #[inline(always)]
    fn run(mut self, lanes: L) {
        let tokens = self.tokens;
        let mut known = self.read(lanes, tokens.key(0));
        for (token, gates) in tokens.gates.iter().enumerate() {
            let (decay, beta) = (lanes.splat(gates.decay), lanes.splat(gates.beta));
            let at = token * tokens.groups;
            let mut delta = known;
            for (delta, value) in delta.iter_mut().zip(&self.values[at..at + G]) {
                *delta = lanes.mul(lanes.sub(lanes.lift(value), lanes.mul(decay, *delta)), beta);
            }
            let results;
            [results, known] = if token + 1 < tokens.gates.len() {
                self.update::<L, true>(lanes, token, delta)
            } else {
                self.update::<L, false>(lanes, token, delta)
            };
            for (value, result) in self.values[at..at + G].iter_mut().zip(&results) {
                *value = lanes.lower(*result);
            }
        }
    }
}

impl<const G: usize> Columns<'_, G> {
    /// Returns the products of the columns with a key.
    #[inline(always)]
    fn read<L: Lanes>(&self, lanes: L, key: &[f32]) -> [L::V; G] {
        let (columns, key_dim) = (self.matrix.as_ptr(), key.len());
        assert_eq!(self.matrix.len(), G * key_dim, "a row for each element of the key");
        let mut known = [lanes.splat(0.0); G];
        for (row, key) in key.iter().enumerate() {
            let key = lanes.splat(*key);
            for (g, known) in known.iter_mut().enumerate() {
                // SAFETY: `row` is below `key_dim`, and there are `G` times as many vectors.
                let s = unsafe { lanes.load(columns.add(g * key_dim + row).cast()) };
                *known = lanes.fma(s, key, *known);
            }
        }
        known
    }

    /// Updates the columns for a token, whose change of the state is its key times `delta`. Returns
    /// the products of the new columns with the token's query and, if `HAS_NEXT`, with the key of
    /// the next token; else zeros.
    #[inline(always)]
    fn update<L: Lanes, const HAS_NEXT: bool>(
        &mut self,
        lanes: L,
        token: usize,
        delta: [L::V; G],
    ) -> [[L::V; G]; 2] {
        let tokens = self.tokens;
        let (columns, key_dim) = (self.matrix.as_mut_ptr(), tokens.key_dim);
        assert_eq!(self.matrix.len(), G * key_dim, "a row for each element of a key");
        let decay = lanes.splat(tokens.gates[token].decay);
        let next_key = tokens.key(token + usize::from(HAS_NEXT));
        let inputs = tokens.key(token).iter().zip(tokens.query(token)).zip(next_key);
        let (mut results, mut known) = ([lanes.splat(0.0); G], [lanes.splat(0.0); G]);
        for (row, ((key, query), next_key)) in inputs.enumerate() {
            let key = lanes.splat(*key);
            let (query, next_key) = (lanes.splat(*query), lanes.splat(*next_key));
            // All groups are loaded before any is stored: their addresses differ by a multiple of
            // the page size for keys of 128 elements, where a load can wait for an earlier store.
            // SAFETY: `row` is below `key_dim`, and there are `G` times as many vectors.
            let state: [L::V; G] = std::array::from_fn(|g| unsafe {
                lanes.load(columns.add(g * key_dim + row).cast::<f32>())
            });
            for (g, s) in state.iter().enumerate() {
                let s = lanes.fma(key, delta[g], lanes.mul(decay, *s));
                results[g] = lanes.fma(s, query, results[g]);
                if HAS_NEXT {
                    known[g] = lanes.fma(s, next_key, known[g]);
                }
                // SAFETY: as above.
                unsafe { lanes.store(columns.add(g * key_dim + row).cast(), s) };
            }
        }
        [results, known]
    }
}
