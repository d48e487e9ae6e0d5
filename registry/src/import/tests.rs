//! Pages as people publish them, and those that this project replaces.

use std::collections::BTreeMap;
use std::fs;

use schema::run::Kind;

use super::*;
use store::storage::{read, verify};

/// A page with a result that can be read, and one that is cut off.
const PAGE: &str = "# vLLM v0.10.1\n\n## M-1B\n\n```shell\nvllm serve org/M-1B \
    --tensor-parallel-size 2\n```\n\n```{text}\nNamespace(backend='vllm', model='org/M-1B')\n\
    ============ Serving Benchmark Result ============\n\
    Successful requests:                     100       \n\
    Benchmark duration (s):                  10.00     \n\
    Total generated tokens:                  1000      \n\
    ==================================================\n```\n\n## Other\n\
    ============ Serving Benchmark Result ============\nSuccessful requests: 5\n";

fn claim() -> Claim {
    Claim { hardware: "a100-80g".into(), evidence: "The file's name.".into() }
}

#[test]
fn a_block_becomes_a_sound_record_and_a_cut_one_is_named_by_line() {
    let imported = import(PAGE, "page.md", "example", Some(&claim())).unwrap();
    let [(path, record)] = &imported.records[..] else { panic!("{imported:?}") };
    let digits = &record.source.as_ref().unwrap().sha256[..8];
    assert_eq!(path.to_str(), Some(&*format!("imports/example/{digits}/001.json")));
    assert_eq!((record.kind, &*record.id), (Kind::Imported, &*format!("{digits}-001")));
    assert_eq!((&*record.engine.name, &*record.engine.release), ("vllm", "v0.10.1"));
    assert_eq!((&*record.model.id, record.model.source.as_deref()), ("m-1b", Some("org/M-1B")));
    assert_eq!(record.server.as_ref().unwrap().tp, Some(2));
    assert_eq!((&*record.hardware.id, record.hardware.claimed), ("a100-80g", true));
    assert_eq!(record.hardware.evidence.as_deref(), Some("The file's name."));
    let text = schema::canonical::to_file_text(record).unwrap();
    let path = path.to_str().unwrap();
    let parsed = read(path, text.as_bytes()).unwrap();
    assert_eq!(verify(path, text.as_bytes(), &parsed), []);
    assert_eq!(imported.unread.len(), 1);
    assert_eq!(imported.unread[0].line, 19);
}

#[test]
fn hardware_that_nobody_claims_is_absent() {
    let (_, record) = import(PAGE, "page.md", "example", None).unwrap().records.remove(0);
    assert_eq!((&*record.hardware.id, record.hardware.claimed), ("unknown", false));
    assert_eq!(record.hardware.evidence, None);
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for source in ["", "..", "a/b", "A", ".git"] {
        assert!(matches!(import(PAGE, "f", source, None), Err(ImportError::Source(_))), "{source}");
    }
    let hostile = Claim { hardware: "../h".into(), ..claim() };
    assert!(matches!(import(PAGE, "f", "s", Some(&hostile)), Err(ImportError::Hardware(_))));
    for (file, source) in [("A100_v0.9.2.md", "a100_v0.9.2"), ("My Page.md", "my-page"), ("..", "")]
    {
        assert_eq!(source_of(file), source);
    }
}

#[test]
fn an_empty_page_is_reported_and_imports_nothing() {
    let imported = import("", "v0.10.0.md", "example", None).unwrap();
    assert_eq!((imported.records.len(), imported.unread.len()), (0, 1));
}

/// A page's own results: engine, version, model, ranks and scenario, with how often they occur.
type Tally = BTreeMap<String, usize>;

/// The text of a published page, by the beginning of its file's name.
pub(super) fn published(page: &str) -> Option<String> {
    fs::read_to_string(fixtures::published_page(page)?).ok()
}

fn tally(page: &str) -> Option<Tally> {
    let text = published(page)?;
    let imported = import(&text, "page.md", "seed", Some(&claim())).unwrap();
    assert_eq!(imported.unread, []);
    let mut tally = Tally::new();
    for (path, record) in imported.records {
        let tp = record.server.as_ref().and_then(|server| server.tp);
        let tp = tp.map_or("-".to_owned(), |tp| tp.to_string());
        let (engine, model, scenario) = (&record.engine, &record.model.id, &record.scenario.id);
        let key = format!("{} {} {model} tp {tp} {scenario}", engine.name, engine.release);
        *tally.entry(key).or_default() += 1;
        let text = schema::canonical::to_file_text(&record).unwrap();
        let path = path.to_str().unwrap();
        let parsed = read(path, text.as_bytes()).unwrap();
        assert_eq!(verify(path, text.as_bytes(), &parsed), []);
    }
    Some(tally)
}

/// Each model under the four scenarios, once.
fn expected(engine: &str, models: &[(&str, u32)]) -> Tally {
    let scenarios = ["sharegpt", "balanced", "thinking", "long-input"];
    let of = |(model, tp): &(&str, u32)| {
        scenarios.map(|scenario| (format!("{engine} {model} tp {tp} {scenario}"), 1))
    };
    models.iter().flat_map(of).collect()
}

const QWEN: [(&str, u32); 4] =
    [("qwen3-8b", 1), ("qwen3-32b", 2), ("qwen3-30b-a3b", 2), ("qwen3-235b-a22b", 8)];
const GPT_OSS: [(&str, u32); 2] = [("gpt-oss-20b", 1), ("gpt-oss-120b", 2)];

#[test]
fn the_pages_that_this_project_replaces_are_imported_block_by_block() {
    let Some(lmdeploy) = tally("000_") else { return };
    assert_eq!(lmdeploy, expected("lmdeploy v0.9.2", &QWEN));
    let all = [&QWEN[..], &GPT_OSS].concat();
    assert_eq!(tally("002_"), Some(expected("vllm v0.10.1", &all)));
    let mut sglang = expected("sglang v0.5.1", &all);
    // Two runs of another workload have an id of their own.
    for (model, tp) in GPT_OSS {
        sglang.remove(&format!("sglang v0.5.1 {model} tp {tp} sharegpt"));
        sglang.insert(format!("sglang v0.5.1 {model} tp {tp} sharegpt-1000"), 1);
    }
    assert_eq!(tally("004_"), Some(sglang));
}

#[test]
fn a_page_without_commands_is_imported_by_its_profiles_and_flags() {
    let Some(found) = tally("003_") else { return };
    let model = "qwen3.5-9b tp -";
    let expected = [
        (format!("sglang v0.5.9 {model} sharegpt-1000"), 1),
        (format!("vllm v0.17.1 {model} random-1000-2000-200"), 2),
        (format!("vllm v0.17.1 {model} random-1024-128-1000"), 2),
        (format!("vllm v0.17.1 {model} random-32000-100-100"), 2),
        (format!("vllm v0.17.1 {model} sharegpt-1000"), 17),
    ];
    assert_eq!(found, Tally::from(expected));
}
