//! Tests of pages about results published elsewhere: they show what their source prints, and a
//! report that was read again stands there once.

use std::collections::BTreeMap;

use super::*;
use samples::Sample;
use schema::run::{Kind, Printed, PrintedLink, PrintedNote, PrintedRow, Source};

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
        ("000_", "llm_benchmark/67a79b7e"),
        ("002_", "llm_benchmark/64a87d32"),
        ("003_", "performance-lab/d88cdf37"),
        ("004_", "llm_benchmark/ee356a43"),
    ] {
        let Some(source) = fixtures::published_page(number) else { return };
        let source = fs::read_to_string(source).expect("a published page");
        let page = fs::read_to_string(out.join(reading(&out, report)).join("index.md"));
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
fn requests_with_the_totals_of_the_suite_s_own_sample_are_called_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let site: String = files(&out.join("r/lmdeploy/v0.9.2/a100-80g"))
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| fs::read_to_string(path).expect("a page"))
        .collect();
    assert!(site.contains("Its ShareGPT requests have the token totals that the report prints"));
    assert!(!site.contains("own client sent is not known"), "{site}");
}

#[test]
fn variants_keep_their_names_and_all_their_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let read = |page: &str| fs::read_to_string(out.join(page)).expect("a page");
    let lab = reading(&out, "performance-lab/d88cdf37");
    let page = read(&format!("{lab}/index.md"));
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
    let id = lab.rsplit('/').next().expect("a name");
    let same = format!("[001](../../../run/{id}-001/index.md), [017](../../../run/{id}-017/");
    assert!(findings.contains(&format!("- {same}")), "{findings}");
    for page in ["r/vllm/v0.17.1/h100-80g/index.md", "r/vllm/v0.17.1/index.md"] {
        let page = read(page);
        assert!(!page.contains("tp1"), "ranks that nobody stated: {page}");
        assert!(!page.contains("--max-nu…"), "a flag is cut: {page}");
    }
    let vllm = reading(&out, "llm_benchmark/64a87d32");
    let run = read(&format!("run/{}-001/index.md", vllm.rsplit('/').next().expect("a name")));
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
    assert!(standing.iter().all(|(retracted, _)| !retracted));
    // A retraction without a later reading stays visible.
    registry.runs.retain(|run| standing.iter().all(|(_, path)| *path != run.path));
    let retracted = imported(&registry);
    assert!(retracted.len() == 88 && retracted.iter().all(|(retracted, _)| *retracted));
}

#[test]
fn sentences_of_a_source_are_quoted_and_its_conclusion_is_with_its_options() {
    let (mut registry, records) = own();
    let note = |section: &str, text: &str, links: Vec<PrintedLink>| PrintedNote {
        section: Some(section.into()),
        text: text.into(),
        links,
    };
    let address = "https://example.org/docs/a_b.md#c";
    let link = PrintedLink { text: "the docs".into(), url: address.into() };
    let notes = vec![
        note("Conclusion", "# Use `--fast`, see the docs", vec![link]),
        note("Conclusion", "It may lose | elsewhere", Vec::new()),
        note("Method", "Each was run once", Vec::new()),
    ];
    for run in registry.runs.iter_mut().filter(|run| run.path.contains("/d88cdf37")) {
        let is_first = run.path.ends_with("/001.json");
        let printed = run.record.source.as_mut().and_then(|source| source.printed.as_mut());
        if let Some(printed) = printed {
            printed.notes = if is_first { notes.clone() } else { Vec::new() };
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = built_from(&registry, &records, folder.path());
    let report = out.join(reading(&out, "performance-lab/d88cdf37"));
    let read = |page: &str| fs::read_to_string(report.join(page)).expect("a page");
    let concluded = format!(
        "In the words of the source:\n\n> **Conclusion**: \"# Use `--fast`, see the docs\" \
         [the docs]({address})\n\n> \"It may lose \\| elsewhere\"\n"
    );
    let (page, options) = (read("index.md"), read("options/index.md"));
    let method = "\n> **Method**: \"Each was run once\"\n";
    assert_eq!(page.matches(&format!("{concluded}{method}\n")).count(), 1, "{page}");
    assert!(page.split("## Findings").next().expect("tables").contains(method), "{page}");
    let above = options.split("24 results of").next().expect("a conclusion");
    assert!(above.contains(&format!("\n\n{concluded}\n")) && !above.contains(method), "{above}");
    let link = format!("<a href=\"{address}\" rel=\"nofollow noopener noreferrer\">");
    for page in ["index.html", "options/index.html"] {
        assert_eq!(read(page).matches(&link).count(), 1, "{page}");
    }
}

/// Returns the result of a release of another engine whose page prints `throughput`.
fn result(release: &str, serial: u64, throughput: &str) -> RunRecord {
    let sample = Sample {
        engine: "lmdeploy".into(),
        release: release.into(),
        hardware: "a100-80g".into(),
        model: "qwen3-8b".into(),
        scenario: "sharegpt".into(),
        serial,
        ..Sample::default()
    };
    let label = "Output token throughput (tok/s)".into();
    let rows = vec![PrintedRow { section: None, label, text: throughput.into() }];
    let printed = Some(Printed { rows, ..Printed::default() });
    RunRecord {
        kind: Kind::Imported,
        id: format!("0123456{serial}-r2-001"),
        campaign: None,
        source: Some(Source { printed, ..Source::default() }),
        ..sample.record()
    }
}

#[test]
fn releases_that_others_published_stand_side_by_side_and_are_not_judged() {
    let results = vec![result("v0.9.2", 1, "4000.00"), result("v0.10.0", 2, "5000.00")];
    let (_guard, out) = built(&sample::registry(results));
    let read = |at: &str| fs::read_to_string(out.join(at)).expect("a page");
    let page = read("diff/lmdeploy/v0.9.2..v0.10.0/a100-80g/index.md");
    for text in [
        "## Published on different days, not judged",
        "| Output token throughput (tok/s) | 4000.00 | 5000.00 | 1.25x |",
        "cargo xtask release-bench v0.10.0 --engine lmdeploy --target a100-80g --baseline v0.9.2",
    ] {
        assert!(page.contains(text), "`{text}` is not in {page}");
    }
    let across = read("r/lmdeploy/v0.10.0/index.md");
    let on_hardware = read("r/lmdeploy/v0.10.0/a100-80g/index.md");
    for page in [&page, &across, &on_hardware] {
        assert!(page.contains("Published on different days, not judged"), "{page}");
        assert!(!page.contains("INCONCLUSIVE"), "{page}");
    }
    assert!(across.contains("cargo xtask reproduce results/imports/sample/"), "{across}");
}

/// Makes a published result out of a record, with `text` wherever a report may have some.
pub fn claim(mut record: RunRecord, text: &str, index: usize) -> RunRecord {
    let row = PrintedRow { section: Some(text.into()), label: text.into(), text: text.into() };
    let rows = vec![row.clone(), row];
    let addresses = [text, "javascript:alert(1)", "https://example.org/a?b=1&c=2"];
    let link = |url: &str| PrintedLink { text: text.into(), url: url.into() };
    let links = addresses.map(link).to_vec();
    let note = PrintedNote { section: Some(text.into()), text: text.into(), links };
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
            notes: vec![note.clone(), note],
        }),
        ..Source::default()
    });
    record
}
