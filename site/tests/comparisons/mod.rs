//! Tests of the pages about releases: what they say first, what they fold, and how they group.

use std::fs;

use site::{Catalog, Renderer, pages};

use super::{built, built_from, own, whole};

#[test]
fn a_comparison_begins_with_its_decision_and_a_waiver_stands_above_the_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let at = "diff/redline/v0.9.2..v0.10.0/cpu-amd-epyc-f26m2s1-2c";
    let page = fs::read_to_string(out.join(at).join("index.md")).expect("a page");
    let (head, rest) = page.split_once("### Release-blocking metrics").expect("a table");
    let (blocking, others) = rest.split_once("<summary>Other metrics").expect("both tables");
    for verdict in ["regressed", "inconclusive", "improved"] {
        let rows = blocking.lines().filter(|line| line.contains(&format!("| {verdict}"))).count();
        let counted = page.contains(&format!("- {rows} {verdict}\n"));
        assert_eq!(counted, rows > 0, "{rows} rows are {verdict}");
    }
    assert!(others.contains("| not judged |") && !others.contains("| inconclusive"));
    // In this order: the verdict, outputs, moved defaults, degraded runs; the waiver before all tables.
    let parts = [
        "**SHIP.** Output tokens up 121 to 165 %",
        "> Waived by Redline maintainers until 2027-03-31: Peak memory of ladder-lite-c1@1.",
        "- Outputs differ in at least one of 4 fixed prompts: the default of dtype changed from f32 to \
         int8; by how much was not measured.",
        "- The default of dtype changed from \"f32\" to \"int8\"",
        "- Degraded runs: ",
    ];
    let places: Vec<Option<usize>> = parts.iter().map(|part| head.find(part)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {head}");
    assert!(
        blocking.contains("| regressed (confirmed, waived) |") && !blocking.contains("until 2027")
    );
    assert!(!blocking.contains("Detectable") && !blocking.contains("Cliff"), "all are decided");
    let html = fs::read_to_string(out.join(at).join("index.html")).expect("a page");
    let cells = html.split("<td").skip(1).filter_map(|cell| cell.split("</td>").next());
    assert!(!cells.into_iter().any(|cell| cell.contains("The peak is that of loading")));
    let across = fs::read_to_string(out.join("r/redline/v0.10.0/index.md")).expect("a page");
    let noise = across.lines().find(|line| line.starts_with("Noise, ")).expect("a line");
    assert!(noise.contains(": Output tokens ±") && !noise.contains("E2E"), "{noise}");
}

#[test]
fn a_large_change_of_another_metric_is_not_folded_and_remarks_are_said_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let read = |at: &str| fs::read_to_string(out.join(at)).expect("a page");
    let page = read("diff/redline/v0.9.1..v0.9.2/cpu-intel-xeon-f6m85s7-2c/index.md");
    let (shown, _) = page.split_once("<summary>Other metrics").expect("folded metrics");
    let line = shown.lines().find(|line| line.contains("ITL p99")).expect("a line");
    assert!(line.starts_with("- worse: ITL p99 +615 to +987 % in "), "{line}");
    assert!(shown.contains("**INCONCLUSIVE.** A regression of up to "), "{shown}");
    assert!(shown.contains("| Detectable change |"), "undecided metrics have one");
    let page = read("diff/redline/v0.9.2..v0.10.0/cpu-amd-epyc-f26m2s1-2c/index.md");
    let said = |text: &str| page.lines().filter(|line| line.contains(text)).count();
    assert_eq!(said("older campaigns compared it too"), 1, "{page}");
    assert_eq!(said("the baseline ran 3.1 to 15.7 % faster than in campaign"), 1, "{page}");
}

#[test]
fn a_release_page_begins_with_the_verdict_and_groups_its_runs() {
    let (registry, _) = own();
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&Catalog::of(&registry), &renderer, false).expect("renders");
    let page = &pages["pages/redline/v0.10.0/cpu-amd-epyc-f26m2s1-2c.md"];
    let parts = ["**SHIP.**", "## Summary", "### Runs", "## Environment"];
    let places: Vec<Option<usize>> = parts.iter().map(|part| page.find(part)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {page}");
    let groups: Vec<&str> = page.lines().filter(|line| line.contains(" runs: ok, ")).collect();
    assert!((1..8).contains(&groups.len()), "{groups:?}");
    assert!(page.matches(".json").count() < 12, "runs are grouped, not listed one by one");
}

#[test]
fn engines_whose_runs_alternated_lead_to_their_commands_and_show_their_memory() {
    let (registry, _) = own();
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&Catalog::of(&registry), &renderer, false).expect("renders");
    let folder = "pages/side-by-side/smollm2-135m-instruct-q4_1";
    let page = &pages[&format!("{folder}/cpu-amd-epyc-f26m2s1-2c.md")];
    for part in [
        " beside llama.cpp v11434.0.0, in runs that alternated\n",
        "shows as the command that serves it: [redline v0.11.0](",
        "Measure both again:\n\n```\ncargo xtask release-bench ",
        "### Peak memory ",
    ] {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
    let published = &pages["pages/side-by-side/qwen3-8b/a100-80g.md"];
    assert!(!published.contains("### Peak memory"), "no report states it");
    assert!(published.contains("Runs of these engines did not alternate"), "{published}");
}

#[test]
fn what_was_decided_in_turns_shows_starts_pairs_of_slices_and_time_of_the_budget() {
    let (_guard, out) = built(&whole());
    let read = |at: &str| fs::read_to_string(out.join(at)).expect("a page");
    let folder = "diff/redline/v0.9.2..v0.10.0/cpu-example-simulated-f6m1s1-2c";
    // A page for each model, since the comparison is long.
    let page = read(&format!("{folder}/2/index.md"));
    let (_, page) = page.split_once("## smollm2-135m-instruct-q4_1").expect("the model in turns");
    let (blocking, others) = page.split_once("<summary>Other metrics").expect("both tables");
    assert!(blocking.contains("In turns: both servers were started afresh again and again"));
    assert!(blocking.contains("| Starts | Pairs | Time | Minimum effect |"), "{blocking}");
    let output = |scenario: &str| {
        let start = format!("| {scenario}@1 | Output tokens ");
        let line = blocking.lines().find(|line| line.starts_with(&start)).expect("a row");
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [starts, pairs, time] = [cells[6], cells[7], cells[8]];
        format!("{starts}; {pairs}; {time}; {}", cells[cells.len() - 1])
    };
    // Three are decided after a fifth of the budget; the one that scatters uses all of it.
    for (scenario, verdict) in [
        ("sharegpt-lite", "improved"),
        ("balanced-lite", "unchanged"),
        ("thinking-lite", "regressed"),
    ] {
        assert_eq!(output(scenario), format!("6; 24; 1 min of 5 min; {verdict} (in turns)"));
    }
    assert_eq!(output("long-input-lite"), "30; 120; 5 min of 5 min; inconclusive (in turns)");
    assert!(!others.split("</details>").next().expect("a table").contains("Starts"));
    assert!(
        page.contains("30 starts of both servers, 120 pairs of slices of 4 requests"),
        "{page}"
    );
    let html = read(&format!("{folder}/2/index.html"));
    for text in [
        "<small>in turns</small>",
        "n = 6 starts, 24 pairs of slices",
        "<td>1 min of 5 min</td>",
        "5 min of a budget of 5 min",
    ] {
        assert!(html.contains(text), "{text} in {html}");
    }
    // Pages of the release name the same verdicts.
    let across = read("r/redline/v0.10.0/index.md");
    assert!(
        across.contains("| 1 min of 5 min |") && across.contains("regressed (in turns)"),
        "{across}"
    );
}
