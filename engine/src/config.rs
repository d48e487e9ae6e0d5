//! Configuration of a server: joins command line, profile and defaults, records where each value
//! comes from, and refuses values that this release does not support.

mod flags;
#[cfg(test)]
mod tests;

pub use flags::{
    DeviceChoice, DtypeChoice, Flags, KvDtypeChoice, LoadFormat, LogFormat, SpeculativeAlgorithm,
};

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use engine_core::KvType;
use engine_cuda::driver::gpu::{UnusableDriver, check_driver};
use engine_weights::hex;

/// Number of tokens in a KV page (a block, in vLLM's words).
pub const PAGE_TOKENS: usize = 16;
/// Interval in tokens at whose multiples a prefill chunk ends, unless the prompt ends first,
/// whatever else is in the step. Results would otherwise depend on how a prompt was cut.
pub const CHUNK_TOKENS: usize = 64;
/// Interval in tokens at which snapshots of a sequence's recurrent state are kept, so that later
/// prompts with the same beginning can continue from them.
pub const STATE_INTERVAL: usize = 4096;

/// Largest value that `--tp` accepts: more ranks than one machine has GPUs.
const TP_MAX: usize = 64;
/// Largest value that `--threads` accepts, more than any machine has cores. Far beyond it the
/// system refuses to start threads, and the runtime then aborts the process.
const THREADS_MAX: usize = 4096;
/// Largest value that `--max-batch-size` accepts, more sequences than any device computes at once. A
/// start allocates memory for each.
const BATCH_MAX: usize = 65_536;
/// Returns the error message where `--device cuda` finds no supported GPU. It says so if the driver
/// is too old.
pub(crate) fn no_gpu() -> String {
    let what = "`--device cuda` needs a GPU of compute capability 8.0 or later with its driver";
    match check_driver() {
        Err(UnusableDriver::Unusable(why)) => format!("{what}: {why}; or `--device cpu`"),
        Ok(()) | Err(UnusableDriver::Missing) => {
            format!("{what}, and there is none; hint: `--device cpu`")
        }
    }
}

/// Names of flags of `redline serve` that do not change what a server computes, such as those for
/// its address and name. They are left out of the configuration's hash, so that two starts with
/// equal computation have equal hashes.
const UNHASHED: [&str; 7] =
    ["allow-origin", "api-key-file", "host", "log-format", "model-name", "port", "profile"];
/// Names of flags that are newer than the configuration's hash, each with the value at which a
/// server computes as before the flag. At this value a flag is left out of the hash, so that the
/// same configuration has the same hash as in earlier releases.
const NEWER: [(&str, &str); 1] = [("speculative-algorithm", "none")];

/// Data types that one kind of device (CPU or GPU) supports for matrix multiplication and for the
/// KV cache. Flags, defaults, the choice of a device and loading consult [`CPU`] and [`CUDA`].
#[derive(Debug)]
pub struct Capabilities {
    /// Values of `--dtype` that the device supports, besides `auto`.
    dtypes: &'static [DtypeChoice],
    /// Values of `--kv-dtype` that the device supports, besides `auto`, each with its type of the
    /// KV cache.
    kv_types: &'static [(KvDtypeChoice, KvType)],
    /// Data type of the device's KV cache where `--kv-dtype` is `auto`.
    kv_default: KvType,
}

/// Data types that the CPU supports for matrix multiplication and for the KV cache. A KV cache in
/// f16 takes half the memory of f32 and still conforms to the reference outputs.
pub const CPU: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::F32, DtypeChoice::Bf16, DtypeChoice::Int8],
    kv_types: &[
        (KvDtypeChoice::F32, KvType::F32),
        (KvDtypeChoice::F16, KvType::F16),
        (KvDtypeChoice::Bf16, KvType::Bf16),
    ],
    kv_default: KvType::F16,
};

/// Data types that a GPU supports for matrix multiplication and for the KV cache.
pub const CUDA: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::Bf16],
    kv_types: &[(KvDtypeChoice::Bf16, KvType::Bf16), (KvDtypeChoice::Fp8, KvType::Fp8)],
    kv_default: KvType::Bf16,
};

/// Returns the capabilities of the devices that a value of `--device` permits, one entry per kind
/// of device (CPU, GPU).
fn capabilities(device: DeviceChoice) -> &'static [Capabilities] {
    match device {
        DeviceChoice::Auto => &[CPU, CUDA],
        DeviceChoice::Cpu => &[CPU],
        DeviceChoice::Cuda => &[CUDA],
    }
}

impl Capabilities {
    /// Returns true if the device supports this value of `--dtype`; `auto` is always supported.
    pub fn has_dtype(&self, dtype: DtypeChoice) -> bool {
        dtype == DtypeChoice::Auto || self.dtypes.contains(&dtype)
    }

    /// Returns the data type of the KV cache for a value of `--kv-dtype`, or `None` if the device
    /// does not support the value.
    pub fn kv_type(&self, kv: KvDtypeChoice) -> Option<KvType> {
        match kv {
            KvDtypeChoice::Auto => Some(self.kv_default),
            _ => {
                self.kv_types.iter().find(|(choice, _)| *choice == kv).map(|(_, kv_type)| *kv_type)
            }
        }
    }
}

/// Origin of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Origin of a value that neither command line nor profile gives: the built-in default.
    Default,
    /// Origin of a value given on the command line of `redline serve`.
    Flag,
    /// Origin of a value given in the TOML file that `--profile` names.
    Profile,
    /// Origin of a value taken from the checkpoint, such as the longest context.
    Model,
    /// Origin of a value that no flag sets: a library that was found on the machine.
    Machine,
}

/// Value of a flag, with its origin, as `/server_info` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting {
    /// Value of one flag of `redline serve` that is in effect, or name of a library.
    pub value: Value,
    /// Origin of the value: command line, profile, model, machine or built-in default.
    pub source: Source,
}

/// Values of all flags of `redline serve`, with the origin of each. Longest sequence and model name
/// are `None` until the model is loaded, unless they are given; the model then decides them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "`Flags` says what each flag is")]
pub struct Config {
    pub tp: usize,
    pub device: DeviceChoice,
    pub host: String,
    pub port: u16,
    pub max_batch_size: usize,
    pub cache_max_entry_count: f64,
    pub max_prefill_token_num: usize,
    pub max_seq_len: Option<usize>,
    pub dtype: DtypeChoice,
    pub kv_dtype: KvDtypeChoice,
    pub load_format: LoadFormat,
    pub speculative_algorithm: SpeculativeAlgorithm,
    pub no_prefix_cache: bool,
    pub threads: usize,
    pub model_name: Option<String>,
    pub api_key_file: Option<PathBuf>,
    pub insecure_bind: bool,
    pub allow_origin: Option<Vec<String>>,
    pub log_format: LogFormat,
    pub profile: Option<PathBuf>,
    /// Origin of the value of each flag of `redline serve`, by the flag's name.
    #[serde(skip)]
    pub sources: BTreeMap<String, Source>,
}

/// Facts about the machine that the server will run on, from which defaults follow.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Name of the processor, as the system prints it.
    pub processor: &'a str,
    /// Names of the machine's GPUs that the kernels support. A server uses one per tensor-parallel
    /// rank, and none where there are fewer GPUs than ranks.
    pub gpus: &'a [&'a str],
}

impl Config {
    /// Resolves flags, profile and defaults to the configuration for `machine`: the command line
    /// takes precedence over the profile, the profile over the default.
    ///
    /// # Errors
    /// The profile cannot be read or parsed, or a value is out of range or not supported by this
    /// release.
    pub fn resolve(flags: &Flags, machine: &Machine<'_>) -> Result<Self> {
        let profile = match &flags.profile {
            Some(path) => Flags::read_profile(path)?,
            None => Flags::default(),
        };
        let mut values = json!({
            "tp": 1, "device": "auto", "host": "127.0.0.1", "port": 23333,
            "max-batch-size": default_max_batch_size(machine.processor),
            "cache-max-entry-count": 0.8, "max-prefill-token-num": 512, "max-seq-len": null,
            "dtype": "auto", "kv-dtype": "auto", "load-format": "auto", "no-prefix-cache": false,
            "speculative-algorithm": "none",
            "threads": machine.cores, "model-name": null, "api-key-file": null,
            "insecure-bind": false, "allow-origin": null, "log-format": "text",
            "profile": null,
        });
        let mut sources: BTreeMap<String, Source> = BTreeMap::new();
        for (source, flags) in [(Source::Profile, &profile), (Source::Flag, flags)] {
            // Checked here, because JSON has no NaN.
            if let Some(ratio) = flags.cache_max_entry_count
                && !(ratio > 0.0
                    && (ratio <= 1.0 || ratio.fract() == 0.0)
                    && ratio < f64::from(u32::MAX))
            {
                let wanted = "a share above 0 and up to 1, or a whole number of KV pages";
                return Err(invalid("cache-max-entry-count", &ratio, wanted));
            }
            let given: BTreeMap<String, Value> =
                serde_json::from_value(serde_json::to_value(flags)?)?;
            for (flag, value) in given {
                // Flags that were not given are `null`, and switches `false`.
                if !value.is_null() && value != Value::Bool(false) {
                    values[&flag] = value;
                    sources.insert(flag, source);
                } else {
                    sources.entry(flag).or_insert(Source::Default);
                }
            }
        }
        let mut config = Self { sources, ..serde_json::from_value(values)? };
        // Without a GPU for each rank `auto` means the CPU, whose defaults differ.
        let suits_gpu = config.device != DeviceChoice::Cpu
            && CUDA.has_dtype(config.dtype)
            && CUDA.kv_type(config.kv_dtype).is_some();
        if let Some(gpu) = machine.gpus.first()
            && suits_gpu
            && machine.gpus.len() >= config.tp
        {
            if config.sources["max-batch-size"] == Source::Default {
                config.max_batch_size = default_max_batch_size(gpu);
            }
            if config.sources["max-prefill-token-num"] == Source::Default {
                config.max_prefill_token_num = 8192;
            }
        }
        config.check_sense()?;
        config.check_support()?;
        Ok(config)
    }

    /// Refuses 0 for `--tp`, `--max-batch-size`, `--max-prefill-token-num`, `--max-seq-len` and
    /// `--threads`, and more than 4,096 threads or 65,536 sequences at once.
    fn check_sense(&self) -> Result<()> {
        for (flag, value) in [
            ("tp", self.tp),
            ("max-batch-size", self.max_batch_size),
            ("max-prefill-token-num", self.max_prefill_token_num),
            ("max-seq-len", self.max_seq_len.unwrap_or(1)),
            ("threads", self.threads),
        ] {
            if value == 0 {
                return Err(invalid(flag, &0, "at least 1"));
            }
        }
        if self.threads > THREADS_MAX {
            return Err(invalid("threads", &self.threads, "at most 4096"));
        }
        if self.max_batch_size > BATCH_MAX {
            return Err(invalid("max-batch-size", &self.max_batch_size, "at most 65536"));
        }
        Ok(())
    }

    /// Refuses values of `--tp`, `--dtype` and `--kv-dtype` that this release does not support on
    /// the chosen device, such as `--dtype int4`, rather than replacing them silently.
    fn check_support(&self) -> Result<()> {
        let (device, dtype, kv_dtype) = (self.device, self.dtype, self.kv_dtype);
        let devices = capabilities(device);
        let on_gpu = if device == DeviceChoice::Cuda { " on a GPU" } else { "" };
        let on_device = if device == DeviceChoice::Cpu { " on the CPU" } else { on_gpu };
        let dtypes = devices.iter().flat_map(|one| one.dtypes).map(name_of);
        let kv_types = devices.iter().flat_map(|one| one.kv_types).map(|(kv, _)| name_of(kv));
        for (flag, ok, value, supported) in [
            ("tp", (1..=TP_MAX).contains(&self.tp), name_of(&self.tp), "1 to 64".to_owned()),
            (
                "dtype",
                devices.iter().any(|one| one.has_dtype(dtype)),
                name_of(&dtype),
                names_once(dtypes) + on_gpu,
            ),
            (
                "kv-dtype",
                devices.iter().any(|one| one.kv_type(kv_dtype).is_some()),
                name_of(&kv_dtype),
                names_once(kv_types) + on_device,
            ),
        ] {
            if !ok {
                bail!(
                    "`--{flag} {value}` is not supported by this release; supported: {supported}"
                );
            }
        }
        Ok(())
    }

    /// Resolves `--host` and `--port` to socket addresses. An address that other machines can reach
    /// needs `--api-key-file` or `--insecure-bind`.
    ///
    /// # Errors
    /// The host has no address, or other machines can reach it and neither an API key nor
    /// `--insecure-bind` is given.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let host = &self.host;
        let resolved = (host.as_str(), self.port).to_socket_addrs();
        let addresses: Vec<_> = resolved.map(Iterator::collect).unwrap_or_default();
        if addresses.is_empty() {
            return Err(invalid(
                "host",
                host,
                "an address of this machine, or a name that has one",
            ));
        }
        let open = addresses.iter().any(|address| !address.ip().is_loopback());
        if open && self.api_key_file.is_none() && !self.insecure_bind {
            bail!(
                "`--host {host}` is reachable from other machines; hint: give `--api-key-file`, or \
                 `--insecure-bind` to serve everyone"
            );
        }
        Ok(addresses)
    }

    /// Replaces `auto` in `--dtype` and `--kv-dtype` by the types that the model was loaded with; a
    /// type that no value of the flag names leaves the flag unchanged.
    pub fn settle_dtypes(&mut self, dtype: &str, kv_dtype: &str) {
        // A type that no flag value names leaves the flag at `auto`; `/server_info` names it
        // elsewhere.
        let name = |name: &str| Value::from(name);
        self.dtype = serde_json::from_value(name(dtype)).unwrap_or(self.dtype);
        self.kv_dtype = serde_json::from_value(name(kv_dtype)).unwrap_or(self.kv_dtype);
    }

    /// Returns value and origin of every flag of `redline serve`, by the flag's name, as
    /// `/server_info` shows them. Of the paths of the API key file and of the profile only `set` is
    /// shown.
    pub fn effective(&self) -> BTreeMap<String, Setting> {
        let values = serde_json::to_value(self).unwrap_or_default();
        let setting = |(flag, source): (&String, &Source)| {
            // A path may contain private names, so that only its presence is shown.
            let value = match &values[flag] {
                Value::String(_) if flag == "api-key-file" || flag == "profile" => "set".into(),
                value => value.clone(),
            };
            (flag.clone(), Setting { value, source: *source })
        };
        self.sources.iter().map(setting).collect()
    }
}

fn invalid(flag: &str, value: &dyn fmt::Display, wanted: &str) -> anyhow::Error {
    anyhow!("`--{flag} {value}` is invalid: it must be {wanted}")
}

/// Joins `auto` and the names in `names`, which are values that devices support for a flag, to one
/// list for an error message. A name that occurs several times is listed once.
fn names_once(names: impl Iterator<Item = String>) -> String {
    let mut supported = vec!["auto".to_owned()];
    for name in names {
        if !supported.contains(&name) {
            supported.push(name);
        }
    }
    supported.join(", ")
}

fn name_of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// Returns the SHA-256, in hex, of the canonical JSON (RFC 8785) of the server's flags with their
/// values. Flags that do not change what is computed, such as `--port`, are left out (`UNHASHED`),
/// and so are flags that are newer than the hash, where they change nothing (`NEWER`), and libraries
/// of the machine: the hash names what was asked for.
pub fn config_sha256(effective: &BTreeMap<String, Setting>) -> String {
    let is_as_before = |flag: &str, value: &Value| {
        NEWER.iter().any(|(newer, before)| *newer == flag && value == before)
    };
    let values: BTreeMap<_, _> = effective
        .iter()
        .filter(|(_, setting)| setting.source != Source::Machine)
        .filter(|(flag, _)| !UNHASHED.contains(&flag.as_str()))
        .filter(|(flag, setting)| !is_as_before(flag.as_str(), &setting.value))
        .map(|(flag, setting)| (flag, canonical(&setting.value)))
        .collect();
    // serde_json writes sorted keys, no spaces and shortest numbers: the canonical form of these
    // values.
    let json = serde_json::to_string(&values).expect("plain values are JSON");
    hex(Sha256::digest(json).as_ref())
}

/// Converts a whole floating-point number to a JSON integer, as RFC 8785 writes it; returns other
/// values unchanged.
fn canonical(value: &Value) -> Value {
    match value.as_f64() {
        // Below 1e15 the conversion to an integer is exact.
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() < 1e15 => {
            Value::from(number as i64)
        }
        _ => value.clone(),
    }
}

/// Default of `--max-batch-size` by GPU model, which is recognized by a part of the GPU's
/// lower-case name. The values are those that Redline has published since version 0.10.0.
const MAX_BATCH_SIZES: [(&str, usize); 6] =
    [("a100", 512), ("a800", 512), ("h20", 1024), ("h100", 1024), ("h800", 1024), ("h200", 1280)];

/// Returns the default of `--max-batch-size` for a device with this name. Of the GPU models whose
/// name it contains the longest decides: "h200" must not be taken for "h20". Other devices get 128.
pub fn default_max_batch_size(device_name: &str) -> usize {
    let device_name = device_name.to_lowercase();
    let named = MAX_BATCH_SIZES.iter().filter(|(name, _)| device_name.contains(name));
    named.max_by_key(|(name, _)| name.len()).map_or(128, |(_, size)| *size)
}
