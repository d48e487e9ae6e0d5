//! Baseline and candidate of a gate: from names to variants.

use crate::build::variants::{REDLINE, Wanted, commit, named, working_tree};
use crate::cli::{GateRequest, Packages};
use crate::git::Git;
use crate::plan::parse_other_engine;
use crate::plan::release::{is_name, newest, read_history};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Resolves what a gate compares to variants: the baseline, then the candidate.
///
/// # Errors
/// A name means neither a release nor a commit nor an engine's release, the baseline is of another
/// engine and no candidate is named, or anything that resolving a name fails with.
pub fn variants(
    world: &World,
    request: &GateRequest,
    packages: Packages,
) -> Result<Vec<Wanted>, Stop> {
    let baseline = match &request.baseline {
        Some(name) => contender(world, name, packages)?,
        None => {
            let git = Git::open(&world.places.root, &world.interrupt)?;
            let newest = newest(&read_history(&git, &[])?).ok_or_else(|| {
                Stop::wrong_use("this clone has no release to compare with")
                    .with_hint("name a commit, such as `cargo xtask gate HEAD`")
            })?;
            contender(world, &newest, packages)?
        }
    };
    let engine = &baseline.engine.id;
    if request.candidate.is_none() && engine != REDLINE {
        return Err(wrong_use!("this would compare {engine} with this clone's own working tree")
            .with_hint(format!(
                "`--candidate {engine}@VERSION` names another release of it, to which `--variant` adds \
                 flags; `--candidate HEAD` compares it with Redline"
            )));
    }
    let mut candidate = match &request.candidate {
        Some(name) => contender(world, name, packages)?,
        None => working_tree(world, &world.catalog.engine(REDLINE)?, None)?,
    };
    if let Some((name, flags)) = &request.variant {
        candidate.variant.name = Some(name.clone());
        candidate.variant.flags.extend_from_slice(flags);
    }
    Ok(vec![baseline, candidate])
}

/// Resolves one name: `ENGINE@VERSION`, a release of Redline, or a commit of this clone.
fn contender(world: &World, name: &str, packages: Packages) -> Result<Wanted, Stop> {
    if let Ok((engine, version)) = parse_other_engine(name) {
        return named(world, &world.catalog.engine(&engine)?, Some(&version), packages);
    }
    let engine = world.catalog.engine(REDLINE)?;
    if is_name(name) {
        return named(world, &engine, Some(name), packages);
    }
    commit(world, &engine, name)
}
