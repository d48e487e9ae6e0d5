//! Tests of events: no record vanishes, and an event is committed with the pages that show it.

use std::fs;

use crate::scratch::{Answer, Scratch, place};

const CELL: &str = "redline/cpu-example-simulated-f6m1s1-2c/*/cpu-f32-tp1/balanced-lite@1";

/// Text of the only event file.
fn event_of(scratch: &Scratch) -> String {
    let paths: Vec<String> =
        scratch.files().into_iter().filter(|path| path.starts_with("results/events/")).collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    fs::read_to_string(scratch.path(&paths[0])).unwrap()
}

fn well(answer: &Answer) {
    assert_eq!(answer.code, 0, "{answer:?}");
}

#[test]
fn a_retracted_run_stays_on_disk_and_in_the_list() {
    let (scratch, records) = Scratch::recorded();
    let before = scratch.files();
    let id = &records[1].id;
    well(&scratch.rendering(&["retract", id, "--reason", "The clocks were not locked."]));
    let event = event_of(&scratch);
    for part in ["kind = \"retract\"", id.as_str(), "reason = \"The clocks were not locked.\""] {
        assert!(event.contains(part), "no `{part}` in\n{event}");
    }
    assert!(before.iter().all(|path| scratch.files().contains(path)), "a file is gone");
    assert!(scratch.path(&place(&records[1])).exists());
    assert!(scratch.results(&["list"]).out.contains("ok 3, retracted 1"));
    // The rendered page contains the event, and is in the same commit.
    let readme = fs::read_to_string(scratch.path("results/README.md")).unwrap();
    assert!(readme.contains("./events/"), "{readme}");
    let committed = scratch.git(&["show", "--format=%s", "--name-only", "HEAD"]);
    assert!(committed.starts_with(&format!("retract: {id}\n")), "{committed}");
    assert!(committed.contains("results/README.md"), "{committed}");
    assert_eq!(scratch.state(), ["", "", ""]);
    well(&scratch.results(&["check"]));
}

#[test]
fn a_retraction_is_taken_back_by_retracting_it() {
    let (scratch, records) = Scratch::recorded();
    well(&scratch.rendering(&["retract", &records[0].id, "--reason", "A mistake."]));
    let paths = scratch.files();
    let event = paths.iter().find(|path| path.starts_with("results/events/")).unwrap();
    let id = event.rsplit('/').next().unwrap().trim_end_matches(".toml");
    well(&scratch.rendering(&["retract", id, "--reason", "The clocks were locked after all."]));
    assert!(!scratch.results(&["list"]).out.contains("retracted"));
    assert_eq!(scratch.files().iter().filter(|p| p.starts_with("results/events/")).count(), 2);
}

#[test]
fn a_remark_a_waiver_and_an_epoch_are_written() {
    let (scratch, _) = Scratch::recorded();
    let folder = "results/runs/redline/v0.9.1/";
    well(&scratch.rendering(&["annotate", folder, "--reason", "Two cores only."]));
    assert!(event_of(&scratch).contains("targets = [\"runs/redline/v0.9.1/\"]"));

    let (scratch, _) = Scratch::recorded();
    scratch.git(&["config", "user.name", "Grace"]);
    let waive = ["waive", CELL, "--metric", "tpot_us_p50", "--until", "9998-01-31"];
    well(&scratch.rendering(&[&waive[..], &["--reason", "Known, and being worked on."]].concat()));
    let event = event_of(&scratch);
    assert!(event.contains("expires = \"9998-01-31T23:59:59Z\""), "{event}");
    assert!(event.contains("metric = \"tpot_us_p50\""), "{event}");
    assert!(event.contains("accepted_by = \"Grace\""), "{event}");
    well(&scratch.results(&["check"]));

    let (scratch, _) = Scratch::recorded();
    let named = [&waive[..], &["--accepted-by", "Ada", "--reason", "Once more."]].concat();
    well(&scratch.rendering(&named));
    assert!(event_of(&scratch).contains("accepted_by = \"Ada\""));

    let (scratch, _) = Scratch::recorded();
    let cell = "*/cpu-example-simulated-f6m1s1-2c/*/*/*";
    let since = ["epoch", cell, "--since", "2026-01-31", "--reason", "A new kernel."];
    well(&scratch.rendering(&since));
    assert!(event_of(&scratch).contains("since = \"2026-01-31T00:00:00Z\""));
}

#[test]
fn what_names_nothing_is_refused_and_nothing_is_written() {
    let (scratch, records) = Scratch::recorded();
    let head = scratch.git(&["rev-parse", "HEAD"]);
    let reason = ["--reason", "Wrong."];
    let waive = ["--metric", "tpot_us_p50", "--until", "9998-01-31"];
    let nobody = scratch.rendering(&[&["waive", CELL][..], &waive, &reason].concat());
    assert!(nobody.err.contains("git has no `user.name`"), "{nobody:?}");
    scratch.git(&["config", "user.name", "Grace"]);
    let cases: [(&[&str], &str); 10] = [
        (&["retract", "01ZZZZ"], "nothing has an id that begins with `01ZZZZ`"),
        (&["retract", "01"], "3 ids begin with `01`"),
        (&["retract", "runs/redline/v9.9.9/"], "no run lies below"),
        (&["retract", &records[0].id, "--replaced-by", "01ZZ"], "nothing has an id"),
        (&["waive", "redline/x", waive[0], waive[1], waive[2], waive[3]], "is not a cell"),
        (&["waive", "redline/*/*/*/x@1", waive[0], waive[1], waive[2], waive[3]], "no run is in"),
        (&["waive", CELL, "--metric", "speed", waive[2], waive[3]], "no metric `speed`"),
        (&["waive", CELL, waive[0], waive[1], "--until", "2020-01-31"], "is past"),
        (&["waive", CELL, waive[0], waive[1], "--until", "soon"], "is not a time"),
        (&["epoch", "*/h200-141g/*/*/*"], "no run is in a cell"),
    ];
    for (arguments, message) in cases {
        let answer = scratch.rendering(&[arguments, &reason].concat());
        assert_eq!(answer.code, 2, "{arguments:?}: {answer:?}");
        assert!(answer.err.contains(message), "{arguments:?}: {answer:?}");
    }
    assert_eq!(scratch.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(scratch.state(), ["", "", ""]);
}

#[test]
fn without_the_program_that_renders_nothing_is_written() {
    let (scratch, records) = Scratch::recorded();
    let nowhere = scratch.path("nowhere");
    let tools = ["--tools-dir", nowhere.to_str().unwrap()];
    let retract = ["retract", &records[0].id, "--reason", "Wrong."];
    let answer = scratch.results(&[&retract[..], &tools].concat());
    assert_eq!((answer.code, answer.err.contains("`redline-site` is not in")), (4, true));
    assert!(!scratch.path("results/events").exists());
}

#[test]
fn an_event_that_lacks_what_its_kind_needs_is_unsound() {
    let (scratch, _) = Scratch::recorded();
    let id = samples::campaign_id(500);
    scratch.write(
        &format!("results/events/2026/{id}.toml"),
        &format!(
            "schema = \"event.v1\"\nid = \"{id}\"\nkind = \"waive\"\n\
             at = \"yesterday\"\ncell = \"redline\"\nreason = \"x\"\n"
        ),
    );
    let answer = scratch.results(&["check"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    for part in ["S11", "not RFC 3339", "without `expires`", "`cell` is not"] {
        assert!(answer.out.contains(part), "no `{part}` in\n{}", answer.out);
    }
}
