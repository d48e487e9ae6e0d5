//! The variants of a campaign: resolves the command line to variants, each with the origin of its
//! program (a release, a working tree, an installed package or a running server), and builds them.

use std::path::Path;
use std::process::Command;

use schema::engine::{Package, Source};
use schema::probe::Probe;
use schema::run::{BuildFacts, EngineFacts};
use serde::Deserialize;

use crate::build::{self, Built, source};
use crate::catalog::Engine;
use crate::cli::ReleaseBench;
use crate::files;
use crate::git::Git;
use crate::node::hardware;
use crate::plan::Variant;
use crate::plan::release::{self, Release, is_development, literal_version};
use crate::process::{Written, capture};
use crate::server_spec::{
    BuiltVariant, Contained, Runtime, ServerSpec, image_name, image_of, is_same,
};
use crate::stop::{Stop, environment, wrong_use};
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
    Source(Box<Source>),
    /// Python package of the engine that is already installed, in version `version`: in a container
    /// image that `container` runs, or with `None` on this machine.
    Installed { version: String, container: Option<Runtime> },
    /// Server that is already running, with the facts that it reported to the probe.
    Running(Box<Probe>),
}

impl Origin {
    /// Returns true if records of the variant's runs are committed to the registry: those of
    /// releases are, those of a working tree or of an already running server are not.
    pub fn commits(&self) -> bool {
        !matches!(self, Self::Tree { .. } | Self::Running(_))
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
            Origin::Installed { container: Some(runtime), .. } => {
                format!("{title}, its image under {}", runtime.program())
            }
            Origin::Installed { .. } => format!("{title}, as installed"),
            Origin::Running(_) => format!("{title}, already running"),
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
        variants.push(named(world, engine, Some(baseline), flags.container)?);
    }
    let candidate = match flags.worktree {
        true => working_tree(world, engine, flags.release.as_deref())?,
        false => named(world, engine, flags.release.as_deref(), flags.container)?,
    };
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
        variants.push(named(world, &world.catalog.engine(id)?, Some(release), flags.container)?);
    }
    Ok(variants)
}

/// Resolves a release of an engine by its name to a variant that is not built yet.
///
/// # Errors
/// No release is named; the name is no release, or its commit is in doubt, because the history is
/// incomplete or contradicts its tag; the engine is neither built nor installed here; or git fails
/// or is interrupted.
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
        let git = Git::open(&world.places.root, &world.interrupt)?;
        let found = release::resolve(&release::read_history(&git, &[name])?, name)?;
        return Ok(of(engine, found.name.clone(), Origin::Release(found)));
    }
    match (&engine.file.source, &engine.file.package) {
        (Some(source), _) => from_source(world, engine, source, release),
        (None, Some(_)) => {
            let version = release.map(|name| name.trim_start_matches('v').to_owned());
            let version = version.ok_or_else(|| {
                wrong_use!("which release of `{}`? give its version", engine.id)
                    .with_hint("the one that is installed; another is refused before it is served")
            })?;
            let name = format!("v{version}");
            Ok(of(engine, name, Origin::Installed { version, container }))
        }
        (None, None) => {
            Err(wrong_use!("engine `{}` is neither built nor installed here", engine.id)
                .with_hint("start it, then measure it: `--url URL`"))
        }
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

/// Resolves a rival engine that is built from source to a variant: its only release, which its file
/// pins, with the flags for a server under load. Another requested release is refused.
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
        return Err(wrong_use!("`suite/engines/{id}.toml` builds {id} {pinned}, not `{asked}`"));
    }
    let mut wanted = of(engine, format!("v{pinned}"), Origin::Source(Box::new(source.clone())));
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
/// The release cannot be checked out, downloaded or built; the package is not installed in the
/// requested version, or Python or the container runtime fails; the engine's file names no
/// container image, where one is needed; a file cannot be read or written; or the command is
/// interrupted.
pub fn build_one(world: &World, wanted: &Wanted) -> Result<ServerSpec, Stop> {
    let Variant { engine, release, .. } = &wanted.variant;
    let built = match &wanted.origin {
        Origin::Running(probe) => {
            let facts = EngineFacts {
                name: engine.clone(),
                release: release.clone(),
                commit: probe.commit.clone(),
                ..EngineFacts::default()
            };
            let variant = wanted.variant.clone();
            BuiltVariant { variant, facts, binary: None, version: None, image: None }
        }
        Origin::Installed { version, container } => {
            world.step(&format!("Look for {engine} {release}"));
            installed(world, (&wanted.engine, &wanted.variant), version, *container)?
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

/// Python script that looks for an installed package of an engine.
const SCRIPT: &str = include_str!("installed.py");

/// Installed package of an engine, parsed from the JSON that the Python script prints after it has
/// looked for the package: name, version and a hash of the package's files.
#[derive(Debug, Deserialize)]
struct Found {
    name: String,
    version: String,
    files_sha256: Option<String>,
}

/// Returns the variant of an engine that is a Python package: the requested release has to be the
/// installed one, on this machine or in a container image.
///
/// # Errors
/// The package or the requested release of it is not installed, Python or the container runtime
/// cannot be run, the engine's file names no container image although one is needed, or the wait is
/// interrupted.
fn installed(
    world: &World,
    (engine, variant): (&Engine, &Variant),
    version: &str,
    container: Option<Runtime>,
) -> Result<BuiltVariant, Stop> {
    let none = Package { names: Vec::new() };
    let package = engine.file.package.as_ref().unwrap_or(&none);
    let contained = |runtime| -> Result<_, Stop> {
        let image = image_name(image_of(&engine.file, &engine.id)?, &variant.release);
        Ok(Contained { runtime, image })
    };
    let image = container.map(contained).transpose()?;
    let place = match &image {
        Some(image) => format!("in `{}`", image.image),
        None => "on this machine".to_owned(),
    };
    let mut ask = question(image.as_ref());
    ask.args(["-c", SCRIPT]).args(&package.names);
    let written = capture(&mut ask, &world.interrupt)?;
    let found = read_found(&written, package, &place)?;
    if !is_same(&found.version, version) {
        let Found { name, version: found, .. } = found;
        return Err(environment!("{name} {found} is installed {place}, not {version}").with_hint(format!(
            "`python3 -m pip install {name}=={version}`: numbers under another release's name would \
             help nobody"
        )));
    }
    // A tag can be moved to another image, a digest cannot.
    let image_digest = image.as_ref().and_then(|image| digest(world, image));
    let facts = EngineFacts {
        name: variant.engine.clone(),
        release: variant.release.clone(),
        dirty: Some(false),
        binary_sha256: found.files_sha256,
        features: Some(Vec::new()),
        image_digest,
        build: Some(BuildFacts {
            source_url: Some(format!("{}=={}", found.name, found.version)),
            image: image.as_ref().map(|image| image.image.clone()),
            patches: Some(Vec::new()),
            ..BuildFacts::default()
        }),
        ..EngineFacts::default()
    };
    Ok(BuiltVariant {
        variant: variant.clone(),
        facts,
        binary: None,
        version: Some(version.to_owned()),
        image,
    })
}

/// Builds the command that runs Python where the server would run: on this machine or in its image.
fn question(image: Option<&Contained>) -> Command {
    let Some(Contained { runtime, image }) = image else {
        return Command::new("python3");
    };
    let mut command = Command::new(runtime.program());
    match runtime {
        Runtime::Apptainer => command.args(["exec", &format!("docker://{image}"), "python3"]),
        _ => command.args(["run", "--rm", "--entrypoint", "python3", image]),
    };
    command
}

fn read_found(written: &Written, package: &Package, place: &str) -> Result<Found, Stop> {
    let names = package.names.join(" or ");
    if !written.status.success() {
        let said = written.last_said().unwrap_or("it says nothing");
        return Err(environment!("cannot tell if {names} is installed: {said}"));
    }
    serde_json::from_str(&written.stdout).map_err(|_| {
        let first = package.names.first().map_or("", String::as_str);
        environment!("{names} is not installed {place}").with_hint(format!(
            "`python3 -m pip install {first}==VERSION` in an environment whose programs come first on \
             the PATH, or `--container docker`"
        ))
    })
}

/// Returns the digest, `sha256:...`, by which the registry of images knows a container image;
/// `None` for Apptainer, and if the runtime reports none.
fn digest(world: &World, image: &Contained) -> Option<String> {
    if image.runtime == Runtime::Apptainer {
        return None;
    }
    let mut ask = Command::new(image.runtime.program());
    ask.args(["image", "inspect", "--format", "{{index .RepoDigests 0}}", &image.image]);
    let written = capture(&mut ask, &world.interrupt).ok()?;
    let digest = written.stdout.trim().rsplit('@').next()?.to_owned();
    digest.starts_with("sha256:").then_some(digest)
}
