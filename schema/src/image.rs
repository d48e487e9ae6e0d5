//! Container images in engine files: name for a release, arguments and environment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Container image of an engine, with the arguments and environment inside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Image name, with `{release}` as placeholder for the release or `{version}` for it without
    /// `v`.
    pub name: String,
    /// Image names of older releases, where they are formed otherwise; the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<OlderImage>,
    /// Image name for GPUs of AMD (ROCm), with the same placeholders. The image takes the same
    /// arguments and environment. Left out where the engine publishes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rocm: Option<String>,
    /// Container arguments after the image name; the flags of settings follow them.
    pub argv: Vec<String>,
    /// Environment variables inside the container as `NAME=VALUE`, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Path inside the container at which the folder of Hugging Face models is mounted.
    pub hub: String,
}

/// Name of the container images of older releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OlderImage {
    /// First release whose image has another name.
    pub until: String,
    /// Image name, with the same placeholders.
    pub name: String,
}

impl Image {
    /// Returns the name of the container image of `release`, with or without `v`.
    pub fn name_of(&self, release: &str) -> String {
        let found = numbers(release);
        let older = self.older.iter().find(|older| found < numbers(&older.until));
        let name = older.map_or(&self.name, |older| &older.name);
        filled(name, release)
    }

    /// Returns the name of the container image of `release` for GPUs of AMD; `None` where the engine
    /// publishes none.
    pub fn rocm_name_of(&self, release: &str) -> Option<String> {
        self.rocm.as_ref().map(|name| filled(name, release))
    }
}

/// Returns an image name with its placeholders filled in.
fn filled(name: &str, release: &str) -> String {
    name.replace("{release}", release).replace("{version}", release.trim_start_matches('v'))
}

/// Returns the numbers with which a version begins: those of `v0.5.6.post1` are 0, 5 and 6.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.trim_start_matches('v').split('.');
    parts.map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_releases_have_the_names_that_they_were_published_by() {
        let older = |until: &str, name: &str| OlderImage { until: until.into(), name: name.into() };
        let image = Image {
            name: "x/engine:{release}".into(),
            older: vec![older("0.5.3", "x/engine:{version}-cu126"), older("0.10", "y:{release}")],
            rocm: Some("x/engine:{release}-rocm700".into()),
            argv: Vec::new(),
            env: Vec::new(),
            hub: "/hub".into(),
        };
        for (release, name) in [
            ("v0.5.1", "x/engine:0.5.1-cu126"),
            ("v0.5.1.post2", "x/engine:0.5.1.post2-cu126"),
            ("v0.5.3", "y:v0.5.3"),
            ("v0.9.12", "y:v0.9.12"),
            ("v0.10.0", "x/engine:v0.10.0"),
        ] {
            assert_eq!(image.name_of(release), name);
        }
        let rocm = image.rocm_name_of("v0.5.1");
        assert_eq!(rocm.as_deref(), Some("x/engine:v0.5.1-rocm700"), "not formed as the others");
        assert_eq!(Image { rocm: None, ..image }.rocm_name_of("v0.5.1"), None);
    }
}
