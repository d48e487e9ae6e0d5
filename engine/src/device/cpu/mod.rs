//! The CPU device: f32 kernels chosen at run time on a small pool of pinned threads.

mod attention;
mod decode;
mod elementwise;
mod isa;
mod kv;
mod lanes;
mod layout;
mod matmul;
mod memory;
mod pack;
mod pool;
#[cfg(test)]
mod reference;
mod rope;
mod shared;
#[cfg(test)]
mod tests;
mod tile;

use std::fmt;

pub use isa::Isa;
pub use kv::{Kv, Plan};
pub use memory::{free_bytes, processor_name};
pub use pack::Matrix;
pub use pool::Pool;

use super::{AttentionShape, Device, HostMatrix, KvShape};
use crate::model::{StepBatch, StepError};
use attention::Attention;
use elementwise::Norm;
use rope::Rope;

/// Activations `[rows, cols]`, row major.
#[derive(Debug)]
pub struct Buffer {
    cols: usize,
    data: Vec<f32>,
}

/// The processor.
pub struct Cpu {
    isa: Isa,
    pool: Pool,
    matmul: matmul::Scratch,
    attention: attention::Scratch,
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (isa, threads) = (self.isa.name(), self.pool.threads());
        f.debug_struct("Cpu").field("isa", &isa).field("threads", &threads).finish()
    }
}

impl Cpu {
    /// A device of `threads` threads, the calling one included.
    pub fn new(isa: Isa, threads: usize) -> Self {
        let threads = threads.max(1);
        Self {
            isa,
            pool: Pool::new(threads),
            matmul: matmul::Scratch::new(threads),
            attention: attention::Scratch::new(threads),
        }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Device for Cpu {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Kv = Kv;
    type Plan = Plan;

    fn buffer(&mut self, cols: usize) -> Result<Buffer, StepError> {
        Ok(Buffer { cols, data: Vec::new() })
    }

    fn resize(&mut self, x: &mut Buffer, rows: usize) -> Result<(), StepError> {
        x.data.resize(rows * x.cols, 0.0);
        Ok(())
    }

    fn write(&mut self, x: &mut Buffer, values: &[f32]) -> Result<(), StepError> {
        assert_eq!(values.len() % x.cols, 0, "whole rows");
        x.data.clear();
        x.data.extend_from_slice(values);
        Ok(())
    }

    fn matrix(&mut self, parts: &[HostMatrix<'_>]) -> Result<Matrix, StepError> {
        Ok(Matrix::pack(parts, &mut self.pool))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>, StepError> {
        Ok(values.to_vec())
    }

    fn kv(&mut self, shape: KvShape) -> Result<Kv, StepError> {
        Kv::new(shape)
    }

    fn plan(
        &mut self,
        batch: &StepBatch,
        kv: &Kv,
        inverse_frequencies: &[f32],
    ) -> Result<Plan, StepError> {
        Plan::new(batch, &kv.shape, inverse_frequencies)
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], out: &mut Buffer) -> Result<(), StepError> {
        for (id, out) in ids.iter().zip(out.data.chunks_exact_mut(table.k)) {
            table.row(*id as usize, out);
        }
        Ok(())
    }

    fn gather(&mut self, x: &Buffer, rows: &[usize], out: &mut Buffer) -> Result<(), StepError> {
        for (row, out) in rows.iter().zip(out.data.chunks_exact_mut(x.cols)) {
            out.copy_from_slice(&x.data[row * x.cols..(row + 1) * x.cols]);
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &Buffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<(), StepError> {
        let norm = Norm { weight, epsilon };
        elementwise::rms_norm(self.isa, &mut self.pool, &x.data, norm, &mut out.data);
        Ok(())
    }

    fn add_rms_norm(
        &mut self,
        x: &mut Buffer,
        delta: &Buffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Buffer,
    ) -> Result<(), StepError> {
        let norm = Norm { weight, epsilon };
        let (x, delta, out) = (&mut x.data, &delta.data, &mut out.data);
        elementwise::add_rms_norm(self.isa, &mut self.pool, x, delta, norm, out);
        Ok(())
    }

    fn matmul(&mut self, x: &Buffer, w: &Matrix, out: &mut Buffer) -> Result<(), StepError> {
        let scratch = &mut self.matmul;
        matmul::matmul(self.isa, &mut self.pool, scratch, &x.data, w, &mut out.data);
        Ok(())
    }

    fn rope_and_cache(
        &mut self,
        qkv: &mut Buffer,
        shape: &AttentionShape,
        layer: usize,
        plan: &Plan,
        kv: &mut Kv,
    ) -> Result<(), StepError> {
        Rope { isa: self.isa, shape, layer, plan }.run(&mut self.pool, &mut qkv.data, kv);
        Ok(())
    }

    fn attention(
        &mut self,
        qkv: &Buffer,
        shape: &AttentionShape,
        layer: usize,
        plan: &Plan,
        kv: &Kv,
        out: &mut Buffer,
    ) -> Result<(), StepError> {
        let call = Attention { isa: self.isa, qkv: &qkv.data, shape, layer, plan, kv };
        call.run(&mut self.pool, &self.attention, &mut out.data);
        Ok(())
    }

    fn silu_mul(&mut self, gate_up: &Buffer, out: &mut Buffer) -> Result<(), StepError> {
        let cols = out.cols;
        elementwise::silu_mul(self.isa, &mut self.pool, &gate_up.data, cols, &mut out.data);
        Ok(())
    }

    fn read<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a [f32], StepError> {
        Ok(&x.data)
    }
}
