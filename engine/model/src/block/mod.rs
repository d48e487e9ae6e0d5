//! The blocks that layers are made of, each over the operations of a device.
//!
//! A block reads normed rows and leaves what is to be added to the residual stream in `delta`.

mod attention;
mod delta_net;
mod dense;
mod moe;

use super::LoadError;
use super::spec::{Activation, FeedForwardSpec, MixerSpec};
use super::tensors::{Linear, Tensors};
use engine_core::{Device, DeviceError};

pub use attention::Attention;
pub use delta_net::DeltaNet;
pub use dense::Dense;
pub use moe::Moe;

/// What lets positions see one another.
#[derive(Debug)]
pub enum Mixer<D: Device> {
    Attention(Attention<D>),
    DeltaNet(DeltaNet<D>),
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
    /// What goes into the middle of a block: queries, keys and values; gates and ups. After the
    /// last block, logits.
    pub projected: D::Buffer,
    /// What comes out of its middle.
    pub mixed: D::Buffer,
    /// `[T, H * D]` gates of attention's output.
    pub gates: D::Buffer,
    /// `[T, E]` router logits.
    pub scores: D::Buffer,
    /// Rows on their way to experts.
    pub sent: D::Buffer,
    /// Rows on their way back.
    pub returned: D::Buffer,
}

impl<D: Device> Scratch<D> {
    /// Buffers without rows, which grow with the first steps.
    ///
    /// # Errors
    /// The device is full.
    pub fn new(device: &mut D) -> Result<Self, DeviceError> {
        Ok(Self {
            projected: device.buffer(1)?,
            mixed: device.buffer(1)?,
            gates: device.buffer(1)?,
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
    /// Recurrent state, where the model has any and places for it were allocated.
    pub state: Option<&'a mut D::State>,
    pub scratch: &'a mut Scratch<D>,
    /// Rows of the step.
    pub rows: usize,
}

impl<D: Device> Mixer<D> {
    /// Reads the rank's share of the block, and counts it in `counts`.
    ///
    /// Loads the mixer of a layer and counts it.
    ///
    /// # Errors
    /// A tensor is missing or does not fit, or the device is full.
    pub fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &MixerSpec,
        context: BlockContext,
        counts: &mut LayerCounts,
    ) -> Result<Self, LoadError> {
        match spec {
            MixerSpec::Attention(spec) => {
                let loaded = Attention::load(tensors, spec, context, counts.kv)?;
                counts.kv += 1;
                Ok(Self::Attention(loaded))
            }
            MixerSpec::DeltaNet(spec) => {
                let loaded = DeltaNet::load(tensors, spec, context, counts.state)?;
                counts.state += 1;
                Ok(Self::DeltaNet(loaded))
            }
        }
    }

    /// `delta` = what the block adds to the stream, of which `x` is the norm.
    ///
    /// # Errors
    /// The device failed.
    pub fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Attention(block) => block.run(step, x, delta),
            Self::DeltaNet(block) => block.run(step, x, delta),
        }
    }
}

impl<D: Device> FeedForward<D> {
    /// Reads the rank's share of the block.
    ///
    /// # Errors
    /// A tensor is missing or does not fit, or the device is full.
    pub fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &FeedForwardSpec,
        context: BlockContext,
    ) -> Result<Self, LoadError> {
        Ok(match spec {
            FeedForwardSpec::Dense(spec) => Self::Dense(Dense::load(tensors, spec, context)?),
            FeedForwardSpec::Moe(spec) => Self::Moe(Box::new(Moe::load(tensors, spec, context)?)),
        })
    }

    /// `delta` = what the block adds to the stream, of which `x` is the norm.
    ///
    /// # Errors
    /// The device failed.
    pub fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Dense(block) => block.run(step, x, delta),
            Self::Moe(block) => block.run(step, x, delta),
        }
    }
}

/// Layers so far, by what they keep of the past.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerCounts {
    /// Those with keys and values.
    pub kv: usize,
    /// Those with recurrent state.
    pub state: usize,
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
    pub fn run(
        &self,
        device: &mut D,
        x: &D::Buffer,
        out: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        device.matmul(x, &self.matrix, out)?;
        self.add_bias(device, out)
    }

    /// As [`Linear::run`], of results that are compared with one another.
    ///
    /// # Errors
    /// The device failed.
    pub fn score(
        &self,
        device: &mut D,
        x: &D::Buffer,
        out: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        device.scores(x, &self.matrix, out)?;
        self.add_bias(device, out)
    }

    fn add_bias(&self, device: &mut D, out: &mut D::Buffer) -> Result<(), DeviceError> {
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
    ) -> Result<(), DeviceError> {
        match self {
            Self::Silu => device.silu_mul(gate_up, out),
            Self::ClampedSwiglu { alpha, limit } => {
                device.clamped_swiglu(gate_up, alpha, limit, out)
            }
        }
    }
}
