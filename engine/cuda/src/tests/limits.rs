//! Test of the kernel that measures memory bandwidth.

use super::*;
use crate::launch::Processors;

#[test]
fn memory_is_read_to_its_last_piece_and_each_once() {
    let Some(program) = Program::compile("stream_read") else { return };
    let launch =
        Launch::stream_read(Processors { count: 1, shared_bytes: 0, has_warpgroups: false });
    let warps = launch.warps();
    for pieces in [1, 511, 2048, 2049, 4096, 9001] {
        let words: Vec<u32> = (0..4 * pieces as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let call = Call::new("stream_read", launch)
            .buffer(&vec![7u32; warps])
            .buffer(&words)
            .value(pieces as u64);
        let got = elements::<u32>(&program.run(&[call])[0][0]);
        let all = |words: &[u32]| words.iter().fold(0, |all, word| all ^ word);
        assert_eq!(all(&got), all(&words), "{pieces} pieces");
    }
}
