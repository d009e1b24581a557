//! [`Config`]: an experiment file, and the cells of its grid.
//!
//! ```toml
//! [parameters]                     # one value for all cells
//! "exp.num_batches" = 20
//! [variables]                      # a list of values; cells are all combinations
//! "exp.model" = ["alexnet", "resnet18"]
//! "exp.replica_batch" = [1, 8]
//! [[extensions]]                   # applies to cells that match the condition
//! condition = { "exp.model" = "alexnet" }
//! parameters = { "exp.num_batches" = 50 }
//! cases = [{ "exp.threads" = 1 }, { "exp.threads" = 2 }]
//! ```
//!
//! `${NAME}` in a text is replaced by the value of another parameter. A condition's value is a text, number or boolean that
//! must be equal, a list that must have the value, or a pattern with `*`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::parameter::{PARAMETERS, nearest};
use super::run::BENCHMARK_FLAGS;
use crate::lines::Values;

/// An experiment file with the changes of the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// One value for all cells.
    pub parameters: Values,
    /// A list of values each.
    pub variables: BTreeMap<String, Vec<Value>>,
    extensions: Vec<Extension>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Extension {
    condition: Values,
    parameters: Values,
    cases: Vec<Values>,
}

/// One benchmark of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct GridCell {
    /// All parameters with their final values.
    pub values: Values,
    /// The digest of the values other than defaults: equal cells have equal ids in every run.
    pub id: String,
}

/// Why an experiment cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML or JSON.
    #[error("{0}")]
    Syntax(String),
    /// A table or list is missing or of another form.
    #[error("{0}")]
    Form(String),
    /// A parameter does not exist.
    #[error("`{name}` is not a parameter; the nearest are {nearest}; names that begin with `user.` are free")]
    Unknown {
        /// The name.
        name: String,
        /// Known names.
        nearest: String,
    },
    /// A value has another type.
    #[error("`{name}` must be of type {kind}, got {value}")]
    Type {
        /// The parameter.
        name: String,
        /// The type.
        kind: &'static str,
        /// The value.
        value: String,
    },
    /// `${NAME}` cannot be replaced.
    #[error("`{name}`: {reason}")]
    Substitution {
        /// The parameter with the text.
        name: String,
        /// The reason.
        reason: String,
    },
}

impl Config {
    /// Reads an experiment: JSON if it begins with `{`, else TOML. Tables may be nested: `[parameters.exp]` with `model`
    /// is `exp.model`.
    ///
    /// # Errors
    /// Another syntax or form; unknown parameters.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let value: Value = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?,
            false if is_deep(text) => {
                return Err(ConfigError::Form(format!("tables and lists must be nested at most {DEPTH_MAX} times")));
            }
            false => basic_toml::from_str(text).map_err(|error| ConfigError::Syntax(error.to_string()))?,
        };
        let Value::Object(mut file) = value else {
            return Err(ConfigError::Form("an experiment must be a table".into()));
        };
        let mut table = |name: &str| table_of(name, file.remove(name));
        let (parameters, lists) = (table("parameters")?, table("variables")?);
        let mut config = Config::default();
        for (name, value) in parameters {
            config.set(&name, value)?;
        }
        for (name, value) in lists {
            if config.parameters.contains_key(&name) {
                return Err(ConfigError::Form(format!(
                    "`{name}` is a parameter and a variable; leave one of them out"
                )));
            }
            config.vary(&name, value)?;
        }
        match file.remove("extensions") {
            None => {}
            Some(Value::Array(extensions)) => {
                config.extensions = extensions.into_iter().map(extension).collect::<Result<_, _>>()?;
            }
            Some(_) => return Err(ConfigError::Form("`extensions` must be a list of tables".into())),
        }
        match file.keys().next() {
            None => Ok(config),
            Some(name) => {
                let known = "parameters, variables, extensions";
                Err(ConfigError::Form(format!("`{name}` is not a table of an experiment; the tables are {known}")))
            }
        }
    }

    /// Sets a parameter, which is then no variable.
    ///
    /// # Errors
    /// An unknown parameter; a value of another type.
    pub fn set(&mut self, name: &str, value: Value) -> Result<(), ConfigError> {
        check(name, &value)?;
        self.variables.remove(name);
        self.parameters.insert(name.to_string(), value);
        Ok(())
    }

    /// Sets the list of values of a variable.
    ///
    /// # Errors
    /// As [`Config::set`]; a value that is no list or an empty one.
    pub fn vary(&mut self, name: &str, values: Value) -> Result<(), ConfigError> {
        let Value::Array(values) = values else {
            return Err(ConfigError::Form(format!("variable `{name}` must be a list, got {values}")));
        };
        if values.is_empty() {
            return Err(ConfigError::Form(format!("variable `{name}` must have at least one value")));
        }
        values.iter().try_for_each(|value| check(name, value))?;
        self.parameters.remove(name);
        self.variables.insert(name.to_string(), values);
        Ok(())
    }

    /// The configuration as JSON, with defaults.
    pub fn json(&self) -> Value {
        let mut parameters = defaults();
        parameters.extend(self.parameters.clone());
        let extension = |extension: &Extension| {
            serde_json::json!({
                "condition": extension.condition, "parameters": extension.parameters, "cases": extension.cases,
            })
        };
        let extensions: Vec<Value> = self.extensions.iter().map(extension).collect();
        serde_json::json!({ "parameters": parameters, "variables": self.variables, "extensions": extensions })
    }

    /// The cells in their order: the last variable by name varies fastest. Equal cells occur once.
    ///
    /// # Errors
    /// A substitution that fails; a value of another type after it; a cell without a model or command; more than 10,000
    /// cells.
    pub fn plan(&self) -> Result<Vec<GridCell>, ConfigError> {
        let mut combinations = vec![self.parameters.clone()];
        for (name, values) in &self.variables {
            check_count(combinations.len().saturating_mul(values.len()))?;
            let with = |base: &Values| {
                let with = |value: &Value| {
                    let mut own = base.clone();
                    own.insert(name.clone(), value.clone());
                    own
                };
                values.iter().map(with).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(with).collect();
        }
        let (mut cells, mut seen) = (Vec::new(), BTreeSet::new());
        for combination in combinations {
            for mut values in self.extended(combination)? {
                for (name, value) in defaults() {
                    values.entry(name).or_insert(value);
                }
                let cell = GridCell::new(substituted(&values)?);
                check_benchmark(&cell)?;
                let has =
                    |name: &str| cell.values.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
                if !has("exp.model") && !has("exp.command") {
                    return Err(ConfigError::Form("a cell must have `exp.model` or `exp.command`".into()));
                }
                if seen.insert(cell.id.clone()) {
                    cells.push(cell);
                    check_count(cells.len())?;
                }
            }
        }
        Ok(cells)
    }

    /// The cells that extensions make of one combination, in the order of the file.
    fn extended(&self, combination: Values) -> Result<Vec<Values>, ConfigError> {
        let mut cells = vec![combination];
        for extension in &self.extensions {
            let mut next = Vec::new();
            for mut cell in cells {
                let mut all = defaults();
                all.extend(cell.clone());
                if !extension.condition.iter().all(|(name, wanted)| matches(wanted, all.get(name))) {
                    next.push(cell);
                    continue;
                }
                cell.extend(extension.parameters.clone());
                match extension.cases.is_empty() {
                    true => next.push(cell),
                    false => next.extend(extension.cases.iter().map(|case| {
                        let mut own = cell.clone();
                        own.extend(case.clone());
                        own
                    })),
                }
                check_count(next.len())?;
            }
            cells = next;
        }
        Ok(cells)
    }
}

impl GridCell {
    /// The id covers the values that differ from the defaults, so that a parameter that a later version adds changes no id.
    fn new(values: Values) -> GridCell {
        let defaults = defaults();
        let chosen: Values =
            values.iter().filter(|&(name, value)| defaults.get(name) != Some(value)).map(own_copy).collect();
        let text = serde_json::to_string(&chosen).expect("a map of JSON values");
        GridCell { id: format!("{:016x}", xxh3_64(text.as_bytes())), values }
    }

    /// A text; empty if absent.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number; 0 if absent.
    pub fn number(&self, name: &str) -> f64 {
        self.values.get(name).and_then(Value::as_f64).unwrap_or_default()
    }
}

/// The deepest nesting of an experiment, as in JSON. The TOML reader recurses, and takes quadratic time for names of many parts.
const DEPTH_MAX: usize = 127;

fn is_deep(text: &str) -> bool {
    let mut depth = 0i64;
    let mut brackets = text.bytes().map(|byte| {
        depth += i64::from(matches!(byte, b'[' | b'{')) - i64::from(matches!(byte, b']' | b'}'));
        depth
    });
    let parts = |line: &str| line.split(['=', ',']).next().unwrap_or_default().split('.').count();
    brackets.any(|depth| (DEPTH_MAX as i64) < depth) || text.lines().any(|line| DEPTH_MAX < parts(line))
}

/// The most cells of an experiment; each is a process.
const CELLS_MAX: usize = 10_000;

fn check_count(cells: usize) -> Result<(), ConfigError> {
    match cells <= CELLS_MAX {
        true => Ok(()),
        false => Err(ConfigError::Form(format!(
            "an experiment must have at most {CELLS_MAX} cells, got {cells} or more; divide its variables among several"
        ))),
    }
}

/// Refuses a cell whose benchmark would refuse its flags, or have a flag twice. To another command the values are labels.
fn check_benchmark(cell: &GridCell) -> Result<(), ConfigError> {
    // Those of the experiment itself.
    let is_own = |name: &str| ["exp.launcher", "exp.timeout", "monitor.frequency"].contains(&name);
    let is_label = |name: &str| !is_own(name) && !cell.text("exp.command").is_empty();
    for parameter in PARAMETERS.iter().filter(|own| !is_label(own.name)) {
        let (name, text) = (parameter.name, cell.text(parameter.name));
        if let Some(choices) = parameter.choices().filter(|choices| !choices.contains(&text)) {
            let choices = choices.iter().filter(|choice| !choice.is_empty()).copied().collect::<Vec<_>>().join(", ");
            return Err(ConfigError::Form(format!("`{name}` takes {choices}, got `{text}`")));
        }
        if let (Some((least, most)), Some(number)) = (parameter.range(), cell.values.get(name).and_then(Value::as_f64))
            && !(least..=most).contains(&number)
        {
            return Err(ConfigError::Form(format!("`{name}` takes numbers from {least} to {most}, got {number}")));
        }
    }
    let flags = cell.text("exp.args").split_whitespace().filter_map(|word| word.strip_prefix("--"));
    for flag in flags.take_while(|flag| !flag.is_empty()) {
        let flag = flag.split('=').next().unwrap_or_default();
        if let Some((_, name)) = BENCHMARK_FLAGS.iter().find(|(own, _)| *own == flag) {
            return Err(ConfigError::Form(format!("`exp.args` must not have --{flag}: set `{name}`")));
        }
    }
    Ok(())
}

fn defaults() -> Values {
    let defaults = PARAMETERS.iter().map(|own| (own.name.to_string(), own.default_value()));
    defaults.filter(|(_, value)| !value.is_null()).collect()
}

fn own_copy((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn check(name: &str, value: &Value) -> Result<(), ConfigError> {
    if let Some(own) = name.strip_prefix("user.") {
        // A result line must end with `__=` behind the name, and `${NAME}` with a brace.
        let is_plain = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        return match !own.is_empty() && own.chars().all(is_plain) && !name.contains("__") && !name.ends_with('_') {
            true => Ok(()),
            false => Err(ConfigError::Form(format!(
                "`{}` is not a name: behind `user.` a name takes letters, digits and `_ . -`, no `__` and no `_` at the end",
                name.escape_debug()
            ))),
        };
    }
    let Some(parameter) = PARAMETERS.iter().find(|own| own.name == name) else {
        return Err(ConfigError::Unknown { name: name.into(), nearest: nearest(name).join(", ") });
    };
    if !parameter.accepts(value) {
        return Err(ConfigError::Type { name: name.into(), kind: parameter.kind, value: value.to_string() });
    }
    Ok(())
}

/// A table with dotted names; an absent one is empty.
fn table_of(name: &str, value: Option<Value>) -> Result<Values, ConfigError> {
    let mut flat = Values::new();
    match value {
        None => {}
        Some(Value::Object(table)) => flatten("", table, &mut flat)?,
        Some(_) => return Err(ConfigError::Form(format!("`{name}` must be a table"))),
    }
    Ok(flat)
}

fn flatten(prefix: &str, table: Map<String, Value>, flat: &mut Values) -> Result<(), ConfigError> {
    for (name, value) in table {
        let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            // DLBS's own files describe a parameter: {"val": .., "desc": ..}.
            Value::Object(mut inner) if inner.contains_key("val") => {
                insert_once(flat, name, inner.remove("val").unwrap_or_default())?;
            }
            Value::Object(inner) => flatten(&name, inner, flat)?,
            value => insert_once(flat, name, value)?,
        }
    }
    Ok(())
}

/// A name may occur dotted and in a nested table.
fn insert_once(flat: &mut Values, name: String, value: Value) -> Result<(), ConfigError> {
    match flat.get(&name) {
        Some(_) => Err(ConfigError::Form(format!("`{name}` is given twice, dotted and in a table"))),
        None => {
            flat.insert(name, value);
            Ok(())
        }
    }
}

fn extension(value: Value) -> Result<Extension, ConfigError> {
    let Value::Object(mut table) = value else {
        return Err(ConfigError::Form("an extension must be a table".into()));
    };
    let condition = table_of("condition", table.remove("condition"))?;
    let parameters = table_of("parameters", table.remove("parameters"))?;
    let cases = match table.remove("cases") {
        None => vec![],
        Some(Value::Array(cases)) => {
            cases.into_iter().map(|case| table_of("cases", Some(case))).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(ConfigError::Form("`cases` must be a list of tables".into())),
    };
    if let Some(name) = table.keys().next() {
        return Err(ConfigError::Form(format!("`{name}` is not a part of an extension")));
    }
    for (name, value) in parameters.iter().chain(cases.iter().flatten()) {
        check(name, value)?;
    }
    for (name, value) in &condition {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        // The type of a pattern is that of a text.
        values.iter().filter(|value| !value.is_string()).try_for_each(|value| check(name, value))?;
        check(name, &Value::String("${any}".into()))?;
    }
    Ok(Extension { condition, parameters, cases })
}

/// Whether a value meets a condition: it is equal, matches a pattern, or is one of a list.
pub(super) fn matches(wanted: &Value, found: Option<&Value>) -> bool {
    let Some(found) = found else { return false };
    match (wanted, found) {
        (Value::Array(list), _) => list.iter().any(|wanted| matches(wanted, Some(found))),
        (Value::String(pattern), Value::String(text)) => matches_pattern(pattern, text),
        _ => wanted == found,
    }
}

/// `*` is any text, and so is `.*`, which DLBS's conditions have.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let pattern = pattern.replace(".*", "*");
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The longest text after substitution, in bytes.
const TEXT_MAX: usize = 64 << 10;

/// The values with every `${NAME}` replaced.
fn substituted(values: &Values) -> Result<Values, ConfigError> {
    let mut done = Values::new();
    for name in values.keys() {
        let value = resolve(name, values, &mut done, &mut vec![])?;
        check(name, &value)?;
    }
    Ok(done)
}

/// The value of a parameter, which is added to `done`: a parameter that many texts name is resolved once.
fn resolve<'a>(
    name: &'a str,
    values: &'a Values,
    done: &mut Values,
    stack: &mut Vec<&'a str>,
) -> Result<Value, ConfigError> {
    if let Some(value) = done.get(name) {
        return Ok(value.clone());
    }
    let refused = |reason: String| Err(ConfigError::Substitution { name: name.to_string(), reason });
    let Some(value) = values.get(name) else {
        return refused("there is no parameter of this name to substitute".into());
    };
    let Some(text) = value.as_str().filter(|text| text.contains("${")) else {
        done.insert(name.to_string(), value.clone());
        return Ok(value.clone());
    };
    if stack.contains(&name) {
        return refused(format!("substitutions form a cycle: {}", stack.join(", ")));
    }
    stack.push(name);
    let mut parts = text.split("${");
    let mut result = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let Some((other, rest)) = part.split_once('}') else {
            return refused(format!("`${{` without `}}` in `{text}`"));
        };
        let value = resolve(other, values, done, stack)?;
        if text.len() == other.len() + 3 {
            // The whole text: the value keeps its type.
            stack.pop();
            done.insert(name.to_string(), value.clone());
            return Ok(value);
        }
        match value {
            Value::String(text) => result.push_str(&text),
            value => result.push_str(&value.to_string()),
        }
        result.push_str(rest);
        if TEXT_MAX < result.len() {
            return refused(format!("a text must have at most {TEXT_MAX} bytes after substitution"));
        }
    }
    stack.pop();
    done.insert(name.to_string(), Value::String(result.clone()));
    Ok(Value::String(result))
}
