//! Tests of the measured part of a document: Redline beside other engines, and beside the limits
//! of machines.

use expect_test::expect_file;
use judge::{Registry, Stored};
use samples::registry as sample;
use samples::{Sample, campaign_id};
use schema::campaign::CampaignRecord;
use schema::kernel::{
    AttentionBench, BenchLimits, DecodeBench, KernelBench, KernelRecord, ModelBench, PrefillBench,
    ProductBench,
};
use schema::run::RunRecord;
use site::{Catalog, Renderer, document};

/// Two engines in blocks of campaign 2; the machine gets slightly slower from block to block.
fn in_turns(scenario: &str) -> Vec<RunRecord> {
    let mut records = Vec::new();
    for block in 0..3_u32 {
        for (position, engine, release, speed) in
            [(0, "redline", "v0.9.2", 3.0), (1, "llama.cpp", "v1.2.0", 1.0)]
        {
            let serial = 100 + u64::from(2 * block + position);
            records.push(
                Sample {
                    engine: engine.to_owned(),
                    release: release.to_owned(),
                    scenario: scenario.to_owned(),
                    serial: serial + if scenario == "sharegpt-lite" { 0 } else { 50 },
                    campaign: (campaign_id(2), block, position),
                    repeat: block + 1,
                    speed: speed * (1.0 - 0.01 * f64::from(block)),
                    seed: serial,
                    ..Sample::default()
                }
                .record(),
            );
        }
    }
    records
}

/// A later release on another machine, which was not run beside the other engine.
fn apart() -> Vec<RunRecord> {
    let run = |engine: &str, release: &str, serial: u64| {
        let (engine, release) = (engine.to_owned(), release.to_owned());
        let hardware = "cpu-example-simulated-f6m2s1-8c".to_owned();
        let campaign = (campaign_id(serial), 0, 0);
        Sample { engine, release, hardware, serial, campaign, ..Sample::default() }.record()
    };
    vec![run("redline", "v0.9.2", 3), run("redline", "v0.10.0", 4), run("llama.cpp", "v1.2.0", 5)]
}

fn bench(op: &str, shape: &str, isa: &str, limit_share: Option<f64>) -> KernelBench {
    KernelBench {
        op: op.into(),
        shape: shape.into(),
        dtype: "q4_1".into(),
        isa: isa.into(),
        device: "cpu".into(),
        median_ns: 1000.0,
        samples: 20,
        limit_share,
        ..KernelBench::default()
    }
}

fn model_bench() -> ModelBench {
    let decode =
        |batch, limit_share| DecodeBench { batch, context: 128, tokens_per_s: 312.4, limit_share };
    let attention = |rows, limit: &str| AttentionBench {
        rows,
        context: 8000,
        kv_bytes_per_s: 33.1e9,
        flops_per_s: 512e9,
        limit_share: 0.8,
        limit: limit.into(),
    };
    ModelBench {
        model: "smollm2-135m-instruct-q4_1".into(),
        device: "cpu".into(),
        threads: Some(2),
        dtype: "int8".into(),
        prefill: vec![PrefillBench { tokens: 512, tokens_per_s: 2345.6, limit_share: 0.614 }],
        decode: vec![decode(1, Some(0.83)), decode(8, None)],
        products: vec![ProductBench {
            rows: 512,
            n: 1536,
            k: 576,
            weight_dtype: "q4_1".into(),
            dtype: "int8".into(),
            ops_per_s: 2.1e12,
            limit_share: 0.52,
        }],
        attention: vec![attention(1, "read_bytes_per_s"), attention(512, "f32_flops_per_s")],
        limits: BenchLimits {
            int8_ops_per_s: Some(4.01e12),
            bf16_flops_per_s: Some(1.9e12),
            f32_flops_per_s: Some(0.95e12),
            read_bytes_per_s: 41.2e9,
        },
    }
}

/// Kernel record of a release, with or without a model measured beside the limits.
fn kernels(release: &str, id: u64, model_bench: Option<ModelBench>) -> Stored<KernelRecord> {
    let run = Sample::default().record();
    let mut engine = run.engine.clone();
    engine.release = release.to_owned();
    let share = model_bench.is_some().then_some(0.45);
    let record = KernelRecord {
        id: campaign_id(id),
        engine,
        hardware: run.hardware.clone(),
        time: run.time.clone().unwrap_or_default(),
        benches: vec![
            bench("matmul_int8", "T1_K576_N1536", "avx512", share.map(|share| share / 3.0)),
            bench("matmul_int8", "T512_K576_N1536", "avx512", share),
            bench("matmul_int8", "T512_K576_N1536", "avx2", share.map(|share| share / 2.0)),
            bench("rms_norm", "T1_N576", "avx512", None),
        ],
        model_bench,
        ..KernelRecord::default()
    };
    Stored { path: format!("kernels/redline/{release}/hw/{id}.json"), root: 0, record }
}

fn registry() -> Registry {
    let records = [in_turns("sharegpt-lite"), in_turns("balanced-lite"), apart()].concat();
    let mut registry = sample::registry(records);
    let command = ["release-bench", "--engine", "llama.cpp", "1.2.0", "--beside", "redline@v0.9.2"];
    let record = CampaignRecord {
        id: campaign_id(2),
        command: command.map(str::to_owned).to_vec(),
        ..CampaignRecord::default()
    };
    registry.campaigns.push(Stored { path: "campaigns/x.json".into(), root: 0, record });
    registry.kernels = vec![
        kernels("v0.9.2", 2, Some(model_bench())),
        kernels("v0.9.2", 1, None),
        kernels("v0.9.1", 3, None),
    ];
    registry
}

fn rendered(registry: &Registry) -> String {
    let renderer = Renderer::new().expect("templates compile");
    document::measured(&Catalog::of(registry), &renderer).expect("renders")
}

#[test]
fn engines_stand_beside_each_other_and_kernels_beside_their_limits() {
    expect_file!["../cases/measured.md"].assert_eq(&rendered(&registry()));
}

#[test]
fn figures_of_a_gpu_stand_under_each_model_with_the_commands_of_its_bundle() {
    let on_gpu = |model: &str, tokens_per_s| ModelBench {
        model: model.into(),
        device: "cuda".into(),
        dtype: "bf16".into(),
        prefill: vec![PrefillBench { tokens: 512, tokens_per_s, limit_share: 0.57 }],
        limits: BenchLimits {
            bf16_flops_per_s: Some(7.1e14),
            read_bytes_per_s: 4.3e12,
            ..BenchLimits::default()
        },
        ..ModelBench::default()
    };
    let mut stored = kernels("v0.9.2", 1, Some(on_gpu("qwen3-8b-random", 33_383.0)));
    let record = &mut stored.record;
    record.further_model_benches = vec![on_gpu("gpt-oss-20b-random", 58_387.0), model_bench()];
    record.hardware.id = "h200-141g".into();
    record.benches[0].device = "cuda".into();
    let text = rendered(&Registry { kernels: vec![stored], ..Registry::default() });
    for expected in [
        "qwen3-8b-random, computed in bf16 on a GPU. The machine's limits, measured by the same \
         process: 710 Tflop/s in bf16, 4.30 TB/s read from memory.",
        "gpt-oss-20b-random, computed in bf16 on a GPU.",
        "smollm2-135m-instruct-q4_1, computed in int8 on 2 threads.",
        "| a prompt of 512 tokens | 58,400 tokens/s | 57 % | arithmetic in bf16 |\n\nsmollm2",
        "cargo xtask gpu-validation pack v0.9.2 --validation h200-141g\n\
         tar -xf target/validations/h200-141g/bundle.tar.xz\n\
         bundle/validate\n\
         cargo xtask gpu-validation collect validation-results\n",
    ] {
        assert!(text.contains(expected), "no `{expected}` in\n{text}");
    }
    assert!(!text.contains("cargo xtask kernels"), "it measures no GPU: {text}");
}

#[test]
fn a_registry_that_measured_nothing_beside_anything_says_so() {
    let nothing = "No other engine was measured where Redline was.\n\n\
                   Nothing was measured beside the limits of its machine.";
    assert_eq!(rendered(&Registry::default()).trim(), nothing);
    let kernels = vec![kernels("v0.9.2", 1, None)];
    let bare = Registry { kernels, ..Registry::default() };
    assert_eq!(rendered(&bare).trim(), nothing);
}

#[test]
fn a_lost_run_is_in_no_figure_and_leaves_its_pair_out() {
    let mut registry = registry();
    let lost = registry.runs.iter().find(|run| {
        run.record.engine.name == "llama.cpp" && run.record.scenario.id == "sharegpt-lite"
    });
    let id = lost.expect("a run").record.id.clone();
    registry.retracted.insert(
        id,
        judge::records::Retraction {
            event: campaign_id(9),
            reason: "a backup ran beside it".into(),
            replaced_by: None,
        },
    );
    let text = rendered(&registry);
    let pairs: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("Output tokens/s"))
        .filter_map(|line| line.rsplit('|').nth(1))
        .map(str::trim)
        .collect();
    assert_eq!(pairs, ["2", "3", "-"], "{text}");
}
