//! Library errors in the words of the command line: the flags that avoid them are appended.

use compiler::source::{Field, Remedy, SourceError};

/// The error with the flags to add or to remove.
pub(crate) fn explain(error: &SourceError) -> String {
    let remedies = error.remedies();
    let mut shapes = Vec::new();
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    for remedy in &remedies {
        match remedy {
            // Shapes of several inputs are required together.
            Remedy::Set(Field::Shapes, value) => shapes.push(format!("{} {value}", flag(Field::Shapes))),
            Remedy::Set(field, value) => add.push(format!("{} {value}", flag(*field)).trim_end().to_string()),
            Remedy::Remove(field) => remove.push(flag(*field)),
        }
    }
    if !shapes.is_empty() {
        add.insert(0, shapes.join(" "));
    }
    let mut text = error.to_string();
    if !add.is_empty() {
        text += &format!("\nadd {}", add.join(" or "));
    }
    if !remove.is_empty() {
        text += &format!("\nremove {}", remove.join(", "));
    }
    text
}

fn flag(field: Field) -> &'static str {
    match field {
        Field::Batch => "--batch",
        Field::Shapes => "--shape",
        Field::Fixed => "--fix",
        Field::Params => "--params",
        Field::Weights => "--weights",
        Field::Names => "--names",
        Field::Pretrained => "--pretrained",
        Field::Data => "--data",
        Field::LoadLimit => "--load-limit",
        Field::InferenceMode => "--inference-mode",
    }
}
