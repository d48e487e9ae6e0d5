//! A record of a published result has every row, digit and setting that the page prints about it.
//! The pages are read here by a parser of its own, word by word.

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
