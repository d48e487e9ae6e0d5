//! Files of the suite, compiled into this program: questions that its scenarios answer (the first key
//! of each file), labs that ask about a model, engines, targets, models, datasets and GPU
//! validations. Knows ids, not records.

use std::path::Path;

use schema::engine::EngineFile;
use schema::model::InputSource;
use schema::scenario::{Scenario, id_of};
use schema::target::Target;
use serde::Deserialize;

// Tables `SCENARIOS`, `LABS`, `MODELS`, `DATASETS`, `ENGINES`, `TARGETS` and `VALIDATIONS` of id and
// text of each file, which the build script writes.
include!(concat!(env!("OUT_DIR"), "/suite.rs"));

/// Id of the target of machines without a GPU.
pub const CPU: &str = "cpu";

/// Token totals that published reports print of samples, which the suite draws again.
const PUBLISHED: &str = include_str!("../../suite/published.toml");

/// Number of requests of a published sample, and its tokens.
#[derive(Debug, Deserialize)]
struct Totals {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
}

#[derive(Debug, Deserialize)]
struct Published {
    totals: Vec<Totals>,
}

/// True when a published sample that the suite draws again has this number of requests and of tokens.
pub fn is_published_sample(requests: u64, input_tokens: u64, output_tokens: u64) -> bool {
    let known = toml::from_str::<Published>(PUBLISHED).map(|file| file.totals).unwrap_or_default();
    known.iter().any(|totals| {
        (totals.requests, totals.input_tokens, totals.output_tokens)
            == (requests, input_tokens, output_tokens)
    })
}

fn text(table: &'static [(&str, &str)], id: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == id).map(|(_, text)| *text)
}

/// Returns the engine file named `id`; `None` where the suite has none.
pub fn engine(id: &str) -> Option<EngineFile> {
    schema::engine::parse(text(ENGINES, id)?).ok()
}

/// True when `hardware` is the id of one of the suite's targets, as that of a class of GPUs is. A
/// processor's id names the processor, and its target is the one of machines without a GPU.
pub fn is_target(hardware: &str) -> bool {
    text(TARGETS, hardware).is_some()
}

/// Returns the target file named `id`; `None` where the suite has none.
pub fn target(id: &str) -> Option<Target> {
    schema::target::parse(text(TARGETS, id)?).ok()
}

/// Name of an input of the suite, as a reader has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// Hub: Hugging Face id, which engines load by themselves.
    Hub(String),
    /// File: name of the file, without the folder that it lies in.
    File(String),
}

impl Name {
    fn of(source: &InputSource) -> Option<Self> {
        match source.member.as_ref().or(source.file.as_ref()) {
            Some(file) => Some(Self::File(Path::new(file).file_name()?.to_str()?.to_owned())),
            None => source.hub.clone().map(Self::Hub),
        }
    }
}

/// Returns the name of the suite's model `id`; `None` for an unknown model, and for one with random
/// weights.
pub fn model(id: &str) -> Option<Name> {
    schema::model::parse_model(text(MODELS, id)?).ok()?.sources.first().and_then(Name::of)
}

/// Returns the name, without extension, of the file of `scenario`, given as `id@rev`: that of an
/// older revision that the suite still has, else the scenario's id.
pub fn stem_of(scenario: &str) -> &str {
    if text(SCENARIOS, scenario).is_some() { scenario } else { id_of(scenario) }
}

/// Returns the id and the file name of the dataset that the scenario of the file `stem` draws from;
/// `None` where it needs none.
pub fn dataset_of(stem: &str) -> Option<(String, String)> {
    let dataset = Scenario::parse(text(SCENARIOS, stem)?).ok()?.workload.dataset?;
    let file = file_of(&dataset)?;
    Some((dataset, file))
}

/// Returns the id and the file name of the tokenizer of model `id`, where it is a file of its own;
/// `None` where it is in the weights.
pub fn tokenizer_of(id: &str) -> Option<(String, String)> {
    let tokenizer = schema::model::parse_model(text(MODELS, id)?).ok()?.tokenizer;
    let file = file_of(&tokenizer)?;
    Some((tokenizer, file))
}

fn file_of(dataset: &str) -> Option<String> {
    let file = schema::model::parse_dataset(text(DATASETS, dataset)?).ok()?;
    match Name::of(file.sources.first()?)? {
        Name::File(name) => Some(name),
        Name::Hub(_) => None,
    }
}

/// Returns the id of the suite's lab that asks about `model` on `target`; `None` where there is
/// none.
pub fn lab_of(model: &str, target: &str) -> Option<&'static str> {
    let asks = |text: &str| {
        schema::lab::parse(text).is_ok_and(|lab| lab.model == model && lab.target == target)
    };
    LABS.iter().find(|(_, text)| asks(text)).map(|(id, _)| *id)
}

/// Returns the id of the suite's GPU validation that measures `scenario` with `model`: the one for
/// `hardware`, which has its id, or another one. `None` where none does.
pub fn validation_of(model: &str, scenario: &str, hardware: &str) -> Option<&'static str> {
    let measures = |text: &str| {
        schema::gpu_validation::parse(text).is_ok_and(|file| {
            let has_model = file.models.iter().any(|own| own.id == model);
            has_model && file.scenarios().any(|id| id == scenario)
        })
    };
    let known = VALIDATIONS.iter().filter(|(_, text)| measures(text));
    let known: Vec<&'static str> = known.map(|(id, _)| *id).collect();
    known.iter().find(|id| **id == hardware).or(known.first()).copied()
}

/// Returns the question that scenario `id` answers at revision `rev`; `None` for a scenario that is
/// not the suite's, or a revision that the suite no longer has.
pub fn of(id: &str, rev: u32) -> Option<String> {
    let file = Scenario::parse(text(SCENARIOS, stem_of(&format!("{id}@{rev}")))?).ok()?;
    (file.rev == rev).then_some(file.question)
}

/// True when the suite has a scenario with the id of `scenario` (given as `id@rev`), at any
/// revision.
pub fn is_known(scenario: &str) -> bool {
    text(SCENARIOS, id_of(scenario)).is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns, for tests, the names without extension of the TOML files in `folder` below
    /// `suite/`.
    fn stems(folder: &str) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite").join(folder);
        let entries = std::fs::read_dir(folder).expect("a folder of the suite");
        entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn every_lab_of_the_suite_is_known() {
        let known: BTreeSet<String> = LABS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, stems("labs"));
        assert_eq!(lab_of("qwen3.5-9b", "h100-80g"), Some("h100-qwen3.5-9b"));
        assert_eq!(lab_of("qwen3.5-9b", "cpu"), None);
    }

    #[test]
    fn a_published_sample_is_known_by_its_totals() {
        assert!(is_published_sample(10_000, 2_258_583, 1_992_177));
        assert!(!is_published_sample(10_000, 2_258_583, 1_992_178));
    }

    #[test]
    fn every_target_of_the_suite_is_known() {
        let known: BTreeSet<String> = TARGETS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, stems("targets"));
        assert!(is_target("a100-80g") && !is_target("cpu-amd-epyc-f26m2s1-2c"));
    }

    #[test]
    fn a_validation_of_the_hardware_is_preferred() {
        let of = |scenario, hardware| validation_of("qwen3-8b-random", scenario, hardware);
        assert_eq!(of("balanced-quarter", "h200-141g"), Some("h200-141g"));
        assert!(of("balanced-quarter", "another card").is_some());
        assert_eq!(of("balanced-lite", "h200-141g"), None);
        let ids: BTreeSet<String> = VALIDATIONS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(ids, stems("validations"));
    }

    #[test]
    fn inputs_have_the_names_that_a_reader_knows() {
        let file = "SmolLM2-135M-Instruct.Q4_1.gguf".to_owned();
        assert_eq!(model("smollm2-135m-instruct-q4_1"), Some(Name::File(file)));
        assert_eq!(model("qwen3-8b"), Some(Name::Hub("Qwen/Qwen3-8B".to_owned())));
        assert_eq!(model("qwen3-8b-random"), None);
        assert_eq!(tokenizer_of("smollm2-135m-instruct-q4_1"), None);
        assert!(tokenizer_of("qwen3-8b").is_some_and(|(_, file)| file == "tokenizer.json"));
        let named = |(id, _): &(&str, &str)| engine(id).is_some_and(|file| !file.title.is_empty());
        assert!(ENGINES.iter().all(named));
        assert!(TARGETS.iter().all(|(id, _)| target(id).is_some_and(|of| !of.models.is_empty())));
        assert!(dataset_of("sharegpt").is_some_and(|(_, file)| file.ends_with(".json")));
    }

    #[test]
    fn every_scenario_of_the_suite_has_its_question() {
        let on_disk = stems("scenarios");
        let known: BTreeSet<String> = SCENARIOS.iter().map(|(id, _)| (*id).to_owned()).collect();
        assert_eq!(known, on_disk);
        for id in on_disk {
            let asked = (1..=9).find_map(|rev| of(&id, rev));
            assert!(asked.is_some_and(|question| question.ends_with('?')), "`{id}`");
        }
        assert_eq!(of("sharegpt", 0), None, "no file has revision 0");
        assert!(of("sharegpt", 1).is_some() && of("sharegpt", 2).is_some());
        let dataset = |scenario| dataset_of(stem_of(scenario)).map(|(id, _)| id);
        assert_eq!(dataset("sharegpt@1").as_deref(), Some("sharegpt-head"));
        assert_eq!(dataset("sharegpt@2").as_deref(), Some("sharegpt"));
        assert_eq!(stem_of("balanced@0"), "balanced", "the nearest that can be sent");
    }
}
