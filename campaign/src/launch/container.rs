//! How a container runtime is asked to run a server: the words before those of the server itself.
//! Pure: it starts nothing.

use clap::ValueEnum;
use schema::engine::Image;
use serde::{Deserialize, Serialize};

/// Which runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// A service of the machine, which root runs.
    Docker,
    /// Without a service.
    Podman,
    /// A process of the user, as on clusters.
    Apptainer,
}

impl Runtime {
    /// Its program.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
        }
    }

    /// What removes a container, where there may be one without a process that waits for it.
    #[must_use]
    pub fn removal(self, name: &str) -> Option<Vec<String>> {
        (self != Self::Apptainer).then(|| owned(&[self.program(), "rm", "--force", name]))
    }
}

/// One container.
#[derive(Debug, Clone, Copy)]
pub struct Container<'a> {
    /// What runs it.
    pub runtime: Runtime,
    /// The image of the release.
    pub image: &'a str,
    /// Its own name, by which it can be removed; Apptainer runs a process and names none.
    pub name: &'a str,
    /// The machine's folder of models from the hub.
    pub hub: &'a str,
    /// A model that is a path of the machine: the same path inside, and nothing there is written.
    pub model: Option<&'a str>,
    /// More of the environment, each as `NAME=VALUE`.
    pub env: &'a [String],
    /// It sees the machine's GPUs.
    pub gpus: bool,
}

impl Container<'_> {
    /// Everything up to the image's name. The network is the machine's own.
    #[must_use]
    pub fn words(&self, image: &Image, port: &str) -> Vec<String> {
        let mut words = match self.runtime {
            Runtime::Docker | Runtime::Podman => self.docker(image, port),
            Runtime::Apptainer => self.apptainer(image),
        };
        words.push(match self.runtime {
            Runtime::Apptainer => format!("docker://{}", self.image),
            _ => self.image.to_owned(),
        });
        words
    }

    /// Docker, and Podman, which takes its words but for the GPUs.
    fn docker(&self, image: &Image, port: &str) -> Vec<String> {
        let mut words = owned(&[self.runtime.program(), "run"]);
        words.extend(owned(match (self.gpus, self.runtime) {
            (false, _) => &[],
            (true, Runtime::Podman) => &["--device", "nvidia.com/gpu=all"],
            (true, _) => &["--runtime", "nvidia", "--gpus", "all"],
        }));
        words.extend(["-v".to_owned(), format!("{}:{}", self.hub, image.hub)]);
        if let Some(model) = self.model {
            words.extend(["-v".to_owned(), format!("{model}:{model}:ro")]);
        }
        for variable in image.env.iter().chain(self.env) {
            words.extend(["--env".to_owned(), variable.clone()]);
        }
        words.extend(["-p".to_owned(), format!("{port}:{port}")]);
        words.extend(owned(&["--net", "host", "--ipc=host", "--rm", "--name", self.name]));
        words
    }

    /// Apptainer shares network and memory with the machine by itself.
    fn apptainer(&self, image: &Image) -> Vec<String> {
        let mut words = owned(&["apptainer", "run"]);
        words.extend(self.gpus.then(|| "--nv".to_owned()));
        words.extend(["--bind".to_owned(), format!("{}:{}", self.hub, image.hub)]);
        if let Some(model) = self.model {
            words.extend(["--bind".to_owned(), format!("{model}:{model}:ro")]);
        }
        for variable in image.env.iter().chain(self.env) {
            words.extend(["--env".to_owned(), variable.clone()]);
        }
        words
    }

    /// What removes it, should it outlive the program that started it.
    #[must_use]
    pub fn removal(&self) -> Option<Vec<String>> {
        self.runtime.removal(self.name)
    }
}

/// What the container of a run is called.
#[must_use]
pub fn name(run: &str) -> String {
    format!("redline-{}", run.to_lowercase())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
