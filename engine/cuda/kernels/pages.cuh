//! How pages keep rows of keys and values: as products read them from shared memory, so that a copy of a
//! page is a copy of consecutive bytes.
#pragma once
#include "prims.cuh"

/// Bytes from the first of a page's `rows` rows to a piece of 16 bytes of one of them. Rows have a
/// power of two of `pieces`, of which eight at most lie beside each other; behind those of all rows
/// come the next eight. Pieces are placed as `piece` does, where rows are counted from a multiple of
/// eight.
DEVICE u32 place_in_page(u32 pieces, u32 rows, u32 row, u32 column) {
    u32 width = min(pieces, 8u);
    u32 beside = column % width ^ (row * width / 8 & (width - 1));
    return ((column / width * rows + row) * width + beside) * 16;
}
