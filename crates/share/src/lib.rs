//! Weights that processes share: the daemon `uprd` as a library. A process attaches to a resident model with one packet,
//! one reply with a descriptor, and one read-only mapping.
//!
//! - [`wire`]: the packets. No deserializer that can run code; every size is bounded.
//! - [`core`]: models, leases, budget and eviction as a state machine without I/O.
//! - [`memory`]: sealed memfds. The daemon maps no weights; a client maps them read-only.
//! - [`device`]: devices that export their memory.
//! - [`load`]: files to sealed memory: constants of executables, and files of tensors.
//! - [`Server`], [`Client`]: the two ends of the socket.
//! - [`system`]: signals, descriptors from systemd, notifications to it.
//! - [`settings`]: the environment variables of both. [`trace`]: profiles for Chrome and Perfetto.
//!
//! ```
//! use prestow_share::core::{Granularity, ModelKey, SourceKind};
//! use prestow_share::wire::{Ask, LoadMode};
//!
//! let key = ModelKey { user: 0, granularity: Granularity::Model, source: SourceKind::Image, digest: [1; 32], size: 4096 };
//! let ask = Ask::Open { key, internal: 0, name: String::new(), load: LoadMode::Wait };
//! assert_eq!(Ask::decode(&ask.encode(7)), Ok((7, ask)));
//! ```

pub mod base;
pub mod client;
pub mod core;
pub mod device;
pub mod load;
pub mod manifest;
pub mod memory;
pub mod metrics;
pub mod recipe;
pub mod server;
pub mod settings;
pub mod socket;
pub mod system;
pub mod trace;
pub mod wire;

pub use client::Client;
pub use server::Server;
