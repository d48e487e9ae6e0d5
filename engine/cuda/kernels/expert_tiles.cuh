//! Tiles of a GEMM over the rows of several experts: which expert, rows and columns a tile has. The
//! tiles are found on the device from the offsets of the experts' rows, so that a launch does not
//! depend on them.
#pragma once
#include "prims.cuh"

/// Number of row tiles in a band, whose tiles are all computed before the next band begins.
#define BAND 16

/// One tile of results: its expert, its first row among all rows, its number of rows, its first
/// column.
struct Tile {
    u32 expert, row, rows, column;
};

/// Rows of each expert: offsets [experts + 1] gives the first row of each. Without offsets, all
/// `rows` belong to one matrix.
struct Groups {
    const u32* offsets;
    u32 experts, rows;

    DEVICE_MEMBER u32 start(u32 expert) const {
        return offsets ? offsets[min(expert, experts)] : expert == 0 ? 0 : rows;
    }
};

/// Number of parts of `PART` elements, the last of which may be smaller.
template <u32 PART> DEVICE u32 parts_of(u32 size) { return (size + PART - 1) / PART; }

/// Tile number `index` of an expert, of at most ROWS rows and COLUMNS columns.
template <u32 ROWS, u32 COLUMNS>
DEVICE Tile tile_of(u32 expert, u32 start, u32 rows, u32 columns, u32 index) {
    u32 band = index / (BAND * columns), in_band = index % (BAND * columns);
    u32 height = min(parts_of<ROWS>(rows) - band * BAND, static_cast<u32>(BAND));
    u32 row = (band * BAND + in_band % height) * ROWS;
    return {expert, start + row, min(rows - row, ROWS), in_band / height * COLUMNS};
}

/// Tile number `index` over all experts; zero rows behind the last tile. Each warp searches for
/// itself, 32 experts at a time.
template <u32 ROWS, u32 COLUMNS> DEVICE Tile find_tile(const Groups& groups, u32 n, u32 index) {
    u32 columns = parts_of<COLUMNS>(n);
    for (u32 base = 0; base < groups.experts; base += LANES) {
        u32 start = groups.start(base + lane()), rows = groups.start(base + lane() + 1) - start;
        u32 tiles = parts_of<ROWS>(rows) * columns, end = tiles;
#pragma unroll
        for (u32 by = 1; by < LANES; by *= 2) {
            u32 before = __shfl_up_sync(ALL_LANES, end, by);
            if (lane() >= by) end += before;
        }
        u32 behind = __ballot_sync(ALL_LANES, end > index);
        if (behind != 0) {
            u32 at = LANES - static_cast<u32>(__popc(behind));
            u32 first = __shfl_sync(ALL_LANES, end - tiles, at);
            start = __shfl_sync(ALL_LANES, start, at);
            rows = __shfl_sync(ALL_LANES, rows, at);
            return tile_of<ROWS, COLUMNS>(base + at, start, rows, columns, index - first);
        }
        index -= __shfl_sync(ALL_LANES, end, LANES - 1);
    }
    return {0, 0, 0, 0};
}
