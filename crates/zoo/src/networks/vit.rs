//! Vision transformer, base, patches of 16x16 (Dosovitskiy et al. 2021), as in torchvision.

use ir::ValueId;
use ir::ops::{self, Expand};
use types::{Shape, pointwise};

use super::transformer::{Heads, projections};
use crate::{Builder, Init, Window, ZooError};

const WIDTH: usize = 768;
const HEADS: usize = 12;
const LAYERS: usize = 12;
const PATCH: usize = 16;
const EPSILON: f32 = 1e-6;

pub(crate) fn b_16(b: &mut Builder, inputs: &[ValueId]) -> Result<ValueId, ZooError> {
    let x = inputs[0];
    let (batch, [rows, columns]) = (b.shape(x)[0], b.extent(x));
    if !rows.is_multiple_of(PATCH) || !columns.is_multiple_of(PATCH) {
        return b.refused(format!("patches of {PATCH}x{PATCH} do not divide a picture of {rows}x{columns}"));
    }
    let patches = (rows / PATCH) * (columns / PATCH);
    let x = b.conv_bias(x, "conv_proj", WIDTH, Window::square(PATCH).stride(PATCH))?;
    let x = b.reshape(x, [batch, WIDTH, patches], "patches")?;
    let x = b.transpose(x, &[0, 2, 1], "patches.transpose")?;
    let class = b.take("class_token", [1, 1, WIDTH], Init::Bias)?;
    let class = b.graph.add_weight("class_token", class);
    let class = b.node(Expand { shape: Shape::from([batch, 1, WIDTH]) }, &[class], "class_token")?;
    let x = b.concat_along(1, &[class, x], "tokens")?;
    let positions = b.take("encoder.pos_embedding", [1, patches + 1, WIDTH], Init::Bias)?;
    let positions = b.graph.add_weight("encoder.pos_embedding", positions);
    let mut x = b.add(x, positions, "encoder.add_positions")?;
    for layer in 0..LAYERS {
        x = encoder_layer(b, x, &format!("encoder.layers.encoder_layer_{layer}"))?;
    }
    // Each token is normalised by itself, and only the first one is looked at.
    let x = b.slice(x, 1, 0, 1, "class")?;
    let x = b.reshape(x, [batch, WIDTH], "class.token")?;
    let x = b.layer_norm(x, "encoder.ln", EPSILON)?;
    b.linear(x, "heads.head", 1000)
}

fn encoder_layer(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let y = b.layer_norm(x, &format!("{name}.ln_1"), EPSILON)?;
    let joint = format!("{name}.self_attention");
    let weight = b.take(&format!("{joint}.in_proj_weight"), [3 * WIDTH, WIDTH], Init::Weight { fan_in: WIDTH })?;
    let bias = b.take(&format!("{joint}.in_proj_bias"), [3 * WIDTH], Init::Bias)?;
    let [q, k, v] = projections(b, y, &joint, &weight, &bias)?;
    let y = Heads { q, k, v, heads: HEADS }.attend(b, None, &format!("{name}.self_attention"))?;
    let y = b.linear(y, &format!("{name}.self_attention.out_proj"), WIDTH)?;
    let x = b.add(y, x, &format!("{name}.self_attention.add"))?;
    let y = b.layer_norm(x, &format!("{name}.ln_2"), EPSILON)?;
    let y = b.linear(y, &format!("{name}.mlp.0"), 4 * WIDTH)?;
    let y = b.node(ops::Unary(pointwise::Unary::Gelu), &[y], &format!("{name}.mlp.1"))?;
    let y = b.linear(y, &format!("{name}.mlp.3"), WIDTH)?;
    b.add(x, y, &format!("{name}.mlp.add"))
}
