//! `cargo xtask bench`: the criterion benches.

use crate::{cargo, check};

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    check("the bench", cargo().args(["bench", "-p", "prestow-benches", "--"]).args(words))?;
    Ok(0)
}
