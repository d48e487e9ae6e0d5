//! The variants of a campaign: resolves the command line to releases of engines, a working tree or
//! a running server, and builds each.

use std::path::Path;

use schema::engine::Source;
use schema::probe::Probe;
use schema::run::{BuildFacts, EngineFacts};

use crate::build::installed;
use crate::build::origin::{Origin, REDLINE, Wanted};
use crate::build::worktree;
use crate::build::{self, Built, source};
use crate::catalog::Engine;
use crate::cli::ReleaseBench;
use crate::files;
use crate::git::Git;
use crate::launch::container::Runtime;
use crate::launch::{BuiltVariant, LaunchSpec, is_same};
use crate::node::hardware;
use crate::plan::Variant;
use crate::plan::release::{self, is_development, literal_version};
use crate::stop::Stop;
use crate::world::World;

/// Resolves the command line to variants: the baseline first, then the candidate and its variants,
/// then the engines of `--beside`.
///
/// # Errors
/// A release cannot be resolved, or the flags contradict each other.
pub fn wanted(world: &World, flags: &ReleaseBench, engine: &Engine) -> Result<Vec<Wanted>, Stop> {
    let mut variants = Vec::new();
    if let Some(baseline) = &flags.baseline {
        variants.push(named(world, engine, Some(baseline), flags.container)?);
    }
    let candidate = match flags.worktree {
        true => tree(world, engine, flags.release.as_deref())?,
        false => named(world, engine, flags.release.as_deref(), flags.container)?,
    };
    if variants.iter().any(|baseline| baseline.variant.release == candidate.variant.release) {
        let release = &candidate.variant.release;
        return Err(Stop::wrong_use(format!("baseline and candidate are both {release}")));
    }
    for (name, extra) in &flags.variants {
        let mut variant = candidate.clone();
        variant.variant.name = Some(name.clone());
        variant.variant.flags.extend_from_slice(extra);
        if variants.iter().any(|other| other.variant.name == variant.variant.name) {
            return Err(Stop::wrong_use(format!("variant `{name}` is given twice")));
        }
        variants.push(variant);
    }
    // After the baseline and before its variants, which were cloned from it.
    variants.insert(usize::from(flags.baseline.is_some()), candidate);
    for (id, release) in &flags.beside {
        if *id == engine.id {
            let message =
                format!("`{id}` is the engine that is measured; `--beside` is for others");
            return Err(Stop::wrong_use(message)
                .with_hint("two releases of one engine are compared by `--baseline`"));
        }
        variants.push(named(world, &world.catalog.engine(id)?, Some(release), flags.container)?);
    }
    Ok(variants)
}

/// Makes a variant of the working tree, whose version must equal `release` if that is given.
///
/// # Errors
/// The engine is not built from this clone, or the tree has another version.
pub fn tree(world: &World, engine: &Engine, release: Option<&str>) -> Result<Wanted, Stop> {
    if engine.id != REDLINE {
        return Err(Stop::wrong_use(format!(
            "`--worktree` is this clone's own tree, not one of `{}`",
            engine.id
        )));
    }
    working_tree(world, engine, release)
}

/// Resolves a release of an engine by its name.
///
/// # Errors
/// No release has that name, or the engine is neither built nor installed here.
pub fn named(
    world: &World,
    engine: &Engine,
    release: Option<&str>,
    container: Option<Runtime>,
) -> Result<Wanted, Stop> {
    if engine.id == REDLINE {
        let name = release.ok_or_else(|| {
            Stop::wrong_use("which release? give a version such as `v0.9.2`")
                .with_hint("`--worktree` measures the files as they are now")
        })?;
        let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
        let found = release::resolve(&release::read_history(&git, &[name])?, name)?;
        return Ok(of(engine, found.name.clone(), Origin::Release(found)));
    }
    match (&engine.file.source, &engine.file.package) {
        (Some(source), _) => from_source(world, engine, source, release),
        (None, Some(_)) => {
            let version = release.map(|name| name.trim_start_matches('v').to_owned());
            let version = version.ok_or_else(|| {
                Stop::wrong_use(format!("which release of `{}`? give its version", engine.id))
                    .with_hint("the one that is installed; another is refused before it is served")
            })?;
            let name = format!("v{version}");
            Ok(of(engine, name, Origin::Installed { version, container }))
        }
        (None, None) => {
            let message = format!("engine `{}` is neither built nor installed here", engine.id);
            Err(Stop::wrong_use(message).with_hint("start it, then measure it: `--url URL`"))
        }
    }
}

/// Resolves the one release that an engine's file pins, with the flags for a server under load.
fn from_source(
    world: &World,
    engine: &Engine,
    source: &Source,
    release: Option<&str>,
) -> Result<Wanted, Stop> {
    let pinned = source.version();
    if let Some(asked) = release
        && asked.trim_start_matches('v') != pinned
    {
        let id = &engine.id;
        let message = format!("`suite/engines/{id}.toml` builds {id} {pinned}, not `{asked}`");
        return Err(Stop::wrong_use(message));
    }
    let mut wanted = of(engine, format!("v{pinned}"), Origin::Source(Box::new(source.clone())));
    wanted.variant.flags = engine.loaded_flags(world.cores);
    Ok(wanted)
}

/// Makes the variant of `--url`.
///
/// # Errors
/// The server reports another release than the named one.
pub fn running(engine: &Engine, probe: Probe, named: Option<&str>) -> Result<Wanted, Stop> {
    let bare = |version: &str| version.trim_start_matches('v').to_owned();
    let (stated, named) = (probe.version.as_deref().map(bare), named.map(bare));
    if let (Some(stated), Some(named)) = (&stated, &named)
        && !is_same(stated, named)
    {
        let message = format!("the server says that it is {stated}, not `{named}`");
        return Err(Stop::wrong_use(message).with_hint("leave the version out with `--url`"));
    }
    let release = named.or(stated).map_or("unknown".to_owned(), |version| format!("v{version}"));
    Ok(of(engine, release, Origin::Running(Box::new(probe))))
}

/// Makes a variant of the clone's files. Its name ends in `-dev`, so that it cannot be mistaken for
/// a release.
///
/// # Errors
/// The manifest has no literal version, or another one than the requested one.
pub fn working_tree(world: &World, engine: &Engine, named: Option<&str>) -> Result<Wanted, Stop> {
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let manifest = files::read_text(&world.places.root().join("engine/Cargo.toml"))?;
    let version = literal_version(&manifest).ok_or_else(|| {
        Stop::wrong_use("`engine/Cargo.toml` has no literal `version`".to_owned())
    })?;
    if let Some(named) = named
        && named.trim_start_matches('v') != version
    {
        return Err(Stop::wrong_use(format!(
            "the working tree is version {version}, not `{named}`"
        ))
        .with_hint("leave the version out with `--worktree`"));
    }
    let commit = git.try_text(&["rev-parse", "--verify", "--quiet", "HEAD"])?;
    let dirty = !git.text(&["status", "--porcelain"])?.trim().is_empty();
    // A tree between releases may carry the version of a release without being it.
    let suffix = if is_development(&version) { "" } else { "-dev" };
    let release = format!("v{version}{suffix}");
    let commit = commit.map(|commit| commit.trim().to_owned());
    Ok(of(engine, release, Origin::Tree { version, commit, dirty }))
}

/// Builds every variant; variants of one release share a build.
///
/// # Errors
/// A checkout or a build fails.
pub fn build_all(world: &World, wanted: &[Wanted]) -> Result<Vec<LaunchSpec>, Stop> {
    let mut specs: Vec<LaunchSpec> = Vec::new();
    for wanted in wanted {
        let Variant { engine, release, .. } = &wanted.variant;
        let is_same = |spec: &&LaunchSpec| {
            (&spec.built.variant.engine, &spec.built.variant.release) == (engine, release)
        };
        let spec = match specs.iter().find(is_same) {
            Some(built) => built.with_variant(wanted.variant.clone()),
            None => build_one(world, wanted)?,
        };
        specs.push(spec);
    }
    Ok(specs)
}

/// Builds one variant.
///
/// # Errors
/// The checkout or the build fails.
pub fn build_one(world: &World, wanted: &Wanted) -> Result<LaunchSpec, Stop> {
    let Variant { engine, release, .. } = &wanted.variant;
    let built = match &wanted.origin {
        Origin::Running(probe) => already_running(wanted, probe),
        Origin::Installed { version, container } => {
            world.console.step(world.clock.elapsed(), &format!("Look for {engine} {release}"));
            installed::find(world, wanted, version, *container)?
        }
        Origin::Source(source) => {
            let machine = hardware::detect(&world.programs, world.cores, &world.interrupt)?;
            let build = source::obtain(world, engine, source, &machine.cpu)?;
            build.variant(wanted.variant.clone(), source)
        }
        Origin::Release(of) => {
            world.console.step(world.clock.elapsed(), &format!("Build {release}"));
            let tree = world.places.release_tree(&of.name);
            let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
            worktree::prepare(&git, of, &tree)?;
            let checkout = Checkout { tree: &tree, commit: Some(&of.commit), dirty: false };
            build_checkout(world, wanted, &checkout, of.version())?
        }
        Origin::Tree { version, commit, dirty } => {
            world.console.step(world.clock.elapsed(), "Build the working tree");
            let (tree, dirty) = (world.places.root(), *dirty);
            let checkout = Checkout { tree, commit: commit.as_deref(), dirty };
            build_checkout(world, wanted, &checkout, version)?
        }
    };
    Ok(LaunchSpec { engine: wanted.engine.clone(), built })
}

/// The working tree's Redline, built now, with the flags of a load on `threads` threads.
///
/// # Errors
/// It does not build.
pub fn build_working_tree(world: &World, threads: u32) -> Result<LaunchSpec, Stop> {
    let mut spec = build_one(world, &tree(world, &world.catalog.engine(REDLINE)?, None)?)?;
    spec.built.variant.flags = spec.engine.loaded_flags(threads);
    Ok(spec)
}

/// A checkout of Redline: its folder, its commit, and whether it has changes beside that commit.
struct Checkout<'a> {
    tree: &'a Path,
    commit: Option<&'a str>,
    dirty: bool,
}

fn build_checkout(
    world: &World,
    wanted: &Wanted,
    checkout: &Checkout<'_>,
    version: &str,
) -> Result<BuiltVariant, Stop> {
    let release = &wanted.variant.release;
    let commit = checkout.commit.unwrap_or_default();
    let Built { binary, sha256, toolchain } = build::build(world, checkout.tree, release, commit)?;
    let facts = EngineFacts {
        name: wanted.variant.engine.clone(),
        release: release.clone(),
        commit: checkout.commit.map(str::to_owned),
        dirty: Some(checkout.dirty),
        binary_sha256: Some(sha256),
        features: Some(Vec::new()),
        toolchain,
        image_digest: None,
        build: Some(BuildFacts {
            profile: Some("release".to_owned()),
            patches: Some(Vec::new()),
            ..BuildFacts::default()
        }),
    };
    Ok(BuiltVariant::program(wanted.variant.clone(), facts, binary, Some(version.to_owned())))
}

fn already_running(wanted: &Wanted, probe: &Probe) -> BuiltVariant {
    let facts = EngineFacts {
        name: wanted.variant.engine.clone(),
        release: wanted.variant.release.clone(),
        commit: probe.commit.clone(),
        ..EngineFacts::default()
    };
    let variant = wanted.variant.clone();
    BuiltVariant { variant, facts, binary: None, version: None, image: None }
}

fn of(engine: &Engine, release: String, origin: Origin) -> Wanted {
    Wanted { variant: Variant::plain(&engine.id, &release), engine: engine.clone(), origin }
}
