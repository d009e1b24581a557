//! The types of a plan. They are its own: no type of the graph is written to an executable.

use serde::{Deserialize, Serialize};
use types::{Bytes, Certificate, DType, Layout, Preprocess, Role, Scope, Shape, Tag};

/// What runs: steps, the place of every byte, packed constants, and what callers need to know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// What the plan was compiled for, as in `cpu:x86-64-v4`; behind a `+` what is stored between kernels, where it is
    /// not `f32`.
    pub target: String,
    /// The first extent of the inputs.
    pub batch: u64,
    /// Elements of the model's learned weights, before any were folded together.
    pub parameters: u64,
    /// Arithmetic operations of one run; a multiply-add counts as two.
    pub flops: u64,
    /// What callers write before a run.
    pub inputs: Vec<Port>,
    /// What callers read after a run.
    pub outputs: Vec<Port>,
    /// What one run leaves for the next.
    pub states: Vec<StatePort>,
    /// The kernel calls, in order.
    pub steps: Vec<Step>,
    /// The bytes that live in the arena.
    pub buffers: Vec<Buffer>,
    /// The arena.
    pub arena: Arena,
    /// The arena's lower bound as the peak of this order of the steps, with its lower bounds over all orders.
    pub order: Certificate,
    /// Machine code that steps call, where it is not part of the runner.
    pub modules: Vec<DeviceCode>,
    /// The packed constants, in order of their offsets.
    pub constants: Vec<Constant>,
    /// The size of the section that holds the constants.
    pub constants_size: Bytes,
    /// How a picture becomes the model's one input, where it is one.
    pub preprocess: Option<Preprocess>,
    /// The names of the classes that the first output scores; empty where there are none.
    pub labels: Vec<String>,
}

/// Machine code for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCode {
    /// What it is for, as `sm_90`.
    pub arch: String,
    /// A file that the device's driver loads.
    pub code: Vec<u8>,
}

/// A position in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferIx(pub u32);

/// A position in [`Plan::constants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConstantIx(pub u32);

/// A named input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// The name callers know it by.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its extents.
    pub shape: Shape,
    /// How its elements lie.
    pub layout: Layout,
    /// Where it lies.
    pub operand: Operand,
}

/// A named value that is kept between runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatePort {
    /// Name, type and operand. The operand is in a persistent buffer.
    pub port: Port,
    /// The bytes before the first run.
    pub initial: Initial,
}

/// The bytes of a state before the first run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Initial {
    /// All zero; they take nothing in the image.
    Zeros,
    /// Those of a constant.
    Constant(ConstantIx),
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The node this call serves.
    pub scope: Scope,
    /// The kernel's name.
    pub kernel: String,
    /// What the kernel does, for eyes.
    pub label: String,
    /// The kernel and its parameters, in the target's own encoding.
    pub code: Vec<u8>,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it writes. An output may be an input's very bytes; otherwise they share none.
    pub outputs: Vec<Operand>,
    /// Scratch that is alive for this step only.
    pub workspace: Option<Operand>,
    /// Arithmetic operations.
    pub flops: u64,
}

/// A range of bytes that a step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// What the range is part of.
    pub place: Place,
    /// Where it starts in there.
    pub offset: Bytes,
    /// How long it is.
    pub size: Bytes,
}

/// What an operand is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A buffer in the arena.
    Buffer(BufferIx),
    /// A packed constant.
    Constant(ConstantIx),
}

/// Bytes that live in the arena from one step to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Whose bytes these are, and what for.
    pub tag: Tag,
    /// How many.
    pub size: Bytes,
    /// Where in the arena.
    pub offset: Bytes,
    /// The first step at which they must not be disturbed.
    pub first_step: u32,
    /// The last such step, itself included.
    pub last_step: u32,
    /// How long its bytes are kept.
    pub persistence: Persistence,
    /// The values that lie in it at one time or another, in the order in which steps touch them; none in scratch.
    pub values: Vec<ValueSpan>,
    /// Shared bytes that would have made this buffer needless, and why they are not shared.
    pub refused: Vec<RefusedSharing>,
}

/// How long the bytes of a buffer are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// From the buffer's first step to its last, within a run.
    #[default]
    Run,
    /// From run to run while a session is open. Such a buffer lives from the first step to the last.
    Session,
}

/// A value that lies in a buffer. Nothing that runs reads this: it is what the buffer's bytes are called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueSpan {
    /// The scope of the node that yields it, or the name of the input.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its extents.
    pub shape: Shape,
    /// How its elements lie.
    pub layout: Layout,
    /// Where in the buffer.
    pub offset: Bytes,
    /// The first step that touches it.
    pub first_step: u32,
    /// The last step that touches it, itself included.
    pub last_step: u32,
    /// How it came to lie in this buffer.
    pub sharing: Sharing,
}

impl ValueSpan {
    /// How many bytes it has.
    pub fn size(&self) -> Bytes {
        self.layout.size(&self.shape, self.dtype)
    }
}

/// How a value came to lie where it lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    /// The buffer was made for it.
    #[default]
    Own,
    /// It is a part of another value's bytes, read under another shape.
    View,
    /// It is written where a concatenation wants it.
    Part,
    /// It takes the bytes of an operand that dies with it.
    InPlace,
}

/// Bytes that could have been shared and are not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedSharing {
    /// The node at which they would have been shared.
    pub node: Scope,
    /// The value whose bytes were wanted.
    pub of: String,
    /// What kind of sharing it would have been.
    pub sharing: Sharing,
    /// Why not.
    pub reason: RefusedReason,
}

/// Why bytes are not shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusedReason {
    /// A later node still reads what lies there.
    ReadLater {
        /// The last node that does.
        by: Scope,
    },
    /// What lies there is a result of the model.
    Output,
    /// What lies there is written by the caller, or is known and in the image.
    Given,
    /// The kernel still reads its operand while it writes its result, or another operand lies on the same bytes.
    Kernel,
    /// The bytes lie in a block with others, so that they cannot move.
    Occupied,
    /// The most bytes alive at once would grow.
    Peak {
        /// By how many.
        more: Bytes,
    },
}

/// The one block of memory that holds all buffers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arena {
    /// Every buffer's offset is a multiple of this.
    pub alignment: Bytes,
    /// A step whose live bytes are the lower bound.
    pub peak_step: u32,
    /// The size of the arena, with its lower bounds over all placements of these buffers.
    ///
    /// The lower bound is the largest sum of live buffers, each rounded up to the alignment.
    pub certificate: Certificate,
}

impl Arena {
    /// The size in bytes.
    pub fn size(&self) -> Bytes {
        self.certificate.value
    }
}

/// Bytes that the image holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Whose bytes these are.
    pub tag: Tag,
    /// The dtype of the tensor they were packed from.
    pub dtype: DType,
    /// The extents of that tensor.
    pub shape: Shape,
    /// Where in the constants' section.
    pub offset: Bytes,
    /// How many.
    pub size: Bytes,
}

impl Plan {
    /// The bytes of a role: buffers add up without regard to time, weights and constants come from the image.
    pub fn size_of_role(&self, role: Role) -> Bytes {
        let buffers = self.buffers.iter().filter(|buffer| buffer.tag.role == role).map(|buffer| buffer.size);
        let constants =
            self.constants.iter().filter(|constant| constant.tag.role == role).map(|constant| constant.size);
        buffers.chain(constants).sum()
    }

    /// The placement problem that the buffers pose.
    pub fn problem(&self) -> arena::Problem {
        let alignment = Bytes(self.arena.alignment.0.max(1));
        let buffer = |buffer: &Buffer| arena::Buffer {
            lifetime: arena::Lifetime { first: buffer.first_step, end: buffer.last_step + 1 },
            // Rounded, so that the bound is exact: whatever lies above a buffer starts at a multiple of the alignment.
            size: buffer.size.align_up(alignment),
            alignment,
            fixed: None,
            hint: None,
            gaps: Vec::new(),
        };
        arena::Problem { buffers: self.buffers.iter().map(buffer).collect(), capacity: None }
    }

    /// The number of steps, with one as the least: what lifetimes are counted in.
    pub fn step_count(&self) -> u32 {
        (self.steps.len() as u32).max(1)
    }

    /// The first and the one-past-last byte in the arena of an operand, where it lies in a buffer that exists.
    pub fn arena_range(&self, operand: &Operand) -> Option<std::ops::Range<u64>> {
        let Place::Buffer(BufferIx(ix)) = operand.place else { return None };
        let start = self.buffers.get(ix as usize)?.offset.0.checked_add(operand.offset.0)?;
        Some(start..start.checked_add(operand.size.0)?)
    }
}
