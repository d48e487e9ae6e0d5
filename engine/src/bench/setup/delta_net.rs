//! Benchmark cases of the gated delta net.

use engine_core::{
    DeltaNetLayer, DeltaNetShape, DeviceError, KvType, StateShape, StateSlots, StepBatch,
};
use engine_cuda::check::Operation;

use super::{Setup, unrotated};
use crate::bench::cases::{
    BenchDevice, Case, Step, attention_shape, batch_of, kv_shape, numbers, rows_of, with_pages,
};

/// Number of state slots of a sequence: its own, and one for each of the snapshots that it loads and
/// saves.
const SLOTS_EACH: usize = 3;

impl<D: BenchDevice> Setup<D> {
    /// Creates the case of the gated delta net over `rows` rows of each sequence.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn delta_net(
        self,
        net: DeltaNetShape,
        sequences: usize,
        rows: usize,
    ) -> Result<Case, DeviceError> {
        self.delta_net_of(net, &[[sequences, rows]], false)
    }

    /// Creates the case of the gated delta net in a step of which every sequence loads the snapshot
    /// that another one has saved, and saves one. `groups` are numbers of sequences, at least two in
    /// all, and of rows of each.
    ///
    /// # Errors
    /// The device reports an error, or does not have enough memory.
    pub fn delta_net_snapshots(
        self,
        net: DeltaNetShape,
        groups: &[[usize; 2]],
    ) -> Result<Case, DeviceError> {
        self.delta_net_of(net, groups, true)
    }

    fn delta_net_of(
        mut self,
        net: DeltaNetShape,
        groups: &[[usize; 2]],
        has_snapshots: bool,
    ) -> Result<Case, DeviceError> {
        let (heads, dim) = (net.value_heads, net.value_dim);
        let name = if has_snapshots { "delta_net_snapshots" } else { "delta_net" };
        let size = |[sequences, rows]: &[usize; 2]| format!("B{sequences}_T{}", sequences * rows);
        let sizes: Vec<String> = groups.iter().map(size).collect();
        let shape = (format!("{}_H{heads}_D{dim}", sizes.join("_")), D::DTYPE);
        self.begin(name, (&shape.0, shape.1))?;
        let group = |[sequences, rows]: &[usize; 2]| {
            let (sequences, rows) = (*sequences, *rows);
            Step { sequences, rows, context: rows }
        };
        let step: Vec<Step> = groups.iter().map(group).collect();
        let sequences: usize = step.iter().map(|group| group.sequences).sum();
        let slots = if has_snapshots { SLOTS_EACH * sequences } else { sequences };
        let one = StateShape { layers: 1, slots, net };
        let layers = self.layers(slots * one.slot_bytes());
        let mut state = self.device.state(StateShape { layers, ..one })?;
        let all = self.delta_net_layers(net, layers)?;
        // The first rows of a sequence set its state, which later rows then read.
        let groups = with_pages(&step, D::PAGE_STRIDE);
        let mut first = batch_of(&groups, |_| 0);
        let mut batch = batch_of(&groups, |group| group.context);
        if has_snapshots {
            let snapshot = |of: usize, number: usize| (number * sequences + of % sequences) as u32;
            for (i, sequence) in first.sequences.iter_mut().enumerate() {
                let save = Some(snapshot(i, 1));
                sequence.state = Some(StateSlots { slot: i as u32, load: None, save });
            }
            for (i, sequence) in batch.sequences.iter_mut().enumerate() {
                let (load, save) = (Some(snapshot(i + 1, 1)), Some(snapshot(i, 2)));
                sequence.state = Some(StateSlots { slot: i as u32, load, save });
            }
        }
        let plan = self.plan(&step, &first)?;
        let t = self.device.rows(&plan).all;
        let projected = self.input(t, net.cols())?;
        let mut out = self.output(t, heads * dim)?;
        for layer in &all {
            self.device.delta_net(&projected, layer, &plan, &mut state, &mut out)?;
        }
        let plan = self.plan(&step, &batch)?;
        let Self { mut device, .. } = self;
        let t = rows_of(&step);
        // Per element of the state: decay, product with the key, update, product with the query.
        let work = [
            D::ELEMENT_BYTES * t * (net.cols() + heads * dim)
                + 8 * sequences * net.state_elements(),
            t * (7 * heads * net.key_dim * dim + 2 * net.taps * net.conv_cols()),
        ];
        Ok(Case::new(name, shape, work, layers, move |call, layer| {
            let (layer, sequences) = (&all[layer], &batch.sequences[..]);
            let (projected, step, state, out) = (&projected, &plan, &mut state, &mut out);
            let operation = Operation::DeltaNet { projected, layer, step, sequences, state, out };
            call.operation(&mut device, operation)
        }))
    }

    fn delta_net_layers(
        &mut self,
        net: DeltaNetShape,
        layers: usize,
    ) -> Result<Vec<DeltaNetLayer<D::Vector>>, DeviceError> {
        let mut all = Vec::new();
        let rates: Vec<f32> = numbers(net.value_heads).iter().map(|x| -0.2 - 0.1 * x).collect();
        for index in 0..layers {
            all.push(DeltaNetLayer {
                shape: net,
                index,
                conv: self.device.vector(&numbers(net.taps * net.conv_cols()))?,
                rate: self.device.vector(&rates)?,
                bias: self.device.vector(&numbers(net.value_heads))?,
                norm: self.device.vector(&vec![1.0; net.value_dim])?,
                epsilon: 1e-6,
            });
        }
        all.iter().try_for_each(|layer| self.device.prepare_delta_net(layer))?;
        Ok(all)
    }

    /// Prepares a step of `batch`, whose sequences are those of the groups in `step`, for operations
    /// that use neither rotary embedding nor KV cache. The KV cache that is created for the step
    /// serves only to check its positions.
    fn plan(&mut self, step: &[Step], batch: &StepBatch) -> Result<D::StepMetadata, DeviceError> {
        let kv_type = if D::ELEMENT_BYTES == 2 { KvType::Bf16 } else { KvType::F16 };
        let kv = self.device.kv(kv_shape(step, attention_shape(1, 1, 128), kv_type))?;
        self.device.prepare_step(batch, &kv, &[unrotated()])
    }
}
