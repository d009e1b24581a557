//! [`Ratchet`]: counts that may only fall, compared with the budgets in `xtask/ratchet.txt`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::read;
use crate::root;

const HEAD: &str = "\
# Budgets of `cargo xtask tidy`, a row each. A count above its budget is a fault; `cargo xtask tidy --bless` lowers
# budgets to today's counts and never raises one. `words FOLDER` is the number of discouraged words in 1000 words of
# comments (`xtask/src/tidy/words.rs` has the list).
";

/// Budgets and the counts of today.
pub(super) struct Ratchet {
    budgets: BTreeMap<String, f64>,
    counts: BTreeMap<String, Count>,
}

/// A count and the finding that an author needs to lower it.
struct Count {
    value: f64,
    detail: String,
}

impl Ratchet {
    /// Reads the budgets.
    ///
    /// # Errors
    /// A file that is absent or has a row without a number.
    pub(super) fn read() -> Result<Ratchet, String> {
        let path = path();
        let text = read(&path)?;
        let mut budgets = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let row = line.rsplit_once(' ').and_then(|(name, value)| Some((name.trim(), value.parse().ok()?)));
            let (name, value) =
                row.ok_or_else(|| format!("`{}`: a row must be `NAME NUMBER`, got `{line}`", path.display()))?;
            budgets.insert(name.to_string(), value);
        }
        Ok(Ratchet { budgets, counts: BTreeMap::new() })
    }

    /// Adds a count, rounded up to a tenth, with the detail that a fault prints.
    pub(super) fn count(&mut self, name: impl Into<String>, value: f64, detail: String) {
        self.counts.insert(name.into(), Count { value: (value * 10.0).ceil() / 10.0, detail });
    }

    /// Adds a fault for each count above its budget.
    pub(super) fn judge(&self, faults: &mut Vec<String>) {
        for (name, Count { value, detail }) in &self.counts {
            match self.budgets.get(name) {
                Some(budget) if *value <= *budget => {}
                Some(budget) => faults.push(format!("{name}: must be at most {budget}, got {value} ({detail})")),
                None => faults.push(format!("{name}: no budget in xtask/ratchet.txt; run `cargo xtask tidy --bless`")),
            }
        }
    }

    /// The rows whose budget can be lowered, and rows of nothing that is counted.
    pub(super) fn slack(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for (name, budget) in &self.budgets {
            match self.counts.get(name) {
                Some(Count { value, .. }) if value < budget => rows.push(format!("{name}: {value} of {budget}")),
                Some(_) => {}
                None => rows.push(format!("{name}: no longer counted")),
            }
        }
        rows
    }

    /// Writes budgets: the lesser of budget and count, and the count of a row that is new.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn bless(&mut self) -> Result<(), String> {
        let lowered = |(name, count): (&String, &Count)| {
            let budget = self.budgets.get(name).copied().unwrap_or(f64::INFINITY);
            (name.clone(), budget.min(count.value))
        };
        self.budgets = self.counts.iter().map(lowered).collect();
        let rows = self.budgets.iter().map(|(name, value)| format!("{name} {value}\n"));
        let text = HEAD.to_string() + &rows.collect::<String>();
        fs::write(path(), text).map_err(|error| format!("cannot write `{}`: {error}", path().display()))
    }
}

fn path() -> PathBuf {
    root().join("xtask/ratchet.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratchet(budgets: &[(&str, f64)], counts: &[(&str, f64)]) -> Ratchet {
        let budgets = budgets.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        let mut ratchet = Ratchet { budgets, counts: BTreeMap::new() };
        counts.iter().for_each(|(name, value)| ratchet.count(*name, *value, "3 of `what`".into()));
        ratchet
    }

    #[test]
    fn count_above_budget_is_a_fault() {
        let mut faults = Vec::new();
        ratchet(&[("a", 1.0), ("b", 2.0)], &[("a", 1.01), ("b", 2.0)]).judge(&mut faults);
        assert_eq!(faults, ["a: must be at most 1, got 1.1 (3 of `what`)"]);
    }

    #[test]
    fn count_without_budget_is_a_fault() {
        let mut faults = Vec::new();
        ratchet(&[], &[("a", 0.0)]).judge(&mut faults);
        assert_eq!(faults, ["a: no budget in xtask/ratchet.txt; run `cargo xtask tidy --bless`"]);
    }

    #[test]
    fn lower_counts_and_stale_rows_are_slack() {
        let slack = ratchet(&[("a", 1.0), ("b", 2.0), ("c", 3.0)], &[("a", 0.5), ("b", 2.0)]).slack();
        assert_eq!(slack, ["a: 0.5 of 1", "c: no longer counted"]);
    }
}
