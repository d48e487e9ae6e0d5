//! Thread split of a matmul: how a GEMM by tiles of columns is divided into work items.

use std::ops::Range;

use super::pool::Pool;

/// Number of rows that are never split: those of the highest micro-kernel tile.
pub(super) const UNIT_ROWS: usize = 8;
/// Rows whose sums stay in the L1 cache together with their operands.
const PART_ROWS: usize = 128;
/// Number of bytes of activations that one work item reads repeatedly, which stay in the L2 cache.
const CHUNK: usize = 384 << 10;
/// Work items per thread: more items balance the threads better, fewer cost less.
const ITEMS_PER_THREAD: usize = 4;

/// Division of a GEMM into work items: chunks of rows by runs of column tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Division {
    rows: usize,
    tiles: usize,
    chunk: usize,
    per_item: usize,
}

impl Division {
    /// Divides a GEMM of `rows` rows, each `row_bytes` long, by `tiles` tiles of columns.
    pub(super) fn new(rows: usize, row_bytes: usize, tiles: usize, threads: usize) -> Self {
        let chunk = chunk_rows(rows, row_bytes, threads);
        Self { rows, tiles, chunk, per_item: (tiles / (ITEMS_PER_THREAD * threads)).max(1) }
    }

    /// Calls `task(thread, rows, tiles)` for every work item on the threads of `pool`.
    pub(super) fn run(
        self,
        pool: &mut Pool,
        task: &(dyn Fn(usize, Range<usize>, Range<usize>) + Sync),
    ) {
        let Self { rows, tiles, chunk, per_item } = self;
        let items = tiles.div_ceil(per_item);
        // Consecutive items share a chunk of rows, so its activations are still in the cache.
        pool.items(rows.div_ceil(chunk) * items, &|thread, item| {
            let (row, tile) = (item / items * chunk, item % items * per_item);
            task(thread, row..rows.min(row + chunk), tile..tiles.min(tile + per_item));
        });
    }
}

/// Returns how many of an item's `rows` are computed at once: equal parts whose sums stay in the L1
/// cache.
#[inline(always)]
pub(super) fn part_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(PART_ROWS)).next_multiple_of(UNIT_ROWS)
}

/// Returns the number of rows of a work item: as many as stay in the L2 cache, and for a large step
/// at most a thread's share, so that each thread keeps the rows it has.
fn chunk_rows(rows: usize, row_bytes: usize, threads: usize) -> usize {
    let cached = (CHUNK / row_bytes / UNIT_ROWS).max(1) * UNIT_ROWS;
    let share = rows.div_ceil(threads).next_multiple_of(UNIT_ROWS);
    if share < PART_ROWS { cached } else { cached.min(share) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_row_meets_every_tile_once() {
        for threads in [1, 3] {
            let mut pool = Pool::new(threads);
            for (rows, row_bytes, tiles) in
                [(0, 64, 5), (1, 64, 1), (9, 1 << 20, 7), (129, 64, 40), (700, 6144, 22)]
            {
                let met: Vec<_> = (0..rows * tiles).map(|_| AtomicUsize::new(0)).collect();
                let division = Division::new(rows, row_bytes, tiles, threads);
                division.run(&mut pool, &|_, rows, item_tiles| {
                    assert!(rows.start.is_multiple_of(UNIT_ROWS), "{division:?}: {rows:?}");
                    for row in rows {
                        for tile in item_tiles.clone() {
                            met[row * tiles + tile].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
                assert!(met.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{division:?}");
            }
        }
    }
}
