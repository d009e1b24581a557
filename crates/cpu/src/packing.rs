//! [`Packing`]: a tensor to the bytes that a kernel reads, as data. A compiler applies it when it writes a plan; a program
//! without a compiler applies the same one to another copy of the tensor.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use types::{DType, Shape, Tensor, WeightFormat};

use crate::gemm::{Epilogue, weights};
use crate::kernel::product;
use crate::ops::matmul::MatrixView;
use crate::simd::StorageType;
use crate::{
    CompactConv, Conv, ConvBlocked, ConvDataGradient, ConvTranspose, DepthwiseBlocked, InvalidKernel, Kernel, MatMul,
    MatMulB, PackedConv, Recurrent, Winograd,
};

/// The order and form of the packed elements of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Packing {
    /// Weights of a convolution over blocked channels, in the order of the algorithm.
    Convolution {
        /// The kernel that reads them.
        kernel: PackedConv,
        /// The groups of the convolution.
        groups: usize,
        /// The groups that are computed as one; 0 and 1: none are joined.
        together: usize,
        /// The output channels of all groups.
        out_channels: usize,
    },
    /// Weights of a convolution over row-major values.
    RowMajorConvolution(Conv),
    /// Weights of a transposed convolution over row-major values.
    TransposedConvolution(ConvTranspose),
    /// The right factor of a product.
    RightFactor(MatMul),
    /// The transpose of a matrix `[n, k]` of `f32`, as a right factor.
    TransposedFactor {
        /// Columns of the matrix.
        k: usize,
        /// Its rows.
        n: usize,
        /// The stored form, if it is not `f32`.
        weights: Option<WeightFormat>,
    },
    /// Weights of a recurrent layer.
    Recurrent(Recurrent),
    /// A tensor in blocks of channels: aligned on the right with the extents of `to` except the last one, the lanes. Lanes
    /// without a channel hold 0.
    Blocked {
        /// The extents of the tensor.
        from: Shape,
        /// Those of the blocks.
        to: Shape,
    },
    /// A vector along the channels, filled up with zeros to whole blocks.
    Padded,
    /// Weights of a row-major convolution that are decoded in each run.
    CompactConvolution(CompactConv),
    /// A table of rows, each with a scale of its own if the form has scales.
    Table {
        /// Rows of the table.
        rows: usize,
        /// The stored form.
        weights: WeightFormat,
    },
    /// Weights of a transposed convolution over blocked channels.
    BlockedTransposedConvolution(ConvDataGradient),
}

/// Channels of a block.
const BLOCK: usize = 16;

impl Packing {
    /// The dtype of the packed elements if it is not that of the tensor: of weights that are stored in fewer bits.
    pub fn dtype(&self) -> Option<DType> {
        let weights = match self {
            Packing::Convolution { kernel: PackedConv::Direct(kernel), .. } => kernel.weights,
            Packing::RightFactor(kernel) => kernel.weights,
            Packing::TransposedFactor { weights, .. } => *weights,
            Packing::CompactConvolution(kernel) => Some(kernel.weights),
            Packing::Table { weights, .. } => Some(*weights),
            Packing::Convolution { .. }
            | Packing::RowMajorConvolution(_)
            | Packing::TransposedConvolution(_)
            | Packing::BlockedTransposedConvolution(_)
            | Packing::Recurrent(_)
            | Packing::Blocked { .. }
            | Packing::Padded => None,
        };
        weights.map(WeightFormat::dtype)
    }

    /// The packed bytes. Elements that are no `f32` are converted first.
    ///
    /// # Panics
    /// If [`Packing::size`] has no size for the tensor's number of elements.
    pub fn apply(&self, tensor: &Tensor) -> Vec<u8> {
        match tensor.as_slice() {
            Some(items) => self.pack(items),
            None => self.pack(tensor.cast(DType::F32).as_slice().expect("a half has a number")),
        }
    }

    /// The number of parts of the packed bytes that can be made alone; at least one. Large weights of `f32` have several.
    pub fn parts(&self, tensor: &Tensor) -> usize {
        self.pieces().map_or(1, |pieces| pieces.count.div_ceil(pieces.of_part(tensor)).max(1))
    }

    /// The bytes of a part: all parts, one after the other, are [`Packing::apply`]'s.
    ///
    /// # Panics
    /// As [`Packing::apply`].
    pub fn pack_part(&self, tensor: &Tensor, part: usize) -> Vec<u8> {
        let (Some(pieces), Some(items)) = (self.pieces(), tensor.as_slice()) else { return self.apply(tensor) };
        let of_part = pieces.of_part(tensor);
        floats(&(pieces.pack)(items, part * of_part..pieces.count.min((part + 1) * of_part)))
    }

    /// The pieces of weights that stay `f32`.
    fn pieces(&self) -> Option<Pieces<'_>> {
        let is_f32 =
            |operands: StorageType, weights: Option<WeightFormat>| operands == StorageType::F32 && weights.is_none();
        match self {
            Packing::RightFactor(kernel) if is_f32(kernel.operands, kernel.weights) => {
                Some(Pieces::new(kernel.strip_count(), |items, strips| {
                    kernel.pack_strips(MatrixView::new(items, kernel.n), strips)
                }))
            }
            Packing::TransposedFactor { k, n, weights: None } => {
                let kernel = right_factor(*k, *n, None);
                Some(Pieces::new(kernel.strip_count(), move |items, strips| {
                    kernel.pack_strips(MatrixView::transposed(items, *k), strips)
                }))
            }
            Packing::Convolution { kernel: PackedConv::Direct(kernel), together: 0 | 1, .. }
                if is_f32(kernel.operands, kernel.weights) =>
            {
                let panels = kernel.packed_panels();
                Some(Pieces::new(panels.len(), move |items, range| kernel.pack_panels(items, &panels[range])))
            }
            Packing::Convolution { kernel: PackedConv::Winograd(kernel), together: 0 | 1, .. } => {
                Some(Pieces::new(kernel.panel_count(), |items, panels| kernel.pack_panels(items, panels)))
            }
            Packing::RowMajorConvolution(kernel) => {
                Some(Pieces::new(kernel.out_channels, |items, outs| kernel.pack_channels(items, outs)))
            }
            _ => None,
        }
    }

    /// The size of the packed bytes of a tensor of `elements` elements; `None` if it does not fit into 64 bits.
    ///
    /// # Errors
    /// Parameters of a kernel that contradict each other; another number of elements than that of the kernel's weights.
    pub fn size(&self, elements: usize) -> Result<Option<u64>, InvalidKernel> {
        let size = self.packed_size(elements)?;
        match self.weights() {
            Some(weights) if weights == Some(elements) => Ok(size),
            Some(_) => Err(InvalidKernel("the tensor must have as many elements as the kernel has weights")),
            None => Ok(size),
        }
    }

    /// The number of weights in front of packing; the inner `None` if there is none that fits the other parameters. `None` if
    /// any number can be packed. For parameters that [`Packing::packed_size`] accepts.
    fn weights(&self) -> Option<Option<usize>> {
        let conv = |kernel: &PackedConv| match kernel {
            PackedConv::Direct(ConvBlocked { out_channels, window, .. }) => {
                let [ins, _] = kernel_channels(kernel);
                product(&[*out_channels, ins, window.taps()])
            }
            PackedConv::Winograd(Winograd { out_channels, in_channels, .. }) => {
                product(&[*out_channels, *in_channels, 9])
            }
            PackedConv::Depthwise(DepthwiseBlocked { channels, group, window, .. }) => {
                product(&[*channels, group[0], window.taps()])
            }
        };
        Some(match self {
            Packing::Convolution { kernel, together: 0 | 1, .. } => conv(kernel),
            // Groups that are computed as one: each output channel has the weights of one of `together` groups.
            Packing::Convolution { kernel, groups, together, out_channels } => {
                let [_, outs] = kernel_channels(kernel);
                let is_whole = outs == *out_channels && 0 < *groups && 0 < outs && outs.is_multiple_of(*groups);
                let weights = conv(kernel).filter(|&weights| 0 < weights && weights.is_multiple_of(*together));
                let weights = weights.map(|weights| weights / together);
                weights.filter(|weights| is_whole && weights.is_multiple_of(*out_channels))
            }
            Packing::RowMajorConvolution(Conv { in_channels, out_channels, groups, window, .. }) => {
                product(&[*out_channels, in_channels / groups, window.taps()])
            }
            Packing::BlockedTransposedConvolution(ConvDataGradient {
                in_channels,
                out_channels,
                groups,
                window,
                ..
            })
            | Packing::TransposedConvolution(ConvTranspose { in_channels, out_channels, groups, window, .. }) => {
                product(&[*in_channels, out_channels / groups, window.taps()])
            }
            Packing::RightFactor(MatMul { k, n, .. }) | Packing::TransposedFactor { k, n, .. } => product(&[*k, *n]),
            Packing::Recurrent(Recurrent { cell, direction, units, .. }) => {
                product(&[direction.count(), cell.gates(), *units, *units])
            }
            Packing::Blocked { from, .. } => product(from),
            Packing::CompactConvolution(kernel) => product(&kernel.extents),
            Packing::Padded | Packing::Table { .. } => return None,
        })
    }

    /// The size of the packed bytes of a tensor that has the kernel's weights.
    fn packed_size(&self, elements: usize) -> Result<Option<u64>, InvalidKernel> {
        let second = |kernel: Kernel| Ok(kernel.sizes()?.inputs.get(1).copied());
        match self {
            Packing::Convolution { kernel, .. } => second(match kernel.clone() {
                PackedConv::Direct(kernel) => kernel.into(),
                PackedConv::Winograd(kernel) => kernel.into(),
                PackedConv::Depthwise(kernel) => kernel.into(),
            }),
            Packing::RowMajorConvolution(kernel) => second(kernel.clone().into()),
            Packing::TransposedConvolution(kernel) => second(kernel.clone().into()),
            Packing::BlockedTransposedConvolution(kernel) => second(kernel.clone().into()),
            Packing::RightFactor(kernel) => second(kernel.clone().into()),
            Packing::TransposedFactor { k, n, weights } => second(right_factor(*k, *n, *weights).into()),
            Packing::Recurrent(kernel) => second(kernel.clone().into()),
            Packing::Blocked { from, to } => {
                let bytes = to.iter().try_fold(4u64, |bytes, &extent| bytes.checked_mul(extent as u64));
                Ok(bytes.filter(|_| is_blocked(from, to)))
            }
            Packing::Padded => {
                Ok(elements.checked_next_multiple_of(BLOCK).and_then(|elements| 4u64.checked_mul(elements as u64)))
            }
            Packing::CompactConvolution(kernel) => second(kernel.clone().into()),
            Packing::Table { rows, weights } => {
                let scales = if *weights == WeightFormat::Int8 { 4u64.checked_mul(*rows as u64) } else { Some(0) };
                let bytes = (elements as u64).checked_mul(weights.size() as u64);
                let is_table = 0 < *rows && elements.is_multiple_of(*rows);
                Ok(bytes.zip(scales).and_then(|(bytes, scales)| bytes.checked_add(scales)).filter(|_| is_table))
            }
        }
    }

    fn pack(&self, items: &[f32]) -> Vec<u8> {
        if let Some(pieces) = self.pieces() {
            return floats(&(pieces.pack)(items, 0..pieces.count));
        }
        match self {
            Packing::Convolution { kernel, groups, together, out_channels } => {
                let joined = match together {
                    0 | 1 => None,
                    _ => Some(joined_weights(items, *groups, *together, *out_channels)),
                };
                let items = joined.as_deref().unwrap_or(items);
                match kernel {
                    PackedConv::Direct(kernel) => kernel.pack(items),
                    PackedConv::Winograd(kernel) => floats(&Winograd::pack(kernel, items)),
                    PackedConv::Depthwise(kernel) => floats(&DepthwiseBlocked::pack(kernel, items)),
                }
            }
            Packing::RowMajorConvolution(kernel) => floats(&kernel.pack(items)),
            Packing::TransposedConvolution(kernel) => floats(&kernel.pack(items)),
            Packing::BlockedTransposedConvolution(kernel) => floats(&kernel.pack(items)),
            Packing::RightFactor(kernel) => kernel.pack(items),
            Packing::TransposedFactor { k, n, weights } => {
                let mut transposed = vec![0.0; items.len()];
                for (column, row) in items.chunks_exact((*k).max(1)).enumerate() {
                    let to = transposed[column..].iter_mut().step_by((*n).max(1));
                    to.zip(row).for_each(|(to, item)| *to = *item);
                }
                right_factor(*k, *n, *weights).pack(&transposed)
            }
            Packing::Recurrent(kernel) => floats(&kernel.pack(items)),
            Packing::Blocked { from, to } => floats(&blocked(items, from, to)),
            Packing::Padded => {
                let mut bytes = floats(items);
                bytes.resize(4 * items.len().next_multiple_of(BLOCK), 0);
                bytes
            }
            Packing::CompactConvolution(kernel) => kernel.pack(items),
            Packing::Table { rows, weights } => {
                let row = (items.len() / rows).max(1);
                let (levels, scales) = weights::levels(Some(*weights), items, *rows, |at| at / row);
                weights::stored(Some(*weights), &levels, scales, *rows)
            }
        }
    }
}

/// Bytes of the weights of a part, about.
const PART_BYTES: usize = 4 << 20;

/// Packed `f32` weights whose pieces follow each other: strips of columns, panels of output channels, or these channels.
struct Pieces<'a> {
    count: usize,
    pack: Box<PackPieces<'a>>,
}

/// The packed weights of a range of pieces.
type PackPieces<'a> = dyn Fn(&[f32], Range<usize>) -> Vec<f32> + 'a;

impl<'a> Pieces<'a> {
    fn new(count: usize, pack: impl Fn(&[f32], Range<usize>) -> Vec<f32> + 'a) -> Pieces<'a> {
        Pieces { count, pack: Box::new(pack) }
    }

    /// Pieces of a part; one part of a tensor that is no `f32`.
    fn of_part(&self, tensor: &Tensor) -> usize {
        match tensor.dtype() {
            DType::F32 => {
                (PART_BYTES * self.count / size_of_val(tensor.as_slice::<f32>().unwrap_or_default()).max(1)).max(1)
            }
            _ => self.count.max(1),
        }
    }
}

/// The little-endian bytes of elements.
fn floats(items: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(items)];
    bytes.chunks_exact_mut(4).zip(items).for_each(|(to, item)| to.copy_from_slice(&item.to_le_bytes()));
    bytes
}

/// A product whose right factor has this form.
fn right_factor(k: usize, n: usize, weights: Option<WeightFormat>) -> MatMul {
    MatMul {
        batch: Vec::new(),
        a_strides: Vec::new(),
        b_strides: Vec::new(),
        m: 1,
        k,
        n,
        b: MatMulB::Packed,
        operands: StorageType::F32,
        weights,
        zero_point: 0,
        result: StorageType::F32,
        epilogue: Epilogue::default(),
    }
}

/// Weights `[out_channels, channels of a group, ..kernel]` as those of joined groups, `together` of them in each.
fn joined_weights(items: &[f32], groups: usize, together: usize, out_channels: usize) -> Vec<f32> {
    let row = items.len() / out_channels.max(1);
    let outs = out_channels / groups;
    let mut all = vec![0.0; items.len() * together];
    for (channel, (from, to)) in items.chunks_exact(row).zip(all.chunks_exact_mut(row * together)).enumerate() {
        let place = channel / outs % together * row;
        to[place..place + row].copy_from_slice(from);
    }
    all
}

/// Input channels of a group and output channels of a kernel.
fn kernel_channels(kernel: &PackedConv) -> [usize; 2] {
    match kernel {
        PackedConv::Direct(kernel) => [kernel.part_channels()[0], kernel.out_channels],
        PackedConv::Winograd(kernel) => [kernel.in_channels, kernel.out_channels],
        PackedConv::Depthwise(kernel) => [kernel.group[0], kernel.channels],
    }
}

/// The extent of an axis of a tensor `from` that is aligned on the right with blocks of `rank` axes and their lanes.
fn aligned_extent(from: &Shape, rank: usize, axis: usize) -> usize {
    if axis + from.rank() < rank { 1 } else { from[axis + from.rank() - rank] }
}

/// Whether blocks have a place for every element.
fn is_blocked(from: &Shape, to: &Shape) -> bool {
    let Some(rank) = to.rank().checked_sub(1).filter(|&rank| 2 <= rank && from.rank() <= rank) else { return false };
    let extent = |axis: usize| aligned_extent(from, rank, axis);
    let inner: Vec<usize> = (2..rank).map(extent).collect();
    extent(0) <= to[0]
        && extent(1).div_ceil(BLOCK) <= to[1]
        && product(&inner).is_some_and(|inner| product(&to[2..rank]).is_some_and(|places| inner <= places))
        && to[rank] == BLOCK
}

/// For tensors and blocks of [`is_blocked`].
fn blocked(items: &[f32], from: &Shape, to: &Shape) -> Vec<f32> {
    let rank = to.rank() - 1;
    let extent = |axis: usize| aligned_extent(from, rank, axis);
    let (outer, channels, inner) = (extent(0), extent(1), (2..rank).map(extent).product::<usize>());
    let mut blocked = vec![0.0; to.elements()];
    for (number, item) in items.iter().enumerate().take(outer * channels * inner) {
        let (image, channel, at) = (number / inner / channels, number / inner % channels, number % inner);
        blocked[((image * to[1] + channel / BLOCK) * inner + at) * BLOCK + channel % BLOCK] = *item;
    }
    blocked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConvAlgorithm, ImageLayout, Weights, Window};

    #[test]
    fn parts_are_the_packed_bytes() {
        let [ins, outs] = [515, 700];
        let epilogue = Epilogue::default();
        let window =
            Window { input: [9; 2], output: [5; 2], kernel: [3; 2], stride: [2; 2], dilation: [1; 2], pad: [1; 2] };
        let row_major = Conv {
            batch: 1,
            in_channels: ins,
            out_channels: outs,
            groups: 1,
            window,
            weights: Weights::Packed,
            epilogue: epilogue.clone(),
            workspace_max: 0,
        };
        let direct = ConvBlocked {
            batch: 1,
            in_channels: ins,
            out_channels: outs,
            groups: 1,
            joined: 1,
            window,
            layout: ImageLayout::Blocked,
            algorithm: ConvAlgorithm::InPlace,
            operands: StorageType::F32,
            weights: None,
            zero_point: 0,
            result: StorageType::F32,
            epilogue: epilogue.clone(),
        };
        let winograd = Winograd {
            batch: 1,
            in_channels: ins,
            out_channels: outs,
            window: Window { output: [9; 2], stride: [1; 2], ..direct.window },
            tile: 4,
            epilogue,
            workspace_max: Winograd::WORKSPACE_MAX,
        };
        let of_conv = |kernel| Packing::Convolution { kernel, groups: 1, together: 0, out_channels: outs };
        let packings = [
            of_conv(PackedConv::Direct(direct.clone())),
            of_conv(PackedConv::Winograd(winograd)),
            Packing::RowMajorConvolution(row_major),
            Packing::RightFactor(right_factor(outs, ins * 9, None)),
            Packing::TransposedFactor { k: ins * 9, n: outs, weights: None },
        ];
        let tensor = Tensor::from_fn(Shape::from([outs, ins * 9]), |at| at as f32);
        for packing in packings {
            let parts = packing.parts(&tensor);
            assert!((3..=5).contains(&parts), "{packing:?}: {parts} parts of 12 MiB");
            let packed: Vec<u8> = (0..parts).flat_map(|part| packing.pack_part(&tensor, part)).collect();
            assert!(packed == packing.apply(&tensor), "{packing:?}");
        }
        let in_bf16 = of_conv(PackedConv::Direct(ConvBlocked { weights: Some(WeightFormat::Bf16), ..direct }));
        assert_eq!(in_bf16.parts(&tensor), 1);
        assert!(in_bf16.pack_part(&tensor, 0) == in_bf16.apply(&tensor));
    }

    #[test]
    fn transposed_factor_is_packed_as_its_transpose() {
        // Rows in several parts of the inner dimension, and columns that fill no strip.
        let (k, n) = (2100, 45);
        let matrix = Tensor::from_fn(Shape::from([k, n]), |at| at as f32);
        let transpose = Tensor::from_fn(Shape::from([n, k]), |at| (at % k * n + at / k) as f32);
        for weights in [None, Some(WeightFormat::Bf16), Some(WeightFormat::Int8)] {
            let want = Packing::RightFactor(right_factor(k, n, weights)).apply(&matrix);
            assert!(Packing::TransposedFactor { k, n, weights }.apply(&transpose) == want, "{weights:?}");
        }
    }

    #[test]
    fn factors_without_terms_have_an_empty_form() {
        let empty = |shape: [usize; 2]| Tensor::from_fn(Shape::from(shape), |_| 0.0f32);
        assert!(Packing::TransposedFactor { k: 0, n: 3, weights: None }.apply(&empty([3, 0])).is_empty());
        assert!(Packing::RightFactor(right_factor(0, 3, None)).apply(&empty([0, 3])).is_empty());
    }

    #[test]
    fn size_is_that_of_the_packed_bytes() {
        let (k, n) = (5, 37);
        let blocks = Packing::Blocked { from: Shape::from([20, 1, 1]), to: Shape::from([1, 2, 1, 1, 16]) };
        let cases = [
            (Packing::Padded, 20),
            (Packing::TransposedFactor { k, n, weights: None }, k * n),
            (Packing::TransposedFactor { k, n, weights: Some(WeightFormat::Bf16) }, k * n),
            (Packing::RightFactor(right_factor(k, n, None)), k * n),
            (Packing::RightFactor(right_factor(k, n, Some(WeightFormat::Int8))), k * n),
            (Packing::Table { rows: n, weights: WeightFormat::Bf16 }, k * n),
            (Packing::Table { rows: n, weights: WeightFormat::Int8 }, k * n),
            (blocks, 20),
        ];
        for (packing, elements) in cases {
            let tensor = Tensor::from_fn(Shape::from([elements]), |at| at as f32);
            let bytes = packing.apply(&tensor);
            assert_eq!(packing.size(elements), Ok(Some(bytes.len() as u64)), "{packing:?}");
        }
    }

    #[test]
    fn size_of_hostile_parameters_is_none_or_an_error() {
        let to = Shape::from([1 << 40, 1 << 40, 16]);
        assert_eq!(Packing::Blocked { from: Shape::from([1]), to }.size(1), Ok(None));
        // Neighbors in a block are of one channel, images of one number: other blocks have no place for some elements.
        for (from, to) in [
            (Shape::from([2, 3, 4]), Shape::from([1, 1, 4, 16])),
            (Shape::from([2, 17, 4]), Shape::from([2, 1, 4, 16])),
            (Shape::from([2, 3, 5]), Shape::from([2, 1, 4, 16])),
            (Shape::from([2, 3, 4]), Shape::from([2, 1, 8, 8])),
        ] {
            let elements = from.elements();
            assert_eq!(Packing::Blocked { from, to }.size(elements), Ok(None));
        }
        for to in [Shape::scalar(), Shape::from([16]), Shape::from([1, 16])] {
            assert_eq!(Packing::Blocked { from: Shape::from([1]), to }.size(1), Ok(None));
        }
        assert_eq!(Packing::Padded.size(usize::MAX), Ok(None));
        for (rows, elements) in [(0, 4), (3, 4), (usize::MAX, usize::MAX)] {
            assert_eq!(Packing::Table { rows, weights: WeightFormat::Int8 }.size(elements), Ok(None));
        }
        let most = usize::MAX / 2;
        assert!(!matches!(Packing::TransposedFactor { k: most, n: most, weights: None }.size(1), Ok(Some(_))));
    }
}
