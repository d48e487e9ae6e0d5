//! The field's words: names that the project gave up, and the table of ARCHITECTURE.md that leads
//! from a term of vLLM to the file that implements it.

use std::collections::BTreeSet;

use super::source::code_lines;
use super::{File, Finding};

/// Words that no item and no source file is named by, each with the field's word for it.
///
/// The folder limits a word that is wrong in one package only. Names that a record or a command line
/// has are no items, and stay.
const REPLACED: &[(&str, &str, &str)] = &[
    ("engine", "draw", "sample"),
    ("engine", "drawn", "sampled"),
    ("engine", "flight", "step in flight: `StepsInFlight`"),
    ("engine", "flights", "steps in flight"),
    ("engine", "land", "complete"),
    ("engine", "landed", "completed"),
    ("engine", "landing", "completion"),
    ("engine", "product", "matmul"),
    ("engine", "products", "matmul"),
    ("engine", "segment", "scheduled sequence"),
    ("engine", "segments", "scheduled sequences"),
    ("engine", "rehearse", "profile run, warm-up"),
    ("engine", "soften", "softmax"),
    ("engine", "turns", "cos/sin table"),
    ("engine", "weigh", "multiply by V"),
    ("suite", "dialect", "API format"),
    ("suite", "dialects", "API formats"),
    ("suite", "emitter", "mock server"),
    ("suite", "looks", "polls, samples"),
    ("suite", "pack", "dataset, sampler"),
    ("campaign", "arm", "variant"),
    ("campaign", "launch", "start"),
    ("campaign", "looks", "polls, samples"),
    ("campaign", "overlay", "staged results"),
    ("campaign", "side", "variant"),
    ("campaign", "sides", "variants"),
    ("campaign", "slot", "planned run"),
    ("campaign", "slots", "planned runs"),
    ("registry", "overlay", "staged results"),
    ("", "asked", "request"),
    ("", "beside", "side by side"),
    ("", "claimed", "published elsewhere"),
    ("", "desk", "name what it holds"),
    ("", "ladder", "concurrency sweep"),
    ("", "rung", "concurrency level"),
    ("", "rungs", "concurrency levels"),
    ("", "tell", "report, print, log"),
    ("", "tells", "reports, prints, logs"),
    ("", "told", "reported"),
];

/// Names with a replaced word that are still in each package. The numbers may only shrink.
const REMAINING: &[(&str, usize)] = &[
    ("engine", 89),
    ("judge", 4),
    ("reports", 2),
    ("schema", 1),
    ("site", 8),
    ("suite", 38),
    ("tests", 1),
];

/// The document and the heading of the table of terms.
const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "| vLLM's term |";

/// Files that a search may list before the one that implements the term.
const SEARCHED: usize = 3;

/// Reports items and files with a replaced name, and terms of ARCHITECTURE.md that a search does not
/// lead to.
pub fn check(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.is_rust() && !file.under("xtask/src/tidy"));
    let names: Vec<Finding> = sources.flat_map(check_names).collect();
    let mut findings: Vec<Finding> = Vec::new();
    for package in packages(&names) {
        let of_package: Vec<&Finding> =
            names.iter().filter(|finding| finding.path.starts_with(package)).collect();
        let remaining = REMAINING.iter().find(|(name, _)| *name == package).map_or(0, |(_, n)| *n);
        if of_package.len() > remaining {
            findings.extend(of_package.into_iter().cloned());
        }
    }
    if let Some(document) = files.iter().find(|file| file.path.ends_with(DOCUMENT)) {
        findings.extend(check_terms(document, files));
    }
    findings
}

/// The top-level folders of the findings.
fn packages(names: &[Finding]) -> BTreeSet<&str> {
    names.iter().filter_map(|finding| finding.path.iter().next()?.to_str()).collect()
}

fn check_names(file: &File) -> Vec<Finding> {
    let replaced: Vec<_> = REPLACED.iter().filter(|(folder, ..)| file.under(folder)).collect();
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let lines = code_lines(file.text.as_deref().unwrap_or_default());
    let items = lines.filter_map(|(line, code)| Some((line, item(code)?)));
    let mut findings = Vec::new();
    for (line, name) in [(0, &*stem)].into_iter().chain(items) {
        for (_, word, instead) in &replaced {
            if words(name).any(|part| part == *word) {
                let message = format!("`{name}`: instead of `{word}` the field says {instead}");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// The name of the function, type, module or constant that a line defines.
fn item(code: &str) -> Option<&str> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "mod", "const", "static", "type"];
    const BEFORE: [&str; 5] = ["pub", "async", "unsafe", "const", "extern"];
    let mut parts = code
        .split_whitespace()
        .skip_while(|part| BEFORE.contains(part) && *part != "const" || part.starts_with("pub("));
    let mut kind = parts.next()?;
    let mut name = parts.next()?;
    while kind == "const" && KINDS.contains(&name) || BEFORE.contains(&kind) && kind != "const" {
        (kind, name) = (name, parts.next()?);
    }
    if !KINDS.contains(&kind) {
        return None;
    }
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
    // Tests are claims in words, and no names of the code.
    let is_claim = kind == "fn" && name[..end].matches('_').count() > 3;
    (end > 0 && !is_claim).then(|| &name[..end])
}

/// The words of a name in snake or camel case, in lower case.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && !before.is_uppercase()) {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.into_iter().filter(|word| !word.is_empty())
}

/// Rows `| term | \`file\` |` whose file does not name the term in its heading or in an item, or that
/// a search for the term lists too late.
fn check_terms(document: &File, files: &[File]) -> Vec<Finding> {
    let text = document.text.as_deref().unwrap_or_default();
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with(HEADING)).skip(2);
    let mut findings = Vec::new();
    for (index, line) in lines.take_while(|(_, line)| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (Some(term), Some(path)) = (cells.next(), cells.next()) else { continue };
        let path = path.trim_matches('`');
        if let Some(problem) = missing(term, path, files) {
            findings.push(document.finding(index + 1, problem));
        }
    }
    findings
}

/// The reason why a search for `term` does not lead to `path`.
fn missing(term: &str, path: &str, files: &[File]) -> Option<String> {
    let term = term.to_lowercase();
    let is_source = |file: &&File| {
        file.path.extension().is_some_and(|e| e == "rs" || e == "cu" || e == "cuh" || e == "md")
            && !file.under("xtask/src/tidy")
            && !file.under("results")
            && !file.path.ends_with(DOCUMENT)
    };
    let has =
        |file: &&File| file.text.as_deref().is_some_and(|text| text.to_lowercase().contains(&term));
    let found: Vec<&File> = files.iter().filter(is_source).filter(has).collect();
    let Some(place) = found.iter().position(|file| file.path.to_string_lossy() == path) else {
        return Some(format!("`{path}` does not contain `{term}`"));
    };
    if place >= SEARCHED {
        let first: Vec<_> =
            found[..SEARCHED].iter().map(|f| f.path.display().to_string()).collect();
        return Some(format!(
            "`rg -l --sort path '{term}'` lists {} before `{path}`",
            first.join(", ")
        ));
    }
    let text = found[place].text.as_deref().unwrap_or_default();
    let joined = term.replace([' ', '-'], "_");
    let in_heading = text
        .lines()
        .take_while(|line| line.starts_with("//"))
        .any(|line| line.to_lowercase().contains(&term));
    let in_item = code_lines(text)
        .filter_map(|(_, code)| item(code))
        .any(|name| words(name).collect::<Vec<_>>().join("_").contains(&joined));
    let in_title = path.ends_with(".md")
        && text.lines().any(|line| line.starts_with('#') && line.to_lowercase().contains(&term));
    (!in_heading && !in_item && !in_title).then(|| {
        format!("`{path}` mentions `{term}`, but neither its heading nor an item names it")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{file, messages};
    use super::*;

    #[test]
    fn a_replaced_name_is_found_in_its_folder_alone() {
        let text = "//! x\npub(super) struct StepFlight {\n    flight: u8,\n}\n// fn flight()\n";
        assert_eq!(
            messages(&check_names(&file("engine/src/a.rs", text))),
            [
                "engine/src/a.rs:2: `StepFlight`: instead of `flight` the field says step in flight: \
              `StepsInFlight`"
            ]
        );
        assert_eq!(check_names(&file("site/src/a.rs", text)), []);
        assert_eq!(check(&[file("bench/src/told.rs", "//! x\n")]).len(), 1);
    }

    #[test]
    fn items_are_seen_behind_every_visibility_and_claims_are_none() {
        for (code, name) in [
            ("pub const fn tell(x: u8) {", Some("tell")),
            ("pub(crate) async unsafe fn tell<T>() {", Some("tell")),
            ("const TOLD: u8 = 1;", Some("TOLD")),
            ("fn what_was_told_is_kept_for_ever() {", None),
            ("let told = 1;", None),
        ] {
            assert_eq!(item(code), name, "{code}");
        }
        assert_eq!(words("HTTPServer_told2Me").collect::<Vec<_>>(), ["httpserver", "told2", "me"]);
    }

    #[test]
    fn a_term_leads_to_the_file_whose_heading_or_item_names_it() {
        let table = "| vLLM's term | file |\n|---|---|\n| paged attention | `e/a.rs` |\n\
                     | top-p | `e/b.rs` |\n| prefix cache | `e/c.rs` |\n";
        let files = [
            file("ARCHITECTURE.md", table),
            file("e/a.rs", "//! Paged attention over KV pages.\n"),
            file("e/b.rs", "//! x\nfn f() {} // top-p\n"),
            file("e/c.rs", "//! x\nstruct Cache;\n"),
        ];
        assert_eq!(
            messages(&check(&files)),
            [
                "ARCHITECTURE.md:4: `e/b.rs` mentions `top-p`, but neither its heading nor an item \
                 names it",
                "ARCHITECTURE.md:5: `e/c.rs` does not contain `prefix cache`"
            ]
        );
    }
}
