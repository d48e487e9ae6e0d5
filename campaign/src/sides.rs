//! The sides of a campaign: which releases (or which tree, or which running server) are measured,
//! and how each becomes a binary.

use schema::probe::Probe;
use schema::run::{BuildFacts, EngineFacts};

use crate::build::{self, Built};
use crate::cli::ReleaseBench;
use crate::files;
use crate::git::Git;
use crate::plan::Side;
use crate::release::{self, Release, is_development, literal_version};
use crate::run::BuiltSide;
use crate::stop::Stop;
use crate::worktree;
use crate::world::World;

/// Where a side's program comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    Release(Release),
    /// The clone's own files as they are now.
    Tree {
        version: String,
        commit: Option<String>,
        dirty: bool,
    },
    /// A server that is already running, and what it said.
    Running(Box<Probe>),
}

/// A side before it is built.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub side: Side,
    pub origin: Origin,
}

impl Wanted {
    /// `v0.9.2 (commit 1a2b3c4d5e)`.
    #[must_use]
    pub fn title(&self) -> String {
        let title = self.side.title();
        match &self.origin {
            Origin::Release(release) => {
                let short = release.commit.get(..10).unwrap_or(&release.commit);
                format!("{title}, commit {short}")
            }
            Origin::Tree { dirty: true, .. } => format!("{title}, the working tree with changes"),
            Origin::Tree { .. } => format!("{title}, the working tree"),
            Origin::Running(_) => format!("{title}, already running"),
        }
    }
}

/// Resolves what the command line asks for, baseline first.
///
/// # Errors
/// A release cannot be resolved, or the flags contradict each other.
pub fn wanted(world: &World, flags: &ReleaseBench) -> Result<Vec<Wanted>, Stop> {
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let names: Vec<&str> =
        flags.baseline.iter().chain(&flags.release).map(String::as_str).collect();
    let history = release::read_history(&git, &names)?;
    let released = |name: &str| -> Result<Wanted, Stop> {
        let release = release::resolve(&history, name)?;
        Ok(of(release.name.clone(), Origin::Release(release)))
    };
    let mut sides = Vec::new();
    if let Some(baseline) = &flags.baseline {
        sides.push(released(baseline)?);
    }
    let candidate = match (&flags.release, flags.worktree) {
        (_, true) => working_tree(world, &git, flags.release.as_deref())?,
        (Some(name), false) => released(name)?,
        (None, false) => {
            return Err(Stop::wrong_use("which release? give a version such as `v0.9.2`")
                .with_hint("`--worktree` measures the files as they are now"));
        }
    };
    if sides.iter().any(|baseline| baseline.side.release == candidate.side.release) {
        let release = &candidate.side.release;
        return Err(Stop::wrong_use(format!("baseline and candidate are both {release}")));
    }
    for (name, extra) in &flags.variants {
        let mut variant = candidate.clone();
        variant.side.variant = Some(name.clone());
        variant.side.flags.clone_from(extra);
        if sides.iter().any(|side| side.side.variant == variant.side.variant) {
            return Err(Stop::wrong_use(format!("variant `{name}` is given twice")));
        }
        sides.push(variant);
    }
    sides.insert(usize::from(flags.baseline.is_some()), candidate);
    Ok(sides)
}

/// The one side of `--url`.
#[must_use]
pub fn running(probe: Probe, named: Option<&str>) -> Wanted {
    let stated = probe.version.as_deref().or(named);
    let release =
        stated.map_or("unknown".to_owned(), |v| format!("v{}", v.trim_start_matches('v')));
    of(release, Origin::Running(Box::new(probe)))
}

/// The files of the clone as a side of their own; its name never looks like a release.
///
/// # Errors
/// The manifest has no literal version, or another one than was asked for.
pub fn working_tree(world: &World, git: &Git, named: Option<&str>) -> Result<Wanted, Stop> {
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
    let suffix = if is_development(&version) { "" } else { "-dev" };
    let release = format!("v{version}{suffix}");
    let commit = commit.map(|commit| commit.trim().to_owned());
    Ok(of(release, Origin::Tree { version, commit, dirty }))
}

/// Builds every side; sides of one origin are built once.
///
/// # Errors
/// A checkout or a build fails.
pub fn build_all(world: &World, engine: &str, wanted: &[Wanted]) -> Result<Vec<BuiltSide>, Stop> {
    let mut built: Vec<BuiltSide> = Vec::new();
    for side in wanted {
        let same = built.iter().find(|other| other.side.release == side.side.release);
        let next = match same {
            Some(same) => BuiltSide { side: side.side.clone(), ..same.clone() },
            None => build_one(world, engine, side)?,
        };
        built.push(next);
    }
    Ok(built)
}

/// Builds one side.
///
/// # Errors
/// The checkout or the build fails.
pub fn build_one(world: &World, engine: &str, wanted: &Wanted) -> Result<BuiltSide, Stop> {
    let release = &wanted.side.release;
    let (tree, version, commit, dirty) = match &wanted.origin {
        Origin::Running(probe) => return Ok(already_running(engine, wanted, probe)),
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
        name: engine.to_owned(),
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
    Ok(BuiltSide { side: wanted.side.clone(), facts, binary: Some(binary), version: Some(version) })
}

fn already_running(engine: &str, wanted: &Wanted, probe: &Probe) -> BuiltSide {
    let facts = EngineFacts {
        name: engine.to_owned(),
        release: wanted.side.release.clone(),
        commit: probe.commit.clone(),
        ..EngineFacts::default()
    };
    BuiltSide { side: wanted.side.clone(), facts, binary: None, version: None }
}

fn of(release: String, origin: Origin) -> Wanted {
    Wanted { side: Side { release, variant: None, flags: Vec::new() }, origin }
}
