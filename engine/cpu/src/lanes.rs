//! SIMD vectors of 16 lanes and the operations on them, with which CPU kernels are written once for
//! all instruction sets: [`Lanes`] for f32, [`Pairs`] for bf16 dot products, [`Dots`] for int8 dot
//! products.
//!
//! A kernel that is generic over one of them does the same operations in the same order on every
//! instruction set. For f32, AVX2 and AVX-512 give the same bits; the portable form rounds products
//! before it adds them and differs in the last place. For bf16, all instruction sets give the same
//! sums, except for numbers below the smallest normal f32, which AVX-512 BF16 flushes to zero. For
//! int8, all give the same sums.

#![expect(unsafe_code, reason = "loads and stores through pointers that callers vouch for")]

/// Number of lanes of a SIMD vector, which is the same on every instruction set.
pub(super) const LANES: usize = 16;

/// Values of the 16 floats of type E2M1 by bit pattern, doubled so that they are whole numbers.
pub(super) const E2M1_DOUBLED: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Part of a kernel that is compiled as a function of its own, so that the code around it does not
/// decide which of its values stay in registers.
pub(super) trait Part<L> {
    type Output;

    /// Computes this part of the kernel. Implementations must be `#[inline(always)]`.
    fn run(self, lanes: L) -> Self::Output;
}

/// Instruction set with operations on 16 f32 lanes. Values of an implementing type exist only where
/// the processor has its instructions, which is what makes the methods without `unsafe` sound.
pub(super) trait Lanes: Copy {
    /// SIMD vector of 16 f32 lanes.
    type V: Copy;
    /// Vector of 16 words of 32 bits, each with eight 4-bit quantized values.
    type Words: Copy;

    /// Number of vectors of f32 accumulators that fit in registers next to a tile's operands.
    const ACCUMULATORS: usize;
    /// Largest number of 16-column groups that the f32 GEMM decodes side by side when there are few
    /// rows.
    const FEW_ROWS_GROUPS: usize;

    /// Runs a part of a kernel as a function of its own, compiled for the instruction set.
    fn call<P: Part<Self>>(self, part: P) -> P::Output;
    /// Returns a SIMD vector with `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// Returns `a * b + c` of each lane, rounded once where the instruction set has fused
    /// multiply-add, else after the product too.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `2^n` of each lane; lanes hold whole numbers from -126 to 127.
    fn exp2_whole(self, n: Self::V) -> Self::V;
    /// Returns a vector with the first `n` lanes of `v` and `fill` in the others.
    fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V;

    /// Loads a vector of 16 f32 from `from`.
    ///
    /// # Safety
    /// Sixteen f32 can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Stores a vector of 16 f32 to `to`.
    ///
    /// # Safety
    /// Sixteen f32 can be written at `to`.
    unsafe fn store(self, to: *mut f32, v: Self::V);
    /// Writes the lowest byte of each f32 lane's bits to `to`, 16 bytes.
    ///
    /// # Safety
    /// Sixteen bytes can be written at `to`.
    unsafe fn store_low_bytes(self, to: *mut u8, v: Self::V);
    /// Loads 16 f16 and converts them to f32.
    ///
    /// # Safety
    /// Sixteen f16 can be read at `from`.
    unsafe fn load_f16(self, from: *const u16) -> Self::V;
    /// Converts 16 f32 to the nearest f16 and stores them.
    ///
    /// # Safety
    /// Sixteen f16 can be written at `to`.
    unsafe fn store_f16(self, to: *mut u16, v: Self::V);
    /// Loads 16 bf16 and converts them to f32.
    ///
    /// # Safety
    /// Sixteen bf16 can be read at `from`.
    unsafe fn load_bf16(self, from: *const u16) -> Self::V;
    /// Loads 16 signed bytes and converts them to f32.
    ///
    /// # Safety
    /// Sixteen bytes can be read at `from`.
    unsafe fn load_i8(self, from: *const i8) -> Self::V;
    /// Loads 16 E4M3 floats and converts them to f32. The bit patterns of NaN yield 480 and -480.
    ///
    /// # Safety
    /// Sixteen bytes can be read at `from`.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V;
    /// Loads 16 words of 32 bits, each with eight 4-bit quantized values.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn load_words(self, from: *const u8) -> Self::Words;
    /// Returns 4-bit value `i`, below 8, of each word as f32, from 0 to 15.
    fn nibble(self, words: Self::Words, i: u32) -> Self::V;
    /// Returns twice the E2M1 float that is 4-bit value `i`, below 8, of each word.
    fn doubled_e2m1(self, words: Self::Words, i: u32) -> Self::V;

    /// Returns the 16 lanes of a vector as an array.
    #[inline(always)]
    fn lower(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds sixteen f32.
        unsafe {
            self.store(out.as_mut_ptr(), v);
        }
        out
    }

    /// Returns a vector with the 16 numbers of an array as its lanes.
    #[inline(always)]
    fn lift(self, v: &[f32; LANES]) -> Self::V {
        // SAFETY: the array holds sixteen f32.
        unsafe { self.load(v.as_ptr()) }
    }

    /// Returns the sum of the vector's lanes. Halves are added to halves, so every instruction set
    /// adds in the same order.
    fn sum(self, v: Self::V) -> f32;
    /// Returns the largest lane of the vector. A NaN may be lost or kept.
    fn largest(self, v: Self::V) -> f32;

    /// Returns `e^x` of each lane to about one unit in the last place. Arguments are clamped to
    /// [-87, 88].
    ///
    /// Range reduction and polynomial of the exponential are those of Cephes' `expf` (Moshier).
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let x = self.min(self.max(x, self.splat(-87.0)), self.splat(88.0));
        // Adding 1.5 * 2^23 leaves a whole number in the low bits: rounding by one addition.
        let magic = self.splat(12_582_912.0);
        let scaled = self.fma(x, self.splat(std::f32::consts::LOG2_E), magic);
        let n = self.sub(scaled, magic);
        let r = self.fma(n, self.splat(-0.693_359_4), x);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        let p = self.fma(p, self.mul(r, r), self.add(r, self.splat(1.0)));
        self.mul(p, self.exp2_whole(n))
    }

    /// Returns `2^x` of each lane to about one unit in the last place. Arguments are clamped to
    /// [-126, 127].
    ///
    /// The polynomial is that of Cephes' `exp2f` (Moshier).
    #[inline(always)]
    fn exp2(self, x: Self::V) -> Self::V {
        let x = self.min(self.max(x, self.splat(-126.0)), self.splat(127.0));
        // The same rounding as in `exp`.
        let magic = self.splat(12_582_912.0);
        let n = self.sub(self.add(x, magic), magic);
        let r = self.sub(x, n);
        let mut p = self.splat(1.535_336_2e-4);
        for c in
            [1.339_887_5e-3, 9.618_437e-3, 5.550_332_5e-2, 0.240_226_48, std::f32::consts::LN_2]
        {
            p = self.fma(p, r, self.splat(c));
        }
        self.mul(self.fma(p, r, self.splat(1.0)), self.exp2_whole(n))
    }
}

/// Number of steps of k that one bf16 dot product multiplies and adds: two.
pub(super) const PAIR: usize = 2;
/// Number of bytes of the bf16 weights of one pair of k and 16 columns.
pub(super) const PAIR_BYTES: usize = PAIR * LANES * size_of::<u16>();

/// Bits, as bf16, of the eight smallest E4M3 floats that are not negative: zero and the subnormal
/// ones.
pub(super) const E4M3_SMALL: [u16; 8] = [0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60];
/// Difference between the exponent biases of bf16 and E4M3, as the bits of a bf16.
pub(super) const E4M3_REBIAS: u16 = 120 << 7;

/// Instruction set with dot products of bf16 pairs on 16 lanes. Values of an implementing type
/// exist only where the processor has its instructions.
pub(super) trait Pairs: Copy {
    type Lanes: Lanes;
    /// bf16 weights of two steps of k for 16 columns.
    type Weights: Copy;
    /// bf16 activations of two steps of k of one row, broadcast to all 16 columns.
    type Row: Copy;

    /// Largest number of rows of a bf16 micro-kernel tile whose accumulators fit in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// Returns `sums` plus the bf16 products of two steps of k.
    fn dot(
        self,
        sums: <Self::Lanes as Lanes>::V,
        weights: Self::Weights,
        row: Self::Row,
    ) -> <Self::Lanes as Lanes>::V;
    /// Rounds 16 f32 to the nearest bf16, ties to even, and returns the bits. AVX-512 BF16 rounds
    /// numbers below the smallest normal f32 to zero.
    fn round(self, x: &[f32; LANES]) -> [u16; LANES];

    /// Loads the bf16 weights of two steps of k for 16 columns.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// Loads the bf16 activations of two steps of k of a row and broadcasts them to all 16 columns.
    ///
    /// # Safety
    /// Two bf16 can be read at `from`.
    unsafe fn row(self, from: *const u16) -> Self::Row;
    /// Widens the E4M3 floats of two steps of k for 16 columns to bf16, which is exact. The bit
    /// patterns of NaN yield 480 and -480.
    fn widen(self, values: &[u8; PAIR * LANES], to: &mut [u8; PAIR_BYTES]);
}

/// Number of steps of k that one int8 dot product multiplies and adds: four.
pub(super) const STEP: usize = 4;
/// Number of bytes of the int8 weights of four steps of k, one dot product, and 16 columns.
pub(super) const STEP_BYTES: usize = STEP * LANES;
/// Number of steps of k in a block of 4-, 5- or 6-bit weights.
pub(super) const BLOCK: usize = 32;
/// Number of bytes at the beginning of a block of 4-, 5- or 6-bit weights that say how they are
/// widened: two times `[16]` numbers of 16 bits, one for each column.
pub(super) const HEAD_BYTES: usize = 4 * LANES;

/// Returns the number of bytes of a block of `bits`-bit weights of 16 columns: its head, then
/// `bits` times `[16]` words of 32 bits.
pub(super) const fn block_bytes(bits: usize) -> usize {
    HEAD_BYTES + BLOCK * LANES * bits / 8
}

/// Returns the index, among the eight 4-bit values of a word, of the weight of step `k`, below 8.
/// The order lets one mask of the shifted word leave the values of steps 0 and 2, or 1 and 3, in
/// the 16-bit halves of each lane.
pub(super) fn nibble(k: usize) -> usize {
    k / 4 * 2 + k % 2 + k % 4 / 2 * 4
}

/// Instruction set with int8 dot products on 16 lanes. Values of an implementing type exist only
/// where the processor has its instructions.
pub(super) trait Dots: Copy {
    type Lanes: Lanes;
    /// int8 weights of four steps of k for 16 columns.
    type Weights: Copy;
    /// int8 activations of four steps of k of one row, broadcast to all 16 columns.
    type Row: Copy;
    /// Accumulators of int8 dot products: sixteen i32, one per output column.
    type Sums: Copy;
    /// 32 words of 16 bits of a block of 5- or 6-bit weights, two for each of 16 columns.
    type Halves: Copy;

    /// Largest number of rows of an int8 micro-kernel tile whose accumulators fit in registers.
    const ROWS: usize;

    fn lanes(self) -> Self::Lanes;
    /// Returns initial accumulators of int8 dot products, which correct for the offset that makes
    /// weights unsigned: `start` in every lane, or zeros on instruction sets that convert weights
    /// to signed bytes.
    fn start(self, start: i32) -> Self::Sums;
    /// Returns `sums` plus the int8 products of four steps of k.
    fn dot(self, sums: Self::Sums, weights: Self::Weights, row: Self::Row) -> Self::Sums;
    fn floats(self, sums: Self::Sums) -> <Self::Lanes as Lanes>::V;

    /// Loads the int8 weights of four steps of k for 16 columns.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn weights(self, from: *const u8) -> Self::Weights;
    /// Loads the int8 activations of four steps of k of a row and broadcasts them to all 16
    /// columns.
    ///
    /// # Safety
    /// Four bytes can be read at `from`.
    unsafe fn row(self, from: *const i8) -> Self::Row;
    /// Widens a block of 4-bit weights of 16 columns to bytes: value q becomes the high byte of
    /// `factor * q + addend`. The block's head is the factors and the addends; its words have eight
    /// values each in the order of [`nibble`]. The bytes of each step (4 k) are written `stride`
    /// bytes after those of the step before it.
    ///
    /// # Safety
    /// A block of 4-bit weights can be read at `from`, and eight steps of 64 bytes, `stride` apart,
    /// written at `to`.
    unsafe fn widen(self, from: *const u8, to: *mut u8, stride: usize);
    /// Widens a block of 4-bit weights of 16 columns to the bytes that `table` has for its values,
    /// whatever its head is. Its words have eight values each: byte `i` of a word has the value of
    /// step `i` in its low half and that of step `i + 4` in its high half. The bytes of each step
    /// (4 k) are written `stride` bytes after those of the step before it.
    ///
    /// # Safety
    /// As for [`Dots::widen`].
    unsafe fn look_up(self, table: &[u8; LANES], from: *const u8, to: *mut u8, stride: usize);

    /// Loads 32 words of 16 bits.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn halves(self, from: *const u8) -> Self::Halves;
    /// Loads 16 numbers of 16 bits, one per column, into both words of their columns.
    ///
    /// # Safety
    /// 32 bytes can be read at `from`.
    unsafe fn head(self, from: *const u8) -> Self::Halves;
    /// Returns `x` in all 32 words.
    fn splat(self, x: i16) -> Self::Halves;
    fn shift_left(self, halves: Self::Halves, bits: i32) -> Self::Halves;
    fn and(self, a: Self::Halves, b: Self::Halves) -> Self::Halves;
    /// Returns the bits of `a` where `mask` is set, and those of `b` elsewhere.
    fn select(self, mask: Self::Halves, a: Self::Halves, b: Self::Halves) -> Self::Halves;
    /// Returns the upper 16 bits of each signed product `a * b`, plus `c`; the sum must be within 16
    /// bits.
    fn mul_high_add(self, a: Self::Halves, b: Self::Halves, c: Self::Halves) -> Self::Halves;
    /// Writes the weights of four steps of k for 16 columns as bytes. `even` has the first and the
    /// third step, `odd` the second and the fourth, each with six bits of fraction, which are cut.
    ///
    /// # Safety
    /// 64 bytes can be written at `to`.
    unsafe fn store_step(self, to: *mut u8, even: Self::Halves, odd: Self::Halves);
}
