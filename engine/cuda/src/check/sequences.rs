//! Launches of the reference kernels of attention and of the rotation with the KV cache, which know
//! sequences and their pages.

use std::sync::Arc;

use super::operation::rows;
use super::sums::{BF16, F32_SUM, Sums};
use super::{Wanted, downloaded, sampled, uploaded};
use crate::Result;
use crate::buffer::Buffer;
use crate::driver::{Address, Arguments, Driver, Memory};
use crate::launch::Launch;
use crate::launch::attention::PageType;
use crate::layers::Kv;
use crate::weights::Vector;
use engine_core::{AttentionLayer, Rotation, ScheduledSequence};

/// Largest relative error of rounding to e4m3, and largest error of its smallest numbers.
const E4M3: (f32, f32) = (1.0 / 16.0, 1.0 / 1024.0);
/// Error of attention by its rounded softmax weights, as a share of the same sum.
const SOFTMAX: f32 = 1.0 / 128.0;
/// Largest number of multiplications of the reference of one result of attention.
const ATTENTION_MAX: usize = 5_000_000_000;
/// Largest number of lines (a row's query of one head) that are checked, in any case.
const LINES_MAX: usize = 4096;

/// Returns the address of an optional vector; null without one.
fn optional(vector: Option<&Vector>) -> Address {
    vector.map_or(Address::NULL, |vector| vector.part.address())
}

/// Reference of attention: of all lines (a row's query of one head), or of some of many.
pub(super) fn attention(
    driver: &Arc<dyn Driver>,
    qkv: &Buffer,
    layer: &AttentionLayer<Vector>,
    sequences: &[ScheduledSequence],
    kv: &Kv,
) -> Result<Wanted> {
    let (heads, d) = (layer.shape.heads, layer.shape.head_dim);
    let page_tokens = kv.shape.page_tokens;
    // Position and first entry of the page table, by row.
    let (mut places, mut tables) = (Vec::new(), Vec::<u32>::new());
    for sequence in sequences {
        let table = tables.len() as u32;
        places.extend((sequence.position..sequence.end()).map(|at| (at as u32, table)));
        tables.extend(sequence.used_pages(page_tokens));
    }
    let longest = sequences.iter().map(ScheduledSequence::end).max().unwrap_or(0);
    let seen = layer.window.unwrap_or(longest).min(longest);
    let most = (ATTENTION_MAX / (3 * seen * d).max(1)).clamp(heads, LINES_MAX);
    let all = places.len() * heads;
    // Lines at both ends, and others at a distance that is no multiple of the number of heads.
    let step = (all / most.max(1)).max(1) | 1;
    let ends = (0..heads.min(all)).chain(all - heads.min(all)..all);
    let mut chosen: Vec<usize> = ends.chain((0..all).step_by(step)).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let lines: Vec<[u32; 4]> = chosen
        .iter()
        .map(|line| {
            let (position, table) = places[line / heads];
            [(line / heads) as u32, (line % heads) as u32, position, table]
        })
        .collect();
    let at: Vec<u32> =
        chosen.iter().flat_map(|line| (line * d..(line + 1) * d).map(|i| i as u32)).collect();
    let (count, tables) = (lines.len(), uploaded(driver, &tables)?);
    let lines = uploaded(driver, &lines)?;
    let sums = Sums::new(driver, &at)?;
    let from = [
        sums.want.address(),
        sums.size.address(),
        lines.address(),
        tables.address(),
        qkv.bf16(),
        kv.layer(layer.kv_layer),
        optional(layer.sinks.as_ref()),
        optional(layer.scales.as_ref()),
    ];
    let window = layer.window.unwrap_or(0);
    let sizes = [count, heads, layer.shape.kv_heads, d, page_tokens].map(|size| size as u32);
    let [count_word, heads, kv_heads, d, page_tokens] = sizes;
    let shape = [count_word, heads, kv_heads, d, page_tokens, kv.page_stride(), window as u32];
    let shape = [shape.as_slice(), &[layer.shape.scale.to_bits()]].concat();
    let shape: [u32; 8] = shape.try_into().expect("seven sizes and a scale");
    let entry = match kv.page_type() {
        PageType::Bf16 => "reference_attention_bf16",
        PageType::E4m3 => "reference_attention_e4m3",
    };
    driver.launch(entry, Launch::reference_warps(count), &Arguments::of(from).value(shape))?;
    sums.wanted(at, |want, size| want * BF16 + size * SOFTMAX)
}

/// Reference of the rotated queries in `qkv` (at `before` when they were not rotated yet), whose
/// keys and values are left as they are, and of the keys and values in the pages.
pub(super) fn rope(
    driver: &Arc<dyn Driver>,
    before: Address,
    layer: &AttentionLayer<Vector>,
    rotation: &Rotation,
    sequences: &[ScheduledSequence],
    kv: &Kv,
) -> Result<Vec<Wanted>> {
    let (heads, kv_heads, d) = (layer.shape.heads, layer.shape.kv_heads, layer.shape.head_dim);
    let (cols, rows) = ((heads + 2 * kv_heads) * d, rows(sequences));
    let page_tokens = kv.shape.page_tokens;
    let mut slots = Vec::with_capacity(rows);
    for sequence in sequences {
        let slot = |at: usize| (sequence.pages[at / page_tokens], at % page_tokens);
        slots.extend((sequence.position..sequence.end()).map(|at| (at as u32, slot(at))));
    }
    let positions: Vec<u32> = slots.iter().map(|(position, _)| *position).collect();
    let at = sampled(rows, cols);
    let (count, indices) = (at.len(), uploaded(driver, &at)?);
    let (want, positions) = (Memory::new(driver, 4 * count)?, uploaded(driver, &positions)?);
    let frequencies = uploaded(driver, &rotation.inverse_frequencies)?;
    let norms = match &layer.head_norms {
        Some(norms) => {
            let both = Memory::new(driver, 8 * d)?;
            driver.copy(both.address(), norms.query.part.address(), 4 * d)?;
            driver.copy(both.address().plus(4 * d), norms.key.part.address(), 4 * d)?;
            Some(both)
        }
        None => None,
    };
    let is_e4m3 = kv.page_type() == PageType::E4m3;
    let scales = if is_e4m3 { optional(layer.scales.as_ref()) } else { Address::NULL };
    let epsilon = layer.head_norms.as_ref().map_or(0.0, |norms| norms.epsilon);
    let sizes = [count, heads, kv_heads, d, rotation.inverse_frequencies.len()];
    let [count_word, heads_word, kv_word, d_word, pairs] = sizes.map(|size| size as u32);
    let shape = [count_word, heads_word, kv_word, d_word, pairs];
    let floats = [epsilon.to_bits(), rotation.factor.to_bits()];
    let arguments = Arguments::of([
        want.address(),
        indices.address(),
        before,
        positions.address(),
        frequencies.address(),
        norms.as_ref().map_or(Address::NULL, Memory::address),
        scales,
    ]);
    let [a, b, c, e, f] = shape;
    let arguments = arguments.value([a, b, c, e, f, floats[0], floats[1]]);
    driver.launch("reference_rope", Launch::reference(count), &arguments)?;
    let want: Vec<f32> = downloaded(driver, want.address(), count)?;
    let (mut queries, mut pages) = (Wanted::default(), Wanted::default());
    // Terms of a rotation are at most a few units large.
    let bf16 = |want: f32| want.abs() * BF16 + 4.0 * F32_SUM;
    let element = |index: usize| {
        let (row, head, i) = (index / cols, index / d % (heads + 2 * kv_heads), index % d);
        let (stored, (page, token)) = (head - heads, slots[row].1);
        let block =
            page as usize * kv.page_stride() as usize + 2 * (stored % kv_heads) + stored / kv_heads;
        let per_piece = if is_e4m3 { 16 } else { 8 };
        // Rows of at most eight pieces are adjacent, and permuted by the number of the row.
        let (pieces, piece) = (d / per_piece, i / per_piece);
        let width = pieces.min(8);
        let place = (piece / width * page_tokens + token) * width
            + ((piece % width) ^ ((token * width / 8) & (width - 1)));
        block * page_tokens * d + place * per_piece + i % per_piece
    };
    for (index, want) in at.into_iter().zip(want) {
        if (index as usize / d) % (heads + 2 * kv_heads) < heads {
            queries.at.push(index);
            queries.want.push(want);
            queries.tolerance.push(bf16(want));
        } else {
            pages.at.push(element(index as usize) as u32);
            pages.want.push(want);
            let tolerance = if is_e4m3 { want.abs() * E4M3.0 + E4M3.1 } else { bf16(want) };
            pages.tolerance.push(tolerance);
        }
    }
    Ok(vec![queries, pages])
}
