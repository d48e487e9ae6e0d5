//! Storage rules over one file: bytes go in, a parsed record, its facts and findings come out. Pure,
//! so that an index may store facts and findings. No files, no git.

use std::fmt::Display;

use schema::campaign::{self, CampaignRecord};
use schema::canonical::record_sha256_of;
use schema::event::{self, Event};
use schema::id::{is_ulid, ulid_unix_ms};
use schema::kernel::{self, KernelRecord};
use schema::path::{self, PathError};
use schema::run::{self, Check, EngineFacts, Kind, RunRecord};
use schema::untrusted::shortened;
use schema::version::is_later;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::layout::{FileKind, in_record_folder};
use judge::facts::{RunFacts, run_facts};
use judge::finding::{
    EVENT, FINDINGS, Finding, HASH, ID, LATER, LAYOUT, PATH, PRIVATE, READ, RELEASE, SCHEMA,
    StorageRule,
};

/// Limit on the size of a record or page, in bytes; a larger file is a breach and is not parsed. A
/// run is expected to take about 25 KB.
pub const RECORD_BYTES_MAX: usize = 4 << 20;

/// A parsed file of the registry, by kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed {
    /// Parsed run record, imported or not.
    Run(Box<RunRecord>),
    /// Parsed kernel record: benchmarks of an engine's kernels on a machine.
    Kernels(Box<KernelRecord>),
    /// Parsed campaign record.
    Campaign(CampaignRecord),
    /// Parsed event record.
    Event(Event),
    /// Page or `README.md`: rendered from the records, so it is not parsed.
    Derived,
}

impl Parsed {
    /// Returns the id of the parsed record; `None` for a page or `README.md`.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Run(record) => Some(&record.id),
            Self::Kernels(record) => Some(&record.id),
            Self::Campaign(record) => Some(&record.id),
            Self::Event(event) => Some(&event.id),
            Self::Derived => None,
        }
    }
}

/// Facts about a file of the registry that could be read: its kind, its record's id, and, for a
/// run, what checks and lists need of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Kind of the file: `runs`, `imports`, `kernels`, `campaigns`, `events`, or `pages` (also for
    /// `README.md`).
    pub kind: String,
    /// Id of the record in the file; `None` for a page or `README.md`.
    pub id: Option<String>,
    /// Facts about the run in the file, imported or not; `None` for other kinds of files.
    pub run: Option<RunFacts>,
}

/// Parses and verifies the file at `path` below `results/`. Returns its facts (`None` if it cannot
/// be read as a record or page) and every finding about it.
pub fn examine(path: &str, bytes: &[u8]) -> (Option<Facts>, Vec<Finding>) {
    match verified(path, bytes) {
        Ok((parsed, findings)) => {
            let (kind, id) = (kind_name(&parsed).to_owned(), parsed.id().map(str::to_owned));
            let run =
                if let Parsed::Run(record) = &parsed { Some(run_facts(record)) } else { None };
            (Some(Facts { kind, id, run }), findings)
        }
        Err(finding) => (None, vec![finding]),
    }
}

fn kind_name(parsed: &Parsed) -> &'static str {
    match parsed {
        Parsed::Run(record) if record.kind == Kind::Imported => "imports",
        Parsed::Run(_) => "runs",
        Parsed::Kernels(_) => "kernels",
        Parsed::Campaign(_) => "campaigns",
        Parsed::Event(_) => "events",
        Parsed::Derived => "pages",
    }
}

/// Parses the file at `path` below `results/` by rules S01, S02, S09 and S12.
///
/// # Errors
///
/// Returns the finding that says why the file cannot be read as a record or page.
pub fn read(path: &str, bytes: &[u8]) -> Result<Parsed, Finding> {
    parse(path, bytes).map(|(parsed, _)| parsed)
}

/// Parses the file at `path` as [`read`] does, and checks it by rules S03, S04, S05, S07, S08, S10,
/// S11 and S12, an event by S02, and the notes of an imported record by S01.
///
/// # Errors
///
/// Returns the finding that says why the file cannot be read as a record or page.
pub fn verified(path: &str, bytes: &[u8]) -> Result<(Parsed, Vec<Finding>), Finding> {
    let (parsed, value) = parse(path, bytes)?;
    let findings = verify(path, value.as_ref(), &parsed);
    Ok((parsed, findings))
}

/// Parses the file at `path`, and also returns the JSON that the record was parsed from; `None` for
/// events and pages.
fn parse(path: &str, bytes: &[u8]) -> Result<(Parsed, Option<Value>), Finding> {
    let kind = FileKind::of(path);
    if kind == FileKind::Leftover {
        let remark = Finding::remark(LAYOUT, path, "left behind by a writer that was stopped");
        return Err(remark.with_hint("it is ignored; delete it"));
    }
    if kind == FileKind::Stray {
        let detail = "no record, page or README.md has this path";
        // Outside the folders of records, a stray file cannot be mistaken for a record.
        let breach = in_record_folder(path);
        return Err(Finding { breach, ..Finding::breach(LAYOUT, path, detail) });
    }
    if bytes.len() > RECORD_BYTES_MAX {
        let detail = format!("{} bytes, more than {RECORD_BYTES_MAX}", bytes.len());
        return Err(Finding::breach(READ, path, detail));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Finding::breach(READ, path, format!("not UTF-8: {error}")))?;
    match kind {
        FileKind::Run | FileKind::Import => json(path, text, run::SCHEMA, Parsed::Run),
        FileKind::Kernels => json(path, text, kernel::SCHEMA, Parsed::Kernels),
        FileKind::Campaign => json(path, text, campaign::SCHEMA, Parsed::Campaign),
        FileKind::Event => toml_event(path, text).map(|event| (Parsed::Event(event), None)),
        FileKind::Page | FileKind::Readme | FileKind::Leftover | FileKind::Stray => {
            Ok((Parsed::Derived, None))
        }
    }
}

fn json<T: DeserializeOwned>(
    path: &str,
    text: &str,
    schema: &str,
    parsed: fn(T) -> Parsed,
) -> Result<(Parsed, Option<Value>), Finding> {
    let unreadable = |error: serde_json::Error| {
        Finding::breach(READ, path, format!("not a `{schema}` record: {}", quoted(&error)))
    };
    let value: Value = serde_json::from_str(text).map_err(unreadable)?;
    // The schema comes before the fields, since a later version may lack or rename some.
    known_schema(path, value.get("schema").and_then(Value::as_str), schema)?;
    // Parsed from the text, not from the value: only that refuses a key that is given twice.
    Ok((parsed(serde_json::from_str(text).map_err(unreadable)?), Some(value)))
}

fn toml_event(path: &str, text: &str) -> Result<Event, Finding> {
    let found = event::schema_of(text);
    // Any other wrong schema is a finding of `verify`, together with the event's other mistakes.
    if found.as_deref().is_some_and(|found| is_later(found, event::SCHEMA)) {
        known_schema(path, found.as_deref(), event::SCHEMA)?;
    }
    event::parse(text)
        .map_err(|error| Finding::breach(READ, path, format!("not an event: {}", quoted(&error))))
}

/// Limit on the length in characters of an error that repeats parts of a file.
const QUOTED_CHARS_MAX: usize = 400;

/// Returns the text of an error in reading a file. It may repeat a text of the file, of any length.
fn quoted(error: &dyn Display) -> String {
    shortened(&error.to_string(), QUOTED_CHARS_MAX).into_owned()
}

fn known_schema(path: &str, found: Option<&str>, known: &str) -> Result<(), Finding> {
    let found = found.unwrap_or("none");
    if found == known {
        return Ok(());
    }
    let later = is_later(found, known);
    // The text comes from the file, and may have any length.
    let found = shortened(found, 40);
    let detail = format!("schema is `{found}`, this program reads `{known}`");
    Err(match later {
        true => Finding::breach(LATER, path, detail).with_hint(LATER_HINT),
        false => Finding::breach(SCHEMA, path, detail),
    })
}

const LATER_HINT: &str = "a later version of this program wrote it: use that one";

fn verify(path: &str, value: Option<&Value>, parsed: &Parsed) -> Vec<Finding> {
    let mut found: Vec<Finding> = value.and_then(|value| hash(path, value)).into_iter().collect();
    let place = match parsed {
        Parsed::Run(record) => Some(run_path(path, record)),
        Parsed::Kernels(record) => Some(path::of_kernels(record)),
        Parsed::Campaign(record) => Some(path::of_campaign(record)),
        Parsed::Event(event) => Some(path::of_event(&event.id)),
        Parsed::Derived => None,
    };
    found.extend(place.and_then(|place| key(path, &place)));
    match parsed {
        Parsed::Run(record) => {
            found.extend(findings(path, record));
            found.extend(release(path, &record.engine));
            found.extend(private(path, record));
            found.extend(notes(path, record));
        }
        Parsed::Kernels(record) => found.extend(release(path, &record.engine)),
        Parsed::Event(event) => {
            if event.schema != event::SCHEMA {
                let name = shortened(&event.schema, 40);
                let detail = format!("schema is `{name}`, not `{}`", event::SCHEMA);
                found.push(Finding::breach(SCHEMA, path, detail));
            }
            let problems = event.problems().into_iter();
            found.extend(problems.map(|problem| Finding::breach(EVENT, path, problem)));
        }
        Parsed::Campaign(_) | Parsed::Derived => {}
    }
    let imported = matches!(parsed, Parsed::Run(record) if record.kind == Kind::Imported);
    if let Some(id) = parsed.id().filter(|id| !imported && !is_ulid(id)) {
        let id: String = id.chars().take(40).collect();
        found.push(Finding::breach(ID, path, format!("id `{id}` is not a ULID")));
    }
    found
}

fn hash(path: &str, value: &Value) -> Option<Finding> {
    let stored = value.get("record_sha256").and_then(Value::as_str).unwrap_or_default();
    // The hash covers the JSON as it was read, with keys that this program does not know.
    let due = record_sha256_of(value);
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    (stored != due).then(|| {
        let detail =
            format!("record_sha256 is `{}`, the content gives `{}`", short(stored), short(&due));
        Finding::breach(HASH, path, detail).with_hint(
            "a record is never edited: restore it, or retract it by an event and measure again",
        )
    })
}

fn key(path: &str, due: &Result<String, PathError>) -> Option<Finding> {
    match due {
        Ok(due) if due == path => None,
        Ok(due) => Some(Finding::breach(PATH, path, format!("its own fields say `{due}`"))),
        Err(error) => Some(Finding::breach(PATH, path, error.to_string())),
    }
}

/// Returns the path at which a run's record belongs. The path of an imported record contains its
/// source and block number, which the record does not; they are taken from `path`.
fn run_path(path: &str, record: &RunRecord) -> Result<String, PathError> {
    if record.kind != Kind::Imported {
        return path::of_run(record);
    }
    let source = record.source.as_ref().ok_or(PathError::Unknown("source"))?;
    let digits = source.sha256.get(..8).ok_or(PathError::Unknown("source.sha256"))?;
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [_, place, _, block] => {
            Ok(format!("{}/{block}", path::of_report(place, digits, source.reader)))
        }
        _ => Ok(format!("{}/<block>.json", path::of_report("<source>", digits, source.reader))),
    }
}

fn findings(path: &str, record: &RunRecord) -> Option<Finding> {
    let rev = record.checks_rev;
    if rev > judge::CHECKS_REV {
        let detail =
            format!("judged by revision {rev} of the rules, known here: {}", judge::CHECKS_REV);
        return Some(Finding::breach(LATER, path, detail).with_hint(LATER_HINT));
    }
    // The rules are those of the record's own revision: a newer one must not make it unsound.
    let due = judge::findings_at(record, rev);
    let wrong = disagreement(&record.checks, &due)?;
    Some(Finding::breach(FINDINGS, path, wrong))
}

/// Returns a sentence about the first difference between stored and recomputed findings of a run;
/// `None` if they agree. The wording of a detail may change between versions, so only rule, level
/// and outcome are compared; the hash protects the words.
fn disagreement(stored: &[Check], due: &[Check]) -> Option<String> {
    let outcome = |check: &Check| (check.rule.clone(), check.level, check.ok);
    if stored.iter().map(outcome).eq(due.iter().map(outcome)) {
        return None;
    }
    let words = |check: Option<&Check>| match check {
        Some(check) if check.ok => "passed".to_owned(),
        Some(check) => format!("broken ({})", check.detail.as_deref().unwrap_or("no detail")),
        None => "absent".to_owned(),
    };
    let find = |among: &[Check], rule: &str| among.iter().find(|c| c.rule == rule).cloned();
    let rules = stored.iter().chain(due).map(|check| check.rule.as_str());
    let differ = rules.into_iter().find(|rule| {
        find(stored, rule).as_ref().map(outcome) != find(due, rule).as_ref().map(outcome)
    });
    Some(match differ {
        Some(rule) => format!(
            "{rule} is stored as {}, recomputed as {}",
            words(find(stored, rule).as_ref()),
            words(find(due, rule).as_ref())
        ),
        None => "the findings are repeated or out of order".to_owned(),
    })
}

fn release(path: &str, engine: &EngineFacts) -> Option<Finding> {
    let why = match engine.dirty {
        Some(true) => "the engine was built from a working tree with changes".to_owned(),
        _ if engine.release.ends_with("-dev") => format!("release is `{}`", engine.release),
        _ => return None,
    };
    let hint = "such records stay under target/; measure a release to record it";
    Some(Finding::breach(RELEASE, path, why).with_hint(hint))
}

/// Lower-case words that mark an environment variable as a secret when one of them is a whole word
/// of its name.
const SECRET_WORDS: &[&str] = &["token", "secret", "password", "key", "apikey", "credentials"];
/// Beginnings of file paths that identify a user or a machine, and so must not be in a record.
const PRIVATE_PLACES: &[&str] = &["/home/", "/Users/", "/root/", "/tmp/", "/mnt/", "/var/"];

fn private(path: &str, record: &RunRecord) -> Vec<Finding> {
    let server = record.server.as_ref();
    let argv = server.and_then(|server| server.argv.as_ref()).into_iter().flatten();
    let argv = argv.map(|text| ("server.argv".to_owned(), text.as_str()));
    let env = server.and_then(|server| server.env.as_ref()).into_iter().flatten();
    let secrets = env.clone().filter(|(name, value)| {
        let name = name.to_lowercase();
        // Whole words are compared, so that `TOKENIZERS_PARALLELISM` is not taken for a secret.
        let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
        // A value in braces is a placeholder for a secret that was removed.
        !value.is_empty() && !value.starts_with('{') && words.any(|w| SECRET_WORDS.contains(&w))
    });
    let mut found: Vec<Finding> = secrets
        .map(|(name, _)| Finding::breach(PRIVATE, path, format!("`server.env.{name}` is a secret")))
        .collect();
    let env = env.map(|(name, value)| (format!("server.env.{name}"), value.as_str()));
    let config = server.and_then(|server| server.config.as_ref()).into_iter().flatten();
    let config =
        config.filter_map(|(name, value)| Some((format!("server.config.{name}"), value.as_str()?)));
    let printed = record.source.as_ref().and_then(|source| source.printed.as_ref());
    let rows = printed.into_iter().flat_map(|p| p.settings.iter().chain(&p.log).chain(&p.rows));
    let rows = rows.map(|row| (format!("source.printed `{}`", row.label), row.text.as_str()));
    let notes = printed.into_iter().flat_map(|printed| &printed.notes);
    let notes = notes.flat_map(|note| {
        let links = note.links.iter().flat_map(|link| [&link.text, &link.url]);
        links.chain([&note.text]).chain(&note.section)
    });
    let notes = notes.map(|text| ("source.printed.notes".to_owned(), text.as_str()));
    for (field, text) in argv.chain(env).chain(config).chain(rows).chain(notes) {
        if PRIVATE_PLACES.iter().any(|place| text.contains(place)) {
            let detail = format!("`{field}` holds a path of the machine");
            found.push(Finding::breach(PRIVATE, path, detail));
        }
    }
    found
}

/// Returns the finding that the notes of an imported record do not have the form that its reader
/// gives them; `None` where they have it.
fn notes(path: &str, record: &RunRecord) -> Option<Finding> {
    let fault = record.source.as_ref()?.printed.as_ref()?.fault_in_notes()?;
    let finding = Finding::breach(READ, path, format!("`source.printed.notes` has {fault}"));
    Some(finding.with_hint("import the report again with this program"))
}

/// Largest time, in milliseconds, by which the clock of the machine that wrote a record may be
/// ahead: one day.
const AHEAD_MS_MAX: u64 = 24 * 3600 * 1_000;

/// Returns a remark on a ULID whose time is more than a day in the future: the writer's clock was
/// wrong, and the record sorts behind later ones. `None` for other ids and for text that is no
/// ULID. `unix_ms` is the current time in milliseconds since 1970.
pub fn from_the_future(path: &str, id: &str, unix_ms: u64) -> Option<Finding> {
    let made = ulid_unix_ms(id)?;
    (made > unix_ms.saturating_add(AHEAD_MS_MAX)).then(|| {
        let days = (made - unix_ms) / AHEAD_MS_MAX;
        let detail = format!("id `{id}` was made {days} days from now");
        Finding::remark(ID, path, detail).with_hint("set the clock of the machine that made it")
    })
}

/// Returns a breach of `rule` for each file whose id an earlier file under another path has
/// already. `files` are pairs of id and path.
pub fn repeated_ids<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)>,
    rule: StorageRule,
) -> Vec<Finding> {
    let mut first = std::collections::BTreeMap::new();
    let mut found = Vec::new();
    for (id, path) in files {
        match first.get(id) {
            None => drop(first.insert(id, path)),
            // A staged copy of a committed record has the same path and is no repetition.
            Some(other) if *other == path => {}
            Some(other) => {
                found.push(Finding::breach(rule, path, format!("id `{id}` belongs to `{other}`")));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::Sample;
    use schema::run::{Printed, PrintedLink, PrintedNote, PrintedRow, Source};

    #[test]
    fn secrets_and_paths_are_found_and_look_alikes_are_not() {
        for (name, value, breach) in [
            ("HF_TOKEN", "hf_abc", true),
            ("HF_TOKEN", "{redacted}", false),
            ("HF_TOKEN", "", false),
            ("OPENAI_API_KEY", "sk", true),
            ("TOKENIZERS_PARALLELISM", "false", false),
            ("CUDA_VISIBLE_DEVICES", "0", false),
            ("HF_HOME", "/home/ada/.cache", true),
        ] {
            let mut record = Sample::default().record();
            let env = [(name.to_owned(), value.to_owned())];
            record.server.as_mut().unwrap().env = Some(env.into());
            let found = private("runs/x.json", &record);
            assert_eq!(!found.is_empty(), breach, "{name}={value}: {found:?}");
            assert!(
                found.iter().all(|f| !f.to_string().contains("hf_abc")),
                "a secret was printed"
            );
        }
    }

    #[test]
    fn a_path_in_the_text_of_a_report_is_found() {
        let mut record = RunRecord::default();
        for (text, breach) in [("578.48", false), ("{path}", false), ("/home/ada/x", true)] {
            let row = PrintedRow { text: text.into(), ..PrintedRow::default() };
            let in_log = Printed { log: vec![row], ..Printed::default() };
            let note = PrintedNote { text: text.into(), ..PrintedNote::default() };
            let in_note = Printed { notes: vec![note], ..Printed::default() };
            for printed in [in_log, in_note] {
                record.source = Some(Source { printed: Some(printed), ..Source::default() });
                assert_eq!(!private("imports/x.json", &record).is_empty(), breach, "{text}");
            }
        }
    }

    #[test]
    fn a_link_of_a_report_to_anything_but_the_web_is_found() {
        let mut record = RunRecord::default();
        for (url, breach) in [("https://example.org/a", false), ("javascript:alert(1)", true)] {
            let link = PrintedLink { text: "\u{1b}[31mhere".into(), url: url.into() };
            let note = PrintedNote { links: vec![link], ..PrintedNote::default() };
            let printed = Some(Printed { notes: vec![note], ..Printed::default() });
            record.source = Some(Source { printed, ..Source::default() });
            let found = notes("imports/x.json", &record);
            let said = found.map(|finding| finding.to_string());
            assert_eq!(said.is_some(), breach, "{url}: {said:?}");
            let quoted = |said: String| said.contains(['\u{1b}', '(']);
            assert!(!said.is_some_and(quoted), "the text of the report is printed");
        }
    }
}
