//! The field's words: names that the project gave up, and the table of ARCHITECTURE.md that leads
//! from a term of vLLM to the file that implements it.

use super::source::code_lines;
use super::{File, Finding};

/// Words that names of items and of source files must not contain: the folder to which the ban
/// applies (empty for the whole tree), the banned words, and the word to use instead.
///
/// The folder limits words that are wrong in one package only. Names that a record or a command line
/// has are no items, and stay.
const REPLACED: &[(&str, &str, &str)] = &[
    ("engine", "draw drawn", "sample"),
    ("engine", "flight flights", "step in flight: `StepsInFlight`"),
    ("engine", "land landed landing", "complete"),
    ("engine", "product products", "matmul"),
    ("engine", "segment segments", "scheduled sequence"),
    ("engine", "rehearse", "profile run, warm-up"),
    ("engine", "soften", "softmax"),
    ("engine", "turns", "cos/sin table"),
    ("engine", "weigh", "multiply by V"),
    ("suite", "dialect dialects", "API format"),
    ("suite", "emitter", "mock server"),
    ("suite", "looks", "polls, samples"),
    ("suite", "pack", "dataset, sampler"),
    ("bench", "arm side sides", "variant"),
    ("bench", "box", "bundle"),
    ("bench", "looks", "polls, samples"),
    ("bench", "proof", "GPU validation"),
    ("campaign", "arm side sides", "variant"),
    ("campaign", "launch", "start"),
    ("campaign", "looks", "polls, samples"),
    ("campaign", "overlay", "staged results"),
    ("campaign", "slot slots", "planned run"),
    ("registry", "overlay", "staged results"),
    ("", "asked", "request"),
    ("", "beside", "side by side"),
    ("", "claimed", "published elsewhere"),
    ("", "desk", "name what it holds"),
    ("", "ladder", "concurrency sweep"),
    ("", "rung rungs", "concurrency level"),
    ("", "tell tells told", "report, print, log"),
];

/// Path of the document with the table that leads from vLLM's terms to files.
const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "| vLLM's term |";

/// Number of files from the start of a search's results among which must be the file that
/// implements the term.
const SEARCHED: usize = 3;

/// Reports items and files whose name has a word for which the field has another, and rows of the
/// table in ARCHITECTURE.md whose words do not lead a search to the row's file.
pub fn check(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| file.is_rust() && !file.under("xtask/src/tidy"));
    let mut findings: Vec<Finding> = sources.flat_map(check_names).collect();
    if let Some(document) = files.iter().find(|file| file.path.ends_with(DOCUMENT)) {
        findings.extend(check_terms(document, files));
    }
    findings
}

fn check_names(file: &File) -> Vec<Finding> {
    let replaced: Vec<_> = REPLACED.iter().filter(|(folder, ..)| file.under(folder)).collect();
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    let lines = code_lines(file.text.as_deref().unwrap_or_default());
    let items = lines.filter_map(|(line, code)| Some((line, item(code)?)));
    let mut findings = Vec::new();
    for (line, name) in [(0, &*stem)].into_iter().chain(items) {
        let parts = words(name);
        for (_, wrong, instead) in &replaced {
            if let Some(word) = wrong.split(' ').find(|word| parts.iter().any(|part| part == word))
            {
                let message = format!("`{name}`: instead of `{word}` the field says {instead}");
                findings.push(file.finding(line, message));
            }
        }
    }
    findings
}

/// Returns the name of the function, type, module or constant that a line of code defines; `None`
/// for other lines, and for functions with more than four words in their name, which are tests.
fn item(code: &str) -> Option<&str> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "mod", "const", "static", "type"];
    const BEFORE: [&str; 4] = ["pub", "async", "unsafe", "extern"];
    let is_before = |part: &&str| BEFORE.contains(part) || part.starts_with("pub(");
    let mut parts = code.split_whitespace().filter(|part| !is_before(part));
    let (mut kind, mut name) = (parts.next()?, parts.next()?);
    // Such as `const fn`.
    if kind == "const" && KINDS.contains(&name) {
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

/// Returns the words of a name in snake or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut snake = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c.is_uppercase() && !before.is_uppercase() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
        before = c;
    }
    snake.split('_').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns a finding for each row `| vLLM's term | words to search for | \`file\` |` whose file
/// does not name the words in its heading or in an item, or that a search for the words lists too
/// late.
fn check_terms(document: &File, files: &[File]) -> Vec<Finding> {
    let text = document.text.as_deref().unwrap_or_default();
    let lines = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with(HEADING)).skip(2);
    let mut findings = Vec::new();
    for (index, line) in lines.take_while(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [_, words, path] = cells[..] else { continue };
        let problem = missing(words, path.trim_matches('`'), files);
        findings.extend(problem.map(|problem| document.finding(index + 1, problem)));
    }
    findings
}

/// Returns the reason why a search for `term` does not lead to the file `path`, or `None`.
fn missing(term: &str, path: &str, files: &[File]) -> Option<String> {
    // ripgrep skips hidden files, and the search is case-sensitive, as ripgrep's is.
    let has = |file: &&File| {
        let is_hidden = file.path.iter().any(|part| part.as_encoded_bytes().starts_with(b"."));
        !is_hidden && file.text.as_deref().is_some_and(|text| text.contains(term))
    };
    let found: Vec<&File> = files.iter().filter(has).collect();
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
    let joined = words(&term.replace([' ', '-'], "_")).join("_");
    let in_heading =
        text.lines().take_while(|line| line.starts_with("//")).any(|line| line.contains(term));
    let in_item = code_lines(text)
        .filter_map(|(_, code)| item(code))
        .any(|name| words(name).join("_").contains(&joined));
    let in_title = path.ends_with(".md")
        && text.lines().any(|line| line.starts_with('#') && line.contains(term));
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
        assert_eq!(words("HTTPServer_told2Me"), ["httpserver", "told2", "me"]);
    }

    #[test]
    fn a_term_leads_to_the_file_whose_heading_or_item_names_it() {
        let table = "| vLLM's term | search for | file |\n|---|---|---|\n\
                     | PagedAttention | paged attention | `e/a.rs` |\n\
                     | sampler | top-p | `e/b.rs` |\n\
                     | prefix caching | prefix cache | `e/c.rs` |\n";
        let files = [
            file("ARCHITECTURE.md", table),
            file("e/a.rs", "//! Kernels of paged attention.\n"),
            file("e/b.rs", "//! x\nfn f() {} // top-p\n"),
            file("e/c.rs", "//! Prefix cache.\nstruct Cache;\n"),
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
