//! The work list of attention: which block computes which lines over which positions.
//!
//! It is made once a step and copied to the device with the page tables. Grids do not depend on it,
//! so that a captured launch stays what it is. Long stretches of positions are split where there are
//! more blocks than items, and merged afterwards; so how a line's sums are split depends on what
//! else is in the step.

use std::borrow::Cow;

use bytemuck::{NoUninit, Zeroable};

use super::{Launch, Processors};
use engine_core::AttentionShape;

/// Positions of a tile, and lines of the largest item.
const TILE: usize = 64;
/// Tiles of an item below which a split costs more than it gains: each has its own queries, sums and
/// merge.
const TILES_MIN: usize = 4;
/// Blocks that a multiprocessor runs at once if its memory allows, for which the kernels are compiled.
const BLOCKS_PER_PROCESSOR: usize = 2;
/// Shared memory that `attention` declares, beside the dynamic.
const DECLARED_BYTES: usize = 512;
/// Threads of a block.
const THREADS: usize = 128;
/// Words of the plan before the items.
const HEAD_WORDS: usize = 8;
/// `Item::part` of what is not split.
const NONE: u32 = u32::MAX;

/// Type of keys and values in their pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageType {
    /// Two bytes.
    Bf16,
    /// Eight bits, with a scale for each head's keys and values.
    E4m3,
}

impl PageType {
    fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }
}

/// The kernel for heads of that size, if there is one.
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

/// How the kernel's last argument lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, NoUninit)]
#[repr(C)]
pub struct AttentionArguments {
    /// Query heads.
    pub heads: u32,
    /// Key heads, and as many value heads.
    pub kv_heads: u32,
    /// Tokens of a page: two to this power.
    pub page_bits: u32,
    /// From one page of the layer to the next, in `[page tokens, D]`.
    pub page_stride: u32,
    /// 0 where there is no window.
    pub window: u32,
    /// Factor of the scores.
    pub scale: f32,
}

/// As [`AttentionArguments`], of `attention_merge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
pub struct MergeArguments {
    /// Query heads.
    pub heads: u32,
    /// Key heads, and as many value heads.
    pub kv_heads: u32,
    /// D: elements of a head.
    pub head_dim: u32,
}

/// One sequence's rows in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span<'a> {
    /// Index of the sequence's first row in the step.
    pub row: usize,
    /// Number of rows, at least 1.
    pub rows: usize,
    /// Position of the first row in the sequence.
    pub position: usize,
    /// Page table, up to the last row.
    pub pages: Cow<'a, [u32]>,
}

/// Lines of one block, as the kernel reads them.
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
}

/// Lines whose positions were split, as the kernel reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, NoUninit)]
#[repr(C)]
struct Merge {
    row: u32,
    rows: u32,
    kv_head: u32,
    part: u32,
    splits: u32,
}

/// The attention of one step, for all layers of one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttentionPlan {
    items: Vec<Item>,
    merges: Vec<Merge>,
    /// Lines that partial results take.
    pub part_lines: usize,
}

impl AttentionPlan {
    /// Divides the work among `blocks`. With a window, whole tiles before it are left out.
    ///
    /// # Panics
    /// More query heads share a KV head than an item has lines.
    pub fn new(
        spans: &[Span<'_>],
        shape: &AttentionShape,
        window: Option<usize>,
        blocks: usize,
    ) -> Self {
        let whole = whole_items(spans, shape, window);
        let tiles: usize = whole.iter().map(Item::tiles).sum();
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
        // Blocks take items in turns: the long ones first.
        items.sort_by_key(|item| std::cmp::Reverse(item.tiles()));
        Self { items, merges, part_lines }
    }

    /// Words of the plan without page tables.
    pub fn words(&self) -> usize {
        HEAD_WORDS + words(&self.items).len() + words(&self.merges).len()
    }

    /// [`AttentionPlan::words`] of `rows` decoding sequences, at most: what is split makes at most two
    /// items a block more, and no item is merged twice.
    pub fn words_max(rows: usize, shape: &AttentionShape, blocks: usize) -> usize {
        let whole = rows * shape.kv_heads;
        let item_words = size_of::<Item>() / size_of::<u32>();
        let merge_words = size_of::<Merge>() / size_of::<u32>();
        HEAD_WORDS + (whole + 2 * blocks) * item_words + whole.min(blocks) * merge_words
    }

    /// Writes what the kernels read, numbers of items and merges, then both. The page tables of the
    /// spans follow one another from word `tables` on, counted from the first of `out`.
    pub fn write(&self, tables: usize, out: &mut [u32]) {
        let merges_at = HEAD_WORDS + words(&self.items).len();
        out[..HEAD_WORDS].fill(0);
        out[..3].copy_from_slice(
            &[self.items.len(), self.merges.len(), merges_at].map(|count| count as u32),
        );
        let item_words = out[HEAD_WORDS..merges_at].chunks_exact_mut(size_of::<Item>() / 4);
        for (item, out) in self.items.iter().zip(item_words) {
            let item = Item { table: item.table + tables as u32, ..*item };
            out.copy_from_slice(words(&[item]));
        }
        out[merges_at..self.words()].copy_from_slice(words(&self.merges));
    }

    /// Lines that partial results take at most, whatever the step: what is split has more than
    /// a block's share of tiles, so that there are at most two splits a block.
    pub fn part_lines_max(shape: &AttentionShape, blocks: usize) -> usize {
        2 * blocks * (TILE / shape.group()).max(1) * shape.group()
    }
}

fn words<T: NoUninit>(items: &[T]) -> &[u32] {
    bytemuck::cast_slice(items)
}

/// What would be computed if nothing was split; page tables are counted from the first.
fn whole_items(spans: &[Span<'_>], shape: &AttentionShape, window: Option<usize>) -> Vec<Item> {
    assert!(shape.group() <= TILE, "{} query heads share a KV head", shape.group());
    let rows_max = TILE / shape.group();
    let (mut items, mut table) = (Vec::new(), 0);
    for span in spans {
        for first in (0..span.rows).step_by(rows_max) {
            let rows = rows_max.min(span.rows - first);
            let position = span.position + first;
            let hidden = window.map_or(0, |window| (position + 1).saturating_sub(window));
            items.extend((0..shape.kv_heads).map(|kv_head| Item {
                row: (span.row + first) as u32,
                rows: rows as u32,
                position: position as u32,
                table,
                kv_head: kv_head as u32,
                from: (hidden / TILE * TILE) as u32,
                to: (position + rows) as u32,
                part: NONE,
            }));
        }
        table += span.pages.len() as u32;
    }
    items
}

/// Divides an item of more than `tiles_max` tiles into about equal ones, their parts from `part` on.
fn split(item: Item, tiles_max: usize, part: u32, lines: u32) -> Vec<Item> {
    let tiles = item.tiles();
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

impl Launch {
    /// `attention`: as many blocks as run at once. Warpgroups read keys and values of eight bits where
    /// they were widened to.
    pub fn attention(processors: Processors, page_type: PageType, head_dim: usize) -> Self {
        let (wide, tile) = (TILE * head_dim * 2, TILE * head_dim * page_type.bytes());
        let is_widened = processors.has_warpgroups && page_type == PageType::E4m3;
        let shared_bytes = wide + 4 * tile + if is_widened { 2 * wide } else { 0 };
        let own_bytes = shared_bytes + DECLARED_BYTES;
        let blocks = processors.resident_blocks(own_bytes, BLOCKS_PER_PROCESSOR);
        Self { shared_bytes: shared_bytes as u32, ..Self::new([blocks, 1, 1], THREADS) }
    }

    /// `attention_merge`: blocks without shared memory.
    pub fn attention_merge(processors: Processors) -> Self {
        Self::new([processors.count * BLOCKS_PER_PROCESSOR, 1, 1], THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttentionShape =
        AttentionShape { heads: 12, kv_heads: 2, head_dim: 64, scale: 1.0 };

    /// The words of a plan, page tables behind it.
    fn written(plan: &AttentionPlan, spans: &[Span<'_>]) -> Vec<u32> {
        let mut words = vec![7; plan.words()];
        plan.write(plan.words(), &mut words);
        spans.iter().for_each(|span| words.extend(&*span.pages));
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

    /// Decoding sequences and chunks of such lengths, their pages numbered one after another.
    fn spans(lengths: &[(usize, usize)]) -> Vec<Span<'static>> {
        let (mut row, mut page) = (0, 0);
        let mut one = |&(position, rows): &(usize, usize)| {
            let pages = (position + rows).div_ceil(16) as u32;
            let span = Span { row, rows, position, pages: (page..page + pages).collect() };
            (row, page) = (row + rows, page + pages);
            span
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
            let spans = spans(lengths);
            let words = written(&AttentionPlan::new(&spans, &SHAPE, window, 24), &spans);
            for span in &spans {
                for (row, kv_head) in (0..span.rows).flat_map(|row| [(row, 0), (row, 1)]) {
                    let at = (span.row + row) as u32;
                    let mine = items(&words).into_iter().filter(|item| {
                        item.kv_head == kv_head && (item.row..item.row + item.rows).contains(&at)
                    });
                    let mut stretches: Vec<(u32, u32)> =
                        mine.map(|item| (item.from, item.to)).collect();
                    stretches.sort_unstable();
                    let end = (span.position + row + 1) as u32;
                    let seen = window.map_or(0, |window| end.saturating_sub(window as u32));
                    assert!(stretches[0].0 <= seen, "{window:?} {span:?}");
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
            let spans = spans(lengths);
            let plan = AttentionPlan::new(&spans, &SHAPE, None, 24);
            let words = written(&plan, &spans);
            let mut lines = vec![0; plan.part_lines];
            for item in items(&words) {
                let span = spans.iter().rfind(|span| span.row <= item.row as usize).unwrap();
                let table = &words[item.table as usize..][..span.pages.len()];
                assert_eq!(table, &*span.pages);
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
            let plan = AttentionPlan::new(&spans(lengths), &SHAPE, None, 24);
            (plan.items.len(), plan.merges.len())
        };
        assert_eq!(counts(&[(9000, 1)]), (24, 2), "141 tiles twice, among 24 blocks");
        assert_eq!(counts(&[(9000, 1); 40]), (80, 0));
        assert_eq!(counts(&[(255, 1)]), (2, 0));
        for blocks in [1, 2, 24, 264] {
            for lengths in STEPS {
                let plan = AttentionPlan::new(&spans(lengths), &SHAPE, None, blocks);
                assert!(plan.part_lines <= AttentionPlan::part_lines_max(&SHAPE, blocks));
                let longest = plan.items[0].tiles();
                assert!(plan.items.iter().all(|item| item.tiles() <= longest), "long ones first");
                let decodes = lengths.iter().map(|(position, _)| (*position, 1));
                let decodes: Vec<_> = decodes.collect();
                let plan = AttentionPlan::new(&spans(&decodes), &SHAPE, None, blocks);
                assert!(plan.words() <= AttentionPlan::words_max(decodes.len(), &SHAPE, blocks));
            }
        }
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
        assert_eq!(shape(Processors::H200, PageType::E4m3, 64), (264, 40));
        assert_eq!(entry(PageType::Bf16, 128), Some("attention_bf16_128"));
        assert_eq!(entry(PageType::E4m3, 16), None);
    }
}
