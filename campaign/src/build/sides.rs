//! The variants of a campaign: resolves the command line to releases of engines, a working tree or
//! a running server, and builds each.

use schema::engine::Source;
use schema::probe::Probe;
use schema::run::{BuildFacts, EngineFacts};

use crate::build::container::Runtime;
use crate::build::installed;
use crate::build::worktree;
use crate::build::{self, Built, contender, source};
use crate::cli::ReleaseBench;
use crate::files;
use crate::git::Git;
use crate::node::hardware;
use crate::node::run::{BuiltSide, Engine};
use crate::plan::Side;
use crate::plan::release::{self, Release, is_development, literal_version};
use crate::stop::Stop;
use crate::world::World;

/// Id of the engine whose releases are commits of this clone.
pub const REDLINE: &str = "redline";

/// Origin of a variant's program.
#[derive(Debug, Clone)]
pub enum Origin {
    Release(Release),
    /// The working tree of the clone.
    Tree {
        version: String,
        commit: Option<String>,
        dirty: bool,
    },
    /// A source distribution that is built here.
    Source(Box<Source>),
    /// A Python package installed on this machine, or a container image with one.
    Installed {
        version: String,
        container: Option<Runtime>,
    },
    /// A server that is already running, and its answer to the probe.
    Running(Box<Probe>),
}

impl Origin {
    /// True when records of this origin are committed. Those of a working tree or of a server
    /// started by somebody else are not.
    #[must_use]
    pub fn commits(&self) -> bool {
        !matches!(self, Self::Tree { .. } | Self::Running(_))
    }
}

/// A variant before it is built.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub side: Side,
    pub engine: Engine,
    pub origin: Origin,
}

impl Wanted {
    /// Title for the printed plan, such as `redline v0.9.2, commit 1a2b3c4d5e`.
    #[must_use]
    pub fn title(&self) -> String {
        let title = format!("{} {}", self.side.engine, self.side.title());
        match &self.origin {
            Origin::Release(release) => {
                let short = release.commit.get(..10).unwrap_or(&release.commit);
                format!("{title}, commit {short}")
            }
            Origin::Tree { dirty: true, .. } => format!("{title}, the working tree with changes"),
            Origin::Tree { .. } => format!("{title}, the working tree"),
            Origin::Source(source) => format!("{title}, built from {}", source.sdist),
            Origin::Installed { container: Some(runtime), .. } => {
                format!("{title}, its image under {}", runtime.program())
            }
            Origin::Installed { .. } => format!("{title}, as installed"),
            Origin::Running(_) => format!("{title}, already running"),
        }
    }
}

/// Resolves the command line to variants: the baseline first, then the candidate and its variants,
/// then the engines of `--beside`.
///
/// # Errors
/// A release cannot be resolved, or the flags contradict each other.
pub fn wanted(world: &World, flags: &ReleaseBench, engine: &Engine) -> Result<Vec<Wanted>, Stop> {
    let mut sides = Vec::new();
    if let Some(baseline) = &flags.baseline {
        sides.push(named(world, engine, Some(baseline), flags.container)?);
    }
    let candidate = match flags.worktree {
        true => tree(world, engine, flags.release.as_deref())?,
        false => named(world, engine, flags.release.as_deref(), flags.container)?,
    };
    if sides.iter().any(|baseline| baseline.side.release == candidate.side.release) {
        let release = &candidate.side.release;
        return Err(Stop::wrong_use(format!("baseline and candidate are both {release}")));
    }
    for (name, extra) in &flags.variants {
        let mut variant = candidate.clone();
        variant.side.variant = Some(name.clone());
        variant.side.flags.extend_from_slice(extra);
        if sides.iter().any(|side| side.side.variant == variant.side.variant) {
            return Err(Stop::wrong_use(format!("variant `{name}` is given twice")));
        }
        sides.push(variant);
    }
    // After the baseline and before its variants, which were cloned from it.
    sides.insert(usize::from(flags.baseline.is_some()), candidate);
    for (id, release) in &flags.beside {
        if *id == engine.id {
            let message =
                format!("`{id}` is the engine that is measured; `--beside` is for others");
            return Err(Stop::wrong_use(message)
                .with_hint("two releases of one engine are compared by `--baseline`"));
        }
        let (path, file) = world.catalog.engine(id)?;
        let other = Engine { id: id.clone(), path, file };
        sides.push(named(world, &other, Some(release), flags.container)?);
    }
    Ok(sides)
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
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    working_tree(world, &git, engine, release)
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
    wanted.side.flags = contender::loaded_flags(&engine.file, world.cores);
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
        && !installed::is_same(stated, named)
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
pub fn working_tree(
    world: &World,
    git: &Git,
    engine: &Engine,
    named: Option<&str>,
) -> Result<Wanted, Stop> {
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
pub fn build_all(world: &World, wanted: &[Wanted]) -> Result<Vec<BuiltSide>, Stop> {
    let mut built: Vec<BuiltSide> = Vec::new();
    for side in wanted {
        let of_one = |other: &&BuiltSide| {
            (&other.side.engine, &other.side.release) == (&side.side.engine, &side.side.release)
        };
        let next = match built.iter().find(of_one) {
            Some(same) => BuiltSide { side: side.side.clone(), ..same.clone() },
            None => build_one(world, side)?,
        };
        built.push(next);
    }
    Ok(built)
}

/// Builds one variant.
///
/// # Errors
/// The checkout or the build fails.
pub fn build_one(world: &World, wanted: &Wanted) -> Result<BuiltSide, Stop> {
    let release = &wanted.side.release;
    let (tree, version, commit, dirty) = match &wanted.origin {
        Origin::Running(probe) => return Ok(already_running(wanted, probe)),
        Origin::Installed { version, container } => {
            let title = format!("Find {} {release}", wanted.side.engine);
            world.console.step(world.clock.elapsed(), &title);
            return installed::find(world, wanted, version, *container);
        }
        Origin::Source(source) => return build_source(world, wanted, source),
        Origin::Release(of) => {
            world.console.step(world.clock.elapsed(), &format!("Build {release}"));
            let tree = world.places.release_tree(&of.name);
            let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
            worktree::prepare(&git, of, &tree)?;
            (tree, of.version().to_owned(), Some(of.commit.clone()), false)
        }
        Origin::Tree { version, commit, dirty } => {
            world.console.step(world.clock.elapsed(), "Build the working tree");
            (world.places.root().to_owned(), version.clone(), commit.clone(), *dirty)
        }
    };
    let Built { binary, sha256, toolchain } = build::build(
        &world.programs,
        &world.places,
        &tree,
        (release, commit.as_deref().unwrap_or_default()),
        &world.interrupt,
    )?;
    let facts = EngineFacts {
        name: wanted.side.engine.clone(),
        release: release.clone(),
        commit,
        dirty: Some(dirty),
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
    Ok(BuiltSide::program(wanted.side.clone(), facts, binary, Some(version)))
}

/// Builds an engine from its source distribution, for a variant with its own flags.
fn build_source(world: &World, wanted: &Wanted, distribution: &Source) -> Result<BuiltSide, Stop> {
    let machine = hardware::detect(&world.programs, world.cores, &world.interrupt)?;
    let build = source::obtain(world, &wanted.side.engine, distribution, &machine.cpu)?;
    let peer = contender::peer(wanted.engine.clone(), distribution, &build, world.cores);
    Ok(BuiltSide { side: wanted.side.clone(), ..peer.built })
}

fn already_running(wanted: &Wanted, probe: &Probe) -> BuiltSide {
    let facts = EngineFacts {
        name: wanted.side.engine.clone(),
        release: wanted.side.release.clone(),
        commit: probe.commit.clone(),
        ..EngineFacts::default()
    };
    BuiltSide { side: wanted.side.clone(), facts, binary: None, version: None, image: None }
}

fn of(engine: &Engine, release: String, origin: Origin) -> Wanted {
    Wanted { side: Side::plain(&engine.id, &release), engine: engine.clone(), origin }
}
