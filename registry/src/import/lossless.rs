//! A record of a published result has every row, digit and setting that the page prints about it, and
//! the records of a page have its sentences and links.
//! The pages are read here by a parser of its own, word by word.

use std::collections::BTreeSet;

use super::tests::published;
use super::*;
use schema::run::{Printed, PrintedRow};

/// Returns label and value of every row between the title of a result and the line that closes it.
fn rows_of_blocks(page: &str) -> Vec<Vec<(String, String)>> {
    let blocks = page.split("Serving Benchmark Result =").skip(1);
    let body = |block: &str| {
        let block = block.trim_start_matches('=');
        let mut rows = Vec::new();
        let mut label: Vec<&str> = Vec::new();
        let mut words = block[..block.find("==========").unwrap()].split_whitespace();
        while let Some(word) = words.next() {
            if let Some(last) = word.strip_suffix(':') {
                label.push(last);
                rows.push((label.join(" "), words.next().unwrap().to_owned()));
                label.clear();
            } else if word.ends_with("---") {
                // The title of a section ends here.
                label.clear();
            } else {
                label.push(word);
            }
        }
        rows
    };
    blocks.map(body).collect()
}

/// Returns the record of each result on a published page; `None` without the pages.
fn records(page: &str) -> Option<(String, Vec<RunRecord>)> {
    let text = published(page)?;
    let imported = import(&text, "page.md", "seed", None).unwrap();
    Some((text, imported.records.into_iter().map(|(_, record)| record).collect()))
}

fn printed(record: &RunRecord) -> &Printed {
    record.source.as_ref().and_then(|source| source.printed.as_ref()).unwrap()
}

fn pairs(rows: &[PrintedRow]) -> Vec<(String, String)> {
    rows.iter().map(|row| (row.label.clone(), row.text.clone())).collect()
}

#[test]
fn every_row_of_every_page_is_in_a_record() {
    for (page, results, least) in
        [("000_", 16, 21), ("001_", 0, 0), ("002_", 24, 21), ("003_", 24, 24), ("004_", 24, 21)]
    {
        let Some((text, records)) = records(page) else { return };
        let rows = rows_of_blocks(&text);
        assert_eq!((rows.len(), records.len()), (results, results), "{page}");
        for (rows, record) in rows.iter().zip(&records) {
            assert!(rows.len() >= least, "{page}: {rows:?}");
            assert_eq!(&pairs(&printed(record).rows), rows, "{page}: {}", record.id);
        }
    }
}

#[test]
fn every_figure_of_a_log_is_in_its_record() {
    for page in ["000_", "002_", "004_"] {
        let Some((text, records)) = records(page) else { return };
        let logs = text.split("Serving Benchmark Result =").collect::<Vec<_>>();
        for (log, record) in logs.iter().zip(&records) {
            let after = |mark: &str| {
                let text = &log[log.rfind(mark).unwrap() + mark.len()..];
                text.lines().next().unwrap().to_owned()
            };
            let kept = pairs(&printed(record).log);
            let row = |label: &str| (label.to_owned(), after(&format!("{label}: ")));
            let labels = ["#Input tokens", "#Output tokens", "warmup time"];
            assert_eq!(kept[..3], labels.map(row), "{page}: {}", record.id);
            let bar = log.lines().rfind(|line| line.ends_with("it/s]") || line.ends_with("s/it]"));
            assert!(bar.unwrap().ends_with(&kept[3].1), "{page}: {kept:?}");
            let arguments = after("Namespace(");
            let settings = pairs(&printed(record).settings);
            assert_eq!(settings.len(), arguments.matches('=').count(), "{page}: {settings:?}");
            for (name, value) in settings.iter().filter(|(_, value)| value != "{path}") {
                assert!(arguments.contains(&format!("{name}={value}")), "{name}={value}");
            }
            assert_eq!((record.scenario.seed, record.scenario.ignore_eos), (Some(1), Some(true)));
            let model = arguments.split("model='").nth(1).unwrap().split('\'').next().unwrap();
            let section = model.rsplit('/').next().unwrap();
            assert_eq!(printed(record).headings.last().map(String::as_str), Some(section));
        }
    }
}

#[test]
fn what_a_page_says_about_server_machine_and_profile_is_known() {
    for page in ["002_", "004_"] {
        let Some((text, records)) = records(page) else { return };
        // A section for each model, with its command and its results.
        let sections: Vec<&str> =
            text.split("\n## ").filter(|text| text.contains(" Result =")).collect();
        assert_eq!(sections.len() * 4, records.len(), "{page}");
        for (section, records) in sections.iter().zip(records.chunks(4)) {
            let variables =
                section.split("--env \"").skip(1).map(|text| text.split('"').next().unwrap());
            let mut stated: Vec<&str> = variables
                .map(|text| if text.contains('/') { "HF_HOME={path}" } else { text })
                .collect();
            stated.sort_unstable();
            assert!(!stated.is_empty(), "{page}");
            for record in records {
                let env = record.server.as_ref().unwrap().env.clone().unwrap();
                let env: Vec<String> =
                    env.into_iter().map(|(name, value)| name + "=" + &value).collect();
                assert_eq!(env, stated, "{}", record.id);
            }
        }
    }
    let Some((_, records)) = records("003_") else { return };
    for record in &records {
        let gpus = record.hardware.gpu.as_ref().unwrap();
        assert_eq!((gpus.len(), &*gpus[0].name), (1, "NVIDIA H100 80GB HBM3"));
        let profile = printed(record).profile.as_deref().unwrap();
        assert_eq!(record.scenario.seed.is_some(), profile != "ShareGPT", "{profile}");
        let most =
            record.scenario.arrival.as_ref().and_then(schema::scenario::Arrival::concurrency_max);
        let capped = printed(record).text("Maximum request concurrency").unwrap();
        assert_eq!(most.unwrap().to_string(), capped);
        assert_eq!(record.server.as_ref().unwrap().tp, None);
    }
    let trail = |index: usize| {
        let Printed { headings, variant, profile, .. } = printed(&records[index]);
        (headings[1..].join(" > "), variant.as_deref().unwrap_or("-"), profile.as_deref().unwrap())
    };
    let expected = [
        (0, "Experiment Results > Choosing the Inference Engine > vLLM", "-", "ShareGPT"),
        (6, "Experiment Results > Max Num Seqs > Seqs 1024", "-", "ShareGPT"),
        (
            16,
            "Experiment Results > Other Benchmark Cases > ShareGPT Profile",
            "Baseline",
            "ShareGPT",
        ),
        (
            21,
            "Experiment Results > Other Benchmark Cases > Long Context Profile",
            "Optimized",
            "Long Context",
        ),
    ];
    for (index, headings, variant, profile) in expected {
        assert_eq!(trail(index), (headings.to_owned(), variant, profile), "{index}");
    }
}

/// Returns the sections of the notes in `record`, each with the number of its notes.
fn sections(record: &RunRecord) -> Vec<(&str, usize)> {
    let mut sections: Vec<(&str, usize)> = Vec::new();
    for note in &printed(record).notes {
        let section = note.section.as_deref().unwrap_or_default();
        match sections.last_mut() {
            Some((last, count)) if *last == section => *count += 1,
            _ => sections.push((section, 1)),
        }
    }
    sections
}

#[test]
fn every_sentence_and_link_of_the_published_lab_is_in_a_record() {
    let Some((text, records)) = records("003_") else { return };
    let own: Vec<_> = records.iter().map(sections).collect();
    // Sentences and table, five numbered notes; then the engines, and the method.
    assert_eq!(own[0], [("Conclusion", 12), ("Engine Version", 2), ("", 1)]);
    assert_eq!(own[16], [("Summary of Optimization Options", 10)]);
    let summed: Vec<usize> = (0..records.len()).filter(|index| own[*index].len() == 1).collect();
    assert_eq!(summed, [1, 7, 9, 11, 15, 16], "a summary stands below the last result it compares");
    let notes: Vec<_> = records.iter().flat_map(|record| &printed(record).notes).collect();
    assert_eq!(notes.iter().filter(|note| note.text.starts_with("Summary: ")).count(), 5);
    let skipped = "Success rate: 51.5%, optimization skipped";
    assert!(notes.iter().any(|note| note.text.contains(skipped)));
    let words: BTreeSet<&str> = text.split_whitespace().collect();
    for note in &notes {
        // Words beside a link or in bold have marks of Markdown on the page.
        let is_kept = |word: &&str| words.contains(word) || text.contains(&format!("{word}]("));
        let lost = |word: &&str| !is_kept(word) && !text.contains(&format!("**{word}"));
        let lost = note.text.split_whitespace().filter(lost).collect::<Vec<_>>();
        assert!(lost.len() <= 2 * note.links.len(), "{lost:?} of {note:?}");
    }
    let links: Vec<&str> =
        notes.iter().flat_map(|note| &note.links).map(|link| link.url.as_str()).collect();
    let on_page = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    let on_page: Vec<&str> = on_page.filter(|url| url.starts_with("https://")).collect();
    assert_eq!((links.len(), links), (4, on_page));
}

#[test]
fn a_note_of_a_page_is_kept_once_and_a_table_of_contents_is_none() {
    let pages: [(&str, &[usize]); 3] = [("000_", &[]), ("002_", &[]), ("004_", &[16, 20])];
    for (page, noted) in pages {
        let Some((_, records)) = records(page) else { return };
        let own = |index: &usize| !printed(&records[*index]).notes.is_empty();
        assert_eq!((0..records.len()).filter(own).collect::<Vec<_>>(), noted, "{page}");
        for index in noted {
            let notes = &printed(&records[*index]).notes;
            assert!(notes.len() == 1 && notes[0].links.is_empty(), "{notes:?}");
            let said = "Note that in benchmark_serving.sh, the dataset settings have been changed to \
                        `--dataset-name sharegpt --num-prompts 10000` to prevent crashes.";
            assert_eq!(notes[0].text, said);
        }
    }
}
