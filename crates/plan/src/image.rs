//! The image: the plans of one model and their packed constants, appended to a runner.
//!
//! ```text
//! | runner (an ELF file) | pad | plans | pad | constants | trailer |
//!                              ^ 4096       ^ 4096      ^ last 128 bytes of the file
//! ```
//!
//! Sections start at page boundaries, so that constants of a mapped file are page-aligned and need no copy. The trailer
//! has the range and XXH3-64 checksum of both sections, the checksum of the runner and the padding, the BLAKE3 digest of
//! the constants, then its own checksum: every byte of the file is under one of them. All numbers are little-endian. See
//! `docs/reference/plan-format.md`.
//!
//! An executable with *separate weights* has only those constants in the file that have no recipe. Size and digest in the
//! trailer are those of all constants, so that it is the same model to programs that share weights.

use std::io::{self, Read, Write};
use std::ops::Range;

use types::Bytes;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::{Constant, ConstantSource, Phase, Plan, PlanError, StatePort, check, elf, separate_constants};

/// Version of the image and of everything in it. It grows by one with every change; other versions are refused.
pub const FORMAT_VERSION: u32 = 23;

/// Sections start at multiples of this many bytes.
pub const PAGE: u64 = 4096;

const MAGIC: &[u8; 8] = b"PRESTOW\0";
const TRAILER: usize = 128;

/// The checksum of sections and of constants: XXH3-64.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The digest of constants: BLAKE3.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    blake3::hash(bytes).into()
}

/// The bytes of the constants that plans share.
pub trait ConstantBytes {
    /// Passes all bytes to `out`, from the first to the last, in pieces.
    ///
    /// # Errors
    /// Those of `out`, and none of its own.
    fn write_to(self, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>;
}

impl<T: AsRef<[u8]> + ?Sized> ConstantBytes for &T {
    fn write_to(self, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        out(self.as_ref())
    }
}

/// Reason why bytes are not an image that can be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ImageError {
    #[error("the file has no plan: it is a bare runner, or its end is cut off; compile the model again")]
    NoTrailer,
    #[error("the plan format must be {FORMAT_VERSION}, got {found}; compile the model again")]
    Version { found: u32 },
    #[error("the file is damaged: {reason}; copy the file again, or compile the model again")]
    Damaged { reason: String },
    #[error("the file's plan is invalid ({count} errors, the first: {first}); compile the model again")]
    Invalid { count: usize, first: PlanError },
    #[error("the file's plans are not of one model: {reason}; compile the model again")]
    Plans { reason: String },
    #[error(
        "its weights are separate: its own commands get them from `uprd serve --base DIR`, where DIR has a file of weights \
         named `{weights}`; for other programs, compile it without --separate-weights"
    )]
    Separate { weights: String },
}

/// An image that was read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The plans of one model, at least one: one for each batch, or a step of training and its evaluation.
    pub plans: Vec<Plan>,
    /// The range of the constants in the file.
    pub constants: Range<usize>,
}

/// Checks that plans can share an image.
fn check_together(plans: &[Plan]) -> Result<(), String> {
    let Some(first) = plans.first() else { return Err("there is no plan".into()) };
    for (ix, plan) in plans.iter().enumerate() {
        if (&plan.model, &plan.target) != (&first.model, &first.target) {
            return Err(format!("`{}` for {} and `{}` for {}", first.model, first.target, plan.model, plan.target));
        }
        if 1 < plans.len() && plan.phase == Phase::Inference && !plan.states.is_empty() {
            return Err(format!("a model with state must have one plan, got {}", plans.len()));
        }
        if plans[..ix].iter().any(|other| other.phase == plan.phase && other.batch == plan.batch) {
            return Err(format!("two plans are for batch {}", plan.batch));
        }
    }
    check_residency(plans)?;
    match plans {
        [Plan { phase: Phase::Training(_), .. }] => Ok(()),
        [step @ Plan { phase: Phase::Training(_), .. }, evaluation @ Plan { phase: Phase::Evaluation(_), .. }] => {
            check_states(step, evaluation)
        }
        _ if plans.iter().all(|plan| plan.phase == Phase::Inference) => Ok(()),
        _ => Err("a plan for a step of training must be the first, and one for evaluation may follow it".into()),
    }
}

/// Checks that the plans, which share arena and block, stay within one limit together.
fn check_residency(plans: &[Plan]) -> Result<(), String> {
    let Some(limit) = plans.iter().find_map(|plan| plan.residency.as_ref()).map(|residency| residency.limit) else {
        return Ok(());
    };
    let mut block = Bytes::ZERO;
    for plan in plans {
        match &plan.residency {
            Some(own) if own.limit == limit => block = block.max(own.size),
            _ => return Err(format!("some read constants within a limit of {limit} in a run, others do not")),
        }
    }
    let arena = plans.iter().map(|plan| plan.arena.size()).max().unwrap_or_default();
    match arena.0.checked_add(block.0) {
        Some(sum) if sum <= limit.0 => Ok(()),
        _ => Err(format!("the arena of {arena} and the constants of {block} exceed the limit of {limit}")),
    }
}

/// Checks that an evaluation reads the weights of the step: its states are states of the step, with their types.
fn check_states(step: &Plan, evaluation: &Plan) -> Result<(), String> {
    for StatePort { port, .. } in &evaluation.states {
        let is_same = |own: &&StatePort| {
            own.port.name == port.name && (own.port.dtype, &own.port.shape) == (port.dtype, &port.shape)
        };
        if !step.states.iter().any(|own| is_same(&own)) {
            return Err(format!("the evaluation reads the state `{}`, which the step does not train", port.name));
        }
    }
    Ok(())
}

/// Writes a runner, plans (one for each batch, or a step of training and its evaluation), and the constants that they share.
///
/// # Errors
/// Those of `out`; `InvalidData` for a plan that [`check`] refuses, for plans that are not of one model, and for another
/// number of constants' bytes than the plans need.
pub fn write(out: &mut impl Write, runner: &[u8], plans: &[Plan], constants: impl ConstantBytes) -> io::Result<()> {
    let size = plans.first().map_or(0, |plan| plan.constants_size.0);
    let whole = Stored { pieces: vec![(0..size, 0)], size };
    write_parts(out, runner, plans, constants, &whole)
}

/// The same with separate weights: of the constants, the file has those without recipe.
///
/// # Errors
/// As [`write()`]; `InvalidData` if no constant has a recipe.
pub fn write_separate(
    out: &mut impl Write,
    runner: &[u8],
    plans: &[Plan],
    constants: impl ConstantBytes,
) -> io::Result<()> {
    let separate = separate_constants(plans).map_err(invalid)?;
    let piece = |(constant, source): &(&Constant, ConstantSource)| match source {
        ConstantSource::Stored(at) => Some((constant.offset.0..(constant.offset + constant.size).0, at.0)),
        ConstantSource::Recipe(_) => None,
    };
    let stored = Stored { pieces: separate.rows.iter().filter_map(piece).collect(), size: separate.stored.0 };
    if plans.iter().any(|plan| plan.constants_size.0 <= stored.size) {
        return Err(invalid("no constant has a recipe".into()));
    }
    write_parts(out, runner, plans, constants, &stored)
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// The constants that a file has.
struct Stored {
    /// By rising offset, ranges of all constants, and where each starts among those of the file.
    pieces: Vec<(Range<u64>, u64)>,
    /// Bytes in the file.
    size: u64,
}

/// Writes an image whose file has some of the constants.
fn write_parts(
    out: &mut impl Write,
    runner: &[u8],
    plans: &[Plan],
    constants: impl ConstantBytes,
    stored: &Stored,
) -> io::Result<()> {
    check_together(plans).map_err(invalid)?;
    for plan in plans {
        if let Err(errors) = check(plan) {
            let texts: Vec<String> = errors.iter().map(PlanError::to_string).collect();
            return Err(invalid(format!("the plan is not valid: {}", texts.join("; "))));
        }
    }
    let runner = &*elf::with_headers_last(runner);
    let plan = postcard::to_stdvec(plans).map_err(|error| invalid(error.to_string()))?;
    let plan_at = (runner.len() as u64).next_multiple_of(PAGE);
    let constants_at = (plan_at + plan.len() as u64).next_multiple_of(PAGE);
    let constants_end = constants_at + stored.size;
    let zeros = [0; PAGE as usize];
    let before_plan = &zeros[..(plan_at - runner.len() as u64) as usize];
    let before_constants = &zeros[..(constants_at - plan_at - plan.len() as u64) as usize];
    let mut rest = Xxh3Default::new();
    [runner, before_plan, before_constants].iter().for_each(|part| rest.update(part));
    for part in [runner, before_plan, &plan, before_constants] {
        out.write_all(part)?;
    }
    let written = write_constants(out, constants, stored)?;
    if let Some(plan) = plans.iter().find(|plan| plan.constants_size.0 != written.all) {
        let need = plan.constants_size.0;
        return Err(invalid(format!("the plan needs {need} bytes of constants, got {}", written.all)));
    }

    let mut trailer = Vec::with_capacity(TRAILER);
    trailer.extend_from_slice(MAGIC);
    trailer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    trailer.extend_from_slice(&0u32.to_le_bytes());
    let numbers = [
        plan_at,
        plan.len() as u64,
        xxh3_64(&plan),
        constants_at,
        stored.size,
        written.checksum,
        rest.digest(),
        constants_end + TRAILER as u64,
    ];
    numbers.iter().for_each(|number| trailer.extend_from_slice(&number.to_le_bytes()));
    trailer.extend_from_slice(&written.digest);
    trailer.extend_from_slice(&written.all.to_le_bytes());
    trailer.extend_from_slice(&xxh3_64(&trailer).to_le_bytes());
    out.write_all(&trailer)
}

/// Facts about constants that are written.
struct Written {
    /// The bytes of all constants.
    all: u64,
    /// The digest of all constants.
    digest: [u8; 32],
    /// The checksum of those in the file.
    checksum: u64,
}

fn write_constants(out: &mut impl Write, constants: impl ConstantBytes, stored: &Stored) -> io::Result<Written> {
    let (mut all, mut digest, mut checksum) = (0, blake3::Hasher::new(), Xxh3Default::new());
    let (mut pieces, mut in_file) = (stored.pieces.iter().peekable(), 0);
    constants.write_to(&mut |bytes| {
        let (start, end) = (all, all + bytes.len() as u64);
        digest.update(bytes);
        all = end;
        while let Some((range, at)) = pieces.peek().filter(|(range, _)| range.start < end) {
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from == range.start {
                let zeros = vec![0; (at - in_file) as usize];
                checksum.update(&zeros);
                out.write_all(&zeros)?;
            }
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            checksum.update(part);
            out.write_all(part)?;
            in_file = at + (to - range.start);
            if end < range.end {
                break;
            }
            pieces.next();
        }
        Ok(())
    })?;
    Ok(Written { all, digest: digest.finalize().into(), checksum: checksum.digest() })
}

/// The end of an image: where its sections are, and the checksums of them and of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The range of the plans in the file.
    pub plans: Range<u64>,
    /// XXH3-64 of the plans.
    pub plans_checksum: u64,
    /// The range of the constants in the file. If weights are separate, of those without recipe.
    pub constants: Range<u64>,
    /// XXH3-64 of that range.
    pub constants_checksum: u64,
    /// BLAKE3 of all constants: their identity. Who runs the file compares the checksum; who gives the bytes to other
    /// programs compares this.
    pub constants_digest: [u8; 32],
    /// Bytes of all constants.
    pub constants_size: u64,
    /// XXH3-64 of all bytes before the trailer that are in neither section: the runner and the padding.
    pub rest_checksum: u64,
}

impl Trailer {
    /// The size of a trailer; it ends with the file.
    pub const SIZE: usize = TRAILER;

    /// Reads the last bytes of a file of `length` bytes, at least [`Trailer::SIZE`] of them.
    ///
    /// # Errors
    /// No trailer, another version, a wrong checksum, sections outside the file or in another order.
    pub fn read(end: &[u8], length: u64) -> Result<Trailer, ImageError> {
        let damaged = |reason: &str| ImageError::Damaged { reason: reason.to_string() };
        let trailer = &end[end.len().checked_sub(TRAILER).ok_or(ImageError::NoTrailer)?..];
        if !trailer.starts_with(MAGIC) {
            return Err(ImageError::NoTrailer);
        }
        let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().expect("a range of 8 bytes"));
        let version = u32::from_le_bytes(trailer[8..12].try_into().expect("a range of 4 bytes"));
        if version != FORMAT_VERSION {
            return Err(ImageError::Version { found: version });
        }
        if xxh3_64(&trailer[..TRAILER - 8]) != number(TRAILER - 8) {
            return Err(damaged("the trailer's checksum is wrong"));
        }
        if number(72) != length {
            return Err(damaged("its length is wrong"));
        }
        let section = |at: usize| -> Option<Range<u64>> {
            let end = number(at).checked_add(number(at + 8))?;
            (end <= length.checked_sub(TRAILER as u64)?).then_some(number(at)..end)
        };
        let plans = section(16).ok_or_else(|| damaged("the plan is outside the file"))?;
        let constants = section(40).ok_or_else(|| damaged("the constants are outside the file"))?;
        if constants.start < plans.end || constants.end != length - TRAILER as u64 {
            return Err(damaged("its sections are not in order"));
        }
        let constants_size = number(112);
        if constants_size < constants.end - constants.start {
            return Err(damaged("it has more constants than the plan"));
        }
        Ok(Trailer {
            plans,
            plans_checksum: number(32),
            constants,
            constants_checksum: number(56),
            constants_digest: trailer[80..112].try_into().expect("a range of 32 bytes"),
            constants_size,
            rest_checksum: number(64),
        })
    }

    /// Whether the file has only a part of the constants.
    pub fn is_separate(&self) -> bool {
        self.constants.end - self.constants.start < self.constants_size
    }

    /// Checks the runner and the padding: `before_plans` reads the bytes before the plans, `between` those between plans and
    /// constants. Takes a buffer of 64 KiB, whatever their size.
    ///
    /// # Errors
    /// A wrong checksum; those of the readers.
    pub fn check_rest(&self, before_plans: impl Read, between: impl Read) -> io::Result<Result<(), ImageError>> {
        let mut hash = Xxh3Default::new();
        let mut buffer = vec![0; 64 << 10];
        let before_plans = before_plans.take(self.plans.start);
        let mut both = before_plans.chain(between.take(self.constants.start - self.plans.end));
        loop {
            match both.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hash.update(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match hash.digest() == self.rest_checksum {
            true => Ok(()),
            false => Err(ImageError::Damaged { reason: "the checksum of its program is wrong".to_string() }),
        })
    }

    /// Decodes and checks the plans, given the bytes of their section.
    ///
    /// # Errors
    /// A wrong checksum, plans that do not decode, are not of one model, or are invalid.
    pub fn plans(&self, section: &[u8]) -> Result<Vec<Plan>, ImageError> {
        let damaged = |reason: &str| ImageError::Damaged { reason: reason.to_string() };
        if xxh3_64(section) != self.plans_checksum {
            return Err(damaged("the plan's checksum is wrong"));
        }
        let plans: Vec<Plan> = postcard::from_bytes(section).map_err(|error| damaged(&format!("the plan: {error}")))?;
        check_together(&plans).map_err(|reason| ImageError::Plans { reason })?;
        for plan in &plans {
            if plan.constants_size.0 != self.constants_size {
                return Err(damaged("the constants have the wrong size"));
            }
            if let Err(errors) = check(plan) {
                return Err(ImageError::Invalid { count: errors.len(), first: errors[0].clone() });
            }
        }
        Ok(plans)
    }

    /// Checks the bytes of the constants' section.
    ///
    /// # Errors
    /// A wrong checksum.
    pub fn check_constants(&self, section: &[u8]) -> Result<(), ImageError> {
        match xxh3_64(section) == self.constants_checksum {
            true => Ok(()),
            false => Err(ImageError::Damaged { reason: "the constants' checksum is wrong".to_string() }),
        }
    }
}

/// Reads the image at the end of a file and checks all of it: version, length, checksums, plans.
///
/// # Errors
/// The first check that fails; separate weights. Never panics, whatever the bytes.
pub fn read(file: &[u8]) -> Result<Image, ImageError> {
    let trailer = Trailer::read(file, file.len() as u64)?;
    // Ranges of a file that is in memory fit into `usize`.
    let range = |range: &Range<u64>| range.start as usize..range.end as usize;
    let constants = range(&trailer.constants);
    let plans = trailer.plans(&file[range(&trailer.plans)])?;
    if trailer.is_separate() {
        return Err(ImageError::Separate { weights: weights_name(&plans) });
    }
    trailer.check_constants(&file[constants.clone()])?;
    let from = |start: u64| &file[start as usize..];
    trailer.check_rest(from(0), from(trailer.plans.end)).expect("memory is readable")?;
    Ok(Image { plans, constants })
}

/// The file of weights of plans with separate weights, without folder and extension.
pub fn weights_name<P: std::borrow::Borrow<Plan>>(plans: &[P]) -> String {
    plans.first().map(|plan| plan.borrow().weights_name.clone()).unwrap_or_default()
}
