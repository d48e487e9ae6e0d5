//! Paths of records below `results/`, computed from the record's own fields.

use std::collections::{BTreeMap, BTreeSet};

use time::{Duration, OffsetDateTime};

use crate::campaign::CampaignRecord;
use crate::id::ulid_unix_ms;
use crate::kernel::KernelRecord;
use crate::run::{Kind, RunRecord};

/// Error of a record whose fields do not make a valid path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    /// Part: the value of a record field cannot be a part of a path.
    #[error("`{field}` is `{value}`, which cannot be a part of a path")]
    Part {
        /// Dotted name of the record field that does not fit in a path.
        field: &'static str,
        /// Value of the field, which does not fit in a path, cut to 120 characters.
        value: String,
    },
    /// Unknown: the record field with this dotted name, which the path needs, is unknown.
    #[error("`{0}` is unknown, and the path needs it")]
    Unknown(&'static str),
}

/// Returns the directory name of a configuration: a readable slug and eight hex digits of its hash,
/// or `unread` for the digits where the server ended before its configuration was read.
pub fn config_name(record: &RunRecord) -> String {
    let hash = record.server.as_ref().and_then(|server| server.config_sha256.as_deref());
    let digits = hash.and_then(|hash| hash.get(..8)).unwrap_or("unread");
    format!("{}-{digits}", config_slug(record))
}

/// Returns the readable part of a configuration's directory name, such as `cpu-bf16-tp1`, which is
/// the configuration part of a cell. `unknown` stands for a device or data type that is not known,
/// and for a server without facts. An imported record whose report states no number of
/// tensor-parallel ranks has none in its name.
pub fn config_slug(record: &RunRecord) -> String {
    let Some(server) = record.server.as_ref() else { return "unknown".to_owned() };
    let device = server.device.as_deref().unwrap_or("unknown");
    let dtype = record.model.dtype.as_deref().unwrap_or("unknown");
    let mut slug = format!("{device}-{dtype}");
    if record.kind != Kind::Imported || server.tp.is_some() {
        slug += &format!("-tp{}", server.tp.unwrap_or(1));
    }
    if let Some(variant) = &server.variant {
        slug += &format!("-{variant}");
    }
    slug
}

/// Returns the path of a run record, relative to `results/`:
/// `runs/<engine>/<release>/<hardware>/<model>/<config>/<scenario>@<rev>/<ULID>.json`.
///
/// # Errors
/// The record is imported, or a part of the path is empty, longer than 120 bytes or has a character
/// that is not allowed in it.
pub fn of_run(record: &RunRecord) -> Result<String, PathError> {
    if record.kind == Kind::Imported {
        return Err(PathError::Unknown("source"));
    }
    let config = config_name(record);
    let scenario = format!("{}@{}", record.scenario.id, record.scenario.rev);
    let parts = [
        ("engine.name", record.engine.name.as_str()),
        ("engine.release", &record.engine.release),
        ("hardware.id", &record.hardware.id),
        ("model.id", &record.model.id),
        ("server.config", &config),
        ("scenario.id", &scenario),
        ("id", &record.id),
    ];
    Ok(format!("runs/{}.json", join(&parts)?))
}

/// Returns the path of a kernel record, relative to `results/`:
/// `kernels/<engine>/<release>/<hardware>/<ULID>.json`.
///
/// # Errors
/// A part of the path is empty, longer than 120 bytes or has a character that is not allowed in it.
pub fn of_kernels(record: &KernelRecord) -> Result<String, PathError> {
    let parts = [
        ("engine.name", record.engine.name.as_str()),
        ("engine.release", &record.engine.release),
        ("hardware.id", &record.hardware.id),
        ("id", &record.id),
    ];
    Ok(format!("kernels/{}.json", join(&parts)?))
}

/// Returns the path of a campaign record, relative to `results/`: `campaigns/<yyyy>/<ULID>.json`.
///
/// # Errors
/// The id is not a ULID, or its time is later than a date can express.
pub fn of_campaign(record: &CampaignRecord) -> Result<String, PathError> {
    Ok(format!("campaigns/{}/{}.json", year(&record.id)?, record.id))
}

/// Returns the path of an event file, relative to `results/`: `events/<yyyy>/<ULID>.toml`.
///
/// # Errors
/// The id is not a ULID, or its time is later than a date can express.
pub fn of_event(id: &str) -> Result<String, PathError> {
    Ok(format!("events/{}/{id}.toml", year(id)?))
}

/// Returns the folder of an imported record, relative to `results/`: `imports/<source>/<digits>`
/// with the first digits of the report's SHA-256, and `-r<n>` for a reader of revision 2 or later.
pub fn of_report(source: &str, digits: &str, reader: Option<u32>) -> String {
    let rev = reader.map_or_else(String::new, |rev| format!("-r{rev}"));
    format!("imports/{source}/{digits}{rev}")
}

/// Returns those of `paths`, relative to `results/`, whose report was read again by a later reader.
/// Other paths than those of imported records are never among them.
pub fn read_again<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> BTreeSet<&'a str> {
    let mut newest: BTreeMap<&str, u32> = BTreeMap::new();
    for (report, reader) in paths.clone().filter_map(reading) {
        let known = newest.entry(report).or_insert(reader);
        *known = reader.max(*known);
    }
    let is_old =
        |path: &&str| reading(path).is_some_and(|(report, reader)| reader < newest[report]);
    paths.filter(is_old).collect()
}

/// Returns the folder of an imported record without its reader's revision, and that revision;
/// `None` for the path of another record.
fn reading(path: &str) -> Option<(&str, u32)> {
    let (folder, _) = path.rsplit_once('/').filter(|_| path.starts_with("imports/"))?;
    let read = folder.rsplit_once("-r").and_then(|(report, rev)| Some((report, rev.parse().ok()?)));
    Some(read.unwrap_or((folder, 1)))
}

/// Returns the path of the generated page for a release on a hardware, relative to `results/`.
pub fn of_page(engine: &str, release: &str, hardware: &str) -> String {
    format!("pages/{engine}/{release}/{hardware}.md")
}

fn join(parts: &[(&'static str, &str)]) -> Result<String, PathError> {
    let mut joined = Vec::with_capacity(parts.len());
    for (field, value) in parts {
        if !is_part(value) {
            return Err(part_error(field, value));
        }
        joined.push(*value);
    }
    Ok(joined.join("/"))
}

/// True for a valid path part: letters, digits and `._-@+`, 1 to 120 bytes, no dot in front.
fn is_part(text: &str) -> bool {
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@+".contains(&byte);
    !text.is_empty() && text.len() <= 120 && !text.starts_with('.') && text.bytes().all(fit)
}

fn part_error(field: &'static str, value: &str) -> PathError {
    // The value comes from a file, and may have any length.
    PathError::Part { field, value: value.chars().take(120).collect() }
}

/// Returns the calendar year (UTC) of the time in the ULID `id`.
fn year(id: &str) -> Result<i32, PathError> {
    let since = ulid_unix_ms(id).and_then(|ms| Some(Duration::milliseconds(ms.try_into().ok()?)));
    let at = since.and_then(|since| OffsetDateTime::UNIX_EPOCH.checked_add(since));
    at.map(OffsetDateTime::year).ok_or_else(|| part_error("id", id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ServerFacts;

    fn record() -> RunRecord {
        let mut record =
            RunRecord { id: "01JD5XQ0000000000000000000".into(), ..RunRecord::default() };
        record.engine.name = "redline".into();
        record.engine.release = "v0.9.2".into();
        record.hardware.id = "cpu-intel-xeon-f6m85s7-2c".into();
        record.model.id = "smollm2-135m-instruct-q4_1".into();
        record.model.dtype = Some("f32".into());
        record.scenario.id = "sharegpt-lite".into();
        record.scenario.rev = 1;
        record.server = Some(ServerFacts {
            config_sha256: Some("0123456789abcdef".into()),
            device: Some("cpu".into()),
            tp: Some(1),
            ..ServerFacts::default()
        });
        record
    }

    #[test]
    fn a_runs_path_is_its_key() {
        assert_eq!(
            of_run(&record()).expect("path"),
            "runs/redline/v0.9.2/cpu-intel-xeon-f6m85s7-2c/smollm2-135m-instruct-q4_1/\
             cpu-f32-tp1-01234567/sharegpt-lite@1/01JD5XQ0000000000000000000.json"
        );
    }

    #[test]
    fn a_later_reading_of_a_report_replaces_the_earlier_ones() {
        assert_eq!(of_report("lab", "01234567", None), "imports/lab/01234567");
        let again = of_report("lab", "01234567", Some(2)) + "/001.json";
        let paths = [
            "imports/lab/01234567/001.json",
            &again,
            "imports/lab/89abcdef/001.json",
            "imports/my-r2/01234567/001.json",
            "runs/e/v1/hw/m/c/s@1/X.json",
        ];
        assert_eq!(read_again(paths.iter().copied()), BTreeSet::from([paths[0]]));
    }

    #[test]
    fn ranks_that_a_report_does_not_state_are_in_no_name() {
        let mut record = record();
        record.server.as_mut().expect("server").tp = None;
        assert_eq!(config_slug(&record), "cpu-f32-tp1");
        record.kind = Kind::Imported;
        assert_eq!(config_slug(&record), "cpu-f32");
    }

    #[test]
    fn a_part_that_leaves_the_folder_is_refused() {
        for hostile in ["..", "a/b", "", ".git", "a\\b", "a b"] {
            let mut record = record();
            record.model.id = hostile.into();
            assert!(of_run(&record).is_err(), "`{hostile}` was taken");
        }
    }

    #[test]
    fn a_campaign_lies_under_its_year() {
        for (unix_ms, expected) in [
            (0, 1970),
            (1_704_067_199_999, 2023),
            (1_704_067_200_000, 2024),
            (1_709_251_200_000, 2024),
            (1_798_761_599_999, 2026),
            (1_798_761_600_000, 2027),
        ] {
            let id = crate::id::ulid(unix_ms, 1);
            assert_eq!(year(&id), Ok(expected), "{unix_ms}");
        }
    }
}
