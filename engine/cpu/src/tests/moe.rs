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
        let mut sent = buffer(self.k, Vec::new());
        let mut returned = buffer(self.n, vec![f32::NAN; routed * self.n]);
        let mut out = buffer(self.n, vec![f32::NAN; rows * self.n]);
        let (matrices, biases) = (&self.matrices, &self.biases);
        cpu.dispatch_matmul(&x, matrices, biases, &routes, &mut sent, &mut returned).unwrap();
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
    let groups = routes.dispatched().groups;
    assert_eq!(groups, [(1, 0..1), (2, 1..2)]);
}

/// Selection keeps the best so far, and must select what the definition does by sorting all logits,
/// also where logits are equal or NaN.
#[test]
fn selected_experts_are_the_first_in_the_order_of_all() {
    let values = [0.5, 0.0, -0.0, 1.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    // So many rows are divided among threads.
    let (rows, experts) = (60, 40);
    let logits: Vec<f32> = numbers(rows * experts, 1)
        .iter()
        .map(|x| values.get((x.abs() * 12.0) as usize).copied().unwrap_or(*x))
        .collect();
    let mut cpu = Cpu::new(Isa::best(), 3);
    for (top_k, own) in [(1, 0..40), (2, 0..40), (8, 0..40), (8, 5..30), (39, 0..40), (40, 3..4)] {
        let logits = buffer(experts, logits.clone());
        let routes = cpu.route(&logits, top_k, Gate::TopSoftmax, own.clone()).unwrap();
        let sources = routes.of_step().sources.unwrap();
        let mut selected = vec![Vec::new(); rows];
        for (expert, rows) in routes.dispatched().groups {
            assert!(sources[rows.clone()].is_sorted(), "top {top_k}: rows keep their order");
            sources[rows.clone()].iter().for_each(|row| selected[*row].push(own.start + expert));
        }
        for (selected, logits) in selected.iter().zip(logits.values().chunks_exact(experts)) {
            let all = definition(logits, top_k, Gate::TopSoftmax);
            let own = all.iter().map(|(expert, _)| *expert).filter(|expert| own.contains(expert));
            assert!(own.eq(selected.iter().copied()), "top {top_k} of {logits:?}: {selected:?}");
        }
    }
}

#[test]
fn results_are_added_in_the_order_of_experts() {
    let (rows, experts, cols) = (9, 7, 2000);
    let logits = buffer(experts, numbers(rows * experts, 1));
    for own in [0..7, 2..6] {
        let mut cpu = Cpu::new(Isa::best(), 3);
        let gate = Gate::SoftmaxTop { normalized: true };
        let routes = cpu.route(&logits, 3, gate, own.clone()).unwrap();
        let sources = routes.of_step().sources.unwrap();
        let x = numbers(sources.len() * cols, 2);
        let mut want = vec![0.0; rows * cols];
        for (sent, source) in sources.iter().enumerate() {
            // A single one among zeros returns as its weight.
            let mut one = buffer(1, vec![0.0; sources.len()]);
            one.values_mut()[sent] = 1.0;
            let mut weights = buffer(1, vec![f32::NAN; rows]);
            cpu.combine(&one, &routes, &mut weights).unwrap();
            let weight = weights.values()[*source];
            let want = &mut want[source * cols..][..cols];
            want.iter_mut().zip(&x[sent * cols..]).for_each(|(want, x)| *want += weight * x);
        }
        let mut got = buffer(cols, vec![f32::NAN; rows * cols]);
        cpu.combine(&buffer(cols, x), &routes, &mut got).unwrap();
        assert!(got.values() == want, "experts {own:?}");
    }
}

/// Weights of the experts' parts: two of them are multiplied in int8 by default, of different
/// widths, one in f32, and one in bf16 where the processor has it.
const PARTS: [(WeightType, usize); 4] = [
    (WeightType::Q4_1, 60),
    (WeightType::Mxfp4, 21),
    (WeightType::Q5_0, 33),
    (WeightType::Bf16, 50),
];

/// Loads the matrix of an expert, which consists of [`PARTS`].
fn matrix_of_parts(cpu: &mut Cpu, k: usize, seed: u32) -> Matrix {
    let stored = PARTS.map(|(weight_type, n)| stored(weight_type, n, k, seed).0);
    let hosts: Vec<_> = PARTS
        .iter()
        .zip(&stored)
        .map(|((weight_type, n), bytes)| HostMatrix {
            weight_type: *weight_type,
            n: *n,
            k,
            bytes,
            order: RowOrder::AsStored,
        })
        .collect();
    cpu.matrix(&hosts).unwrap()
}

/// Returns logits of 150 rows whose top 2 of 7 experts are the first one, and one with 1, 4, 9 or
/// 136 rows; two experts have none.
fn skewed() -> Vec<f32> {
    let mut logits = vec![-1.0; 150 * 7];
    for (row, logits) in logits.chunks_exact_mut(7).enumerate() {
        let second = match row {
            0 => 1,
            1..5 => 2,
            5..14 => 4,
            _ => 6,
        };
        (logits[0], logits[second]) = (2.0, 1.0);
    }
    logits
}

/// The experts' matmuls share a parallel region and the conversion of their rows, which must change
/// no bit.
#[test]
fn rows_of_an_expert_have_the_bits_of_a_matmul_by_its_matrix_alone() {
    let (k, n) = (96, PARTS.iter().map(|(_, n)| *n).sum::<usize>());
    let (x, logits) = (numbers(150 * k, 1), skewed());
    for isa in Isa::detected() {
        for arithmetic in
            [Arithmetic::AsStored, Arithmetic::F32, Arithmetic::Bf16, Arithmetic::Int8]
        {
            let what = format!("{} {arithmetic:?}", isa.name());
            let mut cpu = Cpu::new(isa, 3).with(arithmetic);
            let experts: Vec<Matrix> =
                (1..8).map(|seed| matrix_of_parts(&mut cpu, k, seed)).collect();
            let biases: Vec<Vec<f32>> = (11..18).map(|seed| numbers(n, seed)).collect();
            let mut normed = buffer(k, vec![0.0; x.len()]);
            cpu.rms_norm(&buffer(k, x.clone()), &vec![1.0; k], 1e-5, &mut normed).unwrap();
            let routes = cpu.route(&buffer(7, logits.clone()), 2, Gate::TopSoftmax, 0..7).unwrap();
            let counts: Vec<usize> =
                routes.dispatched().groups.iter().map(|(_, rows)| rows.len()).collect();
            assert_eq!(counts, [150, 1, 4, 9, 136]);
            let mut sent = buffer(k, vec![f32::NAN; 300 * k]);
            cpu.dispatch(&normed, &routes, &mut sent).unwrap();
            let mut want = Vec::new();
            for (expert, rows) in routes.dispatched().groups {
                let x = sent.values()[rows.start * k..rows.end * k].to_vec();
                let mut out = buffer(n, vec![f32::NAN; rows.len() * n]);
                cpu.matmul(&buffer(k, x), &experts[*expert], &mut out).unwrap();
                cpu.add_bias(&mut out, &biases[*expert]).unwrap();
                want.extend_from_slice(out.values());
            }
            let mut got = buffer(n, vec![f32::NAN; 300 * n]);
            cpu.expert_matmul(&sent, &experts, &biases, &routes, &mut got).unwrap();
            assert!(got.values() == want, "{what}: of dispatched rows");
            // Rows that the norm has quantized, where there is an int8 matrix, and others.
            for x in [&normed, &buffer(k, normed.values().to_vec())] {
                let mut got = buffer(n, vec![f32::NAN; 300 * n]);
                let mut unused = buffer(k, Vec::new());
                cpu.dispatch_matmul(x, &experts, &biases, &routes, &mut unused, &mut got).unwrap();
                assert!(got.values() == want, "{what}: of rows of the step");
            }
        }
    }
}
