//! The types of a plan. No type of the graph is written to an executable.

use serde::{Deserialize, Serialize};
use types::{
    ByteSpan, Bytes, Certificate, Certificates, DType, Derivation, Layout, Preprocess, Role, Scope, Shape, Tag,
};

use crate::image::PAGE;

/// An execution plan: steps, the offset of every buffer, packed constants, and named ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// The target, as in `cpu:x86-64-v4`; after a `+` the precision of values between kernels, if it is not `f32`.
    pub target: String,
    /// The purpose of a run.
    pub phase: Phase,
    /// The first extent of the inputs.
    pub batch: u64,
    /// Elements of the model's learned weights, before any are folded.
    pub parameters: u64,
    /// Arithmetic operations of one run; a multiply-add counts as two.
    pub flops: u64,
    /// The ports that callers write before a run.
    pub inputs: Vec<Port>,
    /// The ports that callers read after a run.
    pub outputs: Vec<Port>,
    /// The values that one run leaves for the next.
    pub states: Vec<StatePort>,
    /// The kernel calls, in order.
    pub steps: Vec<Step>,
    /// The buffers of the arena.
    pub buffers: Vec<Buffer>,
    /// The arena.
    pub arena: Arena,
    /// The arena's lower bound as the peak of this order of the steps, with its lower bounds over all orders.
    pub order: Certificate,
    /// A lower bound on the arena of these steps with any kernels and layouts, in any order; zero if none is proved.
    pub any_kernels: Bytes,
    /// Kernels and layouts that need fewer bytes at the peak and were not chosen, for reports.
    pub alternatives: Vec<Alternative>,
    /// The nodes that a library and an emitted kernel could compute, with the choice, for reports.
    pub choices: Vec<KernelChoice>,
    /// The limit that the arena was planned for, if it would be larger without one.
    pub limit: Option<ArenaLimit>,
    /// Machine code that steps call, if it is not part of the runner.
    pub modules: Vec<DeviceCode>,
    /// The packed constants, in order of their offsets.
    pub constants: Vec<Constant>,
    /// The size of the section that holds the constants.
    pub constants_size: Bytes,
    /// Where constants are in memory at each step, if they are read in every run. `None`: all are in memory.
    pub residency: Option<Residency>,
    /// The file of weights that recipes refer to, without folder and extension; empty if constants have no recipes.
    pub weights_name: String,
    /// How an image becomes the model's one input, if the model takes images.
    pub preprocess: Option<Preprocess>,
    /// The names of the classes that the first output scores; may be empty.
    pub labels: Vec<String>,
}

/// The purpose of a run of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// The model's outputs.
    #[default]
    Inference,
    /// One step of training: forward, backward and update of its states. The scalar output [`Training::LOSS`] is the loss.
    Training(Training),
    /// The outputs of a model that is trained, and its loss by sample, from states of the same names as those of the step.
    Evaluation(Training),
}

impl Phase {
    /// The facts of training, unless the plan is for inference.
    pub fn training(&self) -> Option<&Training> {
        match self {
            Phase::Inference => None,
            Phase::Training(training) | Phase::Evaluation(training) => Some(training),
        }
    }
}

/// A training step's inputs and the recipe that it was compiled from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The loss, for people.
    pub loss: String,
    /// The optimizer, as the compiler's command line has it.
    pub optimizer: String,
    /// The learning rate if the caller chooses none.
    pub learning_rate: f32,
    /// The inputs that are labels; the other inputs of samples are the model's.
    pub labels: Vec<String>,
    /// The states that are matrices which files of weights hold with rows and columns exchanged.
    pub transposed: Vec<String>,
    /// The output that labels are compared with, if the loss has one.
    pub prediction: Option<String>,
    /// The label of samples that count for nothing.
    pub ignored_label: Option<i64>,
    /// The batches whose gradients one step adds up.
    pub accumulate: u32,
}

impl Training {
    /// The input `f32[]` of the learning rate.
    pub const LEARNING_RATE: &'static str = "learning_rate";
    /// The input `i64[]` of the step's number, which counts from 1, if the optimizer depends on it.
    pub const STEP: &'static str = "step";
    /// The input `i64[2]` of seed and step, from which dropout draws, if the model has any.
    pub const KEY: &'static str = "key";
    /// The output of the loss: `f32[]` of a step; `f32[batch]`, or `f32[]` if the loss has no value per sample, of an
    /// evaluation.
    pub const LOSS: &'static str = "loss";

    /// Whether an input is a sample's, and not one of the step's scalars.
    pub fn is_of_samples(name: &str) -> bool {
        ![Training::LEARNING_RATE, Training::STEP, Training::KEY].contains(&name)
    }
}

/// Machine code for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCode {
    /// The architecture, as `sm_90`.
    pub arch: String,
    /// The bytes of a file that the device's driver loads.
    pub code: Vec<u8>,
}

/// A position in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferIx(pub u32);

/// A position in [`Plan::constants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConstantIx(pub u32);

/// A named input, output or state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// The name that callers use.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its extents.
    pub shape: Shape,
    /// The order of its elements in memory.
    pub layout: Layout,
    /// Its bytes.
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
    /// A description of the kernel's work, for people.
    pub label: String,
    /// The kernel and its parameters, in the target's encoding.
    pub code: Vec<u8>,
    /// The operands that it reads.
    pub inputs: Vec<Operand>,
    /// The operands that it writes. An output is exactly the bytes of an input, or shares none with it.
    pub outputs: Vec<Operand>,
    /// Workspace, alive for this step only.
    pub workspace: Option<Operand>,
    /// Arithmetic operations.
    pub flops: u64,
}

/// Kernels and layouts that were not chosen, with the bytes that they save and the time that they cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The node that differs; the first if there are several.
    pub scope: Scope,
    /// The other kernels and layouts, for people.
    pub change: String,
    /// The live bytes by which the peak falls.
    pub saves: Bytes,
    /// The modelled time of a run, in the unit of the target's costs: picoseconds on CPUs.
    pub time: u64,
    /// The modelled time of a run with the alternative.
    pub other_time: u64,
}

/// The choice between a library's kernel and an emitted one for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelChoice {
    /// The node.
    pub scope: Scope,
    /// The name of the kernel that was taken.
    pub taken: String,
    /// The name of the other one.
    pub other: String,
    /// The times in picoseconds of the one taken and of the other, with the kernels that follow it.
    pub times: [u64; 2],
    /// Whether the choice follows a measurement on the GPU; otherwise it follows the times, which are modelled.
    pub measured: bool,
}

/// A limit of the arena, with its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaLimit {
    /// The largest arena.
    pub bytes: Bytes,
    /// The arena without a limit.
    pub unlimited: Bytes,
    /// The modelled time of a run, in thousandths of that without a limit.
    pub time_permille: u64,
}

/// A range of bytes that a step reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer or constant that the range is part of.
    pub place: Place,
    /// Its start in the buffer or constant.
    pub offset: Bytes,
    /// Its length.
    pub size: Bytes,
}

/// The buffer or constant that an operand is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// A buffer in the arena.
    Buffer(BufferIx),
    /// A packed constant.
    Constant(ConstantIx),
}

/// A range of the arena with a lifetime.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its scope and role.
    pub tag: Tag,
    /// Its size.
    pub size: Bytes,
    /// Its offset in the arena.
    pub offset: Bytes,
    /// The first step of its lifetime.
    pub first_step: u32,
    /// The last step of its lifetime, included.
    pub last_step: u32,
    /// How long its bytes are kept.
    pub persistence: Persistence,
    /// The values that it holds over time, in the order in which steps use them; a workspace has none.
    pub values: Vec<ValueSpan>,
    /// Sharing that would have made this buffer unnecessary, with the reason why it was refused.
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

/// A value that a buffer holds for some steps. Only reports use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueSpan {
    /// The scope of the node that produces it, or the name of the input.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its extents.
    pub shape: Shape,
    /// The order of its elements in memory.
    pub layout: Layout,
    /// Its offset in the buffer.
    pub offset: Bytes,
    /// The first step that uses it.
    pub first_step: u32,
    /// The last step that uses it, included.
    pub last_step: u32,
    /// Why it is in this buffer.
    pub sharing: Sharing,
}

impl ValueSpan {
    /// Its size in bytes.
    pub fn size(&self) -> Bytes {
        self.layout.size(&self.shape, self.dtype)
    }
}

/// Why a value is in its buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sharing {
    /// The buffer is its own.
    #[default]
    Own,
    /// It is a view: bytes of another value under another shape.
    View,
    /// It is written at its position in the result of a concatenation.
    ConcatSlice,
    /// It overwrites an operand that has no later reader.
    InPlace,
}

/// Two values that could have shared bytes and do not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusedSharing {
    /// The node at which they would have shared.
    pub node: Scope,
    /// The value whose bytes would have been shared.
    pub of: String,
    /// The kind of sharing.
    pub sharing: Sharing,
    /// The reason for the refusal.
    pub reason: RefusedReason,
}

/// Reason why two values do not share bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusedReason {
    /// A later node reads the old value.
    ReadLater {
        /// The last such node.
        by: Scope,
    },
    /// The old value is an output of the model.
    Output,
    /// The caller writes the old value, an earlier run did, or it is a constant of the image.
    Given,
    /// The kernel reads its operand while it writes its result, or another operand has the same bytes.
    Kernel,
    /// The bytes are part of a buffer with other values, so that they cannot move.
    Occupied,
    /// The peak of live bytes would grow.
    Peak {
        /// By this many bytes.
        more: Bytes,
    },
}

/// The block of memory that holds all buffers.
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

/// A packed tensor of the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Its scope and role.
    pub tag: Tag,
    /// The dtype of the tensor before packing.
    pub dtype: DType,
    /// The shape of that tensor.
    pub shape: Shape,
    /// Its offset in the constants' section.
    pub offset: Bytes,
    /// Its size as packed.
    pub size: Bytes,
    /// How it is packed from a file of weights, if it follows from tensors of such a file.
    pub recipe: Option<ConstantRecipe>,
}

/// The constants in memory at each step of a plan whose constants are read from its file in every run.
///
/// They are in a block of memory behind the arena. A constant occupies whole pages of file and block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// The limit of arena and block together.
    pub limit: Bytes,
    /// The size of the block.
    pub size: Bytes,
    /// The constants that stay. They are read once, when the plan is opened.
    pub kept: Vec<ResidentConstant>,
    /// The reads of a run, in order; first steps do not decrease.
    pub reads: Vec<ResidentConstant>,
    /// By constant: XXH3-64 of its bytes, which every read is compared with.
    pub checksums: Vec<u64>,
}

/// A constant in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidentConstant {
    /// The constant.
    pub constant: ConstantIx,
    /// Its offset in the block.
    pub offset: Bytes,
    /// The first step at which the bytes are its own. A read starts after the steps before, and ends before the first of
    /// these steps that uses the constant.
    pub first_step: u32,
    /// The last step that uses it, included.
    pub last_step: u32,
}

impl ResidentConstant {
    /// Whether the bytes are its own at a step.
    pub fn is_alive(&self, step: u32) -> bool {
        (self.first_step..=self.last_step).contains(&step)
    }
}

/// How a constant is made from a file of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstantRecipe {
    /// The tensor.
    pub tensor: Derivation,
    /// The form in which kernels read it, in the target's encoding. Empty: its elements as they are, little-endian.
    pub packing: Vec<u8>,
}

/// The steps at which not all bytes of a buffer are in use, in its lifetime, with windows of multiples of the alignment.
fn gaps(uses: &[ByteSpan], size: Bytes, alignment: Bytes, lifetime: arena::Lifetime) -> Vec<arena::Gap> {
    let mut gaps = Vec::new();
    let mut push = |first: u32, end: u32, window: Option<arena::ByteWindow>| {
        let lifetime = arena::Lifetime { first: first.max(lifetime.first), end: end.min(lifetime.end) };
        if !lifetime.is_empty() {
            gaps.push(arena::Gap { lifetime, window });
        }
    };
    let mut used_until = None;
    for ByteSpan { bytes, steps } in types::hulls(uses, alignment) {
        if let Some(end) = used_until {
            push(end, steps.start, None);
        }
        let window = arena::ByteWindow { low: Bytes(bytes.start).min(size), high: Bytes(bytes.end).min(size) };
        if window.low != Bytes::ZERO || window.high != size {
            push(steps.start, steps.end, Some(window));
        }
        used_until = Some(steps.end);
    }
    gaps
}

impl Plan {
    /// The sum of all buffers and constants of a role, at whatever steps they live.
    pub fn size_of_role(&self, role: Role) -> Bytes {
        let buffers = self.buffers.iter().filter(|buffer| buffer.tag.role == role).map(|buffer| buffer.size);
        let constants =
            self.constants.iter().filter(|constant| constant.tag.role == role).map(|constant| constant.size);
        buffers.chain(constants).sum()
    }

    /// The placement problem of the buffers. At each step a buffer occupies the [hull](types::hulls) of the bytes that operands
    /// use, which grows with each written slice of a concatenation and shrinks with each part of a split that is not read
    /// again.
    pub fn problem(&self) -> arena::Problem {
        let alignment = Bytes(self.arena.alignment.0.max(1));
        let buffer = |(buffer, uses): (&Buffer, Vec<ByteSpan>)| {
            // Rounded up, so that the lower bound is exact: the next buffer starts at a multiple of the alignment.
            let size = buffer.size.align_up(alignment);
            let lifetime = arena::Lifetime { first: buffer.first_step, end: buffer.last_step.saturating_add(1) };
            let gaps = match buffer.persistence {
                Persistence::Run => gaps(&uses, size, alignment, lifetime),
                Persistence::Session => Vec::new(),
            };
            arena::Buffer { lifetime, size, alignment, fixed: None, hint: None, gaps }
        };
        arena::Problem { buffers: self.buffers.iter().zip(self.uses()).map(buffer).collect(), capacity: None }
    }

    /// By buffer, the operands in it.
    fn uses(&self) -> Vec<Vec<ByteSpan>> {
        let last = self.step_count() - 1;
        let mut uses: Vec<Vec<ByteSpan>> = vec![Vec::new(); self.buffers.len()];
        let mut add = |operand: &Operand, step: u32| {
            if let Place::Buffer(BufferIx(ix)) = operand.place
                && let Some(uses) = uses.get_mut(ix as usize)
            {
                let end = operand.offset.0.saturating_add(operand.size.0);
                uses.push(ByteSpan { bytes: operand.offset.0..end, steps: step..step + 1 });
            }
        };
        self.inputs.iter().for_each(|port| add(&port.operand, 0));
        self.outputs.iter().for_each(|port| add(&port.operand, last));
        for (at, step) in self.steps.iter().enumerate() {
            let operands = step.inputs.iter().chain(&step.outputs).chain(&step.workspace);
            operands.for_each(|operand| add(operand, at as u32));
        }
        uses
    }

    /// The bytes of a constant in the block of a [`Residency`]: whole pages.
    pub fn resident_size(&self, resident: &ResidentConstant) -> Bytes {
        let size = self.constants.get(resident.constant.0 as usize).map_or(Bytes::ZERO, |constant| constant.size);
        size.align_up(Bytes(PAGE))
    }

    /// The bytes of constants that a run reads from the file.
    pub fn read_size(&self) -> Bytes {
        let reads = self.residency.iter().flat_map(|residency| &residency.reads);
        reads.map(|read| self.resident_size(read)).sum()
    }

    /// No order of reads needs fewer bytes per run in the same memory: at a step, at most the limit less the arena is in
    /// memory, and every other constant is read before that step of the next run.
    pub fn least_read_size(&self) -> Bytes {
        let Some(Residency { limit, kept, reads, .. }) = &self.residency else { return Bytes::ZERO };
        let mut used: Vec<&ResidentConstant> = kept.iter().chain(reads).collect();
        used.sort_by_key(|resident| resident.constant);
        used.dedup_by_key(|resident| resident.constant);
        let used: Bytes = used.into_iter().map(|resident| self.resident_size(resident)).sum();
        Bytes(used.0.saturating_sub(limit.0.saturating_sub(self.arena.size().0)))
    }

    /// The constants that a step uses, each once. Constants without bytes are left out.
    pub fn constants_of(&self, step: &Step) -> Vec<ConstantIx> {
        let constant = |operand: &Operand| match operand.place {
            Place::Constant(ix) if 0 < operand.size.0 => Some(ix),
            _ => None,
        };
        let mut used: Vec<ConstantIx> = step.inputs.iter().filter_map(constant).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Proved bounds of the arena.
    pub fn certificates(&self) -> Certificates {
        Certificates { arena: self.arena.certificate, order: self.order, any_kernels: self.any_kernels }
    }

    /// The number of steps, at least one: the range of lifetimes.
    pub fn step_count(&self) -> u32 {
        (self.steps.len() as u32).max(1)
    }

    /// The range of an operand in the arena. `None` for a constant and for a buffer that does not exist.
    pub fn arena_range(&self, operand: &Operand) -> Option<std::ops::Range<u64>> {
        let Place::Buffer(BufferIx(ix)) = operand.place else { return None };
        let start = self.buffers.get(ix as usize)?.offset.0.checked_add(operand.offset.0)?;
        Some(start..start.checked_add(operand.size.0)?)
    }
}
