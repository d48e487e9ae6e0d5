//! The variants of a campaign: resolves the command line to variants, each with the origin of its
//! program (a release, a working tree, a package, a wheel, an image or a running server), and builds
//! them.

use std::path::Path;

use schema::engine::{Distribution, Source};
use schema::probe::Probe;
use schema::run::{BuildFacts, EngineFacts};
use schema::target::{Accelerator, DeviceKind};

use crate::build::installed::{self, Place};
use crate::build::venv::Venv;
use crate::build::wheel::{Wheel, is_version};
use crate::build::{self, Built, source};
use crate::catalog::Engine;
use crate::cli::{Packages, ReleaseBench};
use crate::files;
use crate::git::Git;
use crate::node::hardware;
use crate::plan::Variant;
use crate::plan::release::{self, Release, is_development, literal_version};
use crate::server_spec::{
    BuiltVariant, Contained, Runtime, ServerSpec, image_name, image_of, is_same,
};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Id of the engine whose releases are commits of this clone.
pub const REDLINE: &str = "redline";

/// Origin of a variant's program.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A release of Redline, built from its commit.
    Release(Release),
    /// Program built from the clone's working tree: the program's version, HEAD's commit (`None`
    /// without a commit), and true as `dirty` if there are changes that are not committed.
    Tree { version: String, commit: Option<String>, dirty: bool },
    /// Source distribution of a rival engine, which is built on this machine.
    Source(Box<Distribution>),
    /// Python package of the engine in this version, in a virtual environment of its own; the build
    /// for `device`.
    Venv { version: String, device: DeviceKind },
    /// Python package of the engine in this version, as it is installed on this machine.
    Installed { version: String },
    /// Wheel of the engine's Python package that is no release, in a virtual environment whose other
    /// packages are those of the version `compared`, of its build for `device`, where the wheel allows
    /// it.
    Wheel { wheel: Wheel, compared: String, device: DeviceKind },
    /// Container image of the engine for the GPUs of `accelerator`, which `runtime` runs.
    Image { of: ImageOf, runtime: Runtime, accelerator: Accelerator },
    /// Server that is already running, with the facts that it reported to the probe.
    Running(Box<Probe>),
}

/// What a container image has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageOf {
    /// This version of the engine: the image is the one that the engine publishes for it.
    Release(String),
    /// A candidate that is no release, in the image of this name.
    Candidate(String),
}

impl ImageOf {
    /// Returns the name of the image for the GPUs of `accelerator`; `release` is that of the variant.
    ///
    /// # Errors
    /// The engine's file names no such image.
    pub fn name(
        &self,
        engine: &Engine,
        release: &str,
        accelerator: Accelerator,
    ) -> Result<String, Stop> {
        match self {
            Self::Release(_) => image_name(&engine.file, (&engine.id, release), accelerator),
            Self::Candidate(name) => Ok(name.clone()),
        }
    }
}

impl Origin {
    /// Returns true if records of the variant's runs are committed to the registry: those of
    /// releases are, those of anything else are not.
    pub fn commits(&self) -> bool {
        match self {
            Self::Tree { .. } | Self::Running(_) | Self::Wheel { .. } => false,
            Self::Image { of, .. } => matches!(of, ImageOf::Release(_)),
            Self::Release(_) | Self::Source(_) | Self::Venv { .. } | Self::Installed { .. } => true,
        }
    }
}

/// Variant of a campaign whose program is not built yet.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub variant: Variant,
    pub engine: Engine,
    pub origin: Origin,
}

impl Wanted {
    /// Returns the variant's title for the printed plan, such as `redline v0.9.2, commit
    /// 1a2b3c4d5e`.
    pub fn title(&self) -> String {
        let title = format!("{} {}", self.variant.engine, self.variant.title());
        match &self.origin {
            Origin::Release(release) => {
                let short = release.commit.get(..10).unwrap_or(&release.commit);
                format!("{title}, commit {short}")
            }
            Origin::Tree { dirty: true, .. } => format!("{title}, the working tree with changes"),
            Origin::Tree { .. } => format!("{title}, the working tree"),
            Origin::Source(source) => format!("{title}, built from {}", source.sdist),
            Origin::Venv { .. } => format!("{title}, in a virtual environment"),
            Origin::Installed { .. } => format!("{title}, as installed"),
            Origin::Wheel { wheel, compared, .. } => {
                let packages = format!("with the packages of v{compared} where it takes them");
                format!("{title}, the wheel {}, {packages}", wheel.shown())
            }
            Origin::Image { of, runtime, accelerator } => {
                let image = match (of, accelerator) {
                    (ImageOf::Candidate(name), _) => format!("the image {name}"),
                    (ImageOf::Release(_), Accelerator::Cuda) => "its image".to_owned(),
                    (ImageOf::Release(_), Accelerator::Rocm) => {
                        "its image for GPUs of AMD".to_owned()
                    }
                };
                format!("{title}, {image} under {}", runtime.program())
            }
            Origin::Running(_) => format!("{title}, already running"),
        }
    }

    /// Has the variant run on GPUs of the platform `on`, of AMD in the image that the engine publishes
    /// for them or as it is installed there; or with `None` on a processor, in the package that is
    /// built for it.
    ///
    /// # Errors
    /// Nothing of the variant runs there.
    pub fn fit(&mut self, on: Option<Accelerator>) -> Result<(), Stop> {
        let id = &self.engine.id;
        let is_amd = on == Some(Accelerator::Rocm);
        match &mut self.origin {
            Origin::Image { runtime: Runtime::Enroot, .. } if is_amd => {
                Err(Stop::wrong_use("Enroot documents no way to give GPUs of AMD to a container")
                    .with_hint("`--container` takes docker, podman and apptainer, too"))
            }
            Origin::Image { accelerator, .. } => {
                *accelerator = on.unwrap_or_default();
                Ok(())
            }
            Origin::Venv { version, .. } if is_amd => Err(wrong_use!(
                "the package of `{id}` {version} that a virtual environment gets is not built for \
                 GPUs of AMD"
            )
            .with_hint(
                "`--container docker` runs its image for them; `--installed` measures what this \
                 machine has",
            )),
            Origin::Venv { device, .. } | Origin::Wheel { device, .. } => {
                *device = if on.is_some() { DeviceKind::Gpu } else { DeviceKind::Cpu };
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Resolves the command line of `release-bench` to variants: the baseline first, then the candidate
/// and its variants, then the engines of `--beside`.
///
/// # Errors
/// The flags contradict each other or repeat a name, an engine's file is missing or invalid, or
/// anything that [`named`] or [`working_tree`] fails with.
pub fn wanted(world: &World, flags: &ReleaseBench, engine: &Engine) -> Result<Vec<Wanted>, Stop> {
    let mut variants = Vec::new();
    if let Some(baseline) = &flags.baseline {
        variants.push(named(world, engine, Some(baseline), flags.packages)?);
    }
    let mut candidate = match flags.worktree {
        true => working_tree(world, engine, flags.release.as_deref())?,
        false => named(world, engine, flags.release.as_deref(), flags.packages)?,
    };
    if let Some((name, extra)) = &flags.in_place {
        candidate.variant.name = Some(name.clone());
        candidate.variant.flags.extend_from_slice(extra);
    }
    if variants.iter().any(|baseline| baseline.variant.release == candidate.variant.release) {
        let release = &candidate.variant.release;
        return Err(wrong_use!("baseline and candidate are both {release}"));
    }
    for (name, extra) in &flags.variants {
        let mut variant = candidate.clone();
        variant.variant.name = Some(name.clone());
        variant.variant.flags.extend_from_slice(extra);
        if variants.iter().any(|other| other.variant.name == variant.variant.name) {
            return Err(wrong_use!("variant `{name}` is given twice"));
        }
        variants.push(variant);
    }
    // After the baseline and before its variants, which were cloned from it.
    variants.insert(usize::from(flags.baseline.is_some()), candidate);
    for (id, release) in &flags.beside {
        if *id == engine.id {
            return Err(wrong_use!(
                "`{id}` is the engine that is measured; `--beside` is for others"
            )
            .with_hint("two releases of one engine are compared by `--baseline`"));
        }
        variants.push(named(world, &world.catalog.engine(id)?, Some(release), flags.packages)?);
    }
    Ok(variants)
}

/// Resolves a release of an engine by its name to a variant that is not built yet.
///
/// # Errors
/// No release is named; the name is no release, or its commit is in doubt, because the history is
/// incomplete or contradicts its tag; the engine's file says neither how the engine is built nor
/// installed, or names no container image, where one is needed; or git fails or is interrupted.
pub fn named(
    world: &World,
    engine: &Engine,
    release: Option<&str>,
    packages: Packages,
) -> Result<Wanted, Stop> {
    if engine.id == REDLINE {
        let name = release.ok_or_else(|| {
            Stop::wrong_use("which release? give a version such as `v0.9.2`")
                .with_hint("`--worktree` measures the files as they are now")
        })?;
        let git = Git::open(&world.places.root, &world.interrupt)?;
        let found = release::resolve(&release::read_history(&git, &[name])?, name)?;
        return Ok(of(engine, found.name.clone(), Origin::Release(found)));
    }
    let file = &engine.file;
    match (packages.container, &file.source) {
        (Some(runtime), source) if source.is_none() || file.launch.image.is_some() => {
            image_of(file, &engine.id)?;
            let version = version_of(engine, release)?;
            let name = format!("v{version}");
            let (image, accelerator) = (ImageOf::Release(version), Accelerator::default());
            let origin = Origin::Image { of: image, runtime, accelerator };
            let mut wanted = of(engine, name, origin);
            wanted.variant.flags = engine.loaded_flags(world.cores);
            Ok(wanted)
        }
        (_, Some(source)) => from_source(world, engine, source, release),
        (_, None) if file.package.is_some() => {
            let version = version_of(engine, release)?;
            let name = format!("v{version}");
            let origin = match packages.installed {
                true => Origin::Installed { version },
                false => Origin::Venv { version, device: DeviceKind::Gpu },
            };
            Ok(of(engine, name, origin))
        }
        (_, None) => {
            let image = file.launch.image.as_ref();
            let image = image.map_or("", |_| "`--container docker` runs its image; or ");
            Err(wrong_use!("engine `{}` is neither built nor installed here", engine.id)
                .with_hint(format!("{image}start it, then measure it: `--url URL`")))
        }
    }
}

/// Returns the version of a release that the user has named, without `v`.
///
/// # Errors
/// No release is named, or the name has characters that no version has.
fn version_of(engine: &Engine, release: Option<&str>) -> Result<String, Stop> {
    let name = release.ok_or_else(|| {
        wrong_use!("which release of `{}`? give its version", engine.id)
            .with_hint("such as `v0.10.0`, or `0.10.0`")
    })?;
    let version = name.trim_start_matches('v');
    match is_version(version) {
        true => Ok(version.to_owned()),
        false => Err(wrong_use!("`{name}` is no version of `{}`", engine.id)),
    }
}

/// Resolves any commit of this clone to a variant that is not built yet.
///
/// # Errors
/// git finds no such commit, the engine has no literal version there, git cannot be run, or the
/// wait for it is interrupted.
pub fn commit(world: &World, engine: &Engine, wanted: &str) -> Result<Wanted, Stop> {
    let git = Git::open(&world.places.root, &world.interrupt)?;
    let found = release::at_commit(&git, wanted)?;
    Ok(of(engine, found.name.clone(), Origin::Release(found)))
}

/// Resolves a rival engine that is built from source to a variant: a release that its file pins, by
/// default the newest, with the flags for a server under load.
///
/// # Errors
/// The file does not pin the requested release.
fn from_source(
    world: &World,
    engine: &Engine,
    source: &Source,
    release: Option<&str>,
) -> Result<Wanted, Stop> {
    let pinned = match release {
        None => source.newest(),
        Some(asked) => source.release(asked).ok_or_else(|| {
            let (id, known) = (&engine.id, source.versions().join(" and "));
            wrong_use!("`suite/engines/{id}.toml` builds {id} {known}, not `{asked}`")
                .with_hint("`[source] older` is the place for another version and its SHA-256")
        })?,
    };
    let name = format!("v{}", pinned.version);
    let mut wanted = of(engine, name, Origin::Source(Box::new(pinned)));
    wanted.variant.flags = engine.loaded_flags(world.cores);
    Ok(wanted)
}

/// Resolves `--url` to a variant: the server that is already running and has answered `probe`.
///
/// # Errors
/// The server reports another release than the named one.
pub fn running(engine: &Engine, probe: Probe, named: Option<&str>) -> Result<Wanted, Stop> {
    let bare = |version: &str| version.trim_start_matches('v').to_owned();
    let (stated, named) = (probe.version.as_deref().map(bare), named.map(bare));
    if let (Some(stated), Some(named)) = (&stated, &named)
        && !is_same(stated, named)
    {
        return Err(wrong_use!("the server says that it is {stated}, not `{named}`")
            .with_hint("leave the version out with `--url`"));
    }
    let release = named.or(stated).map_or("unknown".to_owned(), |version| format!("v{version}"));
    Ok(of(engine, release, Origin::Running(Box::new(probe))))
}

/// Resolves `--worktree` to a variant of the clone's own files. Its name ends in `-dev`, so that it
/// cannot be mistaken for a release.
///
/// # Errors
/// The engine is not built from this clone, the manifest cannot be read or has no literal version
/// or another one than the requested one, the clone's root is not the top folder of a git clone, or
/// git fails or is interrupted.
pub fn working_tree(world: &World, engine: &Engine, named: Option<&str>) -> Result<Wanted, Stop> {
    if engine.id != REDLINE {
        let id = &engine.id;
        return Err(wrong_use!("`--worktree` is this clone's own tree, not one of `{id}`"));
    }
    let git = Git::open(&world.places.root, &world.interrupt)?;
    let manifest = files::read_text(&world.places.root.join("engine/Cargo.toml"))?;
    let version = literal_version(&manifest)
        .ok_or_else(|| Stop::wrong_use("`engine/Cargo.toml` has no literal `version`"))?;
    if let Some(named) = named
        && named.trim_start_matches('v') != version
    {
        return Err(wrong_use!("the working tree is version {version}, not `{named}`")
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

/// Builds the program of every variant; variants of one release share a build.
///
/// # Errors
/// Anything that [`build_one`] fails with.
pub fn build_all(world: &World, wanted: &[Wanted]) -> Result<Vec<ServerSpec>, Stop> {
    let mut specs: Vec<ServerSpec> = Vec::new();
    for wanted in wanted {
        let Variant { engine, release, .. } = &wanted.variant;
        let is_same = |spec: &&ServerSpec| {
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

/// Builds the program of one variant, or finds it where it is installed or running.
///
/// # Errors
/// The release cannot be checked out, downloaded, built or installed; the package is not installed in
/// the requested version, or Python or the container runtime fails; a file cannot be read or
/// written; or the command is interrupted.
pub fn build_one(world: &World, wanted: &Wanted) -> Result<ServerSpec, Stop> {
    let Variant { engine, release, .. } = &wanted.variant;
    let of = (&wanted.engine, &wanted.variant);
    let built = match &wanted.origin {
        Origin::Running(probe) => {
            let facts = EngineFacts {
                name: engine.clone(),
                release: release.clone(),
                commit: probe.commit.clone(),
                ..EngineFacts::default()
            };
            let variant = wanted.variant.clone();
            BuiltVariant { variant, facts, binary: None, version: None, image: None, venv: None }
        }
        Origin::Venv { version, device } => {
            let venv = Venv::of(world, &wanted.engine, (version, *device))?.obtain()?;
            installed::variant(world, of, Some(version), Place::Venv(venv))?
        }
        Origin::Wheel { wheel, compared, device } => {
            let release = Venv::of(world, &wanted.engine, (compared, *device))?;
            let venv = release.with_wheel(wheel)?.obtain()?;
            let built = installed::variant(world, of, Some(&wheel.version), Place::Venv(venv))?;
            unreleased(built, Some(wheel))
        }
        Origin::Installed { version } => {
            world.step(&format!("Look for {engine} {release}"));
            installed::variant(world, of, Some(version), Place::Machine)?
        }
        Origin::Image { of: image, runtime, accelerator } => {
            let place =
                |pulled: Contained| Place::Image(Contained { accelerator: *accelerator, ..pulled });
            match image {
                ImageOf::Release(version) => {
                    let name = image.name(&wanted.engine, release, *accelerator)?;
                    let pulled = installed::pull(world, *runtime, name)?;
                    installed::variant(world, of, Some(version), place(pulled))?
                }
                ImageOf::Candidate(name) => {
                    let pulled = installed::pull_by_digest(world, *runtime, name)?;
                    unreleased(installed::variant(world, of, None, place(pulled))?, None)
                }
            }
        }
        Origin::Source(source) => {
            let machine = hardware::detect(world)?;
            let build = source::obtain(world, engine, source, &machine.cpu)?;
            build.variant(wanted.variant.clone(), source)
        }
        Origin::Release(of) => {
            world.step(&format!("Build {release}"));
            let tree = world.places.release_tree(&of.name);
            let git = Git::open(&world.places.root, &world.interrupt)?;
            build::check_out(&git, of, &tree)?;
            build_checkout(world, wanted, &tree, (of.version(), Some(&of.commit), false))?
        }
        Origin::Tree { version, commit, dirty } => {
            world.step("Build the working tree");
            let of = (version.as_str(), commit.as_deref(), *dirty);
            build_checkout(world, wanted, &world.places.root, of)?
        }
    };
    Ok(ServerSpec { engine: wanted.engine.clone(), built })
}

/// Removes from a candidate that is no release what is known of releases alone, and adds the hash of
/// its wheel.
fn unreleased(mut built: BuiltVariant, wheel: Option<&Wheel>) -> BuiltVariant {
    let facts = &mut built.facts;
    (facts.dirty, facts.features) = (None, None);
    if let Some(build) = &mut facts.build {
        build.patches = None;
        build.wheel_sha256 = wheel.map(|wheel| wheel.sha256.clone());
    }
    built
}

/// Builds the working tree's Redline, with the flags of a server under load on `threads` threads.
///
/// # Errors
/// The engine's file is missing or invalid, or anything that [`working_tree`] or [`build_one`]
/// fails with.
pub fn build_working_tree(world: &World, threads: u32) -> Result<ServerSpec, Stop> {
    let mut spec = build_one(world, &working_tree(world, &world.catalog.engine(REDLINE)?, None)?)?;
    spec.built.variant.flags = spec.engine.loaded_flags(threads);
    Ok(spec)
}

/// Builds Redline in the checkout `tree`. Its version, its commit, and whether it has changes that
/// are not committed, become facts of the build.
fn build_checkout(
    world: &World,
    wanted: &Wanted,
    tree: &Path,
    (version, commit, dirty): (&str, Option<&str>, bool),
) -> Result<BuiltVariant, Stop> {
    let release = &wanted.variant.release;
    let Built { binary, sha256, toolchain } =
        build::build(world, tree, release, commit.unwrap_or_default())?;
    let facts = EngineFacts {
        name: wanted.variant.engine.clone(),
        release: release.clone(),
        commit: commit.map(str::to_owned),
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
    Ok(BuiltVariant::program(wanted.variant.clone(), facts, binary, Some(version.to_owned())))
}

fn of(engine: &Engine, release: String, origin: Origin) -> Wanted {
    Wanted { variant: Variant::plain(&engine.id, &release), engine: engine.clone(), origin }
}
