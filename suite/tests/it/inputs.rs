//! Workloads from the pinned inputs: tokenizers and conversations of real models, from the cache.

use std::path::Path;

use fixtures::{MODEL, fixture};
use schema::run::PromptForm;
use schema::scenario::{Arrival, Scenario, Tier};
use serde::Deserialize;
use suite::workload::dataset::Dataset;
use suite::workload::sampler::plan;
use suite::workload::tokenizer::Tokenizer;

pub use fixtures::{CONVERSATIONS, QWEN3_TOKENIZER, cached};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// Text of the prompt; `None` if the case is given only as token ids.
    text: Option<String>,
    prompt: Vec<u32>,
}

#[test]
fn prompt_ids_equal_those_of_llama_cpp() {
    let Some(model) = cached(MODEL) else { return };
    let golden = fixture("golden/smollm2-llama-cpp.json");
    let golden: Golden = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let tokenizer = Tokenizer::open(&model).unwrap();
    let texts = golden.cases.iter().filter_map(|case| Some((case.text.as_ref()?, &case.prompt)));
    for (text, prompt) in texts.clone() {
        assert_eq!(&tokenizer.encode(text).unwrap(), prompt, "{text:?}");
        assert_eq!(&tokenizer.decode(prompt).unwrap(), text);
    }
    assert!(texts.count() > 3, "the fixture holds texts");
}

#[test]
fn the_standard_lite_scenarios_have_the_manifests_that_are_published() {
    let (Some(model), Some(conversations)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let tokenizer = Tokenizer::open(&model).unwrap();
    let dataset = Dataset::open(&conversations).unwrap();
    let mut found = String::new();
    for id in ["sharegpt-lite", "balanced-lite", "thinking-lite", "long-input-lite"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{id}.toml"));
        let scenario = Scenario::parse(&std::fs::read_to_string(file).unwrap()).unwrap();
        let plan =
            plan(id, &scenario, Some(&dataset), Some(&tokenizer), PromptForm::TokenIds).unwrap();
        let manifest = &plan.manifest;
        found += &format!(
            "{id} requests {} input {} output {} {}\n",
            manifest.requests.len(),
            manifest.input_tokens(),
            manifest.output_tokens(),
            manifest.sha256().unwrap()
        );
    }
    expect_test::expect![[r#"
        sharegpt-lite requests 48 input 11760 output 14846 ef593de63b962fa844729420434f76ff31da8d9f19933a900a82be96a07c7986
        balanced-lite requests 32 input 4096 output 4096 223ea8498633ad66f219a1c8fd769fd23a86f2449b6f49cbd5e8841bf1c5f4ab
        thinking-lite requests 8 input 2000 output 6000 6fa92c189b5f0ec1a1fc9a5a95a6cb5d95b96eda3ef267a5e51ca0b74696161e
        long-input-lite requests 8 input 6000 output 2000 3229d00ccd56158f1a54cc5806f28e963d32d599fd3f6c9d94ba124fb15a68f5
    "#]].assert_eq(&found);
}

#[test]
fn every_scenario_file_is_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let id = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("question = "), "{id}: the question comes first");
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{id}: {error}"));
        let tier = if id.contains("-lite") { Tier::Lite } else { scenario.tier };
        assert_eq!(scenario.tier, tier, "{id}");
        // Lab scenarios keep the seed of the published page that they follow.
        let seed = if id.starts_with("lab-") { 42 } else { 1 };
        assert_eq!(
            (scenario.workload.seed, scenario.output.temperature),
            (seed, Some(0.0)),
            "{id}"
        );
        if let Some((_, rung)) = id.split_once("-c").filter(|(head, _)| head.starts_with("ladder"))
        {
            let concurrency = rung.parse().unwrap();
            assert_eq!(scenario.arrival, Arrival::Closed { concurrency }, "{id}");
            assert_eq!(scenario.workload.requests, 10 * concurrency, "{id}: ten a slot");
        }
        ids.push(id);
    }
    assert!(ids.len() >= 20, "{ids:?}");
}
