//! SIMD vectors of 16 f32 lanes, in which every CPU kernel is written, for AVX2, AVX-512 and
//! portable code.
//!
//! A kernel that is generic over [`Lanes`] does the same operations in the same order on each of
//! them. AVX2 and AVX-512 therefore give the same bits; the portable form rounds products before it
//! adds them and differs in the last place.

#![expect(unsafe_code, reason = "loads and stores through pointers that callers vouch for")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

/// Number of lanes of a vector, on every instruction set.
pub(super) const LANES: usize = 16;

/// Instruction set with operations on 16 f32 lanes. Values of an implementing type exist only where
/// the processor has its instructions, which is what makes the methods without `unsafe` sound.
pub(super) trait Lanes: Copy {
    /// Vector of 16 f32.
    type V: Copy;
    /// Vector of 16 words, each with eight 4-bit quantized values.
    type Codes: Copy;

    /// Number of vectors of sums that fit in registers next to a tile's operands.
    const ACCUMULATORS: usize;
    /// Groups of 16 columns that are best decoded side by side when there are few rows.
    const FEW_ROWS_GROUPS: usize;

    /// Returns a vector with `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// Returns `a * b + c`, rounded once where the instruction set has fused multiply-add.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Returns `2^n` for lanes that hold whole numbers from -126 to 127.
    fn exp2_whole(self, n: Self::V) -> Self::V;
    /// Returns the first `n` lanes of `v`, with `fill` in the others.
    fn keep_first(self, v: Self::V, n: usize, fill: f32) -> Self::V;

    /// Loads 16 f32.
    ///
    /// # Safety
    /// Sixteen f32 can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Stores 16 f32.
    ///
    /// # Safety
    /// Sixteen f32 can be written at `to`.
    unsafe fn store(self, to: *mut f32, v: Self::V);
    /// Writes the lowest byte of each lane's bits.
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
    /// Loads 16 E4M3 floats. The bit pattern of NaN yields 480.
    ///
    /// # Safety
    /// Sixteen bytes can be read at `from`.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V;
    /// Loads 16 words of eight 4-bit quantized values.
    ///
    /// # Safety
    /// 64 bytes can be read at `from`.
    unsafe fn load_codes(self, from: *const u8) -> Self::Codes;
    /// Returns the 4-bit value `i` of each word as f32, `i` below 8.
    fn code(self, codes: Self::Codes, i: u32) -> Self::V;
    /// Returns the entries of `table` at the 4-bit value `i` of each word, `i` below 8.
    fn pick(self, codes: Self::Codes, i: u32, table: &[f32; 16]) -> Self::V;

    /// Stores a SIMD vector to an array of 16 f32.
    #[inline(always)]
    fn lower(self, v: Self::V) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array holds sixteen f32.
        unsafe {
            self.store(out.as_mut_ptr(), v);
        }
        out
    }

    /// Loads a SIMD vector from an array of 16 f32.
    #[inline(always)]
    fn lift(self, v: &[f32; LANES]) -> Self::V {
        // SAFETY: the array holds sixteen f32.
        unsafe { self.load(v.as_ptr()) }
    }

    /// Returns the sum of the lanes. Halves are added to halves, so every instruction set adds in
    /// the same order.
    fn sum(self, v: Self::V) -> f32;
    /// Returns the largest lane. A NaN may be lost or kept.
    fn largest(self, v: Self::V) -> f32;

    /// Returns `e^x` to about one unit in the last place. Arguments are clamped to [-87, 88].
    ///
    /// Range reduction and polynomial are those of Cephes' `expf` (Moshier).
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
}
