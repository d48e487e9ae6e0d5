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

use super::carveout::Residency;
use super::{Launch, Processors};
use engine_core::{AttentionShape, ScheduledSequence};

/// Number of key positions of a tile of attention, and largest number of query lines (a row's query
/// of one head) of a work item.
const TILE: usize = 64;
/// Number of tiles of key positions up to which a work item is never split: each split loads its
/// own queries and adds a merge, so splitting less costs more than it gains.
const TILES_MIN: usize = 4;
/// Number of blocks that a multiprocessor runs at once if its shared memory allows; the attention
/// kernels are compiled for it.
const BLOCKS_PER_PROCESSOR: usize = 2;
/// The same for heads of 64 elements on GPUs with warpgroups, whose blocks need fewer registers.
const NARROW_BLOCKS_PER_PROCESSOR: usize = 4;
/// Bytes of static shared memory of a block of the `attention` kernels, in addition to the dynamic
/// part; the barriers of their variants for warpgroups are not counted.
const DECLARED_BYTES: usize = 512;
/// Number of threads of a block of either attention kernel.
const THREADS: usize = 128;
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

/// Returns the shared memory of a block of an attention kernel, and how many blocks it is compiled
/// for; `None` if `name` is none of them.
pub(super) fn residency(name: &str, processors: Processors) -> Option<Residency> {
    let (page_type, head_dim) = name.strip_prefix("attention_")?.split_once('_')?;
    let page_type = match page_type {
        "bf16" => PageType::Bf16,
        "e4m3" => PageType::E4m3,
        _ => return None,
    };
    let head_dim = head_dim.parse().ok()?;
    let shared_bytes = shared_bytes(processors, page_type, head_dim);
    Some(Residency { shared_bytes, blocks_max: blocks_max(processors, head_dim) })
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
        let shared_bytes = shared_bytes(processors, page_type, head_dim);
        let blocks = processors
            .resident_blocks(shared_bytes + DECLARED_BYTES, blocks_max(processors, head_dim));
        Self { shared_bytes: shared_bytes as u32, ..Self::new([blocks, 1, 1], THREADS) }
    }

    /// Returns the launch shape of `attention_merge`, whose blocks use no shared memory.
    pub fn attention_merge(processors: Processors) -> Self {
        Self::new([processors.count * BLOCKS_PER_PROCESSOR, 1, 1], THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_TOKENS: usize = 16;
    const SHAPE: AttentionShape =
        AttentionShape { heads: 12, kv_heads: 2, head_dim: 64, scale: 1.0 };

    /// Test helper: returns the 32-bit words of `plan`, followed by the page tables of `sequences`.
    fn written(plan: &AttentionPlan, sequences: &[ScheduledSequence]) -> Vec<u32> {
        let mut words = vec![7; plan.words()];
        plan.write(plan.words(), &mut words);
        sequences.iter().for_each(|sequence| words.extend(&*sequence.pages));
        words
    }

    fn items(words: &[u32]) -> Vec<Item> {
        let count = words[0] as usize;
        words[HEAD_WORDS..HEAD_WORDS + 8 * count].chunks_exact(8).map(item).collect()
    }

    fn item(words: &[u32]) -> Item {
        let [row, rows, position, table, kv_head, from, to, part] = words.try_into().unwrap();
        Item { row, rows, position, table, kv_head, from, to, part }
    }

    fn merges(words: &[u32]) -> Vec<Merge> {
        let start = words[2] as usize;
        let words = words[start..start + 5 * words[1] as usize].chunks_exact(5);
        words
            .map(|words| {
                let [row, rows, kv_head, part, splits] = words.try_into().unwrap();
                Merge { row, rows, kv_head, part, splits }
            })
            .collect()
    }

    /// Test helper: returns sequences that decode or prefill, each with the given first position
    /// and number of rows, whose pages are numbered one after another.
    fn sequences(lengths: &[(usize, usize)]) -> Vec<ScheduledSequence> {
        let (mut row, mut page) = (0, 0);
        let mut one = |&(position, rows): &(usize, usize)| {
            let pages = (position + rows).div_ceil(PAGE_TOKENS) as u32;
            let table = (page..page + pages).collect();
            let sequence =
                ScheduledSequence { row, rows, position, pages: table, ..Default::default() };
            (row, page) = (row + rows, page + pages);
            sequence
        };
        lengths.iter().map(&mut one).collect()
    }

    const STEPS: [&[(usize, usize)]; 5] = [
        &[(0, 1)],
        &[(9000, 1)],
        &[(0, 200), (300, 64), (77, 1), (5000, 1), (5001, 3)],
        &[(100, 1), (100, 1), (100, 1), (100, 1), (100, 1), (100, 1), (100, 1), (100, 1)],
        &[(30_000, 512), (63, 1), (64, 1), (127, 2)],
    ];

    #[test]
    fn every_row_sees_each_of_its_positions_once() {
        for (lengths, window) in STEPS.iter().flat_map(|step| [(step, None), (step, Some(128))]) {
            let sequences = sequences(lengths);
            let words = written(
                &AttentionPlan::new(&sequences, PAGE_TOKENS, &SHAPE, window, 24),
                &sequences,
            );
            for sequence in &sequences {
                for (row, kv_head) in (0..sequence.rows).flat_map(|row| [(row, 0), (row, 1)]) {
                    let at = (sequence.row + row) as u32;
                    let mine = items(&words).into_iter().filter(|item| {
                        item.kv_head == kv_head && (item.row..item.row + item.rows).contains(&at)
                    });
                    let mut stretches: Vec<(u32, u32)> =
                        mine.map(|item| (item.from, item.to)).collect();
                    stretches.sort_unstable();
                    let end = (sequence.position + row + 1) as u32;
                    let seen = window.map_or(0, |window| end.saturating_sub(window as u32));
                    assert!(stretches[0].0 <= seen, "{window:?} {sequence:?}");
                    assert!(stretches[stretches.len() - 1].1 >= end);
                    assert!(stretches.windows(2).all(|two| two[0].1 == two[1].0), "{stretches:?}");
                    assert!(stretches.iter().all(|(from, _)| from % TILE as u32 == 0));
                }
            }
        }
    }

    #[test]
    fn tables_parts_and_merges_belong_to_their_items() {
        for lengths in STEPS {
            let sequences = sequences(lengths);
            let plan = AttentionPlan::new(&sequences, PAGE_TOKENS, &SHAPE, None, 24);
            let words = written(&plan, &sequences);
            let mut lines = vec![0; plan.part_lines];
            for item in items(&words) {
                let sequence =
                    sequences.iter().rfind(|sequence| sequence.row <= item.row as usize).unwrap();
                let table = &words[item.table as usize..][..sequence.pages.len()];
                assert_eq!(table, &*sequence.pages);
                if item.part != NONE {
                    let first = item.part as usize;
                    let count = item.rows as usize * SHAPE.group();
                    lines[first..first + count].iter_mut().for_each(|used| *used += 1);
                }
            }
            assert!(lines.iter().all(|used| *used == 1), "each line is one item's");
            for merge in merges(&words) {
                let count = merge.rows * SHAPE.group() as u32;
                let mut before = 0;
                for split in 0..merge.splits {
                    let part = merge.part + split * count;
                    let item = items(&words).into_iter().find(|item| item.part == part).unwrap();
                    assert_eq!((item.row, item.kv_head), (merge.row, merge.kv_head));
                    assert!(item.from >= before, "positions rise");
                    before = item.to;
                }
            }
        }
    }

    #[test]
    fn work_is_split_only_where_blocks_would_idle_and_within_its_bounds() {
        let counts = |lengths: &[(usize, usize)]| {
            let plan = AttentionPlan::new(&sequences(lengths), PAGE_TOKENS, &SHAPE, None, 24);
            (plan.items.len(), plan.merges.len())
        };
        assert_eq!(counts(&[(9000, 1)]), (24, 2), "141 tiles twice, among 24 blocks");
        assert_eq!(counts(&[(9000, 1); 40]), (80, 0));
        assert_eq!(counts(&[(255, 1)]), (2, 0));
        for blocks in [1, 2, 24, 264] {
            for lengths in STEPS {
                let plan =
                    AttentionPlan::new(&sequences(lengths), PAGE_TOKENS, &SHAPE, None, blocks);
                assert!(plan.part_lines <= AttentionPlan::part_lines_max(&SHAPE, blocks));
                assert_eq!(plan.starts.len(), blocks + 1);
                assert_eq!((plan.starts[0], plan.starts[blocks]), (0, plan.items.len() as u32));
                let longest = plan.items.iter().map(Item::work).max().unwrap();
                let work: usize = plan.items.iter().map(Item::work).sum();
                // The last item of the busiest block went to a block with at most the average.
                assert!(busiest(&plan, Item::work) <= work / blocks + longest);
                let decodes = lengths.iter().map(|(position, _)| (*position, 1));
                let decodes: Vec<_> = decodes.collect();
                let plan =
                    AttentionPlan::new(&sequences(&decodes), PAGE_TOKENS, &SHAPE, None, blocks);
                assert!(plan.words() <= AttentionPlan::words_max(decodes.len(), &SHAPE, blocks));
            }
        }
    }

    /// Test helper: returns the most work that a block of the plan has.
    fn busiest(plan: &AttentionPlan, work: fn(&Item) -> usize) -> usize {
        let of = |ends: &[u32]| plan.items[ends[0] as usize..ends[1] as usize].iter().map(work);
        plan.starts.windows(2).map(|ends| of(ends).sum()).max().unwrap()
    }

    /// Test helper: returns items of `lengths` tiles, each cut into parts of at most `most` tiles.
    fn cut(lengths: &[usize], most: usize) -> Vec<Item> {
        let parts = |tiles: &usize| {
            let whole = Item { to: (tiles * TILE) as u32, ..Item::zeroed() };
            if *tiles <= most { vec![whole] } else { split(whole, most, 0, 0) }
        };
        lengths.iter().flat_map(parts).collect()
    }

    /// Test helper: returns the row of the notes' table for decoding sequences of these lengths in
    /// tokens: for each way to divide their attention among the blocks of an H200, the tiles of an
    /// average block as a share of the busiest block's work. Heads are those of Qwen3-8B.
    fn balance(name: &str, lengths: &[usize]) -> String {
        const BLOCKS: usize = 264;
        const SHAPE: AttentionShape =
            AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, scale: 1.0 };
        let rows: Vec<_> = lengths.iter().map(|length| (length - 1, 1)).collect();
        let plan = AttentionPlan::new(&sequences(&rows), PAGE_TOKENS, &SHAPE, None, BLOCKS);
        let heads: Vec<usize> =
            lengths.iter().flat_map(|length| [length.div_ceil(TILE); SHAPE.kv_heads]).collect();
        let tiles: usize = heads.iter().sum();
        // Before: the longest first, and each block takes every 264th.
        let mut items = plan.items.clone();
        items.sort_by_key(|item| Reverse(item.tiles()));
        let strided = (0..BLOCKS).map(|block| items.iter().skip(block).step_by(BLOCKS));
        let strided = strided.map(|items| items.map(Item::work).sum()).max().unwrap_or(0);
        let fixed = [4, 16].map(|most| {
            let (items, starts) = assign(cut(&heads, most), BLOCKS);
            busiest(&AttentionPlan { items, starts, ..AttentionPlan::default() }, Item::work)
        });
        // Equal numbers of tiles: each block has a run of them, with all items that it meets.
        let ends: Vec<usize> =
            heads.iter().scan(0, |end, tiles| Some(std::mem::replace(end, *end + tiles))).collect();
        let equal = |block| {
            let [from, to] = [block, block + 1].map(|block| tiles * block / BLOCKS);
            let met = ends.iter().zip(&heads).filter(|(at, n)| **at < to && *at + *n > from);
            to - from + met.count()
        };
        let equal = (0..BLOCKS).map(equal).max().unwrap();
        let share = |work: usize| format!("{:.0} %", 100.0 * tiles as f64 / (BLOCKS * work) as f64);
        let all = [strided, busiest(&plan, Item::work), fixed[0], fixed[1], equal].map(share);
        format!("| {name} | {} |", all.join(" | "))
    }

    /// The notes have the balance of realistic batches, and this test computes it.
    #[test]
    fn blocks_are_balanced_as_the_notes_say() {
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) / f64::from(u32::MAX)
        };
        let mut rows = vec![balance("1 of 8,192", &[8192])];
        for count in [16, 40, 64, 256] {
            rows.push(balance(&format!("{count} of 1,024"), &vec![1024; count]));
        }
        for count in [16, 64, 256] {
            let lengths: Vec<usize> =
                (0..count).map(|_| 1024 + (1024.0 * uniform()) as usize).collect();
            rows.push(balance(&format!("{count} of 1,024 to 2,048"), &lengths));
        }
        for count in [16, 64, 256] {
            let one = |x: f64| (-800.0 * (1.0 - x).max(1e-3).ln()) as usize + 32;
            let lengths: Vec<usize> = (0..count).map(|_| one(uniform())).collect();
            rows.push(balance(&format!("{count} of 32 to 5,558, most of them short"), &lengths));
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/notes/cuda.md");
        let notes = std::fs::read_to_string(path).unwrap();
        assert!(notes.contains(&rows.join("\n")), "the table is now\n{}", rows.join("\n"));
    }

    #[test]
    fn shared_memory_holds_queries_and_two_stages_in_blocks_that_fit() {
        let shape = |processors, page_type, head_dim| {
            let launch = Launch::attention(processors, page_type, head_dim);
            assert_eq!(launch.block, 128);
            (launch.grid[0], launch.shared_bytes >> 10)
        };
        assert_eq!(shape(Processors::H200, PageType::Bf16, 128), (264, 80));
        assert_eq!(shape(Processors::A100, PageType::Bf16, 128), (216, 80));
        assert_eq!(shape(Processors::H200, PageType::Bf16, 256), (132, 160));
        assert_eq!(shape(Processors::A100, PageType::Bf16, 256), (108, 160));
        assert_eq!(shape(Processors::H200, PageType::E4m3, 256), (132, 160));
        assert_eq!(shape(Processors::A100, PageType::E4m3, 256), (108, 96));
        assert_eq!(shape(Processors::H200, PageType::E4m3, 64), (528, 40));
        assert_eq!(shape(Processors::A100, PageType::E4m3, 64), (216, 24));
        assert_eq!(entry(PageType::Bf16, 128), Some("attention_bf16_128"));
        assert_eq!(entry(PageType::E4m3, 16), None);
    }
}
