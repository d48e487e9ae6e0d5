//! What a record says of build, launch and machine beyond the facts that every record has had
//! from the first on. Each group is left out where nothing of it is known, and then has a reason
//! under `absent`: [`FACTS`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How the program under test was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildFacts {
    /// `release`.
    pub profile: Option<String>,
    /// `sm_90a`, ...
    pub cuda_architectures: Option<Vec<String>>,
    pub source_url: Option<String>,
    /// The image as it was named; its digest is `engine.image_digest`.
    pub image: Option<String>,
    pub patches: Option<Vec<Patch>>,
}

/// A change to the released source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Patch {
    pub sha256: String,
    pub reason: String,
}

/// How the model is spread over devices beside tensor parallelism.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parallel {
    /// Pipeline stages.
    pub pp: Option<u32>,
    /// Ways in which experts are spread.
    pub ep: Option<u32>,
    /// Copies of the model behind one address.
    pub dp: Option<u32>,
    pub gpus_used: Option<u32>,
}

/// The machine around processor and GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// As the system names itself: `Debian GNU/Linux 13`.
    pub os: Option<String>,
    pub sockets: Option<u32>,
    pub numa_nodes: Option<u32>,
    pub container: Option<String>,
    /// Version of CUDA that the driver offers.
    pub cuda_driver: Option<String>,
    pub cuda_runtime: Option<String>,
    pub nccl: Option<String>,
    /// Of the matrix that tells how GPUs and processors are connected.
    pub topology_sha256: Option<String>,
    /// Processes of others on the GPUs before the run.
    pub other_gpu_processes: Option<u32>,
}

/// How a GPU is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuState {
    /// Of the card's own id, so that two runs can be told to be on one card.
    pub uuid_sha256: Option<String>,
    pub power_limit_default_mw: Option<u64>,
    pub locked_sm_mhz: Option<u64>,
    pub locked_memory_mhz: Option<u64>,
    pub pcie_generation: Option<u32>,
    pub nvlink_links_active: Option<u32>,
    pub ecc: Option<bool>,
    pub mig: Option<bool>,
    pub persistence: Option<bool>,
    /// As the driver writes it: `Default`, `Exclusive_Process`.
    pub compute_mode: Option<String>,
}

/// Where the client sat, and how it asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientPlace {
    /// On the machine of the server.
    pub same_host: Option<bool>,
    /// `/v1/completions`.
    pub route: Option<String>,
    pub stream: Option<bool>,
    pub tokenizer_sha256: Option<String>,
    pub sockets_max: Option<u64>,
}

/// A file that belongs to a run and is kept elsewhere, by its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// `requests`, `server-log`, `client-log`, `telemetry`, `config`, `flamegraph`.
    pub role: String,
    pub sha256: String,
    pub bytes: u64,
    pub media_type: String,
}

/// Dotted paths of what later versions added to records: a measured one gives each or says why
/// not, and one that was written before them does neither.
pub const FACTS: &[&str] = &[
    "artifacts",
    "client.place",
    "engine.build",
    "hardware.platform",
    "model.chat_template_sha256",
    "model.parameters_active",
    "model.quantization",
    "server.cuda_graphs",
    "server.defaults_sha256",
    "server.parallel",
    "server.scheduler",
];

/// Those of [`FACTS`] that `record` neither gives nor explains.
#[must_use]
pub fn unexplained_facts(record: &Value) -> Vec<&'static str> {
    let absent = record.get("absent").and_then(Value::as_object);
    let explained = |path: &str| absent.is_some_and(|reasons| reasons.contains_key(path));
    let silent = |path: &&&str| {
        let mut at = record;
        let mut walked = String::new();
        for key in path.split('.') {
            walked = if walked.is_empty() { key.to_owned() } else { format!("{walked}.{key}") };
            if explained(&walked) {
                return false;
            }
            match at.get(key) {
                Some(below) => at = below,
                None => at = &Value::Null,
            }
        }
        at.is_null()
    };
    FACTS.iter().filter(silent).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fact_is_given_or_explained_by_itself_or_by_its_group() {
        let all = unexplained_facts(&json!({}));
        assert_eq!(all, FACTS);
        let record = json!({
            "client": null,
            "engine": {"build": {"profile": "release"}},
            "server": {"scheduler": null},
            "absent": {"client": "x", "server.scheduler": "y", "model": "z"},
        });
        let left = unexplained_facts(&record);
        let expected = [
            "artifacts",
            "hardware.platform",
            "server.cuda_graphs",
            "server.defaults_sha256",
            "server.parallel",
        ];
        assert_eq!(left, expected);
    }
}
