//! What a record says of what was set up: program, launch, model, machine and client. A group that
//! came later than the others is left out where nothing of it is known, and then has a reason under
//! `absent`: [`FACTS`](crate::absent::FACTS).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The program under test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineFacts {
    /// Its id, a file of `suite/engines/`.
    pub name: String,
    /// Version as people write it, with `v`; ends in `-dev` for a working tree.
    pub release: String,
    /// What it was built from.
    pub commit: Option<String>,
    /// Whether the working tree differed from that.
    pub dirty: Option<bool>,
    /// Of the program.
    pub binary_sha256: Option<String>,
    /// That it was built with.
    pub features: Option<Vec<String>>,
    /// What built it, as that names itself.
    pub toolchain: Option<String>,
    /// Of the container image that it ran in.
    pub image_digest: Option<String>,
    /// How it was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildFacts>,
}

/// How the program under test was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildFacts {
    /// `release`.
    pub profile: Option<String>,
    /// `sm_90a`, ...
    pub cuda_architectures: Option<Vec<String>>,
    /// Where the source is, such as `name==version` of a package, for a program that was built of
    /// no commit.
    pub source_url: Option<String>,
    /// The image as it was named; its digest is `engine.image_digest`.
    pub image: Option<String>,
    /// What was changed of the source before it was built; empty where nothing.
    pub patches: Option<Vec<Patch>>,
}

/// A change to the released source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Patch {
    /// Of the change.
    pub sha256: String,
    /// What it is for.
    pub reason: String,
}

/// The server launch; `config` is read from the running server, not from `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Arguments with paths and ports replaced by `{model}`, `{port}`: no path enters a record.
    pub argv: Option<Vec<String>>,
    /// Variables that change how it runs, as they were set.
    pub env: Option<BTreeMap<String, String>>,
    /// Flag to resolved value.
    pub config: Option<BTreeMap<String, Value>>,
    /// Of the canonical JSON of `config`, as the server gives it where it does.
    pub config_sha256: Option<String>,
    /// Name of a configuration beside the default one; null for that.
    pub variant: Option<String>,
    /// Tensor-parallel ranks.
    pub tp: Option<u32>,
    /// `cpu`, `cuda`, or as the engine calls it.
    pub device: Option<String>,
    /// Sequences in one step.
    pub max_batch_size: Option<u64>,
    /// Memory for keys and values.
    pub kv_bytes: Option<u64>,
    /// Their type.
    pub kv_dtype: Option<String>,
    /// Whether it has one.
    pub prefix_cache: Option<bool>,
    /// Process start to ready.
    pub startup_us: Option<u64>,
    /// Part of the start that reading the weights took, as the server says.
    pub weights_load_us: Option<u64>,
    /// How the model is spread beside tensor parallelism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<Parallel>,
    /// Policy by which requests are chosen for a step. For importers, as `cuda_graphs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Whether steps are replayed from graphs. Nobody here writes it yet: no engine's file says
    /// where it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_graphs: Option<bool>,
    /// Of the configuration that the same program has without flags. For importers: the campaign
    /// launches no server without flags to ask it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults_sha256: Option<String>,
}

/// How the model is spread over devices beside tensor parallelism. The campaign counts the GPUs;
/// the other figures are for importers, since no engine's file says where a server tells them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parallel {
    /// Pipeline stages.
    pub pp: Option<u32>,
    /// Ways in which experts are spread.
    pub ep: Option<u32>,
    /// Copies of the model behind one address.
    pub dp: Option<u32>,
    /// GPUs that worked while the clock ran, as telemetry saw them; 0 on a machine without any.
    pub gpus_used: Option<u32>,
}

/// The model that was served, by its files; what cannot be seen has a reason under `absent`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFacts {
    /// File stem under `suite/models/`; of an import, the name that its report gives.
    pub id: String,
    /// Package and version, hub id, or `path`.
    pub source: Option<String>,
    /// Commit on the hub.
    pub revision: Option<String>,
    /// `real` or `random`.
    pub weights: Option<String>,
    /// Of the file that was served.
    pub weights_sha256: Option<String>,
    /// `gguf`, `safetensors`.
    pub format: Option<String>,
    /// That the server computes in.
    pub dtype: Option<String>,
    /// How many there are.
    pub parameters: Option<u64>,
    /// Of the server's tokenizer.
    pub tokenizer_sha256: Option<String>,
    /// Scheme of the weights, as the `config.json` of a checkpoint calls it: `fp8`, `mxfp4`. Null
    /// where there is no such file, or it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// Parameters that one token meets, in mixtures of experts. For importers: no server tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters_active: Option<u64>,
    /// Of the text of the chat template, as it lies in the checkpoint's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_sha256: Option<String>,
}

/// The machine that the server ran on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareFacts {
    /// `h200-141g`, or `cpu-<vendor>-<brand slug>-f<family>m<model>s<stepping>-<n>c`.
    pub id: String,
    /// True when an importer states the hardware and this program did not see it.
    pub claimed: bool,
    /// What such a claim rests on.
    pub evidence: Option<String>,
    /// In the driver's order; empty where there is none.
    pub gpu: Option<Vec<Gpu>>,
    /// As the system names it.
    pub cpu_model: Option<String>,
    /// Instruction sets that matter to an engine, as the system names them.
    pub cpu_features: Option<Vec<String>>,
    /// That may be used.
    pub cores: Option<u32>,
    /// Of the machine.
    pub ram_bytes: Option<u64>,
    /// Its release.
    pub kernel: Option<String>,
    /// What is around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// The machine around processor and GPUs. The campaign writes what a system without its own tools
/// tells; container, versions of CUDA and NCCL, and topology are for importers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// As the system names itself: `Debian GNU/Linux 13`.
    pub os: Option<String>,
    /// Processors.
    pub sockets: Option<u32>,
    /// Parts of the memory that are near some of the cores.
    pub numa_nodes: Option<u32>,
    /// What the server's processes are shut in, where they are.
    pub container: Option<String>,
    /// Version of CUDA that the driver offers.
    pub cuda_driver: Option<String>,
    /// Version of CUDA that the engine was built with.
    pub cuda_runtime: Option<String>,
    /// Its version.
    pub nccl: Option<String>,
    /// Of the matrix that tells how GPUs and processors are connected.
    pub topology_sha256: Option<String>,
    /// Processes of others on the GPUs before the run.
    pub other_gpu_processes: Option<u32>,
}

/// One GPU of it, as its driver tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// All of it.
    pub memory_bytes: Option<u64>,
    /// Its version.
    pub driver: Option<String>,
    /// Version of the card's own program.
    pub vbios: Option<String>,
    /// As it is set.
    pub power_limit_mw: Option<u64>,
    /// Whether clocks are held at a figure.
    pub clocks_locked: Option<bool>,
    /// How it is set up beside that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
}

/// How a GPU is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuState {
    /// Of the card's own id, so that two runs can be told to be on one card.
    pub uuid_sha256: Option<String>,
    /// As it comes from the maker.
    pub power_limit_default_mw: Option<u64>,
    /// Clock at which the processors are held. The driver's program cannot be asked for it: for
    /// importers.
    pub locked_sm_mhz: Option<u64>,
    /// Clock at which the memory is held; likewise.
    pub locked_memory_mhz: Option<u64>,
    /// Of its link, at most.
    pub pcie_generation: Option<u32>,
    /// Links to other GPUs.
    pub nvlink_links_active: Option<u32>,
    /// Whether its memory corrects errors.
    pub ecc: Option<bool>,
    /// Whether it is cut into instances.
    pub mig: Option<bool>,
    /// Whether the driver stays loaded without a user.
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
    /// Whether answers come in chunks.
    pub stream: Option<bool>,
    /// Of the tokenizer that prompts were made with.
    pub tokenizer_sha256: Option<String>,
    /// Most connections at one time.
    pub sockets_max: Option<u64>,
}

/// A file that belongs to a run and is kept elsewhere, by its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// `requests`, `server-log`, `client-log`, `telemetry`, `config`, `flamegraph`.
    pub role: String,
    /// Of its bytes.
    pub sha256: String,
    /// How many.
    pub bytes: u64,
    /// As IANA names it. The campaign keeps no files beyond itself, so that nobody here writes one
    /// yet.
    pub media_type: String,
}
