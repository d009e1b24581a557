//! `cargo xtask bench`: the criterion benches, the planner's tables, kernels compared with their bounds, or executables
//! compared with other runtimes.

use crate::{cargo, check, peers, tools};

pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    let (bench, words) = match words.split_first() {
        Some((first, rest))
            if ["planner", "cpu", "training", "uprd", "kernels", "times", "data"].contains(&&**first) =>
        {
            (first.as_str(), rest)
        }
        _ => ("networks", words),
    };
    let mut words = words.to_vec();
    if ["cpu", "training", "data"].contains(&bench)
        && let Some(ix) = words.iter().position(|word| word == "--peers" || word.starts_with("--peers="))
    {
        let usual = match bench {
            "cpu" => peers::USUAL,
            "data" => peers::USUAL_DATA,
            _ => peers::USUAL_TRAINING,
        };
        let names = words.remove(ix);
        words.extend(peers::install(names.strip_prefix("--peers=").unwrap_or(usual))?);
    }
    if ["cpu", "training"].contains(&bench) {
        // The bench measures executables that users would run.
        tools::build(&tools::PRODUCT)?;
    }
    if bench == "uprd" {
        tools::build(&tools::PRODUCT)?;
        tools::build(&[tools::UPRD])?;
    }
    check("the bench", cargo().args(["bench", "-p", "prestow-benches", "--bench", bench, "--"]).args(words))?;
    Ok(0)
}
