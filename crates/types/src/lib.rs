//! The vocabulary of all crates: dtypes, shapes, byte counts, roles, tags, typed ids, certificates and host tensors.
//!
//! This crate does no I/O and has no graph, plan or device. Words defined here: [`DType`], [`Shape`], [`Bytes`],
//! [`Role`], [`Scope`], [`Tag`], [`Layout`], [`Tensor`], [`Derivation`], [`Certificate`], [`WeightFormat`].
//!
//! The definitions of some operators are here because both the graph (`ir`) and the CPU kernels (`cpu`), which do not
//! depend on each other, use them: [`pointwise`] functions, [`recurrent`] cells, [`update`] rules, [`Philox`], [`HeadOrder`]. [`Preprocess`] is here
//! because the networks that describe it (`zoo`) and the plans that store it (`plan`) share no other crate.
//!
//! ```
//! use prestow_types::{DType, Shape, Tensor};
//!
//! let x = Tensor::new(Shape::from([2, 3]), vec![0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
//! assert_eq!(x.dtype(), DType::F32);
//! assert_eq!(x.size().0, 24);
//! ```

mod attention;
mod bytes;
mod certificate;
mod derivation;
mod dtype;
mod entity;
mod hull;
mod layout;
mod load_limit;
mod shape;
mod tag;
mod tensor;
mod weight_format;

mod philox;
pub mod pointwise;
mod preprocess;
mod random;
pub mod recurrent;
pub mod update;

pub use attention::HeadOrder;
pub use bytes::{Bytes, ParseBytesError};
pub use certificate::{Certificate, Certificates, Proof};
pub use derivation::{ChannelAffine, ChannelAxis, ChannelChange, Derivation, TensorFunction};
pub use dtype::DType;
pub use entity::{EntityId, Map};
pub use half::{bf16, f16};
pub use hull::{ByteSpan, hulls};
pub use layout::Layout;
pub use load_limit::{LoadBudget, LoadLimit, LoadLimitError};
pub use philox::Philox;
pub use preprocess::{ChannelOrder, Filter, Preprocess};
pub use random::Random;
pub use shape::{BroadcastError, Shape, broadcast, strides};
pub use tag::{Role, Scope, Tag};
pub use tensor::{Data, Element, Tensor, TensorError, odd_f32};
pub use weight_format::{WeightFormat, int8_level, int8_scales};
