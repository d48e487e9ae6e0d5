//! Operations of a device with their operands, so that one can be run and checked alike.

use super::super::Cuda;
use super::super::buffer::{Buffer, DType};
use super::super::launch::attention::PageType;
use super::super::stream::GrowableBuffer;
use super::{ResultType, Target};
use crate::Result;
use engine_core::sample::SampleParams;
use engine_core::{
    AttentionLayer, DeltaNetLayer, Device, DeviceError, Gate, Rotation, ScheduledSequence,
};

/// Operation of a device with its operands: the arguments of the method of [`Device`] of that name.
///
/// `sequences` are those of the step, from which the reference finds positions, pages and state
/// slots without the step's metadata.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names are those of the arguments in `Device`")]
pub enum Operation<'a, D: Device> {
    AddBias {
        x: &'a mut D::Buffer,
        bias: &'a D::Vector,
    },
    AddRmsNorm {
        x: &'a mut D::Buffer,
        delta: &'a D::Buffer,
        weight: &'a D::Vector,
        epsilon: f32,
        out: &'a mut D::Buffer,
    },
    Attention {
        qkv: &'a D::Buffer,
        layer: &'a AttentionLayer<D::Vector>,
        step: &'a D::StepMetadata,
        sequences: &'a [ScheduledSequence],
        kv: &'a D::Kv,
        out: &'a mut D::Buffer,
    },
    ClampedSwiglu {
        gate_up: &'a D::Buffer,
        alpha: f32,
        limit: f32,
        out: &'a mut D::Buffer,
    },
    Combine {
        x: &'a D::Buffer,
        routes: &'a D::Routes,
        out: &'a mut D::Buffer,
    },
    DeltaNet {
        projected: &'a D::Buffer,
        layer: &'a DeltaNetLayer<D::Vector>,
        step: &'a D::StepMetadata,
        sequences: &'a [ScheduledSequence],
        state: &'a mut D::State,
        out: &'a mut D::Buffer,
    },
    Dispatch {
        x: &'a D::Buffer,
        routes: &'a D::Routes,
        out: &'a mut D::Buffer,
    },
    Embed {
        table: &'a D::Matrix,
        ids: &'a [u32],
        step: &'a D::StepMetadata,
        out: &'a mut D::Buffer,
    },
    ExpertMatmul {
        x: &'a D::Buffer,
        experts: &'a [D::Matrix],
        biases: &'a [D::Vector],
        routes: &'a D::Routes,
        out: &'a mut D::Buffer,
    },
    Matmul {
        x: &'a D::Buffer,
        w: &'a D::Matrix,
        out: &'a mut D::Buffer,
    },
    Scores {
        x: &'a D::Buffer,
        w: &'a D::Matrix,
        out: &'a mut D::Buffer,
    },
    RmsNorm {
        x: &'a D::Buffer,
        weight: &'a D::Vector,
        epsilon: f32,
        out: &'a mut D::Buffer,
    },
    RopeAndCache {
        qkv: &'a mut D::Buffer,
        layer: &'a AttentionLayer<D::Vector>,
        rotation: &'a Rotation,
        step: &'a D::StepMetadata,
        sequences: &'a [ScheduledSequence],
        kv: &'a mut D::Kv,
    },
    Route {
        logits: &'a D::Buffer,
        top_k: usize,
        gate: Gate,
        experts: usize,
    },
    Sample {
        logits: &'a mut D::Buffer,
        step: &'a D::StepMetadata,
        params: &'a [SampleParams],
    },
    SigmoidMul {
        x: &'a mut D::Buffer,
        gate: &'a D::Buffer,
    },
    SiluMul {
        gate_up: &'a D::Buffer,
        out: &'a mut D::Buffer,
    },
}

impl<D: Device> Operation<'_, D> {
    /// Runs the operation on the device.
    ///
    /// # Errors
    /// The device reports an error.
    pub fn run(&mut self, device: &mut D) -> Result<(), DeviceError> {
        match self {
            Self::AddBias { x, bias } => device.add_bias(x, bias),
            Self::AddRmsNorm { x, delta, weight, epsilon, out } => {
                device.add_rms_norm(x, delta, weight, *epsilon, out)
            }
            Self::Attention { qkv, layer, step, kv, out, .. } => {
                device.attention(qkv, layer, step, kv, out)
            }
            Self::ClampedSwiglu { gate_up, alpha, limit, out } => {
                device.clamped_swiglu(gate_up, *alpha, *limit, out)
            }
            Self::Combine { x, routes, out } => device.combine(x, routes, out),
            Self::DeltaNet { projected, layer, step, state, out, .. } => {
                device.delta_net(projected, layer, step, state, out)
            }
            Self::Dispatch { x, routes, out } => device.dispatch(x, routes, out),
            Self::Embed { table, step, out, .. } => device.embed(table, 0, step, out),
            Self::ExpertMatmul { x, experts, biases, routes, out } => {
                device.expert_matmul(x, experts, biases, routes, out)
            }
            Self::Matmul { x, w, out } => device.matmul(x, w, out),
            Self::Scores { x, w, out } => device.scores(x, w, out),
            Self::RmsNorm { x, weight, epsilon, out } => device.rms_norm(x, weight, *epsilon, out),
            Self::RopeAndCache { qkv, layer, step, kv, .. } => {
                device.rope_and_cache(qkv, layer, step, kv)
            }
            Self::Route { logits, top_k, gate, experts } => {
                device.route(logits, *top_k, *gate, 0..*experts).map(|_| ())
            }
            Self::Sample { logits, step, .. } => device.sample(logits, step),
            Self::SigmoidMul { x, gate } => device.sigmoid_mul(x, gate),
            Self::SiluMul { gate_up, out } => device.silu_mul(gate_up, out),
        }
    }
}

impl Operation<'_, Cuda> {
    /// Returns the memory that the operation writes, after a run that allocated it.
    pub(super) fn targets(&self, cuda: &Cuda) -> Vec<Target> {
        let buffer = |result, buffer: &Buffer| {
            let result_type = match buffer.dtype {
                DType::Bf16 => ResultType::Bf16,
                DType::F32 => ResultType::F32,
            };
            Target::of(result, buffer.address(), buffer.rows * buffer.cols, result_type)
        };
        // Rows that only pad the step have results that nobody reads.
        let step_rows = |out: &Buffer, sequences: &[ScheduledSequence]| Target {
            elements: rows(sequences) * out.cols,
            ..buffer("out", out)
        };
        match self {
            Self::AddBias { x, .. } | Self::SigmoidMul { x, .. } => {
                vec![buffer("x", x).read_first()]
            }
            Self::AddRmsNorm { x, out, .. } => {
                vec![buffer("x", x).read_first(), buffer("out", out)]
            }
            Self::Attention { out, sequences, .. } => vec![step_rows(out, sequences)],
            Self::ClampedSwiglu { out, .. }
            | Self::Combine { out, .. }
            | Self::Dispatch { out, .. }
            | Self::ExpertMatmul { out, .. }
            | Self::Matmul { out, .. }
            | Self::RmsNorm { out, .. }
            | Self::Scores { out, .. }
            | Self::SiluMul { out, .. } => vec![buffer("out", out)],
            Self::Embed { out, ids, .. } => {
                vec![Target { elements: ids.len() * out.cols, ..buffer("out", out) }]
            }
            Self::DeltaNet { out, sequences, state, .. } => {
                let at = state.memory.address();
                let states = Target::of("states", at, state.memory.bytes() / 4, ResultType::F32);
                vec![step_rows(out, sequences), states.read_first()]
            }
            Self::RopeAndCache { qkv, layer, sequences, kv, .. } => {
                let result_type = match kv.page_type() {
                    PageType::Bf16 => ResultType::Bf16,
                    PageType::E4m3 => ResultType::E4m3,
                };
                // Several padding rows write to the page behind the last, in any order, and nobody
                // reads it.
                let page = kv.shape.token_bytes() * kv.shape.page_tokens;
                let elements = (kv.memory.bytes() - page) / result_type.bytes();
                let written = 2 * layer.shape.kv_heads * layer.shape.head_dim;
                let pages = Target::of("pages", kv.memory.address(), elements, result_type);
                let untouched = Some(elements - rows(sequences) * written);
                vec![buffer("qkv", qkv).read_first(), Target { untouched, ..pages }]
            }
            Self::Route { logits, top_k, experts, .. } => {
                let (router, pairs) = (&cuda.router, logits.rows * top_k);
                let of = |result, buffer: &GrowableBuffer, elements, result_type| {
                    Target::of(result, buffer.address(), elements, result_type)
                };
                vec![
                    of("ids", &router.ids, pairs, ResultType::U32),
                    of("weights", &router.weights, pairs, ResultType::F32),
                    of("offsets", &router.offsets, experts + 1, ResultType::U32),
                    of("sources", &router.sources, pairs, ResultType::U32),
                    of("slots", &router.slots, pairs, ResultType::U32),
                ]
            }
            Self::Sample { params, .. } => {
                vec![Target::of("tokens", cuda.outputs.ids(), params.len(), ResultType::U32)]
            }
        }
    }
}

/// Returns the number of rows of the sequences in their step, without those that pad the step.
pub(super) fn rows(sequences: &[ScheduledSequence]) -> usize {
    sequences.iter().map(|sequence| sequence.rows).sum()
}
