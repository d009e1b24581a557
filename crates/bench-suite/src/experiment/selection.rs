//! [`ResultSelection`]: the results of a report, and changes to them.

use serde_json::Value;

use super::CellOutcome;
use super::config::matches;
use crate::lines::Values;

/// A filter of results, and values that replace theirs, as `--select` and `--update` of DLBS's `bench_data.py`.
///
/// A text is a pattern as in a condition of an experiment: `*` (or `.*`) is any text. DLBS's other regular expressions have no
/// meaning here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultSelection {
    /// By key a value, or a list with the possible values.
    wanted: Values,
    /// Keys that must exist.
    present: Vec<String>,
    /// Values by key.
    updates: Values,
}

impl ResultSelection {
    /// Adds a condition on one key.
    pub fn wants(&mut self, key: &str, value: Value) {
        self.wanted.insert(key.into(), value);
    }

    /// Adds a query: `{"KEY": VALUE, "KEY": [VALUE, ..]}`, or a list of keys that must exist.
    ///
    /// # Errors
    /// Another form.
    pub fn query(&mut self, query: &str) -> Result<(), String> {
        let form = "a query must be `{\"KEY\": VALUE or [VALUE, ..]}` or `[\"KEY\", ..]`";
        match serde_json::from_str(query).map_err(|error| format!("{form}: {error}"))? {
            Value::Object(object) => self.wanted.extend(object),
            Value::Array(keys) => {
                for key in keys {
                    self.present.push(key.as_str().ok_or(format!("{form}, got the key {key}"))?.to_string());
                }
            }
            other => return Err(format!("{form}, got {other}")),
        }
        Ok(())
    }

    /// Sets the value of a key in all results.
    pub fn update(&mut self, key: &str, value: Value) {
        self.updates.insert(key.into(), value);
    }

    /// The selected results with their changes.
    pub fn apply(&self, mut outcomes: Vec<CellOutcome>) -> Vec<CellOutcome> {
        outcomes.retain(|outcome| {
            let values = &outcome.values;
            let has = |(key, wanted): (&String, &Value)| matches(wanted, values.get(key));
            self.wanted.iter().all(has) && self.present.iter().all(|key| values.contains_key(key))
        });
        for outcome in &mut outcomes {
            outcome.values.extend(self.updates.clone());
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selected(query: &str) -> String {
        let outcome = |model: &str, batch: u64| CellOutcome {
            id: format!("{model}{batch}"),
            succeeded: true,
            values: Values::from([("exp.model".into(), json!(model)), ("exp.replica_batch".into(), json!(batch))]),
        };
        let mut timed = outcome("vgg16", 8);
        timed.values.insert("results.time".into(), json!(1.5));
        let mut selection = ResultSelection::default();
        selection.query(query).unwrap();
        let rows = selection.apply(vec![outcome("resnet18", 1), outcome("resnet50", 8), timed]);
        rows.iter().map(|row| &row.id[..]).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn queries_of_dlbs_select_results() {
        assert_eq!(selected(r#"{"exp.model": "resnet.*"}"#), "resnet181 resnet508");
        assert_eq!(selected(r#"{"exp.model": ["vgg16", "resnet18"]}"#), "resnet181 vgg168");
        assert_eq!(selected(r#"{"exp.model": "*5*", "exp.replica_batch": [8, 16]}"#), "resnet508");
        assert_eq!(selected(r#"{"exp.absent": 1}"#), "");
        assert_eq!(selected(r#"["results.time"]"#), "vgg168");
        for wrong in ["", "1", "[1]", "{"] {
            assert!(ResultSelection::default().query(wrong).unwrap_err().starts_with("a query must be"), "{wrong}");
        }
    }

    #[test]
    fn updates_replace_values() {
        let outcome = CellOutcome { id: String::new(), succeeded: true, values: Values::new() };
        let mut selection = ResultSelection::default();
        selection.update("exp.node_id", json!("this"));
        assert_eq!(selection.apply(vec![outcome])[0].values["exp.node_id"], json!("this"));
    }
}
