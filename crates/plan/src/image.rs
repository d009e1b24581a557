//! The image: the plans of one model and their packed constants, appended to a runner.
//!
//! ```text
//! | runner (an ELF file) | pad | plans | pad | constants | pad | trailer |
//!                              ^ 4096       ^ 4096            ^ last 80 bytes of the file
//! ```
//!
//! Sections start at page boundaries, so that constants of a mapped file are page-aligned and need no copy. The trailer
//! has the range and XXH3-64 checksum of both sections, then its own checksum. All numbers are little-endian. See
//! `docs/reference/plan-format.md`.

use std::io::{self, Write};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::{Plan, PlanError, check};

/// Version of the image and of everything in it. It grows by one with every change; other versions are refused.
pub const FORMAT_VERSION: u32 = 7;

/// Sections start at multiples of this many bytes.
pub const PAGE: u64 = 4096;

const MAGIC: &[u8; 8] = b"PRESTOW\0";
const TRAILER: usize = 80;

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
}

/// An image that was read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The plans of one model, one for each batch; at least one.
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
        if 1 < plans.len() && !plan.states.is_empty() {
            return Err(format!("a model with state must have one plan, got {}", plans.len()));
        }
        if plans[..ix].iter().any(|other| other.batch == plan.batch) {
            return Err(format!("two plans are for batch {}", plan.batch));
        }
    }
    Ok(())
}

/// Writes a runner, plans (one for each batch), and the constants that they share.
///
/// # Errors
/// Those of `out`; `InvalidData` for a plan that [`check`] refuses, and for plans that are not of one model.
pub fn write(out: &mut impl Write, runner: &[u8], plans: &[Plan], constants: &[u8]) -> io::Result<()> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    check_together(plans).map_err(invalid)?;
    for plan in plans {
        if let Err(errors) = check(plan) {
            let texts: Vec<String> = errors.iter().map(PlanError::to_string).collect();
            return Err(invalid(format!("the plan is not valid: {}", texts.join("; "))));
        }
        if constants.len() as u64 != plan.constants_size.0 {
            return Err(invalid(format!(
                "the plan needs {} bytes of constants, got {}",
                plan.constants_size.0,
                constants.len()
            )));
        }
    }
    let plan = postcard::to_stdvec(plans).map_err(|error| invalid(error.to_string()))?;
    let plan_at = (runner.len() as u64).next_multiple_of(PAGE);
    let constants_at = (plan_at + plan.len() as u64).next_multiple_of(PAGE);
    let constants_end = constants_at + constants.len() as u64;

    let mut trailer = Vec::with_capacity(TRAILER);
    trailer.extend_from_slice(MAGIC);
    trailer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    trailer.extend_from_slice(&0u32.to_le_bytes());
    let numbers = [
        plan_at,
        plan.len() as u64,
        xxh3_64(&plan),
        constants_at,
        constants.len() as u64,
        xxh3_64(constants),
        constants_end + TRAILER as u64,
    ];
    numbers.iter().for_each(|number| trailer.extend_from_slice(&number.to_le_bytes()));
    trailer.extend_from_slice(&xxh3_64(&trailer).to_le_bytes());

    let zeros = [0; PAGE as usize];
    out.write_all(runner)?;
    out.write_all(&zeros[..(plan_at - runner.len() as u64) as usize])?;
    out.write_all(&plan)?;
    out.write_all(&zeros[..(constants_at - plan_at - plan.len() as u64) as usize])?;
    out.write_all(constants)?;
    out.write_all(&trailer)
}

/// Reads the image at the end of a file and checks all of it: version, length, checksums, plans.
///
/// # Errors
/// The first check that fails. Never panics, whatever the bytes.
pub fn read(file: &[u8]) -> Result<Image, ImageError> {
    let damaged = |reason: &str| ImageError::Damaged { reason: reason.to_string() };
    let start = file.len().checked_sub(TRAILER).ok_or(ImageError::NoTrailer)?;
    let trailer = &file[start..];
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
    if number(64) != file.len() as u64 {
        return Err(damaged("its length is wrong"));
    }
    let section = |at: usize| -> Option<Range<usize>> {
        let from = usize::try_from(number(at)).ok()?;
        let to = from.checked_add(usize::try_from(number(at + 8)).ok()?)?;
        (to <= start).then_some(from..to)
    };
    let plan_range = section(16).ok_or_else(|| damaged("the plan is outside the file"))?;
    let constants = section(40).ok_or_else(|| damaged("the constants are outside the file"))?;
    if xxh3_64(&file[plan_range.clone()]) != number(32) {
        return Err(damaged("the plan's checksum is wrong"));
    }
    if xxh3_64(&file[constants.clone()]) != number(56) {
        return Err(damaged("the constants' checksum is wrong"));
    }
    let plans: Vec<Plan> =
        postcard::from_bytes(&file[plan_range]).map_err(|error| damaged(&format!("the plan: {error}")))?;
    check_together(&plans).map_err(|reason| ImageError::Plans { reason })?;
    for plan in &plans {
        if plan.constants_size.0 != constants.len() as u64 {
            return Err(damaged("the constants have the wrong size"));
        }
        if let Err(errors) = check(plan) {
            return Err(ImageError::Invalid { count: errors.len(), first: errors[0].clone() });
        }
    }
    Ok(Image { plans, constants })
}
