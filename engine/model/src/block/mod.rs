//! Blocks that the layers of a decoder consist of, each written over the operations of a device.
//!
//! A block reads rows after the norm and writes to `delta` what is to be added to the residual
//! stream.

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

/// Mixer of a layer, loaded on a device: the block in which positions exchange information.
#[derive(Debug)]
pub enum Mixer<D: Device> {
    Attention(Attention<D>),
    DeltaNet(DeltaNet<D>),
}

/// Feed-forward block of a layer, loaded on a device, which computes each position separately.
#[derive(Debug)]
pub enum FeedForward<D: Device> {
    Dense(Dense<D>),
    Moe(Box<Moe<D>>),
}

/// Buffers for the activations inside of a block, shared by all blocks of a model to save memory.
#[derive(Debug)]
pub struct Scratch<D: Device> {
    /// Output of a block's first projection: queries, keys and values of attention, all projections
    /// of gated DeltaNet, or gates and ups. After the last block it holds a rank's own logits.
    pub projected: D::Buffer,
    /// Output of attention, gated DeltaNet or activation function, which is the input of a block's
    /// last projection.
    pub mixed: D::Buffer,
    /// Gates that multiply the attention output, `[T, H * D]`, in architectures that have them.
    pub gates: D::Buffer,
    /// Router logits of a MoE block, `[T, E]` for E experts.
    pub scores: D::Buffer,
    /// Rows that MoE dispatch has copied, one copy for each expert of a row: the input of the
    /// experts' gate and up projections. Without rows on a device that gathers them by their
    /// indices.
    pub sent: D::Buffer,
    /// Outputs of the experts' down projections, before MoE combine sums them.
    pub returned: D::Buffer,
}

impl<D: Device> Scratch<D> {
    /// Creates the scratch buffers of a model's blocks, without rows; they grow with the first
    /// steps.
    ///
    /// # Errors
    /// Fails if the device fails or has too little memory.
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

/// Arguments of a step for a block: device, prepared step, KV cache, state slots and scratch
/// buffers.
#[derive(Debug)]
pub struct Step<'a, D: Device> {
    pub device: &'a mut D,
    pub metadata: &'a D::StepMetadata,
    pub kv: &'a mut D::Kv,
    /// State slots of the device; none if the model has no recurrent state or they were not
    /// allocated.
    pub state: Option<&'a mut D::State>,
    pub scratch: &'a mut Scratch<D>,
    /// Number of rows of the step before the LM head, padding rows included.
    pub rows: usize,
}

impl<D: Device> Mixer<D> {
    /// Loads this rank's part of a layer's mixer, and adds 1 to the number of layers of its kind in
    /// `counts`.
    ///
    /// # Errors
    /// Fails if a tensor is missing or invalid, if the ranks cannot share the block, if random
    /// weights would not fit in memory, or if the device fails, has too little memory or does not
    /// support the block.
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
    /// Fails if the device fails or has too little memory, or if a gated DeltaNet block runs
    /// without the state slots that it needs.
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
    /// Fails if a tensor is missing or invalid, if the ranks cannot share the block, if random
    /// weights would not fit in memory, or if the device fails, has too little memory or does not
    /// support the block.
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

/// Number of layers loaded so far whose mixers use the KV cache, and of those that use recurrent
/// state.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerCounts {
    /// Number of layers loaded so far that use the KV cache.
    pub kv: usize,
    /// Number of layers loaded so far that use recurrent state.
    pub state: usize,
}

/// Index of the layer that a block belongs to, and sizes of the model that the block needs.
#[derive(Debug, Clone, Copy)]
pub struct BlockContext {
    pub layer: usize,
    /// Number of columns of the model's residual stream.
    pub hidden: usize,
    pub norm_epsilon: f32,
}

impl<D: Device> Linear<D> {
    /// Computes the linear layer, `out = x * w^T + bias`.
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

    /// Computes the linear layer, `out = x * w^T + bias`, with f32 results, for results that are
    /// compared with one another, such as router logits.
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
    /// Applies the activation function to rows that hold all gates and then as many ups: `out` has
    /// half as many columns as `gate_up`.
    ///
    /// # Errors
    /// Fails if the device fails or does not support the activation function.
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
