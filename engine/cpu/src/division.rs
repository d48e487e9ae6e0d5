//! How a product by tiles of columns is divided into the work items of threads.

use std::ops::Range;

use super::pool::Pool;

/// Rows that stay together: those of the highest tile.
pub(super) const UNIT_ROWS: usize = 8;
/// Rows whose sums stay in the first cache beside what they are made of.
const PART_ROWS: usize = 128;
/// Bytes of activations that a work item passes over, which stay in the second cache.
const CHUNK: usize = 384 << 10;
/// Work items for each thread: more divide the work more evenly, fewer cost less.
const ITEMS_PER_THREAD: usize = 4;

/// Chunks of rows by runs of tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Division {
    rows: usize,
    tiles: usize,
    chunk: usize,
    per_item: usize,
}

impl Division {
    /// Of `rows` rows of `row_bytes` by `tiles` tiles.
    pub(super) fn new(rows: usize, row_bytes: usize, tiles: usize, threads: usize) -> Self {
        let chunk = chunk_rows(rows, row_bytes, threads);
        Self { rows, tiles, chunk, per_item: (tiles / (ITEMS_PER_THREAD * threads)).max(1) }
    }

    /// Calls `task(thread, rows, tiles)` for every item.
    pub(super) fn run(
        self,
        pool: &mut Pool,
        task: &(dyn Fn(usize, Range<usize>, Range<usize>) + Sync),
    ) {
        let Self { rows, tiles, chunk, per_item } = self;
        let items = tiles.div_ceil(per_item);
        // Items of one chunk of rows follow one another, and find its activations in the cache.
        pool.items(rows.div_ceil(chunk) * items, &|thread, item| {
            let (row, tile) = (item / items * chunk, item % items * per_item);
            task(thread, row..rows.min(row + chunk), tile..tiles.min(tile + per_item));
        });
    }
}

/// Rows of an item that are taken at once: equal parts of its `rows`, whose sums stay in the first cache.
#[inline(always)]
pub(super) fn part_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(PART_ROWS)).next_multiple_of(UNIT_ROWS)
}

/// Rows that a work item passes over: those that stay in the second cache, and where there are many
/// no more than a thread's share, so that a thread goes on with the rows it has.
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
