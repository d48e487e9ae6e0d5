//! Build of a rival engine from its source distribution: downloaded by hash, configured with CMake,
//! and kept in the cache, never in the clone. CMake and Ninja are those on the `PATH`, else pinned
//! versions that pip installs into the cache.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use schema::canonical::sha256_of;
use schema::engine::Distribution;
use schema::run::{self, EngineFacts};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::files::{self, FileError, make_dir};
use crate::inputs::Input;
use crate::inputs::cache::sha256_file;
use crate::node::hardware::Cpu;
use crate::plan::Variant;
use crate::process::{ProcessError, capture, describe, is_installed, show};
use crate::server_spec::BuiltVariant;
use crate::stop::{Stop, environment};
use crate::world::World;

/// Name of the file with a build's facts, in the build's folder in the cache.
const FACTS: &str = "build.json";
/// Packages that pip installs if the machine lacks CMake or Ninja.
const PACKAGES: [&str; 2] = ["cmake==4.4.4", "ninja==1.13.2"];
/// Name of the folder, below CMake's build folder, in which the build of a rival engine leaves its
/// programs.
const PROGRAMS: &str = "bin";

/// Facts of a rival engine's build, reported next to the results that were measured with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFacts {
    pub sdist: String,
    pub sdist_sha256: String,
    /// CMake settings of the rival engine's build, each as `NAME=VALUE`.
    pub settings: Vec<String>,
    /// Name and version of the C++ compiler, such as `GNU 12.2.0`; `None` if CMake's files do not
    /// say.
    pub compiler: Option<String>,
    /// SHA-256 of each program of the build, in hex, by the program's name.
    pub programs: BTreeMap<String, String>,
}

/// Programs of a rival engine, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerBuild {
    pub dir: PathBuf,
    pub facts: BuildFacts,
}

impl PeerBuild {
    /// Returns the built variant that runs this build: its server is the first program that the
    /// engine's file lists under `[source]`.
    pub fn variant(&self, variant: Variant, source: &Distribution) -> BuiltVariant {
        let server = source.programs.first().map_or("", String::as_str);
        let facts = EngineFacts {
            name: variant.engine.clone(),
            release: format!("v{}", source.version),
            binary_sha256: self.facts.programs.get(server).cloned(),
            toolchain: self.facts.compiler.clone(),
            dirty: Some(false),
            features: Some(self.facts.settings.clone()),
            build: Some(run::BuildFacts {
                profile: Some("release".to_owned()),
                source_url: Some(source.sdist.clone()),
                patches: Some(Vec::new()),
                ..run::BuildFacts::default()
            }),
            ..EngineFacts::default()
        };
        // The version that such a server states is not that of its package.
        BuiltVariant::program(variant, facts, self.dir.join(server), None)
    }
}

/// Returns the programs of `source`, from the cache if they are kept there, else built now.
///
/// # Errors
/// The source distribution cannot be downloaded or has another hash, CMake and Ninja are missing
/// and cannot be installed, the build fails, a file of the cache cannot be read or written, or the
/// command is interrupted.
pub fn obtain(
    world: &World,
    id: &str,
    source: &Distribution,
    cpu: &Cpu,
) -> Result<PeerBuild, Stop> {
    let dir = world.cache.dir.join("builds").join(id).join(key(source, cpu));
    if let Some(facts) = kept(&dir, source) {
        return Ok(PeerBuild { dir, facts });
    }
    world.step(&format!("Fetch {}", source.sdist));
    let archive = world.obtain(&Input::engine(id, source))?.path;
    let tools = find_tools(world)?;
    world.step(&format!("Build {} (minutes)", source.sdist));
    build(world, source, &archive, &tools, dir)
}

/// Returns the cache key of a build: the first 16 hex digits of a hash of the source distribution,
/// the CMake settings, the names of the programs and the machine's processor.
fn key(source: &Distribution, cpu: &Cpu) -> String {
    let Cpu { vendor, brand, family, model, stepping, features, sockets: _ } = cpu;
    let of = (
        (&source.sha256, &source.cmake, &source.programs),
        (vendor, brand, family, model, stepping, features),
    );
    // Strings always have a JSON form.
    sha256_of(&of).unwrap_or_default().chars().take(16).collect()
}

/// Returns the facts of the build kept in `dir`; `None` if they cannot be read, or a program is
/// missing or differs from its recorded hash.
fn kept(dir: &Path, source: &Distribution) -> Option<BuildFacts> {
    let text = fs::read_to_string(dir.join(FACTS)).ok()?;
    let facts: BuildFacts = serde_json::from_str(&text).ok()?;
    // The user may have replaced a program in the cache.
    let whole = source.programs.iter().all(|program| {
        let found = sha256_file(&dir.join(program)).ok();
        found.is_some() && found.as_ref() == facts.programs.get(program)
    });
    whole.then_some(facts)
}

/// Builds a rival engine in a temporary folder and renames it, so that `dir` is always complete.
fn build(
    world: &World,
    source: &Distribution,
    archive: &Path,
    tools: &BuildTools,
    dir: PathBuf,
) -> Result<PeerBuild, Stop> {
    let near = dir.parent().unwrap_or(Path::new("."));
    make_dir(near)?;
    let work = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(work.path());
    step(world, source, &mut tar)?;
    let tree = work.path().join("build");
    let mut configure = tools.cmake();
    configure.arg("-S").arg(work.path().join(&source.folder)).arg("-B").arg(&tree);
    configure.args(["-G", "Ninja"]);
    configure.args(source.cmake.iter().map(|setting| format!("-D{setting}")));
    if let Some(fetched) = &tools.fetched {
        let ninja = fetched.join("bin/ninja");
        configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
    }
    // Keeps the build from taking the git history of a clone around the cache for its own.
    configure.env("GIT_CEILING_DIRECTORIES", near);
    step(world, source, &mut configure)?;
    let mut make = tools.cmake();
    make.arg("--build").arg(&tree).args(["--parallel", &world.cores.to_string(), "--target"]);
    make.args(&source.programs);
    step(world, source, &mut make)?;
    let facts = keep(source, &tree, &work.path().join("whole"))?;
    // A folder that `kept` has rejected: a program in it is missing or changed.
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(FileError::at("remove the damaged build", &dir))?;
    }
    fs::rename(work.path().join("whole"), &dir).map_err(FileError::at("write", &dir))?;
    Ok(PeerBuild { dir, facts })
}

/// Runs one program of the build, such as `cmake`. Its output goes to standard error, since
/// standard output is for the command's own result.
fn step(world: &World, source: &Distribution, command: &mut Command) -> Result<(), Stop> {
    let status = show(command.stdout(Stdio::from(io::stderr())), &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    let (program, how) = (command.get_program().to_string_lossy(), describe(status));
    let sdist = &source.sdist;
    Err(environment!(
        "`{program}` ended with {how} while it built {sdist}; what it said stands above"
    )
    .with_hint("it needs a C and a C++ compiler, such as `gcc` and `g++`"))
}

/// Copies the built programs from the build folder `tree` to the folder `whole`, and writes the
/// build's facts there.
fn keep(source: &Distribution, tree: &Path, whole: &Path) -> Result<BuildFacts, Stop> {
    make_dir(whole)?;
    let mut programs = BTreeMap::new();
    for program in &source.programs {
        let (from, to) = (tree.join(PROGRAMS).join(program), whole.join(program));
        if !from.is_file() {
            return Err(environment!("the build of {} left no `{program}`", source.sdist)
                .with_hint("does `[source]` of its file in `suite/engines/` name it right?"));
        }
        fs::copy(&from, &to).map_err(FileError::at("write", &to))?;
        programs.insert(program.clone(), sha256_file(&to)?);
    }
    let facts = BuildFacts {
        sdist: source.sdist.clone(),
        sdist_sha256: source.sha256.clone(),
        settings: source.cmake.clone(),
        compiler: compiler(tree),
        programs,
    };
    let text = serde_json::to_vec_pretty(&facts).unwrap_or_default();
    files::write_whole(&whole.join(FACTS), &text)?;
    Ok(facts)
}

/// Returns name and version of the C++ compiler, from `CMakeFiles/<version>/CMakeCXXCompiler.cmake`
/// below the build folder `tree`; `None` if no such file states them.
fn compiler(tree: &Path) -> Option<String> {
    let folders = fs::read_dir(tree.join("CMakeFiles")).ok()?.flatten();
    let found = folders.map(|entry| entry.path().join("CMakeCXXCompiler.cmake"));
    let text = found.filter_map(|path| fs::read_to_string(path).ok()).next()?;
    Some(format!("{} {}", set_in(&text, "_ID")?, set_in(&text, "_VERSION")?))
}

/// Returns the value in the line `set(CMAKE_CXX_COMPILER<what> "value")` of CMake's file `text`;
/// `None` if there is no such line.
fn set_in<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    let start = format!("set(CMAKE_CXX_COMPILER{what} \"");
    let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
    line.split('"').next()
}

/// Programs CMake and Ninja with which rival engines are built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BuildTools {
    cmake: PathBuf,
    /// Folder into which pip has installed CMake and Ninja; `None` if both are on the `PATH`.
    fetched: Option<PathBuf>,
}

impl BuildTools {
    /// Builds a command for `cmake`. A CMake that pip has installed is a Python script that needs
    /// its folder in `PYTHONPATH`, which the command then sets.
    fn cmake(&self) -> Command {
        let mut command = Command::new(&self.cmake);
        if let Some(dir) = &self.fetched {
            command.env("PYTHONPATH", dir);
        }
        command
    }
}

/// Finds CMake and Ninja on the `PATH` or in the cache, or installs them into the cache.
///
/// # Errors
/// CMake and Ninja are not installed and pip cannot install them, the cache cannot be written, or
/// the command is interrupted.
fn find_tools(world: &World) -> Result<BuildTools, Stop> {
    // Both or neither: pip installs them as a pair of tested versions.
    if is_installed("cmake", &world.interrupt)? && is_installed("ninja", &world.interrupt)? {
        return Ok(BuildTools { cmake: "cmake".into(), fetched: None });
    }
    let dir = world.cache.tools(&PACKAGES.join("+"));
    if !dir.is_dir() {
        world.step(&format!("Fetch {}", PACKAGES.join(", ")));
        fetch_tools(world, &dir)?;
    }
    Ok(BuildTools { cmake: dir.join("bin/cmake"), fetched: Some(dir) })
}

/// Installs CMake and Ninja with pip into a temporary folder and renames it, so that `dir` is
/// always complete.
fn fetch_tools(world: &World, dir: &Path) -> Result<(), Stop> {
    let near = dir.parent().unwrap_or(Path::new("."));
    make_dir(near)?;
    let work = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let whole = work.path().join("whole");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--quiet"])
        .args(["--disable-pip-version-check", "--no-input", "--target"])
        .arg(&whole)
        .args(PACKAGES);
    let missing = |said: &str| {
        let what = "`cmake` and `ninja` are not both installed, and pip could not fetch them";
        environment!("{what}: {said}").with_hint(
            "install them, such as by `python3 -m pip install cmake ninja`, so that both are on the \
             PATH",
        )
    };
    let written = match capture(&mut pip, &world.interrupt) {
        Ok(written) => written,
        Err(ProcessError::Start { program, source }) => {
            return Err(missing(&format!("cannot start `{program}`: {source}")));
        }
        Err(error) => return Err(error.into()),
    };
    if !written.status.success() {
        return Err(missing(written.last_said().unwrap_or("it said nothing")));
    }
    fs::rename(&whole, dir).map_err(FileError::at("write", dir))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Distribution {
        let text = include_str!("../../../suite/engines/llama.cpp.toml");
        schema::engine::parse(text).unwrap().source.unwrap().newest()
    }

    #[test]
    fn another_source_setting_or_processor_is_another_build() {
        let cpu = Cpu { brand: "x".into(), ..Cpu::default() };
        let mut keys = vec![key(&source(), &cpu), key(&source(), &Cpu::default())];
        keys.push(key(&Distribution { sha256: "0".into(), ..source() }, &cpu));
        keys.push(key(&Distribution { cmake: vec!["GGML_NATIVE=OFF".into()], ..source() }, &cpu));
        assert!(keys.iter().all(|key| key.len() == 16));
        assert_eq!(key(&source(), &cpu), keys[0]);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn the_compiler_is_read_as_cmake_wrote_it() {
        let text = "set(CMAKE_CXX_COMPILER \"/usr/bin/c++\")\nset(CMAKE_CXX_COMPILER_ID \"GNU\")\n\
                    set(CMAKE_CXX_COMPILER_VERSION \"12.2.0\")\n";
        assert_eq!((set_in(text, "_ID"), set_in(text, "_VERSION")), (Some("GNU"), Some("12.2.0")));
    }
}
