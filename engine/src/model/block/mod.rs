//! The blocks that layers are made of, each over the operations of a device.
//!
//! A block reads normed rows and leaves what is to be added to the residual stream in `delta`.

mod attention;
mod dense;
mod moe;

use super::loader::{Linear, Loader};
use super::spec::{Activation, FeedForwardSpec, MixerSpec};
use super::{LoadError, StepError};
use crate::device::Device;

pub use attention::Attention;
pub use dense::Dense;
pub use moe::Moe;

/// What lets positions see one another.
#[derive(Debug)]
pub enum Mixer<D: Device> {
    Attention(Attention<D>),
}

/// What each position computes for itself.
#[derive(Debug)]
pub enum FeedForward<D: Device> {
    Dense(Dense<D>),
    Moe(Box<Moe<D>>),
}

/// Activations inside of a block, shared by all blocks of a model.
#[derive(Debug)]
pub struct Scratch<D: Device> {
    /// What goes into the middle of a block: queries, keys and values; gates and ups.
    pub projected: D::Buffer,
    /// What comes out of its middle.
    pub mixed: D::Buffer,
    /// `[T, E]` router logits.
    pub scores: D::Buffer,
    /// Rows on their way to experts.
    pub sent: D::Buffer,
    /// Rows on their way back.
    pub returned: D::Buffer,
}

impl<D: Device> Scratch<D> {
    /// # Errors
    /// The device is full.
    pub fn new(device: &mut D) -> Result<Self, StepError> {
        Ok(Self {
            projected: device.buffer(1)?,
            mixed: device.buffer(1)?,
            scores: device.buffer(1)?,
            sent: device.buffer(1)?,
            returned: device.buffer(1)?,
        })
    }
}

/// What a step gives every block.
#[derive(Debug)]
pub struct Step<'a, D: Device> {
    pub device: &'a mut D,
    pub plan: &'a D::Plan,
    pub kv: &'a mut D::Kv,
    pub scratch: &'a mut Scratch<D>,
    /// Rows of the step.
    pub rows: usize,
}

impl<D: Device> Mixer<D> {
    /// Loads the mixer of `layer`; `kv_layers` counts those that keep keys and values.
    ///
    /// # Errors
    /// A tensor is missing or does not fit, or the device is full.
    pub fn load(
        loader: &mut Loader<'_, D>,
        spec: &MixerSpec,
        context: BlockContext,
        kv_layers: &mut usize,
    ) -> Result<Self, LoadError> {
        match spec {
            MixerSpec::Attention(spec) => {
                let loaded = Attention::load(loader, spec, context, *kv_layers)?;
                *kv_layers += 1;
                Ok(Self::Attention(loaded))
            }
        }
    }

    /// # Errors
    /// The device failed.
    pub fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), StepError> {
        match self {
            Self::Attention(block) => block.run(step, x, delta),
        }
    }
}

impl<D: Device> FeedForward<D> {
    /// # Errors
    /// A tensor is missing or does not fit, or the device is full.
    pub fn load(
        loader: &mut Loader<'_, D>,
        spec: &FeedForwardSpec,
        context: BlockContext,
    ) -> Result<Self, LoadError> {
        Ok(match spec {
            FeedForwardSpec::Dense(spec) => Self::Dense(Dense::load(loader, spec, context)?),
            FeedForwardSpec::Moe(spec) => Self::Moe(Box::new(Moe::load(loader, spec, context)?)),
        })
    }

    /// # Errors
    /// The device failed.
    pub fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), StepError> {
        match self {
            Self::Dense(block) => block.run(step, x, delta),
            Self::Moe(block) => block.run(step, x, delta),
        }
    }
}

/// Where a block stands in its model.
#[derive(Debug, Clone, Copy)]
pub struct BlockContext {
    pub layer: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub norm_epsilon: f32,
}

impl<D: Device> Linear<D> {
    /// `out = x * w^T + bias`.
    ///
    /// # Errors
    /// The device failed.
    pub fn run(&self, device: &mut D, x: &D::Buffer, out: &mut D::Buffer) -> Result<(), StepError> {
        device.matmul(x, &self.matrix, out)?;
        match &self.bias {
            Some(bias) => device.add_bias(out, bias),
            None => Ok(()),
        }
    }
}

impl Activation {
    /// Makes `cols` columns of gates and as many of ups one.
    ///
    /// # Errors
    /// The device failed.
    pub fn run<D: Device>(
        self,
        device: &mut D,
        gate_up: &D::Buffer,
        out: &mut D::Buffer,
    ) -> Result<(), StepError> {
        match self {
            Self::Silu => device.silu_mul(gate_up, out),
            Self::ClampedSwiglu { alpha, limit } => {
                device.clamped_swiglu(gate_up, alpha, limit, out)
            }
        }
    }
}
