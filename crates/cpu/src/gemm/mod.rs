//! Matrix products on registers: the microkernel, its dispatch by instruction set, and the epilogue.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod epilogue;
pub(crate) mod tile;
pub(crate) mod weights;

pub use self::epilogue::Epilogue;
pub use self::weights::Weights;
