//! Checkpoints: where a model's files are, what tensors they hold, and their bytes.
//!
//! Knows containers and element types; knows no architecture, no device and no tokenizer rules.

#![warn(missing_docs)]

pub mod blocks;
mod digest;
mod error;
pub mod fixture;
pub mod format;
pub mod gguf;
mod map;
mod mxfp4;
mod quantization;
pub mod random;
pub mod safetensors;
mod source;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use digest::Digest;
pub use digest::hex;
pub use error::CheckpointError;
pub use mxfp4::MxStack;
pub use random::tensor as random_tensor;
pub use source::{ModelFiles, ModelSource, hub_cache, read_json};

use engine_core::WeightType;
use map::Map;
use quantization::Quantization;

/// A tensor in a file, before anything is read of it.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Which of the checkpoint's files.
    file: usize,
    /// The file's own name of the element type.
    type_name: String,
    /// The type, where this release can compute with it.
    weight_type: Option<WeightType>,
    /// Slowest dimension first: a matrix is `[N, K]`.
    shape: Vec<usize>,
    range: Range<usize>,
}

impl StoredTensor {
    /// Its bytes in the file.
    pub fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Slowest dimension first: a matrix is `[N, K]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type, where this release can compute with it.
    pub fn weight_type(&self) -> Option<WeightType> {
        self.weight_type
    }

    fn bytes<'a>(&self, files: &'a [Map]) -> &'a [u8] {
        &files[self.file][self.range.clone()]
    }
}

/// What the configuration of a checkpoint is written in.
#[derive(Debug, Clone)]
pub enum ConfigSource {
    /// `config.json` of the Hugging Face layout.
    Json {
        /// Where it was read.
        path: PathBuf,
        /// The whole of it.
        json: serde_json::Value,
    },
    /// What a GGUF file says before its tensors.
    Gguf(gguf::Metadata),
}

impl ConfigSource {
    /// The file that it was read from.
    pub fn path(&self) -> &Path {
        match self {
            Self::Json { path, .. } => path,
            Self::Gguf(metadata) => metadata.path(),
        }
    }
}

/// A tensor's shape, type and bytes.
#[derive(Debug)]
pub struct TensorData<'a> {
    /// What the bytes mean.
    pub weight_type: WeightType,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// Whole blocks, row after row.
    pub bytes: Cow<'a, [u8]>,
}

/// Where the numbers come from.
#[derive(Debug)]
enum Numbers {
    Files(Vec<Map>),
    /// Made up from this seed, in the shapes asked for.
    Random {
        seed: u64,
    },
}

/// An open checkpoint. Dropping it releases its memory maps.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ConfigSource,
    tensors: BTreeMap<String, StoredTensor>,
    numbers: Numbers,
    quantization: Quantization,
    digest: Digest,
}

impl Checkpoint {
    /// Opens the weights of `files`, or with a `seed` only their configuration: the weights are
    /// then random numbers of the same shapes.
    ///
    /// # Errors
    /// A file is missing, damaged or of an unknown kind.
    pub fn open(files: &ModelFiles, seed: Option<u64>) -> Result<Self, CheckpointError> {
        match files {
            ModelFiles::Gguf(path) => Self::open_gguf(path, seed),
            ModelFiles::Folder(folder) => Self::open_folder(folder, seed),
        }
    }

    fn open_gguf(path: &Path, seed: Option<u64>) -> Result<Self, CheckpointError> {
        let map = Map::open(path)?;
        let header = gguf::parse(path, &map)?;
        let (numbers, digest) = match seed {
            None => (Numbers::Files(vec![map]), Digest::of_files(vec![path.to_owned()])),
            Some(seed) => (Numbers::Random { seed }, Digest::of_random(path, seed)),
        };
        let config = ConfigSource::Gguf(header.metadata);
        let (path, tensors) = (path.to_owned(), header.tensors);
        Ok(Self { path, config, tensors, numbers, quantization: Quantization::None, digest })
    }

    fn open_folder(folder: &Path, seed: Option<u64>) -> Result<Self, CheckpointError> {
        let path = folder.join("config.json");
        let json = read_json(&path)?;
        let quantization = Quantization::read(&path, &json)?;
        let mut tensors = BTreeMap::new();
        let (numbers, digest) = match seed {
            Some(seed) => (Numbers::Random { seed }, Digest::of_random(&path, seed)),
            None => {
                let paths = safetensors::files(folder)?;
                let mut maps = Vec::new();
                for (file, path) in paths.iter().enumerate() {
                    let map = Map::open(path)?;
                    safetensors::parse(path, &map, file, &mut tensors)?;
                    maps.push(map);
                }
                (Numbers::Files(maps), Digest::of_files(paths))
            }
        };
        let config = ConfigSource::Json { path, json };
        Ok(Self { path: folder.to_owned(), config, tensors, numbers, quantization, digest })
    }

    /// The folder or the file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration, not interpreted.
    pub fn config(&self) -> &ConfigSource {
        &self.config
    }

    /// Gives back the memory of what was read so far, so that a model never stands in memory twice:
    /// as its files have it, and as the device packed it. It can be read again.
    pub fn release(&self) {
        if let Numbers::Files(maps) = &self.numbers {
            maps.iter().for_each(Map::release);
        }
    }

    /// SHA-256 of the weights, being computed in the background.
    pub fn digest(&self) -> Digest {
        self.digest.clone()
    }

    /// Whether the weights are made up and not read.
    pub fn is_random(&self) -> bool {
        matches!(self.numbers, Numbers::Random { .. })
    }

    /// Container of the weights, as records name it.
    pub fn container(&self) -> &'static str {
        match self.config {
            ConfigSource::Json { .. } => "safetensors",
            ConfigSource::Gguf(_) => "gguf",
        }
    }

    /// Whether the files list `name`. Random weights of a folder list nothing.
    pub fn lists(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Where the stream of the tensor `name` begins, if its numbers are made up in bf16
    /// ([`random`]).
    ///
    /// # Errors
    /// There is no such tensor, or its shape is another.
    pub fn stream(&self, name: &str, shape: &[usize]) -> Result<Option<u64>, CheckpointError> {
        let Numbers::Random { seed } = &self.numbers else { return Ok(None) };
        let weight_type = match self.tensors.is_empty() {
            true => Some(self.quantization.made_up(name, shape)),
            false => self.listed(name, shape)?.weight_type,
        };
        let is_bf16 = weight_type == Some(WeightType::Bf16) && shape.len() > 1;
        Ok(is_bf16.then(|| random::stream_start(*seed, name)))
    }

    /// The `count` scales that are stored as `name`, or one for all; none where none are.
    ///
    /// # Errors
    /// They are of another shape or type, or one is not above 0.
    pub fn scales(&self, name: &str, count: usize) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some(stored) = self.tensors.get(name) else { return Ok(None) };
        let shape = match stored.shape.as_slice() {
            [] | [1] => stored.shape.clone(),
            _ => vec![count],
        };
        let mut scales = self.floats(name, &shape)?;
        if scales.iter().any(|scale| !(*scale > 0.0 && scale.is_finite())) {
            let reason = "a scale is not above 0".to_owned();
            return Err(CheckpointError::config(&self.path, name, reason));
        }
        if scales.len() == 1 {
            scales.resize(count, scales[0]);
        }
        Ok(Some(scales))
    }

    /// Elements between two places at which the rows of `name`, of `shape`, can be cut.
    pub fn cut_unit(&self, name: &str, shape: &[usize]) -> usize {
        match self.tensors.get(name) {
            Some(stored) => stored.weight_type.map_or(1, WeightType::block),
            None => self.quantization.made_up(name, shape).block(),
        }
    }

    /// The tensor `name`, which has to have `shape`, slowest dimension first.
    ///
    /// # Errors
    /// There is no such tensor, its shape is another, or its type is not supported.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData<'_>, CheckpointError> {
        let tensor = self.stored(name, shape)?;
        if tensor.weight_type != WeightType::F8E4M3 || self.is_random() {
            return Ok(tensor);
        }
        let cols = shape.last().copied().unwrap_or(1);
        let (block, scales) = match (self.quantization, shape) {
            (Quantization::Fp8 { block }, &[n, k]) => {
                let grid = quantization::grid([n, k], block);
                (block, self.floats(&format!("{name}_scale_inv"), &grid)?)
            }
            // A tensor that the quantizer left alone: its codes are its values.
            _ => ([usize::MAX; 2], vec![1.0]),
        };
        let (weight_type, bytes) = quantization::scaled(&tensor.bytes, cols, block, &scales);
        Ok(TensorData { weight_type, bytes: Cow::Owned(bytes), ..tensor })
    }

    /// The tensor `name` of plain floats.
    fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        let stored = self.plain(name, self.stored(name, shape)?)?;
        let mut out = vec![0.0; shape.iter().product()];
        format::dequantize(stored.weight_type, &stored.bytes, &mut out);
        Ok(out)
    }

    /// `tensor`, which is called `name`, if it is of plain floats.
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
        CheckpointError::TensorType {
            path: self.path.clone(),
            tensor: name.to_owned(),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }

    /// The tensor `name` as it lies in its file: of fp8, only the codes.
    fn stored(&self, name: &str, shape: &[usize]) -> Result<TensorData<'_>, CheckpointError> {
        let random = |seed, weight_type| {
            self.check_room(name, weight_type, shape)?;
            Ok(random::tensor(seed, name, weight_type, shape))
        };
        if let Numbers::Random { seed } = &self.numbers
            && self.tensors.is_empty()
        {
            return random(*seed, self.quantization.made_up(name, shape));
        }
        let stored = self.listed(name, shape)?;
        let Some(weight_type) = stored.weight_type else {
            return Err(self.wrong_type(name, &stored.type_name, &format::supported_types()));
        };
        match &self.numbers {
            Numbers::Random { seed } => random(*seed, weight_type),
            Numbers::Files(maps) => Ok(TensorData {
                weight_type,
                shape: stored.shape.clone(),
                bytes: Cow::Borrowed(stored.bytes(maps)),
            }),
        }
    }

    /// What the files list as `name`, which has to have `shape`.
    fn listed(&self, name: &str, shape: &[usize]) -> Result<&StoredTensor, CheckpointError> {
        let place = || (self.path.clone(), name.to_owned());
        let Some(stored) = self.tensors.get(name) else {
            let (path, tensor) = place();
            return Err(CheckpointError::MissingTensor { path, tensor });
        };
        if stored.shape != shape {
            let (path, tensor) = place();
            let (found, wanted) = (stored.shape.clone(), shape.to_vec());
            return Err(CheckpointError::TensorShape { path, tensor, found, wanted });
        }
        Ok(stored)
    }

    /// Refuses to make up a tensor that this machine's memory could not hold.
    fn check_room(
        &self,
        name: &str,
        weight_type: WeightType,
        shape: &[usize],
    ) -> Result<(), CheckpointError> {
        if random::has_room(weight_type, shape) {
            return Ok(());
        }
        let (path, tensor) = (self.path.clone(), name.to_owned());
        Err(CheckpointError::TooLarge { path, tensor, shape: shape.to_vec() })
    }

    /// The vector `name` of `len` elements as f32.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`].
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.tensor(name, &[len])?;
        let mut out = vec![0.0; len];
        format::dequantize(tensor.weight_type, &tensor.bytes, &mut out);
        Ok(out)
    }
}
