//! [`Builder`]: the graph under construction, and constants that are not in the graph yet.
//!
//! All ops are applied by [`Builder::apply`]. If all operands are constants, and the result is small or only moves elements,
//! it evaluates the op instead of adding a node. Shape arithmetic therefore never reaches the graph.

use std::sync::Arc;

use ir::{Graph, Op, Refusal, TensorType, ValueId, Work};
use smallvec::SmallVec;
use types::{DType, Element, Map, Scope, Shape, Tensor, each_data, entity};

use super::{NodeResult, is_too_large};

entity!(
    /// A constant.
    pub(crate) ConstantId, "k"
);

/// An operand of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A value of the graph.
    Value(ValueId),
    /// A constant, which enters the graph when a node reads it.
    Constant(ConstantId),
}

/// A tensor whose elements are available while loading.
pub(crate) struct Constant {
    /// The name in the file.
    pub(crate) name: String,
    /// Its elements.
    pub(crate) tensor: Arc<Tensor>,
    /// Whether it becomes a weight instead of a constant of the graph.
    pub(crate) is_learned: bool,
    /// Its value; `None` while it is not in the graph.
    value: Option<ValueId>,
}

/// When an op on constants is evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fold {
    /// If the result is small, or moves the elements of an operand.
    Small,
    /// Always: the result is a weight in another layout.
    Always,
}

/// The graph under construction.
pub(crate) struct Builder {
    /// The graph so far.
    pub(crate) graph: Graph,
    /// The constants.
    pub(crate) constants: Map<ConstantId, Constant>,
    /// Bytes left for constants computed while loading.
    bytes_left: u64,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Builder {
        // A file of a few bytes can require constants of any size.
        const MADE_BYTES_MAX: u64 = 4 << 30;
        Builder { graph: Graph::new(name), constants: Map::new(), bytes_left: MADE_BYTES_MAX }
    }

    /// Adds a constant.
    pub(crate) fn add_constant(&mut self, name: &str, tensor: Tensor, is_learned: bool) -> Operand {
        let constant = Constant { name: name.to_string(), tensor: Arc::new(tensor), is_learned, value: None };
        Operand::Constant(self.constants.push(constant))
    }

    /// Reserves memory for a constant computed while loading.
    pub(crate) fn reserve(&mut self, dtype: DType, elements: usize) -> Result<(), Refusal> {
        let need = dtype.size().0.saturating_mul(elements as u64);
        match self.bytes_left.checked_sub(need) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => Err(Refusal(format!(
                "constants computed while loading must have at most 4 GiB in total; another {need} bytes are required"
            ))),
        }
    }

    /// The elements; `None` if the operand is not constant.
    pub(crate) fn tensor(&self, operand: Operand) -> Option<&Arc<Tensor>> {
        match operand {
            Operand::Value(_) => None,
            Operand::Constant(id) => Some(&self.constants[id].tensor),
        }
    }

    /// Dtype and shape.
    pub(crate) fn ty(&self, operand: Operand) -> TensorType {
        match operand {
            Operand::Value(id) => self.graph.ty(id).clone(),
            Operand::Constant(id) => TensorType::of(&self.constants[id].tensor),
        }
    }

    /// The value in the graph; a constant is added at its first use.
    pub(crate) fn value(&mut self, operand: Operand) -> ValueId {
        let id = match operand {
            Operand::Value(id) => return id,
            Operand::Constant(id) => id,
        };
        let constant = &mut self.constants[id];
        *constant.value.get_or_insert_with(|| match constant.is_learned {
            true => self.graph.add_weight(&constant.name, constant.tensor.clone()),
            false => self.graph.add_constant(&constant.name, constant.tensor.clone()),
        })
    }

    /// Applies an op with one output: evaluates it if `fold` allows, else adds a node.
    pub(crate) fn apply(&mut self, op: Op, inputs: &[Operand], scope: &Scope, fold: Fold) -> Result<Operand, Refusal> {
        let types: SmallVec<[TensorType; 4]> = inputs.iter().map(|&input| self.ty(input)).collect();
        let types: SmallVec<[&TensorType; 4]> = types.iter().collect();
        let output = op.infer(&types)?.swap_remove(0);
        if is_too_large(&output.shape) {
            return Err(Refusal(format!("the result must have at most 2^40 elements, got shape {}", output.shape)));
        }
        if let Some(folded) = self.fold(&op, &types, &output, inputs, scope, fold)? {
            return Ok(folded);
        }
        Ok(self.add(op, inputs, scope.clone())?.swap_remove(0))
    }

    /// Adds a node without folding.
    pub(crate) fn add(&mut self, op: Op, inputs: &[Operand], scope: Scope) -> NodeResult {
        let inputs: SmallVec<[ValueId; 4]> = inputs.iter().map(|&input| self.value(input)).collect();
        Ok(self.graph.add(op, &inputs, scope)?.into_iter().map(Operand::Value).collect())
    }

    fn fold(
        &mut self,
        op: &Op,
        types: &[&TensorType],
        output: &TensorType,
        inputs: &[Operand],
        scope: &Scope,
        fold: Fold,
    ) -> Result<Option<Operand>, Refusal> {
        let tensors: Option<Vec<Arc<Tensor>>> = inputs.iter().map(|&input| self.tensor(input).cloned()).collect();
        let Some(tensors) = tensors else { return Ok(None) };
        let elements = output.shape.elements();
        let operands = tensors.iter().map(|tensor| tensor.elements()).sum::<usize>();
        let moves = matches!(op, Op::Cast(_)) || op.axes(types, output).work == Work::Movement;
        let small =
            elements <= 4096 || (!output.dtype.is_float() && elements <= 1 << 24) || (moves && elements <= operands);
        // A small result may still need much arithmetic.
        let cheap = elements <= 1 << 24 && operands <= 1 << 28 && op.flops(types, &[output]) <= 1 << 26;
        if fold == Fold::Small && !(small && (moves || cheap)) {
            return Ok(None);
        }
        self.reserve(output.dtype, elements)?;
        let is_learned = output.dtype.is_float() && inputs.iter().any(|&input| self.is_learned(input));
        let tensor = match op {
            Op::Transpose(transpose) if transpose.order[..] == [1, 0] => transpose_matrix(&tensors[0]),
            _ => {
                let operands: Vec<&Tensor> = tensors.iter().map(|tensor| &**tensor).collect();
                op.eval(&operands).swap_remove(0)
            }
        };
        Ok(Some(self.add_constant(scope.as_str(), tensor, is_learned)))
    }

    fn is_learned(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Constant(id) if self.constants[id].is_learned)
    }
}

/// Transposes a matrix block by block; the op's definition takes seconds for the largest layers.
fn transpose_matrix(x: &Tensor) -> Tensor {
    fn run<T: Element>(items: &[T], rows: usize, columns: usize) -> Tensor {
        const BLOCK: usize = 32;
        let mut out = vec![T::default(); items.len()];
        for row_block in (0..rows).step_by(BLOCK) {
            for column_block in (0..columns).step_by(BLOCK) {
                for row in row_block..(row_block + BLOCK).min(rows) {
                    for column in column_block..(column_block + BLOCK).min(columns) {
                        out[column * rows + row] = items[row * columns + column];
                    }
                }
            }
        }
        Tensor::new(Shape::from([columns, rows]), out).expect("as many elements as before")
    }
    each_data!(x.data(), items => run(items, x.shape()[0], x.shape()[1]))
}
