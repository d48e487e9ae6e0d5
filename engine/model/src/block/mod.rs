//! Blocks that layers consist of, each written over the operations of a device.
//!
//! A block reads normed rows and writes to `delta` what is to be added to the residual stream.

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

/// Mixer of a layer: the block in which positions exchange information.
#[derive(Debug)]
pub enum Mixer<D: Device> {
    Attention(Attention<D>),
    DeltaNet(DeltaNet<D>),
}

/// Feed-forward block of a layer, which computes each position separately.
#[derive(Debug)]
pub enum FeedForward<D: Device> {
    Dense(Dense<D>),
    Moe(Box<Moe<D>>),
}

/// Activations inside of a block, shared by all blocks of a model to save memory.
#[derive(Debug)]
pub struct Scratch<D: Device> {
    /// Output of a block's first projection: queries, keys and values, or gate and up. After the
    /// last block, logits.
    pub projected: D::Buffer,
    /// Output of attention, DeltaNet or activation, the input of a block's last projection.
    pub mixed: D::Buffer,
    /// Gates of the attention output, `[T, H * D]`.
    pub gates: D::Buffer,
    /// Router logits, `[T, E]`.
    pub scores: D::Buffer,
    /// Rows dispatched to experts, the input of the expert GEMMs.
    pub sent: D::Buffer,
    /// Rows that the experts computed, before they are summed.
    pub returned: D::Buffer,
}

impl<D: Device> Scratch<D> {
    /// Creates buffers without rows, which grow with the first steps.
    ///
    /// # Errors
    /// Fails if the device is out of memory.
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

/// Context of a step for a block: device, prepared step, KV cache, recurrent state and scratch
/// buffers.
#[derive(Debug)]
pub struct Step<'a, D: Device> {
    pub device: &'a mut D,
    pub metadata: &'a D::StepMetadata,
    pub kv: &'a mut D::Kv,
    /// State slots, if the model has recurrent state and they were allocated.
    pub state: Option<&'a mut D::State>,
    pub scratch: &'a mut Scratch<D>,
    /// Number of rows of the step.
    pub rows: usize,
}

impl<D: Device> Mixer<D> {
    /// Loads this rank's part of a layer's mixer, and counts the layer in `counts`.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has a wrong shape or type, or the device is out of memory.
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

    /// Computes `delta`, the block's addition to the residual stream, from the normed rows `x`.
    ///
    /// # Errors
    /// Fails if the device fails.
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
    /// Loads this rank's part of a layer's feed-forward block.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has a wrong shape or type, or the device is out of memory.
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

    /// Computes `delta`, the block's addition to the residual stream, from the normed rows `x`.
    ///
    /// # Errors
    /// Fails if the device fails.
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

/// Numbers of layers loaded so far, by their kind of memory: KV cache or recurrent state.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerCounts {
    /// Number of layers with keys and values.
    pub kv: usize,
    /// Number of layers with recurrent state.
    pub state: usize,
}

/// Position of a block in its model, and the sizes it needs from there.
#[derive(Debug, Clone, Copy)]
pub struct BlockContext {
    pub layer: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub norm_epsilon: f32,
}

impl<D: Device> Linear<D> {
    /// Computes `out = x * w^T + bias`.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn run(
        &self,
        device: &mut D,
        x: &D::Buffer,
        out: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        device.matmul(x, &self.matrix, out)?;
        self.add_bias(device, out)
    }

    /// Computes `out = x * w^T + bias` in f32, for results that are compared with one another, such
    /// as router logits.
    ///
    /// # Errors
    /// Fails if the device fails.
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
    /// Applies the activation to rows of gates and then as many up projections, which halves the
    /// columns.
    ///
    /// # Errors
    /// Fails if the device fails.
    pub fn run<D: Device>(
        self,
        device: &mut D,
        gate_up: &D::Buffer,
        out: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Silu => device.silu_mul(gate_up, out),
            Self::GeluTanh => device.gelu_mul(gate_up, out),
            Self::ClampedSwiglu { alpha, limit } => {
                device.clamped_swiglu(gate_up, alpha, limit, out)
            }
        }
    }
}
