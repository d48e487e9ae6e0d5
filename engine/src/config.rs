//! Configuration of a server: joins command line, profile and defaults, records where each value
//! comes from, and refuses values that this release does not support.

mod capabilities;
mod flags;
#[cfg(test)]
mod tests;

pub use capabilities::{Capabilities, capabilities};
pub use flags::{DeviceChoice, DtypeChoice, Flags, KvDtypeChoice, LoadFormat};

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use engine_weights::hex;

/// Tokens of a KV page (a block, in vLLM's words).
pub const PAGE_TOKENS: usize = 16;
/// Prefill chunks end on multiples of this many tokens, whatever else is in the step. Results
/// would otherwise depend on how a prompt was cut.
pub const CHUNK_TOKENS: usize = 64;
/// Snapshots of recurrent state are kept for later prompts at multiples of this many tokens.
pub const STATE_INTERVAL: usize = 4096;

/// Largest `--tp`: no published model has more key heads or experts to divide among ranks.
const TP_MAX: usize = 64;
/// Largest `--threads`, more than any machine has cores. Far beyond it the system refuses to start
/// threads, and the runtime then aborts the process.
const THREADS_MAX: usize = 4096;

/// Flags that say where and under which name a server runs, but not what it computes. They are left
/// out of the configuration's hash, so that two starts with equal computation have equal hashes.
const UNHASHED: [&str; 5] = ["api-key-file", "host", "model-name", "port", "profile"];

/// Origin of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Origin of a value that neither command line nor profile gives: the built-in default.
    Default,
    /// The command line.
    Flag,
    /// Origin of a value given in the TOML file that `--profile` names.
    Profile,
    /// Origin of a value taken from the checkpoint, such as the longest context.
    Model,
}

/// Value of a flag, with its origin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting<T> {
    /// Value of the flag that is in effect.
    pub value: T,
    /// Origin of the flag's value.
    pub source: Source,
}

impl<T> Setting<T> {
    /// Picks a value: the command line takes precedence over the profile, the profile over the
    /// default.
    fn pick(flag: Option<T>, profile: Option<T>, default: impl FnOnce() -> T) -> Self {
        match (flag, profile) {
            (Some(value), _) => Self { value, source: Source::Flag },
            (None, Some(value)) => Self { value, source: Source::Profile },
            (None, None) => Self { value: default(), source: Source::Default },
        }
    }
}

impl Setting<bool> {
    fn pick_switch(flag: bool, profile: bool) -> Self {
        Self::pick(flag.then_some(true), profile.then_some(true), || false)
    }
}

/// Error in the flags or in a file that a flag names.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum ConfigError {
    #[error("`--{flag} {value}` is not supported by this release; supported: {supported}")]
    Unsupported { flag: &'static str, value: String, supported: String },
    #[error("`--{flag} {value}` is invalid: it must be {wanted}")]
    Invalid { flag: &'static str, value: String, wanted: &'static str },
    #[error("failed to read `{path}`")]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("the profile `{path}` is not a TOML table of flags")]
    Profile { path: PathBuf, source: Box<toml::de::Error> },
    #[error("the key file `{path}` is empty")]
    EmptyKey { path: PathBuf },
    #[error(
        "`--host {host}` is reachable from other machines; hint: give `--api-key-file`, or \
         `--insecure-bind` to serve everyone"
    )]
    OpenBind { host: String },
}

/// Values of all flags, each with its origin. A value that the model decides is `None` until the
/// model is loaded.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "`Flags` says what each flag is")]
pub struct Config {
    pub tp: Setting<usize>,
    pub device: Setting<DeviceChoice>,
    pub host: Setting<String>,
    pub port: Setting<u16>,
    pub max_batch_size: Setting<usize>,
    pub cache_max_entry_count: Setting<f64>,
    pub max_prefill_token_num: Setting<usize>,
    pub max_seq_len: Setting<Option<usize>>,
    pub dtype: Setting<DtypeChoice>,
    pub kv_dtype: Setting<KvDtypeChoice>,
    pub load_format: Setting<LoadFormat>,
    pub no_prefix_cache: Setting<bool>,
    pub threads: Setting<usize>,
    pub model_name: Setting<Option<String>>,
    pub api_key_file: Setting<Option<PathBuf>>,
    pub insecure_bind: Setting<bool>,
    pub profile: Setting<Option<PathBuf>>,
}

/// Facts about the machine that the server will run on, from which defaults follow.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Name of the processor, as the system prints it.
    pub processor: &'a str,
    /// Names of the GPUs that the server would use, one per tensor-parallel rank.
    pub gpus: &'a [&'a str],
}

impl Config {
    /// Resolves flags, profile and defaults to the configuration for `machine`.
    ///
    /// # Errors
    /// A file cannot be read, or a value is out of range or not supported by this release.
    pub fn resolve(flags: Flags, machine: &Machine<'_>) -> Result<Self, ConfigError> {
        let profile = match &flags.profile {
            Some(path) => Flags::read_profile(path)?,
            None => Flags::default(),
        };
        let (a, b) = (flags, profile);
        let some = |value: Option<usize>| value.map(Some);
        let tp = Setting::pick(a.tp, b.tp, || 1);
        let device = Setting::pick(a.device, b.device, || DeviceChoice::Auto);
        let dtype = Setting::pick(a.dtype, b.dtype, || DtypeChoice::Auto);
        let kv_dtype = Setting::pick(a.kv_dtype, b.kv_dtype, || KvDtypeChoice::Auto);
        // Without a GPU for each rank `auto` means the CPU, whose defaults differ.
        let is_gpu = device.value != DeviceChoice::Cpu
            && machine.gpus.len() >= tp.value
            && capabilities(DeviceChoice::Cuda)
                .iter()
                .all(|gpu| gpu.has_dtype(dtype.value) && gpu.kv_type(kv_dtype.value).is_some());
        let gpu = machine.gpus.first().copied().filter(|_| is_gpu);
        let config = Self {
            tp,
            device,
            host: Setting::pick(a.host, b.host, || "127.0.0.1".into()),
            port: Setting::pick(a.port, b.port, || 23333),
            max_batch_size: Setting::pick(a.max_batch_size, b.max_batch_size, || {
                default_max_batch_size(gpu.unwrap_or(machine.processor))
            }),
            cache_max_entry_count: Setting::pick(
                a.cache_max_entry_count,
                b.cache_max_entry_count,
                || 0.8,
            ),
            max_prefill_token_num: Setting::pick(
                a.max_prefill_token_num,
                b.max_prefill_token_num,
                || if gpu.is_some() { 8192 } else { 512 },
            ),
            max_seq_len: Setting::pick(some(a.max_seq_len), some(b.max_seq_len), || None),
            dtype,
            kv_dtype,
            load_format: Setting::pick(a.load_format, b.load_format, || LoadFormat::Auto),
            no_prefix_cache: Setting::pick_switch(a.no_prefix_cache, b.no_prefix_cache),
            threads: Setting::pick(a.threads, b.threads, || machine.cores),
            model_name: Setting::pick(a.model_name.map(Some), b.model_name.map(Some), || None),
            api_key_file: Setting::pick(a.api_key_file.map(Some), b.api_key_file.map(Some), || {
                None
            }),
            insecure_bind: Setting::pick_switch(a.insecure_bind, b.insecure_bind),
            // A profile cannot name another profile.
            profile: Setting::pick(a.profile.map(Some), None, || None),
        };
        config.check_sense()?;
        config.check_support()?;
        Ok(config)
    }

    /// Checks that numeric flags are within their ranges.
    fn check_sense(&self) -> Result<(), ConfigError> {
        for (flag, value) in [
            ("tp", self.tp.value),
            ("max-batch-size", self.max_batch_size.value),
            ("max-prefill-token-num", self.max_prefill_token_num.value),
            ("max-seq-len", self.max_seq_len.value.unwrap_or(1)),
            ("threads", self.threads.value),
        ] {
            if value == 0 {
                return Err(ConfigError::Invalid { flag, value: "0".into(), wanted: "at least 1" });
            }
        }
        let threads = self.threads.value;
        if threads > THREADS_MAX {
            let (flag, value) = ("threads", threads.to_string());
            return Err(ConfigError::Invalid { flag, value, wanted: "at most 4096" });
        }
        let ratio = self.cache_max_entry_count.value;
        // Negated, so that NaN is refused, too.
        if !(ratio > 0.0 && ratio < f64::from(u32::MAX)) {
            let (flag, wanted) = ("cache-max-entry-count", "a share above 0 or a number of pages");
            return Err(ConfigError::Invalid { flag, value: ratio.to_string(), wanted });
        }
        Ok(())
    }

    /// Refuses values that this release knows by name but cannot compute, such as `--dtype int4`,
    /// rather than replacing them silently.
    fn check_support(&self) -> Result<(), ConfigError> {
        let (device, dtype, kv_dtype) = (self.device.value, self.dtype.value, self.kv_dtype.value);
        let devices = capabilities(device);
        let unsupported = |flag, value, names: Vec<String>, place: &str| {
            // A type that several devices support is named once.
            let mut supported = vec!["auto".to_owned()];
            names.into_iter().for_each(|name| {
                if !supported.contains(&name) {
                    supported.push(name);
                }
            });
            let supported = supported.join(", ") + place;
            Err(ConfigError::Unsupported { flag, value, supported })
        };
        if !(1..=TP_MAX).contains(&self.tp.value) {
            let (flag, value) = ("tp", self.tp.value.to_string());
            return Err(ConfigError::Unsupported { flag, value, supported: "1 to 64".into() });
        }
        let on_gpu = if device == DeviceChoice::Cuda { " on a GPU" } else { "" };
        if !devices.iter().any(|one| one.has_dtype(dtype)) {
            let names = devices.iter().flat_map(Capabilities::dtype_names).collect();
            return unsupported("dtype", name_of(&dtype), names, on_gpu);
        }
        if !devices.iter().any(|one| one.kv_type(kv_dtype).is_some()) {
            let names = devices.iter().flat_map(Capabilities::kv_type_names).collect();
            let place = if device == DeviceChoice::Cpu { " on the CPU" } else { on_gpu };
            return unsupported("kv-dtype", name_of(&kv_dtype), names, place);
        }
        Ok(())
    }

    /// Resolves `--host` and `--port` to socket addresses. An address that other machines can reach
    /// needs `--api-key-file` or `--insecure-bind`.
    ///
    /// # Errors
    /// The host has no address, or is reachable from other machines without a key.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let host = &self.host.value;
        let resolved = (host.as_str(), self.port.value).to_socket_addrs();
        let addresses: Vec<_> = resolved.map(Iterator::collect).unwrap_or_default();
        if addresses.is_empty() {
            let wanted = "an address of this machine, or a name that has one";
            return Err(ConfigError::Invalid { flag: "host", value: host.clone(), wanted });
        }
        let open = addresses.iter().any(|address| !address.ip().is_loopback());
        if open && self.api_key_file.value.is_none() && !self.insecure_bind.value {
            return Err(ConfigError::OpenBind { host: host.clone() });
        }
        Ok(addresses)
    }

    /// Reads the API key from the file that `--api-key-file` names, without surrounding white
    /// space: editors end a file with a line break. `None` without the flag.
    ///
    /// # Errors
    /// The file cannot be read or holds no key.
    pub fn read_api_key(&self) -> Result<Option<String>, ConfigError> {
        let Some(path) = &self.api_key_file.value else { return Ok(None) };
        let key = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::ReadFile { path: path.clone(), source })?;
        match key.trim() {
            "" => Err(ConfigError::EmptyKey { path: path.clone() }),
            key => Ok(Some(key.to_owned())),
        }
    }

    /// Replaces `auto` in `--dtype` and `--kv-dtype` by the types that the model was loaded with.
    pub fn settle_dtypes(&mut self, dtype: &str, kv_dtype: &str) {
        // A type that no flag value names leaves the flag at `auto`; `/server_info` names it
        // elsewhere.
        let name = |name: &str| Value::from(name);
        self.dtype.value = serde_json::from_value(name(dtype)).unwrap_or(self.dtype.value);
        self.kv_dtype.value = serde_json::from_value(name(kv_dtype)).unwrap_or(self.kv_dtype.value);
    }

    /// Value and origin of every flag by its name, as `/server_info` shows them.
    pub fn effective(&self) -> BTreeMap<&'static str, Setting<Value>> {
        fn entry<T: Serialize>(setting: &Setting<T>) -> Setting<Value> {
            let value = serde_json::to_value(&setting.value).unwrap_or(Value::Null);
            Setting { value, source: setting.source }
        }
        // A path may contain private names, so that only its presence is shown.
        let path = |setting: &Setting<Option<PathBuf>>| Setting {
            value: setting.value.as_ref().map_or(Value::Null, |_| "set".into()),
            source: setting.source,
        };
        BTreeMap::from([
            ("api-key-file", path(&self.api_key_file)),
            ("cache-max-entry-count", entry(&self.cache_max_entry_count)),
            ("device", entry(&self.device)),
            ("dtype", entry(&self.dtype)),
            ("host", entry(&self.host)),
            ("insecure-bind", entry(&self.insecure_bind)),
            ("kv-dtype", entry(&self.kv_dtype)),
            ("load-format", entry(&self.load_format)),
            ("max-batch-size", entry(&self.max_batch_size)),
            ("max-prefill-token-num", entry(&self.max_prefill_token_num)),
            ("max-seq-len", entry(&self.max_seq_len)),
            ("model-name", entry(&self.model_name)),
            ("no-prefix-cache", entry(&self.no_prefix_cache)),
            ("port", entry(&self.port)),
            ("profile", path(&self.profile)),
            ("threads", entry(&self.threads)),
            ("tp", entry(&self.tp)),
        ])
    }
}

fn name_of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// SHA-256, in hex, of the canonical JSON (RFC 8785) of the flags with their values, without those
/// in `UNHASHED`.
pub fn config_sha256(effective: &BTreeMap<&'static str, Setting<Value>>) -> String {
    let values: BTreeMap<_, _> = effective
        .iter()
        .filter(|(flag, _)| !UNHASHED.contains(flag))
        .map(|(flag, setting)| (*flag, canonical(&setting.value)))
        .collect();
    // serde_json writes sorted keys, no spaces and shortest numbers: the canonical form of these
    // values.
    let json = serde_json::to_string(&values).expect("plain values are JSON");
    hex(Sha256::digest(json).as_ref())
}

/// Writes a whole floating-point number as an integer, as RFC 8785 does.
fn canonical(value: &Value) -> Value {
    match value.as_f64() {
        // Below 1e15 the conversion to an integer is exact.
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() < 1e15 => {
            Value::from(number as i64)
        }
        _ => value.clone(),
    }
}

/// Default of `--max-batch-size` per GPU model, by a part of its name, as published for 0.10.0 and
/// later.
const MAX_BATCH_SIZES: [(&str, usize); 6] =
    [("a100", 512), ("a800", 512), ("h20", 1024), ("h100", 1024), ("h800", 1024), ("h200", 1280)];

/// Default of `--max-batch-size` for a device name. The longest name that matches decides: "h200"
/// must not be taken for "h20".
pub fn default_max_batch_size(device_name: &str) -> usize {
    let device_name = device_name.to_lowercase();
    let named = MAX_BATCH_SIZES.iter().filter(|(name, _)| device_name.contains(name));
    named.max_by_key(|(name, _)| name.len()).map_or(128, |(_, size)| *size)
}
