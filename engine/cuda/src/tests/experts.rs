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

#[test]
fn pairs_are_sorted_by_expert_and_keep_their_order() {
    let Some(program) = Program::compile("sort_pairs") else { return };
    let all = ROWS.iter().map(|pairs| (*pairs, 8, 0..8));
    for (pairs, experts, own) in all.chain([
        (255, 8, 2..5),
        (256, 8, 0..1),
        (257, 128, 64..128),
        (1000, 3, 1..2),
        (700, 40, 0..40),
    ]) {
        let ids: Vec<u32> =
            numbers(pairs, 11).iter().map(|x| (x.abs() * experts as f32) as u32).collect();
        let call = Call::new("sort_pairs", Launch::sort_pairs(own.len()))
            .buffer(&vec![77u32; own.len() + 1])
            .buffer(&vec![77u32; pairs])
            .buffer(&vec![77u32; pairs])
            .buffer(&ids)
            .value(pairs as u32)
            .value(own.start);
        let got = &program.run(&[call])[0];
        let (offsets, sources, slots) = sorted(&ids, own.clone());
        let what = format!("{pairs} pairs, experts {own:?}");
        assert_eq!(elements::<u32>(&got[0]), offsets, "{what}");
        assert_eq!(elements::<u32>(&got[1])[..sources.len()], sources, "{what}");
        assert_eq!(elements::<u32>(&got[2]), slots, "{what}");
    }
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
