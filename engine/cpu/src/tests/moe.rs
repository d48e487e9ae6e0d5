//! Tests of MoE routing against its definition, and of expert GEMMs against plain products.

use super::*;

/// Returns the top-k experts of one row and their weights by the definition of the gate, in rising
/// order of experts.
fn definition(logits: &[f32], top_k: usize, gate: Gate) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let exp = |i: usize| f64::from(logits[i]).exp();
    let best = &order[..top_k];
    let all: f64 = (0..logits.len()).map(exp).sum();
    let top: f64 = best.iter().map(|i| exp(*i)).sum();
    let total = if gate == (Gate::SoftmaxTop { normalized: false }) { all } else { top };
    let mut out: Vec<_> = best.iter().map(|i| (*i, exp(*i) / total)).collect();
    out.sort_by_key(|(expert, _)| *expert);
    out
}

const GATES: [Gate; 3] = [
    Gate::SoftmaxTop { normalized: true },
    Gate::SoftmaxTop { normalized: false },
    Gate::TopSoftmax,
];

/// Experts of a MoE layer on a device: a matrix `[N, K]` and a bias for each.
struct Layer {
    n: usize,
    k: usize,
    weights: Vec<Vec<f32>>,
    matrices: Vec<Matrix>,
    biases: Vec<Vec<f32>>,
}

impl Layer {
    fn new(cpu: &mut Cpu, experts: u32, n: usize, k: usize) -> Self {
        let (mut weights, mut matrices) = (Vec::new(), Vec::new());
        for seed in 1..=experts {
            let (bytes, values) = stored(WeightType::F32, n, k, seed);
            let (weight_type, order) = (WeightType::F32, RowOrder::AsStored);
            let host = HostMatrix { weight_type, n, k, bytes: &bytes, order };
            matrices.push(cpu.matrix(&[host]).unwrap());
            weights.push(values);
        }
        let biases = (0..experts).map(|seed| numbers(n, 100 + seed)).collect();
        Self { n, k, weights, matrices, biases }
    }

    fn run(&self, cpu: &mut Cpu, x: &[f32], logits: &[f32], gate: Gate) -> Vec<f32> {
        let (experts, rows) = (self.weights.len(), x.len() / self.k);
        let x = buffer(self.k, x.to_vec());
        let routes = cpu.route(&buffer(experts, logits.to_vec()), 3, gate, 0..experts).unwrap();
        let routed = cpu.routed_rows(&routes);
        assert_eq!(routed, 3 * rows);
        let mut sent = buffer(self.k, vec![f32::NAN; routed * self.k]);
        let mut returned = buffer(self.n, vec![f32::NAN; routed * self.n]);
        let mut out = buffer(self.n, vec![f32::NAN; rows * self.n]);
        cpu.dispatch(&x, &routes, &mut sent).unwrap();
        cpu.expert_matmul(&sent, &self.matrices, &self.biases, &routes, &mut returned).unwrap();
        cpu.combine(&returned, &routes, &mut out).unwrap();
        out.values().to_vec()
    }
}

#[test]
fn rows_are_the_weighted_sums_of_their_experts_in_any_company() {
    on_every_device(|cpu, device| {
        let layer = Layer::new(cpu, 7, 20, 32);
        for gate in GATES {
            for rows in [1, 2, 9, 40] {
                let (x, logits) = (numbers(rows * 32, 8), numbers(rows * 7, 9));
                let got = layer.run(cpu, &x, &logits, gate);
                let mut want = Vec::new();
                for (x, logits) in x.chunks_exact(32).zip(logits.chunks_exact(7)) {
                    let mut sum = [0.0; 20];
                    for (expert, weight) in definition(logits, 3, gate) {
                        let product = reference::matmul(x, &layer.weights[expert], 32);
                        for ((sum, y), bias) in
                            sum.iter_mut().zip(product).zip(&layer.biases[expert])
                        {
                            *sum += weight * f64::from(y + bias);
                        }
                    }
                    want.extend(sum.iter().map(|x| *x as f32));
                }
                check_close(&got, &want, 1e-5, &format!("{device} {gate:?} T{rows}"));

                let last = rows - 1;
                let alone = layer.run(cpu, &x[last * 32..], &logits[last * 7..], gate);
                assert!(got[last * 20..] == alone, "{device} {gate:?} T{rows}: alone");
            }
        }
    });
}

#[test]
fn of_equal_logits_the_first_experts_win() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let routes =
        cpu.route(&buffer(4, vec![1.0, 2.0, 2.0, 2.0]), 2, Gate::TopSoftmax, 0..4).unwrap();
    let experts: Vec<usize> = routes.groups().map(|(expert, _)| expert).collect();
    assert_eq!(experts, [1, 2]);
}
