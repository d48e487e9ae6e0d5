//! Weights by name onto a device: the one way from a checkpoint to matrices and vectors.

use std::borrow::Cow;

use crate::device::{Device, HostMatrix, RowOrder};
use crate::weights::format::dequantize;
use crate::weights::{Checkpoint, LoadError, MxStack, TensorData, WeightType};

/// `n` rows of the stored matrix `{name}.weight`, and as many elements of `{name}.bias`.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub name: &'a str,
    pub n: usize,
    pub order: RowOrder,
    pub bias: bool,
}

impl<'a> Part<'a> {
    /// Rows as stored, no bias.
    pub fn plain(name: &'a str, n: usize) -> Self {
        Self { name, n, order: RowOrder::AsStored, bias: false }
    }
}

/// A matrix product with its bias.
#[derive(Debug)]
pub struct Linear<D: Device> {
    pub matrix: D::Matrix,
    /// `[N]`, absent where every part has none.
    pub bias: Option<D::Vector>,
}

/// Reads tensors onto the device and counts them.
#[derive(Debug)]
pub struct Loader<'a, D: Device> {
    pub device: &'a mut D,
    checkpoint: &'a Checkpoint,
    /// As [`super::spec::DecoderSpec::norm_offset`].
    norm_offset: f32,
    parameters: u64,
}

impl<'a, D: Device> Loader<'a, D> {
    pub fn new(device: &'a mut D, checkpoint: &'a Checkpoint, norm_offset: f32) -> Self {
        Self { device, checkpoint, norm_offset, parameters: 0 }
    }

    /// Weights read so far.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// The vector that is called `name`, ending included.
    ///
    /// # Errors
    /// As [`Checkpoint::vector`], or the device is full.
    pub fn vector(&mut self, name: &str, layer: usize, len: usize) -> Result<D::Vector, LoadError> {
        let values = self.values(&in_layer(name, layer), &[len])?;
        self.own_vector(&values)
    }

    /// The weights `{name}.weight` of a norm over the stream or over heads.
    ///
    /// # Errors
    /// As [`Loader::vector`].
    pub fn norm(&mut self, name: &str, layer: usize, len: usize) -> Result<D::Vector, LoadError> {
        let mut values = self.values(&format!("{}.weight", in_layer(name, layer)), &[len])?;
        values.iter_mut().for_each(|value| *value += self.norm_offset);
        self.own_vector(&values)
    }

    /// A tensor as f32, row major.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`].
    pub fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name, shape)?;
        let mut values = vec![0.0; shape.iter().product()];
        dequantize(tensor.weight_type, &tensor.bytes, &mut values);
        Ok(values)
    }

    /// The parts under one another, of K inputs each, as one product.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the device is full.
    pub fn linear(
        &mut self,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<Linear<D>, LoadError> {
        let mut bias = Vec::new();
        for part in parts.iter().filter(|_| parts.iter().any(|part| part.bias)) {
            if part.bias {
                let stored_rows = part.order.stored_rows(part.n);
                let stored =
                    self.values(&format!("{}.bias", in_layer(part.name, layer)), &[stored_rows])?;
                bias.extend((0..part.n).map(|n| stored[part.order.stored_row(n)]));
            } else {
                bias.resize(bias.len() + part.n, 0.0);
            }
        }
        let bias = if bias.is_empty() { None } else { Some(self.own_vector(&bias)?) };
        Ok(Linear { matrix: self.matrix(parts, layer, k)?, bias })
    }

    /// The parts under one another, of K inputs each, without biases.
    ///
    /// # Errors
    /// As [`Loader::linear`].
    pub fn matrix(
        &mut self,
        parts: &[Part<'_>],
        layer: usize,
        k: usize,
    ) -> Result<D::Matrix, LoadError> {
        let mut tensors = Vec::with_capacity(parts.len());
        for part in parts {
            let name = format!("{}.weight", in_layer(part.name, layer));
            let tensor = self.checkpoint.tensor(&name, &[part.order.stored_rows(part.n), k])?;
            self.parameters += (part.n * k) as u64;
            tensors.push((tensor, part));
        }
        let rows: Vec<_> =
            tensors.iter().map(|(tensor, part)| Rows::of(tensor, part.n, part.order)).collect();
        self.own_matrix(&rows, k)
    }

    /// A tensor of any shape, counted.
    ///
    /// # Errors
    /// As [`Checkpoint::tensor`].
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<TensorData<'a>, LoadError> {
        let tensor = self.checkpoint.tensor(name, shape)?;
        self.parameters += shape.iter().map(|size| *size as u64).product::<u64>();
        Ok(tensor)
    }

    /// A stack `[E, N, K]` in one of the two forms that gpt-oss is published in.
    ///
    /// # Errors
    /// As [`Checkpoint::mx_stack`].
    pub fn mx_stack(&mut self, name: &str, shape: [usize; 3]) -> Result<MxStack<'a>, LoadError> {
        self.parameters += shape.iter().map(|size| *size as u64).product::<u64>();
        self.checkpoint.mx_stack(name, shape)
    }

    /// Rows that were read already, under one another, as a matrix on the device.
    ///
    /// # Errors
    /// The device is full.
    pub fn own_matrix(&mut self, rows: &[Rows<'_>], k: usize) -> Result<D::Matrix, LoadError> {
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
        self.device.matrix(&hosts).map_err(LoadError::Device)
    }

    /// # Errors
    /// The device is full.
    pub fn own_vector(&mut self, values: &[f32]) -> Result<D::Vector, LoadError> {
        self.device.vector(values).map_err(LoadError::Device)
    }
}

/// `n` rows of one stored type.
#[derive(Debug)]
pub struct Rows<'a> {
    pub weight_type: WeightType,
    pub n: usize,
    pub bytes: Cow<'a, [u8]>,
    pub order: RowOrder,
}

impl<'a> Rows<'a> {
    /// `n` rows of a tensor, all of them unless the order chooses.
    fn of(tensor: &'a TensorData<'_>, n: usize, order: RowOrder) -> Self {
        Self { weight_type: tensor.weight_type, n, bytes: Cow::Borrowed(&tensor.bytes), order }
    }

    /// Matrix `index` of the stack `[E, N, K]`.
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

/// `name` with the layer's number in its place.
pub fn in_layer(name: &str, layer: usize) -> String {
    name.replace("{layer}", &layer.to_string())
}
