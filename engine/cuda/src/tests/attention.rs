//! Tests of the paged attention kernels, with and without split positions, against the reference.

use super::pages::Pages;
use super::*;
use crate::launch::Processors;
use crate::launch::attention::{AttentionArguments, AttentionPlan, PageType, entry};
use engine_core::{AttentionLayer, AttentionShape, ScheduledSequence};

/// Relative error bound of attention results: softmax weights are rounded to bf16 before they are
/// multiplied by the values, and results after.
const BOUND: f32 = 1.0 / 128.0;

/// Sizes and options of one attention step whose result is compared with the reference.
struct Case {
    shape: AttentionShape,
    page_type: PageType,
    page_tokens: usize,
    window: Option<usize>,
    has_sinks: bool,
    /// Number of multiprocessors of the GPU that the attention launch is for; each runs two blocks
    /// among which the work is divided.
    processors: usize,
    has_warpgroups: bool,
    /// Position of the first row, and number of rows, of each sequence in the step.
    sequences: Vec<(usize, usize)>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            shape: shape(4, 2, 64),
            page_type: PageType::Bf16,
            page_tokens: 16,
            window: None,
            has_sinks: false,
            processors: 2,
            has_warpgroups: false,
            sequences: vec![(40, 1)],
        }
    }
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, scale: 6.0 / (head_dim as f32).sqrt() }
}

/// Returns queries, keys and values of one sequence up to its last row in the step. Keys and values
/// are representable in the page's type, so that only the kernel's own rounding shows; values are
/// around 1, so that a softmax weight that is lost or added shows too.
fn sequence(case: &Case, length: usize, seed: u32) -> Vec<f32> {
    let AttentionShape { heads, kv_heads, head_dim, .. } = case.shape;
    let held = |x: f32| match case.page_type {
        PageType::Bf16 => bf16::from_f32(x).to_f32(),
        PageType::E4m3 => pages::e4m3(pages::nearest_e4m3(x)),
    };
    let mut qkv = rounded(length * case.shape.qkv_cols(), seed);
    for row in qkv.chunks_exact_mut(case.shape.qkv_cols()) {
        let (keys, values) = row[heads * head_dim..].split_at_mut(kv_heads * head_dim);
        keys.iter_mut().for_each(|x| *x = held(*x));
        values.iter_mut().for_each(|x| *x = held(*x + 1.0));
    }
    qkv
}

/// Inputs of the attention of one step, and the expected result.
struct Step {
    qkv: Vec<f32>,
    pages: Vec<u8>,
    sequences: Vec<ScheduledSequence>,
    want: Vec<f32>,
    layer: Vec<f32>,
}

fn step(case: &Case, cache: &Pages) -> Step {
    let AttentionShape { heads, kv_heads, head_dim: d, .. } = case.shape;
    let lengths = case.sequences.iter().map(|(position, rows)| position + rows);
    let count: usize = lengths.map(|length| length.div_ceil(case.page_tokens)).sum();
    // Unwritten KV pages are NaN, so that a read outside of the sequences fails.
    let mut step = Step {
        qkv: Vec::new(),
        pages: vec![0xff; cache.bytes(count + 1)],
        sequences: Vec::new(),
        want: Vec::new(),
        layer: vec![1.0; heads + 2 * kv_heads],
    };
    let mut layer = AttentionLayer::new(case.shape, 0);
    layer.window = case.window;
    step.layer[..heads].fill(f32::NEG_INFINITY);
    if case.has_sinks {
        step.layer[..heads].iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 1.0);
        layer.sinks = Some(step.layer[..heads].to_vec());
    }
    let mut scales = vec![1.0; 2 * kv_heads];
    if case.page_type == PageType::E4m3 {
        scales.iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 + 0.25 * i as f32);
        step.layer[heads..].copy_from_slice(&scales);
    }
    let mut free: Vec<u32> = (0..count as u32 + 1).rev().collect();
    let mut row = 0;
    for (i, (position, rows)) in case.sequences.iter().copied().enumerate() {
        let qkv = sequence(case, position + rows, 20 + i as u32);
        let table: Vec<u32> = free.drain(..(position + rows).div_ceil(case.page_tokens)).collect();
        let mut scaled = qkv.clone();
        for t in 0..position + rows {
            let slot =
                table[t / case.page_tokens] as usize * case.page_tokens + t % case.page_tokens;
            for (stored, scale) in scales.iter().enumerate() {
                let at = (t * (heads + 2 * kv_heads) + heads + stored) * d;
                let head = (stored % kv_heads, stored >= kv_heads);
                cache.write(&mut step.pages, slot, head, &qkv[at..at + d]);
                scaled[at..at + d].iter_mut().for_each(|x| *x *= scale);
            }
        }
        let first = position * heads * d;
        step.want.extend(&reference::attention(&scaled, &layer)[first..]);
        step.qkv.extend(&qkv[position * case.shape.qkv_cols()..]);
        let pages = table.into();
        step.sequences.push(ScheduledSequence { row, rows, position, pages, ..Default::default() });
        row += rows;
    }
    step
}

/// Runs the attention kernel and the merge kernel for a case, compares the result with the
/// reference, and returns the number of merges.
fn check(attention: &Program, merge: &Program, case: &Case) -> u32 {
    let AttentionShape { heads, kv_heads, head_dim, scale } = case.shape;
    let &Case { page_type, page_tokens, window, .. } = case;
    let cache = Pages { page_type, kv_heads, head_dim, page_tokens, layers: 2 };
    let step = step(case, &cache);
    let &Case { processors: count, has_warpgroups, .. } = case;
    let processors = Processors { count, shared_bytes: 228 << 10, has_warpgroups };
    let launch = Launch::attention(processors, page_type, head_dim);
    let plan = AttentionPlan::new(
        &step.sequences,
        page_tokens,
        &case.shape,
        window,
        launch.grid[0] as usize,
    );
    let mut words = vec![0; plan.words()];
    plan.write(plan.words(), &mut words);
    step.sequences.iter().for_each(|sequence| words.extend(&*sequence.pages));
    let what = format!(
        "{page_type:?} {:?} {page_tokens} tokens a page, window {window:?}, sinks {}, {:?}",
        case.shape, case.has_sinks, case.sequences
    );
    let call = Call::new(entry(page_type, head_dim).unwrap(), launch)
        .buffer(&vec![0xffff_u16; step.want.len()])
        .buffer(&vec![f32::NAN; plan.part_lines * (head_dim + 2)])
        .buffer(&narrow(&step.qkv))
        .buffer(&step.pages)
        .buffer(&words)
        .buffer(&step.layer)
        .value(AttentionArguments {
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            page_bits: page_tokens.ilog2(),
            page_stride: cache.stride() as u32,
            window: window.unwrap_or(0) as u32,
            scale,
        });
    let got = &attention.run(&[call])[0];
    let call = Call::new("attention_merge", Launch::attention_merge(processors))
        .buffer(&elements::<u16>(&got[0]))
        .buffer(&elements::<f32>(&got[1]))
        .buffer(&words)
        .buffer(&step.layer)
        .value([heads, kv_heads, head_dim].map(|size| size as u32));
    check_close(&widen(&merge.run(&[call])[0][0]), &step.want, BOUND, &what);
    words[1]
}

/// Returns attention cases of every head size and page type, with lines that all warps share, and
/// with more than 16 lines.
fn sizes() -> Vec<Case> {
    let bf16 = [16, 32, 64, 128, 256].map(|head_dim| (PageType::Bf16, head_dim));
    let e4m3 = [64, 128, 256].map(|head_dim| (PageType::E4m3, head_dim));
    let case = |(page_type, head_dim)| {
        let sequences = vec![(70, 1), (0, 9)];
        Case { shape: shape(6, 2, head_dim), page_type, sequences, ..Case::default() }
    };
    bf16.into_iter().chain(e4m3).map(case).collect()
}

/// Returns attention cases whose rows, positions, heads and pages end anywhere within tiles.
fn tails() -> Vec<Case> {
    let mut cases = Vec::new();
    for rows in (1..=17).chain([21, 22, 31, 33]) {
        let (shape, sequences) = (shape(3, 1, 16), vec![(rows, rows)]);
        cases.push(Case { shape, sequences, ..Case::default() });
    }
    for position in [0, 1, 14, 15, 16, 17, 30, 62, 63, 64, 65, 127, 128, 129] {
        for page_type in [PageType::Bf16, PageType::E4m3] {
            cases.push(Case { page_type, sequences: vec![(position, 1)], ..Case::default() });
        }
    }
    for (heads, kv_heads) in [(1, 1), (5, 1), (9, 3), (7, 7), (16, 1), (17, 1), (40, 2), (64, 1)] {
        let (shape, sequences) = (shape(heads, kv_heads, 16), vec![(66, 1), (3, 2)]);
        cases.push(Case { shape, sequences, page_tokens: 32, ..Case::default() });
    }
    // Scores so far apart that their exponentials would overflow without subtraction of the
    // largest.
    let steep = AttentionShape { scale: 100.0, ..shape(4, 2, 64) };
    let sequences = vec![(130, 1), (70, 20), (600, 1)];
    cases.push(Case { shape: steep, sequences, processors: 8, ..Case::default() });
    for page_tokens in [8, 64, 256] {
        let sequences = vec![(62, 20), (0, 1), (130, 1)];
        cases.push(Case { page_tokens, sequences, ..Case::default() });
    }
    cases
}

/// Returns attention cases with sliding windows around the size of a tile, with attention sinks and
/// without.
fn windows() -> Vec<Case> {
    let mut cases = Vec::new();
    for window in [1, 2, 63, 64, 65, 1000] {
        for (has_sinks, page_type) in [(true, PageType::Bf16), (false, PageType::E4m3)] {
            let (window, sequences) = (Some(window), vec![(150, 1), (60, 24), (0, 3)]);
            cases.push(Case { window, has_sinks, page_type, sequences, ..Case::default() });
        }
    }
    cases
}

/// Returns attention cases with fewer work items than blocks, so that positions are split.
fn splits() -> Vec<Case> {
    let mut cases = Vec::new();
    for (page_type, has_sinks) in
        [(PageType::Bf16, false), (PageType::Bf16, true), (PageType::E4m3, true)]
    {
        for window in [None, Some(400)] {
            let sequences = vec![(900, 1), (300, 2), (520, 24)];
            let processors = 8;
            cases.push(Case {
                page_type,
                has_sinks,
                window,
                sequences,
                processors,
                ..Case::default()
            });
        }
    }
    cases
}

/// Test of all attention cases in one function, since compiling the kernel takes longer than
/// running it.
#[test]
fn attention_is_that_of_the_reference_whole_and_split() {
    let (Some(attention), Some(merge)) =
        (Program::compile("attention"), Program::compile("attention_merge"))
    else {
        return;
    };
    for case in sizes().into_iter().chain(tails()).chain(windows()) {
        check(&attention, &merge, &case);
    }
    let merges: u32 = splits().iter().map(|case| check(&attention, &merge, case)).sum();
    assert!(merges >= 12, "{merges} merges");
}

#[test]
fn attention_by_warpgroups_is_that_of_the_reference() {
    let (Some(attention), Some(merge)) =
        (Program::compile("attention_sm90"), Program::compile("attention_merge"))
    else {
        return;
    };
    let bf16 = [64, 128, 256].map(|head_dim| (PageType::Bf16, head_dim));
    let e4m3 = [64, 128, 256].map(|head_dim| (PageType::E4m3, head_dim));
    let with = |case: Case| check(&attention, &merge, &Case { has_warpgroups: true, ..case });
    for (page_type, head_dim) in bf16.into_iter().chain(e4m3) {
        for window in [None, Some(head_dim + 1)] {
            let (shape, has_sinks) = (shape(6, 2, head_dim), window.is_some());
            // Few lines and many, as many as an item can have, and positions that are split.
            let sequences = vec![(70, 1), (0, 6), (61, 22), (300, 21)];
            let processors = 8;
            with(Case {
                shape,
                page_type,
                window,
                has_sinks,
                sequences,
                processors,
                ..Case::default()
            });
        }
    }
    for page_tokens in [8, 32, 64, 256] {
        let sequences = vec![(62, 20), (0, 1), (130, 1), (260, 16)];
        with(Case { page_tokens, sequences, ..Case::default() });
    }
}
