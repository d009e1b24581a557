//! Pointwise nodes: chains of `f32`, and one function at a time for other dtypes.

use cpu::{ElementwiseFn, Instruction, StorageType};
use ir::ops::ChainStep;
use ir::{Call, Op};
use types::pointwise::{Binary as Function2, Unary as Function};
use types::{DType, Shape};

use super::select::{broadcast_strides, call, float_of};
use crate::NodeView;

/// The call for a pointwise node.
pub(super) fn lower(node: &NodeView) -> Result<Call, String> {
    match &*node.op {
        Op::Chain(chain) => {
            let program = chain.steps.iter().map(|step| match *step {
                ChainStep::Unary(function, a) => Instruction::Unary(function, a),
                ChainStep::Binary(function, a, b) => Instruction::Binary(function, a, b),
                ChainStep::Constant(number) => Instruction::Constant(number),
            });
            chain_call(node, program.collect())
        }
        // To a byte a cast drops the fraction, which a chain would round.
        Op::Cast(cast) if is_fraction(cast.to) && StorageType::of(node.input(0).dtype).is_some() => {
            chain_call(node, Vec::new())
        }
        Op::Unary(unary) if is_chain(node, matches!(unary.0, Function::IsNan | Function::IsInf { .. })) => {
            chain_call(node, vec![Instruction::Unary(unary.0, 0)])
        }
        Op::Binary(binary) if is_chain(node, false) && !is_bitwise(binary.0) => {
            chain_call(node, vec![Instruction::Binary(binary.0, 0, 1)])
        }
        Op::Unary(unary) => elementwise(node, ElementwiseFn::Unary(unary.0), node.input(0).dtype),
        Op::Binary(binary) => elementwise(node, ElementwiseFn::Binary(binary.0), node.input(0).dtype),
        Op::Compare(compare) => elementwise(node, ElementwiseFn::Compare(compare.0), node.input(0).dtype),
        Op::Select(_) => elementwise(node, ElementwiseFn::Select, node.input(1).dtype),
        Op::Cast(cast) => elementwise(node, ElementwiseFn::Cast(cast.to), node.input(0).dtype),
        other => Err(format!("`{}` is not pointwise", other.name())),
    }
}

fn is_fraction(dtype: DType) -> bool {
    StorageType::of(dtype).is_some_and(|stored| !stored.is_byte())
}

fn is_chain(node: &NodeView, gives_bool: bool) -> bool {
    node.output().dtype == DType::F32 && node.input(0).dtype == DType::F32 && !gives_bool
}

fn is_bitwise(function: Function2) -> bool {
    matches!(function, Function2::And | Function2::Or | Function2::Xor | Function2::ShiftLeft | Function2::ShiftRight)
}

/// The output's extents and each operand's strides in them.
fn walk(node: &NodeView) -> (Vec<usize>, Vec<Vec<usize>>) {
    let shape: &Shape = &node.output().shape;
    let strides = (0..node.node.inputs.len()).map(|ix| broadcast_strides(&node.input(ix).shape, shape)).collect();
    (shape.to_vec(), strides)
}

fn chain_call(node: &NodeView, program: Vec<Instruction>) -> Result<Call, String> {
    let (shape, strides) = walk(node);
    let names: Vec<&str> = program
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::Unary(function, _) => Some(function.name()),
            Instruction::Binary(function, _, _) => Some(function.name()),
            Instruction::Constant(_) => None,
        })
        .collect();
    let what = match names[..] {
        [] => format!("{} to {}", node.input(0).dtype, node.output().dtype),
        _ => names.join(" "),
    };
    let label = format!("{what} on {}", node.output().shape);
    let inputs = (0..strides.len()).map(|ix| node.stored(ix)).collect();
    let result = float_of(node.output());
    call(cpu::Chain { shape, strides, inputs, program, result }, label, node.values())
}

fn elementwise(node: &NodeView, function: ElementwiseFn, dtype: DType) -> Result<Call, String> {
    let (shape, strides) = walk(node);
    let name = match function {
        ElementwiseFn::Unary(function) => function.name().to_string(),
        ElementwiseFn::Binary(function) => function.name().to_string(),
        ElementwiseFn::Compare(function) => function.name().to_string(),
        ElementwiseFn::Select => "select".into(),
        ElementwiseFn::Cast(to) => format!("{dtype} to {to}"),
    };
    let label = format!("{name} on {}", node.output().shape);
    call(cpu::Elementwise { function, dtype, shape, strides }, label, node.values())
}
