//! The environment of a command: clock, folders, variables, signals and random bits, gathered once
//! by `main` and passed to everything below it. The one module that reads them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use etcetera::BaseStrategy;
use schema::exit::Exit;
use schema::untrusted::{self, lines};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::console::Console;
use crate::executor::slurm;
use crate::inputs::cache::Cache;
use crate::places::Places;
use crate::process::Interrupt;
use crate::redact::Identity;
use crate::stop::{Stop, environment, wrong_use};
use crate::tools::Tools;

/// Generator of ULIDs for a campaign and its runs. All share one timestamp, and their random part
/// counts up, so that ids sort in the order in which the runs were planned.
#[derive(Debug, Clone)]
pub struct Ids {
    unix_ms: u64,
    random: u128,
}

impl Ids {
    pub fn new(unix_ms: u64, random: u128) -> Self {
        // The top bit stays zero, so that counting up never overflows the 80 random bits.
        Self { unix_ms, random: random & ((1 << 79) - 1) }
    }

    pub fn next_id(&mut self) -> String {
        self.random += 1;
        // The timestamp stays that of the campaign, so that its ids sort together.
        schema::id::ulid(self.unix_ms, self.random)
    }
}

/// The environment of a command. Below `main` nothing else reads environment variables, a clock or
/// the system's random bits.
#[derive(Debug, Clone)]
pub struct World {
    /// Paths of folders and files in the clone.
    pub places: Places,
    /// Redline's other binaries, such as `redline-bench`.
    pub tools: Tools,
    /// Catalog of the suite's files in `suite/`, such as scenarios, models and engines.
    pub catalog: Catalog,
    /// Cache of downloaded inputs, builds of rival engines, build tools and the like.
    pub cache: Cache,
    /// Wall clock, and a steady clock for durations.
    pub clock: Clock,
    /// Console for output to the user.
    pub console: Console,
    /// Interrupt flag, which Ctrl-C and other signals set.
    pub interrupt: Interrupt,
    /// Names of host and user, which are removed from records.
    pub identity: Identity,
    /// Environment variables that change how a server runs, such as `CUDA_VISIBLE_DEVICES`, with
    /// their values; they enter the records of runs.
    pub server_env: BTreeMap<String, String>,
    /// Environment variables that Slurm's tools are started with, such as those that locate their
    /// cluster.
    pub slurm_env: BTreeMap<String, String>,
    /// Folders of the `PATH`, in which programs are looked for.
    pub search_path: Vec<PathBuf>,
    /// Number of logical processors that this process may use; 1 if unknown.
    pub cores: u32,
    /// Process id of this program, written to lock files.
    pub pid: u32,
    /// Path of this program's binary, which jobs start again on their nodes.
    pub program: PathBuf,
    /// Random bits of the system, from which a campaign's ids are counted up.
    pub random: u128,
    /// Hugging Face home directory: as `HF_HOME` sets it, else in the user's cache folder.
    pub hub_home: PathBuf,
    /// Cache of models and datasets of the hub: as `HF_HUB_CACHE` sets it, else `hub/` in the home
    /// directory.
    pub hub_cache: PathBuf,
    /// Local files given with `--input`, by the id of the model or dataset that each replaces.
    pub given: BTreeMap<String, PathBuf>,
    /// Arguments of this program as they were typed, without the program's name.
    pub command: Vec<String>,
}

impl World {
    /// Prints the heading of a step, with the time since the command began.
    pub fn step(&self, heading: &str) {
        self.console.step(self.clock.elapsed(), heading);
    }
}

/// Names of environment variables that change how a server runs; only these are taken from the
/// user's environment into a run's record.
const SERVER_VARIABLES: &str = "\
    CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES MALLOC_ARENA_MAX NVIDIA_VISIBLE_DEVICES \
    OMP_NUM_THREADS RAYON_NUM_THREADS ROCR_VISIBLE_DEVICES TOKIO_WORKER_THREADS";

/// Converts a command's result to the program's exit code, and prints the error if there is one.
pub fn exit_code(ended: Result<Exit, Stop>) -> ExitCode {
    let exit = ended.unwrap_or_else(|stop| {
        eprintln!("{}", lines(&stop.to_string()));
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
/// `root` is not given and the current directory is in no clone, a given file does not exist, no cache
/// folder is known, or the system denies signal handlers or random bits.
pub fn gather(
    root: Option<&Path>,
    tools_dir: Option<&Path>,
    given: BTreeMap<String, PathBuf>,
) -> Result<World, Stop> {
    if let Some((id, path)) = given.iter().find(|(_, path)| !path.exists()) {
        return Err(wrong_use!("`--input {id}={}` names no file", untrusted::path(path))
            .with_hint("a relative path begins at the folder in which the command is started"));
    }
    let clock = Clock::start();
    let interrupt = Interrupt::new(clock);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupt.flag())
            .map_err(|error| environment!("cannot watch for signals: {error}"))?;
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
        hub_cache: folder_in("HF_HUB_CACHE").unwrap_or_else(|| hub_home().join("hub")),
        given,
        command: env::args().skip(1).collect(),
    })
}

/// Finds the nearest folder that contains `suite/targets` and `engine`: `from` itself or a folder
/// above it; an error if there is none.
fn find_root(from: &Path) -> Result<PathBuf, Stop> {
    let is_root = |dir: &&Path| dir.join("suite/targets").is_dir() && dir.join("engine").is_dir();
    from.ancestors().find(is_root).map(Path::to_owned).ok_or_else(|| {
        environment!("`{}` is not inside a clone of Redline", untrusted::path(from))
            .with_hint("run it where `suite/` and `engine/` lie, or give `--root DIR`")
    })
}

fn cache_dir() -> Result<PathBuf, Stop> {
    if let Some(dir) = folder_in("REDLINE_CACHE") {
        return Ok(dir);
    }
    let strategy = etcetera::choose_base_strategy().map_err(|error| {
        environment!("no cache folder: {error}")
            .with_hint("set REDLINE_CACHE to a folder for models and datasets")
    })?;
    Ok(strategy.cache_dir().join("redline"))
}

/// Returns the Hugging Face home directory: `HF_HOME`, else the default in the user's cache folder;
/// empty if there is no such folder.
fn hub_home() -> PathBuf {
    let of_user = || Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("huggingface"));
    folder_in("HF_HOME").or_else(of_user).unwrap_or_default()
}

/// Returns the folder that an environment variable names; `None` if the variable is not set or
/// empty.
fn folder_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Reads the names of host and user from the system, so that they can be removed from records.
fn identity() -> Identity {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let named = |text: Option<String>| text.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
    Identity {
        host: named(host),
        user: named(env::var("USER").or_else(|_| env::var("LOGNAME")).ok()),
    }
}

fn server_env() -> BTreeMap<String, String> {
    let set = |name: &str| Some((name.to_owned(), env::var(name).ok()?));
    SERVER_VARIABLES.split(' ').filter_map(set).collect()
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
        .map_err(|error| environment!("the system gives no random bits: {error}"))?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_in_the_order_of_planning() {
        let mut ids = Ids::new(1_700_000_000_000, u128::MAX);
        let made: Vec<String> = (0..50).map(|_| ids.next_id()).collect();
        assert!(made.iter().all(|id| schema::id::is_ulid(id)));
        assert!(made.is_sorted() && made[0] != made[1]);
    }
}
