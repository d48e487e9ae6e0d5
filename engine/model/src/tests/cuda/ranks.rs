//! Tests of tensor parallelism on several emulated GPUs: the results, and that all ranks make the
//! same calls.

use std::thread;

use super::*;
use crate::Parallel;
use crate::on_ranks;
use crate::tests::tiny_gguf::tiny_llama_gguf;

/// Conditions of the tests with several ranks: decoding one row per step and several rows per step,
/// after whole prompts.
const SOME: [Condition; 2] = [Condition::Whole, Condition::Batched];

/// Returns the CUDA devices of `ranks` ranks and their emulated GPUs; none if there is no compiler
/// for the emulated kernels.
pub fn devices(ranks: usize, reaches_others: bool) -> Option<(Vec<Cuda>, Vec<Arc<Emulated>>)> {
    let (gpus, members) = Emulated::group(ranks, MEMORY, reaches_others)?;
    Some((Cuda::group(members).unwrap(), gpus))
}

/// Loads the checkpoint in `folder` on several CUDA devices, one rank each, with one thread per
/// rank.
pub fn shared(folder: &Path, devices: Vec<Cuda>, kv: KvType) -> Parallel {
    let load = |device| Ok::<_, LoadError>(on_device(device, folder, kv));
    Parallel::new(on_ranks(devices, load).unwrap())
}

/// Checks the test checkpoint `name` on two ranks that sum through each other's memory, and on four
/// ranks that have only NCCL.
fn check(name: &str) {
    let Some(reference) = reference(name) else { return };
    for (ranks, reaches_others) in [(2, true), (4, false)] {
        let Some((devices, gpus)) = devices(ranks, reaches_others) else { return };
        let mut model = shared(&reference.folder, devices, KvType::Bf16);
        conforms(&mut model, &reference, &SOME, TIMES_SHARED);
        let (together, replays) = (gpus[0].together(), gpus[0].replays());
        for gpu in &gpus {
            assert!(gpu.together() == together, "{ranks} ranks do the same in the same order");
            assert_eq!(gpu.replays(), replays, "{ranks} ranks replay the same steps");
        }
        let count = |name: &str| together.iter().filter(|one| one.starts_with(name)).count();
        assert!(replays > 0 && count("AllGather") > 0, "{together:?}");
        let by_launch = count("all_reduce");
        assert_eq!(by_launch > 0, reaches_others, "{together:?}");
        assert_eq!(count("AllReduce") > 0, !reaches_others, "{together:?}");
    }
}

#[test]
fn llama_conforms() {
    check("llama-tied");
}

#[test]
fn qwen3_dense_conforms() {
    check("qwen3-dense");
}

#[test]
fn qwen3_moe_conforms() {
    check("qwen3-moe");
}

#[test]
fn gpt_oss_conforms() {
    check("gpt-oss-mxfp4");
}

#[test]
fn qwen3_5_conforms() {
    check("qwen3_5-hybrid");
}

#[test]
fn vocabularies_of_any_size_are_computed_whole_and_shared() {
    // The vocabulary of 267 tokens is a multiple of neither 8 nor 2.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny_llama_gguf(3)).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 229) % 267).collect();
    let logits = |model: &mut dyn Model| {
        model.allocate_kv(2, PAGE_TOKENS).unwrap();
        let own = scheduled(tokens.len(), 0, vec![1, 0], LogitRows::All);
        model.step(&StepBatch::known(&tokens, vec![own])).unwrap().to_vec()
    };
    let draw = |model: &mut dyn Model| {
        let draws = LogitRows::Sample(engine_core::sample::Sampling::greedy().sample_params(0));
        model.submit(&StepBatch::known(&[266], vec![scheduled(1, 0, vec![0], draws)])).unwrap();
        model.complete().unwrap().tokens.to_vec()
    };
    let mut cpu = load_path(&path, &exact()).model;
    let (want, drawn) = (logits(cpu.as_mut()), draw(cpu.as_mut()));
    for ranks in [1, 2] {
        let Some((mut devices, _)) = devices(ranks, true) else { return };
        let mut model: Box<dyn Model> = match ranks {
            1 => Box::new(on_device(devices.remove(0), &path, KvType::Bf16)),
            _ => Box::new(shared(&path, devices, KvType::Bf16)),
        };
        let found = logits(model.as_mut());
        assert_eq!(found.len(), want.len());
        let difference = relative(&found, &want);
        assert!(difference < BOUND, "{ranks} ranks: {difference}");
        assert_eq!(draw(model.as_mut()), drawn, "{ranks} ranks");
    }
}

/// Returns the batch of a decoding step of one row at `position`.
fn decoding(position: usize) -> StepBatch {
    StepBatch::known(&[7], vec![scheduled(1, position, vec![0], LogitRows::Last)])
}

#[test]
fn a_rank_whose_records_are_gone_has_the_others_run_with_it() {
    let Some(reference) = reference("llama-tied") else { return };
    let Some((devices, gpus)) = devices(2, false) else { return };
    let run = |(rank, device): (usize, Cuda)| {
        let mut model = on_device(device, &reference.folder, KvType::Bf16);
        model.allocate_kv(1, PAGE_TOKENS).unwrap();
        for position in 0..8 {
            if (rank, position) == (1, 4) {
                model.allocate_kv(1, PAGE_TOKENS).unwrap();
            }
            model.step(&decoding(position)).unwrap();
        }
        Ok::<_, LoadError>(model)
    };
    let models = on_ranks(devices.into_iter().enumerate().collect(), run).unwrap();
    // Memory grows in the first step, so steps 2 and 5 are captured; they and the later ones are
    // replayed.
    assert_eq!([gpus[0].replays(), gpus[1].replays()], [5, 5]);
    assert!(gpus[0].together() == gpus[1].together());
    drop(models);
}

#[test]
fn a_rank_that_ends_lets_the_others_go_in_the_middle_of_a_sum() {
    let Some(reference) = reference("llama-tied") else { return };
    for reaches_others in [true, false] {
        let Some((mut devices, _)) = devices(2, reaches_others) else { return };
        let gone = devices.remove(1);
        let mut model = on_device(devices.remove(0), &reference.folder, KvType::Bf16);
        model.allocate_kv(1, PAGE_TOKENS).unwrap();
        // Several rows are needed so that the ranks meet inside of operations and not before.
        let own = scheduled(2, 0, vec![0], LogitRows::Last);
        let batch = StepBatch::known(&[7, 8], vec![own]);
        let failed = thread::scope(|scope| {
            let step = scope.spawn(|| model.step(&batch).map(<[f32]>::to_vec));
            drop(gone);
            step.join().unwrap().unwrap_err()
        });
        assert!(failed.message.contains("another rank has ended"), "{failed}");
    }
}
