//! Tests of RoPE and paged attention against the reference: head norms, sliding windows, sinks,
//! prefill chunks, KV pages.

use super::*;
use engine_core::{AttentionShape, HeadNorms, KvType};

type Layer = AttentionLayer<Vec<f32>>;

fn rotation(inverse_frequencies: Vec<f32>) -> Rotation {
    Rotation { inverse_frequencies, factor: 1.0 }
}

/// Runs a sequence with the queries, keys and values `qkv` through the KV cache in prefill chunks
/// that begin at `cuts`; returns the attention outputs.
fn attend(
    cpu: &mut Cpu,
    qkv: &[f32],
    layer: &Layer,
    kv: &mut Kv,
    rotations: &[Rotation],
    cuts: &[usize],
) -> Vec<f32> {
    let shape = &layer.shape;
    let (cols, rows) = (shape.qkv_cols(), qkv.len() / shape.qkv_cols());
    let pages: Vec<u32> = (0..kv.shape.pages as u32).rev().collect();
    let mut outputs = Vec::new();
    for (i, &first) in cuts.iter().enumerate() {
        let last = cuts.get(i + 1).copied().unwrap_or(rows);
        let sequence = ScheduledSequence {
            row: 0,
            rows: last - first,
            position: first,
            pages: pages.clone().into(),
            logits: LogitRows::None,
            state: None,
        };
        let batch = StepBatch::known(&vec![0; last - first], vec![sequence]);
        let step = cpu.prepare_step(&batch, kv, rotations).unwrap();
        let mut part = buffer(cols, qkv[first * cols..last * cols].to_vec());
        cpu.rope_and_cache(&mut part, layer, &step, kv).unwrap();
        let width = shape.heads * shape.head_dim;
        let mut out = buffer(width, vec![f32::NAN; (last - first) * width]);
        cpu.attention(&part, layer, &step, kv, &mut out).unwrap();
        outputs.extend(out.values());
    }
    outputs
}

fn check_attention(cpu: &mut Cpu, device: &str, layer: &Layer, kv_type: KvType) {
    for (rows, page_tokens) in [(1, 16), (16, 16), (77, 32), (150, 16), (130, 64)] {
        check_rows(cpu, device, layer, kv_type, (rows, page_tokens));
    }
}

/// Checks attention over sequences of `rows` rows in KV pages of `page_tokens` positions, whole and
/// in prefill chunks, against the reference.
fn check_rows(
    cpu: &mut Cpu,
    device: &str,
    layer: &Layer,
    kv_type: KvType,
    (rows, page_tokens): (usize, usize),
) -> Vec<f32> {
    let shape = &layer.shape;
    let AttentionShape { heads, kv_heads, head_dim, .. } = *shape;
    let what = format!("{device} {} {layer:?} T{rows}", kv_type.name());
    let pages = rows / page_tokens + 1;
    let cache = KvShape { layers: 2, kv_heads, head_dim, pages, page_tokens, kv_type };
    let mut kv = cpu.kv(cache).unwrap();
    let rotation = Rotation {
        inverse_frequencies: (0..head_dim / 2).map(|i| 0.5f32.powi(i as i32)).collect(),
        factor: 1.25,
    };
    let qkv: Vec<f32> = numbers(rows * shape.qkv_cols(), 6).iter().map(|x| 2.0 * x).collect();
    let whole = attend(cpu, &qkv, layer, &mut kv, std::slice::from_ref(&rotation), &[0]);

    let mut turned = qkv.clone();
    for (position, row) in turned.chunks_exact_mut(shape.qkv_cols()).enumerate() {
        for (i, head) in row.chunks_exact_mut(head_dim).take(heads + kv_heads).enumerate() {
            if let Some(norms) = &layer.head_norms {
                let weight = if i < heads { &norms.query } else { &norms.key };
                head.copy_from_slice(&reference::rms_norm(head, weight, norms.epsilon));
            }
            head.copy_from_slice(&reference::rotate(head, position, &rotation));
        }
    }
    // In bf16 queries and probabilities are rounded, too, to eight bits.
    let tolerance = match kv_type {
        KvType::Bf16 => 4e-2,
        KvType::F16 => 4e-3,
        _ => 2e-5,
    };
    check_close(&whole, &reference::attention(&turned, layer), tolerance, &what);

    let cuts: Vec<usize> =
        [0, 1, 5, 64, 70, 128, 513, 1098].into_iter().filter(|c| *c < rows).collect();
    let parts = attend(cpu, &qkv, layer, &mut kv, std::slice::from_ref(&rotation), &cuts);
    assert!(parts == whole, "{what}: chunks change bits");
    whole
}

#[test]
fn attention_is_the_softmax_over_all_positions_whole_or_in_chunks() {
    on_every_device(|cpu, device| {
        for (heads, kv_heads, head_dim) in
            [(1, 1, 16), (9, 3, 64), (4, 1, 128), (6, 6, 48), (10, 2, 256), (3, 1, 8), (4, 2, 26)]
        {
            let scale = 1.0 / (head_dim as f32).sqrt();
            let shape = AttentionShape { heads, kv_heads, head_dim, scale };
            for kv_type in [KvType::F32, KvType::F16, KvType::Bf16] {
                check_attention(cpu, device, &Layer::new(shape, 1), kv_type);
            }
        }
    });
}

#[test]
fn windows_sinks_and_norms_of_heads_follow_the_reference() {
    on_every_device(|cpu, device| {
        let shape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 32, scale: 0.2 };
        for window in [1, 2, 15, 16, 17, 63, 64, 65, 100, 1000] {
            let layer = Layer { window: Some(window), ..Layer::new(shape, 1) };
            check_attention(cpu, device, &layer, KvType::F32);
        }
        let head_norms =
            || Some(HeadNorms { query: numbers(32, 3), key: numbers(32, 4), epsilon: 1e-6 });
        let sinks = || Some(numbers(6, 5).iter().map(|x| 20.0 * x).collect());
        for window in [None, Some(20)] {
            for (head_norms, sinks) in
                [(head_norms(), None), (None, sinks()), (head_norms(), sinks())]
            {
                let layer = Layer { window, head_norms, sinks, ..Layer::new(shape, 1) };
                check_attention(cpu, device, &layer, KvType::F32);
                check_attention(cpu, device, &layer, KvType::Bf16);
            }
        }
    });
}

/// Attention over a long context is computed in parts, which several threads share if there are few
/// rows.
#[test]
fn long_contexts_give_the_same_bits_whoever_shares_them() {
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25 };
    let sinks = || Some(vec![3.0, -1.0]);
    for (window, sinks) in [(None, None), (None, sinks()), (Some(600), sinks())] {
        let layer = Layer { window, sinks, ..Layer::new(shape, 1) };
        for isa in Isa::detected() {
            let with = |threads| {
                let device = format!("{} x {threads}", isa.name());
                check_rows(&mut Cpu::new(isa, threads), &device, &layer, KvType::F32, (1100, 16))
            };
            let alone = with(1);
            assert!(alone == with(2) && alone == with(3), "{} {layer:?}", isa.name());
        }
    }
}

/// Shape of a KV cache with two pages of 16 positions for one head.
fn two_pages(kv_type: KvType) -> KvShape {
    KvShape { layers: 2, kv_heads: 1, head_dim: 16, pages: 2, page_tokens: 16, kv_type }
}

/// A NaN that a KV page still holds from an earlier sequence must not reach the sequence that uses
/// the page next. In bf16 the last of an odd number of positions has half of a pair.
#[test]
fn what_a_page_held_before_does_not_matter() {
    on_every_device(|cpu, device| {
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25 };
        let layer = Layer::new(shape, 1);
        for (kv_type, rows) in
            [KvType::F32, KvType::F16, KvType::Bf16].into_iter().flat_map(|t| [(t, 20), (t, 21)])
        {
            let mut kv = cpu.kv(two_pages(kv_type)).unwrap();
            let qkv = numbers(rows * shape.qkv_cols(), 8);
            let clean = attend(cpu, &qkv, &layer, &mut kv, &[rotation(vec![1.0])], &[0]);
            // All bits set is a NaN in every type.
            kv.storage.fill(0xff);
            let reused = attend(cpu, &qkv, &layer, &mut kv, &[rotation(vec![1.0])], &[0, 3, 8]);
            assert!(clean == reused, "{device} {} {rows}", kv_type.name());
        }
    });
}

/// A draft that was not accepted leaves its key and value in the page, and the token that takes its
/// position replaces both.
#[test]
fn a_position_that_is_written_again_has_its_new_value() {
    on_every_device(|cpu, device| {
        let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25 };
        let layer = Layer::new(shape, 1);
        let cols = shape.qkv_cols();
        for kv_type in [KvType::F32, KvType::F16, KvType::Bf16] {
            let qkv = numbers(20 * cols, 8);
            let mut drafts = qkv.clone();
            drafts[9 * cols..13 * cols].reverse();
            let mut kv = cpu.kv(two_pages(kv_type)).unwrap();
            let clean = attend(cpu, &qkv, &layer, &mut kv, &[rotation(vec![1.0])], &[0]);
            let mut kv = cpu.kv(two_pages(kv_type)).unwrap();
            attend(cpu, &drafts[..13 * cols], &layer, &mut kv, &[rotation(vec![1.0])], &[0]);
            // The same cache is written again from each of the drafts on.
            for first in [9, 10, 12] {
                let again = attend(cpu, &qkv, &layer, &mut kv, &[rotation(vec![1.0])], &[0, first]);
                assert!(clean == again, "{device} {} from {first}", kv_type.name());
            }
        }
    });
}

#[test]
fn a_plan_refuses_pages_and_rows_that_are_not_there() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let shape = KvShape {
        layers: 1,
        kv_heads: 1,
        head_dim: 16,
        pages: 4,
        page_tokens: 16,
        kv_type: KvType::F32,
    };
    let kv = cpu.kv(shape).unwrap();
    let mut refused = |rows, position, pages: &[u32], tokens| {
        let logits = LogitRows::Last;
        let sequences = vec![ScheduledSequence {
            row: 0,
            rows,
            position,
            pages: pages.into(),
            logits,
            state: None,
        }];
        let batch = StepBatch::known(&vec![0; tokens], sequences);
        cpu.prepare_step(&batch, &kv, &[rotation(vec![1.0])]).is_err()
    };
    assert!(!refused(2, 15, &[3, 0], 2));
    assert!(refused(2, 15, &[3], 2), "too few pages");
    assert!(refused(1, 0, &[4], 1), "a page beyond the cache");
    assert!(refused(0, 0, &[0], 0), "no rows");
    assert!(refused(1, 0, &[0], 2), "more tokens than rows");
    for (pages, page_tokens) in [(1, 8), (1, 0), (usize::MAX, 16)] {
        assert!(cpu.kv(KvShape { pages, page_tokens, ..shape }).is_err(), "{pages}/{page_tokens}");
    }
}
