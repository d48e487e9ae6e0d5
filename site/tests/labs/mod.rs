//! Tests of a lab's page: the conclusion comes first and is that of `judge`, failures are shown as
//! reasons and not as numbers, and a lab whose runs are incomplete has no conclusion.

use judge::Registry;
use judge::records::Retraction;
use samples::lab::{Fate, lab};
use samples::registry::registry;
use samples::{LAB, Sample};
use schema::lab::{Axis, Candidate, LabEngine, LabFile, LabOption};
use site::{Catalog, Renderer, pages};

use super::{assert_whole, built, built_from, own};

/// Budget of runs that none of these labs exhausts.
const PLENTY: u32 = 10_000;

/// The made-up lab, with another engine and one more axis.
fn file() -> LabFile {
    let mut file = schema::lab::parse(LAB).expect("a lab");
    let (id, version) = ("other".to_owned(), "v2.0.0".to_owned());
    file.engines.push(LabEngine { id, version, flags: Vec::new() });
    let fast = LabOption { name: "fast".to_owned(), flags: vec!["--fast".to_owned()] };
    let (name, engine) = ("mode".to_owned(), "redline".to_owned());
    file.axes.push(Axis { name, engine, options: vec![fast] });
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
        sections[..8],
        [
            "## Recommended: redline v0.9.2, kv f16",
            "## How it was found",
            "## Which engine",
            "## Option batch",
            "## Option kv",
            "## Option mode",
            "## On fresh launches",
            "## What was not explored",
        ]
    );
    let found = under(&page, "## Recommended");
    assert!(found.contains(
        "redline serve SmolLM2-135M-Instruct.Q4_1.gguf --port 8000 --threads 2 --kv-dtype f16\n"
    ));
    assert!(found.contains("p below 0.001, on 8 fresh launches of each side"), "{found}");
    for profile in ["lab-sharegpt-lite@1", "lab-throughput-lite@1"] {
        let row = row(found, profile);
        // Columns: profile, both figures, gain, interval, runs.
        let cells: Vec<&str> = row.split(" | ").collect();
        assert!(cells[3].starts_with('+') && cells[4].contains(" to +"), "{row}");
        assert!(cells[5].starts_with('8'), "{row}");
    }
    let overall = row(found, "All profiles");
    assert!(overall.contains("| +10."), "the script says a tenth: {overall}");
    assert!(under(&page, "## On your machine").contains("cargo xtask lab made-up\n"));
    let confirmed = row(under(&page, "## On fresh launches"), "redline v0.9.2, kv f16");
    assert!(confirmed.contains("confirmed: p below 0.001, adjusted"), "{confirmed}");
}

#[test]
fn what_failed_has_a_reason_and_no_number() {
    let page = page(&gain());
    let died = row(under(&page, "## Option kv"), "fp8");
    let lost = row(under(&page, "## Option mode"), "fast");
    assert!(died.contains("| failed: the server ended before it was ready | - | - | - | - | - |"));
    assert!(lost.contains("| failed: 90.6 % of the requests were answered: "), "{lost}");
    assert!(lost.contains(" | - | - | - | - | - | `--threads 2 --fast` |"), "{lost}");
    let slow = row(under(&page, "## Option batch"), "4");
    assert!(slow.contains("| no gain | \u{2212}"), "{slow}");
}

#[test]
fn each_cell_leads_to_its_runs() {
    let registry = gain();
    let page = page(&registry);
    let runs = under(&page, "## Option kv").split("The runs behind each cell:").nth(1);
    let runs = runs.expect("a table");
    let of = row(runs, "f16");
    // Three runs under each of two profiles, each with its record.
    assert_eq!(of.matches("](../../../runs/redline/v0.9.2/").count(), 6, "{of}");
    for profile in ["lab-sharegpt-lite@1/", "lab-throughput-lite@1/"] {
        assert_eq!(of.matches(profile).count(), 3, "{of}");
    }
    assert!(row(runs, "redline v0.9.2").contains("lab-sharegpt-lite@1/"), "the reference ran too");
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
    assert!(!found.contains("Gain |"), "there is nothing to hold beside it: {found}");
}

#[test]
fn what_does_not_keep_a_bound_is_called_out_of_bounds() {
    let mut file = file();
    // The TTFT of the sampled answers is at least 40 ms.
    file.objective.bounds = [("ttft_us_p50".to_owned(), 1.0)].into();
    let page = page(&lab(&file, PLENTY, fate));
    assert!(page.contains("## Recommended: Nothing: no candidate runs within the bounds"));
    assert!(page.contains("Under every profile the median has to keep `ttft_us_p50` at most 1."));
    let batch = row(under(&page, "## Option batch"), "4");
    assert!(batch.contains("out of bounds: the median of `ttft_us_p50` is "), "{batch}");
}

#[test]
fn what_the_budget_left_out_is_said() {
    let file = file();
    let least = judge::lab::runs_min(&file, &judge::diff::policy::standard().file);
    let page = page(&lab(&file, least - 8, fate));
    let open = under(&page, "## What was not explored");
    assert!(open.contains("the budget was spent before."), "{open}");
    assert!(open.contains("Of other v2.0.0: "), "{open}");
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
    assert!(text.contains("> One of its runs was taken back: a backup ran beside it"), "{text}");
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
    assert!(folder.join("2/index.html").exists(), "48 options under four profiles fill two pages");
    let text = std::fs::read_to_string(folder.join("index.html")).expect("a page");
    assert!(!text.contains("<script>alert"), "a name became markup");
    let mut empty = gain();
    if let Some(lab) = &mut empty.campaigns[0].record.lab {
        lab.file.engines.clear();
    }
    let (_guard, out) = built(&empty);
    assert!(!out.join("lab").exists(), "a lab of no engine is none");
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
    let report = out.join("imports/performance-lab/d88cdf37");
    let page = std::fs::read_to_string(report.join("options/index.md")).expect("a page");
    assert!(page.contains("24 blocks of 15 options"), "{page}");
    let options = page.split("### What a lab").next().expect("a table");
    let with = |flags: &str| {
        let found = options.lines().find(|line| line.contains(&format!("`{flags}`")));
        found.unwrap_or_else(|| panic!("no option `{flags}`:\n{options}"))
    };
    let best = with("--performance-mode=throughput --max-num-seqs=512");
    for cell in ["11,800 (+2.1 %)", "34,500 (+15.6 %)", "32,700 (+0.7 %)", "3,030 (+1.7 %)"] {
        assert!(best.contains(cell), "{cell} is not in {best}");
    }
    assert!(
        best.contains("[012]") && best.contains("[018]"),
        "a block that is quoted twice: {best}"
    );
    let lost = with("--speculative-config={\"method\":\"mtp\",\"num_speculative_tokens\":4}");
    assert!(lost.contains("**514 of 1000 requests answered, 51.4 %**"), "{lost}");
    assert!(!lost.contains("15,1"), "the rate of half of the requests is no figure: {lost}");
    assert!(
        page.contains("cargo xtask lab h100-qwen3.5-9b\n") && page.contains("E25: survivorship")
    );
    for from in
        ["imports/index.md", "m/qwen3.5-9b/index.md", "imports/performance-lab/d88cdf37/index.md"]
    {
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
