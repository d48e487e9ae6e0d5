//! Tests of the one-kernel all-reduce: each rank is a host thread that reads the others' memory.

use bytemuck::NoUninit;

use super::*;

/// Last argument of the test program `ranks.cu`: sizes of the all-reduce, and its launch shape.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct RanksArguments {
    ranks: u32,
    rounds: u32,
    n: u32,
    capacity: u32,
    blocks: u32,
    block: u32,
}

#[test]
fn every_rank_has_the_same_sum_in_every_round() {
    let Some(program) = Program::compile_test("ranks") else { return };
    for (ranks, n, rounds) in [(1, 8, 2), (2, 4104, 5), (3, 8, 7), (3, 8200, 2), (8, 264, 3)] {
        let x = rounded(rounds * ranks * n, 70);
        let launch = Launch::all_reduce(n);
        let arguments = RanksArguments {
            ranks: ranks as u32,
            rounds: rounds as u32,
            n: n as u32,
            capacity: n as u32 + 8,
            blocks: launch.grid[0],
            block: launch.block,
        };
        let one = Launch { grid: [1, 1, 1], block: 32, shared_bytes: 0 };
        let call = Call::new("ranks", one)
            .buffer(&vec![7u16; rounds * ranks * n])
            .buffer(&narrow(&x))
            .value(arguments);
        let got = program.run(&[call]).remove(0).remove(0);
        for (round, got) in got.chunks_exact(2 * ranks * n).enumerate() {
            let x = &x[round * ranks * n..][..ranks * n];
            let sum = |i: usize| (0..ranks).fold(0.0, |sum, rank| sum + x[rank * n + i]);
            let want = narrow(&(0..n).map(sum).collect::<Vec<f32>>());
            for (rank, got) in got.chunks_exact(2 * n).enumerate() {
                let what = format!("{ranks} ranks, {n} numbers, round {round}, rank {rank}");
                assert_eq!(elements::<u16>(got), want, "{what}");
            }
        }
    }
}
