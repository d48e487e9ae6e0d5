//! End of a gate, and of comparisons in turns without runs: what they say, as text and as files.

use judge::diff::{junit, report, waivers};
use schema::canonical::to_file_text;
use schema::exit::Exit;

use crate::executor::journal::{Journal, PreparedCampaign, PreparedGate};
use crate::files::write_whole;
use crate::publish::finish::campaign_record;
use crate::publish::{Registry, in_turns, write_campaign};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Writes the comparison of a gate, prints it with the verdict first, and returns its exit code.
///
/// # Errors
/// A job's files are invalid, no comparison was made, or a file cannot be written.
pub fn finish(
    world: &World,
    ready: &PreparedCampaign,
    gate: &PreparedGate,
    journal: &Journal,
) -> Result<Exit, Stop> {
    let mut record = campaign_record(world, ready, &[], journal)?;
    write_campaign(&journal.places.staged(), &mut record)?;
    if record.alternations.is_empty() {
        return Err(wrong_use!("no comparison was made"));
    }
    let mut diff = in_turns(&record);
    // A waiver of the registry accepts a regression or changed outputs here too.
    let is_event = |path: &str| path.split('/').next() == Some("events");
    let events = store::load_where(&[&Registry::new(world, &ready.registry).results()], &is_event)?;
    waivers::apply(&mut diff, &events, world.clock.unix_s());
    world.console.answer(report::text(&diff).trim_end())?;
    let report = junit::junit(&diff)
        .map_err(|error| wrong_use!("the comparison has no JUnit report: {error}"))?;
    for (name, text) in [
        ("diff.json", to_file_text(&diff)?),
        ("diff.md", report::markdown(&diff)),
        ("diff.xml", report),
        ("campaign.json", to_file_text(&record)?),
    ] {
        write_whole(&gate.out.join(name), text.as_bytes())?;
    }
    world.console.note(&format!("written to {}", world.places.shown(&gate.out)));
    Ok(diff.exit())
}
