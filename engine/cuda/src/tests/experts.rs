//! Tests of the MoE kernels: routing (top-k experts), sort by expert, dispatch and combination.

use super::*;

const NOWHERE: u32 = u32::MAX;

/// Returns the top-k experts and their weights of one row of router logits by their definition,
/// likeliest first.
fn definition(logits: &[f32], chosen: usize, is_normalized: bool) -> (Vec<u32>, Vec<f32>) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let exp = |i: &usize| f64::from(logits[*i]).exp();
    let best = &order[..chosen];
    let total: f64 = if is_normalized { best } else { &order[..] }.iter().map(exp).sum();
    let weights = best.iter().map(|i| (exp(i) / total) as f32).collect();
    (best.iter().map(|i| *i as u32).collect(), weights)
}

#[test]
fn rows_go_to_the_experts_of_their_largest_logits() {
    let Some(program) = Program::compile("route") else { return };
    let few = ROWS.iter().map(|rows| (*rows, 8, 2));
    for (rows, experts, chosen) in
        few.chain([(3, 1, 1), (4, 32, 4), (5, 128, 8), (2, 512, 10), (3, 33, 32)])
    {
        // Only a few distinct values, so that many logits are equal.
        let logits: Vec<f32> =
            numbers(rows * experts, 10).iter().map(|x| (8.0 * x).round() / 2.0).collect();
        for is_normalized in [true, false] {
            let call = Call::new("route", Launch::route(rows))
                .buffer(&vec![77u32; rows * chosen])
                .buffer(&vec![f32::NAN; rows * chosen])
                .buffer(&logits)
                .value(rows as u32)
                .value(experts as u32)
                .value(chosen as u32)
                .value(u32::from(is_normalized));
            let got = &program.run(&[call])[0];
            let what = format!("T{rows} E{experts} top-{chosen}, {is_normalized}");
            let each = logits.chunks_exact(experts);
            let want: Vec<_> = each.map(|row| definition(row, chosen, is_normalized)).collect();
            let ids: Vec<u32> = want.iter().flat_map(|(ids, _)| ids.clone()).collect();
            let weights: Vec<f32> = want.iter().flat_map(|(_, w)| w.clone()).collect();
            assert_eq!(elements::<u32>(&got[0]), ids, "{what}");
            check_close(&elements::<f32>(&got[1]), &weights, 1e-6, &what);
        }
    }
}

/// Returns the expected offsets, sources and slots of the (row, expert) pairs whose expert is in
/// `own`, sorted by expert and then in their order.
fn sorted(ids: &[u32], own: std::ops::Range<u32>) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let (mut offsets, mut sources, mut slots) = (vec![0], Vec::new(), vec![NOWHERE; ids.len()]);
    for expert in own {
        for pair in (0..ids.len()).filter(|pair| ids[*pair] == expert) {
            slots[pair] = sources.len() as u32;
            sources.push(pair as u32);
        }
        offsets.push(sources.len() as u32);
    }
    (offsets, sources, slots)
}

/// Runs the sort with `blocks` blocks and compares it with the definition.
fn check_sort(program: &Program, ids: &[u32], own: std::ops::Range<u32>, blocks: usize) {
    let what = format!("{} pairs, experts {own:?}, {blocks} blocks", ids.len());
    let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::sort_pairs(0) };
    let sizes = [ids.len() as u32, own.start, own.len() as u32];
    let with = |call: Call| sizes.into_iter().fold(call.buffer(ids), Call::value);
    let counts = (blocks > 1).then(|| {
        let call = Call::new("count_pairs", launch).buffer(&vec![77u32; blocks * own.len()]);
        elements::<u32>(&program.run(&[with(call)])[0][0])
    });
    let [offsets, pairs, slots] = [own.len() + 1, ids.len(), ids.len()].map(|size| vec![77; size]);
    let call = Call::new("sort_pairs", launch).buffer::<u32>(&offsets).buffer::<u32>(&pairs);
    let call = call.buffer::<u32>(&slots).optional(counts.as_deref());
    let got = &program.run(&[with(call)])[0];
    let (offsets, sources, slots) = sorted(ids, own);
    assert_eq!(elements::<u32>(&got[0]), offsets, "{what}");
    let (written, rest) = got[1].split_at(4 * sources.len());
    assert_eq!(elements::<u32>(written), sources, "{what}");
    assert!(elements::<u32>(rest).iter().all(|x| *x == 77), "{what}: nothing else is written");
    assert_eq!(elements::<u32>(&got[2]), slots, "{what}");
}

#[test]
fn pairs_are_sorted_by_expert_and_keep_their_order() {
    let Some(program) = Program::compile("sort_pairs") else { return };
    for (pairs, experts, own) in [
        (1, 8, 0..8),
        (33, 8, 0..8),
        (255, 8, 2..5),
        (256, 8, 0..1),
        (257, 128, 64..128),
        (1000, 3, 1..2),
        (700, 40, 0..40),
        (511, 512, 0..512),
        (513, 512, 500..512),
        (1537, 33, 0..33),
        (5000, 128, 0..128),
    ] {
        let ids: Vec<u32> =
            numbers(pairs, 11).iter().map(|x| (x.abs() * experts as f32) as u32).collect();
        // The result is the same for every division of the pairs into chunks, also where the last
        // blocks have none.
        for blocks in [1, 7] {
            check_sort(&program, &ids, own.clone(), blocks);
        }
    }
}

#[test]
fn experts_with_all_pairs_or_none_are_sorted() {
    let Some(program) = Program::compile("sort_pairs") else { return };
    for (pairs, blocks) in [(1, 1), (1, 2), (600, 1), (2100, 3)] {
        for (expert, own) in
            [(0, 0..128), (5, 5..6), (31, 0..33), (32, 0..33), (32, 40..48), (127, 0..128)]
        {
            check_sort(&program, &vec![expert; pairs], own, blocks);
        }
        let odd: Vec<u32> = (0..pairs as u32).map(|pair| pair * 2 % 16 + 1).collect();
        check_sort(&program, &odd, 0..16, blocks);
    }
}

#[test]
fn the_largest_prefill_is_sorted() {
    let Some(program) = Program::compile("sort_pairs") else { return };
    let pairs = 65_536 * 8;
    let ids: Vec<u32> =
        (0..pairs as u32).map(|pair| pair.wrapping_mul(0x9e37_79b9) >> 26).collect();
    check_sort(&program, &ids, 0..64, Launch::sort_pairs(pairs).grid[0] as usize);
}

#[test]
fn rows_are_sent_and_their_results_summed_by_weight() {
    let Some(program) = Program::compile("dispatch") else { return };
    for (rows, cols, chosen) in
        ROWS.iter().map(|rows| (*rows, 24, 3)).chain([(4, 2880, 4), (3, 8, 1)])
    {
        let x = rounded(rows * cols, 12);
        let ids: Vec<u32> = (0..rows * chosen).map(|pair| (pair * 7 % 5) as u32).collect();
        let (offsets, sources, slots) = sorted(&ids, 1..4);
        let sent = offsets[3] as usize;
        let pairs = rows * chosen;
        let dispatch = Call::new("dispatch", Launch::row_copies(pairs, cols))
            .buffer(&vec![7u16; pairs * cols])
            .buffer(&narrow(&x))
            .buffer(&[sources.clone(), vec![0; pairs - sent]].concat())
            .buffer(&offsets[3..])
            .value(chosen as u32)
            .value(cols as u32);
        let results = rounded(sent * cols, 13);
        let weights = numbers(pairs, 14);
        let combine = Call::new("combine", Launch::row_copies(rows, cols))
            .buffer(&vec![7u16; rows * cols])
            .buffer(&narrow(&results))
            .buffer(&slots)
            .buffer(&weights)
            .value(chosen as u32)
            .value(cols as u32);
        let got = program.run(&[dispatch, combine]);
        let what = format!("T{rows} N{cols} top-{chosen}");
        let row = |pair: &u32| x[*pair as usize / chosen * cols..][..cols].to_vec();
        let want: Vec<f32> = sources.iter().flat_map(row).collect();
        assert_eq!(widen(&got[0][0])[..sent * cols], want, "{what}");
        let rest = &elements::<u16>(&got[0][0])[sent * cols..];
        assert!(rest.iter().all(|x| *x == 7), "{what}: what is not sent stays");

        let mut want = vec![0.0; rows * cols];
        for (pair, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != NOWHERE) {
            let from = &results[*slot as usize * cols..][..cols];
            let to = &mut want[pair / chosen * cols..][..cols];
            to.iter_mut().zip(from).for_each(|(to, x)| *to += weights[pair] * x);
        }
        check_close(&widen(&got[1][0]), &want, BF16_ROUNDING, &what);
    }
}
