//! Tests of a lab's page: the conclusion comes first and is that of `judge`, failures are shown as
//! reasons and not as numbers, and a lab whose runs are incomplete has no conclusion.

use judge::records::Retraction;
use judge::{Registry, Stored};
use samples::lab::{Fate, lab};
use samples::registry::registry;
use samples::{LAB, Sample};
use schema::lab::{Axis, Candidate, Combine, LabEngine, LabFile, LabOption};
use site::{Catalog, Renderer, pages};

use super::{assert_whole, built, built_from, own, reading};

/// Budget of runs that none of these labs exhausts.
const PLENTY: u32 = 10_000;

/// The made-up lab, with another engine and one more axis.
fn file() -> LabFile {
    let mut file = schema::lab::parse(LAB).expect("a lab");
    let (id, version) = ("other".to_owned(), "v2.0.0".to_owned());
    file.engines.push(LabEngine { id, version, flags: Vec::new(), runs: None });
    let fast = LabOption { name: "fast".to_owned(), flags: vec!["--fast".to_owned()] };
    let (name, engine) = ("mode".to_owned(), "redline".to_owned());
    file.axes.push(Axis { name, engine, options: vec![fast], high: None });
    file
}

fn has(candidate: &Candidate, axis: &str, option: &str) -> bool {
    candidate.options.get(axis).is_some_and(|name| name == option)
}

/// Fate of a candidate: 16-bit keys help, 8-bit keys cannot start, the fast mode loses requests,
/// and a batch of four and the other engine are slower.
fn fate(candidate: &Candidate) -> Fate {
    match candidate {
        of if of.engine == 1 => Fate::Runs(0.8),
        of if has(of, "kv", "fp8") => Fate::Dies,
        of if has(of, "mode", "fast") => Fate::Loses(3),
        of if has(of, "batch", "4") => Fate::Runs(0.9),
        of if has(of, "kv", "f16") => Fate::Runs(1.1),
        _ => Fate::Runs(1.0),
    }
}

fn gain() -> Registry {
    lab(&file(), PLENTY, fate)
}

/// Committed page of the made-up lab.
fn page(registry: &Registry) -> String {
    let catalog = Catalog::of(registry);
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&catalog, &renderer, false).expect("renders");
    let mut labs = pages.into_iter().filter(|(path, _)| path.starts_with("pages/labs/made-up/"));
    labs.next().expect("a page of the lab").1
}

/// Text under a heading, up to the next heading.
fn under<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(heading).unwrap_or_else(|| panic!("no `{heading}`:\n{page}"));
    rest.split("\n## ").next().unwrap_or(rest)
}

fn row<'a>(section: &'a str, candidate: &str) -> &'a str {
    let start = format!("| {candidate} | ");
    let found = section.lines().find(|line| line.starts_with(&start));
    found.unwrap_or_else(|| panic!("no row of `{candidate}`:\n{section}"))
}

#[test]
fn a_gain_is_the_first_thing_that_a_lab_says() {
    let page = page(&gain());
    let sections: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(
        sections[..3],
        ["## Recommended: redline v0.9.2, kv f16", "## What was tried", "## On your machine"]
    );
    let found = under(&page, "## Recommended");
    assert!(found.contains(
        "redline serve SmolLM2-135M-Instruct.Q4_1.gguf --port 8000 --threads 2 --kv-dtype f16\n"
    ));
    assert!(found.contains("Differs from the baseline by `--kv-dtype f16`"), "{found}");
    assert!(found.contains("Total tokens/s +10."), "the script says a tenth: {found}");
    assert!(found.contains("p below 0.001, on 8 fresh runs of each side"), "{found}");
    assert!(under(&page, "## On your machine").contains("cargo xtask lab made-up\n"));
    let tried = row(under(&page, "## What was tried"), "kv f16");
    assert!(tried.contains("| kv f16 | +10."), "{tried}");
    assert!(tried.contains("| confirmed: p below 0.001, adjusted | "), "{tried}");
    let stages = page.split("Stages: how each").nth(1).expect("stages");
    assert!(stages.contains("| kv f16 | options | gain | +"), "{stages}");
    assert!(stages.contains("| kv f16 | confirmation | confirmed: p below 0.001"), "{stages}");
}

#[test]
fn baseline_and_recommendation_are_side_by_side_in_each_metric_with_number_and_validity() {
    let page = page(&gain());
    let found = under(&page, "## Recommended");
    // Throughput rises by a tenth, so both latencies fall, and nothing is paid for it.
    for gain in ["Output tokens +10.", "TTFT p50 \u{2212}9.", "TPOT p50 \u{2212}9."] {
        assert!(found.contains(gain), "`{gain}` is not in {found}");
    }
    assert!(found.contains("Cost: none of these metrics got worse."), "{found}");
    for profile in ["lab-sharegpt-lite@1", "lab-throughput-lite@1"] {
        let first = found.lines().position(|line| line.starts_with(&format!("| {profile} | ")));
        let lines: Vec<&str> = found.lines().skip(first.expect("a row")).take(4).collect();
        let metrics = ["Total tokens /s", "Output tokens /s", "TTFT p50 ms", "TPOT p50 ms"];
        for (line, metric) in lines.iter().zip(metrics) {
            // Columns: profile, metric, both figures, change, interval, runs, validity.
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!((cells[1], cells[6], cells[7]), (metric, "8", "valid"), "{line}");
            assert!(cells[2].contains('±') && cells[3].contains('±'), "{line}");
            assert!(cells[5].contains(" to "), "{line}");
        }
    }
}

#[test]
fn a_cost_is_named_beside_the_gain() {
    let mut registry = gain();
    for stored in &mut registry.runs {
        let is_slower = stored
            .record
            .server
            .as_ref()
            .is_some_and(|server| server.variant.as_deref() == Some("kv-f16"));
        let ttft = stored.record.metrics.as_mut().and_then(|metrics| metrics.ttft_us.as_mut());
        if let Some(ttft) = ttft.filter(|_| is_slower) {
            ttft.p50 = ttft.p50.map(|value| value * 2);
        }
    }
    let found = page(&registry);
    let found = under(&found, "## Recommended");
    let (gains, costs) = found.split_once("Cost: ").expect("a cost");
    assert!(gains.contains("Output tokens +") && !gains.contains("TTFT p50 +"), "{found}");
    assert!(costs.starts_with("TTFT p50 +8"), "{found}");
}

#[test]
fn a_profile_is_a_table_of_variants_that_shows_only_what_differs() {
    let page = page(&gain());
    assert_eq!(page.matches("All variants of redline have `--threads 2`.").count(), 1);
    let tried = under(&page, "## What was tried");
    assert!(row(tried, "batch 4").contains("| `--max-batch-size 4` |"), "{tried}");
    assert!(row(tried, "other v2.0.0").contains(" | - | "), "{tried}");
    for profile in ["### lab-sharegpt-lite@1", "### lab-throughput-lite@1"] {
        let table = page.split(profile).nth(1).expect("a profile");
        let table = table.split("\n### ").next().expect("a table");
        let table = table.split("<details>").next().expect("a table");
        let heads = table.lines().find(|line| line.starts_with("| Variant |")).expect("heads");
        assert!(
            heads.starts_with("| Variant | Total tokens /s | change | Output tokens "),
            "{heads}"
        );
        let baseline = row(table, "baseline, redline v0.9.2");
        assert!(baseline.contains("±") && baseline.ends_with("| - | 8 | valid |"), "{baseline}");
        let best = row(table, "kv f16");
        assert!(best.ends_with("| yes | 8 | valid |"), "faster for one user and for all: {best}");
        let slow = row(table, "batch 4");
        assert!(slow.contains("| \u{2212}9.") && slow.ends_with("| 3 | valid |"), "{slow}");
        assert!(!table.contains("| mode fast |"), "what failed has no figure: {table}");
    }
}

/// Largest size of a lab's committed page, in bytes: what a reader has patience for.
const PAGE_BYTES_MAX: usize = 16 * 1024;

#[test]
fn the_page_of_the_lab_in_this_tree_fits_a_readers_patience_and_prints_no_size_of_one() {
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let registry = site::read(&[&results]).expect("readable records");
    let catalog = Catalog::of(&registry);
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&catalog, &renderer, false).expect("renders");
    let labs: Vec<_> =
        pages.into_iter().filter(|(path, _)| path.starts_with("pages/labs/")).collect();
    assert!(!labs.is_empty(), "the registry has a lab");
    for (path, page) in labs {
        assert!(page.len() <= PAGE_BYTES_MAX, "{path} has {} bytes", page.len());
        let early = "stopped early: in the worse half; not shown to be worse";
        assert!(page.contains(early) && !page.contains("ropped"), "{path}");
        for line in page.lines() {
            let text: String = line
                .split("](")
                .map(|part| part.split_once(')').map_or(part, |(_, rest)| rest))
                .collect();
            assert!(!text.contains("tp1"), "{path}: {line}");
        }
    }
}

#[test]
fn what_failed_has_a_reason_and_no_number() {
    let page = page(&gain());
    let tried = under(&page, "## What was tried");
    let (died, lost) = (row(tried, "kv fp8"), row(tried, "mode fast"));
    assert!(died.contains("| - | - | failed: the server ended before it was ready | "), "{died}");
    assert!(lost.contains("| - | - | failed: 90.6 % of the requests were answered: "), "{lost}");
    assert!(lost.contains(" | `--fast` | "), "{lost}");
    let slow = row(tried, "batch 4");
    assert!(slow.starts_with("| batch 4 | \u{2212}") && slow.contains("| no gain |"), "{slow}");
    let stages = page.split("Stages: how each").nth(1).expect("stages");
    let row = row(stages, "kv fp8");
    assert!(row.ends_with("| - | - | - |"), "{row}");
}

#[test]
fn each_variant_leads_to_its_runs() {
    let registry = gain();
    let page = page(&registry);
    let of = row(under(&page, "## What was tried"), "kv f16").to_owned();
    assert!(of.contains("[runs](../../../runs/redline/v0.9.2/"), "{of}");
    assert!(of.contains("-kv-f16-"), "{of}");
    let (_guard, out) = built(&registry);
    let folder = out.join("lab/made-up").join(&registry.campaigns[0].record.id);
    let html = std::fs::read_to_string(folder.join("index.html")).expect("a page");
    let runs = html.split("Runs of each variant</summary>").nth(1).expect("a list");
    let of = runs.lines().find(|line| line.contains("<bdi>kv f16</bdi>")).expect("a row");
    // Three runs, and eight that confirmed it, under each of two profiles.
    assert_eq!(of.matches("/run/").count(), 22, "{of}");
    let line = runs.lines().find(|line| line.contains("<bdi>baseline")).expect("a row");
    assert!(line.contains("/run/"), "the reference ran too: {line}");
}

#[test]
fn where_nothing_helps_the_baseline_is_recommended() {
    let page = page(&lab(&file(), PLENTY, |candidate| match candidate.engine {
        1 => Fate::Runs(0.8),
        _ => Fate::Runs(1.0),
    }));
    let found = under(&page, "## Recommended");
    assert!(
        found.starts_with(
            ": The baseline, redline v0.9.2: nothing that was tried is confirmed to be better, by 2 % \
             or more\n"
        ),
        "{found}"
    );
    assert!(
        found.contains("redline serve SmolLM2-135M-Instruct.Q4_1.gguf --port 8000 --threads 2\n"),
        "{found}"
    );
    assert!(!found.contains("Change |"), "there is nothing to hold beside it: {found}");
}

#[test]
fn what_does_not_keep_a_bound_is_called_out_of_bounds() {
    let mut file = file();
    // The TTFT of the sampled answers is at least 40 ms.
    file.objective.bounds = [("ttft_us_p50".to_owned(), 1.0)].into();
    let page = page(&lab(&file, PLENTY, fate));
    assert!(page.contains("## Recommended: Nothing: no candidate runs within the bounds"));
    assert!(
        page.contains("Under every profile the median must be within `ttft_us_p50` at most 1.")
    );
    let batch = row(under(&page, "## What was tried"), "batch 4");
    assert!(batch.contains("out of bounds: the median of `ttft_us_p50` is "), "{batch}");
}

#[test]
fn what_the_budget_left_out_is_said() {
    let file = file();
    let least = judge::lab::runs_min(&file, &judge::diff::policy::standard().file);
    let page = page(&lab(&file, least - 8, fate));
    let open = page.split("Not explored:").nth(1).expect("a list");
    assert!(open.contains("the budget was spent before."), "{open}");
    assert!(open.contains("Options of other v2.0.0: "), "{open}");
}

#[test]
fn without_all_of_its_runs_a_lab_concludes_nothing() {
    let mut registry = gain();
    let id = registry.runs[0].record.id.clone();
    let retraction = Retraction {
        event: "01KDVDQ9F80000000000042000".into(),
        reason: "a backup ran beside it".into(),
        replaced_by: None,
    };
    registry.retracted.insert(id, retraction);
    let text = page(&registry);
    assert!(text.contains("> One of its runs was retracted: a backup ran beside it"), "{text}");
    assert!(text.contains("> This lab has no conclusion") && !text.contains("## Recommended"));
    let mut cut = gain();
    cut.runs.retain(|run| run.record.campaign.as_ref().is_some_and(|slot| slot.block < 20));
    let text = page(&cut);
    assert!(text.contains("> This lab has no conclusion") && !text.contains("## Recommended"));
    for registry in [registry, cut] {
        let (_guard, out) = built(&registry);
        assert_whole("open lab", &out);
    }
}

#[test]
fn a_pair_that_helps_only_together_is_recommended_with_the_effects_that_showed_it() {
    let mut file = file();
    file.combine = Combine::Factorial;
    file.axes[1].high = Some("f16".to_owned());
    let registry = lab(&file, PLENTY, |candidate| match candidate {
        of if of.engine == 1 => Fate::Runs(0.8),
        of if has(of, "batch", "4") => Fate::Runs(0.9),
        of if has(of, "kv", "f16") && has(of, "mode", "fast") => Fate::Runs(1.1),
        of if has(of, "kv", "f16") || has(of, "mode", "fast") => Fate::Runs(0.98),
        _ => Fate::Runs(1.0),
    });
    let page = page(&registry);
    assert!(page.contains("## Recommended: redline v0.9.2, kv f16, mode fast\n"), "{page}");
    let effects = under(&page, "## Effects of options and pairs");
    for (of, sign) in [("kv f16 with mode fast", "+"), ("kv f16", "+"), ("batch 4", "\u{2212}")] {
        let found = row(effects, of);
        assert!(found.starts_with(&format!("| {of} | {sign}")), "{found}");
    }
    let tried = under(&page, "## What was tried");
    assert!(row(tried, "kv f16, mode fast").contains("| confirmed: p below 0.001"), "{tried}");
    assert!(row(tried, "kv f16").contains("| not confirmed: p = "), "{tried}");
    assert!(row(tried, "kv fp8").contains("| not explored: the design has "), "{tried}");
    assert!(page.contains("8 configurations of a two-level factorial design"), "{page}");
    let (_guard, out) = built(&registry);
    assert_whole("factorial lab", &out);
}

#[test]
fn a_lab_is_found_from_the_overview_its_model_and_its_hardware() {
    let (_guard, out) = built(&gain());
    assert_whole("lab", &out);
    for page in [
        "index.md",
        "m/smollm2-135m-instruct-q4_1/index.md",
        "hw/cpu-example-simulated-f6m1s1-2c/index.md",
    ] {
        let text = std::fs::read_to_string(out.join(page)).expect("a page");
        assert!(text.contains("lab/made-up/"), "{page} does not lead to the lab");
        assert!(text.contains("redline v0.9.2, kv f16"), "{page} does not say what it found");
    }
}

#[test]
fn a_releases_page_leaves_its_options_to_the_lab() {
    let pages = |registry: &Registry| {
        let catalog = Catalog::of(registry);
        let renderer = Renderer::new().expect("templates compile");
        let pages = pages::render(&catalog, &renderer, false).expect("renders");
        let release = |path: &str| path.starts_with("pages/redline/v0.9.2/");
        pages.into_iter().filter(|(path, _)| release(path)).map(|(_, page)| page).collect()
    };
    let only: Vec<String> = pages(&gain());
    assert!(!only.is_empty(), "nothing else was measured");

    let own = Sample { release: "v0.9.2".to_owned(), ..Sample::default() }.record();
    let mut both = gain();
    both.runs.extend(registry(vec![own]).runs);
    let both: Vec<String> = pages(&both);
    assert_eq!(both.len(), 2, "of the release, and of it on its hardware");
    for page in both {
        assert!(page.contains("1 run of 1 model in 1 scenario"), "{page}");
        assert!(!page.contains("-kv-f16") && !page.contains("lab-"), "{page}");
    }
}

#[test]
fn a_large_lab_with_hostile_names_is_cut_into_whole_pages() {
    let attack = "</code><script>alert(1)</script>|`**";
    let mut file = file();
    file.question = attack.to_owned();
    file.profiles.extend(["lab-long-context-lite", "lab-generation-heavy-lite"].map(str::to_owned));
    file.axes.clear();
    for axis in 0..48 {
        let option = |option| LabOption {
            name: format!("{option}"),
            flags: vec![format!("--flag-{axis}={attack}{option}")],
        };
        file.axes.push(Axis {
            name: format!("axis-{axis}"),
            engine: "redline".into(),
            options: vec![option(axis)],
            high: None,
        });
    }
    file.axes[0].name = attack.to_owned();
    let registry = lab(&file, PLENTY, |candidate| match candidate.options.len() {
        _ if candidate.engine == 1 => Fate::Runs(0.8),
        0 => Fate::Runs(1.0),
        _ if has(candidate, "axis-3", "3") => Fate::Runs(1.2),
        _ => Fate::Runs(1.0),
    });
    let (_guard, out) = built(&registry);
    assert_whole("hostile lab", &out);
    let folder = out.join("lab/made-up").join(&registry.campaigns[0].record.id);
    assert!(folder.join("3/index.html").exists(), "48 options fill three pages");
    let text = std::fs::read_to_string(folder.join("index.html")).expect("a page");
    assert!(!text.contains("<script>alert"), "a name became markup");
    let mut empty = gain();
    if let Some(lab) = &mut empty.campaigns[0].record.lab {
        lab.file.engines.clear();
    }
    let (_guard, out) = built(&empty);
    assert!(!out.join("lab").exists(), "a lab of no engine is none");
}

/// A campaign commits the pages that its records change, and a newer release changes the page of a
/// lab that recommends an older one.
#[test]
fn a_release_that_is_measured_after_a_lab_renders_its_page_again() {
    let mut registry = gain();
    let rendered = |registry: &Registry| {
        let catalog = Catalog::of(registry);
        let renderer = Renderer::new().expect("templates compile");
        let all = pages::render(&catalog, &renderer, false).expect("renders");
        let of_lab = |(path, _): &(String, String)| path.starts_with("pages/labs/");
        let only = pages::render(&catalog, &renderer, true).expect("renders");
        let [all, only] =
            [all, only].map(|pages| pages.into_iter().filter(of_lab).collect::<Vec<_>>());
        (all, only)
    };
    let (before, only) = rendered(&registry);
    assert_eq!(only, [], "nothing is in an overlay");
    let model = registry.runs[0].record.model.id.clone();
    let newer =
        Sample { release: "v9.0.0".to_owned(), model, serial: 999_999, ..Sample::default() };
    registry.runs.push(Stored { path: "run.json".into(), root: 1, record: newer.record() });
    let (after, only) = rendered(&registry);
    assert!(after != before && after[0].1.contains("superseded by v9.0.0"), "{}", after[0].1);
    assert_eq!(only, after);
}

#[test]
fn a_lab_renders_the_same_bytes_whatever_the_order_of_its_runs() {
    let forward = gain();
    let mut backward = gain();
    backward.runs.reverse();
    assert_eq!(page(&forward), page(&backward));
}

#[test]
fn options_that_others_tried_stand_beside_their_audit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let lab = reading(&out, "performance-lab/d88cdf37");
    let report = out.join(&lab);
    let page = std::fs::read_to_string(report.join("options/index.md")).expect("a page");
    assert!(page.contains("24 results of 15 options"), "{page}");
    let options = page.split("### What a lab").next().expect("a table");
    let with = |flags: &str| {
        let found = options.lines().find(|line| line.contains(&format!("`{flags}`")));
        found.unwrap_or_else(|| panic!("no option `{flags}`:\n{options}"))
    };
    let best = with("--performance-mode=throughput --max-num-seqs=512");
    for cell in
        ["11768.22 (+2.1 %)", "34470.14 (+15.6 %)", "32658.73 (+0.75 %)", "3025.11 (+1.7 %)"]
    {
        assert!(best.contains(cell), "{cell} is not in {best}");
    }
    assert!(
        best.contains("[012]") && best.contains("[018]"),
        "a block that is quoted twice: {best}"
    );
    let conclusion = options.split("24 results of").next().expect("a conclusion");
    assert!(
        conclusion.contains(
            "vllm serve Qwen/Qwen3.5-9B --reasoning-parser=qwen3 --performance-mode=throughput \
             --max-model-len=32768 --max-num-seqs=512\n"
        ),
        "{conclusion}"
    );
    let row = row(conclusion, "Throughput, random-1024-128-1000@0");
    let errors = "; errors: rate contradicts counts (E06), TPOT contradicts E2E (E23), ITL \
                  contradicts E2E (E24), implausible peak rate (E36) |";
    for figure in ["| 29822.16, TPOT 34.63", "| 34470.14 (+15.6 %), TPOT 36.97"] {
        let cell = format!("{figure}{errors}");
        assert!(row.contains(&cell), "baseline and recommendation under one profile: {row}");
    }
    assert!(conclusion.contains("It is no advice of this page"), "{conclusion}");
    let heads = "| Option | ShareGPT, sharegpt-1000@0 | ";
    assert!(options.contains(heads) && best.contains("TPOT contradicts E2E (E23)"), "{options}");
    let release = std::fs::read_to_string(out.join("r/vllm/v0.17.1/h100-80g/index.md"));
    let release = release.expect("a page");
    assert!(release.contains(", same figures as 001"), "a result that is quoted again: {release}");
    let lost = with("--speculative-config={\"method\":\"mtp\",\"num_speculative_tokens\":4}");
    assert!(lost.contains("**514 of 1000 requests answered, 51.4 %**"), "{lost}");
    assert!(!lost.contains("15059"), "the rate of half of the requests is no figure: {lost}");
    assert!(page.contains("cargo xtask lab h100-qwen3.5-9b\n"));
    let whole = std::fs::read_to_string(report.join("index.md")).expect("a page");
    assert!(whole.contains("survivorship: 514 of 1000"), "the audit is on the report's page");
    let reported = format!("{lab}/index.md");
    for from in ["imports/index.md", "m/qwen3.5-9b/index.md", reported.as_str()] {
        let text = std::fs::read_to_string(out.join(from)).expect("a page");
        assert!(text.contains("options/index.md"), "{from} does not lead there");
    }
    let others = out.join("imports/llm_benchmark");
    let listed = std::fs::read_dir(others).expect("reports");
    for report in listed {
        let path = report.expect("a report").path();
        assert!(!path.join("options").exists(), "{}: one option a cell is no lab", path.display());
    }
}
