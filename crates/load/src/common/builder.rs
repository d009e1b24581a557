//! [`Builder`]: the graph under construction, and constants that are not in the graph yet.
//!
//! All ops are applied by [`Builder::apply`]. If all operands are constants, and the result is small or only moves elements,
//! it evaluates the op instead of adding a node. Shape arithmetic therefore never reaches the graph.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ir::{Graph, Op, Refusal, TensorType, ValueId, Work};
use smallvec::SmallVec;
use types::{Bytes, DType, LoadBudget, Map, Scope, Tensor, TensorFunction, entity};

use super::training::{Modes, Notes};
use super::{Narrow, NodeResult};

entity!(
    /// A constant.
    pub(crate) ConstantId, "k"
);

/// An operand of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Its elements, until they are released.
    tensor: Option<Arc<Tensor>>,
    /// Whether it becomes a weight instead of a constant of the graph.
    pub(crate) is_learned: bool,
    /// Whether it is the transpose of the file's matrix of its name.
    is_transposed: bool,
    /// The constant of the transposed matrix, once a node reads it.
    transpose: Option<ConstantId>,
    /// Its value; `None` while it is not in the graph.
    value: Option<ValueId>,
}

impl Constant {
    fn tensor(&self) -> &Arc<Tensor> {
        self.tensor.as_ref().expect("elements are released behind their last reader")
    }
}

/// When an op on constants is evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fold {
    /// If the result is small, or moves the elements of an operand.
    Small,
    /// Always: the result is a weight in another layout.
    Always,
}

/// The most elements of an expansion that is folded.
const SPREAD_MAX: usize = 1 << 20;

/// The graph under construction.
pub(crate) struct Builder {
    /// The graph so far.
    pub(crate) graph: Graph,
    /// The constants.
    pub(crate) constants: Map<ConstantId, Constant>,
    /// Memory and work left for constants: a file of a few bytes can require constants of any size.
    pub(crate) budget: Rc<LoadBudget>,
    /// Operands whose element type in the file is narrower than their dtype.
    pub(crate) narrow: BTreeMap<Operand, Narrow>,
    /// Notes for training; `None` in inference.
    pub(crate) training: Option<Notes>,
    /// The form of nodes in training mode.
    pub(crate) modes: Modes,
}

impl Builder {
    pub(crate) fn new(name: &str, budget: Rc<LoadBudget>) -> Builder {
        let (constants, narrow, modes) = (Map::new(), BTreeMap::new(), Modes::default());
        Builder { graph: Graph::new(name), constants, budget, narrow, training: None, modes }
    }

    /// Adds a constant.
    pub(crate) fn add_constant(&mut self, name: &str, tensor: Tensor, is_learned: bool) -> Operand {
        let is_transposed = false;
        let (name, tensor) = (name.to_string(), Some(Arc::new(tensor)));
        let constant = Constant { name, tensor, is_learned, is_transposed, transpose: None, value: None };
        Operand::Constant(self.constants.push(constant))
    }

    /// Releases the elements of a constant that nothing reads any more. Values of the graph keep theirs.
    pub(crate) fn release(&mut self, id: ConstantId) {
        self.constants[id].tensor = None;
    }

    /// Takes memory and work for a constant that is about to be computed.
    pub(crate) fn reserve(&mut self, dtype: DType, elements: usize) -> Result<(), Refusal> {
        let need = Bytes(dtype.size().0.saturating_mul(elements as u64));
        let taken = self.budget.take(need).and_then(|()| self.budget.work(elements as u64));
        taken.map_err(|error| Refusal(error.to_string()))
    }

    /// The elements; `None` if the operand is not constant.
    pub(crate) fn tensor(&self, operand: Operand) -> Option<&Arc<Tensor>> {
        match operand {
            Operand::Value(_) => None,
            Operand::Constant(id) => Some(self.constants[id].tensor()),
        }
    }

    /// Dtype and shape.
    pub(crate) fn ty(&self, operand: Operand) -> TensorType {
        match operand {
            Operand::Value(id) => self.graph.ty(id).clone(),
            Operand::Constant(id) => TensorType::of(self.constants[id].tensor()),
        }
    }

    /// The value in the graph; a constant is added at its first use.
    pub(crate) fn value(&mut self, operand: Operand) -> ValueId {
        let id = match operand {
            Operand::Value(id) => return id,
            Operand::Constant(id) => id,
        };
        let constant = &mut self.constants[id];
        if let Some(value) = constant.value {
            return value;
        }
        let value = match constant.is_learned {
            true => self.graph.add_weight(&constant.name, constant.tensor().clone()),
            false => self.graph.add_constant(&constant.name, constant.tensor().clone()),
        };
        constant.value = Some(value);
        if let (true, Some(notes)) = (constant.is_transposed, &mut self.training) {
            notes.transposed.insert(value);
        }
        value
    }

    /// Applies an op with one output: evaluates it if `fold` allows, else adds a node.
    pub(crate) fn apply(&mut self, op: Op, inputs: &[Operand], scope: &Scope, fold: Fold) -> Result<Operand, Refusal> {
        let types: SmallVec<[TensorType; 4]> = inputs.iter().map(|&input| self.ty(input)).collect();
        let types: SmallVec<[&TensorType; 4]> = types.iter().collect();
        let output = op.infer(&types)?.swap_remove(0);
        if let Some(folded) = self.fold(&op, &types, &output, inputs, scope, fold)? {
            return Ok(folded);
        }
        Ok(self.add(op, inputs, scope.clone())?.swap_remove(0))
    }

    /// Adds a node without folding.
    pub(crate) fn add(&mut self, op: Op, inputs: &[Operand], scope: Scope) -> NodeResult {
        /// More than a node of the graph and its output take.
        const NODE: u64 = 1024;
        let need = Bytes(NODE + 16 * inputs.len() as u64);
        self.budget.take(need).map_err(|error| Refusal(error.to_string()))?;
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
        let is_transpose = matches!(op, Op::Transpose(transpose) if transpose.order[..] == [1, 0]);
        let is_learned = output.dtype.is_float() && inputs.iter().any(|&input| self.is_learned(input));
        // A trained weight is no constant. A transposed matrix is the same weight in another order.
        let is_trained = self.training.is_some() && is_learned;
        if is_trained && !is_transpose {
            return Ok(None);
        }
        // All nodes that read the transposed matrix read one weight.
        if let (true, &[Operand::Constant(from)]) = (is_trained, inputs)
            && let Some(to) = self.constants[from].transpose
        {
            return Ok(Some(Operand::Constant(to)));
        }
        let elements = output.shape.elements();
        let operands = tensors.iter().map(|tensor| tensor.elements()).fold(0, usize::saturating_add);
        let moves = matches!(op, Op::Cast(_)) || op.axes(types, output).work == Work::Movement;
        let small =
            elements <= 4096 || (!output.dtype.is_float() && elements <= 1 << 24) || (moves && elements <= operands);
        // A small result may still need much arithmetic.
        let cheap = elements <= 1 << 24 && operands <= 1 << 28 && op.flops(types, &[output]) <= 1 << 26;
        // A grid of indices is recognized by its ranges (`ImportedNode::column`); a large mask is expanded at run time.
        let spreads = matches!(op, Op::Expand(_)) && SPREAD_MAX < elements && operands < elements;
        if fold == Fold::Small && (spreads || !(small && (moves || cheap))) {
            return Ok(None);
        }
        self.reserve(output.dtype, elements)?;
        let work = op.flops(types, &[output]).saturating_add(operands as u64);
        self.budget.work(work).map_err(|error| Refusal(error.to_string()))?;
        let operands: Vec<&Tensor> = tensors.iter().map(|tensor| &**tensor).collect();
        let tensor = op.eval(&operands).swap_remove(0);
        let folded = self.add_constant(scope.as_str(), tensor, is_learned);
        if let (true, Operand::Constant(from), Operand::Constant(to)) = (is_trained, inputs[0], folded) {
            self.constants[to].name = self.constants[from].name.clone();
            self.constants[to].is_transposed = !self.constants[from].is_transposed;
            self.constants[from].transpose = Some(to);
            self.constants[to].transpose = Some(from);
        }
        Ok(Some(folded))
    }

    fn is_learned(&self, operand: Operand) -> bool {
        matches!(operand, Operand::Constant(id) if self.constants[id].is_learned)
    }
}

/// The transpose of a matrix.
pub(crate) fn transpose_matrix(x: &Tensor) -> Tensor {
    let exchange = TensorFunction::Transpose([1, 0].as_slice().into());
    Tensor::derived(exchange, &[x]).expect("it is a matrix")
}
