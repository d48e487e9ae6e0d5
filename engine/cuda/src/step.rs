//! Metadata of a step, which its kernels read besides activations: token ids, positions, page
//! tables (block tables), sampling parameters. It is one contiguous piece, copied at once through
//! pinned memory, with the same layout for all steps of a CUDA graph bucket, so that captured
//! addresses stay valid. The cos/sin table is computed from it.

use std::sync::Arc;

use super::device::RUN_AHEAD;
use super::driver::{Address, Arguments, Pinned};
use super::launch::attention::AttentionPlan;
use super::launch::delta_net::SequenceArguments;
use super::launch::{Launch, SamplingArguments};
use super::staging::Staging;
use super::stream::{GrowableBuffer, Stream, bucket};
use super::weights::Part;
use crate::Result;
use engine_core::sample::SampleParams;
use engine_core::{
    AttentionShape, HeadRows, Rotation, ScheduledSequence, StateSlots, StepBatch, StepLimits,
    StepRows, StepToken,
};

/// Bit in an input token id that marks a token that the step before sampled and that is still on
/// the device; the other bits are its index there.
const SAMPLED: u32 = 1 << 31;
/// Number of 32-bit words of one row's sampling parameters in a step's metadata.
const SAMPLING_WORDS: usize = size_of::<SamplingArguments>() / 4;
/// Number of 32-bit words of one sequence's recurrent-state entry in a step's metadata.
const SEQUENCE_WORDS: usize = size_of::<SequenceArguments>() / 4;

/// Attention variant of a model: heads and window that several layers share, so that one attention
/// plan serves them all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attending {
    pub shape: AttentionShape,
    pub window: Option<usize>,
    /// Number of thread blocks of the variant's attention launch.
    pub blocks: usize,
}

impl Attending {
    /// Returns true if a layer of this shape and window can use the variant's attention plan.
    pub fn is_like(&self, shape: &AttentionShape, window: Option<usize>) -> bool {
        let heads = |shape: &AttentionShape| (shape.heads, shape.kv_heads, shape.head_dim);
        heads(&self.shape) == heads(shape) && self.window == window
    }
}

/// KV page and state slot that padding rows of a CUDA graph write to, which belong to no sequence.
#[derive(Debug, Clone, Copy)]
pub struct Scratch {
    /// Index of the extra KV page that padding rows write to.
    pub page: u32,
    /// Index of the extra state slot that padding rows write to; `None` in models without recurrent
    /// state.
    pub slot: Option<u32>,
    /// Number of tokens that a KV page has space for.
    pub page_tokens: usize,
}

/// Layout of a step's metadata in 32-bit words: the first word of each part, in the order of the
/// parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Number of rows of the step, and number of its rows that need logits, both with padding rows.
    pub rows: StepRows,
    /// Number of recurrent-state entries in the step's metadata: one per sequence, padding
    /// included, or 0 in models without recurrent state.
    pub recurrent: usize,
    /// First word of the sampling parameters in a step's metadata.
    pub sampling: usize,
    /// First word of the input token ids in a step's metadata.
    pub ids: usize,
    /// First word of the rows' positions in a step's metadata.
    pub positions: usize,
    /// First word of the rows' KV slots in a step's metadata. A KV slot is page number times page
    /// size plus offset in the page.
    pub slots: usize,
    /// First word, in a step's metadata, of the indices of the rows that need logits.
    pub head_rows: usize,
    /// First word of the sequences' recurrent-state entries in a step's metadata.
    pub states: usize,
    /// First word of the attention plan of each [`Attending`] in a step's metadata.
    pub plans: Vec<usize>,
    /// First word of the page tables, which are the last part of a step's metadata.
    pub tables: usize,
    /// Total number of 32-bit words of a step's metadata.
    pub words: usize,
}

/// Step whose metadata is planned but not yet written.
#[derive(Debug)]
pub struct Draft<'a> {
    batch: &'a StepBatch,
    scratch: Scratch,
    /// Rows of the step that need logits, to be copied to the host or sampled from.
    head: HeadRows,
    /// Sequences of the step's batch, followed by the padding rows of the CUDA graph bucket.
    sequences: Vec<ScheduledSequence>,
    /// Attention plan of each attention variant of the model for this step.
    plans: Vec<AttentionPlan>,
    /// Padded number of rows (CUDA graph bucket) of a step in which every sequence has one row;
    /// `None` for a step with a longer prefill chunk or without rows.
    pub bucket: Option<usize>,
    pub layout: Layout,
}

impl<'a> Draft<'a> {
    /// Plans the metadata of `batch`: padding, attention plans and layout.
    pub fn new(batch: &'a StepBatch, attending: &[Attending], scratch: Scratch) -> Self {
        let head = batch.head_rows();
        // Only decoding steps are captured as CUDA graphs: prefill chunks have too many shapes.
        let decodes = !batch.tokens.is_empty() && batch.sequences.iter().all(|one| one.rows == 1);
        let bucket = decodes.then(|| bucket(batch.tokens.len()));
        let sequences = padded(batch, &scratch, bucket);
        let rows = StepRows {
            all: bucket.unwrap_or(batch.tokens.len()),
            head: bucket.unwrap_or(head.rows.len()),
        };
        let page_tokens = scratch.page_tokens;
        let plan = |of: &Attending| {
            AttentionPlan::new(&sequences, page_tokens, &of.shape, of.window, of.blocks)
        };
        let plans: Vec<AttentionPlan> = attending.iter().map(plan).collect();
        let plan_words = attending.iter().zip(&plans).map(|(of, plan)| match bucket {
            // A fixed size keeps everything behind the plan at the captured addresses.
            Some(rows) => AttentionPlan::words_max(rows, &of.shape, of.blocks),
            None => plan.words(),
        });
        let recurrent = if scratch.slot.is_some() { sequences.len() } else { 0 };
        let tables = sequences.iter().map(|one| one.used_pages(page_tokens).len()).sum();
        let layout = Layout::new(rows, recurrent, plan_words, tables);
        Self { batch, scratch, head, sequences, plans, bucket, layout }
    }

    /// Returns the number of rows whose logits are copied to the host, and the number of rows that
    /// sample on the device.
    pub fn head(&self) -> (usize, usize) {
        (self.head.read(), self.head.sampling.len())
    }

    /// Writes the step's metadata to `out`. `sampled` is the index, among the token ids that the
    /// previous step left on the device, of the first one that it sampled.
    pub fn write(&self, sampled: u32, out: &mut [u32]) {
        let at = &self.layout;
        self.write_sampling(&mut out[at.sampling..at.ids]);
        let ids = &mut out[at.ids..at.positions];
        // Padding rows read token 0; their results are ignored.
        ids.fill(0);
        for (token, out) in self.batch.tokens.iter().zip(ids) {
            *out = match token {
                StepToken::Known(id) => *id,
                StepToken::Sampled(index) => SAMPLED | (sampled + index),
            };
        }
        let page_tokens = self.scratch.page_tokens;
        for sequence in &self.sequences {
            for (row, position) in (sequence.row..).zip(sequence.position..sequence.end()) {
                let page = sequence.pages[position / page_tokens] as usize;
                out[at.positions + row] = position as u32;
                out[at.slots + row] = (page * page_tokens + position % page_tokens) as u32;
            }
        }
        let head_rows = &mut out[at.head_rows..at.states];
        head_rows.fill(0);
        self.head.rows.iter().zip(head_rows).for_each(|(row, out)| *out = *row as u32);
        if let Some(scratch) = self.scratch.slot {
            self.write_states(scratch, &mut out[at.states..]);
        }
        for (plan, start) in self.plans.iter().zip(&at.plans) {
            plan.write(at.tables - start, &mut out[*start..]);
        }
        let mut table = at.tables;
        for pages in self.sequences.iter().map(|one| one.used_pages(page_tokens)) {
            out[table..table + pages.len()].copy_from_slice(pages);
            table += pages.len();
        }
    }

    /// Writes the sampling parameters of the step's rows to `out`. Rows without any keep zeros,
    /// which means greedy sampling; their result is ignored.
    fn write_sampling(&self, out: &mut [u32]) {
        out.fill(0);
        let rows = out.chunks_exact_mut(SAMPLING_WORDS).skip(self.head.read());
        for (params, out) in self.head.sampling.iter().zip(rows) {
            let SampleParams { temperature, top_p, min_p, top_k, seed, index } = *params;
            let arguments = SamplingArguments { temperature, top_p, min_p, top_k, seed, index };
            out.copy_from_slice(bytemuck::cast_slice(&[arguments]));
        }
    }

    /// Writes the sequences' recurrent-state entries to `out`. Sequences without a state slot, such
    /// as padding rows, use the slot `scratch`.
    fn write_states(&self, scratch: u32, out: &mut [u32]) {
        let none = || SequenceArguments::NOWHERE;
        for (sequence, out) in self.sequences.iter().zip(out.chunks_exact_mut(SEQUENCE_WORDS)) {
            let StateSlots { slot, load, save } =
                sequence.state.unwrap_or(StateSlots { slot: scratch, load: None, save: None });
            let arguments = SequenceArguments {
                row: sequence.row as u32,
                rows: sequence.rows as u32,
                position: sequence.position as u32,
                slot,
                load: load.unwrap_or_else(none),
                save: save.unwrap_or_else(none),
            };
            out.copy_from_slice(bytemuck::cast_slice(&[arguments]));
        }
    }
}

/// Returns the sequences of the batch, then padding rows up to the CUDA graph bucket. Padding rows
/// attend to one position of the extra page, so that they cost little.
fn padded(batch: &StepBatch, scratch: &Scratch, bucket: Option<usize>) -> Vec<ScheduledSequence> {
    let rows = batch.tokens.len();
    let pages: Arc<[u32]> = [scratch.page].into();
    let padding = (rows..bucket.unwrap_or(rows)).map(|row| ScheduledSequence {
        row,
        rows: 1,
        pages: Arc::clone(&pages),
        ..ScheduledSequence::default()
    });
    batch.sequences.iter().cloned().chain(padding).collect()
}

impl Layout {
    /// Returns the largest number of words of the metadata of a step within `limits`: every row can
    /// need logits, be a sequence with recurrent state and, per KV head, an attention item of its
    /// own; and since sequences share the pages of a prefix, every one of them can be of the
    /// largest length, however few pages the KV cache has.
    pub fn words_max(limits: &StepLimits, attending: &[Attending]) -> usize {
        // Padding rows of a CUDA graph have sequences of their own.
        let sequences = bucket(limits.sequences);
        let all = limits.tokens.max(sequences);
        let plans = attending.iter().map(|of| AttentionPlan::words_max(all, &of.shape, of.blocks));
        let tables = sequences * limits.sequence_pages;
        Self::new(StepRows { all, head: all }, sequences, plans, tables).words
    }

    fn new(
        rows: StepRows,
        recurrent: usize,
        plan_words: impl Iterator<Item = usize>,
        table_words: usize,
    ) -> Self {
        let mut end = 0;
        let mut take = |words: usize| {
            end += words;
            end - words
        };
        // Sampling parameters come first, since they contain eight-byte words that must be aligned.
        let sampling = take(rows.head * SAMPLING_WORDS);
        let [ids, positions, slots] = [rows.all; 3].map(&mut take);
        let head_rows = take(rows.head);
        let states = take(recurrent * SEQUENCE_WORDS);
        let plans = plan_words.map(&mut take).collect();
        let tables = take(table_words);
        Self {
            rows,
            recurrent,
            sampling,
            ids,
            positions,
            slots,
            head_rows,
            states,
            plans,
            tables,
            words: end,
        }
    }
}

/// Step whose metadata is on the device.
#[derive(Debug)]
pub struct StepMetadata {
    pub layout: Layout,
    /// Padded number of rows (CUDA graph bucket) of the step; `None` for a step in which a sequence
    /// has several rows, or without rows.
    pub bucket: Option<usize>,
    /// Device address of the step's metadata.
    pub metadata: Address,
    /// Device address of the step's cos/sin table `[T, P]` of the rotary embedding, for T rows and
    /// P rotated pairs of elements.
    pub cos_sin: Address,
    pub pairs: usize,
    /// Number of rows whose logits are copied to the host: the first of the step's rows that need
    /// logits.
    pub reads: usize,
    /// Number of rows that sample on the device, behind those whose logits are copied to the host.
    pub samples: usize,
}

impl StepMetadata {
    /// Returns the device address of a 32-bit word of the step's metadata.
    pub fn at(&self, word: usize) -> Address {
        self.metadata.plus(4 * word)
    }
}

/// Smallest size in bytes of the buffers for a step's metadata.
const BYTES_MIN: usize = 1 << 20;

/// Device and pinned buffers for the metadata of steps, and for their cos/sin tables.
#[derive(Debug, Default)]
pub struct StepUploads {
    metadata: GrowableBuffer,
    /// Size in bytes up to which the metadata of a step does not move; 0 before it is reserved.
    reserved_bytes: usize,
    cos_sin: GrowableBuffer,
    /// Rotary embedding used last, with its inverse frequencies on the device; `None` before the
    /// first use of any.
    frequencies: Option<(Rotation, Part)>,
    /// Pinned buffers for steps' metadata, used in rotation: the copies of steps in flight may
    /// still read the others.
    pinned: Vec<Pinned>,
    /// Index of the pinned buffer that was used last for a step's metadata.
    next: usize,
}

impl StepUploads {
    /// Allocates device memory for steps' metadata of up to `bytes` bytes, so that captured CUDA
    /// graphs, which name its address, stay valid. Pinned buffers are in no graph, and grow.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn reserve(&mut self, stream: &mut Stream, bytes: usize) -> Result<()> {
        self.reserved_bytes = bytes;
        stream.grow(&mut self.metadata, bytes).map(|_| ())
    }

    /// Writes a step's metadata to pinned memory, starts its copy to the device and returns its
    /// device address. `first_sampled` is the index, among the token ids that the previous step
    /// left on the device, of the first one that it sampled.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn send(
        &mut self,
        stream: &mut Stream,
        draft: &Draft<'_>,
        first_sampled: u32,
    ) -> Result<Address> {
        let bytes = 4 * draft.layout.words;
        // Page tables grow with every page; without rounding up, so would the buffers.
        let capacity = bytes.next_power_of_two().max(BYTES_MIN);
        // One buffer more than steps in flight, so that the one written now is not being copied.
        if self.pinned.len() <= RUN_AHEAD {
            self.pinned.push(Pinned::new(&stream.driver, capacity)?);
            self.next = self.pinned.len() - 1;
        } else {
            self.next = (self.next + 1) % self.pinned.len();
        }
        let pinned = &mut self.pinned[self.next];
        if pinned.size() < bytes {
            *pinned = Pinned::new(&stream.driver, capacity)?;
        }
        let words = bytemuck::cast_slice_mut(&mut pinned.bytes_mut()[..bytes]);
        draft.write(first_sampled, words);
        let is_reserved = bytes <= self.reserved_bytes;
        let capacity = if is_reserved { self.reserved_bytes } else { capacity };
        let metadata = stream.grow(&mut self.metadata, capacity)?;
        pinned.upload(metadata, bytes)?;
        Ok(metadata)
    }

    /// Launches the computation of the cos/sin table for the positions of a step, and returns the
    /// table's device address.
    ///
    /// # Errors
    /// Memory cannot be allocated, or the device reports an error.
    pub fn cos_sin(
        &mut self,
        stream: &mut Stream,
        staging: &mut Staging,
        rotation: &Rotation,
        step: &StepMetadata,
    ) -> Result<Address> {
        let (rows, pairs) = (step.layout.rows.all, step.pairs);
        let cos_sin = stream.grow(&mut self.cos_sin, (8 * rows * pairs).max(1))?;
        if !matches!(&self.frequencies, Some((known, _)) if known == rotation) {
            let part = Part::new(&stream.driver, 4 * pairs)?;
            staging.send_f32(part.address(), &rotation.inverse_frequencies)?;
            self.frequencies = Some((rotation.clone(), part));
        }
        let (_, frequencies) = self.frequencies.as_ref().expect("they were just sent");
        if pairs > 0 {
            let positions = step.at(step.layout.positions);
            let arguments = Arguments::of([cos_sin, positions, frequencies.address()]);
            let arguments = arguments.sizes([rows, pairs]).value(rotation.factor);
            stream.launch("cos_sin_table", Launch::cos_sin_table(rows, pairs), &arguments)?;
        }
        Ok(cos_sin)
    }
}
