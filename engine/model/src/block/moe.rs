//! Mixture-of-experts block (MoE; fused MoE in vLLM's words): a router sends each row to its top k of many feed-forward
//! experts.
//!
//! Rows are grouped by expert, so that each selected expert is one matrix multiplication over its
//! rows. A row's result is the sum over its experts in the order of their indices, whatever other
//! rows there are. A rank holds whole experts, and all ranks route alike. Sources: Shazeer et al.
//! 2017; Yang et al. 2025 (Qwen3); OpenAI 2025 (gpt-oss).

use std::ops::Range;

use super::{BlockContext, Step};
use crate::LoadError;
use crate::spec::{Activation, DenseNames, ExpertStorage, MoeSpec};
use crate::tensors::{Linear, Part, Rows, Tensors, in_layer};
use engine_core::{Device, DeviceError, Gate, RowOrder};

/// Projection of the experts of a layer that are on this rank: one matrix per expert.
#[derive(Debug)]
struct Experts<D: Device> {
    matrices: Vec<D::Matrix>,
    /// Biases of the projection: one vector per expert, or an empty list.
    biases: Vec<D::Vector>,
}

/// MoE block of a layer on one rank: the router and this rank's experts.
#[derive(Debug)]
pub struct Moe<D: Device> {
    hidden: usize,
    intermediate: usize,
    experts: usize,
    /// Range of the indices of the experts that are on this rank.
    own: Range<usize>,
    top_k: usize,
    gate: Gate,
    activation: Activation,
    router: Linear<D>,
    gate_up: Experts<D>,
    down: Experts<D>,
}

impl<D: Device> Moe<D> {
    /// Loads the router and this rank's experts of a layer's MoE block.
    pub(super) fn load(
        tensors: &mut Tensors<'_, D>,
        spec: &MoeSpec,
        context: BlockContext,
    ) -> Result<Self, LoadError> {
        let router = Part { bias: spec.router_bias, ..Part::plain(spec.router, spec.experts) };
        let router = tensors.router(router, context.layer, context.hidden)?;
        let own = tensors.device.rank().share(spec.experts);
        let mut reader = ExpertReader { tensors, spec, context, own: own.clone() };
        let (gate_up, down) = match spec.storage {
            ExpertStorage::Each(names) => reader.each(names)?,
            ExpertStorage::Stacked { names, bias } => reader.stacked(names, bias)?,
            ExpertStorage::Interleaved { gate_up, down } => reader.interleaved(gate_up, down)?,
        };
        Ok(Self {
            hidden: context.hidden,
            intermediate: spec.intermediate,
            experts: spec.experts,
            own,
            top_k: spec.top_k,
            gate: spec.gate,
            activation: spec.activation,
            router,
            gate_up,
            down,
        })
    }

    /// Computes the MoE block: routing to the top-k experts, dispatch, expert GEMMs, weighted sum.
    pub(super) fn run(
        &self,
        step: &mut Step<'_, D>,
        x: &D::Buffer,
        delta: &mut D::Buffer,
    ) -> Result<(), DeviceError> {
        let Step { device, scratch, rows, .. } = step;
        device.reshape(&mut scratch.scores, *rows, self.experts)?;
        self.router.score(device, x, &mut scratch.scores)?;
        let routes = &device.route(&scratch.scores, self.top_k, self.gate, self.own.clone())?;
        let routed = device.routed_rows(routes);
        device.reshape(&mut scratch.projected, routed, 2 * self.intermediate)?;
        device.reshape(&mut scratch.mixed, routed, self.intermediate)?;
        device.reshape(&mut scratch.returned, routed, self.hidden)?;
        // It gets rows only where the device copies them to their experts.
        device.reshape(&mut scratch.sent, 0, self.hidden)?;
        let (sent, projected) = (&mut scratch.sent, &mut scratch.projected);
        let Experts { matrices, biases } = &self.gate_up;
        device.dispatch_matmul(x, matrices, biases, routes, sent, projected)?;
        self.activation.run(*device, &scratch.projected, &mut scratch.mixed)?;
        let Experts { matrices, biases } = &self.down;
        device.expert_matmul(&scratch.mixed, matrices, biases, routes, &mut scratch.returned)?;
        device.combine(&scratch.returned, routes, delta)
    }
}

/// Gate-and-up projections, then down projections, of a layer's experts on this rank.
type BothExperts<D> = (Experts<D>, Experts<D>);

/// Reader of the experts of one layer from a checkpoint to a device.
struct ExpertReader<'a, 'b, D: Device> {
    tensors: &'a mut Tensors<'b, D>,
    spec: &'a MoeSpec,
    context: BlockContext,
    /// Range of the indices of the experts to read, those of this rank.
    own: Range<usize>,
}

impl<D: Device> ExpertReader<'_, '_, D> {
    /// Reads the layer's experts from separate tensors for each expert.
    fn each(&mut self, names: DenseNames) -> Result<BothExperts<D>, LoadError> {
        let BlockContext { layer, hidden, .. } = self.context;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        let intermediate = self.spec.intermediate;
        let elsewhere = self.spec.experts - self.own.len();
        // Experts of other ranks are not read, but are parameters of the model.
        self.tensors.parameters += (elsewhere * 3 * intermediate * hidden) as u64;
        for expert in self.own.clone() {
            let own = |name: &str| name.replace("{expert}", &expert.to_string());
            let (gate, up) = (own(names.gate), own(names.up));
            let parts = [Part::plain(&gate, intermediate), Part::plain(&up, intermediate)];
            gate_up.push(self.tensors.matrix(&parts, layer, hidden)?);
            let part = own(names.down);
            let parts = [Part::plain(&part, hidden)];
            down.push(self.tensors.matrix(&parts, layer, intermediate)?);
        }
        Ok((self.experts(gate_up, Vec::new())?, self.experts(down, Vec::new())?))
    }

    /// Reads the layer's experts from tensors that stack all experts, one tensor per projection
    /// (GGUF).
    fn stacked(&mut self, names: DenseNames, bias: bool) -> Result<BothExperts<D>, LoadError> {
        let hidden = self.context.hidden;
        let MoeSpec { experts, intermediate, .. } = *self.spec;
        let weight = |name: &str| format!("{}.weight", in_layer(name, self.context.layer));
        let up_shape = [experts, intermediate, hidden];
        let gate = self.tensors.tensor(&weight(names.gate), &up_shape)?;
        let up = self.tensors.tensor(&weight(names.up), &up_shape)?;
        let down = self.tensors.tensor(&weight(names.down), &[experts, hidden, intermediate])?;
        let mut gate_up_matrices = Vec::with_capacity(self.own.len());
        let mut down_matrices = Vec::with_capacity(self.own.len());
        for expert in self.own.clone() {
            // Gate and up are one matrix per expert, so that each expert needs one GEMM for both.
            let rows = [Rows::of_stack(&gate, expert), Rows::of_stack(&up, expert)];
            gate_up_matrices.push(self.tensors.own_matrix(&rows, hidden)?);
            let rows = [Rows::of_stack(&down, expert)];
            down_matrices.push(self.tensors.own_matrix(&rows, intermediate)?);
        }
        let (mut gate_up_biases, mut down_biases) = (Vec::new(), Vec::new());
        if bias {
            let gate = self.biases(&format!("{}.bias", names.gate), intermediate)?;
            let up = self.biases(&format!("{}.bias", names.up), intermediate)?;
            for (gate, up) in gate.chunks(intermediate).zip(up.chunks(intermediate)) {
                gate_up_biases.push(self.tensors.device.vector(&[gate, up].concat())?);
            }
            for down in self.biases(&format!("{}.bias", names.down), hidden)?.chunks(hidden) {
                down_biases.push(self.tensors.device.vector(down)?);
            }
        }
        let gate_up = self.experts(gate_up_matrices, gate_up_biases)?;
        Ok((gate_up, self.experts(down_matrices, down_biases)?))
    }

    /// Reads the layer's experts from tensors that stack all experts and in which gates and ups
    /// alternate (gpt-oss).
    fn interleaved(&mut self, gate_up: &str, down: &str) -> Result<BothExperts<D>, LoadError> {
        let (hidden, intermediate) = (self.context.hidden, self.spec.intermediate);
        let order = RowOrder::Interleaved { half: intermediate };
        let gate_up = self.projection(gate_up, 2 * intermediate, hidden, order)?;
        let down = self.projection(down, hidden, intermediate, RowOrder::AsStored)?;
        Ok((gate_up, down))
    }

    /// Reads one projection of all experts of this rank, with `n` rows of `k` elements each, and
    /// its biases, from tensors that stack all experts.
    fn projection(
        &mut self,
        name: &str,
        n: usize,
        k: usize,
        order: RowOrder,
    ) -> Result<Experts<D>, LoadError> {
        let experts = self.spec.experts;
        let own = in_layer(name, self.context.layer);
        let stack = self.tensors.mx_stack(&own, [experts, n, k])?;
        let mut matrices = Vec::with_capacity(self.own.len());
        for expert in self.own.clone() {
            matrices.push(self.tensors.mx_matrix(&stack, expert, [n, k], order)?);
        }
        let mut biases = Vec::with_capacity(self.own.len());
        for stored in self.biases(&format!("{name}_bias"), n)?.chunks(n) {
            // Biases are reordered like the rows of the matrix that they belong to.
            let ordered: Vec<f32> = (0..n).map(|n| stored[order.stored_row(n)]).collect();
            biases.push(self.tensors.device.vector(&ordered)?);
        }
        self.experts(matrices, biases)
    }

    /// Arranges the experts' matrices and biases of one projection as the device reads them.
    fn experts(
        &mut self,
        matrices: Vec<D::Matrix>,
        biases: Vec<D::Vector>,
    ) -> Result<Experts<D>, LoadError> {
        let (matrices, biases) = self.tensors.device.stack(matrices, biases)?;
        Ok(Experts { matrices, biases })
    }

    /// Reads one projection's biases of this rank's experts, `[own experts, n]`, from the tensor
    /// `name`.
    fn biases(&mut self, name: &str, n: usize) -> Result<Vec<f32>, LoadError> {
        let shape = [self.spec.experts, n];
        let mut all = self.tensors.values(&in_layer(name, self.context.layer), &shape)?;
        Ok(all.drain(self.own.start * n..self.own.end * n).collect())
    }
}
