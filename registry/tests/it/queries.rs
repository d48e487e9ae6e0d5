//! Tests of `list` with filters, `best`, `export` and `rules`, and of the index behind `list`.

use std::fs;

use crate::scratch::{Scratch, place, repeats, write};
use samples::{Sample, campaign_id, reseal};
use schema::canonical::to_file_text;
use schema::metric::by_name;
use schema::run::{Gpu, Kind, Printed, PrintedLink, PrintedNote, RunRecord, Source};
use schema::scenario::Arrival;

const HARDWARE: &str = "cpu-example-simulated-f6m1s1-2c";
const MODEL: &str = "smollm2-135m-instruct-q4_1";

fn faster(release: &str, serial: u64, speed: f64) -> Vec<RunRecord> {
    let sample = |index: u64| Sample {
        release: release.into(),
        serial: serial + index,
        seed: serial + index,
        speed,
        ..Sample::default()
    };
    (0..3).map(|index| sample(index).record()).collect()
}

fn recorded() -> Scratch {
    let scratch = Scratch::new();
    let mut records = faster("v0.9.1", 1, 1.0);
    records.extend(faster("v0.9.2", 50, 1.2));
    records
        .push(Sample { release: "v0.9.2".into(), serial: 90, ..Sample::default() }.failed_record());
    assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
    scratch
}

#[test]
fn a_list_is_narrowed_by_what_runs_have() {
    let scratch = recorded();
    let runs = |arguments: &[&str]| {
        let answer =
            scratch.results(&[&["list", "--runs", "--format", "json"], arguments].concat());
        let rows: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
        rows.as_array().unwrap().len()
    };
    for (arguments, count) in [
        (&[][..], 7),
        (&["--release", "v0.9.1"], 3),
        (&["--release", "0.9.2"], 4),
        (&["--status", "failed"], 1),
        (&["--scenario", "balanced-lite"], 7),
        (&["--scenario", "balanced-lite@1", "--hardware", HARDWARE, "--model", MODEL], 7),
        (&["--scenario", "balanced-lite@2"], 0),
        (&["--engine", "vllm"], 0),
        (&["--validity", "invalid"], 0),
    ] {
        assert_eq!(runs(arguments), count, "{arguments:?}");
    }
    assert_eq!(scratch.results(&["list", "--status", "well"]).code, 2);
}

#[test]
fn the_index_is_never_trusted_over_the_files() {
    let scratch = recorded();
    let listed = scratch.results(&["list"]).out;
    let index = scratch.path("target/redline-results/index.jsonl");
    assert!(index.exists());
    assert_eq!(scratch.state(), ["", "", ""], "the index shows in `git status`");
    // The output is the same from the index, and with a damaged index.
    assert_eq!(scratch.results(&["list"]).out, listed);
    fs::write(&index, "{}\n{}\n").unwrap();
    assert_eq!(scratch.results(&["list"]).out, listed);
    // An edit of one byte that keeps the length and modification time of the file.
    let record = &faster("v0.9.1", 1, 1.0)[0];
    let path = scratch.path(&place(record));
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let edited = text.replace("\"status\": \"ok\"", "\"status\": \"no\"");
    assert_eq!(edited.len(), text.len());
    fs::write(&path, edited).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let again = scratch.results(&["list"]);
    assert!(again.err.contains("breach S01"), "{again:?}");
    assert_eq!(scratch.results(&["check"]).code, 2);
    fs::write(&path, text).unwrap();
    assert_eq!(scratch.results(&["list"]).out, listed);
    assert_eq!(scratch.results(&["check"]).code, 0);
}

#[test]
fn an_index_that_lies_about_content_does_not_hide_an_edit() {
    let scratch = recorded();
    assert_eq!(scratch.results(&["check"]).code, 0);
    let index = scratch.path("target/redline-results/index.jsonl");
    let kept = fs::read_to_string(&index).unwrap();
    let mut record = faster("v0.9.1", 1, 1.0).remove(0);
    let path = place(&record);
    record.hardware.cores = Some(64);
    scratch.write(&path, &to_file_text(&reseal(record)).unwrap());
    fs::write(&index, kept).unwrap();
    let answer = scratch.results(&["check"]);
    assert_eq!((answer.code, answer.out.contains("S06")), (2, true), "{answer:?}");
}

#[test]
fn the_best_is_found_by_metric_and_within_limits() {
    let scratch = recorded();
    let best = |arguments: &[&str]| {
        scratch.results(&[&["best", MODEL, "--hardware", HARDWARE], arguments].concat())
    };
    let answer = best(&["--format", "json"]);
    let said: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(said["candidates"][0]["release"], "v0.9.2", "{answer:?}");
    assert_eq!(said["candidates"][0]["figure"]["n"], 3);
    assert_eq!(said["left_out"], 1);
    // Lower is better for a latency, and the limit excludes the slower candidate.
    let answer = best(&["--metric", "tpot_us_p50", "--slo", "tpot_us_p50=18000"]);
    assert!(answer.out.contains("redline v0.9.2"), "{answer:?}");
    assert!(!answer.out.contains("redline v0.9.1"), "{answer:?}");
    assert!(answer.out.contains("1 beyond the limits"), "{answer:?}");
    for (arguments, message) in [
        (&["--metric", "speed"][..], "no metric `speed`"),
        (&["--slo", "tpot_us_p50"], "is not a limit"),
        (&["--slo", "tpot_us_p50=NaN"], "is not a limit"),
    ] {
        let answer = best(arguments);
        assert_eq!((answer.code, answer.err.contains(message)), (2, true), "{answer:?}");
    }
    assert_eq!(scratch.results(&["best", "none", "--hardware", HARDWARE]).code, 2);
}

#[test]
fn the_table_has_a_line_for_each_run() {
    let scratch = recorded();
    let answer = scratch.results(&["export", "--csv"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!(answer.out.lines().count(), 8);
    let head = answer.out.lines().next().unwrap();
    assert!(head.starts_with("path,id,kind,") && head.contains(",tpot_us_p50,"), "{head}");
    assert_eq!(scratch.results(&["export"]).code, 2);
}

#[test]
fn dashboards_of_others_get_the_figures_of_measured_runs() {
    let scratch = recorded();
    // These runs are made up, so that there is nothing to show.
    for form in ["--pytorch-hud", "--inferencex"] {
        let answer = scratch.results(&["export", form]);
        assert_eq!((answer.code, answer.out.trim()), (0, "[]"), "{answer:?}");
    }
    assert_eq!(scratch.results(&["export", "--csv", "--pytorch-hud"]).code, 2);

    let run = RunRecord { kind: Kind::Measured, ..Sample::default().record() };
    let exported = store::foreign::pytorch_hud([&run].into_iter());
    let reading = reports::read("hud.json", &exported.to_string());
    assert!(reading.unread.is_empty(), "{:?}", reading.unread);
    assert_eq!(reading.records.len(), 1);
    for name in [
        "requests_per_s",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "ttft_us_mean",
        "ttft_us_p50",
        "ttft_us_p99",
        "tpot_us_p50",
        "tpot_us_p99",
        "e2e_us_mean",
        "e2e_us_p50",
    ] {
        let metric = by_name(name).unwrap();
        let [own, read] = [&run, &reading.records[0]].map(|run| metric.value(run).unwrap());
        assert!((read / own - 1.0).abs() < 1e-3, "{name}: {own} is read as {read}");
    }
    let (own, read) = (run.counts.unwrap(), reading.records[0].counts.clone().unwrap());
    assert_eq!((read.requests_ok, read.input_tokens), (own.requests_ok, own.input_tokens));
    assert_eq!(read.output_tokens_reported, own.output_tokens_reported);
}

#[test]
fn what_inferencex_gets_is_read_again_as_it_was() {
    let mut run = RunRecord { kind: Kind::Measured, ..Sample::default().record() };
    let gpu = Gpu { name: "NVIDIA H200".to_owned(), ..Gpu::default() };
    run.hardware.gpu = Some(vec![gpu.clone(), gpu]);
    run.hardware.id = "h200-141g".to_owned();
    run.server.as_mut().unwrap().tp = Some(2);
    run.scenario.arrival = Some(Arrival::Closed { concurrency: 4 });
    let exported = store::foreign::inferencex([&run].into_iter());
    let reading = reports::read("agg.json", &exported.to_string());
    assert!(reading.unread.is_empty(), "{:?}", reading.unread);
    let [read] = &reading.records[..] else { panic!("{:?}", reading.records) };
    assert_eq!((&read.model.id, &read.engine.name), (&run.model.id, &run.engine.name));
    assert_eq!(read.server.as_ref().unwrap().tp, Some(2));
    for name in [
        "input_tokens_per_s",
        "output_tokens_per_s",
        "total_tokens_per_s",
        "ttft_us_mean",
        "ttft_us_p50",
        "ttft_us_p99",
        "tpot_us_mean",
        "tpot_us_p50",
        "e2e_us_p50",
        "e2e_us_p99",
    ] {
        let metric = by_name(name).unwrap();
        let [own, read] = [&run, read].map(|run| metric.value(run).unwrap());
        assert!((read / own - 1.0).abs() < 1e-3, "{name}: {own} is read as {read}");
    }
}

#[test]
fn the_table_is_a_parquet_file_where_the_program_can_write_one() {
    let scratch = recorded();
    let file = scratch.path("../runs.parquet");
    let answer = scratch.results(&["export", "--parquet", file.to_str().unwrap()]);
    if cfg!(feature = "parquet") {
        assert_eq!((answer.code, &*answer.out), (0, ""), "{answer:?}");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
        let nowhere = scratch.results(&["export", "--parquet", "/no-such-folder/x.parquet"]);
        let named = nowhere.err.contains("cannot write `/no-such-folder/x.parquet`");
        assert_eq!((nowhere.code, named), (4, true), "{nowhere:?}");
    } else {
        assert_eq!((answer.code, file.exists()), (2, false), "{answer:?}");
        assert!(answer.err.contains("hint: `cargo build"), "{answer:?}");
    }
}

#[test]
fn rules_are_listed_from_the_constants_that_check() {
    let answer = Scratch::new().results(&["export", "--help"]);
    assert_eq!(answer.code, 0);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_redline-results"))
        .args(["rules", "--format", "json"])
        .output()
        .unwrap();
    let rules: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ids: Vec<&str> =
        rules.as_array().unwrap().iter().map(|rule| rule["id"].as_str().unwrap()).collect();
    for id in ["S01", "S06", "S11", "S12", "E09", "W08", "W09"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
    assert!(judge::RULES.iter().all(|rule| ids.contains(&rule.id)));
}

#[test]
fn an_older_program_does_not_write_beside_newer_records() {
    let scratch = recorded();
    let mut newer = faster("v0.9.3", 200, 1.0).remove(0);
    newer.checks_rev = judge::CHECKS_REV + 1;
    newer.record_sha256 = schema::canonical::record_sha256(&newer).unwrap();
    scratch.write(&place(&newer), &to_file_text(&newer).unwrap());
    scratch.git(&["add", "."]);
    scratch.git(&["commit", "--quiet", "--message", "By a later version"]);
    let head = scratch.git(&["rev-parse", "HEAD"]);
    let answer = scratch.record(&scratch.staged("p", &repeats("v0.9.4", 300, 1)));
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("written by a later version of this program"), "{answer:?}");
    assert_eq!(scratch.git(&["rev-parse", "HEAD"]), head);
    let check = scratch.results(&["check"]);
    assert_eq!((check.code, check.out.contains("S12")), (2, true), "{check:?}");
    // A later schema of an event is refused as well.
    let id = campaign_id(900);
    scratch.git(&["rm", "--quiet", &place(&newer)]);
    scratch.write(&format!("results/events/2026/{id}.toml"), "schema = \"event.v2\"\nnew = 1\n");
    let answer = scratch.record(&scratch.staged("p", &repeats("v0.9.4", 300, 1)));
    assert!(answer.err.contains("events/2026"), "{answer:?}");
}

#[test]
fn nothing_that_a_record_holds_acts_on_a_terminal() {
    let scratch = Scratch::new();
    let mut record = repeats("v0.9.1", 1, 1).remove(0);
    let hostile = "a\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}b";
    record.hardware.cpu_model = Some(hostile.to_owned());
    let link = PrintedLink { text: hostile.to_owned(), url: format!("javascript:{hostile}") };
    let section = Some(hostile.to_owned());
    let note = PrintedNote { section, text: hostile.to_owned(), links: vec![link] };
    let printed = Some(Printed { notes: vec![note], ..Printed::default() });
    record.source = Some(Source { printed, ..Source::default() });
    let record = reseal(record);
    scratch.write(&place(&record), &to_file_text(&record).unwrap());
    for arguments in
        [&["show", &record.id][..], &["list", "--runs", "--format", "json"], &["check"]]
    {
        let answer = scratch.results(arguments);
        let said = answer.out.clone() + &answer.err;
        let acts = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!said.contains(acts), "{arguments:?}: {said:?}");
    }
    let shown: RunRecord =
        serde_json::from_str(&scratch.results(&["show", &record.id]).out).unwrap();
    assert_eq!(shown.hardware.cpu_model.as_deref(), Some(hostile), "the same document");
    assert_eq!(shown.source, record.source);
}

#[test]
fn of_the_findings_about_many_files_the_first_are_printed() {
    let scratch = recorded();
    let staged = scratch.staged("junk", &[]);
    let record = place(&faster("v0.9.1", 1, 1.0)[0]);
    let (folder, _) = record.rsplit_once('/').unwrap();
    for number in 0..1030 {
        let path = format!("{folder}/{number:04}.json");
        scratch.write(&path, "");
        write(&staged.join(path.strip_prefix("results/").unwrap()), "");
    }
    let more = "\nand 1,010 more; `redline-results check` shows those of a registry\n";
    for arguments in [&["list"][..], &["export", "--csv"]] {
        let answer = scratch.results(arguments);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(answer.err.matches("breach S").count(), 20, "{answer:?}");
        assert!(answer.err.ends_with(more), "{answer:?}");
    }
    let answer = scratch.record(&staged);
    assert_eq!((answer.code, answer.err.contains(more)), (2, true), "{answer:?}");
    assert!(answer.err.lines().count() < 30, "{answer:?}");
    // `check` prints all findings.
    assert_eq!(scratch.results(&["check"]).out.matches("breach S01").count(), 1030);
}
