//! [`Program`]: the contents of an executable. [`write_executable`] appends it to a runner, as one file that runs.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use files::{FileError, Kind};
use plan::Plan;
use plan::image::ConstantBytes;
use types::Bytes;

use crate::{Compiled, Constants};

/// One model compiled for one batch or for several, which share an arena and their constants.
#[derive(Clone, Debug)]
pub struct Program {
    /// The plans; the first runs if no batch is given.
    pub plans: Vec<Plan>,
    /// The constants' section, shared by all plans. Empty once the executable is written.
    pub constants: Constants,
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
    /// The size of the constants' section.
    pub fn constants_size(&self) -> Bytes {
        self.plans.first().map_or(Bytes::ZERO, |plan| plan.constants_size)
    }

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
        let mut program = Program { plans: Vec::new(), constants: Constants::default(), weights };
        for Compiled { mut plan, constants, .. } in parts {
            for constant in &mut plan.constants {
                let place = (constant.offset, constant.size);
                (constant.offset, _) = program.constants.add_from(&constants, place, plan.arena.alignment);
            }
            program.plans.push(plan);
        }
        let size = program.constants.size();
        program.plans.iter_mut().for_each(|plan| plan.constants_size = size);
        program
    }
}

/// Writes an executable atomically. An existing file is replaced, even while it runs. The program's constants are packed as
/// they are written, and released behind it: it has none afterwards. `progress` receives the bytes of them that are written.
///
/// # Errors
/// The file system's errors.
pub fn write_executable(
    path: &Path,
    runner: &[u8],
    program: &mut Program,
    progress: impl FnMut(Bytes),
) -> Result<(), FileError> {
    let Program { plans, constants, weights } = program;
    let constants = Watched { constants: std::mem::take(constants), progress };
    files::write_with(path, Kind::Program, |file| {
        let mut buffered = BufWriter::new(file);
        match weights {
            ProgramWeights::Included => plan::image::write(&mut buffered, runner, plans, constants)?,
            ProgramWeights::Separate => plan::image::write_separate(&mut buffered, runner, plans, constants)?,
        }
        buffered.flush()
    })
}

/// Constants, with a function that receives how many bytes are written.
struct Watched<F> {
    constants: Constants,
    progress: F,
}

impl<F: FnMut(Bytes)> ConstantBytes for Watched<F> {
    fn write_to(mut self, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut written = Bytes::ZERO;
        self.constants.write_to(&mut |bytes| {
            out(bytes)?;
            written += Bytes(bytes.len() as u64);
            (self.progress)(written);
            Ok(())
        })
    }
}
