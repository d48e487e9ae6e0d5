//! The command `gpu-validation pack`: builds a release and copies it into a bundle with the
//! programs, models, workloads and suite files that the stages need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::gpu_validation::{
    BUNDLE_SCHEMA, BundleCall, GpuValidation, ValidationBundle, ValidationCall, stages,
};
use schema::random::seed_of;
use serde_json::Value;

use crate::cli::PackFlags;
use crate::gpu_validation::{DESCRIPTION, archive, cubins, plan_file, write_json};
use campaign::build;
use campaign::build::variants::{self, Origin, Wanted};
use campaign::files::{self, FileError};
use campaign::inputs::Input;
use campaign::lock::Lock;
use campaign::node::load_generator::save_workload;
use campaign::plan::Cell;
use campaign::plan::decide::ready_cells;
use campaign::plan::revision::{at_hand, choose};
use campaign::process::{self, describe};
use campaign::server_spec::ServerSpec;
use campaign::stop::Stop;
use campaign::tools::BENCH;
use campaign::world::{Ids, World};
use campaign::{Packages, ScenarioEntry};

const ENGINE: &str = "redline";
/// Pairs of a placeholder in a stage's command and the package whose test program replaces it. In
/// the bundle the program has the package's name.
pub const TESTS: [(&str, &str); 2] = [("{tests}", "engine-model"), ("{cuda_tests}", "engine-cuda")];
const SELF: &str = "redline-peers";
/// Folder, in the clone and in the bundle, of reference checkpoints and outputs that the engine's
/// tests read.
const FIXTURES: &str = "tests/fixtures/conformance";
/// Folder of the models in a bundle.
const MODELS: &str = "models";
/// Name of the script that runs the bundle, the only command that a user needs.
pub const SCRIPT_NAME: &str = "validate";

const SCRIPT: &str = "#!/bin/sh\n\
    # Runs the stages that have not been run yet: ./validate [--out DIR] [--call CALL] [--only STAGE]\n\
    here=$(cd \"$(dirname \"$0\")\" && pwd)\n\
    exec \"$here/bin/redline-peers\" --root \"$here\" gpu-validation run \"$@\"\n";

/// Builds the release or working tree, draws the workload manifests, and packs them into a bundle
/// and its archive. Returns the bundle's folder.
///
/// # Errors
/// The GPU validation, the release, or a model or scenario is unknown; another process holds the
/// clone's lock; a program is missing or does not build; a model or dataset cannot be obtained; a
/// file cannot be read or written; the archive is larger than allowed; or the run is interrupted.
pub fn run(world: &World, flags: &PackFlags) -> Result<PathBuf, Stop> {
    world.tools.check()?;
    let validation = world.catalog.validation(&flags.validation)?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let wanted = wanted(world, flags)?;
    let spec = variants::build_one(world, &wanted)?;
    let dir = flags.out.clone().unwrap_or_else(|| {
        world.places.target("validations").join(&flags.validation).join("bundle")
    });
    // Files of an earlier release in the same folder would otherwise be packed too.
    if dir.join(DESCRIPTION).exists() {
        fs::remove_dir_all(&dir).map_err(FileError::at("clear", &dir))?;
    }
    let bundle = Bundle { world, validation, dir };
    bundle.put_programs(&wanted, &spec)?;
    bundle.put_cubins(&wanted)?;
    bundle.put_inputs()?;
    bundle.put_suite()?;
    let described = bundle.described(flags, spec)?;
    let dir = &bundle.dir;
    write_json(&dir.join(DESCRIPTION), &described)?;
    let script = dir.join(SCRIPT_NAME);
    files::write_whole(&script, SCRIPT.as_bytes())?;
    files::set_mode(&script, 0o755).map_err(FileError::at("write", &script))?;
    archive::share_equal_files(&dir.join(MODELS))?;
    world.console.step(world.clock.elapsed(), "Compress the bundle");
    let (archive, bytes) = archive::write(world, dir, flags.size_max)?;
    world.console.answer(&format!(
        "bundle   {}, {} stages\narchive  {}, {} MiB\n\
         run      tar -xf {}, then on the machine that is to show it:\n{}\
         collect  cargo xtask gpu-validation collect DIR",
        world.places.shown(dir),
        described.stages.len(),
        world.places.shown(&archive),
        archive::mib(bytes),
        file_name(&archive).display(),
        calls_shown(&described, dir),
    ))?;
    Ok(bundle.dir)
}

/// Formats the command line of each call of a bundle, with its time limit, as a line.
fn calls_shown(described: &ValidationBundle, dir: &Path) -> String {
    let folder = file_name(dir).display();
    let line = |call: &BundleCall| {
        let BundleCall { id, limit_s } = call;
        format!("         {folder}/{SCRIPT_NAME} --out DIR --call {id}   # at most {limit_s} s\n")
    };
    described.calls.iter().map(line).collect()
}

/// Resolves the release, or the working tree, that is packed into the bundle.
fn wanted(world: &World, flags: &PackFlags) -> Result<Wanted, Stop> {
    let engine = world.catalog.engine(ENGINE)?;
    match flags.worktree {
        true => variants::working_tree(world, &engine, flags.release.as_deref()),
        false => variants::named(world, &engine, flags.release.as_deref(), Packages::default()),
    }
}

/// A bundle that is being packed into the folder `dir`.
struct Bundle<'a> {
    world: &'a World,
    validation: GpuValidation,
    dir: PathBuf,
}

impl Bundle<'_> {
    fn described(&self, flags: &PackFlags, spec: ServerSpec) -> Result<ValidationBundle, Stop> {
        let mut ids = Ids::new(self.world.clock.unix_ms(), self.world.random);
        // The id is chosen here, so that collecting the results again gives the same records.
        let campaign = ids.next_id();
        let Some(version) = spec.built.version else {
            return Err(Stop::wrong_use("a server that is already running cannot be packed"));
        };
        let seed = seed_of(self.world.random);
        Ok(ValidationBundle {
            schema: BUNDLE_SCHEMA.to_owned(),
            validation: flags.validation.clone(),
            campaign,
            matches: self.validation.matches.clone(),
            engine: spec.built.facts,
            version,
            flags: self.validation.flags.clone(),
            stage_limit_s: self.validation.stage_limit_s,
            calls: self.validation.calls.iter().map(bundle_call).collect(),
            random_order_seed: Some(seed),
            stages: stages(&self.validation, seed, || ids.next_id()),
        })
    }

    /// Copies into the bundle the server, the load generator, this program itself (`redline-peers`)
    /// and, if a stage needs them, the engine's test programs and their reference files.
    fn put_programs(&self, wanted: &Wanted, spec: &ServerSpec) -> Result<(), Stop> {
        let programs = self.dir.join("bin");
        self.put_program(spec.binary(), &programs.join(ENGINE))?;
        self.put_program(&self.world.tools.path(BENCH), &programs.join(BENCH))?;
        self.put_program(&self.world.program, &programs.join(SELF))?;
        if self.validation.has_tests() {
            self.world.console.step(self.world.clock.elapsed(), "Build the engine's tests");
            for (package, built) in build_tests(self.world, wanted)? {
                self.put_program(&built, &programs.join(package))?;
            }
            self.put_fixtures()?;
        }
        Ok(())
    }

    /// Copies a program into the bundle, without its symbols.
    fn put_program(&self, from: &Path, to: &Path) -> Result<(), Stop> {
        copy(from, to)?;
        files::set_mode(to, 0o755).map_err(FileError::at("write", to))?;
        archive::strip(self.world, to)
    }

    /// Copies the machine code of the CUDA kernels into the bundle, if it is meant for a GPU.
    fn put_cubins(&self, wanted: &Wanted) -> Result<(), Stop> {
        if self.validation.matches.device_name.is_empty() {
            return Ok(());
        }
        let (tree, commit) = source_tree(self.world, wanted);
        let cubins = cubins::compiled(self.world, &tree, commit)?;
        Ok(cubins::put(&cubins, &self.dir)?)
    }

    /// Copies the reference checkpoints and outputs into the bundle, if the clone has them; without
    /// them the tests report that they are missing.
    fn put_fixtures(&self) -> Result<(), Stop> {
        let fixtures = self.world.places.root.join(FIXTURES);
        if fixtures.is_dir() {
            return Ok(copy_tree(&fixtures, &self.dir.join(FIXTURES))?);
        }
        self.world
            .console
            .note(&format!("`{FIXTURES}` is not there: the tests will have no references"));
        Ok(())
    }

    /// Copies the models into the bundle, and draws the workload manifest of each scenario with
    /// each model's tokenizer. The GPU machine could not draw them: its bundle has no dataset.
    fn put_inputs(&self) -> Result<(), Stop> {
        self.world.console.step(self.world.clock.elapsed(), "Draw the requests");
        let (cells, scenarios) = self.cells()?;
        for cell in ready_cells(self.world, &cells, &scenarios)? {
            let tokenizer = tokenizer_of(self.world, &cell.cell.model)?;
            self.put_model(&cell.cell.model, &cell.model.path)?;
            // Models that share a tokenizer get the same prompts, and so the same file.
            save_workload(self.world, &cell, &plan_file(&self.dir, &cell.scenario.id, &tokenizer))?;
        }
        for id in self.validation.models_of_commands() {
            let file = self.world.catalog.model(id)?;
            self.put_model(id, &self.world.obtain(&Input::model(id, &file))?.path)?;
        }
        Ok(())
    }

    /// Copies the file or folder `path` of the model `id` into the bundle.
    fn put_model(&self, id: &str, path: &Path) -> Result<(), FileError> {
        let to = self.dir.join(MODELS).join(id);
        match path.is_dir() {
            true => copy_tree(path, &to),
            false => copy(path, &to.join(file_name(path))),
        }
    }

    /// Returns a cell for every pair of a model and a scenario of the GPU validation, and the
    /// scenario of each cell in the same order.
    fn cells(&self) -> Result<(Vec<Cell>, Vec<ScenarioEntry>), Stop> {
        let mut cells = Vec::new();
        for model in &self.validation.models {
            for scenario in self.validation.scenarios() {
                let (model, tp) = (model.id.clone(), model.tp);
                cells.push(Cell { model, tp, scenario: scenario.clone(), ..Cell::default() });
            }
        }
        let scenarios = choose(self.world, &mut cells)?;
        Ok((cells, scenarios))
    }

    /// Copies the files of `suite/` that the stages name (engine, scenarios, models) into the
    /// bundle.
    fn put_suite(&self) -> Result<(), Stop> {
        let engine = self.world.catalog.engine(ENGINE)?.path;
        let to = self.dir.join("suite");
        copy(&engine, &to.join("engines").join(file_name(&engine)))?;
        for scenario in self.validation.scenarios() {
            let entry = at_hand(self.world, scenario)?;
            // The bundle has one revision, under the id by which its stages name the scenario.
            copy(&entry.path, &to.join("scenarios").join(format!("{}.toml", entry.id)))?;
        }
        for model in &self.validation.models {
            let path = self.world.catalog.path("model", &model.id)?;
            copy(&path, &to.join("models").join(file_name(&path)))?;
        }
        Ok(())
    }
}

fn bundle_call(call: &ValidationCall) -> BundleCall {
    BundleCall { id: call.id.clone(), limit_s: call.limit_s }
}

/// Returns the root of the sources from which the engine was built, and the commit of a release.
fn source_tree<'a>(world: &World, wanted: &'a Wanted) -> (PathBuf, &'a str) {
    match &wanted.origin {
        Origin::Release(of) => (world.places.release_tree(&of.name), &of.commit),
        _ => (world.places.root.clone(), ""),
    }
}

/// Builds the engine's test programs in the tree in which the engine was built; returns for each of
/// [`TESTS`] the name of its package and the path of the test program.
fn build_tests(world: &World, wanted: &Wanted) -> Result<Vec<(&'static str, PathBuf)>, Stop> {
    let (tree, commit) = source_tree(world, wanted);
    // Releases before v0.11 have all of the engine in one package.
    let is_split = tree.join("engine/model").is_dir();
    let packages = TESTS.map(|(_, package)| (package, if is_split { package } else { "engine" }));
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--release", "--locked", "--lib"]);
    cargo.arg("--message-format=json-render-diagnostics");
    cargo.args(packages.iter().flat_map(|(_, built)| ["--package", built]));
    build::call_in(&mut cargo, &world.places, &tree, commit)?;
    let written = process::capture(&mut cargo, &world.interrupt)?;
    if !written.status.success() {
        eprint!("{}", written.stderr);
        let status = describe(written.status);
        return Err(Stop::environment(format!("the engine's tests do not build: {status}")));
    }
    let messages: Vec<Value> =
        written.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let found = packages.into_iter().map(|(package, built)| {
        let program = messages.iter().find_map(|message| test_program(message, built));
        let program = program.ok_or_else(|| {
            Stop::environment(format!(
                "cargo built the tests of `{built}` and did not report their path"
            ))
        });
        Ok((package, program?))
    });
    found.collect()
}

/// Returns the path of the executable in a cargo message if it is the test program of `package`.
fn test_program(message: &Value, package: &str) -> Option<PathBuf> {
    let is_wanted = message["target"]["name"] == package.replace('-', "_").as_str()
        && message["profile"]["test"] == true;
    is_wanted.then(|| message["executable"].as_str().map(PathBuf::from))?
}

/// Returns the id of a model's tokenizer: the dataset named in the model's file, or the model's own
/// id if it embeds one.
pub fn tokenizer_of(world: &World, model: &str) -> Result<String, Stop> {
    let named = world.catalog.model(model)?.tokenizer;
    Ok(if named == "embedded" { model.to_owned() } else { named })
}

fn copy_tree(from: &Path, to: &Path) -> Result<(), FileError> {
    for entry in fs::read_dir(from).map_err(FileError::at("read the folder", from))? {
        let path = entry.map_err(FileError::at("read the folder", from))?.path();
        let to = to.join(file_name(&path));
        // Links are followed: files of a Hugging Face snapshot are links to another folder.
        if path.is_dir() { copy_tree(&path, &to)? } else { copy(&path, &to)? }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    files::make_dir(to.parent().unwrap_or(Path::new(".")))?;
    fs::copy(from, to).map_err(FileError::at("copy", from)).map(|_| ())
}

fn file_name(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}
