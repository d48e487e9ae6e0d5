//! Checkpoints: the files of a model, the tensors in them and their bytes, or random weights in
//! place of the tensors.
//!
//! This crate knows file formats and element types; it must not know architectures, devices and
//! tokenizer rules.

#![warn(missing_docs)]

pub mod blocks;
mod digest;
mod file;
pub mod format;
pub mod gguf;
mod map;
mod mxfp4;
mod quantization;
pub mod random;
pub mod safetensors;
mod source;

#[cfg(test)]
extern crate self as engine_weights;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use digest::{Digest, hex};
pub use file::{read, read_json, read_small_text, read_text};
pub use mxfp4::MxStack;
pub use random::tensor as random_tensor;
pub use source::{ModelFiles, ModelSource, hub_cache, is_file_name};

use engine_core::WeightType;
use map::Map;
use quantization::Quantization;

/// Entry of a checkpoint's tensor table: element type, shape and location of a tensor, without its
/// bytes.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Index, in the checkpoint's list of files, of the file that holds the tensor.
    file: usize,
    /// Name of the tensor's element type as the file's format spells it, such as `BF16` or `Q4_K`.
    type_name: String,
    /// Element type of the tensor; none if this release cannot compute with the type.
    pub weight_type: Option<WeightType>,
    /// Shape of the tensor, slowest dimension first: a matrix is `[N, K]`.
    pub shape: Vec<usize>,
    /// Byte range of the tensor, counted from the beginning of its file.
    pub range: Range<usize>,
}

impl StoredTensor {
    fn bytes<'a>(&self, files: &'a [Map]) -> &'a [u8] {
        &files[self.file][self.range.clone()]
    }
}

/// Configuration of a checkpoint as its files state it, not interpreted.
#[derive(Debug, Clone)]
pub enum ConfigSource {
    /// Configuration from the `config.json` of a checkpoint in the Hugging Face layout.
    Json {
        /// Path of the checkpoint's `config.json`.
        path: PathBuf,
        /// Content of the checkpoint's `config.json`, parsed.
        json: serde_json::Value,
    },
    /// Configuration from the metadata of a GGUF file.
    Gguf(gguf::Metadata),
}

impl ConfigSource {
    /// Returns the path of the file that the configuration was read from.
    pub fn path(&self) -> &Path {
        match self {
            Self::Json { path, .. } => path,
            Self::Gguf(metadata) => &metadata.path,
        }
    }
}

/// Tensor of a checkpoint: element type, shape and bytes.
#[derive(Debug)]
pub struct TensorData<'a> {
    /// Float type or quantization format of the tensor's bytes.
    pub weight_type: WeightType,
    /// Shape of the tensor, slowest dimension first: a matrix is `[N, K]`, N rows of K elements.
    pub shape: Vec<usize>,
    /// Stored elements of the tensor, row after row, in whole quantization blocks.
    pub bytes: Cow<'a, [u8]>,
}

impl TensorData<'_> {
    /// Returns the tensor's elements, dequantized to f32, row major.
    pub fn values(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.shape.iter().product()];
        format::dequantize(self.weight_type, &self.bytes, &mut out);
        out
    }
}

/// Origin of a checkpoint's weights: its files, mapped into memory, or a pseudo-random generator.
#[derive(Debug)]
enum WeightSource {
    Files(Vec<Map>),
    /// Pseudo-random weights from a seed, in the shapes that the caller requests; no tensor is read
    /// from a file.
    Random {
        seed: u64,
    },
}

/// Open checkpoint of a model: configuration, tensor table and weights. Dropping it unmaps its
/// files from memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// Path of the checkpoint: its folder, or its GGUF file.
    pub path: PathBuf,
    /// Configuration of the checkpoint as its files state it, not interpreted.
    pub config: ConfigSource,
    tensors: BTreeMap<String, StoredTensor>,
    weights: WeightSource,
    quantization: Quantization,
    /// Handle to the SHA-256 of the weights, which a background thread computes.
    pub digest: Digest,
}

impl Checkpoint {
    /// Opens the checkpoint in `files`. With a `seed`, only its configuration and, of a GGUF file,
    /// the tensor table are used, and its weights are pseudo-random numbers instead of those in the
    /// files.
    ///
    /// # Errors
    /// Fails if a file is missing, cannot be read, is empty or damaged, or is of an unsupported
    /// format, or if config.json has a quantization that is not supported or not stated completely.
    pub fn open(files: &ModelFiles, seed: Option<u64>) -> Result<Self, CheckpointError> {
        match files {
            ModelFiles::Gguf(path) => Self::open_gguf(path, seed),
            ModelFiles::Folder(folder) => Self::open_folder(folder, seed),
        }
    }

    /// Opens the GGUF file at `path` as a checkpoint; with a `seed`, weights are pseudo-random.
    fn open_gguf(path: &Path, seed: Option<u64>) -> Result<Self, CheckpointError> {
        let map = Map::open(path)?;
        let header = gguf::parse(path, &map)?;
        let (weights, digest) = match seed {
            None => (WeightSource::Files(vec![map]), Digest::of_files(vec![path.to_owned()])),
            Some(seed) => (WeightSource::Random { seed }, Digest::of_random(path, seed)),
        };
        let config = ConfigSource::Gguf(header.metadata);
        let (path, tensors) = (path.to_owned(), header.tensors);
        Ok(Self { path, config, tensors, weights, quantization: Quantization::None, digest })
    }

    /// Opens a folder in the Hugging Face layout as a checkpoint; with a `seed`, only config.json
    /// is read, and weights are pseudo-random.
    fn open_folder(folder: &Path, seed: Option<u64>) -> Result<Self, CheckpointError> {
        let path = folder.join("config.json");
        let json = read_json(&path)?;
        let quantization = Quantization::read(&path, &json)?;
        let mut tensors = BTreeMap::new();
        let (weights, digest) = match seed {
            Some(seed) => (WeightSource::Random { seed }, Digest::of_random(&path, seed)),
            None => {
                let paths = safetensors::files(folder)?;
                let mut maps = Vec::new();
                for (file, path) in paths.iter().enumerate() {
                    let map = Map::open(path)?;
                    safetensors::parse(path, &map, file, &mut tensors)?;
                    maps.push(map);
                }
                name_as_generating(&mut tensors);
                (WeightSource::Files(maps), Digest::of_files(paths))
            }
        };
        let config = ConfigSource::Json { path, json };
        Ok(Self { path: folder.to_owned(), config, tensors, weights, quantization, digest })
    }

    /// Releases the mapped memory of all tensors read so far, so that a model is not in memory
    /// twice, as stored and as packed by the device. Released tensors can be read again.
    pub fn release(&self) {
        if let WeightSource::Files(maps) = &self.weights {
            maps.iter().for_each(Map::release);
        }
    }

    /// Returns true if the weights are pseudo-random instead of read from files.
    pub fn is_random(&self) -> bool {
        matches!(self.weights, WeightSource::Random { .. })
    }

    /// Returns the file format of the checkpoint as records name it, `safetensors` or `gguf`;
    /// random weights have the format of the configuration's file.
    pub fn container(&self) -> &'static str {
        match self.config {
            ConfigSource::Json { .. } => "safetensors",
            ConfigSource::Gguf(_) => "gguf",
        }
    }

    /// Returns true if the checkpoint's tensor table lists the tensor `name`. The table of a folder
    /// opened with random weights is empty.
    pub fn lists(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the start of the pseudo-random stream of tensor `name`, of shape `shape`, if it is a
    /// random bf16 matrix ([`random`]), so that a device can generate it; none for other tensors.
    ///
    /// # Errors
    /// Fails if the checkpoint has a tensor table and random weights, and the table has no tensor
    /// `name` or gives it another shape.
    pub fn stream(&self, name: &str, shape: &[usize]) -> Result<Option<u64>, CheckpointError> {
        let WeightSource::Random { seed } = &self.weights else { return Ok(None) };
        let weight_type = match self.tensors.is_empty() {
            true => Some(self.quantization.made_up(name, shape)),
            false => self.listed(name, shape)?.weight_type,
        };
        // Vectors are small and partly constant (norm weights), so the host makes them.
        let is_bf16 = weight_type == Some(WeightType::Bf16) && shape.len() > 1;
        Ok(is_bf16.then(|| random::stream_start(*seed, name)))
    }

    /// Reads `count` quantization scales from the tensor `name`; a single stored scale is repeated.
    /// Returns none if there is no such tensor.
    ///
    /// # Errors
    /// Fails if the tensor's shape is none of `[]`, `[1]` and `[count]`, if its type is quantized
    /// or not supported, if random scales would not fit in memory, or if a scale is not finite or
    /// not above 0.
    pub fn scales(&self, name: &str, count: usize) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some(stored) = self.tensors.get(name) else { return Ok(None) };
        // A scalar or one element means one scale for all heads.
        let shape = match stored.shape.as_slice() {
            [] | [1] => stored.shape.clone(),
            _ => vec![count],
        };
        let mut scales = self.floats(name, &shape)?;
        if scales.iter().any(|scale| !(*scale > 0.0 && scale.is_finite())) {
            return Err(CheckpointError::config(&self.path, name, "a scale is not above 0"));
        }
        if scales.len() == 1 {
            scales.resize(count, scales[0]);
        }
        Ok(Some(scales))
    }

    /// Returns the quantization block size, in elements, of the matrix `name`: ranks can divide the
    /// columns of the matrix among them only at multiples of it. It is 1 for float types and for
    /// types that this release cannot compute with.
    pub fn cut_unit(&self, name: &str, shape: &[usize]) -> usize {
        match self.tensors.get(name) {
            Some(stored) => stored.weight_type.map_or(1, WeightType::block),
            None => self.quantization.made_up(name, shape).block(),
        }
    }

    /// Reads the tensor `name`, which must have `shape`, slowest dimension first. FP8 weights are
    /// returned with their scales: as FP8 blocks with a scale each, or multiplied to f32 where the
    /// scales do not fit such blocks.
    ///
    /// # Errors
    /// Fails if there is no such tensor, if it has another shape or an unsupported type, if its FP8
    /// scales are missing or have a wrong shape or type, or if random weights of this shape would
    /// not fit in memory.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData<'_>, CheckpointError> {
        let tensor = self.stored(name, shape)?;
        // Random FP8 tensors are generated in blocks with their scales.
        if tensor.weight_type != WeightType::F8E4M3 || self.is_random() {
            return Ok(tensor);
        }
        let cols = shape.last().copied().unwrap_or(1);
        let (block, scales) = match (self.quantization, shape) {
            (Quantization::Fp8 { block }, &[n, k]) => {
                let grid = quantization::grid([n, k], block);
                (block, self.floats(&format!("{name}_scale_inv"), &grid)?)
            }
            // The quantizer left this tensor unscaled: its E4M3 floats are its values.
            _ => ([usize::MAX; 2], vec![1.0]),
        };
        let (weight_type, bytes) = quantization::scaled(&tensor.bytes, cols, block, &scales);
        Ok(TensorData { weight_type, bytes: Cow::Owned(bytes), ..tensor })
    }

    /// Reads the tensor `name`, whose stored elements must be unquantized floats of shape `shape`,
    /// as f32.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.plain(name, self.stored(name, shape)?)?.values())
    }

    /// Returns `tensor` if its elements are unquantized floats, else an error that names the tensor
    /// `name`.
    fn plain<'a>(
        &self,
        name: &str,
        tensor: TensorData<'a>,
    ) -> Result<TensorData<'a>, CheckpointError> {
        if tensor.weight_type.block() > 1 {
            return Err(self.wrong_type(name, tensor.weight_type.name(), "f32, f16, bf16"));
        }
        Ok(tensor)
    }

    fn wrong_type(&self, name: &str, found: &str, supported: &str) -> CheckpointError {
        let what = format!(" is stored as {found}; supported: {supported}");
        CheckpointError::tensor(&self.path, name, what)
    }

    fn missing(&self, name: &str) -> CheckpointError {
        let path = self.path.display();
        CheckpointError::Unsound(format!("`{path}` has no tensor `{name}`"))
    }

    /// Reads the tensor `name` as its file stores it, or generates it if weights are random. FP8
    /// weights from files come without their scales.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<TensorData<'_>, CheckpointError> {
        let random = |seed, weight_type| {
            self.check_room(name, weight_type, shape)?;
            Ok(random::tensor(seed, name, weight_type, shape))
        };
        if let WeightSource::Random { seed } = &self.weights
            && self.tensors.is_empty()
        {
            // Without a tensor table every name exists, in whatever shape the architecture
            // requests.
            return random(*seed, self.quantization.made_up(name, shape));
        }
        let stored = self.listed(name, shape)?;
        let Some(weight_type) = stored.weight_type else {
            return Err(self.wrong_type(name, &stored.type_name, &format::supported_types()));
        };
        match &self.weights {
            WeightSource::Random { seed } => random(*seed, weight_type),
            WeightSource::Files(maps) => Ok(TensorData {
                weight_type,
                shape: stored.shape.clone(),
                bytes: Cow::Borrowed(stored.bytes(maps)),
            }),
        }
    }

    /// Returns the entry of tensor `name` in the checkpoint's tensor table; an error if there is
    /// none or its shape is not `shape`.
    fn listed(&self, name: &str, shape: &[usize]) -> Result<&StoredTensor, CheckpointError> {
        let stored = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        if stored.shape != shape {
            let found = &stored.shape;
            let what = format!(" has shape {found:?}, the configuration asks for {shape:?}");
            return Err(CheckpointError::tensor(&self.path, name, what));
        }
        Ok(stored)
    }

    /// Returns an error if a random tensor of this type and shape would not fit in this machine's
    /// memory.
    fn check_room(
        &self,
        name: &str,
        weight_type: WeightType,
        shape: &[usize],
    ) -> Result<(), CheckpointError> {
        if random::has_room(weight_type, shape) {
            return Ok(());
        }
        let what = format!(", of shape {shape:?}, is larger than this machine's memory");
        Err(CheckpointError::tensor(&self.path, name, what))
    }

    /// Reads the tensor `name`, which must have `shape`, and returns its elements dequantized to
    /// f32, row major.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::tensor`] does.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.tensor(name, shape)?.values())
    }
}

/// Gives the tensors of a folder that was stored without LM head, as those of embedding models are,
/// the names that they have in a model that generates.
fn name_as_generating(tensors: &mut BTreeMap<String, StoredTensor>) {
    if !tensors.contains_key("embed_tokens.weight") {
        return;
    }
    let named = std::mem::take(tensors).into_iter();
    tensors.extend(named.map(|(name, tensor)| (format!("model.{name}"), tensor)));
}

/// Reason why a checkpoint is not found, or cannot be read or used. Messages name the file or the
/// model, and the remedy where one is known.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum CheckpointError {
    #[error("failed to read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "`{name}` is neither a folder with a config.json, nor a .gguf file, nor a model in the hub cache{searched}; \
         hint: give a path, or download the model into the cache first"
    )]
    NotFound { name: String, searched: String },
    /// A checkpoint file, a value of its configuration or one of its tensors is damaged or missing,
    /// or this release does not support it. The text is the whole message.
    #[error("{0}")]
    Unsound(String),
}

impl CheckpointError {
    /// Builds the error that the checkpoint file at `path` is damaged.
    pub fn damaged(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!(
            "`{}` is damaged: {reason}; hint: fetch the file again and compare its checksum",
            path.display()
        ))
    }

    /// Builds the error that the checkpoint's file or folder at `path` cannot be used by this
    /// release.
    pub fn unsupported(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!("`{}` cannot be used: {reason}", path.display()))
    }

    /// Builds the error that the value of `key` in the configuration at `path` is missing or wrong.
    pub fn config(path: &Path, key: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Unsound(format!("`{}` has no usable `{key}`: {reason}", path.display()))
    }

    /// Builds the error that the tensor `name` of the checkpoint at `path` cannot be used: `what`
    /// continues the sentence "tensor NAME of PATH".
    pub fn tensor(path: &Path, name: &str, what: impl fmt::Display) -> Self {
        Self::Unsound(format!("tensor `{name}` of `{}`{what}", path.display()))
    }
}
