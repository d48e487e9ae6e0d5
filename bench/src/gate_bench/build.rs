//! Builds of the baseline, which is a commit of this clone, and of each planted change of it, in
//! worktrees below `target/gate-bench`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use campaign::build::variants::{self, Origin, REDLINE, Wanted};
use campaign::build::{self, Built};
use campaign::files::{read_text, write_whole};
use campaign::git::Git;
use campaign::plan::release::Release;
use campaign::server_spec::{BuiltVariant, ServerSpec};
use campaign::{Stop, World};
use schema::canonical::{sha256_hex, to_file_text};
use schema::run::{BuildFacts, EngineFacts, Patch};

use super::planted::Kind;

/// Worktree in which the baseline and the planted changes are built, in the command's folder.
const TREE: &str = "tree";
/// Worktree in which the baseline's code is built a second time.
const OTHER_TREE: &str = "same";
/// File with the builds that exist, in the command's folder.
const KEPT: &str = "builds.json";

/// Patch of a planted change.
#[derive(Debug)]
struct Change {
    path: PathBuf,
    text: String,
    /// What the change does.
    reason: String,
}

impl Change {
    fn facts(self) -> Patch {
        Patch { sha256: sha256_hex(self.text.as_bytes()), reason: self.reason }
    }
}

/// Builder of the baseline and its planted changes.
#[derive(Debug)]
pub struct Builder<'a> {
    world: &'a World,
    dir: PathBuf,
    wanted: Wanted,
    release: Release,
    /// Hashes by which git knows what the engine is built from: a commit that changes nothing of it
    /// needs no build.
    sources: String,
}

impl<'a> Builder<'a> {
    /// Prepares builds of HEAD.
    ///
    /// # Errors
    /// The clone has no commit, its engine has no literal version, or git fails.
    pub fn of_head(world: &'a World) -> Result<Self, Stop> {
        let wanted = variants::commit(world, &world.catalog.engine(REDLINE)?, "HEAD")?;
        let Origin::Release(release) = wanted.origin.clone() else {
            return Err(Stop::wrong_use("HEAD is no commit of this clone"));
        };
        let git = Git::open(&world.places.root, &world.interrupt)?;
        let sources =
            git.text(&["rev-parse", "HEAD:engine", "HEAD:Cargo.toml", "HEAD:Cargo.lock"])?;
        Ok(Self { world, dir: world.places.target("gate-bench"), wanted, release, sources })
    }

    /// Returns the hash of the baseline's commit.
    pub fn commit(&self) -> &str {
        &self.release.commit
    }

    /// Builds the baseline.
    ///
    /// # Errors
    /// The worktree cannot be made, the build fails, or a file cannot be read or written.
    pub fn baseline(&self) -> Result<ServerSpec, Stop> {
        self.build(TREE, None)
    }

    /// Builds the baseline's code with a planted change.
    ///
    /// # Errors
    /// The patch does not apply to the baseline, or anything that [`Self::baseline`] fails with.
    pub fn candidate(&self, kind: &Kind) -> Result<ServerSpec, Stop> {
        let Some(path) = kind.patch_in(&self.world.places.root) else {
            return self.build(OTHER_TREE, None);
        };
        let (text, reason) = (read_text(&path)?, kind.does.clone());
        self.build(TREE, Some(Change { path, text, reason }))
    }

    fn build(&self, tree: &str, change: Option<Change>) -> Result<ServerSpec, Stop> {
        let text = change.as_ref().map(|change| &change.text);
        let key = sha256_hex(format!("{} {tree} {text:?}", self.sources).as_bytes());
        let path = self.dir.join(KEPT);
        // Builds that exist, by the hash of sources, worktree and patch.
        let mut kept: BTreeMap<String, Built> = match path.is_file() {
            true => serde_json::from_str(&read_text(&path)?).unwrap_or_default(),
            false => BTreeMap::new(),
        };
        let build = match kept.get(&key).filter(|build| build.binary.is_file()) {
            Some(build) => build.clone(),
            None => {
                let build = self.build_now(tree, change.as_ref())?;
                kept.insert(key, build.clone());
                write_whole(&path, to_file_text(&kept)?.as_bytes())?;
                build
            }
        };
        Ok(self.spec(build, change))
    }

    fn build_now(&self, tree: &str, change: Option<&Change>) -> Result<Built, Stop> {
        let (world, commit) = (self.world, self.commit());
        let with = change.map(|change| format!(" with `{}`", world.places.shown(&change.path)));
        let title = format!("{}{}", self.release.name, with.unwrap_or_default());
        world.step(&format!("Build {title}"));
        let path = self.dir.join(tree);
        let git = Git::open(&world.places.root, &world.interrupt)?;
        if path.is_dir() {
            // Nobody else writes there: what differs is an earlier planted change.
            git.at(&path).try_text(&["checkout", "--quiet", "--force", "--detach", commit])?;
        }
        build::check_out(&git, &self.release, &path)?;
        if let Some(change) = change {
            git.at(&path).text(&["apply", &change.path.to_string_lossy()])?;
        }
        build::build(world, &path, &title, commit)
    }

    fn spec(&self, build: Built, change: Option<Change>) -> ServerSpec {
        let Wanted { variant, engine, .. } = &self.wanted;
        let facts = EngineFacts {
            name: variant.engine.clone(),
            release: variant.release.clone(),
            commit: Some(self.commit().to_owned()),
            dirty: Some(change.is_some()),
            binary_sha256: Some(build.sha256),
            features: Some(Vec::new()),
            toolchain: build.toolchain,
            build: Some(BuildFacts {
                profile: Some("release".to_owned()),
                patches: Some(change.into_iter().map(Change::facts).collect()),
                ..BuildFacts::default()
            }),
            ..EngineFacts::default()
        };
        let version = Some(self.release.version().to_owned());
        let built = BuiltVariant::program(variant.clone(), facts, build.binary, version);
        ServerSpec { engine: engine.clone(), built }
    }
}
