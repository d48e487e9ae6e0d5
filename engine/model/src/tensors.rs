//! Reader of tensors by name from a checkpoint onto a device: weight matrices and vectors of models
//! are loaded only through it.

use std::borrow::Cow;
use std::ops::Range;

use super::MatrixShape;
use crate::LoadError;
use engine_core::{Device, DeviceError, HostMatrix, RandomRows, RowOrder, WeightType};
use engine_weights::{Checkpoint, CheckpointError, MxStack, TensorData};

/// Stored matrix `{name}.weight`, or a selection of its rows, that gives `n` output columns of a
/// linear layer, and the same elements of the bias `{name}.bias`.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    pub name: &'a str,
    pub n: usize,
    /// Ranges of the output columns of this part that are on this rank; whole heads where `order`
    /// reorders the rows of heads.
    pub own: Vec<Range<usize>>,
    pub order: RowOrder,
    pub bias: bool,
}

impl<'a> Part<'a> {
    /// Returns a part of a linear layer with all `n` rows of the stored matrix in stored order, and
    /// no bias.
    pub fn plain(name: &'a str, n: usize) -> Self {
        let own = std::iter::once(0..n).collect();
        Self { name, n, own, order: RowOrder::AsStored, bias: false }
    }

    /// Returns the range of stored rows from which the output columns `own` are taken.
    fn stored(&self, own: &Range<usize>) -> Range<usize> {
        self.order.stored_rows(own.start)..self.order.stored_rows(own.end)
    }
}

/// Function of a device that loads host matrices as one weight matrix.
type LoadMatrix<D> = fn(&mut D, &[HostMatrix<'_>]) -> Result<<D as Device>::Matrix, DeviceError>;

/// Linear layer loaded on a device: a weight matrix and its bias.
#[derive(Debug)]
pub struct Linear<D: Device> {
    pub matrix: D::Matrix,
    /// Bias of the linear layer, `[N]`; none if no part of the layer has one.
    pub bias: Option<D::Vector>,
}

/// Reader of a checkpoint's tensors onto a device; it also counts the model's parameters.
#[derive(Debug)]
pub struct Tensors<'a, D: Device> {
    pub device: &'a mut D,
    checkpoint: &'a Checkpoint,
    /// Offset that is added to norm weights, see [`super::spec::DecoderSpec::norm_offset`].
    norm_offset: f32,
    /// Number of the model's weights counted so far, those of other ranks included.
    pub parameters: u64,
    /// Shape of the largest matrix loaded on the device since this field was last taken, or since
    /// the start; `None` if no matrix was loaded since.
    pub largest: Option<MatrixShape>,
}

impl<'a, D: Device> Tensors<'a, D> {
    pub fn new(device: &'a mut D, checkpoint: &'a Checkpoint, norm_offset: f32) -> Self {
        Self { device, checkpoint, norm_offset, parameters: 0, largest: None }
    }

    /// Returns the quantization block size, in elements, of the matrix `{name}.weight`: ranks can
    /// divide its columns among them only at multiples of it. It is 1 for float types, and for
    /// types that this release cannot compute with.
    pub fn cut_unit(&self, name: &str, layer: usize, shape: [usize; 2]) -> usize {
        self.checkpoint.cut_unit(&format!("{}.weight", in_layer(name, layer)), &shape)
    }

    /// Builds the error that `count` heads, blocks of columns or the like, named `what`, cannot be
    /// divided among the ranks.
    pub fn indivisible(&self, what: &str, count: usize) -> LoadError {
        let ranks = self.device.rank().count;
        let reason = format!("{ranks} ranks cannot share {count} {what}; hint: a smaller `--tp`");
        CheckpointError::unsupported(&self.checkpoint.path, reason).into()
    }

    /// Loads the tensor with the full name `name` as a vector of `len` elements on the device.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::tensor`] does, or if the device fails or has too little memory.
    pub fn vector(&mut self, name: &str, layer: usize, len: usize) -> Result<D::Vector, LoadError> {
        let values = self.values(&in_layer(name, layer), &[len])?;
        Ok(self.device.vector(&values)?)
    }

    /// Loads the weights `{name}.weight` of an RMS norm over the residual stream or over heads as a
    /// vector on the device, with the norm offset added.
    ///
    /// # Errors
    /// Fails as [`Tensors::vector`] does.
    pub fn norm(&mut self, name: &str, layer: usize, len: usize) -> Result<D::Vector, LoadError> {
        let mut values = self.values(&format!("{}.weight", in_layer(name, layer)), &[len])?;
        values.iter_mut().for_each(|value| *value += self.norm_offset);
        Ok(self.device.vector(&values)?)
    }

    /// Reads a tensor of any shape as f32 to host memory, row major, and counts its elements as
    /// parameters.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::tensor`] does.
    pub fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        Ok(self.tensor(name, shape)?.values())
    }

    /// Loads `parts`, stacked along N, whose rows have `k` elements each, as one linear layer on
    /// the device.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::tensor`] does, or if the device fails, has too little memory or does
    /// not support the matrix.
    pub fn linear(
        &mut self,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<Linear<D>, LoadError> {
        let bias = self.bias(parts, layer)?;
        Ok(Linear { matrix: self.matrix(parts, layer, k)?, bias })
    }

    /// Loads `part`, whose rows have `k` elements each, as a MoE router on the device.
    ///
    /// # Errors
    /// Fails as [`Tensors::linear`] does.
    pub fn router(
        &mut self,
        part: Part<'_>,
        layer: usize,
        k: usize,
    ) -> Result<Linear<D>, LoadError> {
        let parts = [part];
        let bias = self.bias(&parts, layer)?;
        Ok(Linear { matrix: self.matrix_by(D::router_matrix, &parts, layer, k)?, bias })
    }

    /// Loads the biases of `parts`, stacked along N; none if no part has one.
    fn bias(&mut self, parts: &[Part<'_>], layer: usize) -> Result<Option<D::Vector>, LoadError> {
        let mut bias = Vec::new();
        for part in parts.iter().filter(|_| parts.iter().any(|part| part.bias)) {
            if part.bias {
                let stored_rows = part.order.stored_rows(part.n);
                let stored =
                    self.values(&format!("{}.bias", in_layer(part.name, layer)), &[stored_rows])?;
                for own in &part.own {
                    let stored = &stored[part.stored(own)];
                    bias.extend((0..own.len()).map(|n| stored[part.order.stored_row(n)]));
                }
            } else {
                // Parts without a bias get zeros, since one bias vector covers all parts of the
                // matrix.
                bias.resize(bias.len() + part.own.iter().map(Range::len).sum::<usize>(), 0.0);
            }
        }
        Ok(if bias.is_empty() { None } else { Some(self.device.vector(&bias)?) })
    }

    /// Loads the columns `cols` of the rows of `part`, in that order, as a linear layer on the
    /// device: one rank's term of a sum over all ranks. Stored rows have `k` elements. Only the
    /// first rank gets the bias, or the sum would contain it several times.
    ///
    /// # Errors
    /// Fails as [`Tensors::linear`] does, or if `cols` is a single range that begins or ends within
    /// a quantization block.
    pub fn partial(
        &mut self,
        part: &Part<'_>,
        layer: usize,
        k: usize,
        cols: &[Range<usize>],
    ) -> Result<Linear<D>, LoadError> {
        let own = in_layer(part.name, layer);
        let name = format!("{own}.weight");
        let matrix = match self.made_up_columns(&name, part, k, cols)? {
            Some(matrix) => matrix,
            None => {
                let tensor = self.tensor(&name, &[part.n, k])?;
                let (weight_type, bytes) = self.cut(&name, &tensor, cols)?;
                let rows = Rows { weight_type, n: part.n, bytes, order: part.order };
                self.own_matrix(&[rows], cols.iter().map(Range::len).sum())?
            }
        };
        let mut bias = None;
        if part.bias {
            let values = self.values(&format!("{own}.bias"), &[part.n])?;
            if self.device.rank().index == 0 {
                bias = Some(self.device.vector(&values)?);
            }
        }
        Ok(Linear { matrix, bias })
    }

    /// Extracts the columns `cols` of the rows of `tensor` and returns their type and bytes.
    /// Several ranges are reordered heads, which may cut through a quantization block; then the
    /// weights are dequantized to f32.
    fn cut<'b>(
        &self,
        name: &str,
        tensor: &'b TensorData<'_>,
        cols: &[Range<usize>],
    ) -> Result<(WeightType, Cow<'b, [u8]>), LoadError> {
        let (weight_type, k) = (tensor.weight_type, tensor.shape[1]);
        let block = weight_type.block();
        // A single rank takes the bytes as they are, without a copy.
        if matches!(cols, [all] if *all == (0..k)) {
            return Ok((weight_type, Cow::Borrowed(&tensor.bytes)));
        }
        let mut borders = cols.iter().flat_map(|cols| [cols.start, cols.end]);
        let parted = borders.find(|at| !at.is_multiple_of(block));
        if parted.is_some() && cols.len() > 1 {
            let values = tensor.values();
            let rows = values.chunks_exact(k);
            let picked = rows.flat_map(|row| cols.iter().flat_map(|cols| &row[cols.clone()]));
            return Ok((WeightType::F32, picked.flat_map(|value| value.to_le_bytes()).collect()));
        }
        if let Some(at) = parted {
            let what = format!(
                " is stored as {}, and its rows cannot be cut at {at}, within a block of {block}; \
                 hint: a smaller `--tp`",
                weight_type.name()
            );
            return Err(CheckpointError::tensor(&self.checkpoint.path, name, what).into());
        }
        let rows = tensor.bytes.chunks_exact(weight_type.row_bytes(k));
        let of = |at: usize| weight_type.row_bytes(at);
        let picked =
            rows.flat_map(|row| cols.iter().flat_map(|cols| &row[of(cols.start)..of(cols.end)]));
        Ok((weight_type, picked.copied().collect()))
    }

    /// Loads `parts`, stacked along N, whose rows have `k` elements each, as one matrix on the
    /// device, without biases.
    ///
    /// # Errors
    /// Fails as [`Tensors::linear`] does.
    pub fn matrix(
        &mut self,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<D::Matrix, LoadError> {
        self.matrix_by(D::matrix, parts, layer, k)
    }

    /// Loads a matrix as [`Tensors::matrix`] does, by the device's function `load`.
    fn matrix_by(
        &mut self,
        load: LoadMatrix<D>,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<D::Matrix, LoadError> {
        if let Some(matrix) = self.made_up(parts, layer, k)? {
            return Ok(matrix);
        }
        let mut tensors = Vec::with_capacity(parts.len());
        for part in parts {
            let name = format!("{}.weight", in_layer(part.name, layer));
            let tensor = self.checkpoint.tensor(&name, &[part.order.stored_rows(part.n), k])?;
            self.parameters += (part.n * k) as u64;
            tensors.push((tensor, part));
        }
        let rows: Vec<_> = tensors
            .iter()
            .flat_map(|(tensor, part)| part.own.iter().map(|own| Rows::of(tensor, part, own)))
            .collect();
        self.own_matrix_by(load, &rows, k)
    }

    /// Generates a matrix of random weights on the device, with the shape that [`Tensors::matrix`]
    /// would load. Returns none if the checkpoint's weights are not random bf16, or the device
    /// cannot generate them.
    fn made_up(
        &mut self,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<Option<D::Matrix>, LoadError> {
        let mut rows = Vec::new();
        let mut weights = 0;
        for part in parts {
            let name = format!("{}.weight", in_layer(part.name, layer));
            let shape = [part.order.stored_rows(part.n), k];
            let Some(start) = self.checkpoint.stream(&name, &shape)? else { return Ok(None) };
            weights += (part.n * k) as u64;
            rows.extend(part.own.iter().map(|own| {
                let (row, n, order) = (part.stored(own).start, own.len(), part.order);
                RandomRows { start, stride: k, row, column: 0, n, order }
            }));
        }
        let made = self.made_up_rows(WeightType::Bf16, &rows, k)?;
        Ok(made.inspect(|_| self.parameters += weights))
    }

    /// Generates the columns `cols` of a random matrix with rows of `k` elements on the device.
    /// Returns none if `cols` are several ranges, the weights are not random bf16, or the device
    /// cannot generate them.
    fn made_up_columns(
        &mut self,
        name: &str,
        part: &Part<'_>,
        k: usize,
        cols: &[Range<usize>],
    ) -> Result<Option<D::Matrix>, LoadError> {
        // Several ranges are reordered heads, which the device's generator cannot address.
        let ([cols], Some(start)) = (cols, self.checkpoint.stream(name, &[part.n, k])?) else {
            return Ok(None);
        };
        let (column, n, order) = (cols.start, part.n, part.order);
        let rows = RandomRows { start, stride: k, row: 0, column, n, order };
        let made = self.made_up_rows(WeightType::Bf16, &[rows], cols.len())?;
        Ok(made.inspect(|_| self.parameters += (part.n * k) as u64))
    }

    /// Generates the random weights `rows` of type `weight_type`, with `k` elements each, as a
    /// matrix on the device, without counting them as parameters. Returns none if the device cannot
    /// generate them.
    fn made_up_rows(
        &mut self,
        weight_type: WeightType,
        rows: &[RandomRows],
        k: usize,
    ) -> Result<Option<D::Matrix>, LoadError> {
        let made = self.device.random_matrix(weight_type, rows, k)?;
        if made.is_some() {
            let n = rows.iter().map(|rows| rows.n).sum();
            self.keep_largest(MatrixShape { n, k, weight_type });
        }
        Ok(made)
    }

    /// Reads the scales of keys and values in an FP8 KV cache, one per head of `kv_heads`, which
    /// FP8 checkpoints store next to the projections `key` and `value` (names without `.weight`).
    /// Scales of 1 stand in if only keys or only values have scales; returns none if neither do.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::scales`] does.
    pub fn kv_scales(
        &self,
        (key, value): (&str, &str),
        layer: usize,
        kv_heads: usize,
    ) -> Result<Option<[Vec<f32>; 2]>, LoadError> {
        let find = |projection: &str, ending: &str| {
            let own = in_layer(projection, layer);
            // The block's name is the projection's without its last part.
            let block = own.rsplit_once('.').map_or("", |(block, _)| block);
            // Quantization tools store scales under the projection, under the block, or one for
            // both.
            let names = [
                format!("{own}.{ending}"),
                format!("{block}.{ending}"),
                format!("{block}.kv_scale"),
            ];
            let found = names.iter().map(|name| self.checkpoint.scales(name, kv_heads));
            found.filter_map(Result::transpose).next().transpose()
        };
        match (find(key, "k_scale")?, find(value, "v_scale")?) {
            (None, None) => Ok(None),
            (keys, values) => {
                let or_one = |scales: Option<_>| scales.unwrap_or_else(|| vec![1.0; kv_heads]);
                Ok(Some([keys, values].map(or_one)))
            }
        }
    }

    /// Reads a tensor of any shape to host memory as it is stored, and counts its elements as
    /// parameters.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::tensor`] does.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<TensorData<'a>, LoadError> {
        let tensor = self.checkpoint.tensor(name, shape)?;
        self.parameters += shape.iter().map(|size| *size as u64).product::<u64>();
        Ok(tensor)
    }

    /// Reads MoE expert matrices `[E, N, K]` of E experts that are stored as MXFP4 blocks and
    /// scales, or as floats `[E, K, N]`, and counts them as parameters.
    ///
    /// # Errors
    /// Fails as [`Checkpoint::mx_stack`] does.
    pub fn mx_stack(&mut self, name: &str, shape: [usize; 3]) -> Result<MxStack<'a>, LoadError> {
        self.parameters += shape.iter().map(|size| *size as u64).product::<u64>();
        Ok(self.checkpoint.mx_stack(name, shape)?)
    }

    /// Loads the matrix of expert `index` of `stack`, of shape `[n, k]`, on the device, with its
    /// rows in the order `order`. The device generates random weights itself if it can.
    ///
    /// # Errors
    /// Fails if the device fails, has too little memory or does not support the matrix.
    pub fn mx_matrix(
        &mut self,
        stack: &MxStack<'_>,
        index: usize,
        [n, k]: [usize; 2],
        order: RowOrder,
    ) -> Result<D::Matrix, LoadError> {
        if let Some(start) = stack.stream(index) {
            let rows = RandomRows { start, stride: k, row: 0, column: 0, n, order };
            if let Some(matrix) = self.made_up_rows(WeightType::Mxfp4, &[rows], k)? {
                return Ok(matrix);
            }
        }
        let (weight_type, bytes) = stack.matrix(index);
        self.own_matrix(&[Rows { weight_type, n, bytes: bytes.into(), order }], k)
    }

    /// Loads matrix rows that were already read to host memory, stacked along N, as one matrix on
    /// the device.
    ///
    /// # Errors
    /// Fails if the device fails, has too little memory or does not support the matrix.
    pub fn own_matrix(&mut self, rows: &[Rows<'_>], k: usize) -> Result<D::Matrix, LoadError> {
        self.own_matrix_by(D::matrix, rows, k)
    }

    /// Loads rows as [`Tensors::own_matrix`] does, by the device's function `load`.
    fn own_matrix_by(
        &mut self,
        load: LoadMatrix<D>,
        rows: &[Rows<'_>],
        k: usize,
    ) -> Result<D::Matrix, LoadError> {
        let hosts: Vec<_> = rows
            .iter()
            .map(|rows| HostMatrix {
                weight_type: rows.weight_type,
                n: rows.n,
                k,
                bytes: &rows.bytes,
                order: rows.order,
            })
            .collect();
        let n = hosts.iter().map(|host| host.n).sum();
        if let Some(weight_type) = hosts.first().map(|host| host.weight_type) {
            self.keep_largest(MatrixShape { n, k, weight_type });
        }
        Ok(load(self.device, &hosts)?)
    }

    /// Replaces `largest` by the shape of a matrix that was just loaded, if that has more elements.
    fn keep_largest(&mut self, shape: MatrixShape) {
        let elements = |shape: &MatrixShape| shape.n * shape.k;
        self.largest = self.largest.into_iter().chain([shape]).max_by_key(elements);
    }
}

/// Rows of a weight matrix in host memory, all of one stored type.
#[derive(Debug)]
pub struct Rows<'a> {
    pub weight_type: WeightType,
    pub n: usize,
    pub bytes: Cow<'a, [u8]>,
    pub order: RowOrder,
}

impl<'a> Rows<'a> {
    /// Returns the rows of the stored matrix `tensor` that give the output columns `own` of `part`.
    fn of(tensor: &'a TensorData<'_>, part: &Part<'_>, own: &Range<usize>) -> Self {
        let row_bytes = tensor.weight_type.row_bytes(tensor.shape[1]);
        let stored = part.stored(own);
        let bytes = &tensor.bytes[stored.start * row_bytes..stored.end * row_bytes];
        let (weight_type, order) = (tensor.weight_type, part.order);
        Self { weight_type, n: own.len(), bytes: Cow::Borrowed(bytes), order }
    }

    /// Returns the rows of the matrix of expert `index` in a stored tensor `[E, N, K]` of E
    /// experts.
    pub fn of_stack(tensor: &'a TensorData<'_>, index: usize) -> Self {
        let (n, k) = (tensor.shape[1], tensor.shape[2]);
        let bytes = n * tensor.weight_type.row_bytes(k);
        Self {
            weight_type: tensor.weight_type,
            n,
            bytes: Cow::Borrowed(&tensor.bytes[index * bytes..(index + 1) * bytes]),
            order: RowOrder::AsStored,
        }
    }
}

/// Returns the tensor name `name` with `{layer}` replaced by the layer index.
pub fn in_layer(name: &str, layer: usize) -> String {
    name.replace("{layer}", &layer.to_string())
}
