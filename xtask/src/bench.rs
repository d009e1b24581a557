//! `cargo xtask bench`: the criterion benches, or the planner's tables.

use crate::{cargo, check};

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    let (bench, words) = match words.split_first() {
        Some((first, rest)) if first == "planner" => ("planner", rest),
        _ => ("networks", words),
    };
    check("the bench", cargo().args(["bench", "-p", "prestow-benches", "--bench", bench, "--"]).args(words))?;
    Ok(0)
}
