//! The command line of a server, as an engine's file says it: a process, or the same in a
//! container. Pure: it starts nothing, and knows no engine by name.

use std::path::Path;

use schema::engine::{EngineFile, Image, Setting};
use serde::{Deserialize, Serialize};

use crate::launch::container::Container;

/// The command line of a server, and the form of it that enters a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// With `{model}` and `{port}` in place of what they were.
    pub recorded: Vec<String>,
}

/// What a launch asks for beyond its model; what is not asked for is left to the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaunchSettings {
    /// Of the made-up weights and of whatever else the engine draws.
    pub seed: Option<u64>,
    /// Tokens of the longest sequence.
    pub context_tokens: Option<u64>,
    /// Share of the memory.
    pub memory_percent: Option<u32>,
}

/// What fills the placeholders of an engine's command line.
#[derive(Debug, Clone, Copy)]
pub struct Filling<'a> {
    /// Its id, a file of `suite/engines/`.
    pub engine: &'a str,
    /// The program.
    pub binary: &'a Path,
    /// A path, or the name of a model of the hub.
    pub model: &'a str,
    /// The engine makes up weights for the model's configuration.
    pub random_weights: bool,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// None for the engine's own.
    pub host: Option<&'a str>,
    /// None for the engine's own.
    pub port: Option<u16>,
    /// What else is asked for.
    pub settings: &'a LaunchSettings,
    /// It is to be asked for its counters and its configuration.
    pub observed: bool,
    /// More flags, as they are.
    pub flags: &'a [String],
}

impl<'a> Filling<'a> {
    /// A server to be measured on `port` of this machine.
    #[must_use]
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

const NOTHING: LaunchSettings =
    LaunchSettings { seed: None, context_tokens: None, memory_percent: None };

/// What an engine's file has no word for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// For what is asked for.
    #[error("`suite/engines/{engine}.toml` says no flag for {what}")]
    NoFlag {
        /// Its id.
        engine: String,
        /// What was asked for, in words.
        what: &'static str,
    },
    /// No image to run in a container.
    #[error("`suite/engines/{engine}.toml` names no container image")]
    NoImage {
        /// Its id.
        engine: String,
    },
}

impl crate::stop::Ends for LaunchError {
    fn exit(&self) -> schema::exit::Exit {
        schema::exit::Exit::Unsound
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoFlag { .. } => Some("`[launch.settings]` is the place for one".to_owned()),
            Self::NoImage { .. } => {
                Some("leave `--container` out: it runs as a process".to_owned())
            }
        }
    }
}

/// Fills an engine's command line and appends the side's own flags.
///
/// # Errors
/// Something is asked for that the engine's file has no flag for.
pub fn command_line(file: &EngineFile, with: Filling<'_>) -> Result<CommandLine, LaunchError> {
    let binary = with.binary.to_string_lossy();
    let (argv, port) = (&file.launch.argv, with.port.map(|port| port.to_string()));
    let given = Words { binary: &binary, model: with.model, port: port.as_deref() };
    let recorded =
        Words { binary: with.engine, model: "{model}", port: with.port.and(Some("{port}")) };
    Ok(CommandLine {
        argv: words(file, argv, with, given)?,
        recorded: words(file, argv, with, recorded)?,
    })
}

/// The same inside the engine's container image.
///
/// # Errors
/// There is no image, or something is asked for that the engine's file has no flag for.
pub fn container_line(
    file: &EngineFile,
    with: Filling<'_>,
    container: &Container<'_>,
) -> Result<CommandLine, LaunchError> {
    let Some(image) = &file.launch.image else {
        return Err(LaunchError::NoImage { engine: with.engine.to_owned() });
    };
    let port = with.port.map(|port| port.to_string());
    let line = |container: &Container<'_>, given: Words<'_>| {
        let mut line = container.words(image, given.port.unwrap_or(default_port(file)));
        line.extend(words(file, &image.argv, with, given)?);
        Ok(line)
    };
    let given = Words { binary: with.engine, model: with.model, port: port.as_deref() };
    let recorded = Words { model: "{model}", port: with.port.and(Some("{port}")), ..given };
    let anonymous = Container { name: with.engine, hub: "{hub}", model: None, ..*container };
    Ok(CommandLine { argv: line(container, given)?, recorded: line(&anonymous, recorded)? })
}

/// Name of the image of a release.
#[must_use]
pub fn image_name(image: &Image, release: &str) -> String {
    image.name.replace("{release}", release).replace("{version}", release.trim_start_matches('v'))
}

/// What differs between a command line and its record.
#[derive(Debug, Clone, Copy)]
struct Words<'a> {
    binary: &'a str,
    model: &'a str,
    port: Option<&'a str>,
}

fn words(
    file: &EngineFile,
    argv: &[String],
    with: Filling<'_>,
    given: Words<'_>,
) -> Result<Vec<String>, LaunchError> {
    let launch = &file.launch;
    let tp = with.tp.to_string();
    let fill = |text: &String| {
        text.replace("{binary}", given.binary)
            .replace("{model}", given.model)
            .replace("{tp}", &tp)
            .replace("{port}", given.port.unwrap_or_default())
    };
    let mut line: Vec<String> = argv.iter().map(fill).collect();
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
            line.extend(flag(setting.as_ref(), with.engine, what)?.words(&value));
        }
    }
    let random = if with.random_weights { &launch.random_weights[..] } else { &[] };
    let observe = if with.observed { &launch.observe[..] } else { &[] };
    for flags in [random, observe, with.flags] {
        line.extend_from_slice(flags);
    }
    Ok(line)
}

fn flag<'a>(
    setting: Option<&'a Setting>,
    engine: &str,
    what: &'static str,
) -> Result<&'a Setting, LaunchError> {
    setting.ok_or_else(|| LaunchError::NoFlag { engine: engine.to_owned(), what })
}

/// The port that the engine takes by itself.
fn default_port(file: &EngineFile) -> &str {
    let port = file.launch.settings.port.as_ref();
    port.and_then(|port| port.default.as_deref()).unwrap_or_default()
}
