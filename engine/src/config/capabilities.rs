//! Capabilities of the devices: types in which each multiplies matrices and stores keys and values.
//! Flags, defaults, the choice of a device and loading consult this list and no other.

use super::flags::{DeviceChoice, DtypeChoice, KvDtypeChoice};
use engine_core::KvType;

/// Types that a device computes.
#[derive(Debug)]
pub struct Capabilities {
    /// Values of `--dtype` besides `auto`.
    dtypes: &'static [DtypeChoice],
    /// Values of `--kv-dtype` besides `auto`, with the types of the KV cache.
    kv_types: &'static [(KvDtypeChoice, KvType)],
    /// Type of the KV cache for `--kv-dtype auto`.
    kv_default: KvType,
}

/// Capabilities of the CPU. A KV cache in f16 takes half the memory of f32 and still conforms to the
/// reference outputs.
const CPU: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::F32, DtypeChoice::Bf16, DtypeChoice::Int8],
    kv_types: &[(KvDtypeChoice::F32, KvType::F32), (KvDtypeChoice::F16, KvType::F16)],
    kv_default: KvType::F16,
};

/// Capabilities of a GPU.
const CUDA: Capabilities = Capabilities {
    dtypes: &[DtypeChoice::Bf16],
    kv_types: &[(KvDtypeChoice::Bf16, KvType::Bf16), (KvDtypeChoice::Fp8, KvType::Fp8)],
    kv_default: KvType::Bf16,
};

/// Returns the capabilities of the devices that a choice permits, one entry per kind of device.
pub fn capabilities(device: DeviceChoice) -> &'static [Capabilities] {
    match device {
        DeviceChoice::Auto => &[CPU, CUDA],
        DeviceChoice::Cpu => &[CPU],
        DeviceChoice::Cuda => &[CUDA],
    }
}

impl Capabilities {
    /// Returns true if the device multiplies matrices in this type.
    pub fn has_dtype(&self, dtype: DtypeChoice) -> bool {
        dtype == DtypeChoice::Auto || self.dtypes.contains(&dtype)
    }

    /// Returns the type of the KV cache for a value of `--kv-dtype`, none if the device does not
    /// support it.
    pub fn kv_type(&self, kv: KvDtypeChoice) -> Option<KvType> {
        match kv {
            KvDtypeChoice::Auto => Some(self.kv_default),
            _ => {
                self.kv_types.iter().find(|(choice, _)| *choice == kv).map(|(_, kv_type)| *kv_type)
            }
        }
    }

    /// Returns the names of all values of `--dtype`, for messages.
    pub fn dtype_names(&self) -> Vec<String> {
        self.dtypes.iter().map(super::name_of).collect()
    }

    /// Returns the names of all values of `--kv-dtype`, for messages.
    pub fn kv_type_names(&self) -> Vec<String> {
        self.kv_types.iter().map(|(choice, _)| super::name_of(choice)).collect()
    }
}
