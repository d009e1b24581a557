//! [`Program`]: the contents of an executable. [`write_executable`] appends it to a runner, as one file that runs.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use files::{FileError, Kind};
use plan::Plan;
use types::Bytes;

use crate::Compiled;

/// One model compiled for one batch or for several, which share an arena and their constants.
#[derive(Clone, Debug)]
pub struct Program {
    /// The plans; the first runs if no batch is given.
    pub plans: Vec<Plan>,
    /// The constants' section, shared by all plans.
    pub constants: Vec<u8>,
}

impl Program {
    /// Joins compiled plans: constants with the same bytes are stored once.
    pub fn join(parts: Vec<Compiled>) -> Program {
        let mut at: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
        let mut program = Program { plans: Vec::new(), constants: Vec::new() };
        for Compiled { mut plan, constants, .. } in parts {
            for constant in &mut plan.constants {
                let start = constant.offset.0 as usize;
                let bytes = &constants[start..start + constant.size.0 as usize];
                constant.offset = match at.get(bytes) {
                    Some(&offset) => offset,
                    None => {
                        let offset = Bytes(program.constants.len() as u64).align_up(plan.arena.alignment);
                        program.constants.resize(offset.0 as usize, 0);
                        program.constants.extend_from_slice(bytes);
                        at.insert(bytes.to_vec(), offset);
                        offset
                    }
                };
            }
            program.plans.push(plan);
        }
        let size = Bytes(program.constants.len() as u64);
        program.plans.iter_mut().for_each(|plan| plan.constants_size = size);
        program
    }
}

/// Writes an executable atomically. An existing file is replaced, even while it runs.
///
/// # Errors
/// The file system's errors.
pub fn write_executable(path: &Path, runner: &[u8], program: &Program) -> Result<(), FileError> {
    files::write_with(path, Kind::Program, |file| {
        let mut buffered = BufWriter::new(file);
        plan::image::write(&mut buffered, runner, &program.plans, &program.constants)?;
        buffered.flush()
    })
}
