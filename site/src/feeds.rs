//! Files for other websites: Atom feeds (RFC 4287) of releases, regressions and corrections, whose
//! ids and times come from the records, so that the same records give the same feeds; and badges in
//! the format that badge servers read (endpoint schema version 1).

use judge::diff::words::is_worse;
use judge::pick::foremost;
use minijinja::{Value, context};
use schema::event::{Event, rfc3339_of};
use schema::id::ulid_unix_ms;
use schema::verdict::Verdict;
use serde_json::{Value as Json, json};

use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::judged::Judged;
use crate::link::{Place, Target, part};
use crate::template::{Frame, RenderError, Renderer};
use crate::view::release::extent;
use crate::view::{corrections, pick, words};
use crate::{format, outside};

/// Largest number of entries in an Atom feed: feed readers need the newest, and the site has all.
const ENTRIES_MAX: usize = 200;

/// Time that is written for a feed without entries, and for entries whose time is not known.
const NEVER: &str = "1970-01-01T00:00:00Z";

/// Entry of an Atom feed: a release, a regression or a correction.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// Id of the feed entry, which stays the same as long as the entry is about the same release,
    /// regression or event.
    id: String,
    title: String,
    /// Time of the feed entry, RFC 3339 in UTC: when the latest of its runs was planned, or the
    /// time of its event; [`NEVER`] where neither is known.
    updated: String,
    target: Target,
    summary: String,
}

/// Returns path and text of every Atom feed.
///
/// # Errors
///
/// The template of feeds has a fault.
pub fn feeds(
    catalog: &Catalog,
    judged: &Judged,
    renderer: &Renderer,
) -> Result<Vec<(String, String)>, RenderError> {
    let feeds = [
        ("releases", "Releases", releases(catalog)),
        ("regressions", "Regressions", regressions(catalog, judged)),
        ("corrections", "Corrections", events(catalog)),
    ];
    let file = |(name, title, entries)| {
        Ok((format!("{name}.atom"), feed(renderer, name, title, entries)?))
    };
    feeds.into_iter().map(file).collect()
}

fn releases(catalog: &Catalog) -> Vec<Entry> {
    let entry = |(key, runs): (ReleaseKey, Vec<&Run>)| {
        let title = format!("{} {} on {}", key.engine, key.release, key.hardware);
        let ids = runs.iter().map(|run| run.record.id.as_str());
        Entry {
            id: format!("release:{}/{}/{}", key.engine, key.release, key.hardware),
            title,
            updated: latest(ids),
            target: Target::ReleaseOn(key),
            summary: extent(&runs, &catalog::cells(&runs)),
        }
    };
    catalog.releases().into_iter().map(entry).collect()
}

fn regressions(catalog: &Catalog, judged: &Judged) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (pair, diff) in &judged.diffs {
        for row in diff.rows().filter(|row| is_worse(row)) {
            let verdict = &row.verdict;
            let runs = catalog.runs_where(|record| {
                record.engine.release == diff.candidate
                    && judge::diff::cells::cell_of(record) == verdict.cell
            });
            entries.push(Entry {
                id: format!(
                    "regression:{}/{}..{}/{}",
                    verdict.cell.key(),
                    diff.baseline,
                    diff.candidate,
                    verdict.metric
                ),
                title: format!(
                    "{} {}: {} {} for {} in {}",
                    pair.engine,
                    pair.candidate,
                    row.title,
                    words::verdict(verdict.verdict),
                    verdict.cell.model,
                    verdict.scenario()
                ),
                updated: latest(runs.iter().map(|run| run.record.id.as_str())),
                target: pair.target(),
                summary: effect(verdict, &pair.hardware),
            });
        }
    }
    entries
}

fn effect(verdict: &Verdict, hardware: &str) -> String {
    let effect = verdict.effect_pct.map(|pct| format!("{} %, ", format::percent(pct)));
    let waiver = verdict.waiver.as_deref().map(|waiver| format!(", waived: {waiver}"));
    format!(
        "{}{} pairs, on {hardware}{}",
        effect.unwrap_or_default(),
        verdict.pairs,
        waiver.unwrap_or_default()
    )
}

fn events(catalog: &Catalog) -> Vec<Entry> {
    let events = catalog.registry.events.iter().map(|stored| &stored.record);
    let entry = |event: &Event| Entry {
        id: format!("event:{}", event.id),
        title: format!("{}: {}", corrections::kind(event.kind), event.subject()),
        updated: match schema::event::unix_s_of(&event.at) {
            Some(_) => event.at.clone(),
            None => latest(std::iter::once(event.id.as_str())),
        },
        target: Target::Corrections {},
        summary: event.reason.clone(),
    };
    events.map(entry).collect()
}

/// Returns the time at which the latest of `ids` was planned, since a ULID begins with its time;
/// [`NEVER`] where no id is a ULID.
fn latest<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let last = ids.filter_map(ulid_unix_ms).max();
    let at = last.and_then(|ms| rfc3339_of(i64::try_from(ms / 1000).ok()?));
    at.unwrap_or_else(|| NEVER.to_owned())
}

/// Formats an Atom feed of the newest [`ENTRIES_MAX`] of `entries`, newest first. Addresses are
/// relative, because the site does not know its own address.
fn feed(
    renderer: &Renderer,
    name: &str,
    title: &str,
    mut entries: Vec<Entry>,
) -> Result<String, RenderError> {
    entries.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| a.id.cmp(&b.id)));
    entries.truncate(ENTRIES_MAX);
    let entry = |entry: &Entry| {
        context! {
            id => urn(&entry.id),
            title => outside::name(&entry.title),
            updated => &entry.updated,
            target => entry.target.clone(),
            summary => outside::message(&entry.summary),
        }
    };
    let view = context! {
        name,
        title,
        updated => entries.first().map_or(NEVER, |entry| &entry.updated),
        entries => entries.iter().map(entry).collect::<Value>(),
    };
    renderer.render("documents/feed.xml", &Frame::default(), &view, (Place::Html, ""))
}

/// Formats `id` as the specific part of a URN (RFC 8141). An id with characters that are not
/// allowed, or that is too long, is cleaned and cut, and a hash of the whole id is appended.
fn urn(id: &str) -> String {
    let fit = |c: char| c.is_ascii_alphanumeric() || "/:._-@+".contains(c);
    if id.chars().all(fit) && id.len() <= 400 {
        return id.to_owned();
    }
    let kept: String = id.chars().take(200).map(|c| if fit(c) { c } else { '-' }).collect();
    format!("{kept}-{}", &schema::canonical::sha256_hex(id.as_bytes())[..8])
}

/// Returns path and text of every badge: one file per model and hardware.
pub fn badges(catalog: &Catalog, judged: &Judged) -> Vec<(String, String)> {
    let file = |(model, hardware): (&str, &str)| {
        let path = format!("badge/{}/{}.json", part(model), part(hardware));
        (path, format!("{}\n", badge(judged, model, hardware)))
    };
    catalog.places().into_iter().map(file).collect()
}

/// Builds the badge of `model` on `hardware`: the pick that stands for its picks, with the number of
/// users and the findings about its figure. Only repeated measurements get a color; without a pick
/// the badge says so.
fn badge(judged: &Judged, model: &str, hardware: &str) -> Json {
    let found = foremost(judged.picks_of(Some(model), Some(hardware)));
    let (message, color) = match found {
        None => ("no figures".to_owned(), "lightgrey"),
        Some(found) => {
            let published = if found.subject.is_published { ", not verified" } else { "" };
            let marks = pick::marks(&found.first);
            let marks = if marks.is_empty() { marks } else { format!("; {marks}") };
            let text = format!(
                "{} {}: {} tokens/s, {}{published}{marks}",
                found.first.setup.cell.engine,
                found.first.setup.release,
                format::rounded(found.first.throughput.median, None),
                pick::users(found.subject.users),
            );
            let repeated = !found.subject.is_published && found.first.throughput.n > 1;
            (text, if repeated { "informational" } else { "lightgrey" })
        }
    };
    json!({
        "schemaVersion": 1,
        "label": outside::name(&format!("{model} on {hardware}")),
        "message": outside::message(&message),
        "color": color,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, updated: &str) -> Entry {
        Entry {
            id: id.to_owned(),
            title: "<b>&\u{202e}".to_owned(),
            updated: updated.to_owned(),
            target: Target::Health {},
            summary: "]]> <script>".to_owned(),
        }
    }

    #[test]
    fn a_feed_is_newest_first_and_escaped() {
        let entries = vec![
            entry("event:a", "2026-01-01T00:00:00Z"),
            entry("event:<b>", "2026-02-01T00:00:00Z"),
        ];
        let renderer = Renderer::new().expect("sound templates");
        let text = feed(&renderer, "corrections", "Corrections", entries).expect("a feed");
        let (first, second) =
            (text.find("event:-b--").expect("b"), text.find("event:a").expect("a"));
        assert!(first < second, "{text}");
        assert!(text.contains("<updated>2026-02-01T00:00:00Z</updated>\n<author>"), "{text}");
        assert!(!text.contains("<script>") && !text.contains('\u{202e}'), "{text}");
    }

    #[test]
    fn an_empty_feed_has_a_time_all_the_same() {
        let renderer = Renderer::new().expect("sound templates");
        let text = feed(&renderer, "releases", "Releases", Vec::new()).expect("a feed");
        assert!(text.contains("<updated>1970-01-01T00:00:00Z</updated>"), "{text}");
        assert!(text.ends_with("</feed>\n"));
    }
}
