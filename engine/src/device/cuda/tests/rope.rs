//! Turns, norms of heads, and what is written to pages.

use super::pages::{Pages, e4m3};
use super::*;
use crate::device::Rotation;
use crate::device::cuda::launch::RopeArguments;
use crate::device::cuda::launch::attention::PageType;

#[test]
fn turns_are_those_of_the_cpu_at_any_position() {
    let Some(program) = Program::compile("turns") else { return };
    let frequencies: Vec<f32> = (0..17).map(|i| 0.6f32.powi(i)).collect();
    for rows in ROWS {
        let positions: Vec<u32> = (0..rows as u32).map(|t| t * t * 997 + t).collect();
        let call = Call::new("turns", Launch::turns(rows, frequencies.len()))
            .buffer(&vec![f32::NAN; 2 * rows * frequencies.len()])
            .buffer(&positions)
            .buffer(&frequencies)
            .value(rows as u32)
            .value(frequencies.len() as u32)
            .value(1.25f32);
        let got: Vec<f32> = elements(&program.run(&[call])[0][0]);
        let want: Vec<f32> = positions
            .iter()
            .flat_map(|position| frequencies.iter().map(move |f| *position as f32 * f))
            .flat_map(|angle| [1.25 * angle.cos(), 1.25 * angle.sin()])
            .collect();
        check_close(&got, &want, 1e-6, &format!("T{rows}"));
    }
}

struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    pairs: usize,
    has_norms: bool,
    page_type: PageType,
}

/// Heads one by one as the reference has them, before and after.
fn check(program: &Program, case: &Case, rows: usize, page_tokens: usize) {
    let &Case { heads, kv_heads, head_dim: d, pairs, has_norms, page_type } = case;
    let what = format!("{page_type:?} H{heads} KV{kv_heads} D{d} P{pairs} {has_norms} T{rows}");
    let cols = (heads + 2 * kv_heads) * d;
    let qkv: Vec<f32> = rounded(rows * cols, 8).iter().map(|x| 4.0 * x).collect();
    let frequencies: Vec<f32> = (0..pairs).map(|i| 0.7f32.powi(i as i32)).collect();
    let rotation = Rotation { inverse_frequencies: frequencies.clone(), factor: 1.25 };
    let positions: Vec<usize> = (0..rows).map(|t| 3 * t + 40).collect();
    let turns: Vec<f32> = positions
        .iter()
        .flat_map(|t| frequencies.iter().map(|f| *t as f32 * f))
        .flat_map(|angle| [1.25 * angle.cos(), 1.25 * angle.sin()])
        .collect();
    let pages = Pages { page_type, kv_heads, head_dim: d, page_tokens, layers: 2 };
    let count = rows.div_ceil(page_tokens) + 1;
    // Pages from the last to the first, as tables may have them.
    let slot = |t: usize| (count - 1 - t / page_tokens) * page_tokens + t % page_tokens;
    let slots: Vec<u32> = (0..rows).map(|t| slot(t) as u32).collect();
    let norms = numbers(2 * d, 9);
    let scales: Vec<f32> = (0..2 * kv_heads).map(|i| 0.01 + 0.005 * i as f32).collect();
    let entry = match page_type {
        PageType::Bf16 => "rope_and_cache_bf16",
        PageType::E4m3 => "rope_and_cache_e4m3",
    };
    let mut call = Call::new(entry, Launch::rope_and_cache(rows, heads + 2 * kv_heads))
        .buffer(&narrow(&qkv))
        .buffer(&vec![0xff_u8; pages.bytes(count)])
        .buffer(&turns)
        .buffer(&slots);
    call = if has_norms { call.buffer(&norms) } else { call.null() };
    call = if page_type == PageType::E4m3 { call.buffer(&scales) } else { call.null() };
    let call = call.value(RopeArguments {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: d as u32,
        pairs: pairs as u32,
        page_tokens: page_tokens as u32,
        page_stride: pages.stride() as u32,
        epsilon: 1e-6,
    });
    let got = &program.run(&[call])[0];
    let (got_qkv, got_pages) = (widen(&got[0]), &got[1]);
    let mut written = 0;
    for (t, row) in qkv.chunks_exact(cols).enumerate() {
        for (i, head) in row.chunks_exact(d).enumerate() {
            let mut want = head.to_vec();
            let is_value = i >= heads + kv_heads;
            if has_norms && !is_value {
                let weight = if i < heads { &norms[..d] } else { &norms[d..] };
                want = reference::rms_norm(&want, weight, 1e-6);
            }
            if !is_value {
                want = reference::rotate(&want, positions[t], &rotation);
            }
            let what = format!("{what}, row {t}, head {i}");
            if i < heads {
                check_close(&got_qkv[t * cols + i * d..][..d], &want, BF16_ROUNDING, &what);
                continue;
            }
            assert_eq!(&got_qkv[t * cols + i * d..][..d], head, "{what}: keys and values stay");
            let stored = i - heads;
            let at = pages.at(slot(t), stored % kv_heads, is_value);
            let got = pages.read(got_pages, at);
            written += d;
            if page_type == PageType::Bf16 {
                check_close(&got, &want, BF16_ROUNDING, &what);
                continue;
            }
            for (got, x) in got.iter().zip(&want) {
                // The nearest code, or its neighbour where rounding before it tips the scale.
                let exact = (x / scales[stored]).clamp(-448.0, 448.0);
                let step = (exact.abs() / 8.0).max(1.0 / 512.0);
                assert!((got - exact).abs() <= 0.51 * step, "{what}: {got}, not {exact}");
            }
        }
    }
    let untouched = match page_type {
        PageType::Bf16 => elements::<u16>(got_pages).iter().filter(|x| **x == 0xffff).count(),
        PageType::E4m3 => got_pages.iter().filter(|x| **x == 0xff).count(),
    };
    let all = pages.bytes(count) / if page_type == PageType::Bf16 { 2 } else { 1 };
    assert_eq!(untouched, all - written, "{what}: nothing else is written");
}

#[test]
fn heads_are_normed_turned_and_stored() {
    let Some(program) = Program::compile("rope_and_cache") else { return };
    let shapes = [
        (1, 1, 16, 8),
        (9, 3, 64, 32),
        (8, 2, 128, 64),
        (3, 1, 256, 32),
        (5, 5, 48, 12),
        (2, 1, 26, 13),
    ];
    for (heads, kv_heads, head_dim, pairs) in shapes {
        for (has_norms, page_type) in [(true, PageType::Bf16), (false, PageType::E4m3)] {
            let case = Case { heads, kv_heads, head_dim, pairs, has_norms, page_type };
            check(&program, &case, 5, 16);
        }
    }
    for rows in ROWS {
        for page_type in [PageType::Bf16, PageType::E4m3] {
            let case =
                Case { heads: 3, kv_heads: 1, head_dim: 32, pairs: 16, has_norms: true, page_type };
            check(&program, &case, rows, 16);
        }
    }
}

#[test]
fn codes_of_eight_bits_are_the_nearest_ones() {
    let Some(program) = Program::compile("rope_and_cache") else { return };
    // Every code, what is half way between two, what is next to that, and what is too large.
    let codes: Vec<f32> = (0..0x7f).map(e4m3).collect();
    let halves = codes.windows(2).map(|two| (two[0] + two[1]) / 2.0);
    let mut values: Vec<f32> =
        codes.iter().copied().chain(halves).chain([460.0, 1e30, 1e-9]).collect();
    values.extend(values.clone().iter().map(|x| -x));
    values.resize(values.len().next_multiple_of(64), 0.0);
    let values: Vec<f32> = values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let heads = values.len() / 64;
    let pages = Pages {
        page_type: PageType::E4m3,
        kv_heads: heads,
        head_dim: 64,
        page_tokens: 16,
        layers: 1,
    };
    let qkv: Vec<f32> = [vec![0.0; 64 * (1 + heads)], values.clone()].concat();
    let call = Call::new("rope_and_cache_e4m3", Launch::rope_and_cache(1, 1 + 2 * heads))
        .buffer(&narrow(&qkv))
        .buffer(&vec![0xff_u8; pages.bytes(1)])
        .buffer(&[0f32; 0])
        .buffer(&[3u32])
        .null()
        .null()
        .value(RopeArguments {
            heads: 1,
            kv_heads: heads as u32,
            head_dim: 64,
            pairs: 0,
            page_tokens: 16,
            page_stride: pages.stride() as u32,
            epsilon: 0.0,
        });
    let got = &program.run(&[call])[0][1];
    for (head, values) in values.chunks_exact(64).enumerate() {
        let at = pages.at(3, head, true);
        for (code, x) in got[at..at + 64].iter().zip(values) {
            assert_eq!(*code, pages::nearest_e4m3(*x), "of {x}");
        }
    }
}
