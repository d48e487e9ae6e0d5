//! Command `sync`: synchronizes a clone with a remote and prints the result.

use registry::commit::Clock;
use registry::sync::{Means, SyncError, Synced, sync};
use schema::exit::Exit;

use super::World;
use crate::cli::SyncArguments;

pub fn run(world: &World, given: &SyncArguments) -> anyhow::Result<Exit> {
    let means = Means {
        registry: &given.renders.place.registry,
        remote: &given.remote,
        tools: given.renders.tools_dir.as_deref().unwrap_or(&world.tools),
        clock: Clock { unix_s: world.unix_s() },
    };
    let synced = match sync(means) {
        Err(SyncError::Unsound(findings)) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            return Err(SyncError::Unsound(findings).into());
        }
        other => other?,
    };
    for note in &synced.notes {
        eprintln!("note: {note}");
    }
    let text = if given.json { crate::json(&synced)? } else { words(&synced, &given.remote) };
    crate::print(&text)?;
    Ok(Exit::Well)
}

fn words(synced: &Synced, remote: &str) -> String {
    let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let commit = synced.commit.as_deref().unwrap_or("none");
    format!(
        "{} and `{remote}` are at {commit}: {} in, {} moved behind, {} rendered again, {}",
        synced.branch,
        count(synced.records_in, "record"),
        count(synced.commits_moved, "commit"),
        count(synced.pages_rendered, "page"),
        if synced.pushed { "pushed" } else { "nothing to push" }
    )
}
