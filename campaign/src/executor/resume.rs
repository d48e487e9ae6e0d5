//! Resume of a campaign: finds the unfinished campaign that `--resume` means, which is the latest
//! of the named release, or the latest that the same command began.

use std::fs;

use crate::cli::ReleaseBench;
use crate::executor::journal::Journal;
use crate::executor::prepared::PreparedCampaign;
use crate::stop::Stop;
use crate::world::World;

/// Returns the id of the campaign that `--resume` continues.
///
/// # Errors
/// There is none, or a journal cannot be read.
pub fn find(world: &World, flags: &ReleaseBench) -> Result<String, Stop> {
    let is_meant = |ready: &PreparedCampaign| {
        ready.lab.is_none() && is_requested(ready, flags, &world.command)
    };
    latest(world, is_meant)?.ok_or_else(|| nothing(flags))
}

/// Returns the id of the latest unfinished campaign that satisfies `fits`.
///
/// # Errors
/// A journal cannot be read.
pub fn latest(
    world: &World,
    fits: impl Fn(&PreparedCampaign) -> bool,
) -> Result<Option<String>, Stop> {
    let entries = fs::read_dir(world.places.campaigns()).into_iter().flatten().flatten();
    let mut ids: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // Campaign ids are ULIDs, which sort by time.
    ids.sort_by(|a, b| b.cmp(a));
    for id in ids {
        let state = Journal::look(&world.places.campaign(&id))?;
        // A campaign without a first line never began: there is nothing to resume.
        if !state.finished && state.ready.as_ref().is_some_and(&fits) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Opens the journal of a campaign to resume it, and prints so; `title` names the campaign or lab.
///
/// # Errors
/// The journal cannot be read, or another process writes it.
pub fn reopen(world: &World, campaign: &str, title: &str) -> Result<Journal, Stop> {
    let (journal, torn) = Journal::open(world.places.campaign(campaign))?;
    world.console.step(world.clock.elapsed(), &format!("Resume {title}"));
    if torn {
        world.console.note("the last line of its journal was incomplete and is dropped");
    }
    Ok(journal)
}

/// Makes the error for `--resume` without an unfinished campaign.
pub fn nothing(flags: &ReleaseBench) -> Stop {
    let of = flags.release.as_ref().map(|release| format!(" of `{release}`")).unwrap_or_default();
    Stop::wrong_use(format!("no unfinished campaign{of} was started by this command"))
        .with_hint("leave `--resume` out to start one")
}

/// True when a command with `--resume` means this campaign: it names only the campaign's release,
/// or repeats all arguments that the campaign was begun with.
fn is_requested(ready: &PreparedCampaign, flags: &ReleaseBench, command: &[String]) -> bool {
    let words = essential(command);
    let bare = |word: &str| {
        flags.release.as_deref() == Some(word) || word == flags.engine || word == "--engine"
    };
    if !words.iter().skip(1).all(|word| bare(word)) {
        return words == essential(&ready.command);
    }
    let name = flags.release.as_ref().map(|name| name.trim_start_matches('v'));
    ready.plan.variants.iter().any(|variant| {
        let named = name.is_none_or(|name| variant.release.trim_start_matches('v') == name);
        named && variant.engine == flags.engine
    })
}

/// Returns the arguments of a command that determine what is measured, without flags such as
/// `--yes` that may differ on resume.
fn essential(command: &[String]) -> Vec<&str> {
    const ALONE: &[&str] = &["--resume", "--yes"];
    const WITH_VALUE: &[&str] = &["--root", "--tools-dir", "--max-gpu-hours"];
    let mut words = command.iter().map(String::as_str);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if !ALONE.contains(&word)
            && !WITH_VALUE
                .iter()
                .any(|flag| word.strip_prefix(flag).is_some_and(|v| v.starts_with('=')))
        {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_say_what_is_measured_is_passed_over() {
        let command = "--root /x release-bench v1 --resume --yes --max-gpu-hours=3 --model m";
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(essential(&words), ["release-bench", "v1", "--model", "m"]);
    }
}
