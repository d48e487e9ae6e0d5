//! Tests of the rotary embedding: cos/sin table, head norms, rotation, and writes to the paged KV
//! cache.

use super::pages::{Pages, e4m3};
use super::*;
use crate::launch::RopeArguments;
use crate::launch::attention::PageType;
use engine_core::Rotation;

#[test]
fn cosines_and_sines_are_those_of_the_cpu_at_any_position() {
    let Some(program) = Program::compile("cos_sin_table") else { return };
    let frequencies: Vec<f32> = (0..17).map(|i| 0.6f32.powi(i)).collect();
    for rows in ROWS {
        let positions: Vec<u32> = (0..rows as u32).map(|t| t * t * 997 + t).collect();
        let call = Call::new("cos_sin_table", Launch::cos_sin_table(rows, frequencies.len()))
            .buffer(&vec![f32::NAN; 2 * rows * frequencies.len()])
            .buffer(&positions)
            .buffer(&frequencies)
            .value(rows as u32)
            .value(frequencies.len() as u32)
            .value(1.25f32);
        let got: Vec<f32> = elements(&program.run(&[call])[0][0]);
        let want: Vec<f32> = positions
            .iter()
            .flat_map(|position| frequencies.iter().map(move |f| *position as f32 * f))
            .flat_map(|angle| [1.25 * angle.cos(), 1.25 * angle.sin()])
            .collect();
        check_close(&got, &want, 1e-6, &format!("T{rows}"));
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pairs: usize,
    has_norms: bool,
    page_type: PageType,
    rows: usize,
}

impl Case {
    fn cols(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    fn qkv(&self) -> Vec<f32> {
        rounded(self.rows * self.cols(), 8).iter().map(|x| 4.0 * x).collect()
    }

    fn rotation(&self) -> Rotation {
        let inverse_frequencies = (0..self.pairs).map(|i| 0.7f32.powi(i as i32)).collect();
        Rotation { inverse_frequencies, factor: 1.25 }
    }

    fn position(row: usize) -> usize {
        3 * row + 40
    }

    /// Returns the norm weights of the query heads, then of the key heads, of the tested layer.
    fn norms(&self) -> Vec<f32> {
        numbers(2 * self.head_dim, 9)
    }

    fn scales(&self) -> Vec<f32> {
        (0..2 * self.kv_heads).map(|i| 0.01 + 0.005 * i as f32).collect()
    }

    fn pages(&self) -> Pages {
        let Self { page_type, kv_heads, head_dim, .. } = *self;
        Pages { page_type, kv_heads, head_dim, page_tokens: 16, layers: 2 }
    }

    fn page_count(&self) -> usize {
        self.rows.div_ceil(16) + 1
    }

    /// Returns the KV slot of a row, with the pages in descending order, since page tables may have
    /// any order.
    fn slot(&self, row: usize) -> usize {
        (self.page_count() - 1 - row / 16) * 16 + row % 16
    }

    fn call(&self) -> Call {
        let (entry, scales) = match self.page_type {
            PageType::Bf16 => ("rope_and_cache_bf16", None),
            PageType::E4m3 => ("rope_and_cache_e4m3", Some(self.scales())),
        };
        let frequencies = self.rotation().inverse_frequencies;
        let cos_sin: Vec<f32> = (0..self.rows)
            .flat_map(|row| frequencies.iter().map(move |f| Self::position(row) as f32 * f))
            .flat_map(|angle| [1.25 * angle.cos(), 1.25 * angle.sin()])
            .collect();
        let slots: Vec<u32> = (0..self.rows).map(|row| self.slot(row) as u32).collect();
        let heads = self.heads + 2 * self.kv_heads;
        Call::new(entry, Launch::rope_and_cache(self.rows, heads))
            .buffer(&narrow(&self.qkv()))
            .buffer(&vec![0xff_u8; self.pages().bytes(self.page_count())])
            .buffer(&cos_sin)
            .buffer(&slots)
            .optional(self.has_norms.then(|| self.norms()).as_deref())
            .optional(scales.as_deref())
            .value(RopeArguments {
                heads: self.heads as u32,
                kv_heads: self.kv_heads as u32,
                head_dim: self.head_dim as u32,
                pairs: self.pairs as u32,
                page_tokens: 16,
                page_stride: self.pages().stride() as u32,
                epsilon: 1e-6,
            })
    }

    /// Returns head `index` of a row as the reference computes it: normalized if the case has
    /// norms, and rotated.
    fn want(&self, row: usize, index: usize, head: &[f32]) -> Vec<f32> {
        if index >= self.heads + self.kv_heads {
            return head.to_vec();
        }
        let norms = self.norms();
        let (of_queries, of_keys) = norms.split_at(self.head_dim);
        let weight = if index < self.heads { of_queries } else { of_keys };
        let normed = reference::rms_norm(head, weight, 1e-6);
        let head = if self.has_norms { &normed } else { head };
        reference::rotate(head, Self::position(row), &self.rotation())
    }

    /// Compares a key or value in the KV cache with its expected vector, up to the rounding of the
    /// page's type.
    fn check_stored(&self, got: &[f32], want: &[f32], stored: usize, what: &str) {
        if self.page_type == PageType::Bf16 {
            return check_close(got, want, BF16_ROUNDING, what);
        }
        for (got, x) in got.iter().zip(want) {
            // Either the nearest e4m3, or its neighbor where earlier rounding moves the number past
            // the middle.
            let exact = (x / self.scales()[stored]).clamp(-448.0, 448.0);
            let step = (exact.abs() / 8.0).max(1.0 / 512.0);
            assert!((got - exact).abs() <= 0.51 * step, "{what}: {got}, not {exact}");
        }
    }
}

/// Runs `rope_and_cache` for a case, compares every head with the reference, and checks that
/// nothing else is written.
fn check(program: &Program, case: Case) {
    let (d, pages) = (case.head_dim, case.pages());
    let results = program.run(&[case.call()]).remove(0);
    let (got, got_pages) = (widen(&results[0]), &results[1]);
    let qkv = case.qkv();
    for (i, (head, got)) in qkv.chunks_exact(d).zip(got.chunks_exact(d)).enumerate() {
        let (row, index) = (i * d / case.cols(), i * d % case.cols() / d);
        let what = format!("{case:?}, row {row}, head {index}");
        let want = case.want(row, index, head);
        if index < case.heads {
            check_close(got, &want, BF16_ROUNDING, &what);
            continue;
        }
        assert_eq!(got, head, "{what}: keys and values stay");
        let stored = index - case.heads;
        let head = (stored % case.kv_heads, stored >= case.kv_heads);
        let got = pages.read(got_pages, case.slot(row), head);
        case.check_stored(&got, &want, stored, &what);
    }
    // All other bytes of the pages keep their initial value.
    let written = case.rows * 2 * case.kv_heads * d;
    let (untouched, all) = match case.page_type {
        PageType::Bf16 => {
            let all: Vec<u16> = elements(got_pages);
            (all.iter().filter(|x| **x == 0xffff).count(), all.len())
        }
        PageType::E4m3 => (got_pages.iter().filter(|x| **x == 0xff).count(), got_pages.len()),
    };
    assert_eq!(untouched, all - written, "{case:?}: nothing else is written");
}

#[test]
fn heads_are_normed_turned_and_stored() {
    let Some(program) = Program::compile("rope_and_cache") else { return };
    let shapes = [
        (1, 1, 16, 8),
        (9, 3, 64, 32),
        (8, 2, 128, 64),
        (3, 1, 256, 32),
        (5, 5, 32, 12),
        (2, 1, 16, 5),
    ];
    for (heads, kv_heads, head_dim, pairs) in shapes {
        for (has_norms, page_type) in [(true, PageType::Bf16), (false, PageType::E4m3)] {
            let rows = 5;
            check(&program, Case { heads, kv_heads, head_dim, pairs, has_norms, page_type, rows });
        }
    }
    for rows in ROWS {
        for page_type in [PageType::Bf16, PageType::E4m3] {
            let (heads, kv_heads, head_dim, pairs, has_norms) = (3, 1, 32, 16, true);
            check(&program, Case { heads, kv_heads, head_dim, pairs, has_norms, page_type, rows });
        }
    }
}

#[test]
fn codes_of_eight_bits_are_the_nearest_ones() {
    let Some(program) = Program::compile("rope_and_cache") else { return };
    // Every e4m3 value, the middle between neighbors, and numbers that are too large or too small.
    let codes: Vec<f32> = (0..0x7f).map(e4m3).collect();
    let halves = codes.windows(2).map(|two| (two[0] + two[1]) / 2.0);
    let mut values: Vec<f32> =
        codes.iter().copied().chain(halves).chain([460.0, 1e30, 1e-9]).collect();
    values.extend(values.clone().iter().map(|x| -x));
    values.resize(values.len().next_multiple_of(64), 0.0);
    let values: Vec<f32> = values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let heads = values.len() / 64;
    let pages = Pages {
        page_type: PageType::E4m3,
        kv_heads: heads,
        head_dim: 64,
        page_tokens: 16,
        layers: 1,
    };
    let qkv: Vec<f32> = [vec![0.0; 64 * (1 + heads)], values.clone()].concat();
    let call = Call::new("rope_and_cache_e4m3", Launch::rope_and_cache(1, 1 + 2 * heads))
        .buffer(&narrow(&qkv))
        .buffer(&vec![0xff_u8; pages.bytes(1)])
        .buffer(&[0f32; 0])
        .buffer(&[3u32])
        .null()
        .null()
        .value(RopeArguments {
            heads: 1,
            kv_heads: heads as u32,
            head_dim: 64,
            pairs: 0,
            page_tokens: 16,
            page_stride: pages.stride() as u32,
            epsilon: 0.0,
        });
    let got = &program.run(&[call])[0][1];
    for (head, values) in values.chunks_exact(64).enumerate() {
        for (i, x) in values.iter().enumerate() {
            let code = got[pages.at(3, (head, true), i)];
            assert_eq!(code, pages::nearest_e4m3(*x), "of {x}");
        }
    }
}
