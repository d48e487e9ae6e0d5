//! The two engines of a comparison beside campaigns: Redline as built from the clone, and a rival
//! engine as built from its source.

use std::path::Path;

use schema::engine::{EngineFile, Source};
use schema::run::{BuildFacts, EngineFacts};

use crate::build::sides::{self, REDLINE};
use crate::build::source::PeerBuild;
use crate::git::Git;
use crate::node::run::{BuiltSide, Engine};
use crate::plan::Side;
use crate::stop::Stop;
use crate::world::World;

/// An engine of a comparison, built and with its flags.
#[derive(Debug, Clone)]
pub struct Contender {
    pub engine: Engine,
    /// Built variant, whose flags are those of a server under load.
    pub built: BuiltSide,
    /// Server flags of a server that is not loaded: only the number of threads is set.
    pub plain_flags: Vec<String>,
}

impl Contender {
    /// Path of the server's program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        self.built.binary.as_deref().unwrap_or(Path::new(&self.engine.id))
    }
}

/// Builds Redline from the working tree.
///
/// # Errors
/// It does not build.
pub fn redline(world: &World, threads: u32) -> Result<Contender, Stop> {
    let (path, file) = world.catalog.engine(REDLINE)?;
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let engine = Engine { id: REDLINE.to_owned(), path, file };
    let wanted = sides::working_tree(world, &git, &engine, None)?;
    let mut built = sides::build_one(world, &wanted)?;
    let plain_flags = thread_flags(&engine.file, threads);
    built.side.flags = loaded_flags(&engine.file, threads);
    Ok(Contender { engine, built, plain_flags })
}

/// Describes the built rival engine; the first program of its source is the server.
#[must_use]
pub fn peer(engine: Engine, source: &Source, build: &PeerBuild, threads: u32) -> Contender {
    let server = source.programs.first().map_or("", String::as_str);
    let facts = EngineFacts {
        name: engine.id.clone(),
        release: format!("v{}", source.version()),
        binary_sha256: build.facts.programs.get(server).cloned(),
        toolchain: build.facts.compiler.clone(),
        dirty: Some(false),
        features: Some(build.facts.settings.clone()),
        build: Some(BuildFacts {
            profile: Some("release".to_owned()),
            source_url: Some(source.sdist.clone()),
            patches: Some(Vec::new()),
            ..BuildFacts::default()
        }),
        ..EngineFacts::default()
    };
    let plain_flags = thread_flags(&engine.file, threads);
    let flags = loaded_flags(&engine.file, threads);
    let side = Side { flags, ..Side::plain(&engine.id, &facts.release) };
    // No version check: what a rival's server reports need not be its package's version.
    let built = BuiltSide::program(side, facts, build.dir.join(server), None);
    Contender { engine, built, plain_flags }
}

/// Server flags of a server under load, with `{threads}` filled in.
#[must_use]
pub fn loaded_flags(file: &EngineFile, threads: u32) -> Vec<String> {
    [thread_flags(file, threads), file.launch.load.clone()].concat()
}

fn thread_flags(file: &EngineFile, threads: u32) -> Vec<String> {
    let fill = |word: &String| word.replace("{threads}", &threads.to_string());
    file.launch.threads.iter().map(fill).collect()
}
