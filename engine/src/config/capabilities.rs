//! Capabilities of the CPU and of GPUs: data types in which each multiplies matrices and stores
//! keys and values. Flags, defaults, the choice of a device and loading consult these tables and no
//! others.

use super::flags::{DeviceChoice, DtypeChoice, KvDtypeChoice};
use engine_core::KvType;

/// Data types that one kind of device (CPU or GPU) supports for matrix multiplication and for the
/// KV cache.
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
const CPU: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::F32, DtypeChoice::Bf16, DtypeChoice::Int8],
    kv_types: &[(KvDtypeChoice::F32, KvType::F32), (KvDtypeChoice::F16, KvType::F16)],
    kv_default: KvType::F16,
};

/// Data types that a GPU supports for matrix multiplication and for the KV cache.
const CUDA: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::Bf16],
    kv_types: &[(KvDtypeChoice::Bf16, KvType::Bf16), (KvDtypeChoice::Fp8, KvType::Fp8)],
    kv_default: KvType::Bf16,
};

/// Returns the capabilities of the devices that a value of `--device` permits, one entry per kind
/// of device (CPU, GPU).
pub fn capabilities(device: DeviceChoice) -> &'static [Capabilities] {
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

    /// Returns the names of the `--dtype` values that the device supports, without `auto`, for
    /// error messages.
    pub fn dtype_names(&self) -> Vec<String> {
        self.dtypes.iter().map(super::name_of).collect()
    }

    /// Returns the names of the `--kv-dtype` values that the device supports, without `auto`, for
    /// error messages.
    pub fn kv_type_names(&self) -> Vec<String> {
        self.kv_types.iter().map(|(choice, _)| super::name_of(choice)).collect()
    }
}
