//! Setup of a run: engine, server process, model, machine and client. A group of fields that was
//! added to records later is left out where none of it is known.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Engine under test: release, commit and build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineFacts {
    /// Id of the engine: file stem under `suite/engines/`, or for an imported record the name in
    /// the report.
    pub name: String,
    /// Release with `v`, such as `v0.10.0`; it ends in `-dev` for a working tree, and for a wheel or
    /// container image that is no release; it is `unknown` where an imported report states none.
    pub release: String,
    /// Commit that the engine was built from; null for an engine that is installed as a package or
    /// built from a source distribution.
    pub commit: Option<String>,
    /// True when the working tree differed from the commit that the engine was built from.
    pub dirty: Option<bool>,
    /// SHA-256 of the engine's executable, or for an installed Python package of its files,
    /// lower-case hex.
    pub binary_sha256: Option<String>,
    /// Features that the engine was built with: Cargo features, or settings of CMake.
    pub features: Option<Vec<String>>,
    /// Compiler version, as the compiler prints it.
    pub toolchain: Option<String>,
    /// Digest of the container image that the engine ran in, which identifies an image that is no
    /// release; null without a container.
    pub image_digest: Option<String>,
    /// Build of the engine: profile, source and patches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildFacts>,
}

/// Build of the engine under test.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildFacts {
    /// Build profile of the engine, such as `release`.
    pub profile: Option<String>,
    /// Name of the source as `name==version`, for an engine from a Python package or source
    /// distribution; null for one that was built from a commit.
    pub source_url: Option<String>,
    /// Name of the container image that the engine ran in, whose digest is `engine.image_digest`;
    /// null without a container.
    pub image: Option<String>,
    /// SHA-256 of the wheel that the engine was installed from, lower-case hex, where the wheel is no
    /// release; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wheel_sha256: Option<String>,
    /// Patches to the source before the build; empty where there are none.
    pub patches: Option<Vec<Patch>>,
    /// Python packages that were installed where the engine ran, each as `name==version`, sorted,
    /// without pip; left out for an engine that is no Python package, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<Vec<String>>,
    /// SHA-256 of the installed Python packages, lower-case hex: of the entries of `packages`, each
    /// followed by a line feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages_sha256: Option<String>,
}

/// Patch that was applied to an engine's released source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Patch {
    /// SHA-256 of the patch, lower-case hex.
    pub sha256: String,
    /// Reason why the source was patched.
    pub reason: String,
}

/// Server process of a run. `config` is what the running server reports, not what `argv` says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerFacts {
    /// Command line of the server, with `{model}` and `{port}` in place of paths and ports: no path
    /// enters a record. Null for a server that the campaign did not start.
    pub argv: Option<Vec<String>>,
    /// Environment variables that change how the server runs, as they were set for it; paths, and
    /// names of machine and user, in their values are replaced.
    pub env: Option<BTreeMap<String, String>>,
    /// Effective configuration that the server reports: name of the flag to its resolved value,
    /// without flags such as the port.
    pub config: Option<BTreeMap<String, Value>>,
    /// SHA-256 of the effective configuration, lower-case hex: the server's own hash where it
    /// reports one, else that of the canonical JSON of `config`. Null where the configuration was
    /// not read.
    pub config_sha256: Option<String>,
    /// Name of the variant, a configuration other than the default; null for the default.
    pub variant: Option<String>,
    /// Number of tensor-parallel ranks of the server, as it reports it, else as the campaign
    /// planned it.
    pub tp: Option<u32>,
    /// Device that computes: `cpu`, `cuda`, or the engine's own name for it; null where the server
    /// does not report it.
    pub device: Option<String>,
    /// Maximum number of sequences in one step; null where the server does not report it.
    pub max_batch_size: Option<u64>,
    /// Size of the KV cache, in bytes; null where the server does not report it.
    pub kv_bytes: Option<u64>,
    /// Data type of the KV cache; null where the server does not report it.
    pub kv_dtype: Option<String>,
    /// True when the server's prefix cache is on; null where the server does not report it.
    pub prefix_cache: Option<bool>,
    /// Time from process start to readiness, in microseconds, as the server reports it, else as the
    /// campaign measured it.
    pub startup_us: Option<u64>,
    /// Part of the start-up time for loading the weights, in microseconds; null where the server
    /// does not report it.
    pub weights_load_us: Option<u64>,
    /// Number of the machine's GPUs that worked during the run; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<Parallel>,
}

/// Number of the machine's GPUs that worked during a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parallel {
    /// Number of GPUs that worked while the clock ran, by telemetry; 0 on a machine without any.
    /// Null where they were not polled, or the campaign did not start the server.
    pub gpus_used: Option<u32>,
}

/// Model that was served, identified by its files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFacts {
    /// Id of the model: file stem under `suite/models/`, or for an import the name in the report in
    /// lower case, without organization; `unknown` where it has none.
    pub id: String,
    /// Source of the weights: package and version, Hugging Face id, `path` for a file that the user
    /// gave, or `shape` for random weights.
    pub source: Option<String>,
    /// Commit of the model on the Hugging Face hub; null for a model from elsewhere.
    pub revision: Option<String>,
    /// Kind of weights: `real` or `random`.
    pub weights: Option<String>,
    /// SHA-256 of the served weights file, lower-case hex; null for random weights and for a model
    /// without a hash of its file.
    pub weights_sha256: Option<String>,
    /// File format of the weights, such as `gguf` or `safetensors`.
    pub format: Option<String>,
    /// Data type in which the server computes, as it reports it.
    pub dtype: Option<String>,
    /// Number of parameters of the model, as the server reports it.
    pub parameters: Option<u64>,
    /// SHA-256 of the server's tokenizer, lower-case hex, as the server reports it.
    pub tokenizer_sha256: Option<String>,
    /// Quantization method of the weights as the checkpoint's `config.json` names it, such as `fp8`
    /// or `mxfp4`. Null where there is no such file or it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// SHA-256 of the chat template in the checkpoint's folder, lower-case hex; null where there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_sha256: Option<String>,
}

/// Machine that the server ran on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HardwareFacts {
    /// Id of the hardware: that of the GPU, such as `h200-141g`, or of the CPU,
    /// `cpu-<vendor>-<brand slug>-f<family>m<model>s<stepping>-<n>c`; `unknown` where nobody stated
    /// it for an import.
    pub id: String,
    /// True when the person who imported a report stated the hardware and this suite did not see
    /// it.
    pub claimed: bool,
    /// Evidence for hardware that the person who imported a report stated; null in other records.
    pub evidence: Option<String>,
    /// GPUs in the driver's order, or for an import the GPU that the report names; empty where there
    /// are none.
    pub gpu: Option<Vec<Gpu>>,
    /// CPU model, as the operating system names it.
    pub cpu_model: Option<String>,
    /// CPU instruction sets that matter to an engine, as the operating system names them.
    pub cpu_features: Option<Vec<String>>,
    /// Number of logical CPU cores of the machine that the campaign's processes may use.
    pub cores: Option<u32>,
    /// Memory of the machine, in bytes.
    pub ram_bytes: Option<u64>,
    /// Release of the operating system's kernel.
    pub kernel: Option<String>,
    /// Platform: operating system, sockets, NUMA nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

impl HardwareFacts {
    /// True when the machine is known to have a GPU.
    pub fn has_gpu(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpus| !gpus.is_empty())
    }
}

/// Platform around CPU and GPUs, as the operating system and the GPU driver report it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// Operating system by its own name, such as `Debian GNU/Linux 13`.
    pub os: Option<String>,
    /// Number of CPU sockets of the machine.
    pub sockets: Option<u32>,
    /// Number of NUMA nodes, that is, parts of the memory that are near to some of the cores.
    pub numa_nodes: Option<u32>,
    /// Number of processes that computed on the machine's GPUs before the server was started; null
    /// without a GPU or where the driver does not report it.
    pub other_gpu_processes: Option<u32>,
}

/// GPU of the machine, as its driver reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gpu {
    /// Name of the GPU's model, as its driver reports it.
    pub name: String,
    /// Total memory of the GPU, in bytes.
    pub memory_bytes: Option<u64>,
    /// Version of the GPU's driver.
    pub driver: Option<String>,
    /// Version of the GPU's firmware (VBIOS).
    pub vbios: Option<String>,
    /// Power limit that is set on the GPU, in milliwatts.
    pub power_limit_mw: Option<u64>,
    /// True when the GPU's application clock is set below its maximum, or the performance level of a
    /// GPU of AMD is not automatic, which shows that its clocks are held; null where the driver does
    /// not report them.
    pub clocks_locked: Option<bool>,
    /// State of the GPU: power default, link, ECC, MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
}

/// State of a GPU: how it is configured and connected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuState {
    /// SHA-256 of the GPU's UUID, lower-case hex, by which runs on the same card are recognized.
    pub uuid_sha256: Option<String>,
    /// Default power limit of the GPU, in milliwatts.
    pub power_limit_default_mw: Option<u64>,
    /// Highest PCIe generation at which the GPU's link can run in this machine; the link may be
    /// slower at the moment.
    pub pcie_generation: Option<u32>,
    /// True when the GPU's memory has error correction (ECC) on.
    pub ecc: Option<bool>,
    /// True when the GPU is divided into instances (MIG) or partitions.
    pub mig: Option<bool>,
    /// True when the driver stays loaded without users (persistence mode).
    pub persistence: Option<bool>,
    /// Compute mode as the driver writes it, such as `Default` or `Exclusive_Process`.
    pub compute_mode: Option<String>,
}

/// Connection of client and server: whether both ran on one machine, whether responses were
/// streamed, and how many connections were in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientPlace {
    /// True when the client ran on the server's machine; null where the campaign did not start the
    /// server.
    pub same_host: Option<bool>,
    /// True when the server streamed its responses in chunks.
    pub stream: Option<bool>,
    /// Largest number of the client's connections that were in use at the same moment of the run.
    pub sockets_max: Option<u64>,
}
