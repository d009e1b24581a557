//! The parameters of a cell.

use serde_json::{Value, json};

/// A parameter with its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The name.
    pub name: &'static str,
    /// The type of its JSON: `str`, `int`, `float` or `bool`.
    pub kind: &'static str,
    /// The default as JSON; `null` for none.
    pub default: &'static str,
    /// The meaning.
    pub help: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, kind, default, help }
}

/// Every parameter. Names that begin with `user.` are free.
pub const PARAMETERS: &[Parameter] = &[
    parameter("exp.model", "str", "null", "network of the zoo, or a model file"),
    parameter(
        "exp.framework",
        "str",
        "\"prestow\"",
        "prestow, or a peer: onnxruntime, openvino, mnn, torch, torch-eager, torch-jit, mxnet, tract, rten",
    ),
    parameter("exp.phase", "str", "\"inference\"", "inference or training"),
    parameter("exp.replica_batch", "int", "1", "samples of a batch on each device"),
    parameter("exp.effective_batch", "int", "\"${exp.replica_batch}\"", "samples of a batch on all devices"),
    parameter("exp.num_batches", "int", "100", "batches that are timed"),
    parameter("exp.num_warmup_batches", "int", "10", "batches before the timed ones"),
    parameter("exp.dtype", "str", "\"float32\"", "float32 or float16"),
    parameter("exp.target", "str", "\"cpu\"", "target of the plan, as --target of compile"),
    parameter("exp.gpus", "str", "\"\"", "numbers of GPUs with commas; empty for the processor"),
    parameter("exp.threads", "int", "0", "threads that compute; 0 for all processors"),
    parameter("exp.data", "str", "\"\"", "data set, as --data; empty for synthetic data"),
    parameter("exp.scenario", "str", "\"\"", "scenario; empty for a plain loop"),
    parameter("exp.repeat", "int", "1", "number of the repetition, a variable for repeated cells"),
    parameter("exp.args", "str", "\"\"", "further flags of the benchmark, with blanks between them"),
    parameter("exp.command", "str", "\"\"", "command line instead of the benchmark, run by sh; it prints result lines"),
    parameter("exp.timeout", "float", "0", "seconds after which a cell is ended and fails; 0 for none"),
    parameter("exp.container", "str", "\"\"", "image in which the command runs"),
    parameter(
        "exp.launcher",
        "str",
        "\"docker\"",
        "program that runs containers: docker, nvidia-docker, podman or apptainer",
    ),
    parameter("exp.container_args", "str", "\"\"", "further flags of the launcher, with blanks between them"),
    parameter("exp.python", "str", "\"python3\"", "Python interpreter of the peers"),
    parameter(
        "exp.memory",
        "str",
        "\"\"",
        "bytes of the device, as 8GiB; cells that need more are failures and do not run",
    ),
    parameter(
        "monitor.frequency",
        "float",
        "0",
        "samples of processor, memory, power and GPUs in a second (in DLBS: seconds between two); 0 for none",
    ),
];

/// The values of parameters that take no others.
const CHOICES: &[(&str, &[&str])] = &[
    (
        "exp.framework",
        &["prestow", "onnxruntime", "openvino", "mnn", "torch", "torch-eager", "torch-jit", "mxnet", "tract", "rten"],
    ),
    ("exp.phase", &["inference", "training"]),
    ("exp.scenario", &["", "single-stream", "multi-stream", "server", "offline"]),
    ("exp.launcher", &["docker", "nvidia-docker", "podman", "apptainer"]),
];

/// The least and the largest value of numbers that have them.
const RANGES: &[(&str, f64, f64)] = &[
    ("exp.replica_batch", 1.0, 65_536.0),
    ("exp.num_batches", 1.0, 1e7),
    ("exp.num_warmup_batches", 0.0, 1e7),
    ("exp.threads", 0.0, 1024.0),
    ("exp.timeout", 0.0, 1e9),
    ("monitor.frequency", 0.0, 1000.0),
];

impl Parameter {
    /// The least and the largest number; `None` if it takes any of its type.
    pub fn range(&self) -> Option<(f64, f64)> {
        RANGES.iter().find(|(name, ..)| *name == self.name).map(|(_, least, most)| (*least, *most))
    }

    /// The only values of this parameter; `None` if it takes any of its type.
    pub fn choices(&self) -> Option<&'static [&'static str]> {
        CHOICES.iter().find(|(name, _)| *name == self.name).map(|(_, choices)| *choices)
    }

    /// The default; `Null` for none.
    pub fn default_value(&self) -> Value {
        serde_json::from_str(self.default).expect("the table has JSON")
    }

    /// Whether a value has the type. Text with a substitution has every type.
    pub fn accepts(&self, value: &Value) -> bool {
        let substituted = value.as_str().is_some_and(|text| text.contains("${"));
        substituted
            || match self.kind {
                "int" => value.is_i64() || value.is_u64(),
                "float" => value.is_number(),
                "bool" => value.is_boolean(),
                _ => value.is_string(),
            }
    }

    /// The row as JSON.
    pub fn json(&self) -> Value {
        json!({ "name": self.name, "type": self.kind, "default": self.default_value(), "help": self.help })
    }
}

/// The parameters whose name or help has every word, in any case.
pub fn search(words: &str) -> Vec<&'static Parameter> {
    let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
    let has = |parameter: &&Parameter| {
        let text = format!("{} {}", parameter.name, parameter.help).to_lowercase();
        words.iter().all(|word| text.contains(word))
    };
    PARAMETERS.iter().filter(has).collect()
}

/// The parameters nearest to an unknown one, by edit distance.
pub fn nearest(name: &str) -> Vec<&'static str> {
    nearest_of(name, PARAMETERS.iter().map(|own| own.name))
}

/// The known names nearest to another one: three at most.
pub fn nearest_of<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<(usize, &str)> = known.map(|own| (distance(name, own), own)).collect();
    ranked.sort_unstable();
    let least = ranked.first().map_or(0, |(own, _)| *own);
    ranked.into_iter().filter(|(own, _)| *own <= least + 1).take(3).map(|(_, name)| name).collect()
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_out_by_distance_and_words() {
        assert_eq!(nearest("exp.modle")[0], "exp.model");
        assert_eq!(nearest("exp.relica_batch"), ["exp.replica_batch"]);
        assert_eq!(search("WATT power").len(), 0);
        assert_eq!(search("power")[0].name, "monitor.frequency");
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn every_default_has_its_type() {
        for parameter in PARAMETERS {
            let default = parameter.default_value();
            assert!(default.is_null() || parameter.accepts(&default), "{}", parameter.name);
        }
    }
}
