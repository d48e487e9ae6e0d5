//! Picture of a terminal as SVG: the command of the newest campaign of one engine, and the table that
//! it printed. A pure function of the records, so that it is as fresh as the pages.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use judge::order;
use schema::campaign::CampaignRecord;
use whole_file::TEXT_MAX;

use crate::catalog::{Catalog, ReleaseKey};
use crate::{escape, outside, text};

/// Height of a line, and width of a character of the monospaced font, in SVG units.
const LINE: (usize, usize) = (18, 8);
/// Space around the text, in SVG units.
const MARGIN: usize = 16;
/// Title of the picture, by which an earlier one is recognized.
const TITLE: &str = "<title>Output of cargo xtask release-bench</title>";
/// Number of columns of the terminal.
const COLUMNS: usize = judge::table::COLUMNS;

/// Draws the terminal after the newest campaign of one engine; `None` where the registry has no such
/// campaign.
///
/// # Errors
///
/// Never: the release is one of the registry.
pub fn picture(catalog: &Catalog) -> Result<Option<String>> {
    let Some((record, key)) = newest(catalog) else { return Ok(None) };
    let table = text::release(catalog, &key)?;
    let own = record.command.iter().map(String::as_str);
    let words: Vec<&str> = ["cargo", "xtask"].into_iter().chain(own).collect();
    let command = format!("$ {}", outside::command(&words));
    let lines: Vec<&str> = std::iter::once(command.as_str()).chain(table.lines()).collect();
    Ok(Some(svg(&lines)))
}

/// Returns the campaign of one engine that was started last, with release and hardware; of the
/// releases that it compared, the newest. A campaign of two engines prints more than one table.
fn newest<'a>(catalog: &'a Catalog<'_>) -> Option<(&'a CampaignRecord, ReleaseKey)> {
    let records: BTreeMap<&str, &CampaignRecord> = catalog
        .registry
        .campaigns
        .iter()
        .map(|stored| (stored.record.id.as_str(), &stored.record))
        .filter(|(_, record)| !record.command.iter().any(|word| word == "--beside"))
        .collect();
    let releases = catalog.releases();
    let dated = releases.iter().filter_map(|(key, runs)| {
        let campaigns = runs.iter().filter_map(|run| run.record.campaign.as_ref());
        // Ids are ULIDs, which sort by time.
        let ids = campaigns.map(|campaign| campaign.id.as_str());
        let last = ids.filter(|id| records.contains_key(id)).max()?;
        Some((last, order::ReleaseKey::of(&key.release), key))
    });
    dated.max().map(|(id, _, key)| (records[id], key.clone()))
}

fn svg(lines: &[&str]) -> String {
    let width = COLUMNS * LINE.1 + 2 * MARGIN;
    let height = lines.len() * LINE.0 + 2 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n\
         {TITLE}\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#14181f\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" \
         font-size=\"13\" fill=\"#dfe5ee\">\n"
    );
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = MARGIN + (index + 1) * LINE.0 - 5;
        let length = line.chars().count() * LINE.1;
        // The length is given, so that columns line up in whichever font is there.
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{y}\" textLength=\"{length}\">{}</text>",
            // Spaces that break would be drawn as one.
            escape::html(&line.replace(' ', "\u{a0}"))
        );
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// Writes the picture to `file`. Returns true when that changed the file.
///
/// # Errors
///
/// `file` is something else than an earlier picture, or cannot be written.
pub fn write(file: &Path, picture: &str) -> Result<bool> {
    check_replaceable(file)?;
    if stale(file, picture).is_none() {
        return Ok(false);
    }
    whole_file::replace(file, picture.as_bytes())
        .with_context(|| format!("cannot write `{}`", file.display()))?;
    Ok(true)
}

/// Refuses to replace what no earlier call has written: a link, a device, or another file.
fn check_replaceable(file: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(file) else { return Ok(()) };
    // The second line of a picture is its title.
    let is_picture = || {
        let text = whole_file::read_text(file, "picture", TEXT_MAX).unwrap_or_default();
        text.starts_with("<svg ") && text.lines().nth(1) == Some(TITLE)
    };
    if found.is_file() && is_picture() {
        return Ok(());
    }
    bail!(
        "`{}` is no picture of an earlier call, and is not replaced\n  hint: name a file that does \
         not exist",
        file.display()
    )
}

/// Returns a line that reports that `file` is not the picture; `None` where it is.
pub fn stale(file: &Path, picture: &str) -> Option<String> {
    let found = whole_file::read_text(file, "picture", TEXT_MAX).unwrap_or_default();
    (found != picture).then(|| format!("`{}` is not what the records render", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_text_of_its_own_length_and_markup_is_escaped() {
        let picture = svg(&["$ a <b>", "", "  c"]);
        assert!(
            picture.contains("y=\"29\" textLength=\"56\">$\u{a0}a\u{a0}&lt;b&gt;</text>"),
            "{picture}"
        );
        assert!(picture.contains("y=\"65\" textLength=\"24\">\u{a0}\u{a0}c</text>"), "{picture}");
        assert_eq!(picture.matches("<text ").count(), 2);
    }
}
