//! Benchmark cases of mixture-of-experts layers.

use engine_core::{DeviceError, Gate, WeightType};
use engine_cuda::check::Operation;

use super::Setup;
use crate::bench::cases::{BenchDevice, Case, MoeOp, MoeShape, numbers};

impl<D: BenchDevice> Setup<D> {
    /// Creates the case of an operation of a mixture-of-experts layer over `t` rows.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn moe(mut self, op: MoeOp, moe: MoeShape, t: usize) -> Result<Case, DeviceError> {
        let MoeShape { experts, top_k, hidden, intermediate } = moe;
        let n = 2 * intermediate;
        let activations = |letter, size| (format!("T{t}_{letter}{size}_C{top_k}"), D::DTYPE);
        let weights =
            |weight_type: WeightType| (format!("T{t}_C{top_k}_K{hidden}_N{n}"), weight_type.name());
        let (name, shape) = match op {
            MoeOp::Route(gate) => (route_name(gate), activations('E', experts)),
            MoeOp::Dispatch => ("dispatch", activations('N', hidden)),
            MoeOp::Combine => ("combine", activations('N', hidden)),
            MoeOp::ExpertMatmul(of) => ("expert_matmul", weights(of)),
            MoeOp::SkewedExpertMatmul(of) => ("expert_matmul_skewed", weights(of)),
        };
        self.begin(name, (&shape.0, shape.1))?;
        // Scores of random rows spread the rows about evenly over the experts.
        let router = self.matrices(1, WeightType::Bf16, experts, hidden)?.remove(0);
        let (x, mut logits) = (self.input(t, hidden)?, self.output(t, experts)?);
        self.device.scores(&x, &router, &mut logits)?;
        if let MoeOp::SkewedExpertMatmul(_) = op {
            let bias: Vec<f32> = (0..experts)
                .map(|expert| match expert {
                    0 => 1e3,
                    expert if expert < experts / 2 => 0.0,
                    _ => -1e3,
                })
                .collect();
            let bias = self.device.vector(&bias)?;
            self.device.add_bias(&mut logits, &bias)?;
        }
        let gate = match op {
            MoeOp::Route(gate) => gate,
            _ => Gate::SoftmaxTop { normalized: true },
        };
        let routes = self.device.route(&logits, top_k, gate, 0..experts)?;
        let routed = self.device.routed_rows(&routes);
        let element = D::ELEMENT_BYTES;
        let copied = [element * t * (1 + top_k) * hidden, 2 * t * top_k * hidden];
        Ok(match op {
            MoeOp::Route(_) => {
                let Self { mut device, .. } = self;
                // Sorting only compares; each top-k expert has an exponential and a division.
                let work = [4 * t * (experts + 2 * top_k), 2 * t * top_k];
                Case::new(name, shape, work, 1, move |call, _| {
                    let logits = &logits;
                    let operation = Operation::Route { logits, top_k, gate, experts };
                    call.operation(&mut device, operation)
                })
            }
            MoeOp::Dispatch => {
                let mut out = self.output(routed, hidden)?;
                let Self { mut device, .. } = self;
                Case::new(name, shape, [copied[0], 0], 1, move |call, _| {
                    let (x, routes, out) = (&x, &routes, &mut out);
                    call.operation(&mut device, Operation::Dispatch { x, routes, out })
                })
            }
            MoeOp::Combine => {
                let (x, mut out) = (self.input(routed, hidden)?, self.output(t, hidden)?);
                let Self { mut device, .. } = self;
                Case::new(name, shape, copied, 1, move |call, _| {
                    let (x, routes, out) = (&x, &routes, &mut out);
                    call.operation(&mut device, Operation::Combine { x, routes, out })
                })
            }
            MoeOp::ExpertMatmul(weight_type) | MoeOp::SkewedExpertMatmul(weight_type) => {
                let used = used_experts(self.device.read(&mut logits)?, experts, top_k);
                return self.expert_matmul((name, shape), (moe, weight_type), t, routes, used);
            }
        })
    }

    /// Creates the case of the grouped GEMM of `t` rows, of whose experts `used` have a row.
    fn expert_matmul(
        mut self,
        (name, shape): (&'static str, (String, &'static str)),
        (moe, weight_type): (MoeShape, WeightType),
        t: usize,
        routes: D::Routes,
        used: usize,
    ) -> Result<Case, DeviceError> {
        let MoeShape { experts, top_k, hidden, intermediate } = moe;
        let (routed, n) = (self.device.routed_rows(&routes), 2 * intermediate);
        let one = D::weight_bytes(weight_type, n, hidden);
        let layers = self.layers(experts * one);
        let mut all = Vec::new();
        for _ in 0..layers {
            let weights = self.matrices(experts, weight_type, n, hidden)?;
            let values = numbers(n + experts);
            let bias = |expert| self.device.vector(&values[expert..expert + n]);
            let biases = (0..experts).map(bias).collect::<Result<_, _>>()?;
            all.push(self.device.stack(weights, biases)?);
        }
        let (x, mut out) = (self.input(routed, hidden)?, self.output(routed, n)?);
        let Self { mut device, .. } = self;
        let pairs = t * top_k;
        let bytes = used * one + D::ELEMENT_BYTES * pairs * (n + hidden);
        let work = [bytes, 2 * pairs * n * hidden];
        Ok(Case::new(name, shape, work, layers, move |call, layer| {
            let ((experts, biases), routes) = (&all[layer], &routes);
            let (x, out) = (&x, &mut out);
            let operation = Operation::ExpertMatmul { x, experts, biases, routes, out };
            call.operation(&mut device, operation)
        }))
    }
}

/// Returns the name of the routing operation with weights of this kind: `route` for those of
/// Qwen3-MoE, which most models have.
fn route_name(gate: Gate) -> &'static str {
    match gate {
        Gate::SoftmaxTop { normalized: true } => "route",
        Gate::SoftmaxTop { normalized: false } => "route_unnormalized",
        Gate::TopSoftmax => "route_top_softmax",
    }
}

/// Returns the number of different experts that at least one row of the router's `logits` has among
/// its top k.
pub(super) fn used_experts(logits: &[f32], experts: usize, top_k: usize) -> usize {
    let mut used = vec![false; experts];
    for row in logits.chunks_exact(experts) {
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        order[..top_k].iter().for_each(|expert| used[*expert] = true);
    }
    used.into_iter().filter(|used| *used).count()
}
