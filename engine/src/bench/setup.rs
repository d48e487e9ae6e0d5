//! Creation of benchmark cases on a device: allocates weights, activations and KV pages, and
//! computes the number of bytes and operations of a call. Everything is pseudo-random, the same on
//! every run; no model is loaded.

mod attention;
mod delta_net;
mod experts;

use std::cell::RefCell;
use std::rc::Rc;

use engine_core::sample::{Row, SampleParams, Sampler, Sampling};
use engine_core::{DeviceError, KvType, LogitRows, Rotation, StepBatch, WeightType};
use engine_cuda::check::Operation;

pub use attention::rotation;

use crate::log;

use super::cases::{BenchDevice, Case, Matmul, RowOp, Step, attention_shape, numbers};

/// Limit on the number of layers of a benchmark case, because many small layers would take long to
/// fill.
const LAYERS_MAX: usize = 64;

/// Name of a matrix multiplication by Redline's own kernels, even where a library is faster.
pub const OWN_MATMUL: &str = "matmul_own";
/// Name of the matrix multiplication of the language model's head and of routers.
pub const SCORES: &str = "scores";

/// Device on which one benchmark case is created, and size of the memory that the case's layers
/// fill.
#[derive(Debug)]
pub struct Setup<D> {
    /// Device that computes the benchmark case.
    pub device: D,
    /// Limit on the total size in bytes of the weights, KV pages, states or activations of the
    /// case's layers: far larger than any cache, so that they come from memory as in a step. A case
    /// has one to 64 layers whatever the size; 0 means one.
    pub memory: usize,
    /// Name of the case, set before anything runs on the device; `None` where nobody reads it.
    pub names: Option<Rc<Names>>,
}

/// Name of the case that is being created, by which a failure is reported, and selection of cases.
#[derive(Debug, Default)]
pub struct Names {
    /// Text that the names of created cases have; `None` selects all.
    pub filter: Option<String>,
    /// True if the name is printed before anything runs, because the GPU may hang.
    pub is_printed: bool,
    /// Operation, shape and data type of the case; empty before it has begun.
    pub current: RefCell<String>,
}

/// Operation in the error of a case that the filter leaves out.
pub const LEFT_OUT: &str = "filter";

/// Function that creates a benchmark case when it is about to be measured, so that only one case
/// holds memory at a time.
pub type Make<D> = Box<dyn Fn(Setup<D>) -> Result<Case, DeviceError>>;

impl<D: BenchDevice> Setup<D> {
    /// Creates the setup of one case whose name nobody reads.
    pub fn new(device: D, memory: usize) -> Self {
        Self { device, memory, names: None }
    }

    /// Begins the creation of the case that is called `op`, with its shape and data type.
    ///
    /// # Errors
    /// The case is left out, with the operation [`LEFT_OUT`].
    fn begin(&self, op: &str, (shape, dtype): (&str, &str)) -> Result<(), DeviceError> {
        let Some(names) = &self.names else { return Ok(()) };
        let name = format!("{op} {shape} {dtype}");
        if names.filter.as_ref().is_some_and(|text| !name.contains(text)) {
            return Err(DeviceError { operation: LEFT_OUT, message: name });
        }
        if names.is_printed {
            log(format_args!("checking {name}"));
        }
        *names.current.borrow_mut() = name;
        Ok(())
    }

    fn layers(&self, layer_bytes: usize) -> usize {
        (self.memory / layer_bytes.max(1)).clamp(1, LAYERS_MAX)
    }

    /// Creates an activation buffer `[rows, cols]` of pseudo-random numbers.
    fn input(&mut self, rows: usize, cols: usize) -> Result<D::Buffer, DeviceError> {
        self.device.random_rows(rows, cols)
    }

    fn output(&mut self, rows: usize, cols: usize) -> Result<D::Buffer, DeviceError> {
        let mut out = self.device.buffer(cols)?;
        self.device.resize(&mut out, rows)?;
        Ok(out)
    }

    fn matrices(
        &mut self,
        count: usize,
        weight_type: WeightType,
        n: usize,
        k: usize,
    ) -> Result<Vec<D::Matrix>, DeviceError> {
        self.device.random_matrices(count, weight_type, n, k)
    }

    /// Creates the case of the operation `op`, which has no weight matrix, over `t` rows of `n`
    /// columns of activations.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn rows(mut self, op: RowOp, t: usize, n: usize) -> Result<Case, DeviceError> {
        // Numbers of elements read and written, and of operations: an exponential counts as several.
        let (name, elements, flops) = match op {
            RowOp::AddBias => ("add_bias", 2, 1),
            RowOp::AddRmsNorm => ("add_rms_norm", 4, 5),
            RowOp::ClampedSwiglu => ("clamped_swiglu", 3, 25),
            RowOp::RmsNorm => ("rms_norm", 2, 4),
            RowOp::SigmoidMul => ("sigmoid_mul", 3, 20),
            RowOp::SiluMul => ("silu_mul", 3, 20),
        };
        let shape = (format!("T{t}_N{n}"), D::DTYPE);
        self.begin(name, (&shape.0, shape.1))?;
        let bytes = elements * D::ELEMENT_BYTES * t * n;
        let layers = self.layers(bytes);
        let wide = if matches!(op, RowOp::SiluMul | RowOp::ClampedSwiglu) { 2 * n } else { n };
        // Zeros added to the rows, and gates near 1, keep them bounded however often a case runs. A
        // device that is checked needs other numbers, and runs a case only a few times.
        let added = if op == RowOp::SigmoidMul { 20.0 } else { 0.0 };
        let is_zero = op == RowOp::AddBias && !D::IS_CHECKED;
        let weight = if is_zero { vec![0.0; n] } else { numbers(n) };
        let weight = self.device.vector(&weight)?;
        let mut all = Vec::new();
        for _ in 0..layers {
            let x = self.input(t, wide)?;
            let y = if D::IS_CHECKED {
                self.input(t, n)?
            } else {
                let mut y = self.device.buffer(n)?;
                self.device.write(&mut y, &vec![added; t * n])?;
                y
            };
            all.push((x, y, self.output(t, n)?));
        }
        let Self { mut device, .. } = self;
        Ok(Case::new(name, shape, [bytes, flops * t * n], layers, move |call, layer| {
            let (x, y, out) = &mut all[layer];
            let (weight, epsilon) = (&weight, 1e-5);
            let operation = match op {
                RowOp::AddBias => Operation::AddBias { x, bias: weight },
                RowOp::AddRmsNorm => Operation::AddRmsNorm { x, delta: y, weight, epsilon, out },
                RowOp::ClampedSwiglu => {
                    // A limit that clamps some of the numbers.
                    Operation::ClampedSwiglu { gate_up: x, alpha: 1.702, limit: 0.7, out }
                }
                RowOp::RmsNorm => Operation::RmsNorm { x, weight, epsilon, out },
                RowOp::SigmoidMul => Operation::SigmoidMul { x, gate: y },
                RowOp::SiluMul => Operation::SiluMul { gate_up: x, out },
            };
            call.operation(&mut device, operation)
        }))
    }

    /// Creates the case of a matrix multiplication (GEMM), named `op`: [`SCORES`] has a result in f32
    /// on a GPU, and [`OWN_MATMUL`] uses no library. With `normed` its rows come
    /// from a norm as in a step, which leaves them in the form that multiplication reads; else
    /// preparing them, such as quantizing, is part of the measured time.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn matmul(
        mut self,
        op: &'static str,
        matmul: Matmul,
        normed: bool,
    ) -> Result<Case, DeviceError> {
        let Matmul { t, k, n, weight_type } = matmul;
        let shape = (format!("T{t}_K{k}_N{n}"), weight_type.name());
        self.begin(op, (&shape.0, shape.1))?;
        let weight_bytes = D::weight_bytes(weight_type, n, k);
        let layers = self.layers(weight_bytes);
        let weights = self.matrices(layers, weight_type, n, k)?;
        let (mut x, mut out) = (self.input(t, k)?, self.output(t, n)?);
        if normed {
            let (raw, ones) = (x, self.device.vector(&vec![1.0; k])?);
            x = self.output(t, k)?;
            self.device.rms_norm(&raw, &ones, 0.0, &mut x)?;
        }
        let Self { mut device, .. } = self;
        // A device may then choose among its implementations for the shape that it has seen.
        if op != OWN_MATMUL {
            let is_score = op == SCORES;
            weights.iter().try_for_each(|w| {
                let out = &mut out;
                if is_score { device.scores(&x, w, out) } else { device.matmul(&x, w, out) }
            })?;
            device.tune()?;
        }
        let work = [weight_bytes + D::ELEMENT_BYTES * t * (n + k), 2 * t * n * k];
        let compute_dtype = device.compute_dtype();
        let case = Case::new(op, shape, work, layers, move |call, layer| {
            let (x, w, out) = (&x, &weights[layer], &mut out);
            let operation = match op {
                SCORES => Operation::Scores { x, w, out },
                _ => Operation::Matmul { x, w, out },
            };
            call.operation(&mut device, operation)
        });
        Ok(Case { compute_dtype, ..case })
    }

    /// Creates the case of looking up `t` embeddings in a table of `vocab` rows of `n` columns.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn embed(
        mut self,
        t: usize,
        vocab: usize,
        n: usize,
        weight_type: WeightType,
    ) -> Result<Case, DeviceError> {
        /// Distance between the token ids of successive rows, modulo the size of the vocabulary: a
        /// prime, so that the ids differ and lie far from one another in the table.
        const STRIDE: usize = 7_919;
        let shape = (format!("T{t}_V{vocab}_N{n}"), weight_type.name());
        self.begin("embed", (&shape.0, shape.1))?;
        let table = self.matrices(1, weight_type, vocab, n)?.remove(0);
        let step = Step { sequences: 1, rows: t, context: 0 };
        let kv = self.device.kv(step.kv_shape(attention_shape(1, 1, 128), KvType::F16))?;
        let ids: Vec<u32> = (0..t).map(|i| (i * STRIDE % vocab) as u32).collect();
        let sequences = step.batch(step.pages(D::PAGE_STRIDE), 0..1, 0, t).sequences;
        let plan =
            self.device.prepare_step(&StepBatch::known(&ids, sequences), &kv, &[unrotated()])?;
        let mut out = self.output(t, n)?;
        let Self { mut device, .. } = self;
        // One multiplication per element, of a quantized value with its scale.
        let work = [t * (weight_type.row_bytes(n) + D::ELEMENT_BYTES * n), t * n];
        Ok(Case::new("embed", shape, work, 1, move |call, _| {
            let (table, ids, step) = (&table, &ids[..], &plan);
            call.operation(&mut device, Operation::Embed { table, ids, step, out: &mut out })
        }))
    }

    /// Creates the case of sampling a token on the device for each of `sequences` rows of logits of
    /// `vocab` tokens. With `is_greedy` all take the likeliest token; else they have different
    /// parameters.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn sample(
        mut self,
        sequences: usize,
        vocab: usize,
        is_greedy: bool,
    ) -> Result<Case, DeviceError> {
        /// Columns of the activations from which logits are computed.
        const HIDDEN: usize = 256;
        let dtype = if is_greedy { "greedy" } else { "mixed" };
        let shape = (format!("T{sequences}_V{vocab}"), dtype);
        self.begin("sample", (&shape.0, shape.1))?;
        let greedy =
            SampleParams { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: 0, index: 0 };
        let params: Vec<SampleParams> = (0..sequences)
            .map(|i| match i % 5 {
                _ if is_greedy => greedy,
                0 => SampleParams { temperature: 1.0, ..greedy },
                1 => SampleParams { temperature: 0.7, top_k: 40, ..greedy },
                2 => SampleParams { temperature: 3.0, top_p: 0.9, ..greedy },
                3 => SampleParams { temperature: 2.0, top_k: 1000, top_p: 0.8, ..greedy },
                _ => SampleParams { temperature: 5.0, min_p: 0.05, ..greedy },
            })
            .zip(1..)
            .map(|(params, seed)| SampleParams { seed, index: seed % 7, ..params })
            .collect();
        let step = Step { sequences, rows: 1, context: 0 };
        let mut batch = step.batch(step.pages(D::PAGE_STRIDE), 0..sequences, 0, 1);
        for (sequence, params) in batch.sequences.iter_mut().zip(&params) {
            sequence.logits = LogitRows::Sample(*params);
        }
        let kv = self.device.kv(step.kv_shape(attention_shape(1, 1, 128), KvType::Bf16))?;
        let plan = self.device.prepare_step(&batch, &kv, &[unrotated()])?;
        let rows = self.device.rows(&plan).head;
        let head = self.matrices(1, WeightType::Bf16, vocab, HIDDEN)?.remove(0);
        let (x, mut logits) = (self.input(rows, HIDDEN)?, self.output(rows, vocab)?);
        self.device.scores(&x, &head, &mut logits)?;
        let Self { mut device, .. } = self;
        let work = [4 * sequences * vocab, sequences * vocab];
        Ok(Case::new("sample", shape, work, 1, move |call, _| {
            let (logits, step, params) = (&mut logits, &plan, &params[..]);
            call.operation(&mut device, Operation::Sample { logits, step, params })
        }))
    }
}

/// Creates the case of sampling the next token on the host from `vocab` logits with the parameters
/// `params`, which the result shows as `name`.
pub fn sample(name: &str, params: Sampling, vocab: usize) -> Case {
    let logits: Vec<f32> = numbers(vocab).iter().map(|x| 10.0 * x).collect();
    let (mut sampler, tokens) = (Sampler::default(), [1, 2, 3]);
    Case::new("sample", (format!("V{vocab}"), name), [4 * vocab, vocab], 1, move |_, _| {
        let (logits, tokens) = (&logits[..], &tokens[..]);
        let row = Row { logits, tokens, prompt_tokens: 2, banned: &[], allowed: None };
        sampler.sample(row, &params).expect("finite logits");
        Ok(())
    })
}

fn unrotated() -> Rotation {
    Rotation { inverse_frequencies: Vec::new(), factor: 1.0 }
}

#[cfg(test)]
mod tests {
    use engine_cpu::{Cpu, Isa};

    use super::experts::used_experts;
    use super::*;
    use crate::bench::cases::{MoeOp, MoeShape};

    fn setup() -> Setup<Cpu> {
        Setup::new(Cpu::new(Isa::best(), 1), 0)
    }

    #[test]
    fn work_is_what_the_shapes_say() {
        let shape = attention_shape(32, 8, 128);
        let attention = |window, rows, context| {
            let step = Step { sequences: 2, rows, context };
            let case = setup().attention(("x", shape, window), KvType::F16, step).unwrap();
            (case.bytes, case.flops)
        };
        // Keys and values of 1,000 positions, and queries and results of one row.
        let bytes = 2 * (2 * 1000 * 8 * 128 * 2 + 8 * 32 * 128);
        let flops = 2 * 4 * 1000 * 32 * 128;
        assert_eq!(attention(None, 1, 999), (bytes, flops));
        let bytes = 2 * (2 * 100 * 8 * 128 * 2 + 8 * 32 * 128);
        assert_eq!(attention(Some(100), 1, 999), (bytes, flops / 10));
        // The four rows see 1 + 2 + 3 + 4 positions.
        assert_eq!(attention(None, 4, 0).1, 2 * 4 * 10 * 32 * 128);
        assert_eq!(used_experts(&[1.0, 3.0, 2.0, 0.0, 9.0, 1.0], 3, 2), 2);
        let moe = MoeShape { experts: 8, top_k: 2, hidden: 128, intermediate: 32 };
        let op = MoeOp::ExpertMatmul(WeightType::Mxfp4);
        assert_eq!(setup().moe(op, moe, 3).unwrap().flops, 2 * 6 * 64 * 128);
    }

    #[test]
    fn successive_calls_use_other_layers() {
        let device = Cpu::new(Isa::best(), 1);
        let matmul = Matmul { t: 1, k: 32, n: 32, weight_type: WeightType::F32 };
        let memory = 3 * Cpu::weight_bytes(WeightType::F32, 32, 32);
        let mut case = Setup::new(device, memory).matmul("matmul", matmul, true).unwrap();
        assert_eq!(case.layers, 3);
        (0..4).try_for_each(|_| (case.run)()).unwrap();
    }
}
