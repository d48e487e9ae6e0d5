//! CPU device for tests that rounds every number to bf16 that a GPU rounds, to measure the effect
//! of rounding alone on a model's logits. It must know no kernel.

use std::collections::BTreeMap;
use std::ops::Range;

use half::bf16;

use super::PAGE_TOKENS;
use engine_core::{
    AttentionLayer, DeltaNetLayer, Device, DeviceError, Gate, HostMatrix, KvShape, Rank, Rotation,
    StateShape, StepBatch, StepOutput, StepRows,
};
use engine_cpu::{Buffer, Cpu, Kv, Matrix, Routes, State, StepMetadata};

/// Test device that rounds the outputs of operations, keys and values, and attention probabilities
/// to bf16. Attention scores and values inside of an operation stay in f32.
#[derive(Debug)]
pub struct Rounding {
    cpu: Cpu,
    /// Rounded key and value, `[2, KV heads, D]`, by layer index and index of the position in the
    /// KV pages.
    seen: BTreeMap<(usize, usize), Vec<f32>>,
    /// Rotated queries, and keys and values, of the rows for which attention is computed next.
    qkv: Vec<f32>,
}

/// Step prepared for the rounding test device, with position and page table of each row.
#[derive(Debug)]
pub struct Rows {
    plan: StepMetadata,
    rows: Vec<(usize, Vec<u32>)>,
}

type Done = Result<(), DeviceError>;

fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Returns the index of a sequence's position in the KV pages.
fn slot(pages: &[u32], position: usize) -> usize {
    pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

impl Rounding {
    pub fn new(cpu: Cpu) -> Self {
        Self { cpu, seen: BTreeMap::new(), qkv: Vec::new() }
    }

    fn round(&mut self, x: &mut Buffer) -> Done {
        let values: Vec<f32> = self.cpu.read(x)?.iter().map(|x| rounded(*x)).collect();
        self.cpu.write(x, &values)
    }

    /// Returns the attention output of query head `head` for a row at `position`.
    fn attend(
        &self,
        layer: &AttentionLayer<Vec<f32>>,
        query: &[f32],
        head: usize,
        (position, pages): &(usize, Vec<u32>),
    ) -> Vec<f32> {
        let (shape, d) = (&layer.shape, layer.shape.head_dim);
        let own = head / shape.group() * d;
        let seen = (layer.masked(*position)..=*position)
            .map(|position| &self.seen[&(layer.kv_layer, slot(pages, position))]);
        let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
        let scores: Vec<f32> =
            seen.clone().map(|both| dot(&both[own..own + d]) * shape.scale).collect();
        let sink = layer.sinks.as_ref().map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
        let largest = scores.iter().copied().fold(sink, f32::max);
        let mut total = (sink - largest).exp();
        let mut sums = vec![0.0; d];
        for (score, both) in scores.iter().zip(seen) {
            let weight = (score - largest).exp();
            total += weight;
            let values = &both[shape.kv_heads * d + own..][..d];
            sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += rounded(weight) * v);
        }
        sums.iter().map(|sum| rounded(sum / total)).collect()
    }
}

impl Device for Rounding {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Kv = Kv;
    type State = State;
    type StepMetadata = Rows;
    type Routes = Routes;

    fn buffer(&mut self, cols: usize) -> Result<Buffer, DeviceError> {
        self.cpu.buffer(cols)
    }

    fn resize(&mut self, x: &mut Buffer, rows: usize) -> Done {
        self.cpu.resize(x, rows)
    }

    fn reshape(&mut self, x: &mut Buffer, rows: usize, cols: usize) -> Done {
        self.cpu.reshape(x, rows, cols)
    }

    fn write(&mut self, x: &mut Buffer, values: &[f32]) -> Done {
        self.cpu.write(x, values)?;
        self.round(x)
    }

    fn compute_dtype(&self) -> &'static str {
        self.cpu.compute_dtype()
    }

    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Matrix, DeviceError> {
        self.cpu.matrix(parts)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, DeviceError> {
        self.cpu.vector(values)
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, DeviceError> {
        self.cpu.kv(shape)
    }

    fn state(&mut self, shape: StateShape) -> Result<State, DeviceError> {
        self.cpu.state(shape)
    }

    fn prepare_step(
        &mut self,
        batch: &StepBatch,
        kv: &Kv,
        rotations: &[Rotation],
    ) -> Result<Rows, DeviceError> {
        let rows = batch.sequences.iter().flat_map(|sequence| {
            (0..sequence.rows).map(|row| (sequence.position + row, sequence.pages.to_vec()))
        });
        let rows = rows.collect();
        Ok(Rows { plan: self.cpu.prepare_step(batch, kv, rotations)?, rows })
    }

    fn rows(&self, plan: &Rows) -> StepRows {
        self.cpu.rows(&plan.plan)
    }

    fn rank(&self) -> Rank {
        Rank::ONLY
    }

    fn all_reduce_sum(&mut self, _x: &mut Buffer) -> Done {
        Ok(())
    }

    fn all_gather(&mut self, x: &Buffer, out: &mut Buffer) -> Done {
        self.cpu.all_gather(x, out)
    }

    fn embed(&mut self, table: &Matrix, first: usize, plan: &Rows, out: &mut Buffer) -> Done {
        self.cpu.embed(table, first, &plan.plan, out)?;
        self.round(out)
    }

    fn gather(&mut self, x: &Buffer, plan: &Rows, out: &mut Buffer) -> Done {
        self.cpu.gather(x, &plan.plan, out)
    }

    fn sample(&mut self, logits: &mut Buffer, plan: &Rows) -> Done {
        self.cpu.sample(logits, &plan.plan)
    }

    fn submit(&mut self, logits: &mut Buffer, plan: Rows) -> Done {
        self.cpu.submit(logits, plan.plan)
    }

    fn complete<'a>(&'a mut self, logits: &'a mut Buffer) -> Result<StepOutput<'a>, DeviceError> {
        self.cpu.complete(logits)
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vec<f32>, epsilon: f32, out: &mut Buffer) -> Done {
        self.cpu.rms_norm(x, weight, epsilon, out)?;
        self.round(out)
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Buffer,
        delta: &Buffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Done {
        self.cpu.add_rms_norm(x, delta, weight, epsilon, out)?;
        self.round(x)?;
        // The norm is that of the rounded sum.
        self.rms_norm(x, weight, epsilon, out)
    }

    fn matmul(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Done {
        self.cpu.matmul(x, w, out)?;
        self.round(out)
    }

    fn scores(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Done {
        self.cpu.matmul(x, w, out)
    }

    fn add_bias(&mut self, x: &mut Buffer, bias: &Vec<f32>) -> Done {
        let was_rounded = self.cpu.read(x)?.iter().all(|x| rounded(*x) == *x);
        self.cpu.add_bias(x, bias)?;
        if was_rounded { self.round(x) } else { Ok(()) }
    }

    fn rope_and_cache(
        &mut self,
        qkv: &mut Buffer,
        layer: &AttentionLayer<Vec<f32>>,
        plan: &Rows,
        kv: &mut Kv,
    ) -> Done {
        self.cpu.rope_and_cache(qkv, layer, &plan.plan, kv)?;
        self.round(qkv)?;
        self.qkv = self.cpu.read(qkv)?.to_vec();
        let shape = &layer.shape;
        for (row, (position, pages)) in self.qkv.chunks_exact(shape.qkv_cols()).zip(&plan.rows) {
            let key = (layer.kv_layer, slot(pages, *position));
            self.seen.insert(key, row[shape.heads * shape.head_dim..].to_vec());
        }
        Ok(())
    }

    fn attention(
        &mut self,
        _qkv: &Buffer,
        layer: &AttentionLayer<Vec<f32>>,
        plan: &Rows,
        _kv: &Kv,
        out: &mut Buffer,
    ) -> Done {
        let shape = &layer.shape;
        let mut all = Vec::new();
        for (qkv, row) in self.qkv.chunks_exact(shape.qkv_cols()).zip(&plan.rows) {
            let queries = qkv.chunks_exact(shape.head_dim).take(shape.heads);
            for (head, query) in queries.enumerate() {
                all.extend(self.attend(layer, query, head, row));
            }
        }
        self.cpu.write(out, &all)
    }

    fn delta_net(
        &mut self,
        projected: &Buffer,
        layer: &DeltaNetLayer<Vec<f32>>,
        plan: &Rows,
        state: &mut State,
        out: &mut Buffer,
    ) -> Done {
        self.cpu.delta_net(projected, layer, &plan.plan, state, out)?;
        self.round(out)
    }

    fn sigmoid_mul(&mut self, x: &mut Buffer, gate: &Buffer) -> Done {
        self.cpu.sigmoid_mul(x, gate)?;
        self.round(x)
    }

    fn silu_mul(&mut self, gate_up: &Buffer, out: &mut Buffer) -> Done {
        self.cpu.silu_mul(gate_up, out)?;
        self.round(out)
    }

    fn clamped_swiglu(
        &mut self,
        gate_up: &Buffer,
        alpha: f32,
        limit: f32,
        out: &mut Buffer,
    ) -> Done {
        self.cpu.clamped_swiglu(gate_up, alpha, limit, out)?;
        self.round(out)
    }

    fn route(
        &mut self,
        logits: &Buffer,
        top_k: usize,
        gate: Gate,
        own: Range<usize>,
    ) -> Result<Routes, DeviceError> {
        self.cpu.route(logits, top_k, gate, own)
    }

    fn routed_rows(&self, routes: &Routes) -> usize {
        self.cpu.routed_rows(routes)
    }

    fn dispatch(&mut self, x: &Buffer, routes: &Routes, out: &mut Buffer) -> Done {
        self.cpu.dispatch(x, routes, out)
    }

    fn expert_matmul(
        &mut self,
        x: &Buffer,
        experts: &[Matrix],
        biases: &[Vec<f32>],
        routes: &Routes,
        out: &mut Buffer,
    ) -> Done {
        self.cpu.expert_matmul(x, experts, biases, routes, out)?;
        self.round(out)
    }

    fn combine(&mut self, x: &Buffer, routes: &Routes, out: &mut Buffer) -> Done {
        self.cpu.combine(x, routes, out)?;
        self.round(out)
    }

    fn read<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a [f32], DeviceError> {
        self.cpu.read(x)
    }
}
