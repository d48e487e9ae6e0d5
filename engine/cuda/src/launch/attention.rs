//! Work plan of paged attention: which block of the grid computes which query lines (a row's query
//! of one head) over which key positions (split-KV, as in Flash-Decoding).
//!
//! The plan is computed once per step and copied to the device with the page tables. The grid does
//! not depend on it, so a captured CUDA graph stays valid. Long ranges of positions are split where
//! there are more blocks than work items, and merged by a second kernel. So how a line's sum over
//! positions is split depends on the other sequences in the step. Which block computes an item
//! changes no bit of its result.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytemuck::{NoUninit, Zeroable};

use super::{Launch, Processors, Residency};
use engine_core::{AttentionShape, ScheduledSequence};

/// Number of key positions of a tile of attention, and largest number of query lines (a row's query
/// of one head) of a work item.
const TILE: usize = 64;
/// Number of tiles of key positions up to which a work item is never split: each split loads its
/// own queries and adds a merge, so splitting less costs more than it gains.
const TILES_MIN: usize = 4;
/// Number of blocks that a multiprocessor runs at once if its shared memory allows; the attention
/// kernels are compiled for it.
pub(super) const BLOCKS_PER_PROCESSOR: usize = 2;
/// The same for heads of 64 elements on GPUs with warpgroups, whose blocks need fewer registers.
const NARROW_BLOCKS_PER_PROCESSOR: usize = 4;
/// Bytes of static shared memory of a block of the `attention` kernels, in addition to the dynamic
/// part; the barriers of their variants for warpgroups are not counted.
const DECLARED_BYTES: usize = 512;
/// Number of threads of a block of either attention kernel.
pub(super) const THREADS: usize = 128;
/// Number of 32-bit words at the beginning of the attention plan, before its work items.
const HEAD_WORDS: usize = 8;
/// Value of `Item::part`, the first line of an item's partial results, for a work item that is not
/// split.
const NONE: u32 = u32::MAX;

/// Element type of keys and values in the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageType {
    /// bf16, two bytes per element of a key or value.
    Bf16,
    /// FP8 (e4m3), one byte per element, with a scale for the keys and one for the values of each
    /// KV head.
    E4m3,
}

impl PageType {
    /// Returns the size in bytes of one element of a key or value.
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }
}

/// Returns the name of the attention kernel for pages of this type and heads of `head_dim`
/// elements, or `None` if there is no such kernel.
pub fn entry(page_type: PageType, head_dim: usize) -> Option<&'static str> {
    match (page_type, head_dim) {
        (PageType::Bf16, 16) => Some("attention_bf16_16"),
        (PageType::Bf16, 32) => Some("attention_bf16_32"),
        (PageType::Bf16, 64) => Some("attention_bf16_64"),
        (PageType::Bf16, 128) => Some("attention_bf16_128"),
        (PageType::Bf16, 256) => Some("attention_bf16_256"),
        (PageType::E4m3, 64) => Some("attention_e4m3_64"),
        (PageType::E4m3, 128) => Some("attention_e4m3_128"),
        (PageType::E4m3, 256) => Some("attention_e4m3_256"),
        _ => None,
    }
}

/// Last argument of the `attention` kernels: sizes of the layer, window and scale.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct AttentionArguments {
    /// Number of query heads of the layer.
    pub heads: u32,
    /// Number of KV heads of the layer.
    pub kv_heads: u32,
    /// Base-2 logarithm of the number of tokens that a KV page has space for.
    pub page_bits: u32,
    /// Distance from one KV page of the layer to the next, in units of `[page tokens, D]`.
    pub page_stride: u32,
    /// Size of the sliding window in positions; 0 for full attention.
    pub window: u32,
    /// Factor of the attention scores, usually 1 / sqrt(head size).
    pub scale: f32,
}

/// Work item of one attention block, as the kernel reads it: query lines of some rows and one KV
/// head, over the key positions `from .. to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit, Zeroable)]
#[repr(C)]
struct Item {
    row: u32,
    rows: u32,
    position: u32,
    table: u32,
    kv_head: u32,
    from: u32,
    to: u32,
    part: u32,
}

impl Item {
    fn tiles(&self) -> usize {
        (self.to - self.from).div_ceil(TILE as u32) as usize
    }

    /// Returns the work of the item in tiles: its queries, its first copy and its results, which
    /// overlap with nothing, are counted as one.
    fn work(&self) -> usize {
        self.tiles() + 1
    }
}

/// Entry for the merge kernel: query lines whose key positions were split into several work items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
struct Merge {
    row: u32,
    rows: u32,
    kv_head: u32,
    part: u32,
    splits: u32,
}

/// Attention work plan of one step, for all layers that share heads and window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttentionPlan {
    /// Work items, those of the same block one after another.
    items: Vec<Item>,
    /// Index of the first item of each block, then the number of items.
    starts: Vec<u32>,
    merges: Vec<Merge>,
    /// Number of lines of partial attention results that split work items write.
    pub part_lines: usize,
}

impl AttentionPlan {
    /// Divides the attention of `sequences` among `blocks` thread blocks. With a sliding window,
    /// tiles entirely before it are left out.
    ///
    /// # Panics
    /// More than 64 query heads share a KV head.
    pub fn new(
        sequences: &[ScheduledSequence],
        page_tokens: usize,
        shape: &AttentionShape,
        window: Option<usize>,
        blocks: usize,
    ) -> Self {
        let whole = whole_items(sequences, page_tokens, shape, window);
        let tiles: usize = whole.iter().map(Item::tiles).sum();
        // The share of one block; a longer item would delay the whole launch.
        let tiles_max = tiles.div_ceil(blocks).max(TILES_MIN);
        let (mut items, mut merges) = (Vec::with_capacity(whole.len()), Vec::new());
        let mut part_lines = 0;
        for item in whole {
            if item.tiles() <= tiles_max {
                items.push(item);
                continue;
            }
            let lines = item.rows as usize * shape.group();
            let splits = split(item, tiles_max, part_lines as u32, lines as u32);
            let Item { row, rows, kv_head, part, .. } = splits[0];
            merges.push(Merge { row, rows, kv_head, part, splits: splits.len() as u32 });
            part_lines += lines * splits.len();
            items.extend(splits);
        }
        let (items, starts) = assign(items, blocks);
        Self { items, starts, merges, part_lines }
    }

    /// Returns the number of 32-bit words of the attention plan, without the page tables.
    pub fn words(&self) -> usize {
        HEAD_WORDS + words(&self.items).len() + words(&self.merges).len() + self.starts.len()
    }

    /// Returns the largest value of [`AttentionPlan::words`] for `rows` decoding sequences, which
    /// is the space that the plan has in the metadata of a CUDA graph's steps. Splitting adds at
    /// most two items per block, and no item is merged twice.
    pub fn words_max(rows: usize, shape: &AttentionShape, blocks: usize) -> usize {
        let whole = rows * shape.kv_heads;
        let item_words = size_of::<Item>() / size_of::<u32>();
        let merge_words = size_of::<Merge>() / size_of::<u32>();
        let starts = blocks + 1;
        HEAD_WORDS + (whole + 2 * blocks) * item_words + whole.min(blocks) * merge_words + starts
    }

    /// Writes the attention plan to `out` as the kernels read it: the numbers of items and of
    /// merges, the index of the word at which the merges begin, and of the one at which the first
    /// items of the blocks begin; then items, merges, and the first item of each block. The page
    /// tables of all sequences follow one another from word `tables` on, counted from the start of
    /// `out`.
    pub fn write(&self, tables: usize, out: &mut [u32]) {
        let merges_at = HEAD_WORDS + words(&self.items).len();
        let starts_at = merges_at + words(&self.merges).len();
        let head = [self.items.len(), self.merges.len(), merges_at, starts_at];
        out[..HEAD_WORDS].fill(0);
        out[..head.len()].copy_from_slice(&head.map(|count| count as u32));
        let item_words = out[HEAD_WORDS..merges_at].chunks_exact_mut(size_of::<Item>() / 4);
        for (item, out) in self.items.iter().zip(item_words) {
            let item = Item { table: item.table + tables as u32, ..*item };
            out.copy_from_slice(words(&[item]));
        }
        out[merges_at..starts_at].copy_from_slice(words(&self.merges));
        out[starts_at..self.words()].copy_from_slice(&self.starts);
    }

    /// Returns the largest number of lines of partial attention results, whatever the step: a split
    /// item has more than one block's share of tiles, so there are at most two splits per block.
    pub fn part_lines_max(shape: &AttentionShape, blocks: usize) -> usize {
        2 * blocks * (TILE / shape.group()).max(1) * shape.group()
    }
}

/// Returns `items`, which are work items or merges of the attention plan, as the 32-bit words that
/// the kernel reads.
fn words<T: NoUninit>(items: &[T]) -> &[u32] {
    bytemuck::cast_slice(items)
}

/// Returns the work items of a step, none of which is split yet. An item has the index of the first
/// entry of its sequence's page table, counted from the first sequence's table: the tables follow
/// one another.
fn whole_items(
    sequences: &[ScheduledSequence],
    page_tokens: usize,
    shape: &AttentionShape,
    window: Option<usize>,
) -> Vec<Item> {
    assert!(shape.group() <= TILE, "{} query heads share a KV head", shape.group());
    let rows_max = TILE / shape.group();
    let (mut items, mut table) = (Vec::new(), 0);
    for sequence in sequences {
        for first in (0..sequence.rows).step_by(rows_max) {
            let rows = rows_max.min(sequence.rows - first);
            let position = sequence.position + first;
            // Tiles begin at multiples of their size, so the first may reach before the window.
            let masked = window.map_or(0, |window| (position + 1).saturating_sub(window));
            items.extend((0..shape.kv_heads).map(|kv_head| Item {
                row: (sequence.row + first) as u32,
                rows: rows as u32,
                position: position as u32,
                table,
                kv_head: kv_head as u32,
                from: (masked / TILE * TILE) as u32,
                to: (position + rows) as u32,
                part: NONE,
            }));
        }
        table += sequence.used_pages(page_tokens).len() as u32;
    }
    items
}

/// Splits a work item of more than `tiles_max` tiles of key positions into items of about equal
/// length. Their partial results have `lines` lines each and follow one another from line `part`
/// on.
fn split(item: Item, tiles_max: usize, part: u32, lines: u32) -> Vec<Item> {
    let tiles = item.tiles();
    // Parts of equal length, since the slowest block decides how long the launch takes.
    let step = tiles.div_ceil(tiles.div_ceil(tiles_max)) * TILE;
    let starts = (item.from..item.to).step_by(step);
    let one = |(i, from): (usize, u32)| Item {
        from,
        to: item.to.min(from + step as u32),
        part: part + i as u32 * lines,
        ..item
    };
    starts.enumerate().map(one).collect()
}

/// Assigns the items to `blocks` thread blocks: the longest first, each to the block with the least
/// work so far (LPT: longest processing time first), since the busiest block decides how long the
/// launch takes. Returns the items in the order of their blocks, and the index of each block's
/// first item, then the number of items. Source: Graham 1969.
fn assign(mut items: Vec<Item>, blocks: usize) -> (Vec<Item>, Vec<u32>) {
    items.sort_by_key(|item| Reverse(item.tiles()));
    let mut idle: BinaryHeap<_> = (0..blocks).map(|block| Reverse((0, block))).collect();
    let mut starts = vec![0; blocks + 1];
    let mut block_of = |item: &Item| {
        let mut least = idle.peek_mut().expect("a launch has blocks");
        let Reverse((work, block)) = &mut *least;
        *work += item.work();
        starts[*block + 1] += 1;
        *block
    };
    let blocks_of: Vec<usize> = items.iter().map(&mut block_of).collect();
    for block in 0..blocks {
        starts[block + 1] += starts[block];
    }
    let (mut next, mut assigned) = (starts.clone(), items.clone());
    for (item, block) in items.into_iter().zip(blocks_of) {
        assigned[next[block] as usize] = item;
        next[block] += 1;
    }
    (assigned, starts)
}

/// Returns the number of blocks that the attention kernels for heads of `head_dim` elements are
/// compiled for.
fn blocks_max(processors: Processors, head_dim: usize) -> usize {
    match head_dim {
        64 if processors.has_warpgroups => NARROW_BLOCKS_PER_PROCESSOR,
        _ => BLOCKS_PER_PROCESSOR,
    }
}

/// Returns the block of an attention kernel, and how many blocks it is compiled for; `None` if `name`
/// is none of them.
pub(super) fn residency(name: &str, processors: Processors) -> Option<Residency> {
    let (page_type, head_dim) = name.strip_prefix("attention_")?.split_once('_')?;
    let page_type = match page_type {
        "bf16" => PageType::Bf16,
        "e4m3" => PageType::E4m3,
        _ => return None,
    };
    Some(residency_of(processors, page_type, head_dim.parse().ok()?))
}

fn residency_of(processors: Processors, page_type: PageType, head_dim: usize) -> Residency {
    Residency {
        threads: THREADS,
        shared_bytes: shared_bytes(processors, page_type, head_dim),
        declared_bytes: DECLARED_BYTES,
        blocks_max: blocks_max(processors, head_dim),
    }
}

/// Returns the number of bytes of dynamic shared memory of a block of an attention kernel: queries,
/// then two stages of keys and values. On GPUs with warpgroups, bf16 copies of one stage of FP8 keys
/// and values follow.
fn shared_bytes(processors: Processors, page_type: PageType, head_dim: usize) -> usize {
    let (wide, tile) = (TILE * head_dim * 2, TILE * head_dim * page_type.bytes());
    let is_widened = processors.has_warpgroups && page_type == PageType::E4m3;
    wide + 4 * tile + if is_widened { 2 * wide } else { 0 }
}

impl Launch {
    /// Returns the launch shape of `attention`: as many blocks as run at once.
    pub fn attention(processors: Processors, page_type: PageType, head_dim: usize) -> Self {
        let residency = residency_of(processors, page_type, head_dim);
        let blocks = processors.resident_blocks(residency);
        Self { shared_bytes: residency.shared_bytes as u32, ..Self::new([blocks, 1, 1], THREADS) }
    }

    /// Returns the launch shape of `attention_merge`, whose blocks use no shared memory.
    pub fn attention_merge(processors: Processors) -> Self {
        Self::new([processors.count * BLOCKS_PER_PROCESSOR, 1, 1], THREADS)
    }
}

#[cfg(test)]
mod tests;
