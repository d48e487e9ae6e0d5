//! The engine's plain data and traits: a step and what comes of it, shapes, sampling, and the
//! `Device` that a model computes on.
//!
//! Everything else in the engine depends on this crate, and it on none of them. It opens no file,
//! and only `clock` asks the system for the time.

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
    HeadRows, LogitRows, ScheduledSequence, StateSlots, StepBatch, StepOutput, StepToken,
    check_state_slots,
};
pub use weight_type::WeightType;
