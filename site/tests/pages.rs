//! Tests of pages: their text is that of the stored cases, they are well-formed, their links lead
//! somewhere, and no text of a record becomes markup.

mod backends;
mod comparisons;
mod html;
mod kernels;
mod labs;
mod published;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use judge::Registry;
use judge::records::Retraction;
use samples::registry as sample;
use schema::run::{Failure, FailureClass, Phase, RunRecord, Status, ValidityVerdict};
use schema::untrusted::is_web_address;
use site::{Catalog, Renderer, build, pages, text};

/// Largest page, in bytes, that a phone should have to load; compressed, an eighth of it travels.
const PAGE_BYTES_MAX: usize = 200_000;

/// One model and two scenarios: a complete one with a failed run, and one with a single run.
fn small() -> Registry {
    let records = sample::records().into_iter().filter(|record| {
        record.engine.release == "v0.10.0"
            && record.model.id.starts_with("smollm2")
            && ["sharegpt", "long-input"].iter().any(|id| record.scenario.id.starts_with(id))
    });
    let records: Vec<RunRecord> = records.collect();
    let mut registry = sample::registry(records);
    let spoiled = registry.runs.iter().find(|run| run.record.scenario.id == "sharegpt-lite");
    let id = spoiled.expect("a run").record.id.clone();
    let retraction = Retraction {
        event: "01KDVDQ9F80000000000042000".into(),
        reason: "a backup ran beside it".into(),
        replaced_by: None,
    };
    registry.retracted.insert(id, retraction);
    registry
}

/// Records in which every text is an attack and the figures are extreme.
fn hostile() -> Registry {
    let attacks = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "| a | b |\n\n# not a heading\n`code` **bold** [link](https://example.invalid)",
        "\u{202e}gpj.exe\u{0}\u{1b}[31m",
        "{{ 7 * 7 }}{% raw %}",
        "../../../etc/passwd",
    ];
    let long = "x".repeat(10_000);
    let texts: Vec<&str> = attacks.into_iter().chain([long.as_str(), ""]).collect();
    let mut records = Vec::new();
    for (index, (attack, mut record)) in texts.iter().zip(sample::records()).enumerate() {
        let text = (*attack).to_owned();
        record.engine.name = text.clone();
        record.engine.release = text.clone();
        record.hardware.id = text.clone();
        record.hardware.cpu_model = Some(text.clone());
        record.model.id = text.clone();
        record.model.source = Some(text.clone());
        record.scenario.id = text.clone();
        record.validity.verdict = ValidityVerdict::Degraded;
        record.validity.reasons = vec![text.clone()];
        record.absent.insert(text.clone(), text.clone());
        if let Some(server) = &mut record.server {
            server.argv = Some(vec![text.clone(), "plain".into()]);
            server.config = Some([(text.clone(), text.clone().into())].into());
        }
        if let Some(check) = record.checks.first_mut() {
            check.rule = text.clone();
            check.ok = false;
            check.detail = Some(text.clone());
        }
        if let Some(metrics) = &mut record.metrics {
            metrics.output_tokens_per_s = Some(if index % 2 == 0 { 0.0 } else { 1e12 });
            metrics.requests_per_s = Some(if index % 3 == 0 { f64::NAN } else { 1e-12 });
        }
        if let (4, Some(server)) = (index, &mut record.server) {
            let flag = |n: usize| (format!("flag-{n}"), format!("value {n}").into());
            server.config = Some((0..5_000).map(flag).collect());
            record.absent.extend((0..5_000).map(|n| (format!("field.{n}"), "unknown".to_owned())));
        }
        if index == 2 {
            record.status = Status::Failed;
            record.metrics = None;
        }
        records.push(published::claim(record.clone(), attack, index));
        records.push(record);
    }
    sample::registry(records)
}

/// The whole made-up registry, with its campaign and the kernel records of two releases.
fn whole() -> Registry {
    let records = sample::records();
    let kernels = [("v0.9.1", 812_345.6), ("v0.10.0", 649_876.5)]
        .map(|(release, median_ns)| kernels::record(&records[0], release, median_ns));
    let mut registry = sample::registry(records);
    registry.kernels.extend(kernels);
    let record = sample::campaign_in_turns();
    let path = schema::path::of_campaign(&record).expect("a path");
    registry.campaigns.push(judge::Stored { path, root: 0, record });
    registry
}

/// Builds the site of `registry` with a file for each record, and returns its folder.
fn built(registry: &Registry) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("results");
    for (path, _) in Catalog::of(registry).files() {
        let file = records.join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        fs::write(file, "{}\n").expect("a file");
    }
    let out = built_from(registry, &records, folder.path());
    (folder, out)
}

/// Builds the site of `registry`, whose files lie below `records`, in `folder`.
fn built_from(registry: &Registry, records: &Path, folder: &Path) -> PathBuf {
    let out = folder.join("site");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&Catalog::of(registry), &[records], &renderer, (&out, None))
        .expect("the site is built");
    out
}

/// Results of this source tree, and their folder.
fn own() -> (Registry, PathBuf) {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let registry = store::load(&[&records]).expect("readable records");
    (registry, records)
}

/// Folder of a report's pages in the site `out`, such as `imports/x/01234567-r2`: the report is given
/// by its source and the first digits of its hash, and the reading is the one that is shown.
fn reading(out: &Path, report: &str) -> String {
    let (source, digits) = report.split_once('/').expect("a source and digits");
    let folders = fs::read_dir(out.join("imports").join(source)).expect("reports");
    let names = folders.map(|entry| entry.expect("a report").file_name());
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    let name = names.find(|name| name.starts_with(digits)).expect("a reading");
    format!("imports/{source}/{name}")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn with_extension<'a>(
    files: &'a [PathBuf],
    extension: &'a str,
) -> impl Iterator<Item = &'a PathBuf> {
    files.iter().filter(move |file| file.extension().is_some_and(|found| found == extension))
}

#[test]
fn a_release_page_as_markdown_and_as_text() {
    let registry = small();
    let catalog = Catalog::of(&registry);
    let renderer = Renderer::new().expect("templates compile");
    let pages = pages::render(&catalog, &renderer, false).expect("renders");
    let on = |path: &&String| path.ends_with("v0.10.0/cpu-example-simulated-f6m1s1-2c.md");
    let path = pages.keys().find(on).expect("a page");
    let page = &pages[path];
    expect_file!["../cases/release.md"].assert_eq(page);
    let key = catalog.releases().into_keys().next().expect("a release");
    let found = text::release(&catalog, &key).expect("it has runs");
    expect_file!["../cases/release.txt"].assert_eq(&found);
}

#[test]
fn every_page_is_whole_and_every_link_leads_somewhere() {
    let empty = Registry::default();
    let failed = {
        let mut records = sample::records();
        records.retain(|record| record.status == Status::Failed);
        assert!(!records.is_empty());
        sample::registry(records)
    };
    for (name, registry) in
        [("whole", whole()), ("empty", empty), ("failed", failed), ("hostile", hostile())]
    {
        let (_guard, out) = built(&registry);
        assert_whole(name, &out);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    assert_whole("own", &built_from(&registry, &records, folder.path()));
}

/// Checks that every page of the site in `out` parses, is small, and has no dead link.
fn assert_whole(name: &str, out: &Path) {
    let files = files(out);
    let mut pages: BTreeMap<PathBuf, html::Page> = BTreeMap::new();
    for page in with_extension(&files, "html") {
        let text = fs::read_to_string(page).expect("a page");
        let shown = page.strip_prefix(out).expect("below the site").display().to_string();
        let parsed = html::parse(&text).unwrap_or_else(|e| panic!("{name}: {shown}: {e}"));
        assert!(text.len() < PAGE_BYTES_MAX, "{name}: {shown} has {} bytes", text.len());
        pages.insert(page.canonicalize().expect("a page"), parsed);
    }
    assert!(pages.len() >= 8, "{name}: overview, method, data and lists are always there");
    let root = out.canonicalize().expect("a site");
    for (page, parsed) in &pages {
        let shown = format!("{name}: {}", page.strip_prefix(&root).expect("below").display());
        for link in &parsed.links {
            let Some((file, anchor)) = leads(&root, page, link, &shown) else { continue };
            let Some(anchor) = anchor else { continue };
            let known = pages.get(&file).is_some_and(|page| page.ids.contains(&anchor));
            assert!(known, "{shown}: `{link}` has no such place");
        }
        let are_of_the_web = parsed.foreign.iter().all(|link| is_web_address(link));
        assert!(are_of_the_web, "{shown}: {:?}", parsed.foreign);
    }
    for page in with_extension(&files, "md") {
        let text = fs::read_to_string(page).expect("a page");
        let shown = page.strip_prefix(out).expect("below the site").display().to_string();
        let page = page.canonicalize().expect("a page");
        let links = markdown_links(&without_code(&text)).into_iter();
        // Links of reports leave the site.
        for link in links.filter(|link| !is_web_address(link)) {
            leads(&root, &page, &link, &format!("{name}: {shown}"));
        }
    }
}

/// File of the site that `link` on `page` leads to, with its anchor; `None` for a data address.
fn leads(root: &Path, page: &Path, link: &str, shown: &str) -> Option<(PathBuf, Option<String>)> {
    // The empty icon, and the figures of a chart.
    if link == "data:," || link.starts_with("data:text/csv;charset=utf-8,") {
        return None;
    }
    assert!(!link.contains("://") && !link.starts_with("//"), "{shown} asks for `{link}`");
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, id)| (path, Some(id)));
    let file = match path {
        "" => page.to_owned(),
        path => page.parent().expect("a folder").join(path.replace("%20", " ")),
    };
    let file = file.canonicalize().unwrap_or_else(|_| panic!("{shown} points to `{link}`"));
    assert!(file.starts_with(root), "{shown}: `{link}` leaves");
    Some((file, anchor.map(str::to_owned)))
}

/// Follows `clicks` from the first page, each given as part of a link's address, and returns the
/// last page.
fn followed(out: &Path, clicks: &[&str]) -> html::Page {
    assert!(clicks.len() <= 2, "more than two clicks");
    let read = |file: &Path| {
        html::parse(&fs::read_to_string(file).expect("a page")).expect("a sound page")
    };
    let root = out.canonicalize().expect("a site");
    let mut here = root.join("index.html");
    for click in clicks {
        let links = read(&here).links;
        let link = links.iter().find(|link| link.contains(click));
        let link = link.unwrap_or_else(|| panic!("{} has no `{click}`", here.display()));
        here = leads(&root, &here, link, click).expect("a page").0;
    }
    read(&here)
}

#[test]
fn five_questions_are_answered_within_two_clicks() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let own = built_from(&registry, &records, folder.path());
    let (_guard, made_up) = built(&whole());
    let release = "r/redline/v0.9.2/cpu-intel-xeon-f6m85s7-2c/";
    let questions: [(&str, &Path, &[&str], &[&str]); 5] = [
        (
            "which engine for Qwen3-8B on A100?",
            &own,
            &["pick/qwen3-8b/a100-80g/"],
            &["lmdeploy v0.9.2", "vllm v0.10.1", "tie with", "Published elsewhere, not verified"],
        ),
        (
            "did v0.10.0 get slower?",
            &made_up,
            &["diff/redline/v0.9.2..v0.10.0/"],
            &["v0.9.2 to v0.10.0", "HOLD", "new failure", "95 % interval"],
        ),
        (
            "what did they run exactly?",
            &own,
            &[release],
            &["Kernel", "serve SmolLM2", "Effective configuration", "max-batch-size"],
        ),
        ("can I trust this number?", &own, &[release, "run/"], &["Checks", "E06", "Client load"]),
        (
            "how do I run it myself?",
            &own,
            &[release],
            &["cargo xtask release-bench v0.9.2", "redline-bench run --url"],
        ),
    ];
    for (question, site, clicks, answers) in questions {
        let page = followed(site, clicks);
        for answer in answers {
            assert!(page.text.contains(answer), "{question} {clicks:?} lacks `{answer}`");
        }
    }
}

#[test]
fn engines_stand_side_by_side_and_claims_are_called_claims() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, records) = own();
    let out = built_from(&registry, &records, folder.path());
    let page = fs::read_to_string(out.join("m/qwen3-8b/index.md")).expect("a page");
    let table = page.split("### Output tokens").nth(1).expect("a table");
    let table = table.split("###").next().expect("a table");
    for (engine, sharegpt) in
        [("lmdeploy v0.9.2", "4,739.3"), ("sglang v0.5.1", "4,706.4"), ("vllm v0.10.1", "3,443.8")]
    {
        let row = table.lines().find(|line| line.contains(engine)).expect("a row");
        assert!(row.contains(&format!("| {sharegpt}")), "{row}");
        assert_eq!(row.matches(" | ").count(), 5, "four scenarios between engine and notes: {row}");
    }
    // A badge that every row has is shown once.
    assert!(
        page.contains("All of them with `tp1`") && page.contains("Every row: imported, unverified")
    );
    assert!(page.contains("Read from [llm_benchmark"), "a claim leads to its report");
}

#[test]
fn feeds_badges_and_hashes_are_what_programs_expect() {
    for registry in [whole(), Registry::default(), hostile(), own().0] {
        let (_guard, out) = built(&registry);
        for feed in ["releases.atom", "regressions.atom", "corrections.atom"] {
            let text = fs::read_to_string(out.join(feed)).expect("a feed");
            let entries = valid_feed(&text).unwrap_or_else(|e| panic!("{feed}: {e}"));
            if feed == "releases.atom" {
                assert_eq!(entries, Catalog::of(&registry).releases().len());
            }
        }
        let all = files(&out.join("data"));
        let sums = fs::read_to_string(out.join("data/SHA256SUMS")).expect("hashes");
        for line in sums.lines() {
            let (hash, path) = line.split_once("  ").expect("a hash and a path");
            let bytes = fs::read(out.join("data").join(path)).expect("a record");
            assert_eq!(hash, schema::canonical::sha256_hex(&bytes), "{path}");
        }
        assert_eq!(sums.lines().count(), Catalog::of(&registry).files().len());
        assert!(all.iter().any(|file| file.ends_with("schemas/run.v1.json")));
    }
    let (_guard, out) = built(&whole());
    let badge = out.join("badge/qwen3-0.6b-bf16/cpu-example-simulated-f6m1s1-2c.json");
    let badge: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(badge).expect("a badge")).expect("JSON");
    assert_eq!(badge["schemaVersion"], 1);
    assert_eq!(badge["label"], "qwen3-0.6b-bf16 on cpu-example-simulated-f6m1s1-2c");
    assert!(badge["message"].as_str().is_some_and(|text| text.contains("redline v0.")), "{badge}");
}

/// Entries of an Atom feed (RFC 4287), or what is wrong with it: the feed and each entry need one
/// id, title and time, entries need a link and a summary, and ids must be unique.
fn valid_feed(text: &str) -> Result<usize, String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    let mut seen: Vec<BTreeMap<String, String>> = vec![BTreeMap::new()];
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(tag) => {
                path.push(String::from_utf8_lossy(tag.name().as_ref()).into_owned());
                if path.join("/") == "feed/entry" {
                    seen.push(BTreeMap::new());
                }
            }
            Event::End(_) => drop(path.pop()),
            Event::Text(text) => {
                let name = path.last().cloned().unwrap_or_default();
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                let last = seen.last_mut().expect("the feed itself");
                *last.entry(name).or_default() += &text;
            }
            Event::Empty(tag) if tag.name().as_ref() == b"link" => {
                let link = String::from_utf8_lossy(&tag).into_owned();
                *seen.last_mut().expect("the feed itself").entry("link".into()).or_default() +=
                    &link;
            }
            Event::Eof => break,
            _ => {}
        }
    }
    let mut ids = std::collections::BTreeSet::new();
    for (index, element) in seen.iter().enumerate() {
        let needed = ["id", "title", "updated", "link"].into_iter();
        for name in needed.chain((index > 0).then_some("summary")) {
            if element.get(name).is_none_or(String::is_empty) {
                return Err(format!("element {index} has no `{name}`: {element:?}"));
            }
        }
        let (id, updated) = (&element["id"], &element["updated"]);
        if !id.starts_with("urn:redline:") || !ids.insert(id.clone()) {
            return Err(format!("`{id}` is no id of its own"));
        }
        if updated.len() < 20 || !updated.ends_with('Z') || updated.as_bytes()[10] != b'T' {
            return Err(format!("`{updated}` is no time"));
        }
    }
    Ok(seen.len() - 1)
}

#[test]
fn a_page_about_many_releases_is_cut_into_parts() {
    let registry = sample::registry(sample::many(1_200));
    let (_guard, out) = built(&registry);
    assert_whole("many", &out);
    let first = fs::read_to_string(out.join("health/index.html")).expect("a page");
    assert!(first.contains("href=\"../health/2/index.html\""), "the list has a second part");
    assert!(out.join("health/2/index.html").exists());
}

#[test]
fn every_class_of_failure_is_shown_among_what_does_not_run() {
    let classes = [
        (FailureClass::Oom, "1 out of memory"),
        (FailureClass::Crash, "1 crash"),
        (FailureClass::Hang, "1 hang"),
        (FailureClass::Timeout, "1 timeout"),
        (FailureClass::BadOutput, "1 bad output"),
        (FailureClass::Unsupported, "1 unsupported"),
        (FailureClass::Infrastructure, "1 infrastructure"),
        (FailureClass::Preempted, "1 preempted"),
    ];
    let sampled = sample::records().remove(0);
    let failed = (0..).zip(classes).map(|(index, (class, said))| RunRecord {
        id: format!("01KDVDQ9F8000000000004300{index}"),
        status: Status::Failed,
        failure: Some(Failure { class, phase: Phase::Load, message: format!("it was {said}") }),
        ..sampled.clone()
    });
    let (_guard, out) = built(&sample::registry(failed.collect()));
    let page = fs::read_to_string(out.join("health/index.html")).expect("a page");
    for (_, said) in classes {
        assert!(page.contains(said), "`{said}` is not on the page");
    }
}

#[test]
fn a_clock_that_was_set_during_a_run_is_shown_though_the_run_ended_well() {
    let said = "clock-step: the wall clock was set by -1059000 ms during the run; durations are of \
                another clock";
    let mut records = sample::records();
    let record = records.iter_mut().find(|record| record.engine.release == "v0.10.0");
    let record = record.expect("the latest release");
    record.validity.verdict = ValidityVerdict::Degraded;
    record.validity.reasons = vec![said.to_owned()];
    let id = record.id.clone();
    let (_guard, out) = built(&sample::registry(records));
    let page = fs::read_to_string(out.join("health/index.html")).expect("a page");
    let section = page.split("id=\"doubts\"").nth(1).expect("what is to be said of them");
    let row = section.split("</tbody>").next().expect("a table");
    for part in ["<code>clock-step</code>", "set by -1059000 ms", "1 of ", &id] {
        assert!(row.contains(part), "`{part}` is not in {row}");
    }
    assert_eq!(
        row.matches("<tr><th scope=\"row\">").count(),
        1,
        "one reason of one release: {row}"
    );
}

#[test]
fn nothing_that_a_record_says_becomes_markup() {
    let (_guard, out) = built(&hostile());
    let files = files(&out);
    let mut foreign = 0;
    for page in with_extension(&files, "html").chain(with_extension(&files, "md")) {
        let text = fs::read_to_string(page).expect("a page");
        let html = page.extension().is_some_and(|extension| extension == "html");
        let prose = if html { text.clone() } else { without_code(&text) };
        let markup = ["<script>", "<img", "=\"javascript:"];
        let markdown = ["**bold**", "](javascript:", "](https://example.invalid"];
        for bad in markup.iter().chain(markdown.iter().filter(|_| !html)) {
            assert!(!prose.contains(bad), "{} has `{bad}`", page.display());
        }
        foreign += text.matches("rel=\"nofollow noopener noreferrer\"").count();
        let shown = prose.to_lowercase();
        for wild in [">nan<", "| nan", " inf ", ">inf<", "nan %"] {
            assert!(!shown.contains(wild), "{} has `{wild}`", page.display());
        }
        for bad in ['\u{202e}', '\u{1b}', '\u{0}'] {
            assert!(!text.contains(bad), "{} has {bad:?}", page.display());
        }
        assert!(!text.contains(&"x".repeat(1_000)), "{} has it all", page.display());
    }
    assert!(foreign > 0, "no page has the sound link of a report");
}

/// Removes code from Markdown, because nothing in code is markup.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let run = rest[start..].chars().take_while(|c| *c == '`').count();
        let (before, opened) = rest.split_at(start);
        prose.push_str(before);
        let behind = &opened[run..];
        let escaped = before.ends_with('\\');
        rest = match closing(behind, run) {
            Some(end) if !escaped => &behind[end..],
            _ => behind,
        };
    }
    prose + rest
}

/// Position after the code that `run` back-ticks opened.
fn closing(text: &str, run: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(start) = text[at..].find('`').map(|start| at + start) {
        let found = text[start..].chars().take_while(|c| *c == '`').count();
        at = start + found;
        if found == run {
            return Some(at);
        }
    }
    None
}

#[test]
fn the_same_records_in_any_order_give_the_same_bytes() {
    let forward = sample::registry(sample::records());
    let backward = sample::registry(sample::records().into_iter().rev().collect());
    let ((_a, first), (_b, second)) = (built(&forward), built(&backward));
    let (first_files, second_files) = (files(&first), files(&second));
    assert_eq!(first_files.len(), second_files.len());
    for (a, b) in first_files.iter().zip(&second_files) {
        assert_eq!(a.strip_prefix(&first).expect("below"), b.strip_prefix(&second).expect("below"));
        assert!(fs::read(a).expect("a") == fs::read(b).expect("b"), "{} differs", a.display());
    }
}

#[test]
fn a_site_takes_the_place_of_the_one_before() {
    let registry = small();
    let (_guard, out) = built(&registry);
    fs::write(out.join("left-over.html"), "old").expect("a file");
    let catalog = Catalog::of(&registry);
    let records = out.with_file_name("results");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&catalog, &[&records], &renderer, (&out, None)).expect("the site is built");
    assert!(!out.join("left-over.html").exists());
    let beside = fs::read_dir(out.parent().expect("a parent")).expect("a folder");
    let mut names: Vec<_> = beside.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["results", "site"], "nothing is left beside the site");
}

fn markdown_links(text: &str) -> Vec<String> {
    let links = text.match_indices("](").filter(|(at, _)| !text[..*at].ends_with('\\'));
    links.filter_map(|(at, _)| text[at + 2..].split(')').next().map(str::to_owned)).collect()
}
