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
    /// Where an executable has them.
    pub weights: ProgramWeights,
}

/// Where the constants of an executable are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramWeights {
    /// In the executable.
    #[default]
    Included,
    /// Those without a recipe in the executable, the others in a file of weights, from which `uprd` packs them.
    Separate,
}

impl Program {
    /// Joins compiled plans: constants with the same bytes are stored once. The executable has all of them.
    pub fn join(mut parts: Vec<Compiled>) -> Program {
        for constant in parts.iter_mut().flat_map(|part| &mut part.plan.constants) {
            constant.recipe = None;
        }
        Program::joined(parts, ProgramWeights::Included)
    }

    /// The same for an executable with separate weights, in a file of this name without folder and extension.
    pub fn join_separate(mut parts: Vec<Compiled>, weights_name: &str) -> Program {
        parts.iter_mut().for_each(|part| part.plan.weights_name = weights_name.to_string());
        Program::joined(parts, ProgramWeights::Separate)
    }

    fn joined(parts: Vec<Compiled>, weights: ProgramWeights) -> Program {
        let mut at: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
        let mut program = Program { plans: Vec::new(), constants: Vec::new(), weights };
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
        let Program { plans, constants, weights } = program;
        match weights {
            ProgramWeights::Included => plan::image::write(&mut buffered, runner, plans, constants)?,
            ProgramWeights::Separate => plan::image::write_separate(&mut buffered, runner, plans, constants)?,
        }
        buffered.flush()
    })
}
