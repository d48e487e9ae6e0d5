//! Tests of pages about results published elsewhere: they show what their source prints, and a
//! report that was read again stands there once.

use std::collections::BTreeMap;

use super::*;
use schema::run::{Kind, Printed, PrintedRow, Source};

/// Returns label and value of every row of the results in `page`, read line by line and word by
/// word, without sections.
fn rows(page: &str) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for block in page.split("Serving Benchmark Result =").skip(1) {
        let block = block.trim_start_matches('=');
        let end = block.find("==========").expect("a closing line");
        let mut label: Vec<&str> = Vec::new();
        let mut words = block[..end].split_whitespace();
        while let Some(word) = words.next() {
            match word.strip_suffix(':') {
                Some(last) => {
                    label.push(last);
                    rows.push((label.join(" "), words.next().expect("a value").to_owned()));
                    label.clear();
                }
                None if word.ends_with("---") => label.clear(),
                None => label.push(word),
            }
        }
    }
    rows
}

/// Returns the texts of the tables in the Markdown `page`, by the label in their first column.
fn cells(page: &str) -> BTreeMap<String, Vec<String>> {
    let mut cells: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let mut parts = line.trim_matches('|').split(" | ").map(|part| part.trim().to_owned());
        let label = parts.next().unwrap_or_default();
        cells.entry(label).or_default().extend(parts.filter(|part| !part.is_empty()));
    }
    cells
}

#[test]
fn a_page_shows_every_row_and_digit_of_its_source_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    for (number, report) in [
        ("000_", "llm_benchmark/67a79b7e-r2"),
        ("002_", "llm_benchmark/64a87d32-r2"),
        ("003_", "performance-lab/d88cdf37-r2"),
        ("004_", "llm_benchmark/ee356a43-r2"),
    ] {
        let Some(source) = fixtures::published_page(number) else { return };
        let source = fs::read_to_string(source).expect("a published page");
        let page = fs::read_to_string(out.join("imports").join(report).join("index.md"));
        let page = page.expect("a page");
        let shown = cells(page.split("## Findings").next().expect("a part"));
        let mut printed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (label, value) in rows(&source) {
            printed.entry(label).or_default().push(value);
        }
        assert!(printed.len() > 20, "{number}: {printed:?}");
        for (label, values) in &printed {
            let mut values = values.clone();
            let mut shown = shown.get(label).unwrap_or_else(|| panic!("no row {label}")).clone();
            values.sort();
            shown.sort();
            assert_eq!(shown, values, "{report}: {label}");
        }
        assert!(!page.contains("| - |"), "{report}: a row that the source does not have");
    }
}

#[test]
fn variants_keep_their_names_and_all_their_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let read = |page: &str| fs::read_to_string(out.join(page)).expect("a page");
    let page = read("imports/performance-lab/d88cdf37-r2/index.md");
    for name in [
        "Max Num Seqs › Seqs 1024",
        "Batch Token 48k and Seqs 768",
        "profile Generation Heavy",
        "Baseline |",
        "same figures as 001",
        "514 of 1000 requests answered",
        "line 9",
        "Settings of every column: `dataset_name=Random`",
    ] {
        assert!(page.contains(name), "`{name}` is not in {page}");
    }
    let flags = page.lines().find(|line| line.starts_with("| Own flags")).expect("flags");
    assert!(flags.contains("`--max-num-batched-tokens=49152` `--max-num-seqs=768`"), "{flags}");
    // Rules stand below, once each, with the results that they concern.
    let findings = page.split("## Findings").nth(1).expect("findings");
    assert_eq!(findings.matches("### E23: failed in 23 of 24").count(), 1, "{findings}");
    let same = "[001](../../../run/d88cdf37-r2-001/index.md), [017](../../../run/d88cdf37-r2-017/";
    assert!(findings.contains(&format!("- {same}")), "{findings}");
    for page in ["r/vllm/v0.17.1/h100-80g/index.md", "r/vllm/v0.17.1/index.md"] {
        let page = read(page);
        assert!(!page.contains("tp1"), "ranks that nobody stated: {page}");
        assert!(!page.contains("--max-nu…"), "a flag is cut: {page}");
    }
    let run = read("run/64a87d32-r2-001/index.md");
    let figures = run.split("## Provenance").next().expect("figures");
    assert!(figures.contains("| Mean ITL (ms) | 71.71 |") && !figures.contains("| - |"), "{run}");
}

#[test]
fn a_report_that_was_read_again_stands_there_once() {
    let (mut registry, _) = own();
    let imported = |registry: &Registry| -> Vec<(bool, String)> {
        let catalog = Catalog::of(registry);
        let runs = catalog.runs.iter().filter(|run| run.record.kind == Kind::Imported);
        runs.map(|run| (run.retracted.is_some(), run.path.to_owned())).collect()
    };
    let standing = imported(&registry);
    assert_eq!(standing.len(), 88);
    assert!(standing.iter().all(|(retracted, path)| !retracted && path.contains("-r2/")));
    // A retraction without a later reading stays visible.
    registry.runs.retain(|run| !run.path.contains("-r2/"));
    let retracted = imported(&registry);
    assert!(retracted.len() == 88 && retracted.iter().all(|(retracted, _)| *retracted));
}

/// Makes a published result out of a record, with `text` wherever a report may have some.
pub fn claim(mut record: RunRecord, text: &str, index: usize) -> RunRecord {
    let row = PrintedRow { section: Some(text.into()), label: text.into(), text: text.into() };
    let rows = vec![row.clone(), row];
    record.kind = Kind::Imported;
    record.id = format!("0123456{index}-r2-001");
    record.source = Some(Source {
        tool: text.into(),
        file: text.into(),
        printed: Some(Printed {
            headings: vec![text.into()],
            variant: Some(text.into()),
            profile: Some(text.into()),
            settings: rows.clone(),
            log: rows.clone(),
            rows,
        }),
        ..Source::default()
    });
    record
}
