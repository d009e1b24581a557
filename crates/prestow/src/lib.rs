//! prestow in process: load a model, compile it, open a session, run it, and report its memory.
//!
//! A model is compiled before it runs: the result is a [`Plan`] with an offset for every byte of its arena. A [`Session`]
//! reserves that arena once, and its runs allocate nothing.
//!
//! ```
//! use prestow::{CpuTarget, Goal, Request, Tensor};
//!
//! let model = prestow::load(&Request { model: "lenet".into(), ..Request::default() })?;
//! let compiled = prestow::compile(model, &CpuTarget::new(), Goal::default())?;
//! println!("arena {}, weights {}", compiled.plan.arena.size(), compiled.plan.constants_size);
//!
//! let input = Tensor::from_fn(compiled.plan.inputs[0].shape.clone(), |ix| (ix % 255) as f32 / 255.0);
//! let mut session = prestow::open(compiled, 2)?;
//! let outputs = session.run_tensors(&[input])?;
//! assert_eq!(outputs[0].as_slice::<f32>().map(<[f32]>::len), Some(10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Models: [`load()`] for a path or a network of the zoo; [`load_onnx`] and [`load_mxnet`] for files in memory, with
//!   [`onnx::ExternalData`] as the source of tensors outside the ONNX file.
//! - Targets: [`CpuTarget`] for the processors of one architecture. Kernels for all instruction sets are in the program;
//!   the one that runs is chosen when a session is opened, so `target-cpu` needs no setting.
//! - Memory: [`report()`] lists every byte of a plan by layer and role. [`audit`] compares a run with its plan.
//! - Executables: [`write_executable`] appends a plan to a runner (`prestow-runner`); [`open_executable`] reads
//!   one. [`ImageFile::map`] and [`open_all`] leave its weights in the pages of the file, which processes share.
//!
//! # Optimization levels
//!
//! A workspace's profiles do not apply to programs that depend on its crates. Release builds need no setting: cargo's
//! default is `opt-level = 3`. Debug builds compute many times slower unless `Cargo.toml` of the dependent has
//!
//! ```toml
//! [profile.dev.package."*"]
//! opt-level = 3
//! ```
//!
//! or the same for `prestow-cpu` (kernels) and `prestow-arena`, `prestow-passes` and `prestow-ir` (compile time). A
//! release profile with `opt-level = "s"` or less needs these overrides too, as `[profile.release.package.prestow-cpu]`.

mod aligned_bytes;

use std::path::Path;
use std::sync::Arc;

pub use compiler::source::{Request, SourceError, WeightSpec, load, load_mxnet, load_onnx};
pub use compiler::{CompileError, Compiled, Constants, Goal, Model, Optimize, Program, write_executable};
pub use load::{mxnet, onnx};
pub use lower::Target;
pub use lower::cpu::CpuTarget;
pub use lower::cuda::CudaTarget;
pub use plan::{Plan, Port};
pub use report::{Report, View};
pub use runtime::{Host, ImageFile, OpenError, RunError, Session, WeightSource, audit, open_all};
pub use types::{Bytes, DType, Shape, Tensor};

use aligned_bytes::AlignedBytes;

/// Reason why the model of an executable does not open.
#[derive(Debug, thiserror::Error)]
pub enum ExecutableError {
    /// The file cannot be read or is not an image.
    #[error(transparent)]
    File(#[from] OpenError),
    /// The plan does not open on this machine.
    #[error(transparent)]
    Session(#[from] RunError),
}

/// Compiles a model for a target and a goal: time, memory or both, and a limit for the arena.
///
/// # Errors
/// An operator without a kernel for the target; a budget that no plan fits.
pub fn compile(model: Model, target: &dyn Target, goal: Goal) -> Result<Compiled, CompileError> {
    compiler::compile(model, target, goal, |_, _| {})
}

/// Opens a compiled model on this machine's processor: reserves its arena and starts `threads` threads.
///
/// # Errors
/// A plan for another target; not enough memory for the arena.
pub fn open(compiled: Compiled, threads: usize) -> Result<Session, RunError> {
    let Compiled { plan, constants, .. } = compiled;
    let constants = AlignedBytes::new(constants.to_vec(), plan.arena.alignment);
    runtime::open(Arc::new(plan), Arc::new(constants), &Host { threads })
}

/// Opens the plans of an executable on this machine's processor. The weights are read into memory.
///
/// # Errors
/// A file that is not an executable of this version; a plan for another target; not enough memory for the arena.
pub fn open_executable(path: &Path, threads: usize) -> Result<Session, ExecutableError> {
    let image = ImageFile::open(path)?;
    let plans = image.plans.clone();
    Ok(open_all(plans, &image, &Host { threads })?)
}

/// The memory report of a plan: every byte of arena and constants by layer and role, and the reason for the peak.
pub fn report(plan: &Plan) -> Report {
    Report::new(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lenet() -> Model {
        load(&Request { model: "lenet".into(), ..Request::default() }).expect("a network of the zoo")
    }

    fn compiled(model: Model) -> Compiled {
        compile(model, &CpuTarget::new(), Goal::default()).expect("lenet compiles")
    }

    fn first_output(session: &mut Session) -> Vec<f32> {
        let input = Tensor::from_fn(session.plan().inputs[0].shape.clone(), |ix| (ix % 7) as f32);
        session.run_tensors(&[input]).expect("it runs")[0].as_slice().expect("floats").to_vec()
    }

    #[test]
    fn onnx_bytes_give_the_same_results_as_the_zoo() {
        let bytes = export::onnx(&lenet().graph).expect("lenet can be exported");
        let model = load_onnx(&bytes, None, &onnx::Options::default()).expect("an exported model loads");
        let from_bytes = first_output(&mut open(compiled(model), 1).expect("it opens"));
        assert_eq!(from_bytes, first_output(&mut open(compiled(lenet()), 1).expect("it opens")));
    }

    #[test]
    fn report_has_the_arena_of_the_plan() {
        let plan = compiled(lenet()).plan;
        assert_eq!(report(&plan).planned.arena_bytes, plan.arena.size().0);
    }

    #[test]
    fn executable_of_no_image_is_refused() {
        let own = std::env::current_exe().expect("the test is a file");
        assert!(matches!(open_executable(&own, 1), Err(ExecutableError::File(_))));
    }
}
