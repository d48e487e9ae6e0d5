//! Pages as people publish them, those that this project replaces, and damaged ones: cut, with
//! headings or logs trimmed, with other line ends. A damaged page gives what the whole page gives, or
//! less; a result never gets facts of its neighbor.

use std::collections::BTreeMap;
use std::fs;

use schema::run::Kind;

use super::*;
use store::storage::verified;

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
    let reading = format!("{digits}-r{}", reports::READER);
    assert_eq!(path.to_str(), Some(&*format!("imports/example/{reading}/001.json")));
    assert_eq!((record.kind, &*record.id), (Kind::Imported, &*format!("{reading}-001")));
    assert_eq!((&*record.engine.name, &*record.engine.release), ("vllm", "v0.10.1"));
    assert_eq!((&*record.model.id, record.model.source.as_deref()), ("m-1b", Some("org/M-1B")));
    assert_eq!(record.server.as_ref().unwrap().tp, Some(2));
    assert_eq!((&*record.hardware.id, record.hardware.claimed), ("a100-80g", true));
    assert_eq!(record.hardware.evidence.as_deref(), Some("The file's name."));
    let text = schema::canonical::to_file_text(record).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(verified(path, text.as_bytes()).unwrap().1, []);
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
        let error = import(PAGE, "f", source, None).unwrap_err().to_string();
        assert!(error.contains("cannot be the name of a source"), "{source}: {error}");
    }
    let hostile = Claim { hardware: "../h".into(), ..claim() };
    let error = import(PAGE, "f", "s", Some(&hostile)).unwrap_err().to_string();
    assert!(error.starts_with("`../h` cannot be the id of a hardware"), "{error}");
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

/// Number of results of a published page, by engine, release, model, tensor-parallel size and
/// scenario.
type Tally = BTreeMap<String, usize>;

/// Returns the text of a published page, by the beginning of its file's name; `None` without the
/// pages.
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
        assert_eq!(verified(path, text.as_bytes()).unwrap().1, []);
    }
    Some(tally)
}

/// Builds the tally of a page that has one result for each of `models` in each of four scenarios.
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

/// Figures of a result and what they were measured on. The number of planned requests is left out,
/// because only the command states it.
#[derive(Debug, Clone, PartialEq)]
struct Facts {
    figures: String,
    engine: String,
    release: String,
    model: String,
    scenario: String,
    tp: Option<u32>,
}

impl Facts {
    fn of(record: &RunRecord) -> Self {
        Self {
            figures: format!("{:?} {:?}", record.time, record.metrics),
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            model: record.model.id.clone(),
            scenario: record.scenario.id.clone(),
            tp: record.server.as_ref().and_then(|server| server.tp),
        }
    }

    /// Returns true if engine, release, model, scenario and tensor-parallel size are each equal to
    /// those of `whole` or unknown.
    fn is_no_more_than(&self, whole: &Self) -> bool {
        let open = |own: &str, whole: &str| own == whole || own == "unknown";
        open(&self.engine, &whole.engine)
            && open(&self.release, &whole.release)
            && open(&self.model, &whole.model)
            && open(&self.scenario, &whole.scenario)
            && (self.tp.is_none() || self.tp == whole.tp)
    }
}

fn facts(page: &str) -> (Vec<Facts>, usize) {
    let imported = import(page, "page.md", "seed", None).unwrap();
    let found = imported.records.iter().map(|(_, record)| Facts::of(record)).collect();
    (found, imported.unread.len())
}

const TITLE: &str = "============ Serving Benchmark Result";
const END: &str = "==================================================";

/// Returns published pages that have a log for each result, and the results imported from them.
fn pages() -> Vec<(String, Vec<Facts>)> {
    let pages: Vec<String> = ["000_", "002_", "004_"].into_iter().filter_map(published).collect();
    pages.into_iter().map(|page| (page.clone(), facts(&page).0)).collect()
}

#[test]
fn other_line_ends_change_nothing() {
    for (page, whole) in pages() {
        assert_eq!(facts(&page.replace('\n', "\r\n")), (whole.clone(), 0));
        assert_eq!(facts(&format!("\u{feff}{page}")), (whole, 0));
    }
}

#[test]
fn a_page_that_ends_anywhere_tells_of_what_came_before() {
    for (page, whole) in pages() {
        let step = page.len() / 97;
        for end in (1..97).map(|part| page.floor_char_boundary(part * step)) {
            let cut = &page[..end];
            let (found, unread) = facts(cut);
            assert_eq!(found[..], whole[..found.len()], "cut at {end}");
            // A result whose block was begun is imported, or its line is reported.
            let begun = cut.matches(TITLE).count();
            assert!(begun == 0 || found.len() + unread == begun, "cut at {end}: {begun} begun");
        }
    }
}

#[test]
fn without_headings_nothing_is_taken_from_a_neighbour() {
    for (page, whole) in pages() {
        let heading = |line: &&str| !line.starts_with('#') || line.starts_with("#I");
        let bare: Vec<&str> = page.lines().filter(heading).collect();
        let (found, unread) = facts(&bare.join("\n"));
        assert_eq!((found.len(), unread), (whole.len(), 0));
        for (found, whole) in found.iter().zip(&whole) {
            assert_eq!(found.figures, whole.figures);
            assert!(found.is_no_more_than(whole), "{found:?}\n{whole:?}");
        }
    }
}

/// Returns the byte offsets of each log in `page`: its begin (with the command line if it has one),
/// the begin of its block, and its end.
fn logs(page: &str) -> Vec<(usize, usize, usize)> {
    let mut logs = Vec::new();
    let mut last = 0;
    for (title, _) in page.match_indices(TITLE) {
        let end = title + page[title..].find(&format!("\n{END}")).unwrap() + 1 + END.len();
        let command = page[last..title].find("Namespace(").map_or(title, |at| last + at);
        logs.push((command, title, end));
        last = end;
    }
    logs
}

#[test]
fn a_section_whose_log_is_gone_gives_its_command_to_no_other() {
    for (page, whole) in pages() {
        for (index, (command, title, end)) in logs(&page).into_iter().enumerate() {
            for begin in [command, title] {
                let without = format!("{}{}", &page[..begin], &page[end..]);
                let (found, unread) = facts(&without);
                let mut rest = whole.clone();
                rest.remove(index);
                assert_eq!((found.len(), unread), (rest.len(), 0));
                for (found, whole) in found.iter().zip(&rest) {
                    assert!(found.is_no_more_than(whole), "{index}: {found:?}\n{whole:?}");
                }
            }
        }
    }
}

#[test]
fn a_log_without_its_command_is_not_given_the_one_before() {
    for (page, whole) in pages() {
        for (index, (command, title, _)) in logs(&page).into_iter().enumerate() {
            let trimmed = format!("{}{}", &page[..command], &page[title..]);
            let (found, unread) = facts(&trimmed);
            assert_eq!((found.len(), unread), (whole.len(), 0));
            for (found, whole) in found.iter().zip(&whole) {
                assert!(found.is_no_more_than(whole), "{index}: {found:?}\n{whole:?}");
            }
        }
    }
}

#[test]
fn two_results_under_one_heading_are_two_results() {
    for (page, whole) in pages() {
        let (_, title, end) = logs(&page)[0];
        let twice = format!("{}\n\n{}{}", &page[..end], &page[title..end], &page[end..]);
        let (found, unread) = facts(&twice);
        assert_eq!((found.len(), unread), (whole.len() + 1, 0));
        assert_eq!((&found[0], &found[2..]), (&whole[0], &whole[1..]));
        assert!(found[1].is_no_more_than(&whole[0]), "{:?}", found[1]);
    }
}

#[test]
fn bytes_of_no_text_are_said_and_never_a_figure() {
    assert_eq!(facts("\0"), (Vec::new(), 1));
    assert_eq!(facts(&"\0".repeat(100_000)), (Vec::new(), 1));
    for (page, whole) in pages() {
        // A hole in a file, as a full disk leaves it: 4,096 zero bytes.
        for (index, (_, title, end)) in logs(&page).into_iter().enumerate() {
            let middle = page.floor_char_boundary(title.midpoint(end));
            let hole = "\0".repeat(4_096.min(page.len() - middle));
            let after = page.ceil_char_boundary(middle + hole.len());
            let (found, unread) = facts(&format!("{}{hole}{}", &page[..middle], &page[after..]));
            assert!(unread > 0 || found.len() < whole.len(), "{index}: the hole was not seen");
            assert_eq!(found[..index], whole[..index]);
            for found in found.iter().skip(index) {
                let is_whole =
                    |whole: &Facts| found.figures == whole.figures && found.is_no_more_than(whole);
                assert!(whole.iter().any(is_whole), "{index}: {found:?}\n{:?}", whole[index]);
            }
        }
    }
}
