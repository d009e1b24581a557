//! Memory planning: a [`Problem`] goes in, a [`Placement`] with its [`Certificate`] comes out, and [`check()`] judges
//! it.
//!
//! This crate sees sizes, lifetimes and alignments and nothing else: no graph, no device, no I/O, no clock, no threads.
//! The same problem and limits give the same placement, byte for byte. Words defined here: *buffer* ([`Buffer`], bytes
//! that live from one step to another), *gap* ([`Gap`], a time at which a buffer is absent or smaller), *placement* (an
//! offset for each buffer), *height* (the bytes of the arena that holds them), *certificate* (what is known about the
//! least possible height).
//!
//! | file | what lives there |
//! | --- | --- |
//! | `problem` | the question, and which questions are refused |
//! | `bound` | the lower bound on the height |
//! | `place` | the algorithm: a portfolio of greedy passes over an `instance` |
//! | `skyline`, `need`, `fit`, `glue`, `tiers`, `crest`, `stack` | those passes |
//! | `exact` | then a `search` for the least height, and the proof that it is |
//! | `windows` | or, for many items, the same around what lies too high |
//! | `repair` | and further passes that learn where the last one wasted |
//! | `check` | the judge: plain, shares no code with the passes |
//! | `csv` | the problem as text, in the form that minimalloc reads and writes |
//!
//! ```
//! use prestow_arena::{Buffer, Lifetime, Limits, Problem, check, place};
//! use types::{Bytes, Proof};
//!
//! // Step 0 makes `x`, step 1 makes `y` from it, step 2 makes `z` from `y`: `z` may take the bytes of `x`.
//! let buffers = [(0, 2, 64), (1, 3, 32), (2, 4, 64)]
//!     .map(|(first, end, size)| Buffer { alignment: Bytes(16), ..Buffer::new(Lifetime { first, end }, Bytes(size)) });
//! let problem = Problem { buffers: buffers.to_vec(), capacity: Some(Bytes(1024)) };
//!
//! let placement = place(&problem, Limits::default())?;
//! assert_eq!(placement.offsets, [Bytes(0), Bytes(64), Bytes(0)]);
//! assert_eq!(placement.height(), Bytes(96));
//! assert_eq!(placement.certificate.proof(), Proof::Bound);
//! check(&problem, &placement.offsets, placement.height()).expect("the planner does not break its own rules");
//! # Ok::<(), prestow_arena::PlaceError>(())
//! ```

mod problem;

mod bound;
mod place;

mod crest;
mod exact;
mod fit;
mod floor;
mod glue;
mod handful;
mod instance;
mod joint;
mod need;
mod obstacles;
mod repair;
mod runs;
mod search;
mod skyline;
mod stack;
mod stock;
mod sums;
mod tiers;
mod windows;

mod check;

pub mod csv;

pub use bound::{Bound, lower_bound};
pub use check::{Violation, check};
pub use place::{Aim, Limits, PlaceError, Placement, place};
pub use problem::{Buffer, BufferIx, Gap, Lifetime, Problem, ProblemError, Window};
