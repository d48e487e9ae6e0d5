//! Tests of what pages select from the records of this source tree: each figure comes from one
//! campaign, no figure that fails the truth gate is picked or drawn, and a looser limit never yields
//! a lower pick.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use judge::Registry;
use judge::best::Limit;
use judge::pick::{self, Limits, Pick, Tested};
use judge::validity;
use schema::metric::by_name;
use schema::random::SplitMix64;
use schema::run::{Kind, RunRecord};
use schema::scenario::Arrival;
use site::{Catalog, Renderer, build, pages};

/// Results of this source tree, and their folder.
fn own() -> (Registry, PathBuf) {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    (store::load(&[&records]).expect("readable records"), records)
}

/// Builds the site of this source tree's results, and returns its folder.
fn built() -> (tempfile::TempDir, PathBuf) {
    let (registry, records) = own();
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("site");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&Catalog::of(&registry), &[&records], &renderer, (&out, None)).expect("a site");
    (folder, out)
}

fn read(out: &Path, page: &str) -> String {
    fs::read_to_string(out.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// Throughput of each pick that meets `limits`, by subject.
fn met(registry: &Registry, limits: &[Limit]) -> Vec<(pick::Subject, f64)> {
    let found = pick::picks(registry, limits).into_iter();
    let met = found.filter(|pick| pick.limits == Limits::Met);
    met.map(|pick| (pick.subject, pick.first.throughput.median)).collect()
}

#[test]
fn a_looser_limit_never_yields_a_lower_pick() {
    let (mut registry, _) = own();
    // Limits do not apply to bursts, which are most of the records: they pass for closed loops here.
    for run in &mut registry.runs {
        run.record.scenario.arrival = Some(Arrival::Closed { concurrency: 32 });
    }
    // Limits are drawn around the figures of the configurations, from 1 % below to 1 % above, so
    // that they divide them.
    let every = pick::picks(&registry, &[]);
    let tested = || every.iter().flat_map(|p| [&p.first].into_iter().chain(&p.ties).chain(&p.next));
    let medians = |of: fn(&Tested) -> Option<f64>| tested().filter_map(of).collect::<Vec<f64>>();
    let figures =
        [medians(|tested| Some(tested.ttft?.median)), medians(|tested| Some(tested.tpot?.median))];
    let mut random = SplitMix64(26);
    let mut draw = |figures: &[f64]| {
        let count = u64::try_from(figures.len()).expect("a count");
        let at = usize::try_from(random.draw() % count).expect("an index");
        figures[at] * (0.99 + 0.02 * random.share())
    };
    let (mut compared, mut improved) = (0, 0);
    for _ in 0..60 {
        let (mut strict, mut loose) = (pick::limits(), pick::limits());
        for (index, figures) in figures.iter().enumerate() {
            let (a, b) = (draw(figures), draw(figures));
            (strict[index].value, loose[index].value) = (a.min(b), a.max(b));
        }
        let loose = met(&registry, &loose);
        for (subject, figure) in met(&registry, &strict) {
            let other = loose.iter().find(|(other, _)| *other == subject).expect("still met");
            assert!(other.1 >= figure, "{subject:?}: {figure} and with looser limits {}", other.1);
            compared += 1;
            improved += usize::from(other.1 > figure);
        }
    }
    assert!(compared > 100 && improved > 0, "{compared} compared, {improved} differ");
}

#[test]
fn a_picked_figure_comes_from_one_campaign() {
    let (registry, _) = own();
    for pick in pick::picks(&registry, &pick::limits()) {
        let tested = [&pick.first].into_iter().chain(&pick.ties).chain(&pick.next);
        for tested in tested {
            let runs = &tested.setup.runs;
            let campaigns: BTreeSet<&str> =
                runs.iter().filter_map(|run| Some(run.campaign.as_ref()?.id.as_str())).collect();
            assert_eq!(campaigns.len(), usize::from(!pick.subject.is_published), "{pick:?}");
        }
    }
}

/// Median of the output throughput over the runs of a pick, computed without `judge`.
fn recomputed(pick: &Pick) -> f64 {
    let value = |run: &&RunRecord| run.metrics.as_ref()?.output_tokens_per_s;
    let mut values: Vec<f64> = pick.first.setup.runs.iter().filter_map(value).collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

#[test]
fn every_pick_is_what_its_records_say() {
    let (registry, _) = own();
    let picks = pick::picks(&registry, &pick::limits());
    assert!(picks.len() > 30, "{}", picks.len());
    let throughput = by_name("output_tokens_per_s").expect("a metric");
    for pick in &picks {
        assert!((recomputed(pick) - pick.first.throughput.median).abs() < 1e-9, "{pick:?}");
        if !pick.subject.is_published {
            continue;
        }
        // No sound result of the same subject is faster, unless it misses the limits.
        for run in registry.standing().map(|stored| &stored.record) {
            let meets = pick::limits().iter().all(|limit| limit.is_met(&[run]));
            let same = run.kind == Kind::Imported
                && run.model.id == pick.subject.model
                && run.hardware.id == pick.subject.hardware
                && format!("{}@{}", run.scenario.id, run.scenario.rev) == pick.subject.scenario;
            let value = validity::value(throughput, run).unwrap_or_default();
            if same && (meets || pick.limits != Limits::Met) {
                assert!(value <= pick.first.throughput.median, "{}: {value}", run.id);
            }
        }
    }
}

#[test]
fn no_figure_that_fails_the_gate_is_picked_or_drawn() {
    let (_guard, out) = built();
    // One result lost 486 of 1,000 requests, and its figure would lead: 12,800 tokens/s.
    for page in ["index.md", "m/qwen3.5-9b/index.md", "index.html"] {
        let text = read(&out, page);
        assert!(!text.contains("12,8"), "{page} has a figure of the requests that survived");
    }
    // A mean TPOT that contradicts E2E and TTFT (rule E23) would be 33,300 tokens/s for one user.
    let frontier = read(&out, "frontier/qwen3.5-9b/index.html");
    assert!(!frontier.contains("33,300"), "the frontier has a figure that fails E23");
    // Its profiles send at a rate, which is no number of users.
    assert!(!out.join("pick/qwen3.5-9b/h100-80g").exists());
    // The report's own page keeps what the report prints.
    let readings = fs::read_dir(out.join("imports/performance-lab")).expect("reports");
    let mut folders = readings.map(|entry| entry.expect("a report").path());
    let lab = folders.find(|path| path.join("options").exists()).expect("the lab's report");
    let report = fs::read_to_string(lab.join("index.md")).expect("a page");
    assert!(report.contains("514 of 1000 requests answered"), "{report}");
    let data: serde_json::Value =
        serde_json::from_str(&read(&out, "data/explore.json")).expect("JSON");
    let metrics = data["metrics"].as_array().expect("metrics");
    let tpot = metrics.iter().position(|metric| metric["name"] == "tpot_us_p50").expect("TPOT");
    let drawn = data["runs"].as_array().expect("runs").iter();
    let drawn: Vec<f64> = drawn.filter_map(|run| run[8 + tpot].as_f64()).collect();
    assert!(!drawn.is_empty() && drawn.iter().all(|us| *us > 100.0), "30 us per token is drawn");
}

#[test]
fn the_badge_names_the_engine_that_most_were_compared_with() {
    let (_guard, out) = built();
    let badge = read(&out, "badge/gpt-oss-20b/a100-80g.json");
    assert!(badge.contains("vllm v0.10.1") && badge.contains("not verified"), "{badge}");
}

#[test]
fn picks_badges_and_frontiers_have_the_marks_of_the_release_page() {
    let (_guard, out) = built();
    let marks = "degraded, random weights";
    for page in [
        "r/redline/v0.11.0/h200-141g/index.md",
        "index.md",
        "pick/qwen3-8b-random/h200-141g/index.md",
        "pick/qwen3-8b-random/h200-141g/index.html",
        "badge/qwen3-8b-random/h200-141g.json",
        "frontier/qwen3-8b-random/index.md",
    ] {
        assert!(read(&out, page).contains(marks), "{page} lacks `{marks}`");
    }
    let frontier = read(&out, "frontier/qwen3-8b-random/index.html");
    assert!(frontier.contains("; degraded; random weights; "), "tooltips of points have them");
    let page = read(&out, "index.md");
    let is_row = |line: &&str| line.contains("f26m2s1-2c | [1 user, ladder-lite-c1@1]");
    let row = page.lines().find(is_row).expect("a row");
    let marks = "median of 3 runs, 2026-11-28; client error too large (W18)";
    assert!(row.contains(marks), "{row}");
}

#[test]
fn hardware_has_a_name_that_can_be_read_where_a_page_shows_its_id() {
    let (_guard, out) = built();
    let named = [
        ("cpu-amd-epyc-f25m1s1-2c", "AMD EPYC Zen 3 (Milan), 2 cores, AVX2"),
        ("cpu-amd-epyc-f26m2s1-2c", "AMD EPYC Zen 5 (Turin), 2 cores, AVX-512, BF16"),
    ];
    for (id, name) in named {
        assert!(read(&out, "index.md").contains(&format!("- `{id}` is {name}.")), "{id}");
        let entry = format!("data-device=\"{id}\"><code>{id}</code> is <bdi>{name}</bdi>");
        assert!(read(&out, "index.html").contains(&entry), "{id}: the picker names it");
        let picks = format!("pick/smollm2-135m-instruct-q4_1/{id}/index.md");
        for page in [format!("hw/{id}/index.md"), picks] {
            assert!(read(&out, &page).contains(name), "{page}");
        }
    }
    let release = read(&out, "r/redline/v0.11.0/cpu-amd-epyc-f25m1s1-2c/index.md");
    assert!(release.contains("On AMD EPYC Zen 3 (Milan), 2 cores, AVX2: "), "{release}");
}

#[test]
fn tool_calls_and_structured_output_are_set_beside_plain_answers() {
    let (_guard, out) = built();
    let page = read(&out, "r/redline/v0.11.0/cpu-amd-epyc-f25m1s1-2c/index.md");
    let section = page.split("### Cost of tool calls").nth(1).expect("a section");
    let section = section.split("\n##").next().unwrap_or_default();
    // The plain scenario of structured output was measured again in a campaign without it.
    for row in [
        "tools-lite@1 | chat-lite-c4@1 | 0.927x | 0.932x",
        "structured-lite@1 | ladder-lite-c4@1 | 1.14x | 0.952x",
    ] {
        let row = format!("{row} | 3 and 3 | `01M8EYHS1A8YRZWT3CZ7WZ73CE` |");
        assert!(section.contains(&row), "no `{row}` in {section}");
    }
    let apart = "Measured (UTC): chat-lite-c4@1, structured-lite@1, tools-lite@1 at 2026-11-27 16:58, \
                 the others at 2026-11-27 23:21.";
    assert!(page.contains(apart), "rows of two campaigns are told apart: {page}");
    let (registry, _) = own();
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&Catalog::of(&registry), &renderer, false).expect("renders");
    let committed = &pages["pages/redline/v0.11.0/cpu-amd-epyc-f25m1s1-2c.md"];
    let command = " --scenario structured-lite --scenario tools-lite";
    assert!(committed.contains(command), "it measures all scenarios of the page: {committed}");
    let without = read(&out, "r/redline/v0.11.0/h200-141g/index.md");
    assert!(!without.contains("Cost of tool calls"), "nothing of the kind was measured there");
}

#[test]
fn one_engine_is_no_ranking_and_published_results_stand_apart() {
    let (_guard, out) = built();
    let page = read(&out, "index.md");
    let (measured, published) = page
        .split_once("**Published elsewhere, not verified**")
        .expect("published results are apart");
    let is_row = |line: &&str| line.contains("f26m2s1-2c | [16 users, ladder-lite-c16@1]");
    let row = measured.lines().find(is_row);
    let row = row.expect("a row");
    assert!(
        row.contains("the only engine measured at this load")
            && row.contains("measured, median of 3 runs"),
        "{row}"
    );
    assert!(!measured.contains("lmdeploy") && published.contains("lmdeploy v0.9.2"));
    let first =
        page.lines().find(|line| line.starts_with("Latest compared release: ")).expect("a line");
    assert!(first.contains("redline v0.11.0"), "{first}");
    let html = read(&out, "index.html");
    for way in ["cargo xtask gate", "release-bench --worktree --base", "redline-results waive"] {
        assert!(page.contains(way) && html.contains(way), "the first page has no way to `{way}`");
    }
    for word in ["best engine", "Fastest", "none keeps it", "claimed by others"] {
        let main = html.split("<main").nth(1).expect("a page");
        assert!(!main.contains(word), "the overview says `{word}`");
    }
    let card = html.split("id=\"picker\"").nth(1).expect("a first answer");
    let card = card.split("class=\"latest\"").next().expect("the verdict is below it");
    for part in ["redline v0.11.0", "TTFT p50", "measured, median of ", "class=\"copy\"", "serve"] {
        assert!(card.contains(part), "the first screen lacks `{part}`: {card}");
    }
    let (registry, _) = own();
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&Catalog::of(&registry), &renderer, false).expect("renders");
    let front = &pages["README.md"];
    assert!(front.contains("16 users, ladder-lite-c16@1"), "picks are committed");
    assert!(front.contains("Scenarios that send requests at a rate have no number of users"));
    assert!(front.contains("[workloads](../docs/method/workloads.md)"), "scenarios are explained");
    let unranked = "- [qwen3.5-9b on h100-80g](pages/side-by-side/qwen3.5-9b/h100-80g.md): the \
                    throughput of ";
    assert!(front.contains(unranked), "{front}");
    assert!(
        front.contains("Tie: the ranges of both figures overlap. ") && front.contains("1 % to")
    );
    assert!(front.contains(" in 3 pairs of whole runs that alternated (95 %: "), "{front}");
    let gap = "--target a100-80g --model qwen3-8b --scenario ladder-c1 --scenario ladder-c4 ";
    assert!(front.contains("- qwen3-8b on `a100-80g`, 1, 4, 16, 64 and 256: `cargo xtask"));
    assert!(front.contains(gap) && pages["pages/picks/qwen3-8b/a100-80g.md"].contains(gap));
    assert!(front.contains("one run, date not stated, of 3 engines"), "{front}");
    let own = "pages/picks/qwen3-8b/a100-80g.md";
    assert!(pages[own].contains("tie with"), "0.7 % between two single runs is no lead");
}

#[test]
fn runs_of_a_lab_are_not_missing_and_its_old_release_is_superseded() {
    let (_guard, out) = built();
    let page = read(&out, "hw/cpu-amd-epyc-f26m2s1-2c/index.md");
    let line = page.lines().find(|line| line.contains("runs done")).expect("a line");
    assert!(page.contains(" 0 missing") && !page.contains("12 missing"), "{line}");
    let labs = read(&out, "index.md");
    let line = labs.lines().find(|line| line.contains("Lab cpu-smollm2")).expect("a lab");
    assert!(line.contains("redline v0.9.2, superseded by v0.11.0"), "{line}");
}
