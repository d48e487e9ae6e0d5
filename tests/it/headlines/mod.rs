//! Recomputes from the records the headline figures and picks of the committed pages and of the site,
//! what comparisons in turns decided, and the figures in sentences of README and of the page about
//! comparisons. Shares no code with the programs that render the pages.

mod comparisons;
mod in_turns;
mod pages;
mod picks;
mod records;
mod sentences;
mod tables;

use std::path::Path;
use std::sync::LazyLock;

use fixtures::files_under;
use tests::clone::repository;
use tests::program::{built, command, run};

use comparisons::Row;
use pages::Page;
use records::Records;
use tables::Audit;

static RECORDS: LazyLock<Records> = LazyLock::new(|| Records::read(&repository()));

static PICKS: LazyLock<Vec<picks::Pick<'static>>> = LazyLock::new(|| picks::picks(&RECORDS));

/// Page about comparisons, some of whose sentences have figures of records.
const METHOD: &str = "docs/method/comparisons.md";

/// Committed page: its path in the repository, and its text.
type Text = (String, String);

/// Returns the committed pages that state figures.
fn committed() -> Vec<Text> {
    let root = repository();
    let mut files = files_under(&root.join("results/pages"));
    files.extend(["README.md", "results/README.md", METHOD].map(|name| root.join(name)));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    files.into_iter().map(|path| read(&root, &path)).collect()
}

fn read(root: &Path, path: &Path) -> Text {
    let text = std::fs::read_to_string(path).expect("readable");
    (path.strip_prefix(root).expect("below the root").display().to_string(), text)
}

fn page(address: &str, text: &str) -> Page {
    if address.ends_with(".html") { pages::html(text) } else { pages::markdown(text) }
}

/// Returns the rows of all comparisons, whose verdicts other pages repeat in a sentence.
fn rows(texts: &[Text]) -> Vec<Row> {
    let mut audit = Audit::default();
    let of = texts
        .iter()
        .map(|(path, text)| comparisons::check(&RECORDS, &page(path, text), path, &mut audit));
    of.collect::<Vec<_>>().concat()
}

/// Checks everything that a page states.
fn audited((path, text): &Text, rows: &[Row]) -> Audit {
    let mut audit = Audit { page: path.clone(), ..Audit::default() };
    let read = page(path, text);
    tables::check(&RECORDS, &read, path, &mut audit);
    picks::check(&PICKS, &read, path, &mut audit);
    comparisons::check(&RECORDS, &read, path, &mut audit);
    comparisons::sentences(rows, &read, path, &mut audit);
    if path == "README.md" {
        tables::landing(&RECORDS, &read, text, &mut audit);
        sentences::landing(&RECORDS, rows, text, &mut audit);
    }
    if path == METHOD {
        sentences::method(&RECORDS, rows, text, &mut audit);
    }
    audit
}

/// Checks all pages; fails with every difference.
fn hold(texts: &[Text], rows: &[Row]) {
    let audits: Vec<Audit> = texts.iter().map(|text| audited(text, rows)).collect();
    let checked: usize = audits.iter().map(|audit| audit.checked).sum();
    let findings: Vec<String> =
        audits.iter().flat_map(|audit| &audit.findings).map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} of {checked}:\n{}", findings.len(), findings.join("\n"));
    println!("{checked} figures of {} pages are those of the records", texts.len());
}

#[test]
fn headline_figures_of_committed_pages_are_those_of_the_records() {
    let texts = committed();
    hold(&texts, &rows(&texts));
}

#[test]
fn extra_headline_figures_of_the_site_are_those_of_the_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("site");
    let words = ["build", "--out", out.to_str().expect("a path that is text")];
    run(&mut command(&built("redline-site"), &repository(), &words)).expect_code(0);
    let mut files = files_under(&out);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "html"));
    // The page of a single run has no figure that is selected or summarized.
    files.retain(|path| !path.starts_with(out.join("run")));
    let texts: Vec<Text> = files.iter().map(|path| read(&out, path)).collect();
    let rows = rows(&committed());
    for kind in ["index.html", "pick/", "r/", "m/", "diff/"] {
        let mut own = texts.iter().filter(|(path, _)| path.starts_with(kind));
        assert!(own.any(|text| audited(text, &rows).checked > 0), "no figure under {kind}");
    }
    hold(&texts, &rows);
}

/// Returns `text` with the last digit of the `place`-th number after `start` changed.
fn with_another_digit(text: &str, start: &str) -> String {
    let from = text.find(start).unwrap_or_else(|| panic!("`{start}` is not on the page"));
    let end = from + start.len();
    let digits = text[end..].find(|c: char| c.is_ascii_digit()).expect("a number") + end;
    let last = text[digits..].find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    let last = digits + last.expect("the number ends") - 1;
    // A zero at the end may be rounded away, so the digit before it is changed.
    let last =
        text[digits..=last].rfind(|c: char| ('1'..='9').contains(&c)).expect("a digit") + digits;
    let other = if &text[last..=last] == "9" { "8" } else { "9" };
    format!("{}{other}{}", &text[..last], &text[last + 1..])
}

/// What stands before figures in the sentences of the landing page.
const LANDING: [&str; 10] = [
    "their range, ",
    "sent at once, ",
    "It has ",
    "(95 % interval ",
    "Of the ",
    "none worse; ",
    "v0.11.0 reaches [",
    "for four users: ",
    "output tokens/s, and ",
    "by those of that day ",
];

#[test]
fn one_changed_digit_on_a_page_is_one_finding() {
    let texts = committed();
    let rows = rows(&texts);
    let mut tried = 0;
    let mut plant = |path: &dyn Fn(&str) -> bool, start: &str| {
        let own = |(name, text): &&Text| path(name) && text.contains(start);
        let (name, text) = texts.iter().find(own).expect("a page of each kind");
        let clean = audited(&(name.clone(), text.clone()), &rows);
        assert!(clean.checked > 0, "nothing is checked on {name}");
        let found = audited(&(name.clone(), with_another_digit(text, start)), &rows);
        let new: Vec<_> =
            found.findings.iter().filter(|one| !clean.findings.contains(one)).collect();
        assert_eq!(new.len(), 1, "{name} after `{start}`: {new:?}");
        tried += 1;
    };
    let is_comparison = |path: &str| path.contains("..");
    let is_release = |path: &str| tables::release_of(path).is_some();
    let is_pick = |path: &str| path.contains("/picks/");
    plant(&is_release, " | sharegpt-lite@1 | 13 | ");
    plant(&is_release, " | balanced-lite@1 | ");
    plant(&is_release, "Output tokens up 121 to ");
    plant(&is_comparison, "| sharegpt-lite@1 | Output tokens /s | ");
    plant(&is_comparison, "| ladder-lite-c1@1 | TTFT p50 ms | 81.1 ±13 % | ");
    plant(&is_comparison, "−62.9 % | ");
    plant(&is_comparison, "| 5 of 7 scenarios together | Output tokens /s | - | - | ");
    plant(
        &is_comparison,
        "| thinking-lite@1 | Output tokens /s | 879 ±5.2 % | 905 ±5.8 % | +5.0 % | ",
    );
    plant(&is_comparison, "not worse (in turns, decided by ");
    plant(&is_pick, "**: ");
    plant(&is_pick, "TTFT p50 ");
    plant(&is_pick, "median of ");
    plant(&is_pick, "Next engine: ");
    plant(&|path| path == "results/README.md", "/cpu-amd-epyc-f26m2s1-2c.md) | ");
    plant(&|path| path == "results/README.md", "runs that alternated (95 %: ");
    plant(
        &|path| path == "results/pages/README.md",
        "| smollm2-135m-instruct-q4_1 | cpu-int8-tp1 | ",
    );
    plant(
        &|path| path.contains("/side-by-side/smollm2"),
        "(../../../pages/redline/v0.11.0/cpu-amd-epyc-f26m2s1-2c.md) | ",
    );
    plant(&|path| path == "README.md", "| sharegpt-lite@1 | ");
    plant(&|path| path == "README.md", "in each of seven scenarios: ");
    plant(&|path| path == "README.md", "runs that alternated on this machine: ");
    for start in LANDING {
        plant(&|path| path == "README.md", start);
    }
    plant(&|path| path == METHOD, "that gave between ");
    plant(&|path| path == METHOD, "it was +");
    assert_eq!(tried, 22 + LANDING.len());
}
