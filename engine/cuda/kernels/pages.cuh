//! Memory layout of a KV page: rows of keys or values are swizzled as matrix multiplication reads
//! them from shared memory, so that copying a page needs consecutive bytes only.
#pragma once
#include "prims.cuh"

/// Offset in bytes of a 16-byte piece of a row, in a page (or tile) of `rows` rows. A row has
/// `pieces` pieces, a power of two. At most eight pieces of a row are adjacent and form a panel
/// with those of the other rows; the next panel holds the next eight. Within a panel, pieces are
/// swizzled as `piece` does, counting rows from a multiple of eight.
DEVICE u32 place_in_page(u32 pieces, u32 rows, u32 row, u32 column) {
    u32 width = min(pieces, 8u);
    u32 beside = column % width ^ (row * width / 8 & (width - 1));
    return ((column / width * rows + row) * width + beside) * 16;
}
