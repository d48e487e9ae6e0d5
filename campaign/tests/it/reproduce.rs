//! A committed run is measured again, and its figures compared with the campaign's prediction.

use samples::Sample;
use schema::run::{Kind, Printed, PrintedRow, RunRecord, Source};
use schema::scenario::Arrival;

use crate::scratch::{Scratch, files_below};

/// Measures v0.9.2 three times at 100 tokens/s and commits; returns the id of a run.
fn recorded(scratch: &Scratch) -> String {
    scratch.write_speed("0.9.2", 100.0);
    scratch.run(&["release-bench", "v0.9.2", "--repeats", "3"]).expect(0, &[]);
    let (_, record) = &scratch.records(&scratch.root().join("results"))[0];
    record.id.clone()
}

#[test]
fn a_run_is_measured_again_and_nothing_is_committed() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    let before = files_below(&scratch.root().join("results"));
    let commits = scratch.git(&["rev-list", "--count", "HEAD"]);
    let ended = scratch.run(&["reproduce", &id.to_lowercase(), "--repeats", "2"]);
    let said = &ended.stdout;
    let line = |start: &str| said.lines().find(|line| line.starts_with(start)).unwrap_or(said);
    assert!(line("Output tokens/s").ends_with("100.00  within"), "{said}");
    assert!(line("binary").contains("equal "), "{said}");
    assert!(line("arguments").contains("equal "), "{said}");
    assert!(
        said.contains("Intervals come from 3 runs") && said.contains("never committed"),
        "{said}"
    );
    assert_eq!(files_below(&scratch.root().join("results")), before);
    assert_eq!(scratch.git(&["rev-list", "--count", "HEAD"]), commits);
    // The line with the next command repeats the arguments of this one, whose paths are long.
    let mut lines = said.lines().filter(|line| !line.starts_with("next"));
    assert!(lines.all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn another_speed_is_no_reproduction() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    scratch.write_speed("0.9.2", 80.0);
    let ended = scratch.run(&["reproduce", &id, "--repeats", "1"]);
    ended.expect(1, &["80.00  outside", "verdict  not reproduced"]);
}

#[test]
fn what_cannot_be_measured_again_is_said_before_anything_is_built() {
    let scratch = Scratch::new();
    let id = recorded(&scratch);
    scratch.run(&["reproduce", "01ZZZ"]).expect(2, &["no run in the registry has an id"]);
    scratch.run(&["reproduce", "01"]).expect(2, &["several runs have ids that begin"]);
    scratch.run(&["reproduce", &id, "--dry-run"]).expect(0, &["Plan of campaign"]);
}

/// What an import makes of a result about the scratch clone's model: 125 tokens/s under the workload of
/// the scenario `talk-lite`.
fn imported() -> RunRecord {
    let row = |label: &str, text: &str| PrintedRow {
        section: None,
        label: label.to_owned(),
        text: text.to_owned(),
    };
    let rows = vec![
        row("Backend", "redline"),
        row("Output token throughput (tok/s)", "125.00"),
        row("Mean TTFT (ms)", "20.5"),
    ];
    let printed = Some(Printed { rows, ..Printed::default() });
    let sample = Sample {
        release: "v0.9.2".to_owned(),
        hardware: "cpu".to_owned(),
        model: "tiny".to_owned(),
        scenario: "talk-lite".to_owned(),
        ..Sample::default()
    };
    let mut record = RunRecord {
        kind: Kind::Imported,
        source: Some(Source { printed, ..Source::default() }),
        ..sample.record()
    };
    let scenario = &mut record.scenario;
    (scenario.dataset, scenario.requests) = (Some("ShareGPT".to_owned()), Some(2));
    (scenario.seed, scenario.arrival) = (Some(1), Some(Arrival::AllAtOnce));
    let server = record.server.as_mut().unwrap();
    (server.tp, server.argv) = (Some(1), Some(vec!["redline".to_owned(), "serve".to_owned()]));
    record
}

fn write(scratch: &Scratch, path: &str, record: &RunRecord) {
    scratch.write(path, &serde_json::to_string(record).unwrap());
}

#[test]
fn a_published_page_stands_beside_what_is_measured_here() {
    let scratch = Scratch::new();
    scratch.write_speed("0.9.2", 100.0);
    write(&scratch, "page/001.json", &imported());
    let mut longer = imported();
    longer.scenario.id = "talk-full".to_owned();
    longer.scenario.requests = Some(20);
    write(&scratch, "page/002.json", &longer);
    let page = scratch.root().join("page");
    let page = page.to_str().unwrap();
    let planned = scratch.run(&["reproduce", page, "--dry-run"]);
    let missing =
        "talk-full on cpu is not measured: the suite has no scenario with the workload of";
    planned.expect(0, &[missing, "Plan of campaign"]);
    let slurm = ["--executor", "slurm", "--slurm-option=--partition=a100", "--servers=per-model"];
    let plan = [&["reproduce", page, "--dry-run"][..], &slurm].concat();
    let lines = ["executor   slurm, ", "partition a100", "one for each model and repeat"];
    scratch.run(&plan).expect(0, &lines);
    scratch.run(&["reproduce", page, slurm[2]]).expect(2, &["is for `--executor slurm`"]);
    let ended = scratch.run(&["reproduce", page, "--repeats", "1"]);
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| !line.is_empty()).collect();
    let row = |start: &str| rows.iter().find(|row| row.starts_with(start)).copied();
    let cells = |start: &str| row(start).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let throughput = cells("Output token throughput (tok/s)").unwrap();
    assert_eq!(throughput[4..], ["125.00", "100.00", "-20.0", "%"], "{}", ended.stdout);
    assert_eq!(cells("Mean TTFT (ms)").unwrap()[3..], ["20.5"], "nothing was measured");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    scratch.run(&["reproduce", "page/none.json"]).expect(2, &["no run in the registry"]);
    scratch.write("page/003.json", "{}");
    scratch.run(&["reproduce", page]).expect(2, &["003.json` is not a record"]);
}

#[test]
fn results_with_flags_are_measured_with_them_under_the_scenario_of_the_same_workload() {
    let scratch = Scratch::new();
    scratch.write_speed("0.9.2", 100.0);
    scratch.write_speed("fast", 150.0);
    write(&scratch, "page/001.json", &imported());
    let mut tuned = imported();
    tuned.scenario.id = "sharegpt-2".to_owned();
    let argv = ["redline", "serve", "--fast", "--batch=2"].map(str::to_owned);
    tuned.server.as_mut().unwrap().argv = Some(argv.to_vec());
    write(&scratch, "page/002.json", &tuned);
    let page = scratch.root().join("page");
    let page = page.to_str().unwrap();
    let ended = scratch.run(&["reproduce", page, "--repeats", "1"]).expect(
        0,
        &[
            "sharegpt-2 on cpu is measured under `talk-lite`, which has the same workload",
            "redline v0.9.2 (published), commit",
            "sharegpt-2 on cpu, --fast --batch=2\n",
        ],
    );
    assert_eq!(ended.stdout.matches("Plan of campaign").count(), 2, "{}", ended.stdout);
    for difference in ["-20.0 %", "+20.0 %"] {
        assert_eq!(ended.stdout.matches(difference).count(), 1, "{}", ended.stdout);
    }
    let campaigns = scratch.root().join("target/campaigns");
    let measured: Vec<RunRecord> = files_below(&campaigns)
        .iter()
        .filter(|path| path.to_str().unwrap().contains("/results/runs/"))
        .map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect();
    let with_flags = |run: &&RunRecord| {
        let server = run.server.as_ref().unwrap();
        let argv = server.argv.as_ref().unwrap().join(" ");
        let is_variant = server.variant.as_ref().is_some_and(|name| name == "published");
        assert_eq!(argv.contains("--fast --batch=2"), is_variant, "{argv}");
        is_variant
    };
    assert_eq!(measured.len(), 2, "one for each result: {campaigns:?}");
    assert_eq!(measured.iter().filter(with_flags).count(), 1);
}

#[test]
fn a_retracted_reading_is_refused_with_the_one_that_stands() {
    let scratch = Scratch::new();
    write(&scratch, "results/imports/lab/1a2b3c4d/001.json", &imported());
    let newer = RunRecord { id: "1a2b3c4d-r5-001".to_owned(), ..imported() };
    write(&scratch, "results/imports/lab/1a2b3c4d-r5/001.json", &newer);
    let id = "01M89VYYG4Q8G9CF2VS3VRXEHY";
    scratch.write(
        &format!("results/events/2026/{id}.toml"),
        &format!(
            "schema = \"event.v1\"\nid = \"{id}\"\nkind = \"retract\"\n\
             at = \"2026-11-25T17:27:25Z\"\ntargets = [\"imports/lab/1a2b3c4d/\"]\n\
             reason = \"superseded by a reading that keeps every row\"\n"
        ),
    );
    let plan = |folder: &str| {
        let path = scratch.root().join("results/imports/lab").join(folder);
        scratch.run(&["reproduce", path.to_str().unwrap(), "--dry-run"])
    };
    plan("1a2b3c4d").expect(
        2,
        &[
            "1a2b3c4d` was retracted: superseded by a reading that keeps every row",
            "`results/imports/lab/1a2b3c4d-r5` is the reading that stands",
        ],
    );
    plan("1a2b3c4d-r5").expect(0, &["Plan of campaign"]);
}
