//! Plain data and traits of the engine: a step and its output, shapes of layers and caches,
//! sampling, and the `Device` trait that models compute on.
//!
//! The other crates of the engine depend on this crate, and it depends on none of them. It opens no
//! file, and only `clock` reads the system's clocks.

#![warn(missing_docs)]

pub mod clock;
pub mod collective;
mod device;
mod error;
pub mod random;
pub mod sample;
mod shapes;
mod step;
mod weight_type;

pub use collective::{Collective, Rank};
pub use device::Device;
pub use error::DeviceError;
pub use shapes::{
    AttentionLayer, AttentionShape, DeltaNetLayer, DeltaNetShape, Feature, Gate, HeadNorms,
    HostMatrix, KvShape, KvType, RandomRows, Rotation, RowOrder, Stack, StateShape, StepRows,
};
pub use step::{
    HeadRows, LogitRows, ScheduledSequence, StateSlots, StepBatch, StepLimits, StepOutput,
    StepToken, check_state_slots,
};
pub use weight_type::WeightType;
