//! Tests of where operands of warpgroup multiplication are in shared memory, against the layouts
//! that PTX defines.
//!
//! Source: PTX ISA 8.5, "Asynchronous Warpgroup Level Matrix Shared Memory Layout": matrix
//! descriptor format, strides, canonical layouts of the 128-byte swizzling mode.

use super::pages::Pages;
use super::*;
use crate::launch::attention::PageType;

/// Elements of bf16 in 128 bits, called T in the definition.
const T: u64 = 8;

/// Threads of the kernels of `layouts.cu`.
const BLOCK: u32 = 128;

/// Positions of a tile of attention.
const TILE: usize = 64;

/// Matrix descriptor with 128-byte swizzling: all fields but the mode (bits 62 and 63) without the
/// lower four bits of their number of bytes.
fn descriptor(start: u64, leading_bytes: u64, stride_bytes: u64) -> u64 {
    let field = |bytes: u64| bytes >> 4 & 0x3fff;
    field(start) | field(leading_bytes) << 16 | field(stride_bytes) << 32 | 1 << 62
}

/// Permutes the pieces of 16 bytes in 1024 bytes: address bits 4 to 6 are combined with bits 7 to 9
/// by exclusive or.
fn swizzled(address: u64) -> u64 {
    address ^ (address >> 7 & 7) << 4
}

/// Byte address of element (row, k) of a K-major operand of at most 64 columns. Canonical layout, in
/// elements: ((8, m), (T, 2 n)) with the strides ((8 T, stride), (1, T)). The leading dimension is
/// not used.
fn k_major(start: u64, stride_bytes: u64, row: u64, k: u64) -> u64 {
    let offset = row % 8 * 8 * T + row / 8 * (stride_bytes / 2) + k % T + k / T * T;
    swizzled(start + 2 * offset)
}

/// Byte address of element (row, k) of an operand that is M- or N-major. Canonical layout, in
/// elements: ((T, 8, m), (8, k)) with the strides ((1, T, leading), (8 T, stride)).
fn mn_major(start: u64, leading_bytes: u64, stride_bytes: u64, row: u64, k: u64) -> u64 {
    let along_row = row % T + row / T % 8 * T + row / (8 * T) * (leading_bytes / 2);
    let offset = along_row + k % 8 * 8 * T + k / 8 * (stride_bytes / 2);
    swizzled(start + 2 * offset)
}

fn launch(shared_bytes: usize) -> Launch {
    Launch { grid: [1, 1, 1], block: BLOCK, shared_bytes: shared_bytes as u32 }
}

/// Runs one kernel of `layouts.cu` and returns the content of its first buffer.
fn first<E: bytemuck::AnyBitPattern>(program: &Program, call: Call) -> Vec<E> {
    elements(&program.run(&[call])[0][0])
}

#[test]
fn descriptors_have_the_fields_that_ptx_defines() {
    let Some(program) = Program::compile_test("layouts") else { return };
    for (at, apart) in [(0, 8192), (1024, 8192), (40 << 10, 16384), (200 << 10, 1024)] {
        let call = Call::new("descriptors", launch(227 << 10)).buffer(&[0u64; 2]);
        let got: Vec<u64> = first(&program, call.value(at as u32).value(apart as u32));
        // The leading dimension of a swizzled K-major operand is ignored.
        assert_eq!(got[0] & !(0x3fff << 16), descriptor(at, 0, 1024), "{at}");
        assert_eq!(got[1], descriptor(at, apart, 1024), "{at}, {apart}");
    }
}

#[test]
fn operands_are_read_from_where_ptx_places_them() {
    let Some(program) = Program::compile_test("layouts") else { return };
    // Steps of 16 along K begin 32 bytes after one another in K-major operands, and 16 rows of 128
    // bytes in others.
    for (start, leading, stride) in
        [(0, 8192, 1024), (32, 16, 1024), (5 * 1024 + 96, 1024, 2048), (64 << 10, 16384, 1024)]
    {
        for (rows, is_transposed) in
            [(16, false), (64, false), (128, false), (64, true), (128, true)]
        {
            let start = if is_transposed { start / 1024 * 1024 + 2048 } else { start };
            let call = Call::new("element_offsets", launch(0)).buffer(&vec![0u64; rows * 16]);
            let call = call.value(descriptor(start, leading, stride)).value(rows as u32);
            let got: Vec<u64> = first(&program, call.value(u32::from(is_transposed)));
            for (i, got) in got.into_iter().enumerate() {
                let (row, k) = (i as u64 / 16, i as u64 % 16);
                let want = if is_transposed {
                    mn_major(start, leading, stride, row, k)
                } else {
                    k_major(start, stride, row, k)
                };
                assert_eq!(got, want, "{start} {leading} {stride} {is_transposed} ({row}, {k})");
            }
        }
    }
}

/// Pages and tiles consist of panels of 64 columns; a panel is a K-major operand.
#[test]
fn kernels_place_pieces_as_ptx_does() {
    let Some(program) = Program::compile_test("layouts") else { return };
    for head_dim in [64, 128, 256] {
        for rows in [8, 16, 32, 64, 128, 256] {
            let pieces = head_dim / 8;
            let call = Call::new("piece_offsets", launch(0)).buffer(&vec![0u32; rows * pieces]);
            let call = call.buffer(&vec![0u32; rows * 8]).value(rows as u32).value(pieces as u32);
            let got = program.run(&[call]).remove(0);
            let place = |panel: usize, row: usize, column: usize| {
                k_major((panel * rows * 128) as u64, 1024, row as u64, column as u64 * T)
            };
            for (i, got) in elements::<u32>(&got[0]).into_iter().enumerate() {
                let (row, column) = (i / pieces, i % pieces);
                let want = place(column / 8, row, column % 8);
                assert_eq!(u64::from(got), want, "D{head_dim} P{rows}: ({row}, {column})");
            }
            for (i, got) in elements::<u32>(&got[1]).into_iter().enumerate() {
                assert_eq!(u64::from(got), place(0, i / 8, i % 8), "tile: ({}, {})", i / 8, i % 8);
            }
        }
    }
}

/// Bulk copies of pages result in tiles whose keys are K-major operands, and whose values are
/// N-major ones, in panels of 64 columns.
#[test]
fn copied_pages_are_operands_as_ptx_defines_them() {
    let Some(program) = Program::compile_test("layouts") else { return };
    for (head_dim, name) in
        [(64, "copied_tile_64"), (128, "copied_tile_128"), (256, "copied_tile_256")]
    {
        for page_tokens in [8, 16, 32, 64, 128, 256] {
            let cache =
                Pages { page_type: PageType::Bf16, kv_heads: 1, head_dim, page_tokens, layers: 1 };
            let base = if page_tokens > TILE { TILE } else { 0 };
            let count = (base + TILE).div_ceil(page_tokens);
            let table: Vec<u32> = (0..count as u32).rev().collect();
            let mut bytes = vec![0; cache.bytes(count)];
            // Keys and values have the numbers of their elements as bits.
            for (row, d) in (0..TILE).flat_map(|row| (0..head_dim).map(move |d| (row, d))) {
                let at = base + row;
                let slot = table[at / page_tokens] as usize * page_tokens + at % page_tokens;
                for is_value in [false, true] {
                    let number = (row * head_dim + d) as u16 | u16::from(is_value) << 15;
                    let to = cache.at(slot, (0, is_value), d);
                    bytes[to..to + 2].copy_from_slice(&number.to_le_bytes());
                }
            }
            let call = Call::new(name, launch(5 * TILE * head_dim * 2));
            let call = call.buffer(&vec![0u16; 2 * TILE * head_dim]).buffer(&bytes).buffer(&table);
            let call = call.value(page_tokens.ilog2()).value(base as u32);
            let tiles: Vec<u16> = first(&program, call);
            let (keys, values) = tiles.split_at(TILE * head_dim);
            for (row, d) in (0..TILE).flat_map(|row| (0..head_dim).map(move |d| (row, d))) {
                let (number, what) = ((row * head_dim + d) as u16, format!("{name} ({row}, {d})"));
                let panel = (d / 64 * TILE * 128) as u64;
                // One multiplication reads 16 columns of keys, whose descriptor is 32 bytes further.
                let step = panel + (d % 64 / 16 * 32) as u64;
                let at = k_major(step, 1024, row as u64, d as u64 % 16);
                assert_eq!(keys[at as usize / 2], number, "key {what}");
                // One multiplication reads 16 rows of values.
                let step = (row / 16 * 2048) as u64;
                let at = mn_major(step, TILE as u64 * 128, 1024, d as u64, row as u64 % 16);
                assert_eq!(values[at as usize / 2], number | 1 << 15, "value {what}");
            }
        }
    }
}
