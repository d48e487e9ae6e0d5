//! Tests of the attention plan: what it covers, its bounds, and the balance of its blocks.

use super::*;

const PAGE_TOKENS: usize = 16;
const SHAPE: AttentionShape = AttentionShape { heads: 12, kv_heads: 2, head_dim: 64, scale: 1.0 };

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
        let words =
            written(&AttentionPlan::new(&sequences, PAGE_TOKENS, &SHAPE, window, 24), &sequences);
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
            let plan = AttentionPlan::new(&sequences(lengths), PAGE_TOKENS, &SHAPE, None, blocks);
            assert!(plan.part_lines <= AttentionPlan::part_lines_max(&SHAPE, blocks));
            assert_eq!(plan.starts.len(), blocks + 1);
            assert_eq!((plan.starts[0], plan.starts[blocks]), (0, plan.items.len() as u32));
            let longest = plan.items.iter().map(Item::work).max().unwrap();
            let work: usize = plan.items.iter().map(Item::work).sum();
            // The last item of the busiest block went to a block with at most the average.
            assert!(busiest(&plan, Item::work) <= work / blocks + longest);
            let decodes = lengths.iter().map(|(position, _)| (*position, 1));
            let decodes: Vec<_> = decodes.collect();
            let plan = AttentionPlan::new(&sequences(&decodes), PAGE_TOKENS, &SHAPE, None, blocks);
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
