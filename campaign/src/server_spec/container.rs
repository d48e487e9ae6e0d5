//! Command line of a container runtime that runs a server: the words before the server's own. Pure:
//! it starts nothing.

use clap::ValueEnum;
use schema::engine::Image;
use serde::{Deserialize, Serialize};

/// Program that runs containers: Docker, Podman or Apptainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Docker, whose daemon root runs.
    Docker,
    /// Podman, which needs no daemon.
    Podman,
    /// Apptainer, which runs the container as a process of the user, common on clusters.
    Apptainer,
}

impl Runtime {
    /// Returns the name of the runtime's program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
        }
    }

    /// Returns the command that removes the container `name`; `None` for Apptainer, whose
    /// containers end with their process.
    pub fn removal(self, name: &str) -> Option<Vec<String>> {
        (self != Self::Apptainer).then(|| owned(&[self.program(), "rm", "--force", name]))
    }
}

/// A container in which a server will run: runtime, image, name, mounts and variables.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    /// Program, such as Docker, that runs the container.
    pub runtime: Runtime,
    /// Name of the container image of the engine's release.
    pub image: &'a str,
    /// Name by which the container can be removed; Apptainer's processes have none.
    pub name: &'a str,
    /// Path of the machine's Hugging Face home directory, which is mounted into the container.
    pub hub: &'a str,
    /// Path of a local model, mounted read-only at the same path in the container; `None` for a
    /// model of the hub.
    pub model: Option<&'a str>,
    /// Environment variables besides the image's own, each as `NAME=VALUE`.
    pub env: &'a [String],
    /// True when the container gets the machine's GPUs.
    pub gpus: bool,
}

impl Container<'_> {
    /// Returns the words of the runtime's command line up to and including the image's name. The
    /// container uses the machine's network.
    pub fn words(&self, image: &Image, port: &str) -> Vec<String> {
        let is_apptainer = self.runtime == Runtime::Apptainer;
        let mut words = owned(&[self.runtime.program(), "run"]);
        words.extend(owned(match (self.gpus, self.runtime) {
            (false, _) => &[],
            (true, Runtime::Docker) => &["--runtime", "nvidia", "--gpus", "all"],
            (true, Runtime::Podman) => &["--device", "nvidia.com/gpu=all"],
            (true, Runtime::Apptainer) => &["--nv"],
        }));
        let mount = if is_apptainer { "--bind" } else { "-v" };
        words.extend([mount.to_owned(), format!("{}:{}", self.hub, image.hub)]);
        if let Some(model) = self.model {
            words.extend([mount.to_owned(), format!("{model}:{model}:ro")]);
        }
        for variable in image.env.iter().chain(self.env) {
            words.extend(["--env".to_owned(), variable.clone()]);
        }
        if is_apptainer {
            // Apptainer shares network and memory with the machine by default.
            words.push(format!("docker://{}", self.image));
            return words;
        }
        words.extend(["-p".to_owned(), format!("{port}:{port}")]);
        // Host network: a virtual one would add latency to every request. Host IPC: ranks exchange
        // tensors through shared memory.
        words.extend(owned(&["--net", "host", "--ipc=host", "--rm", "--name", self.name]));
        words.push(self.image.to_owned());
        words
    }

    /// Returns the command that removes the container if it outlives the program that started it;
    /// `None` for Apptainer.
    pub fn removal(&self) -> Option<Vec<String>> {
        self.runtime.removal(self.name)
    }
}

/// Returns the name of the container of the run with the id `run`.
pub fn name(run: &str) -> String {
    format!("redline-{}", run.to_lowercase())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
