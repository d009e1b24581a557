//! Memory planning: [`place`] gives a [`Problem`] a [`Placement`] with a certificate, and [`check()`] verifies it.
//!
//! This crate sees sizes, lifetimes and alignments and nothing else: no graph, no device, no I/O, no clock, no threads.
//! The same problem and limits give the same placement, byte for byte. Words defined here: *buffer* ([`Buffer`], bytes
//! that live from one step to another), *gap* ([`Gap`], a time at which a buffer is absent or smaller), *placement* (an
//! offset for each buffer), *height* (the bytes of the arena that holds them).
//!
//! | file | content |
//! | --- | --- |
//! | `problem` | problems and the errors of invalid ones |
//! | `bound` | the lower bound on the height |
//! | `place` | the algorithm: greedy passes over an `instance`, then searches |
//! | `skyline`, `hole_fit` | the greedy passes |
//! | `exact`, `search`, `brute_force` | exact search, with a proof of the least height |
//! | `gapped` | problems with gaps: their items first, the others around them |
//! | `large` | passes for problems too large for one exact search |
//! | `skyline_runs`, `segment_tree`, `spatial_index`, `obstacles` | data structures |
//! | `check` | the checker: plain, shares no code with the passes |
//! | `residency` | items that stay in a bounded memory or are read into it in each run |
//! | `csv` | problems as text, in minimalloc's format |
//!
//! ```
//! use prestow_arena::{Buffer, Lifetime, Limits, Problem, check, place};
//! use types::{Bytes, Proof};
//!
//! // Step 0 writes `x`, step 1 `y` from it, step 2 `z` from `y`: `z` can reuse the bytes of `x`.
//! let buffers = [(0, 2, 64), (1, 3, 32), (2, 4, 64)]
//!     .map(|(first, end, size)| Buffer { alignment: Bytes(16), ..Buffer::new(Lifetime { first, end }, Bytes(size)) });
//! let problem = Problem { buffers: buffers.to_vec(), capacity: Some(Bytes(1024)) };
//!
//! let placement = place(&problem, Limits::default())?;
//! assert_eq!(placement.offsets, [Bytes(0), Bytes(64), Bytes(0)]);
//! assert_eq!(placement.height(), Bytes(96));
//! assert_eq!(placement.certificate.proof(), Proof::Bound);
//! check(&problem, &placement.offsets, placement.height()).expect("placements are valid");
//! # Ok::<(), prestow_arena::PlaceError>(())
//! ```

mod problem;

mod bound;
mod place;

mod brute_force;
mod exact;
mod flip;
mod gapped;
mod hole_fit;
mod instance;
mod large;
mod neighbors;
mod obstacles;
mod search;
mod segment_tree;
mod skyline;
mod skyline_runs;
mod spatial_index;

mod check;

mod residency;

pub mod csv;

pub use bound::{Bound, lower_bound};
pub use check::{Violation, check};
pub use place::{Aim, Limits, PlaceError, Placement, place};
pub use problem::{Buffer, BufferIx, ByteWindow, Gap, Lifetime, Piece, Problem, ProblemError};
pub use residency::{ItemStay, Overlap, ResidencyProblem, StepTooLarge, Streaming, keep_and_stream};
