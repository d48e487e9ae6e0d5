//! Reference for the layout of KV pages, and for the FP8 format e4m3, used by other tests.

use super::*;
use crate::launch::attention::PageType;

/// Returns the value of an e4m3 number by the format's definition.
pub(super) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (0, _) => mantissa / 512.0,
        (15, 7) => f32::NAN,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// Returns the e4m3 number nearest to `x`, ties to even; larger magnitudes become 448.
pub(super) fn nearest_e4m3(x: f32) -> u8 {
    let size = x.abs().min(448.0);
    let distance = |code: &u8| (e4m3(*code) - size).abs();
    let nearer = |a: &u8, b: &u8| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)));
    let code = (0..=0x7e).min_by(nearer).unwrap_or_default();
    code | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Shape of a paged KV cache, from which the location of each element follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages {
    pub page_type: PageType,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub page_tokens: usize,
    /// Number of layers that a KV page has keys and values of; the tests use the first.
    pub layers: usize,
}

impl Pages {
    pub(super) fn stride(&self) -> usize {
        2 * self.kv_heads * self.layers
    }

    pub(super) fn bytes(&self, pages: usize) -> usize {
        pages * self.stride() * self.page_tokens * self.head_dim * self.element_bytes()
    }

    /// Returns the offset in bytes of element `i` of a token's key, or of its value, in the KV
    /// cache. Rows consist of 16-byte pieces in panels of up to eight, swizzled so that the pieces
    /// of one column of eight rows are in different banks.
    pub(super) fn at(&self, slot: usize, (kv_head, is_value): (usize, bool), i: usize) -> usize {
        let (page, token) = (slot / self.page_tokens, slot % self.page_tokens);
        let block = page * self.stride() + 2 * kv_head + usize::from(is_value);
        let row_bytes = self.head_dim * self.element_bytes();
        let (panel_bytes, byte) = (row_bytes.min(128), i * self.element_bytes());
        let (panel, in_row) = (byte / panel_bytes, byte % panel_bytes);
        let lines = token * panel_bytes / 128;
        let piece = (in_row / 16) ^ (lines % (panel_bytes / 16));
        let row = panel * self.page_tokens + token;
        block * self.page_tokens * row_bytes + row * panel_bytes + piece * 16 + in_row % 16
    }

    fn element_bytes(&self) -> usize {
        if self.page_type == PageType::Bf16 { 2 } else { 1 }
    }

    /// Writes the key or value of a token and head to the KV cache, converted to the type of the
    /// pages.
    pub(super) fn write(&self, bytes: &mut [u8], slot: usize, head: (usize, bool), values: &[f32]) {
        for (i, x) in values.iter().enumerate() {
            let to = &mut bytes[self.at(slot, head, i)..];
            match self.page_type {
                PageType::E4m3 => to[0] = nearest_e4m3(*x),
                PageType::Bf16 => {
                    to[..2].copy_from_slice(&bf16::from_f32(*x).to_bits().to_le_bytes());
                }
            }
        }
    }

    /// Reads the key or value of a token and head from the KV cache.
    pub(super) fn read(&self, bytes: &[u8], slot: usize, head: (usize, bool)) -> Vec<f32> {
        let element = |i| {
            let from = &bytes[self.at(slot, head, i)..];
            match self.page_type {
                PageType::E4m3 => e4m3(from[0]),
                PageType::Bf16 => widen(&from[..2])[0],
            }
        };
        (0..self.head_dim).map(element).collect()
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
