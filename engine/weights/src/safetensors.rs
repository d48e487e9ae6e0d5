//! Reader of safetensors files: one file, or shards listed in `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use super::file::read_json_within;
use super::source::is_file_name;
use super::{CheckpointError, StoredTensor};
use engine_core::WeightType;

/// Name of the safetensors file of a checkpoint that is not sharded.
const SINGLE: &str = "model.safetensors";
/// Name of the index file of a checkpoint that is sharded into several safetensors files.
const INDEX: &str = "model.safetensors.index.json";
/// Limit on the size in bytes of an index. One line for each tensor makes 16 MB for the largest
/// published models.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Returns the paths of the safetensors files in a checkpoint's folder; a path's index in the list
/// is the file index in the tensor table.
///
/// # Errors
/// Fails if the folder has neither `model.safetensors` nor an index, or if the index cannot be
/// read, is malformed, lists no file, or names a path instead of a file in the folder.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let single = folder.join(SINGLE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index = folder.join(INDEX);
    if !index.is_file() {
        let reason = format!("it has neither {SINGLE} nor {INDEX}");
        return Err(CheckpointError::unsupported(folder, reason));
    }
    let parsed = read_json_within(&index, INDEX_BYTES_MAX)?;
    let Some(map) = parsed.get("weight_map").and_then(|map| map.as_object()) else {
        return Err(CheckpointError::damaged(&index, "it has no object `weight_map`"));
    };
    // Sorted and unique, since the index names a file once per tensor.
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        let file = file.as_str().unwrap_or_default();
        if !is_file_name(file) {
            let reason =
                format!("`weight_map` sends tensor `{tensor}` to `{file}`, not a file name");
            return Err(CheckpointError::damaged(&index, reason));
        }
        names.insert(folder.join(file));
    }
    if names.is_empty() {
        return Err(CheckpointError::damaged(&index, "`weight_map` is empty"));
    }
    Ok(names.into_iter().collect())
}

/// Adds the tensors of one safetensors file to the tensor table `tensors`: `bytes` is the file's
/// content, read from `path`, and `file` its index in the checkpoint's list of files.
///
/// # Errors
/// Fails if the file's header is malformed or does not match the file, or if a tensor is in
/// `tensors` already, because another file has it.
pub fn parse(
    path: &Path,
    bytes: &[u8],
    file: usize,
    tensors: &mut BTreeMap<String, StoredTensor>,
) -> Result<(), CheckpointError> {
    let damaged =
        |err| CheckpointError::damaged(path, format!("its safetensors header is wrong: {err}"));
    let parsed = SafeTensors::deserialize(bytes).map_err(damaged)?;
    let base = bytes.as_ptr() as usize;
    for (name, view) in parsed.iter() {
        let start = view.data().as_ptr() as usize - base;
        let stored = StoredTensor {
            file,
            type_name: format!("{:?}", view.dtype()),
            weight_type: weight_type(view.dtype()),
            shape: view.shape().to_vec(),
            range: start..start + view.data().len(),
        };
        if tensors.insert(name.to_owned(), stored).is_some() {
            let reason = format!("tensor `{name}` occurs in two files");
            return Err(CheckpointError::damaged(path, reason));
        }
    }
    Ok(())
}

/// Returns the weight type of a safetensors element type, none if this release cannot compute with
/// it.
fn weight_type(dtype: Dtype) -> Option<WeightType> {
    Some(match dtype {
        Dtype::F32 => WeightType::F32,
        Dtype::F16 => WeightType::F16,
        Dtype::BF16 => WeightType::Bf16,
        Dtype::F8_E4M3 => WeightType::F8E4M3,
        _ => return None,
    })
}
