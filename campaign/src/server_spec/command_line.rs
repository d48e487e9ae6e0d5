//! Command line of a server: fills the template of an engine's file in `suite/engines/`, as a
//! process or, after the words of a container runtime, in a container image. Pure: it starts
//! nothing, and no engine's name appears in it.

use std::path::Path;

use clap::ValueEnum;
use schema::engine::{EngineFile, Image};
use schema::target::Accelerator;
use serde::{Deserialize, Serialize};

use super::Contained;
use crate::stop::{Stop, wrong_use};

/// Command line of a server, in the form that is executed and in the form that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Program and arguments that start the server.
    pub argv: Vec<String>,
    /// Command line for the record: placeholders such as `{model}` and `{port}`, and the engine's
    /// id as the program's name, stand for values that differ between runs or machines.
    pub recorded: Vec<String>,
}

/// Server settings beyond the model that a target may fix; the engine's own default applies to each
/// that is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServerSettings {
    /// Seed of random weights and of everything else that the engine samples, as the target fixes
    /// it; `None` for the engine's default.
    pub seed: Option<u64>,
    /// Largest length of a sequence in tokens, prompt and output together, as the target fixes it;
    /// `None` for the engine's default.
    pub context_tokens: Option<u64>,
    /// Share of memory that the server may use, in percent and in the engine's own definition, as
    /// the target fixes it; `None` for the engine's default.
    pub memory_percent: Option<u32>,
}

/// Values for the placeholders of an engine's command line.
#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    /// Id of the engine that is started: the name of its file in `suite/engines/`.
    pub engine: &'a str,
    /// Path of the server's program, or its name on the `PATH`.
    pub binary: &'a Path,
    /// Model to serve: a path, or the name of a model on the Hugging Face hub.
    pub model: &'a str,
    /// True when the engine generates random weights for the model's configuration.
    pub random_weights: bool,
    /// Number of tensor-parallel ranks of the server.
    pub tp: u32,
    /// Address that the server listens on; `None` for the engine's default.
    pub host: Option<&'a str>,
    /// Port that the server listens on; `None` for the engine's default.
    pub port: Option<u16>,
    /// Settings of the server that a target fixes.
    pub settings: &'a ServerSettings,
    /// True when the server must expose its metrics and configuration for the load generator.
    pub observed: bool,
    /// Additional flags of the variant, appended to the server's command line unchanged.
    pub flags: &'a [String],
}

impl<'a> Filling<'a> {
    /// Returns the placeholder values for a server that is measured on `port` of this machine: one
    /// rank, the model's own weights, default settings, no flags of a variant, and metrics exposed.
    pub fn measured(engine: &'a str, binary: &'a Path, model: &'a str, port: u16) -> Self {
        Self {
            engine,
            binary,
            model,
            random_weights: false,
            tp: 1,
            host: Some("127.0.0.1"),
            port: Some(port),
            settings: &NOTHING,
            observed: true,
            flags: &[],
        }
    }
}

const NOTHING: ServerSettings =
    ServerSettings { seed: None, context_tokens: None, memory_percent: None };

/// Fills the command line of an engine's file with values and appends the variant's own flags.
///
/// # Errors
/// A setting is requested for which the engine's file has no flag.
pub fn command_line(file: &EngineFile, with: Filling<'_>) -> Result<CommandLine, Stop> {
    let binary = with.binary.to_string_lossy();
    let (argv, port) = (&file.launch.argv, with.port.map(|port| port.to_string()));
    let given = Words::given(&binary, with.model, port.as_deref());
    let recorded = Words::recorded(with.engine, with.port);
    Ok(CommandLine {
        argv: words(file, argv, with, given)?,
        recorded: words(file, argv, with, recorded)?,
    })
}

/// Fills the command line that runs the engine in its container image.
///
/// # Errors
/// There is no image, or a setting is requested for which the engine's file has no flag.
pub fn container_line(
    file: &EngineFile,
    with: Filling<'_>,
    container: &Container<'_>,
) -> Result<CommandLine, Stop> {
    let image = image_of(file, with.engine)?;
    let port = with.port.map(|port| port.to_string());
    let line = |container: &Container<'_>, given: Words<'_>| -> Result<Vec<String>, Stop> {
        let mut line = container.words(image, given.port.unwrap_or(default_port(file)));
        line.extend(words(file, &image.argv, with, given)?);
        Ok(line)
    };
    let given = Words::given(with.engine, with.model, port.as_deref());
    let recorded = Words::recorded(with.engine, with.port);
    // The record gets placeholders: names and paths differ from run to run and machine to machine.
    let named = Contained { file: None, ..container.contained.clone() };
    let anonymous = Container {
        contained: &named,
        name: with.engine,
        hub: "{hub}",
        hub_cache: None,
        model: None,
        ..*container
    };
    Ok(CommandLine { argv: line(container, given)?, recorded: line(&anonymous, recorded)? })
}

/// Returns the command line that starts a server, in the container image `image` where there is one, in
/// the form that is recorded. `gpus` is true where a container gets the machine's GPUs.
///
/// # Errors
/// The engine's file lacks an image or a flag that is needed.
pub fn recorded_line(
    file: &EngineFile,
    with: Filling<'_>,
    image: Option<&Contained>,
    gpus: bool,
) -> Result<Vec<String>, Stop> {
    let Some(contained) = image else { return Ok(command_line(file, with)?.recorded) };
    let container = Container {
        contained,
        // Placeholders take the place of the machine's folders.
        name: with.engine,
        hub: "",
        hub_cache: None,
        model: None,
        env: &container_env(file),
        gpus,
    };
    Ok(container_line(file, with, &container)?.recorded)
}

/// Returns the container image that the file of the engine with the id `engine` names.
///
/// # Errors
/// The engine's file names no container image.
pub fn image_of<'a>(file: &'a EngineFile, engine: &str) -> Result<&'a Image, Stop> {
    file.launch.image.as_ref().ok_or_else(|| {
        wrong_use!("`suite/engines/{engine}.toml` names no container image")
            .with_hint("leave `--container` out: it runs as a process")
    })
}

/// Returns the name of the container image of an engine's release, by the engine's id and the release,
/// for the GPUs of `accelerator`.
///
/// # Errors
/// The engine's file names no such image.
pub fn image_name(
    file: &EngineFile,
    (engine, release): (&str, &str),
    accelerator: Accelerator,
) -> Result<String, Stop> {
    let image = image_of(file, engine)?;
    match accelerator {
        Accelerator::Cuda => Ok(image.name_of(release)),
        Accelerator::Rocm => image.rocm_name_of(release).ok_or_else(|| {
            wrong_use!("`suite/engines/{engine}.toml` names no container image for GPUs of AMD")
                .with_hint("`[launch.image] rocm` is the place for one")
        }),
    }
}

/// Returns the environment variables of an engine that its container gets, each as `NAME=VALUE`: those
/// of its file that the file does not already give to the image.
pub fn container_env(file: &EngineFile) -> Vec<String> {
    let all = file.launch.env.iter().map(|(name, value)| format!("{name}={value}"));
    let of_image = file.launch.image.as_ref().map_or(&[][..], |image| &image.env);
    all.filter(|variable| !of_image.contains(variable)).collect()
}

/// Values of the placeholders that are filled differently in the executed and in the recorded
/// command line: program, model and port. The record keeps the placeholders of model and port.
#[derive(Debug, Clone, Copy)]
struct Words<'a> {
    binary: &'a str,
    model: &'a str,
    /// Folder of a model that is a file.
    folder: &'a str,
    /// Name of that file in its folder.
    file: &'a str,
    port: Option<&'a str>,
}

impl<'a> Words<'a> {
    fn given(binary: &'a str, model: &'a str, port: Option<&'a str>) -> Self {
        let (folder, file) = model.rsplit_once('/').unwrap_or((".", model));
        Self { binary, model, folder, file, port }
    }

    fn recorded(binary: &'a str, port: Option<u16>) -> Self {
        let port = port.and(Some("{port}"));
        Self { binary, model: "{model}", folder: "{folder}", file: "{file}", port }
    }
}

fn words(
    file: &EngineFile,
    argv: &[String],
    with: Filling<'_>,
    given: Words<'_>,
) -> Result<Vec<String>, Stop> {
    let launch = &file.launch;
    let tp = with.tp.to_string();
    let fill = |text: &String| {
        text.replace("{binary}", given.binary)
            .replace("{model}", given.model)
            .replace("{folder}", given.folder)
            .replace("{file}", given.file)
            .replace("{tp}", &tp)
            .replace("{port}", given.port.unwrap_or_default())
    };
    let mut line: Vec<String> = argv.iter().map(fill).collect();
    // An engine whose template places `{tp}` itself must not get the flag a second time.
    let said = |what: &str| argv.iter().any(|word| word.contains(what));
    let named = &launch.settings;
    if let Some(tp_flag) = &named.tp
        && !said("{tp}")
    {
        line.extend(tp_flag.words(&tp));
    }
    let places = [(&named.host, with.host), (&named.port, given.port)];
    for (setting, value) in places {
        if let (Some(setting), Some(value)) = (setting, value) {
            line.extend(setting.words(value));
        }
    }
    let settings = with.settings;
    let share = settings.memory_percent.map(|percent| (f64::from(percent) / 100.0).to_string());
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    for (what, setting, value) in [
        ("a seed", &named.seed, number(settings.seed)),
        ("the longest sequence", &named.context, number(settings.context_tokens)),
        ("a share of the memory", &named.memory, share),
    ] {
        if let Some(value) = value {
            let setting = setting.as_ref().ok_or_else(|| {
                let engine = with.engine;
                wrong_use!("`suite/engines/{engine}.toml` has no flag for {what}")
                    .with_hint("`[launch.settings]` is the place for one")
            })?;
            line.extend(setting.words(&value));
        }
    }
    // The variant's flags come last, because most engines let a later flag override an earlier one.
    let random = if with.random_weights { &launch.random_weights[..] } else { &[] };
    let observe = if with.observed { &launch.observe[..] } else { &[] };
    for flags in [random, observe, with.flags] {
        line.extend_from_slice(flags);
    }
    Ok(line)
}

/// Returns the engine's default port as the text in its file; empty if the file states none.
fn default_port(file: &EngineFile) -> &str {
    let port = file.launch.settings.port.as_ref();
    port.and_then(|port| port.default.as_deref()).unwrap_or_default()
}

/// Program that runs containers: Docker, Podman, Apptainer or Enroot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker, whose daemon root runs.
    Docker,
    /// Podman, which needs no daemon.
    Podman,
    /// Apptainer, which runs the container as a process of the user, common on clusters.
    Apptainer,
    /// Enroot, which imports the image and runs it as a process of the user, common on Slurm
    /// clusters.
    Enroot,
}

impl Runtime {
    /// Returns the name of the runtime's program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
            Self::Enroot => "enroot",
        }
    }

    /// True where a container is a process of the user: it has no name, shares the machine's network,
    /// and ends with its process.
    pub fn runs_processes(self) -> bool {
        matches!(self, Self::Apptainer | Self::Enroot)
    }

    /// Returns the words that mount the machine's `from` as `to` in a container.
    fn mount(self, from: &str, to: &str, is_read_only: bool) -> [String; 2] {
        // Enroot takes a line of fstab.
        let (flag, kind, mode) = match self {
            Self::Enroot => ("--mount", ":none:x-create=auto,bind", ",ro"),
            Self::Apptainer => ("--bind", "", ":ro"),
            Self::Docker | Self::Podman => ("-v", "", ":ro"),
        };
        let mode = if is_read_only { mode } else { "" };
        [flag.to_owned(), format!("{from}:{to}{kind}{mode}")]
    }

    /// Returns the command that removes the container `name`; `None` where a container ends with its
    /// process.
    pub fn removal(self, name: &str) -> Option<Vec<String>> {
        (!self.runs_processes()).then(|| owned(&[self.program(), "rm", "--force", name]))
    }
}

/// A container in which a server will run: runtime, image, name, mounts and variables.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    /// Container image of the engine's release, and the program, such as Docker, that runs it.
    pub contained: &'a Contained,
    /// Name by which the container can be removed; one that is a process has none.
    pub name: &'a str,
    /// Path of the machine's Hugging Face home directory, which is mounted into the container.
    pub hub: &'a str,
    /// Path of the hub's cache, which is mounted as `hub` in that directory; `None` where it lies there
    /// anyway.
    pub hub_cache: Option<&'a str>,
    /// Path of a local model, mounted read-only at the same path in the container; `None` for a
    /// model of the hub.
    pub model: Option<&'a str>,
    /// Environment variables besides the image's own, each as `NAME=VALUE`.
    pub env: &'a [String],
    /// True when the container gets the machine's GPUs, which are those of the image's platform.
    pub gpus: bool,
}

impl Container<'_> {
    /// Returns the words of the runtime's command line up to and including the image's name. The
    /// container uses the machine's network.
    pub fn words(&self, image: &Image, port: &str) -> Vec<String> {
        let Contained { runtime, image: name, file, .. } = self.contained;
        let is_enroot = *runtime == Runtime::Enroot;
        let mut words = owned(&[runtime.program(), if is_enroot { "start" } else { "run" }]);
        if is_enroot {
            // Writable, as with the others: what a server writes into its image is kept in memory.
            words.push("--rw".to_owned());
        }
        if self.gpus {
            words.extend(self.devices().split_whitespace().map(str::to_owned));
        }
        words.extend(runtime.mount(self.hub, &image.hub, false));
        if let Some(cache) = self.hub_cache {
            words.extend(runtime.mount(cache, &format!("{}/hub", image.hub), false));
        }
        if let Some(model) = self.model {
            words.extend(runtime.mount(model, model, true));
        }
        for variable in image.env.iter().chain(self.env) {
            words.extend(["--env".to_owned(), variable.clone()]);
        }
        if runtime.runs_processes() {
            // They share network and memory with the machine.
            let imported = file.as_ref().map(|file| file.to_string_lossy().into_owned());
            words.push(imported.unwrap_or_else(|| format!("docker://{name}")));
            return words;
        }
        words.extend(["-p".to_owned(), format!("{port}:{port}")]);
        // Host network: a virtual one would add latency to every request. Host IPC: ranks exchange
        // tensors through shared memory.
        words.extend(owned(&["--net", "host", "--ipc=host", "--rm", "--name", self.name]));
        words.push(name.clone());
        words
    }

    /// Returns the words that give the machine's GPUs to the container. Those for GPUs of AMD are of
    /// vLLM's and SGLang's pages about them; in Podman without root, `keep-groups` stands for the group
    /// that may open the devices.
    fn devices(&self) -> &'static str {
        let Contained { runtime, accelerator, .. } = self.contained;
        match (accelerator, runtime) {
            (Accelerator::Cuda, Runtime::Docker) => "--runtime nvidia --gpus all",
            (Accelerator::Cuda, Runtime::Podman) => "--device nvidia.com/gpu=all",
            (Accelerator::Cuda, Runtime::Apptainer) => "--nv",
            (Accelerator::Cuda, Runtime::Enroot) => "--env NVIDIA_VISIBLE_DEVICES=all",
            (Accelerator::Rocm, Runtime::Docker) => {
                "--device /dev/kfd --device /dev/dri --group-add video --cap-add SYS_PTRACE \
                 --security-opt seccomp=unconfined"
            }
            (Accelerator::Rocm, Runtime::Podman) => {
                "--device /dev/kfd --device /dev/dri --group-add keep-groups --cap-add SYS_PTRACE \
                 --security-opt seccomp=unconfined"
            }
            (Accelerator::Rocm, Runtime::Apptainer) => "--rocm",
            // Refused before anything is built: Enroot documents no way.
            (Accelerator::Rocm, Runtime::Enroot) => "",
        }
    }

    /// Returns the command that removes the container if it outlives the program that started it;
    /// `None` where it cannot.
    pub fn removal(&self) -> Option<Vec<String>> {
        self.contained.runtime.removal(self.name)
    }
}

/// Returns the name of the container of the run with the id `run`.
pub fn container_name(run: &str) -> String {
    format!("redline-{}", run.to_lowercase())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
