//! Benchmark cases of attention and of its KV cache.

use engine_core::{
    AttentionLayer, AttentionShape, DeviceError, HeadNorms, KvShape, KvType, Rotation,
};
use engine_cuda::check::Operation;

use super::{Setup, unrotated};
use crate::bench::cases::{
    BenchDevice, Case, Pages, Shape, Step, batch_of, kv_shape, numbers, step_name, with_pages,
};
use crate::config::PAGE_TOKENS;

/// Limit on the number of positions of a sequence that one step writes to the KV cache while a
/// benchmark case is created.
const FILL_ROWS: usize = 512;
/// The same limit on a device that makes the numbers itself, for all sequences of one step.
const FILL_ROWS_OF_DEVICE: usize = 4096;
/// Beginning of the names of models whose attention has sinks.
const WITH_SINKS: &str = "gpt-oss";

impl<D: BenchDevice> Setup<D> {
    /// Creates the case of rotating queries and keys of `t` rows of one sequence, and of writing
    /// keys and values to the KV cache.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn rope(self, model: &Shape, t: usize) -> Result<Case, DeviceError> {
        let step = Step { sequences: 1, rows: t, context: 0 };
        let kv_type = if D::ELEMENT_BYTES == 2 { KvType::Bf16 } else { KvType::F16 };
        let rotation = rotation(model.head_dim, model.head_dim, 1.0);
        self.rope_of_step((model.model, model.attention(), false), rotation, kv_type, step)
    }

    /// Creates the case of [`Setup::rope`] for the rows of any step and any rotation, in a layer with
    /// norms of heads if `is_normed`. `label` names the layer in the result.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn rope_of_step(
        mut self,
        (label, shape, is_normed): (&str, AttentionShape, bool),
        rotation: Rotation,
        kv_type: KvType,
        step: Step,
    ) -> Result<Case, DeviceError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
        let t = step.sequences * step.rows;
        let names = (format!("T{t}"), format!("{label}_{}", kv_type.name()));
        self.begin("rope", (&names.0, &names.1))?;
        let mut layer = AttentionLayer::new(shape, 0);
        if is_normed {
            let [query, key] =
                [self.device.vector(&numbers(head_dim))?, self.device.vector(&numbers(head_dim))?];
            layer.head_norms = Some(HeadNorms { query, key, epsilon: 1e-6 });
        }
        if kv_type == KvType::Fp8 {
            layer.scales = Some(self.device.vector(&kv_scales(kv_heads))?);
        }
        self.device.prepare_attention(&layer)?;
        let mut kv = self.device.kv(step.kv_shape(shape, kv_type))?;
        let pages = step.pages(D::PAGE_STRIDE);
        let batch = step.batch(pages, 0..step.sequences, step.context, step.rows);
        let plan = self.device.prepare_step(&batch, &kv, std::slice::from_ref(&rotation))?;
        let mut qkv = self.input(self.device.rows(&plan).all, shape.qkv_cols())?;
        let Self { mut device, .. } = self;
        let (rotated, cached) = (t * (heads + kv_heads) * head_dim, 2 * t * kv_heads * head_dim);
        let work = [2 * D::ELEMENT_BYTES * rotated + cached * kv_type.bytes(), 3 * rotated];
        Ok(Case::new("rope", names, work, 1, move |call, _| {
            let (layer, rotation, sequences) = (&layer, &rotation, &batch.sequences[..]);
            let (qkv, step, kv) = (&mut qkv, &plan, &mut kv);
            let operation = Operation::RopeAndCache { qkv, layer, rotation, step, sequences, kv };
            call.operation(&mut device, operation)
        }))
    }

    /// Creates the case of attention over KV pages, in layers that have the shape `shape` and, if
    /// `window` is given, a sliding window of that size. `label` names the layers in the result.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn attention(
        self,
        layer: (&str, AttentionShape, Option<usize>),
        kv_type: KvType,
        step: Step,
    ) -> Result<Case, DeviceError> {
        self.attention_of(layer, kv_type, &[step])
    }

    /// Creates the case of [`Setup::attention`] in a step of several groups of sequences, such as
    /// prompts and decoding.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn attention_of(
        mut self,
        (label, shape, window): (&str, AttentionShape, Option<usize>),
        kv_type: KvType,
        step: &[Step],
    ) -> Result<Case, DeviceError> {
        let names = (step_name(step), format!("{label}_{}", kv_type.name()));
        self.begin("attention", (&names.0, &names.1))?;
        let one = kv_shape(step, shape, kv_type);
        let layers = self.layers(one.pages * PAGE_TOKENS * one.token_bytes());
        let mut all: Vec<AttentionLayer<D::Vector>> = (0..layers)
            .map(|kv_layer| AttentionLayer { window, ..AttentionLayer::new(shape, kv_layer) })
            .collect();
        for layer in &mut all {
            if label.starts_with(WITH_SINKS) {
                layer.sinks = Some(self.device.vector(&numbers(shape.heads))?);
            }
            if kv_type == KvType::Fp8 {
                layer.scales = Some(self.device.vector(&kv_scales(shape.kv_heads))?);
            }
        }
        all.iter().try_for_each(|layer| self.device.prepare_attention(layer))?;
        let mut kv = self.device.kv(KvShape { layers, ..one })?;
        let groups = with_pages(step, D::PAGE_STRIDE);
        for (group, pages) in &groups {
            self.fill_kv(&all, &mut kv, *group, *pages)?;
        }
        let batch = batch_of(&groups, |group| group.context);
        let plan = self.device.prepare_step(&batch, &kv, &[unrotated()])?;
        let t = self.device.rows(&plan).all;
        let qkv = self.input(t, shape.qkv_cols())?;
        let mut out = self.output(t, shape.heads * shape.head_dim)?;
        let Self { mut device, .. } = self;
        let mut work = [0, 0];
        for group in step {
            let own = attention_work::<D>(shape, one.token_bytes(), window, *group);
            work.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        Ok(Case::new("attention", names, work, layers, move |call, layer| {
            let (layer, sequences) = (&all[layer], &batch.sequences[..]);
            let (qkv, step, kv, out) = (&qkv, &plan, &kv, &mut out);
            let operation = Operation::Attention { qkv, layer, step, sequences, kv, out };
            call.operation(&mut device, operation)
        }))
    }

    /// Writes keys and values of all `layers` to the KV cache at every position of a group of the
    /// step's sequences.
    fn fill_kv(
        &mut self,
        layers: &[AttentionLayer<D::Vector>],
        kv: &mut D::Kv,
        step: Step,
        pages: Pages,
    ) -> Result<(), DeviceError> {
        let end = step.context + step.rows;
        let mut done = self.output(1, 8)?;
        let rows_max = if D::IS_CHECKED { FILL_ROWS_OF_DEVICE } else { FILL_ROWS };
        let together = if D::IS_CHECKED { (rows_max / end).max(1) } else { 1 };
        for sequence in (0..step.sequences).step_by(together) {
            let sequences = sequence..step.sequences.min(sequence + together);
            for position in (0..end).step_by(rows_max) {
                let rows = rows_max.min(end - position);
                let batch = step.batch(pages, sequences.clone(), position, rows);
                let plan = self.device.prepare_step(&batch, kv, &[unrotated()])?;
                let mut qkv =
                    self.input(self.device.rows(&plan).all, layers[0].shape.qkv_cols())?;
                for layer in layers {
                    self.device.rope_and_cache(&mut qkv, layer, &plan, kv)?;
                }
                // Waits, since a GPU's plan must not be replaced while it is used.
                self.device.read(&mut done)?;
            }
        }
        Ok(())
    }
}

/// Returns the bytes and the floating-point operations of attention of one group of sequences, whose
/// keys and values take `token_bytes` per position.
fn attention_work<D: BenchDevice>(
    shape: AttentionShape,
    token_bytes: usize,
    window: Option<usize>,
    Step { sequences, rows, context }: Step,
) -> [usize; 2] {
    // With a window, rows read from the window of the first row to the last position.
    let most = window.unwrap_or(context + rows);
    let read = (context + rows).min(most + rows - 1);
    let seen: usize = (context..context + rows).map(|at| (at + 1).min(most)).sum();
    let lines = rows * shape.heads * shape.head_dim;
    [
        sequences * (read * token_bytes + 2 * D::ELEMENT_BYTES * lines),
        4 * sequences * seen * shape.heads * shape.head_dim,
    ]
}

/// Returns the rotation of the first `rotated` of the `head_dim` elements of a head, whose cosines
/// and sines have this factor.
pub fn rotation(head_dim: usize, rotated: usize, factor: f32) -> Rotation {
    assert!(rotated <= head_dim, "{rotated} of {head_dim} elements are rotated");
    let of = |pair: usize| 1e6f32.powf(-2.0 * pair as f32 / rotated as f32);
    Rotation { inverse_frequencies: (0..rotated / 2).map(of).collect(), factor }
}

/// Returns scales of keys and values, `[2, KV]`, that differ from one another.
fn kv_scales(kv_heads: usize) -> Vec<f32> {
    (0..2 * kv_heads).map(|i| 0.5 + i as f32 / 16.0).collect()
}
