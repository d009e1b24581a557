//! [`separate_constants`]: which constants an executable with separate weights has in its file, and which ones have a
//! recipe for a file of weights.

use std::collections::BTreeMap;

use types::Bytes;

use crate::{Constant, ConstantRecipe, Plan};

/// Constants in the file start at multiples of this many bytes.
const ALIGNMENT: Bytes = Bytes(64);

/// The constants of plans that share a section, each once, in order of their offsets.
#[derive(Clone, Debug, PartialEq)]
pub struct SeparateConstants<'a> {
    /// The constants. No two of them overlap.
    pub rows: Vec<(&'a Constant, ConstantSource<'a>)>,
    /// Bytes of those in the file.
    pub stored: Bytes,
}

/// Where the bytes of a constant come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConstantSource<'a> {
    /// The constants' section of the file, from this byte on.
    Stored(Bytes),
    /// The file of weights.
    Recipe(&'a ConstantRecipe),
}

/// The sources of the constants of an executable with separate weights.
///
/// # Errors
/// Two constants that overlap and are not one, for people.
pub fn separate_constants(plans: &[Plan]) -> Result<SeparateConstants<'_>, String> {
    let mut by_offset: BTreeMap<Bytes, &Constant> = BTreeMap::new();
    for constant in plans.iter().flat_map(|plan| &plan.constants).filter(|constant| constant.size != Bytes::ZERO) {
        match by_offset.get(&constant.offset) {
            Some(known) if known.size != constant.size => {
                return Err(format!("two constants of different sizes start at byte {}", constant.offset.0));
            }
            Some(known) if known.recipe.is_some() => {}
            _ => drop(by_offset.insert(constant.offset, constant)),
        }
    }
    let (mut rows, mut stored, mut end) = (Vec::with_capacity(by_offset.len()), Bytes::ZERO, 0);
    for (offset, constant) in by_offset {
        if offset.0 < end {
            return Err(format!("a constant ends behind byte {}, where the next one starts", offset.0));
        }
        end = offset.0.checked_add(constant.size.0).ok_or("a constant ends behind 2^64 bytes")?;
        let source = match &constant.recipe {
            Some(recipe) => ConstantSource::Recipe(recipe),
            None => {
                let at = stored.align_up(ALIGNMENT);
                // Constants are disjoint, so their sum is at most the section.
                stored = at + constant.size;
                ConstantSource::Stored(at)
            }
        };
        rows.push((constant, source));
    }
    Ok(SeparateConstants { rows, stored })
}
