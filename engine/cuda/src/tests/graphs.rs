//! Tests that memory which captured CUDA graphs name does not move.

use std::sync::Arc;

use crate::Cuda;
use crate::buffer::Buffer;
use crate::driver::Driver;
use crate::emulated::Emulated;
use engine_core::{
    AttentionLayer, AttentionShape, Device, KvShape, KvType, LogitRows, Rotation,
    ScheduledSequence, StepBatch, StepLimits,
};

const SHAPE: AttentionShape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 16, scale: 1.0 };
/// Largest numbers of sequences of a step and of KV pages of each, of 16 tokens.
const LIMITS: StepLimits = StepLimits { tokens: 8192, sequences: 1280, sequence_pages: 2560 };
const PAGE_TOKENS: usize = 16;

/// Device for one attention layer on an emulated GPU.
struct Fixture {
    cuda: Cuda,
    /// KV cache, whose pages all sequences of a test share.
    kv: <Cuda as Device>::Kv,
    x: Buffer,
    out: Buffer,
}

impl Fixture {
    fn new() -> Option<Self> {
        let gpu: Arc<dyn Driver> = Emulated::new(1 << 30)?;
        let mut cuda = Cuda::new(gpu);
        cuda.prepare_attention(&AttentionLayer::new(SHAPE, 0)).unwrap();
        let AttentionShape { kv_heads, head_dim, .. } = SHAPE;
        let (pages, page_tokens) = (LIMITS.sequence_pages, PAGE_TOKENS);
        let shape =
            KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens, kv_type: KvType::Bf16 };
        let kv = cuda.kv(shape).unwrap();
        let (mut x, mut out) = (cuda.buffer(8).unwrap(), cuda.buffer(8).unwrap());
        cuda.resize(&mut x, LIMITS.sequences).unwrap();
        cuda.resize(&mut out, LIMITS.sequences).unwrap();
        Some(Self { cuda, kv, x, out })
    }

    /// Runs the host's part of a decoding step of as many sequences as it may have, whose last
    /// tokens are at `position`, and one operation that reads its metadata; returns whether a CUDA
    /// graph was replayed.
    fn decode(&mut self, position: usize) -> bool {
        let Self { cuda, kv, x, out } = self;
        let mut batch = StepBatch::known(&[0; LIMITS.sequences], Vec::new());
        let pages: Arc<[u32]> = (0..(position / PAGE_TOKENS + 1) as u32).collect();
        for _ in 0..LIMITS.sequences {
            let (pages, logits) = (Arc::clone(&pages), LogitRows::Last);
            let own = ScheduledSequence { rows: 1, position, pages, logits, ..Default::default() };
            batch.push(own);
        }
        let rotation = Rotation { inverse_frequencies: vec![0.5; SHAPE.head_dim / 2], factor: 1.0 };
        let step = cuda.prepare_step(&batch, kv, &[rotation]).unwrap();
        let is_replayed = cuda.replay(&step).unwrap();
        if !is_replayed {
            // The second time this is captured.
            cuda.gather(x, &step, out).unwrap();
            cuda.stream.finish(out.address()).unwrap();
        }
        is_replayed
    }
}

#[test]
fn graphs_of_1280_sequences_stay_while_their_contexts_grow() {
    let Some(mut fixture) = Fixture::new() else { return };
    fixture.cuda.reserve_step(&LIMITS).unwrap();
    let longest = LIMITS.sequence_pages * PAGE_TOKENS - 1;
    let replayed = [0, 0, 200, 5000, longest, 0].map(|at| fixture.decode(at));
    assert_eq!(replayed, [false, false, true, true, true, true]);
}

#[test]
fn metadata_that_was_not_reserved_moves() {
    let Some(mut fixture) = Fixture::new() else { return };
    let replayed = [0, 0, 200, 5000, 5000].map(|at| fixture.decode(at));
    assert_eq!(replayed, [false, false, true, false, false]);
}
