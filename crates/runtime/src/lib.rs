//! The runtime: opens a plan on a device as a [`Session`], which runs it.
//!
//! [`open`] reserves the arena, decodes and checks every kernel, and starts the threads. Runs allocate nothing:
//! [`Session::run`] runs the steps in order. There is no compiler and no graph here. The weights come from a
//! [`WeightSource`]: host bytes, a file descriptor, or memory of a device.
//!
//! Beyond running: [`audit`] runs a plan and checks which bytes it touches, [`process`] reads resident memory from the
//! operating system, [`heap`] counts allocations, [`FlopsProbe`] measures peak arithmetic, [`KernelTimer`] one kernel.
//!
//! ```
//! use std::sync::Arc;
//!
//! use cpu::{Fill, Kernel};
//! use plan::{Arena, Buffer, BufferIx, Operand, Place, Plan, Port, Step};
//! use prestow_runtime::{Host, open};
//! use types::{Bytes, Certificate, DType, Layout, Role, Scope, Shape, Tag};
//!
//! // A plan of one step that writes 1.0 three times, as the compiler makes it from a constant.
//! let kernel = Kernel::Fill(Fill { elements: 3, element_size: 4, pattern: [0, 0, 128, 63, 0, 0, 0, 0] });
//! let operand = Operand { place: Place::Buffer(BufferIx(0)), offset: Bytes(0), size: Bytes(12) };
//! let step = Step {
//!     scope: Scope::new("ones"),
//!     kernel: kernel.name().into(),
//!     label: String::new(),
//!     code: postcard::to_allocvec(&kernel).unwrap(),
//!     inputs: Vec::new(),
//!     outputs: vec![operand],
//!     workspace: None,
//!     flops: 0,
//! };
//! let tag = Tag { scope: Scope::new("ones"), role: Role::Output };
//! let certificate = Certificate { value: Bytes(12), lower_bound: Bytes(12), least: Bytes(12) };
//! let plan = Plan {
//!     target: "cpu:x86-64".into(),
//!     outputs: vec![Port { name: "y".into(), dtype: DType::F32, shape: Shape::from([3]), layout: Layout::default(), operand }],
//!     steps: vec![step],
//!     buffers: vec![Buffer {
//!         tag,
//!         size: Bytes(12),
//!         offset: Bytes(0),
//!         first_step: 0,
//!         last_step: 0,
//!         persistence: Default::default(),
//!         values: Vec::new(),
//!         refused: Vec::new(),
//!     }],
//!     arena: Arena { alignment: Bytes(4), peak_step: 0, certificate },
//!     order: certificate,
//!     ..Plan::default()
//! };
//! assert!(plan::check(&plan).is_ok());
//! let mut session = open(Arc::new(plan), Arc::new(Vec::new()), &Host { threads: 1 }).unwrap();
//! let outputs = session.run_tensors(&[]).unwrap();
//! assert_eq!(outputs[0].as_slice::<f32>().unwrap(), [1.0, 1.0, 1.0]);
//! ```

pub mod audit;
mod device;
mod file;
pub mod heap;
mod kernel_timer;
mod probe;
pub mod process;
mod session;
mod synthetic;
mod weight_source;

pub use cpu::THREADS_MAX;
pub use cuda::{ExternalBuffer, ExternalStream, LibraryPaths};
pub use device::{CudaDevice, Device, Host, PagerUsage, StreamSession, required_libraries};
pub use file::{ImageFile, OpenError};
pub use kernel_timer::KernelTimer;
pub use plan::{Plan, Port};
pub use probe::FlopsProbe;
pub use session::{RunError, Session, check_input, open, open_all};
pub use synthetic::synthetic_inputs;
pub use weight_source::{DevicePart, WeightSource};
