//! Pages of keys and values as the kernels have them, and codes of eight bits.

use super::*;
use crate::device::cuda::launch::attention::PageType;

/// The value of an e4m3 code, by its definition.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (0, _) => mantissa / 512.0,
        (15, 7) => f32::NAN,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The code nearest to `x`, the even one of two; 448 for what is larger.
pub(super) fn nearest_e4m3(x: f32) -> u8 {
    let size = x.abs().min(448.0);
    let distance = |code: &u8| (e4m3(*code) - size).abs();
    let nearer = |a: &u8, b: &u8| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)));
    let code = (0..=0x7e).min_by(nearer).unwrap_or_default();
    code | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Where the keys and values of one layer lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages {
    pub page_type: PageType,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub page_tokens: usize,
    /// Layers that a page holds; the tests use the first.
    pub layers: usize,
}

impl Pages {
    pub(super) fn stride(&self) -> usize {
        2 * self.kv_heads * self.layers
    }

    pub(super) fn bytes(&self, pages: usize) -> usize {
        let element = if self.page_type == PageType::Bf16 { 2 } else { 1 };
        pages * self.stride() * self.page_tokens * self.head_dim * element
    }

    /// The first element of a token's key, or of its value.
    pub(super) fn at(&self, slot: usize, kv_head: usize, is_value: bool) -> usize {
        let (page, token) = (slot / self.page_tokens, slot % self.page_tokens);
        let block = page * self.stride() + 2 * kv_head + usize::from(is_value);
        (block * self.page_tokens + token) * self.head_dim
    }

    /// Writes a vector as the pages' type has it.
    pub(super) fn write(&self, bytes: &mut [u8], at: usize, values: &[f32]) {
        for (i, x) in values.iter().enumerate() {
            match self.page_type {
                PageType::E4m3 => bytes[at + i] = nearest_e4m3(*x),
                PageType::Bf16 => {
                    let code = bf16::from_f32(*x).to_bits().to_le_bytes();
                    bytes[2 * (at + i)..][..2].copy_from_slice(&code);
                }
            }
        }
    }

    /// Reads a head's vector.
    pub(super) fn read(&self, bytes: &[u8], at: usize) -> Vec<f32> {
        match self.page_type {
            PageType::E4m3 => bytes[at..][..self.head_dim].iter().map(|code| e4m3(*code)).collect(),
            PageType::Bf16 => widen(&bytes[2 * at..][..2 * self.head_dim]),
        }
    }
}

#[test]
fn codes_of_eight_bits_are_those_of_their_definition() {
    assert_eq!((e4m3(0x7e), e4m3(0x08), e4m3(0x01)), (448.0, 0.015_625, 0.001_953_125));
    for code in (0..=0xff).filter(|code| code & 0x7f != 0x7f) {
        assert_eq!(nearest_e4m3(e4m3(code)), code);
    }
    assert_eq!(nearest_e4m3(1e9), 0x7e);
}
