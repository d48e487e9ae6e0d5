//! What pages promise: their text is that of the stored cases, they are whole, their links lead
//! somewhere, and nothing that a record says becomes markup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use registry::Registry;
use registry::store::Retraction;
use schema::kernel::{KernelBench, KernelRecord};
use schema::run::{RunRecord, Status, ValidityVerdict};
use site::catalog::{Catalog, cells};
use site::template::Renderer;
use site::view::release::ReleaseView;
use site::{build, pages, sample, text};

/// The largest page that a phone should have to load.
const PAGE_BYTES_MAX: usize = 150_000;

/// One model, two scenarios: one whole with a launch that failed, one with a single launch.
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

/// Records whose every text is an attack, and whose figures are extreme.
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
            metrics.requests_per_s = Some(1e-12);
        }
        if index == 2 {
            record.status = Status::Failed;
            record.metrics = None;
        }
        records.push(record);
    }
    sample::registry(records)
}

/// The whole made-up registry, with a kernels record.
fn whole() -> Registry {
    let records = sample::records();
    let first = &records[0];
    let kernels = KernelRecord {
        schema: schema::kernel::SCHEMA.into(),
        id: first.id.clone(),
        record_sha256: "k".into(),
        engine: first.engine.clone(),
        hardware: first.hardware.clone(),
        benches: vec![KernelBench {
            op: "matmul_int8".into(),
            shape: "T512_K576_N1536".into(),
            dtype: "q4_1".into(),
            isa: "avx512".into(),
            device: "cpu".into(),
            median_ns: 812_345.6,
            mad_ns: 1_234.5,
            samples: 40,
            bytes: Some(1 << 20),
            flops: None,
            limit_share: Some(0.614),
        }],
        ..KernelRecord::default()
    };
    let mut registry = sample::registry(records);
    let path = "kernels/redline/v0.9.1/hw/x.json".to_owned();
    registry.kernels.push(registry::Stored { path, root: 0, record: kernels });
    registry
}

/// Builds the site of `registry` with a file behind each record, and gives its folder.
fn built(registry: &Registry) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::of(registry);
    let records = folder.path().join("results");
    for (path, _) in catalog.files() {
        let file = records.join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
        fs::write(file, "{}\n").expect("a file");
    }
    let out = folder.path().join("site");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&catalog, &[&records], &renderer, &out).expect("the site is built");
    (folder, out)
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
    let (_, page) = pages.iter().find(|(path, _)| path.starts_with("pages/")).expect("a page");
    expect_file!["../cases/release.md"].assert_eq(page);
    let (key, runs) = catalog.releases().into_iter().next().expect("a release");
    let view = ReleaseView::new(&key, &runs, Vec::new());
    expect_file!["../cases/release.txt"].assert_eq(&text::release(&view));
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
        let files = files(&out);
        let mut pages = 0;
        for page in with_extension(&files, "html") {
            let html = fs::read_to_string(page).expect("a page");
            let shown = page.strip_prefix(&out).expect("below the site").display().to_string();
            well_formed(&html).unwrap_or_else(|fault| panic!("{name}: {shown}: {fault}"));
            assert!(html.len() < PAGE_BYTES_MAX, "{name}: {shown} has {} bytes", html.len());
            for link in attributes(&html, "href").chain(attributes(&html, "src")) {
                assert_leads(&out, page, &link, &format!("{name}: {shown}"));
            }
            pages += 1;
        }
        for page in with_extension(&files, "md") {
            let text = fs::read_to_string(page).expect("a page");
            let shown = page.strip_prefix(&out).expect("below the site").display().to_string();
            for link in markdown_links(&without_code(&text)) {
                assert_leads(&out, page, &link, &format!("{name}: {shown}"));
            }
        }
        assert!(pages >= 3, "{name}: overview, method and data are always there");
    }
}

#[test]
fn nothing_that_a_record_says_becomes_markup() {
    let (_guard, out) = built(&hostile());
    let files = files(&out);
    for page in with_extension(&files, "html").chain(with_extension(&files, "md")) {
        let text = fs::read_to_string(page).expect("a page");
        let html = page.extension().is_some_and(|extension| extension == "html");
        let prose = if html { text.clone() } else { without_code(&text) };
        for bad in ["<script>", "<img", "**bold**"] {
            assert!(
                html && bad.starts_with('*') || !prose.contains(bad),
                "{} has `{bad}`",
                page.display()
            );
        }
        for bad in ['\u{202e}', '\u{1b}', '\u{0}'] {
            assert!(!text.contains(bad), "{} has {bad:?}", page.display());
        }
        assert!(!text.contains(&"x".repeat(1_000)), "{} has it all", page.display());
    }
}

/// Markdown without what stands in code, where nothing is markup.
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

/// Where the code that was opened by `run` back-ticks is over.
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
fn a_cell_never_mixes_whole_runs_with_partial_ones() {
    let registry = sample::registry(sample::records());
    let catalog = Catalog::of(&registry);
    let runs: Vec<_> = catalog.runs.iter().collect();
    let partial = |run: &&site::catalog::Run| run.record.status == Status::Partial;
    let mut seen = 0;
    for cell in cells(&runs) {
        if cell.runs.iter().any(partial) {
            seen += 1;
            assert!(cell.counted().all(|run| run.usable), "{:?}", cell.key);
        }
    }
    assert!(seen > 0, "the made-up registry has a partial run");
}

#[test]
fn a_site_takes_the_place_of_the_one_before() {
    let registry = small();
    let (_guard, out) = built(&registry);
    fs::write(out.join("left-over.html"), "old").expect("a file");
    let catalog = Catalog::of(&registry);
    let records = out.with_file_name("results");
    let renderer = Renderer::new().expect("templates compile");
    build::build(&catalog, &[&records], &renderer, &out).expect("the site is built");
    assert!(!out.join("left-over.html").exists());
    let beside = fs::read_dir(out.parent().expect("a parent")).expect("a folder");
    let mut names: Vec<_> = beside.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["results", "site"], "nothing is left beside the site");
}

/// The faults that a parser of HTML would mend in silence: tags that do not pair, attributes
/// without quotes, ids that are there twice.
fn well_formed(html: &str) -> Result<(), String> {
    const VOID: [&str; 4] = ["meta", "link", "br", "img"];
    let mut open: Vec<String> = Vec::new();
    let mut ids = BTreeSet::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').ok_or("a tag is not closed")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.last().map(String::as_str) != Some(name) {
                return Err(format!("`</{name}>` closes {:?}", open.last()));
            }
            open.pop();
            continue;
        }
        let name: String = tag.chars().take_while(char::is_ascii_alphanumeric).collect();
        let attributes = &tag[name.len()..];
        if name.is_empty() || !attributes.matches('"').count().is_multiple_of(2) {
            return Err(format!("`<{tag}>` is no tag"));
        }
        for id in self::attributes(&format!("<{tag}>"), "id") {
            if !ids.insert(id.clone()) {
                return Err(format!("the id `{id}` is there twice"));
            }
        }
        if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are not closed")) }
}

fn attributes(html: &str, name: &str) -> impl Iterator<Item = String> {
    let opening = format!(" {name}=\"");
    let values: Vec<String> = html
        .match_indices(&opening)
        .filter_map(|(at, _)| html[at + opening.len()..].split('"').next().map(str::to_owned))
        .collect();
    values.into_iter()
}

fn markdown_links(text: &str) -> Vec<String> {
    let links = text.match_indices("](").filter(|(at, _)| !text[..*at].ends_with('\\'));
    links.filter_map(|(at, _)| text[at + 2..].split(')').next().map(str::to_owned)).collect()
}

/// `link` on `page` is a file of the site, with the anchor where it names one.
fn assert_leads(out: &Path, page: &Path, link: &str, shown: &str) {
    // The icon that is none, and a chart's figures.
    if link == "data:," || link.starts_with("data:text/csv;charset=utf-8,") {
        return;
    }
    assert!(!link.contains("://") && !link.starts_with("//"), "{shown} asks for `{link}`");
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, id)| (path, Some(id)));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        let path = path.replace("%20", " ");
        page.parent().expect("a folder").join(path)
    };
    let file = file.canonicalize().unwrap_or_else(|_| panic!("{shown} points to `{link}`"));
    assert!(file.starts_with(out.canonicalize().expect("a site")), "{shown}: `{link}` leaves");
    if let Some(anchor) = anchor {
        let html = fs::read_to_string(&file).expect("a page");
        let known = attributes(&html, "id").any(|id| id == anchor);
        assert!(known, "{shown}: `{link}` has no such place");
    }
}
