//! [`Host`]: plans for `cpu` targets, on this machine's processor.

use std::env::consts::ARCH;
use std::ops::Range;
use std::sync::Arc;

use cpu::{Args, Isa, Kernel, Level, Operand as Slice, Pool, Sizes, WORKSPACE_ALIGNMENT};
use memmap2::{Advice, MmapMut};
use plan::{ConstantIx, Initial, Operand, Place, Plan, Step};
use smallvec::SmallVec;
use types::Bytes;

use super::pager::{Pager, PagerUsage};
use super::{Backend, Device};
use crate::weight_source::HostConstants;
use crate::{RunError, WeightSource};

/// The maximum number of ranges that one step writes: outputs and workspace.
const WRITES_MAX: usize = 6;
/// The maximum number of operands that one step reads.
const READS_MAX: usize = 12;

/// This machine's processor.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Threads that compute; at least one.
    pub threads: usize,
}

impl Device for Host {
    fn open(&self, plans: &[Arc<Plan>], weights: &WeightSource) -> Result<Box<dyn Backend>, RunError> {
        let here = Level::here().map_or("cpu", |level| level.name);
        let mut isa = Isa::detect();
        for plan in plans {
            // The precision after `+` does not change the level.
            match Level::named(plan.target.split('+').next().unwrap_or_default()) {
                Some(level) if level.arch == ARCH => isa = isa.min(level.isa),
                _ => return Err(RunError::Target { plan: plan.target.clone(), device: here.into() }),
            }
        }
        let size = plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default();
        let no_memory = |error: String| RunError::Arena { bytes: size.0, error };
        let length = size.index().ok_or_else(|| no_memory("it is larger than the address space".into()))?;
        // Anonymous pages are zero, page-aligned, and take no memory until they are touched.
        let arena = MmapMut::map_anon(length.max(1)).map_err(|error| no_memory(error.to_string()))?;
        let mut opened = Vec::with_capacity(plans.len());
        for plan in plans {
            let prepare = |(ix, step): (usize, &Step)| {
                let scope = step.scope.to_string();
                Prepared::new(plan, step).map_err(|reason| RunError::Kernel { step: ix, scope, reason })
            };
            let steps: Result<Vec<Prepared>, RunError> = plan.steps.iter().enumerate().map(prepare).collect();
            opened.push(Opened { plan: plan.clone(), steps: steps? });
        }
        let has_residency = plans.iter().any(|plan| plan.residency.is_some());
        if !has_residency {
            // Fewer page faults and misses of the TLB where the system has huge pages; elsewhere nothing is lost. With the
            // pager, its block has them: the system joins neighboring mappings that are alike, and reports them as one.
            let _ = arena.advise(Advice::HugePage);
        }
        // Bytes that are in memory already need no reads.
        let weights = match weights {
            WeightSource::File { file, offset, size } if has_residency => {
                Constants::Paged(Pager::new(plans, file, *offset, *size)?)
            }
            _ => Constants::Whole(weights.to_host(plans)?),
        };
        Ok(Box::new(HostBackend { plans: opened, weights, arena, pool: Pool::with_isa(self.threads.max(1), isa) }))
    }
}

struct HostBackend {
    plans: Vec<Opened>,
    weights: Constants,
    arena: MmapMut,
    pool: Pool,
}

/// The constants of the plans.
enum Constants {
    /// All of them in memory.
    Whole(HostConstants),
    /// Read in every run, as the plans' `Residency` states.
    Paged(Pager),
}

struct Opened {
    plan: Arc<Plan>,
    steps: Vec<Prepared>,
}

/// A step's kernel, and the split of the arena into its operands.
///
/// The arena is split at the ranges that the step writes, in order of their offsets. The gaps between them have every
/// operand that the step reads:
///
/// ```text
/// arena  |  gap 0  | written 0 |  gap 1  | written 1 |  gap 2  |
/// ```
struct Prepared {
    kernel: Kernel,
    /// Ranges written, by offset; empty ones are left out.
    cuts: SmallVec<[Range<usize>; WRITES_MAX]>,
    /// For each output its cut; `None` if it is empty.
    outputs: SmallVec<[Option<usize>; WRITES_MAX]>,
    workspace: Option<usize>,
    inputs: SmallVec<[Read; READS_MAX]>,
}

/// The place of an operand that a step reads.
enum Read {
    Constant {
        constant: ConstantIx,
        /// In the constant.
        own: Range<usize>,
        /// In the constants' section.
        section: Range<usize>,
    },
    Gap(usize, Range<usize>),
    InPlace(usize),
}

impl Prepared {
    fn new(plan: &Plan, step: &Step) -> Result<Prepared, String> {
        let kernel: Kernel = postcard::from_bytes(&step.code).map_err(|error| format!("unknown kernel: {error}"))?;
        kernel.check_sizes(&sizes(step)).map_err(|mismatch| mismatch.to_string())?;
        check_alignment(&kernel, plan, step)?;

        let range = |operand: &Operand| -> Result<Range<usize>, String> {
            let range = plan.arena_range(operand).ok_or("an operand is in no buffer")?;
            let end = usize::try_from(range.end).ok().filter(|&end| end as u64 <= plan.arena.size().0);
            end.map(|end| range.start as usize..end).ok_or_else(|| "an operand is outside the arena".to_string())
        };
        let written: Result<Vec<Range<usize>>, String> =
            step.outputs.iter().chain(&step.workspace).map(range).collect();
        let written = written?;
        let mut cuts: SmallVec<[Range<usize>; WRITES_MAX]> =
            written.iter().filter(|range| !range.is_empty()).cloned().collect();
        cuts.sort_unstable_by_key(|range| range.start);
        if WRITES_MAX < cuts.len() || READS_MAX < step.inputs.len() {
            return Err("it has too many operands".into());
        }
        if cuts.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return Err("two results share bytes".into());
        }
        let cut_of = |range: &Range<usize>| cuts.iter().position(|cut| cut == range);
        let inputs: Result<SmallVec<[Read; READS_MAX]>, String> = step
            .inputs
            .iter()
            .enumerate()
            .map(|(ix, operand)| {
                if let Place::Constant(constant) = operand.place {
                    let base = plan.constants.get(constant.0 as usize).ok_or("a constant does not exist")?.offset.0;
                    let (start, size) = (operand.offset.0 as usize, operand.size.0 as usize);
                    let from = base as usize + start;
                    return Ok(Read::Constant { constant, own: start..start + size, section: from..from + size });
                }
                let range = range(operand)?;
                if let Some(output) = written[..step.outputs.len()].iter().position(|cut| *cut == range)
                    && !range.is_empty()
                {
                    // Results behind the first replace the operands behind the gradient: the states of an update.
                    let may_share = (output == 0 || output + 1 == ix) && kernel.may_share(ix);
                    return may_share
                        .then_some(Read::InPlace(output))
                        .ok_or_else(|| format!("kernel `{}` cannot have operand {ix} in place", kernel.name()));
                }
                let gap = cuts.partition_point(|cut| cut.end <= range.start);
                let gap_start = if gap == 0 { 0 } else { cuts[gap - 1].end };
                let gap_end = cuts.get(gap).map_or(plan.arena.size().0 as usize, |cut| cut.start);
                match range.is_empty() {
                    true => Ok(Read::Gap(gap, 0..0)),
                    false if gap_start <= range.start && range.end <= gap_end => {
                        Ok(Read::Gap(gap, range.start - gap_start..range.end - gap_start))
                    }
                    false => Err("an operand overlaps a result".into()),
                }
            })
            .collect();
        Ok(Prepared {
            outputs: written[..step.outputs.len()].iter().map(cut_of).collect(),
            workspace: step.workspace.and_then(|_| cut_of(&written[step.outputs.len()])),
            inputs: inputs?,
            kernel,
            cuts,
        })
    }

    /// Runs the step. `constant` has the bytes of a constant, given the range in it and the range in the section.
    fn run<'a>(
        &self,
        arena: &mut [u8],
        constant: impl Fn(ConstantIx, &Range<usize>, &Range<usize>) -> &'a [u8],
        pool: &Pool,
    ) {
        let mut gaps: SmallVec<[&[u8]; WRITES_MAX + 1]> = SmallVec::new();
        let mut written: SmallVec<[Option<&mut [u8]>; WRITES_MAX]> = SmallVec::new();
        let (mut rest, mut base) = (arena, 0);
        for cut in &self.cuts {
            let (gap, tail) = rest.split_at_mut(cut.start - base);
            let (range, tail) = tail.split_at_mut(cut.len());
            gaps.push(gap);
            written.push(Some(range));
            (rest, base) = (tail, cut.end);
        }
        gaps.push(rest);

        let inputs: SmallVec<[Slice; READS_MAX]> = self
            .inputs
            .iter()
            .map(|read| match read {
                Read::Constant { constant: ix, own, section } => Slice::Bytes(constant(*ix, own, section)),
                Read::Gap(gap, range) => Slice::Bytes(&gaps[*gap][range.clone()]),
                Read::InPlace(output) => Slice::InPlace(*output),
            })
            .collect();
        let workspace = self.workspace.and_then(|cut| written[cut].take()).unwrap_or_default();
        let mut outputs: SmallVec<[&mut [u8]; WRITES_MAX]> =
            self.outputs.iter().map(|cut| cut.and_then(|cut| written[cut].take()).unwrap_or_default()).collect();
        self.kernel.run(Args { inputs: &inputs, outputs: &mut outputs, workspace }, pool);
    }
}

/// The sizes of a step's operands.
fn sizes(step: &Step) -> Sizes {
    Sizes {
        inputs: step.inputs.iter().map(|operand| operand.size.0).collect(),
        outputs: step.outputs.iter().map(|operand| operand.size.0).collect(),
        workspace: step.workspace.map_or(0, |workspace| workspace.size.0),
    }
}

/// Refuses operands that are not aligned to the kernel's elements. Arena and constants start at page boundaries.
fn check_alignment(kernel: &Kernel, plan: &Plan, step: &Step) -> Result<(), String> {
    let start = |operand: &Operand| match operand.place {
        Place::Buffer(_) => plan.arena_range(operand).map(|range| range.start),
        Place::Constant(ix) => {
            let base = plan.constants.get(ix.0 as usize)?.offset.0;
            base.checked_add(operand.offset.0)
        }
    };
    let inputs = step.inputs.iter().enumerate().map(|(ix, operand)| (kernel.alignment(Some(ix)), operand));
    let outputs = step.outputs.iter().map(|operand| (kernel.alignment(None), operand));
    let workspace = step.workspace.iter().map(|operand| (WORKSPACE_ALIGNMENT, operand));
    for (alignment, operand) in inputs.chain(outputs).chain(workspace) {
        if operand.size.0 != 0 && start(operand).is_none_or(|start| start % alignment as u64 != 0) {
            return Err(format!("kernel `{}` needs an operand aligned to {alignment} bytes", kernel.name()));
        }
    }
    Ok(())
}

impl Backend for HostBackend {
    fn step(&mut self, plan: usize, step: usize) -> Result<(), RunError> {
        let prepared = &self.plans[plan].steps[step];
        match &mut self.weights {
            Constants::Whole(constants) => {
                let section = constants.bytes();
                prepared.run(&mut self.arena, |_, _, range| &section[range.clone()], &self.pool);
            }
            Constants::Paged(pager) => {
                let lent = pager.lend(plan, step)?;
                let constant = |ix, own: &Range<usize>, _: &Range<usize>| match own.is_empty() {
                    true => &[][..],
                    false => &lent.constant(ix)[own.clone()],
                };
                prepared.run(&mut self.arena, constant, &self.pool);
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: usize) -> Result<(), RunError> {
        (0..self.plans[plan].steps.len()).try_for_each(|step| self.step(plan, step))
    }

    fn write(&mut self, plan: usize, operand: &Operand, bytes: &[u8]) -> Result<(), RunError> {
        let range = self.plans[plan].plan.arena_range(operand).expect("a checked plan's inputs lie in the arena");
        self.arena[range.start as usize..range.end as usize].copy_from_slice(bytes);
        Ok(())
    }

    /// A constant is copied without a second copy in between, and leaves memory: no step reads an initial value.
    fn initialize(&mut self, plan: usize, operand: &Operand, initial: Initial) -> Result<(), RunError> {
        let own = &self.plans[plan].plan;
        let range = own.arena_range(operand).expect("a checked plan's states lie in the arena");
        let state = &mut self.arena[range.start as usize..range.end as usize];
        match (initial, &mut self.weights) {
            (Initial::Zeros, _) => state.fill(0),
            (Initial::Constant(ix), Constants::Whole(constants)) => {
                let start = own.constants[ix.0 as usize].offset.0 as usize;
                let range = start..start + state.len();
                state.copy_from_slice(&constants.bytes()[range.clone()]);
                constants.release(range);
            }
            (Initial::Constant(ix), Constants::Paged(pager)) => pager.read(plan, ix, Bytes::ZERO, state)?,
        }
        Ok(())
    }

    fn read(&self, plan: usize, operand: &Operand, bytes: &mut [u8]) -> Result<(), RunError> {
        let own = &self.plans[plan].plan;
        match (operand.place, &self.weights) {
            (Place::Buffer(_), _) => {
                let range = own.arena_range(operand).expect("a checked plan's outputs exist");
                bytes.copy_from_slice(&self.arena[range.start as usize..range.end as usize]);
            }
            (Place::Constant(ix), Constants::Whole(constants)) => {
                let start = (own.constants[ix.0 as usize].offset + operand.offset).0 as usize;
                bytes.copy_from_slice(&constants.bytes()[start..start + operand.size.0 as usize]);
            }
            (Place::Constant(ix), Constants::Paged(pager)) => pager.read(plan, ix, operand.offset, bytes)?,
        }
        Ok(())
    }

    fn arena(&mut self) -> Result<&mut [u8], RunError> {
        Ok(&mut self.arena)
    }

    fn pager_usage(&self) -> Option<PagerUsage> {
        match &self.weights {
            Constants::Whole(_) => None,
            Constants::Paged(pager) => Some(pager.usage()),
        }
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn remark(&self) -> Option<&'static str> {
        let slow = cfg!(target_arch = "x86_64") && Isa::detect() == Isa::Portable;
        slow.then_some("this processor has no AVX2; kernels run on portable code, several times slower")
    }

    fn describe(&self) -> String {
        format!("cpu ({}), {} threads", self.pool.isa(), self.pool.threads())
    }
}
