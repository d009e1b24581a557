//! [`CompactConv`]: a row-major convolution by weights that are stored in fewer bits. Each run decodes them into the
//! workspace: an element of the weights is used for every pixel of the result, so that this is a small part of the work.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::{ChannelAxis, WeightFormat};

use crate::conv::ConvUnbuffered;
use crate::conv::row_major::Conv;
use crate::conv::transpose::ConvTranspose;
use crate::gemm::weights;
use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, elements_mut, input, product};
use crate::simd::{StorageType, storage};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Weights that a task decodes.
const TASK: usize = 1 << 13;

/// A convolution by row-major weights of `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlainConv {
    /// With run-time weights.
    Conv(Conv),
    /// With run-time weights.
    Transpose(ConvTranspose),
    /// Without workspace.
    Unbuffered(ConvUnbuffered),
}

/// [`PlainConv`] by weights in another form: `[groups, ins, outs, inner]`, followed for int8 by a scale of `f32` for each of
/// `groups * outs` channels.
///
/// Refuses: extents whose product is not the number of weights; parameters that the convolution refuses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompactConv {
    /// The convolution.
    pub conv: PlainConv,
    /// The form of the stored weights.
    pub weights: WeightFormat,
    /// Groups, channels in front of the output channel, output channels of a group, and weights of a pair.
    pub extents: [usize; 4],
}

impl PlainConv {
    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        match self {
            PlainConv::Conv(conv) => conv.sizes(),
            PlainConv::Transpose(conv) => conv.sizes(),
            PlainConv::Unbuffered(conv) => conv.sizes(),
        }
    }

    fn may_share(&self, input: usize) -> bool {
        match self {
            PlainConv::Conv(conv) => conv.may_share(input),
            PlainConv::Transpose(conv) => conv.may_share(input),
            PlainConv::Unbuffered(conv) => conv.may_share(input),
        }
    }

    fn run(&self, args: Args, pool: &Pool) {
        match self {
            PlainConv::Conv(conv) => conv.run(args, pool),
            PlainConv::Transpose(conv) => conv.run(args, pool),
            PlainConv::Unbuffered(conv) => conv.run(args, pool),
        }
    }
}

impl CompactConv {
    /// The extents of weights of a shape with output channels along an axis.
    pub fn extents_of(shape: &[usize], channels: ChannelAxis) -> [usize; 4] {
        let inner = |from: usize| shape.iter().skip(from).product();
        match channels {
            ChannelAxis::First => [1, 1, shape[0], inner(1)],
            ChannelAxis::Last => [1, shape.iter().rev().skip(1).product(), inner(shape.len() - 1), 1],
            ChannelAxis::Groups(groups) => [groups, shape[0] / groups.max(1), shape[1], inner(2)],
        }
    }

    /// The channel of a weight.
    fn channel(&self, at: usize) -> usize {
        let [_, ins, outs, inner] = self.extents;
        at / inner / outs / ins * outs + at / inner % outs
    }

    /// Weights in the order of the model, in their stored form.
    ///
    /// # Panics
    /// Another number of weights.
    pub fn pack(&self, items: &[f32]) -> Vec<u8> {
        let [groups, _, outs, _] = self.extents;
        assert_eq!(Some(items.len()), product(&self.extents), "the weights must have the kernel's shape");
        let format = Some(self.weights);
        let (levels, scales) = weights::levels(format, items, groups * outs, |at| self.channel(at));
        weights::stored(format, &levels, scales, groups * outs)
    }
}

impl KernelFn for CompactConv {
    const NAME: &'static str = "compact_conv";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let mut sizes = self.conv.sizes()?;
        let overflow = InvalidKernel("sizes must not overflow");
        let [groups, _, outs, _] = self.extents;
        let count = product(&self.extents).ok_or(overflow)?;
        let decoded = count.checked_mul(4).ok_or(overflow)? as u64;
        if sizes.inputs[1] != decoded {
            return Err(InvalidKernel("`extents` must be those of the weights in the order of the model"));
        }
        let scales = match self.weights {
            WeightFormat::Bf16 => Some(0),
            WeightFormat::Int8 => product(&[groups, outs, 4]),
        };
        let bytes =
            count.checked_mul(self.weights.size()).zip(scales).and_then(|(all, scales)| all.checked_add(scales));
        sizes.inputs[1] = bytes.ok_or(overflow)? as u64;
        if sizes.outputs[0] != 0 {
            let workspace = sizes.workspace.checked_add(decoded).filter(|&bytes| bytes <= isize::MAX as u64);
            sizes.workspace = workspace.ok_or(overflow)?;
        }
        Ok(sizes)
    }

    fn alignment(&self, input: Option<usize>) -> usize {
        // Scales may follow an odd number of bytes.
        match input {
            Some(1) if self.weights == WeightFormat::Int8 => 1,
            Some(1) => self.weights.size(),
            _ => 4,
        }
    }

    fn may_share(&self, input: usize) -> bool {
        self.conv.may_share(input)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let stored: &[u8] = input(&args, 1);
        let [_, _, _, inner] = self.extents;
        let count: usize = self.extents.iter().product();
        let (decoded, workspace) = args.workspace.split_at_mut(4 * count);
        let (items, scales) = stored.split_at(count * self.weights.size());
        let (scales, _) = scales.as_chunks::<4>();
        let cells: &mut [f32] = elements_mut(decoded);
        let chunk = inner * (TASK / inner.max(1)).max(1);
        for_each_chunk(pool, cells, chunk, &|number, cells| {
            let start = number * chunk;
            let size = self.weights.size();
            let stored = StorageType::of(self.weights.dtype()).expect("weights are stored as numbers");
            storage::widen(pool.isa(), stored, &items[start * size..][..cells.len() * size], cells);
            if self.weights == WeightFormat::Int8 {
                for (pair, cells) in cells.chunks_exact_mut(inner).enumerate() {
                    let scale = f32::from_ne_bytes(scales[self.channel(start + pair * inner)]);
                    cells.iter_mut().for_each(|cell| *cell *= scale);
                }
            }
        });
        let mut inputs: SmallVec<[Operand; 4]> = SmallVec::from_slice(args.inputs);
        inputs[1] = Operand::Bytes(decoded);
        self.conv.run(Args { inputs: &inputs, outputs: args.outputs, workspace }, pool);
    }
}
