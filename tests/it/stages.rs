//! A release comparison from the command line to its exit code: whole runs give the figures, and
//! servers that answer slices in turns decide what changed and fail the release. Every program is
//! real except the server, which is a mock of two releases, one of them slower.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached, files_under};
use schema::campaign::CampaignRecord;
use schema::run::RunRecord;
use schema::verdict::{Stage, VerdictKind};
use serde_json::json;
use tests::clone::Clone;
use tests::program::{Ended, command, run, wait};
use tests::scripted;

/// Scenario with one user and answers of 64 tokens, in which the candidate is slower.
const SLOWER: &str = "ladder-lite-c1";
/// Scenario with answers of 750 tokens, in which both releases are equally fast.
const AS_FAST: &str = "thinking-lite";
/// Runs of each release in each scenario.
const REPEATS: usize = 2;
/// Seconds in which the releases answer each scenario in turns; few are enough for a large effect.
const ALTERNATE_S: u32 = 25;

/// Writes a mock of one release, with its own time between the tokens of short answers.
fn stand_in(folder: &Path, version: &str, gap_us: u64) {
    let steady = |gap_us: u64| json!({"first_us": 4_000, "gap_us": gap_us});
    let short = json!({"body_contains": "\"max_tokens\":64,"});
    let answers = [
        json!({"when": short, "times": 0, "steady": steady(gap_us)}),
        json!({"times": 0, "steady": steady(1_000)}),
    ];
    scripted::release(folder, version, &answers);
}

/// Runs `release-bench v0.9.2 --baseline v0.9.1` with the mocks, into a registry of its own.
fn gate(clone: &Clone, folder: &Path, registry: &Path) -> Ended {
    let words = ["release-bench", "v0.9.2", "--baseline", "v0.9.1", "--repeats", "2", "--yes"];
    let cells = ["--scenario", SLOWER, "--scenario", AS_FAST];
    let into = ["--registry", registry.to_str().expect("UTF-8")];
    let words = [&words[..], &cells, &into].concat();
    let mut command: Command = clone.program("redline-campaign", &words);
    command.env("PATH", scripted::path_of_releases(folder));
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(command.spawn().expect("it starts"), Duration::from_secs(400))
}

fn read<T: serde::de::DeserializeOwned>(folder: &Path) -> Vec<T> {
    let files = files_under(folder).into_iter();
    let read = |path| std::fs::read_to_string(path).expect("readable");
    files.map(|path| serde_json::from_str(&read(path)).expect("a record")).collect()
}

/// Shortens the time that the clone's policy gives to the alternating comparison of a scenario.
fn shorten(clone: &Clone) {
    let path = clone.root().join("suite/policies/release.toml");
    let text = std::fs::read_to_string(&path).expect("a policy");
    let shorter = text.replace("alternate_s = 300", &format!("alternate_s = {ALTERNATE_S}"));
    assert_ne!(shorter, text);
    std::fs::write(&path, shorter).expect("writable");
}

#[test]
fn what_became_slower_is_found_in_turns_and_fails_the_release() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    shorten(&clone);
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (version, gap_us) in [("0.9.1", 1_000), ("0.9.2", 2_000)] {
        stand_in(folder.path(), version, gap_us);
    }
    let registry = folder.path().join("registry");
    std::fs::create_dir(&registry).expect("writable");
    run(&mut command(Path::new("git"), &registry, &["init", "--quiet"])).expect_code(0);

    let ended = gate(&clone, folder.path(), &registry).expect_code(1);
    assert!(ended.stdout.contains("regressed"), "{}", ended.stdout);

    let campaigns: Vec<CampaignRecord> = read(&registry.join("results/campaigns"));
    let [campaign] = &campaigns[..] else { panic!("one campaign was started: {campaigns:?}") };
    let of = |metric: &str| {
        let of = |verdict: &&schema::verdict::Verdict| {
            verdict.metric == metric && verdict.cell.scenario.starts_with(SLOWER)
        };
        campaign.verdicts.iter().find(of).unwrap_or_else(|| panic!("no verdict on `{metric}`"))
    };
    let slower = of("tpot_us_p50");
    assert_eq!((slower.verdict, slower.stage), (VerdictKind::Regressed, Stage::Alternate));
    let extent = slower.alternation.expect("its extent");
    assert!(extent.starts >= 4 && extent.slices == 2 * slower.pairs, "{extent:?}");
    assert_eq!(extent.budget_us, u64::from(ALTERNATE_S) * 1_000_000);
    let regressed = campaign.verdicts.iter().filter(|verdict| verdict.fails());
    let cells: BTreeSet<&str> = regressed.map(|verdict| &*verdict.cell.scenario).collect();
    assert_eq!(cells.into_iter().collect::<Vec<_>>(), [slower.cell.scenario.as_str()]);

    // Figures come from whole runs, and the idle server was frozen in every slice.
    let runs: Vec<RunRecord> = read(&registry.join("results/runs"));
    for id in [SLOWER, AS_FAST] {
        assert_eq!(runs.iter().filter(|run| run.scenario.id == id).count(), 2 * REPEATS);
    }
    let starts = campaign.alternations.iter().flat_map(|found| &found.starts);
    let mut slices = starts.flat_map(|start| &start.alternation.as_ref().expect("slices").slices);
    assert!(slices.all(|slice| slice.idle_cpu_us == Some(0)));

    // A later query of the registry gives the same verdict.
    let at = ["--registry", registry.to_str().expect("UTF-8")];
    clone.run("redline-results", &[&["check"], &at[..]].concat()).expect_code(0);
    let asked = clone.run("redline-results", &[&["diff", "v0.9.1", "v0.9.2"], &at[..]].concat());
    assert!(asked.expect_code(1).stdout.contains("regressed"));
}
