//! Tests of tensor parallelism against the same models on one rank.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use super::*;
use crate::LoadError;
use crate::tests::loader::{LoadOptions, Loaded, load};
use crate::tests::tiny_gguf::tiny_llama_gguf;
use engine_core::{KvType, LogitRows, ScheduledSequence, StateSlots};
use engine_cpu::Arithmetic;
use engine_weights::ModelSource;

const PAGE_TOKENS: usize = 16;
const STATE: Option<StateSlots> = Some(StateSlots { slot: 0, load: None, save: None });

fn load_at(path: &Path, tp: usize) -> Result<Loaded, LoadError> {
    let source = ModelSource::find(path.to_str().unwrap(), None)?;
    let options = LoadOptions {
        tp: NonZeroUsize::new(tp),
        threads: NonZeroUsize::new(1),
        kv: KvType::F32,
        arithmetic: Arithmetic::F32,
        ..LoadOptions::default()
    };
    let mut loaded = load(&source, &options)?;
    loaded.model.allocate_kv(32, PAGE_TOKENS).unwrap();
    loaded.model.allocate_states(1).unwrap();
    Ok(loaded)
}

/// Returns the logits of all positions of `tokens`, computed in prefill chunks of `chunk` tokens.
fn logits(model: &mut dyn Model, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let pages = (0..tokens.len().div_ceil(PAGE_TOKENS) as u32).collect();
        let (rows, position) = (part.len(), i * chunk);
        let sequences = vec![ScheduledSequence {
            row: 0,
            rows,
            position,
            pages,
            logits: LogitRows::All,
            state: STATE,
        }];
        let batch = StepBatch::known(part, sequences);
        out.extend_from_slice(model.step(&batch).unwrap());
    }
    out
}

fn tiny(seed: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny_llama_gguf(seed)).unwrap();
    (folder, path)
}

#[test]
fn ranks_compute_what_one_computes() {
    let (_folder, path) = tiny(3);
    let tokens: Vec<u32> = (0..50).map(|i| i * 37 % 260).collect();
    let mut one = load_at(&path, 1).unwrap();
    let want = logits(one.model.as_mut(), &tokens, 50);
    let mut two = load_at(&path, 2).unwrap();
    let mut info = one.info().clone();
    info.largest_matrix.n /= 2;
    assert_eq!(*two.info(), info, "together they are the same model");
    let whole = logits(two.model.as_mut(), &tokens, 50);
    let worst = whole.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(whole.len() == want.len() && worst < 1e-4, "logits differ by {worst}");
    for chunk in [1, 7, 16] {
        assert!(logits(two.model.as_mut(), &tokens, chunk) == whole, "chunks of {chunk}");
    }
}

#[test]
fn a_model_that_cannot_be_divided_says_why() {
    let (_folder, path) = tiny(3);
    for (tp, want) in [
        (4, "`blk.0.attn_output.weight` of"),
        (4, "is stored as q4_1, and its rows cannot be cut at 16, within a block of 32"),
        (8, "8 ranks cannot share 4 attention heads; hint: a smaller `--tp`"),
    ] {
        let message = load_at(&path, tp).unwrap_err().to_string();
        assert!(message.contains(want), "{tp} ranks: {message} should say: {want}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_step_and_not_the_process() {
    let (_folder, path) = tiny(3);
    let mut loaded = load_at(&path, 2).unwrap();
    let sequences = |page| {
        vec![ScheduledSequence {
            row: 0,
            rows: 1,
            position: 0,
            pages: [page].into(),
            logits: LogitRows::Last,
            state: STATE,
        }]
    };
    let unsound = StepBatch::known(&[1], sequences(99));
    assert!(loaded.model.step(&unsound).unwrap_err().message.contains("page 99"));
    let sound = StepBatch::known(&[1], sequences(0));
    assert!(loaded.model.step(&sound).unwrap_err().message.contains("has ended"));
}

/// Model of a rank with asynchronous steps that computes nothing: each step samples the step's own
/// number.
#[derive(Debug)]
struct Numbering {
    info: ModelInfo,
    free_bytes: Option<u64>,
    begun: u32,
    fails_at: Option<u32>,
    in_flight: VecDeque<Option<u32>>,
    completed: Option<u32>,
}

impl Model for Numbering {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, _pages: usize, _page_tokens: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn profile_run(
        &mut self,
        _tokens: usize,
        _sequences: usize,
    ) -> Result<Option<u64>, DeviceError> {
        Ok(self.free_bytes)
    }

    fn run_ahead(&self) -> usize {
        1
    }

    fn submit(&mut self, _batch: &StepBatch) -> Result<(), DeviceError> {
        if self.fails_at == Some(self.begun) {
            return Err(DeviceError {
                operation: "launch",
                message: "as the test wants".to_owned(),
            });
        }
        self.in_flight.push_back(Some(self.begun));
        self.begun += 1;
        Ok(())
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.completed = self.in_flight.pop_front().expect("a step is in flight");
        Ok(StepOutput { logits: &[], tokens: std::slice::from_ref(&self.completed) })
    }
}

/// Builds a parallel model of two ranks that compute nothing; the second rank fails at step
/// `fails_at`.
fn numbering(fails_at: Option<u32>) -> Parallel {
    let (_folder, path) = tiny(3);
    let info = load_at(&path, 1).unwrap().info().clone();
    let rank = |fails_at| Numbering {
        info: info.clone(),
        free_bytes: None,
        begun: 0,
        fails_at,
        in_flight: VecDeque::new(),
        completed: None,
    };
    Parallel::new(vec![rank(None), rank(fails_at)])
}

#[test]
fn ranks_run_ahead_together_and_a_failure_is_told_when_a_step_lands() {
    let batch = StepBatch::default();
    let mut model = numbering(None);
    assert_eq!(model.run_ahead(), 1);
    model.submit(&batch).unwrap();
    for step in 0..3 {
        model.submit(&batch).unwrap();
        assert_eq!(model.complete().unwrap().tokens, [Some(step)]);
    }
    assert_eq!(model.complete().unwrap().tokens, [Some(3)]);

    let mut model = numbering(Some(1));
    model.submit(&batch).unwrap();
    model.submit(&batch).unwrap();
    assert!(model.complete().unwrap_err().message.contains("as the test wants"));
}

#[test]
fn the_rank_with_the_least_room_for_its_share_decides_for_all() {
    let (_folder, path) = tiny(3);
    let info = load_at(&path, 1).unwrap().info().clone();
    // The first rank has three of four heads, the second has one.
    let model = |free_bytes: [Option<u64>; 2]| {
        let rank = |(kv_bytes_per_token, free_bytes)| Numbering {
            info: ModelInfo { kv_bytes_per_token, ..info.clone() },
            free_bytes,
            begun: 0,
            fails_at: None,
            in_flight: VecDeque::new(),
            completed: None,
        };
        Parallel::new([300, 100].into_iter().zip(free_bytes).map(rank).collect())
    };
    for (free_bytes, all) in [
        ([Some(3000), Some(3000)], Some(4000)),
        ([Some(3000), Some(500)], Some(2000)),
        ([None, None], None),
    ] {
        assert_eq!(model(free_bytes).profile_run(8, 2).unwrap(), all, "{free_bytes:?}");
    }
}

#[test]
fn a_failure_is_told_by_its_cause_and_not_by_who_was_let_go() {
    let error = |message: &str| DeviceError { operation: "launch", message: message.to_owned() };
    let answers = || vec![Err(error(ANOTHER_ENDED)), Err(error("disk")), Err(error(ANOTHER_ENDED))];
    assert_eq!(first_cause(answers()).unwrap_err().message, "disk");
    assert_eq!(first_cause(vec![Err(error(ANOTHER_ENDED))]).unwrap_err().message, ANOTHER_ENDED);
}
