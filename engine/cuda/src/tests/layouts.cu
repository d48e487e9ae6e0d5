//! Kernels that return where the shim and the kernels place operands of warpgroup multiplication in
//! shared memory, to be compared with the layouts that PTX defines.
//!
//! Block: 128.
//@ descriptors: registers 32, shared 0
//@ element_offsets: registers 32, shared 0
//@ piece_offsets: registers 32, shared 0
//@ copied_tile_64: registers 128, shared 16
//@ copied_tile_128: registers 128, shared 16
//@ copied_tile_256: registers 128, shared 16
#include "../kernels/prims.cuh"
// The entries of the included file are not compiled.
#undef __global__
#define __global__ inline
#include "../kernels/attention_sm90.cu"

/// Descriptors of the tile at `at` in shared memory: with rows along K; transposed, with panels
/// `apart` bytes after one another.
extern "C" void descriptors(u64* out, u32 at, u32 apart) {
    DYNAMIC_TILES(shared);
    if (threadIdx.x > 0) return;
    out[0] = describe(shared + at);
    out[1] = describe_transposed(shared + at, apart);
}

/// Byte offsets of the elements [rows, 16] of one multiplication's operand in shared memory, as the
/// shim decodes its descriptor; rows are columns of a transposed operand.
extern "C" void element_offsets(u64* out, u64 descriptor, u32 rows, u32 is_transposed) {
    shim::Tile tile(descriptor);
    for (u32 i = threadIdx.x; i < rows * 16; i += THREADS) {
        u32 row = i / 16, k = i % 16;
        out[i] = is_transposed ? tile.across(row, k) : tile.along(row, k);
    }
}

/// Byte offsets of the 16-byte pieces [rows, pieces] of a page or tile; and those of the first
/// eight pieces of each row in the tiles of matrix multiplication.
extern "C" void piece_offsets(u32* out, u32* in_tile, u32 rows, u32 pieces) {
    for (u32 i = threadIdx.x; i < rows * pieces; i += THREADS) {
        out[i] = place_in_page(pieces, rows, i / pieces, i % pieces);
    }
    u8* none = nullptr;
    for (u32 i = threadIdx.x; i < rows * 8; i += THREADS) {
        in_tile[i] = static_cast<u32>(piece<8>(none, i / 8, i % 8) - none);
    }
}

/// Copies the keys and values of 64 positions from `base` of one sequence with one KV head, and
/// returns the tiles [2, 64, D] as they are in shared memory.
template <int D>
DEVICE void copied_tile(u8* shared, u64* arrivals, uint4* out, const bf16* pages, const u32* table,
                        u32 page_bits, u32 base) {
    using Copies = BulkCopies<bf16, D>;
    Copies copies = {arrivals, 0};
    Tiles<bf16, D> tiles = {shared};
    Item item = {};
    item.to = base + TILE;
    AttentionShape shape = {1, 1, page_bits, 2, 0, 1.0f};
    copies.open();
    copies.begin(tiles, 0, pages, table, item, base, shape);
    copies.await(0);
    const uint4* from = reinterpret_cast<const uint4*>(tiles.keys(0));
    for (u32 i = threadIdx.x; i < 2 * TILE * D / 8; i += THREADS) out[i] = from[i];
}

#define COPIED_TILE(D)                                                                             \
    extern "C" void copied_tile_##D(uint4* out, const bf16* pages, const u32* table, u32 page_bits, \
                                    u32 base) {                                                    \
        DYNAMIC_TILES(shared);                                                                     \
        __shared__ u64 arrivals[2];                                                                \
        copied_tile<D>(shared, arrivals, out, pages, table, page_bits, base);                      \
    }
COPIED_TILE(64)
COPIED_TILE(128)
COPIED_TILE(256)
