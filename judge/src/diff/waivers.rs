//! Waivers of a comparison: regressions that were accepted for a while.

use schema::comparison::Diff;

use crate::records::Registry;

/// Adds to each failing verdict the waiver that accepts it at `unix_s` (seconds since 1970).
pub fn apply(diff: &mut Diff, registry: &Registry, unix_s: i64) {
    let release = diff.candidate.clone();
    for row in diff.cells.iter_mut().flat_map(|cell| &mut cell.rows) {
        if !row.verdict.fails() {
            continue;
        }
        let waiver = registry.waiver(&row.verdict.cell, &row.verdict.metric, &release, unix_s);
        row.verdict.waiver = waiver.map(|event| {
            let until = event.expires.as_deref().unwrap_or("ever");
            format!("{} (until {until}, event {})", event.reason, event.id)
        });
    }
}
