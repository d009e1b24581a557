//! `cargo xtask new-op NAME`: writes the files and rows of a new primitive operator and lists the decisions that remain.
//!
//! [`PLACES`] is the whole price of an operator. The table of `docs/add-an-operator.md` must state the same places, and a
//! test runs the command on a copy of the files.

use std::fs;
use std::path::Path;

use crate::root;

/// A file that a new operator touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    path: &'static str,
    kind: Kind,
    task: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The command writes the file. `<name>` in the path is the operator's name.
    File,
    /// The command adds a row or two.
    Row,
    /// The author adds a match arm, which the compiler requires.
    Arm,
    /// The author adds code that a test requires.
    Test,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::File => "new file",
            Kind::Row => "row",
            Kind::Arm => "match arm",
            Kind::Test => "code",
        }
    }
}

const fn place(path: &'static str, kind: Kind, task: &'static str) -> Place {
    Place { path, kind, task }
}

const OP: &str = "crates/ir/src/ops/<name>.rs";
const KERNEL: &str = "crates/cpu/src/ops/<name>.rs";

const PLACES: &[Place] = &[
    place(OP, Kind::File, "attributes; `infer`, `eval`, `gradient`, `axes`, `with_axes`, `reuse`, `flops`"),
    place(KERNEL, Kind::File, "parameters; `sizes` and `run`"),
    place("crates/ir/src/op.rs", Kind::Row, "`operators!`, sorted"),
    place("crates/ir/src/ops/mod.rs", Kind::Row, "`mod` and `pub use`"),
    place("crates/cpu/src/ops/mod.rs", Kind::Row, "`mod`"),
    place("crates/cpu/src/lib.rs", Kind::Row, "`pub use`"),
    place("crates/cpu/src/table.rs", Kind::Row, "`kernels!`, at the end: plans name kernels by position"),
    place("crates/lower/src/cpu", Kind::Arm, "the CPU kernel for the operator"),
    place("crates/lower/src/cuda", Kind::Arm, "the GPU kernel, or the reason why there is none"),
    place("crates/export/src/translate.rs", Kind::Arm, "the ONNX nodes that compute the same, or an error"),
    place("crates/passes/src/simplify/canonicalize.rs", Kind::Arm, "when the operator returns its operand"),
    place("crates/load/src/onnx/ops", Kind::Test, "a loader function and its row"),
    place("crates/cpu/tests/it/fuzz.rs", Kind::Test, "random parameters of the kernel"),
    place("tests/cases/src", Kind::Test, "cases for every executor"),
];

/// `new-op NAME`.
pub(crate) fn run(words: &[String]) -> Result<u8, String> {
    let [name] = words else {
        return Err(format!("new-op takes one name in snake case such as `cumulative_sum`, got {} words", words.len()));
    };
    write(&root(), name)?;
    println!("written:");
    let written = |place: &&Place| matches!(place.kind, Kind::File | Kind::Row);
    for place in PLACES.iter().filter(written) {
        println!("  {:9} {}: {}", place.kind.name(), place.path.replace("<name>", name), place.task);
    }
    println!(
        "\nto be decided (docs/add-an-operator.md); `cargo check --workspace` names the missing methods and arms:"
    );
    println!("  methods   {}: `gradient`, `axes` and `with_axes`", OP.replace("<name>", name));
    for place in PLACES.iter().filter(|place| !written(place)) {
        println!("  {:9} {}: {}", place.kind.name(), place.path, place.task);
    }
    Ok(0)
}

/// Writes the files and rows below `root`.
fn write(root: &Path, name: &str) -> Result<(), String> {
    let is_snake = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_snake {
        return Err(format!("the name must be in snake case, got `{name}`"));
    }
    let ty: String = name
        .split('_')
        .map(|word| word[..1.min(word.len())].to_uppercase() + word.get(1..).unwrap_or_default())
        .collect();
    for (path, template) in [(OP, OP_TEMPLATE), (KERNEL, KERNEL_TEMPLATE)] {
        let path = root.join(path.replace("<name>", name));
        if path.exists() {
            return Err(format!("`{}` exists; choose another name", path.display()));
        }
        let text = template.replace("@name@", name).replace("@Type@", &ty);
        fs::write(&path, text).map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
    }
    let row =
        |path: &str, before: &dyn Fn(&str) -> bool, row: &str, from: &str| add_row(&root.join(path), from, before, row);
    let is_later = |line: &str| line == "}" || line.trim().trim_end_matches(',') > &ty[..];
    row("crates/ir/src/op.rs", &is_later, &format!("    {ty},"), "operators! {")?;
    let module = format!("mod {name};");
    row("crates/ir/src/ops/mod.rs", &|line| line.is_empty() || line > &module[..], &module, "mod arg_extreme;")?;
    let used = format!("pub use {name}::{ty};");
    row(
        "crates/ir/src/ops/mod.rs",
        &|line| line.is_empty() || line > &used[..],
        &used,
        "pub use arg_extreme::ArgExtreme;",
    )?;
    let module = format!("pub(crate) mod {name};");
    row(
        "crates/cpu/src/ops/mod.rs",
        &|line| line.is_empty() || line > &module[..],
        &module,
        "pub(crate) mod arg_extreme;",
    )?;
    let used = format!("pub use ops::{name}::{ty};");
    row("crates/cpu/src/lib.rs", &|line| line > &used[..], &used, "pub use ops::arg_extreme::ArgExtreme;")?;
    row("crates/cpu/src/table.rs", &|line| line == "}", &format!("    {ty},"), "kernels! {")
}

/// Adds a row to a file: before the first line behind `from` for which `before` holds, or at the end.
fn add_row(path: &Path, from: &str, before: &dyn Fn(&str) -> bool, row: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read `{}`: {error}", path.display()))?;
    let mut lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().position(|line| *line == from);
    let start = start.ok_or_else(|| format!("`{}` must have the line `{from}`", path.display()))?;
    let at = lines[start + 1..].iter().position(|line| before(line)).map_or(lines.len(), |at| start + 1 + at);
    lines.insert(at, row);
    fs::write(path, lines.join("\n") + "\n").map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

const OP_TEMPLATE: &str = r#"//! [`@Type@`]: describe the function.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use types::Tensor;

use super::common::{arity, f32_only, from_f64, one};
use crate::op::{Operator, Refusal, TensorType};

/// Describe the function in one line.
///
/// `x: [..]` of `f32` -> the same type. Refuses: other dtypes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct @Type@ {}

impl Operator for @Type@ {
    const NAME: &'static str = "@name@";

    fn infer(&self, inputs: &[&TensorType]) -> Result<SmallVec<[TensorType; 1]>, Refusal> {
        arity(inputs, 1)?;
        f32_only(inputs)?;
        Ok(one(inputs[0].clone()))
    }

    fn eval(&self, inputs: &[&Tensor]) -> SmallVec<[Tensor; 1]> {
        let x = inputs[0];
        one(from_f64(x.shape().clone(), x.dtype(), x.to_f64()))
    }

    // Decide `gradient`, `axes` and `with_axes`; the compiler requires all three.
}
"#;

const KERNEL_TEMPLATE: &str = r#"//! [`@Type@`]: describe the function.

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Describe the function on `x: [elements]` of `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct @Type@ {
    /// Elements of operand and result.
    pub elements: usize,
}

impl KernelFn for @Type@ {
    const NAME: &'static str = "@name@";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        Sizes::new(&[Some(self.elements)], Some(self.elements), 4)
    }

    fn run(&self, args: Args, pool: &Pool) {
        let Operand::Bytes(x) = args.inputs[0] else { return };
        for_each_chunk(pool, args.outputs[0], 4, &|number, out| {
            out.copy_from_slice(&x[4 * number..][..out.len()]);
        });
    }
}
"#;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn document_states_every_place() {
        let text = fs::read_to_string(root().join("docs/add-an-operator.md")).expect("the document is there");
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
            .collect();
        let want: Vec<Vec<String>> = PLACES
            .iter()
            .map(|place| vec![format!("`{}`", place.path), place.kind.name().to_string(), place.task.to_string()])
            .collect();
        assert_eq!(rows, want);
        for place in PLACES.iter().filter(|place| place.kind != Kind::File) {
            assert!(root().join(place.path).exists(), "{}", place.path);
        }
        let count = |kind: Kind| PLACES.iter().filter(|place| place.kind == kind).count();
        let price = format!(
            "{} new files, {} files with rows that the command writes, {} match arms, {} places for a loader and tests",
            count(Kind::File),
            count(Kind::Row),
            count(Kind::Arm),
            count(Kind::Test)
        );
        assert!(text.contains(&price), "the document must state: {price}");
    }

    #[test]
    fn command_changes_the_files_of_the_document() {
        let copy = std::env::temp_dir().join(format!("prestow-new-op-{}", std::process::id()));
        let mut before = BTreeMap::new();
        for place in PLACES.iter().filter(|place| place.kind == Kind::Row) {
            let text = fs::read_to_string(root().join(place.path)).expect("the file is there");
            let target = copy.join(place.path);
            fs::create_dir_all(target.parent().expect("it has a folder")).expect("the folder is ours");
            fs::write(&target, &text).expect("the folder is ours");
            before.insert(place.path, text);
        }
        write(&copy, "zebra_norm").expect("the rows have a place");
        for place in PLACES {
            let path = copy.join(place.path.replace("<name>", "zebra_norm"));
            match place.kind {
                Kind::File => assert!(fs::read_to_string(path).expect("it was written").contains("ZebraNorm")),
                Kind::Row => {
                    let text = fs::read_to_string(path).expect("it was copied");
                    let old = &before[place.path];
                    let added: Vec<&str> = text.lines().filter(|line| !old.lines().any(|own| own == *line)).collect();
                    assert!((1..=2).contains(&added.len()), "{}: {added:?}", place.path);
                    let kept: Vec<&str> = text.lines().filter(|line| !added.contains(line)).collect();
                    assert_eq!(kept, old.lines().collect::<Vec<_>>(), "{}", place.path);
                }
                Kind::Arm | Kind::Test => {}
            }
        }
        assert!(write(&copy, "zebra_norm").is_err(), "the files exist");
        assert!(write(&copy, "ZebraNorm").is_err(), "the name is in snake case");
        fs::remove_dir_all(copy).expect("the folder is ours");
    }
}
