//! Citation of a run in a text and in a bibliography, by its id and the hash of its record, which
//! stay the same wherever the record is kept.

use serde::Serialize;

use crate::catalog::{self, Run};
use crate::outside;

/// Citation of a run, as plain text and as a BibTeX entry.
#[derive(Debug, Clone, Serialize)]
pub struct Citation {
    pub plain: String,
    pub bibtex: String,
}

/// Builds the citation of a run in both forms.
pub fn of(run: &Run) -> Citation {
    let record = run.record;
    let id = outside::name(&record.id);
    let title = outside::message(&format!(
        "{} {} serving {} on {}, {}",
        record.engine.name,
        record.engine.release,
        record.model.id,
        record.hardware.id,
        catalog::scenario(record)
    ));
    let started = record.time.as_ref().and_then(|time| time.started_at.as_deref());
    let day = started.map(|at| outside::short_hash(at, 10));
    let when = day.clone().map(|day| format!(", {day}")).unwrap_or_default();
    let kind = match record.kind.name() {
        "imported" => "published by others, unverified",
        kind => kind,
    };
    let sha256 = outside::name(&record.record_sha256);
    let plain =
        format!("Redline results, run {id}: {title}{when}; {kind}. Record SHA-256 {sha256}.");
    let year: String = day.unwrap_or_default().chars().take(4).collect();
    let bibtex = format!(
        "@misc{{redline-{},\n  title = {{{}}},\n  howpublished = {{Redline results, run {}}},\n  year = {{{}}},\n  note = {{{kind}; record SHA-256 {}}}\n}}",
        key(&id),
        bibtex(&title),
        bibtex(&id),
        bibtex(&year),
        bibtex(&sha256)
    );
    Citation { plain, bibtex }
}

/// Makes `id` a BibTeX key: letters, digits and hyphens.
fn key(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Escapes `text` for a BibTeX field in braces.
fn bibtex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '{' | '}' | '\\' => out.push(' '),
            '%' | '&' | '$' | '#' | '_' => out.extend(['\\', c]),
            '~' => out.push_str("\\textasciitilde "),
            '^' => out.push_str("\\textasciicircum "),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_bibtex_cannot_be_left() {
        assert_eq!(bibtex(r"a_b} , evil = {x\y"), r"a\_b  , evil =  x y");
        assert_eq!(bibtex("50 % ~"), r"50 \% \textasciitilde ");
        assert_eq!(key("ee356a43-001"), "ee356a43-001");
        assert_eq!(key("a,b={"), "a-b--");
    }
}
