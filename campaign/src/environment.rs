//! Environment of a program: the one module that reads environment variables, the clock, signals
//! and random bits. Only `main` calls it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use etcetera::BaseStrategy;
use nix::time::{ClockId, clock_gettime};
use schema::exit::Exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use time::OffsetDateTime;

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::console::Console;
use crate::executor::slurm;
use crate::inputs::cache::Cache;
use crate::places::Places;
use crate::process::Interrupt;
use crate::redact::Identity;
use crate::stop::Stop;
use crate::tools::Tools;
use crate::world::World;

/// Names of environment variables that change how a server runs; only these are taken from the
/// user's environment into a run's record.
const SERVER_VARIABLES: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "MALLOC_ARENA_MAX",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
];

/// Converts a command's result to the program's exit code, and prints the error if there is one.
pub fn exit_code(ended: Result<Exit, Stop>) -> ExitCode {
    let exit = ended.unwrap_or_else(|stop| {
        eprintln!("{stop}");
        stop.exit()
    });
    ExitCode::from(exit.code())
}

/// Gathers the inputs of a command from its environment: signals, variables, clock, random bits.
/// `root` is the clone, by default the one that contains the current directory; `tools_dir` holds
/// Redline's other programs, by default this program's directory; `given` are local files in place
/// of downloads.
///
/// # Errors
/// The current directory is in no clone, or the system denies signals, random bits or a cache
/// folder.
pub fn gather(
    root: Option<&Path>,
    tools_dir: Option<&Path>,
    given: BTreeMap<String, PathBuf>,
) -> Result<World, Stop> {
    let clock = SystemClock::start();
    let interrupt = Interrupt::new(&clock);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupt.flag())
            .map_err(|error| Stop::environment(format!("cannot watch for signals: {error}")))?;
    }
    let root = match root {
        Some(dir) => dir.to_owned(),
        None => find_root(&env::current_dir().unwrap_or_default())?,
    };
    // Absolute, because programs are started in other folders.
    let root = root.canonicalize().unwrap_or(root);
    let program = env::current_exe().unwrap_or_default();
    let tools_dir = tools_dir.or(program.parent()).unwrap_or(Path::new(""));
    let cargo_target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(World {
        places: Places::new(&root, cargo_target.as_deref()),
        tools: Tools::new(tools_dir),
        catalog: Catalog::new(&root.join("suite")),
        cache: Cache::new(&cache_dir()?),
        clock,
        console: Console::default(),
        interrupt,
        identity: identity(),
        server_env: server_env(),
        slurm_env: slurm_env(),
        search_path: env::var_os("PATH").iter().flat_map(env::split_paths).collect(),
        cores: std::thread::available_parallelism()
            .map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
        pid: std::process::id(),
        program,
        random: random()?,
        hub_home: hub_home(),
        given,
        command: env::args().skip(1).collect(),
    })
}

/// Clocks of the system, with the time at which the command began.
#[derive(Debug)]
pub struct SystemClock {
    started_ns: u64,
}

impl SystemClock {
    /// Returns the system's clocks for a command that begins now.
    pub fn start() -> Arc<dyn Clock> {
        Arc::new(Self { started_ns: system_ns() })
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        system_ns()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(system_ns().saturating_sub(self.started_ns))
    }

    fn wall(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

fn system_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}

/// Finds the nearest folder that contains `suite/targets` and `engine`: `from` itself or a folder
/// above it.
fn find_root(from: &Path) -> Result<PathBuf, Stop> {
    let is_root = |dir: &&Path| dir.join("suite/targets").is_dir() && dir.join("engine").is_dir();
    from.ancestors().find(is_root).map(Path::to_owned).ok_or_else(|| {
        Stop::environment(format!("`{}` is not inside a clone of Redline", from.display()))
            .with_hint("run it where `suite/` and `engine/` lie, or give `--root DIR`")
    })
}

fn cache_dir() -> Result<PathBuf, Stop> {
    if let Some(dir) = env::var_os("REDLINE_CACHE").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(dir));
    }
    let strategy = etcetera::choose_base_strategy().map_err(|error| {
        Stop::environment(format!("no cache folder: {error}"))
            .with_hint("set REDLINE_CACHE to a folder for models and datasets")
    })?;
    Ok(strategy.cache_dir().join("redline"))
}

/// Returns the Hugging Face home directory: `HF_HOME`, else the default in the user's cache folder.
fn hub_home() -> PathBuf {
    if let Some(dir) = env::var_os("HF_HOME").filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir);
    }
    let strategy = etcetera::choose_base_strategy();
    strategy.map_or_else(|_| PathBuf::new(), |base| base.cache_dir().join("huggingface"))
}

/// Returns the names of host and user, which are removed from records.
fn identity() -> Identity {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let named = |text: Option<String>| text.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    Identity {
        host: named(host),
        user: named(env::var("USER").or_else(|_| env::var("LOGNAME")).ok()),
    }
}

fn server_env() -> BTreeMap<String, String> {
    let set = |name: &&str| Some(((*name).to_owned(), env::var(name).ok()?));
    SERVER_VARIABLES.iter().filter_map(set).collect()
}

/// Reads Slurm's environment variables; those that are not UTF-8 are skipped, since Slurm's tools
/// need none of them.
fn slurm_env() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    slurm::client_environment(env::vars_os().filter_map(text))
}

/// Returns random bits of the system, for the ids of one campaign.
fn random() -> Result<u128, Stop> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Stop::environment(format!("the system gives no random bits: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}
