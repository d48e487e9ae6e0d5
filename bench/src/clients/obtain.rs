//! Installation of the other clients: SGLang's from its wheel, verified by hash, and AIPerf into
//! the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::model::InputSource;
use tempfile::TempDir;

use crate::clients::testbed::{Peers, SglangClient};
use crate::clients::tool::Tool;
use campaign::files::{FileError, make_dir};
use campaign::inputs::Input;
use campaign::process::capture;
use campaign::stop::Stop;
use campaign::world::World;

const SGLANG: &str = "sglang==0.5.23";
/// Path of the extension module inside SGLang's wheel; its SHA-256 follows.
const SGLANG_MODULE: &str = "sglang/srt/rust_extensions/_bench.cpython-311-x86_64-linux-gnu.so";
const SGLANG_SHA256: &str = "c97549be1e6daa8a1442474aafefb32a9f9c016bedaaf20d697522877063e86b";
/// Version of the Python interpreter that the module is built for.
const SGLANG_PYTHON: &str = "3.11";
const AIPERF: &str = "aiperf==0.13.0";
/// Name of the file that marks a complete installation.
const WHOLE: &str = "installed";

/// Downloads or installs the clients that `tools` contains.
///
/// # Errors
/// A package cannot be obtained, or this machine's Python has another version than the module
/// needs.
pub fn obtain(world: &World, tools: &[Tool]) -> Result<Peers, Stop> {
    let sglang = tools.contains(&Tool::Sglang).then(|| sglang(world)).transpose()?;
    let aiperf = tools.contains(&Tool::Aiperf).then(|| aiperf(world)).transpose()?;
    Ok(Peers { sglang, aiperf })
}

fn sglang(world: &World) -> Result<SglangClient, Stop> {
    let python = PathBuf::from("python3");
    let mut version = Command::new(&python);
    version.args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
    let found = campaign::process::text(&mut version, &world.interrupt)?.trim().to_owned();
    if found != SGLANG_PYTHON {
        let message =
            format!("`sglang-bench` is built for Python {SGLANG_PYTHON}, and this is {found}");
        return Err(Stop::environment(message).with_hint("`--skip sglang-bench` leaves it out"));
    }
    let source = InputSource {
        pip: Some(SGLANG.to_owned()),
        file: Some(SGLANG_MODULE.to_owned()),
        ..InputSource::default()
    };
    let input = Input {
        id: Tool::Sglang.id().to_owned(),
        sources: vec![source],
        sha256: SGLANG_SHA256.to_owned(),
        repair: None,
        config: None,
        hub: None,
    };
    Ok(SglangClient { python, module: world.fetcher().obtain(&input)?.path })
}

/// Returns AIPerf's program in the cache, which is installed first if necessary.
fn aiperf(world: &World) -> Result<PathBuf, Stop> {
    let dir = world.cache.tools(AIPERF);
    let program = dir.join("bin/aiperf");
    if !dir.join(WHOLE).is_file() {
        world.console.step(world.clock.elapsed(), &format!("Install {AIPERF} (1.2 GB)"));
        install(world, &dir)?;
    }
    Ok(program)
}

/// Installs AIPerf into a virtual environment. It is made at its final path, because its scripts
/// contain that path.
fn install(world: &World, dir: &Path) -> Result<(), Stop> {
    let _ = fs::remove_dir_all(dir);
    let near = dir.parent().unwrap_or(Path::new("."));
    make_dir(near)?;
    let temp = TempDir::new_in(near).map_err(FileError::at("write in", near))?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(dir);
    let mut pip = Command::new(dir.join("bin/python"));
    pip.args(["-m", "pip", "install", "--only-binary", ":all:", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", AIPERF])
        .env("TMPDIR", temp.path());
    for step in [&mut venv, &mut pip] {
        let written = capture(step, &world.interrupt)?;
        if !written.status.success() {
            let said = written.last_said().unwrap_or("it said nothing");
            let _ = fs::remove_dir_all(dir);
            return Err(Stop::environment(format!("{AIPERF} cannot be installed: {said}"))
                .with_hint("`--skip aiperf` leaves it out"));
        }
    }
    let mark = dir.join(WHOLE);
    Ok(fs::write(&mark, AIPERF).map_err(FileError::at("write", &mark))?)
}
