//! [`Vector`](super::Vector) in registers of x86-64.

mod avx2;
mod avx512;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::{Avx512, Int32Lanes512};
