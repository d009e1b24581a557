//! [`Derivation`]: how a tensor follows from tensors of a file of weights. A compiler records it while it folds tensors; a
//! program without a compiler evaluates it on another copy of the file, with the same bits as result.
//!
//! The functions are those of the compiler itself: [`Tensor::derived`] computes and records in one step, so that there is
//! no second definition that could differ.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{DType, Element, Shape, Tensor, WeightFormat, each_data};

/// The steps from tensors of a file to one tensor. The last step is the result.
///
/// Steps are a list and no tree, so that neither reading nor evaluating a hostile one recurses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Derivation {
    steps: Vec<DerivationStep>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum DerivationStep {
    /// A tensor of the file.
    Stored(String),
    /// A tensor of `f32` whose elements are equal.
    Full(Shape, f32),
    /// A function of earlier steps.
    Result(TensorFunction, SmallVec<[u32; 4]>),
}

/// A function of tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TensorFunction {
    /// Each element converted.
    Cast(DType),
    /// The same elements with another shape of the same size.
    Reshape(Shape),
    /// Axis `i` of the result is axis `order[i]` of the operand.
    Transpose(SmallVec<[usize; 6]>),
    /// Rows (of the first axis) from one on.
    Rows {
        /// The first row.
        first: usize,
        /// The number of rows.
        count: usize,
    },
    /// Batch normalization's factor by channel, from scale and variance.
    NormScale {
        /// Added to the variance.
        epsilon: f32,
        /// The shape of the result.
        shape: Shape,
    },
    /// Batch normalization's summand by channel, from scale, shift, mean and variance.
    NormShift {
        /// Added to the variance.
        epsilon: f32,
        /// The shape of the result.
        shape: Shape,
    },
    /// The weights of a product, the first operand, times the factor of [`ChannelAffine`] of the other operands.
    ScaledWeight {
        /// The changes by the other operands, in order.
        changes: SmallVec<[ChannelChange; 2]>,
        /// The channel of a weight.
        channels: ChannelAxis,
    },
    /// The bias of a product under [`ChannelAffine`] of the operands.
    ShiftedBias {
        /// The changes by the operands, in order.
        changes: SmallVec<[ChannelChange; 2]>,
        /// The number of channels.
        count: usize,
        /// Whether the first operand is the bias from before.
        has_bias: bool,
    },
    /// The numbers that are decoded from weights in a stored form.
    StoredWeight {
        /// The stored form.
        format: WeightFormat,
        /// The channel of a weight.
        channels: ChannelAxis,
    },
    /// The rows (of the first axis) of all operands, one operand behind the other.
    Concat,
}

/// A change of every channel by a number of its own, or by one number for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ChannelChange {
    Multiply,
    Divide,
    Add,
    Subtract,
}

/// Where the output channel of a product is in the shape of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelAxis {
    /// The first axis: convolutions.
    First,
    /// The last axis: matrix products.
    Last,
    /// The second axis within groups of the first one: transposed convolutions.
    Groups(usize),
}

/// A factor and a summand by channel, composed of several changes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelAffine {
    /// The factors.
    pub scale: Vec<f32>,
    /// The summands, if any.
    pub shift: Option<Vec<f32>>,
}

impl ChannelAffine {
    /// No change of `count` channels.
    pub fn new(count: usize) -> ChannelAffine {
        ChannelAffine { scale: vec![1.0; count], shift: None }
    }

    /// Composes with a change. `numbers` has one number a channel.
    pub fn then(&mut self, change: ChannelChange, numbers: &[f32]) {
        let mut scale = |factor: &dyn Fn(f32) -> f32| {
            self.scale.iter_mut().zip(numbers).for_each(|(scale, number)| *scale *= factor(*number));
            if let Some(sums) = &mut self.shift {
                sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum *= factor(*number));
            }
        };
        let sign = match change {
            ChannelChange::Multiply => return scale(&|number| number),
            ChannelChange::Divide => return scale(&|number| 1.0 / number),
            ChannelChange::Add => 1.0,
            ChannelChange::Subtract => -1.0,
        };
        let sums = self.shift.get_or_insert_with(|| vec![0.0; self.scale.len()]);
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += sign * number);
    }
}

impl ChannelAxis {
    /// The channels of weights of a shape; `None` if they have none.
    fn count(self, weight: &Shape) -> Option<usize> {
        match self {
            ChannelAxis::First => weight.first().copied(),
            ChannelAxis::Last => weight.last().copied(),
            ChannelAxis::Groups(groups) => weight.get(1)?.checked_mul(groups),
        }
    }

    /// The same.
    ///
    /// # Errors
    /// Weights without channels, for people.
    fn checked_count(self, weight: &Shape) -> Result<usize, String> {
        let is_grouped = match self {
            ChannelAxis::Groups(groups) => 2 <= weight.rank() && 0 < groups && weight[0].is_multiple_of(groups),
            ChannelAxis::First | ChannelAxis::Last => true,
        };
        let count = self.count(weight).filter(|_| is_grouped);
        count.ok_or_else(|| format!("weights of shape {weight} have no channels"))
    }

    /// The channel of each weight, by its flat position.
    fn of(self, weight: &Shape) -> Box<dyn Fn(usize) -> usize> {
        let taps = |from: usize| weight.iter().skip(from).product::<usize>().max(1);
        match self {
            ChannelAxis::First => {
                let taps = taps(1);
                Box::new(move |at| at / taps)
            }
            ChannelAxis::Last => {
                let columns = weight.last().copied().unwrap_or(1).max(1);
                Box::new(move |at| at % columns)
            }
            ChannelAxis::Groups(groups) => {
                let (group_in, group_out) = ((weight[0] / groups).max(1), weight[1].max(1));
                let taps = taps(2);
                Box::new(move |at| at / taps / group_out / group_in * group_out + at / taps % group_out)
            }
        }
    }
}

impl TensorFunction {
    /// The result.
    ///
    /// # Errors
    /// Operands that the function does not take, for people.
    pub fn apply(&self, operands: &[&Tensor]) -> Result<Tensor, String> {
        let operand = |ix: usize| operands.get(ix).copied().ok_or_else(|| format!("operand {ix} is missing"));
        let numbers = |ix: usize| -> Result<&[f32], String> {
            let tensor = operand(ix)?;
            tensor.as_slice().ok_or_else(|| format!("operand {ix} must be f32, got {}", tensor.dtype()))
        };
        let same_length = |vectors: &[Vec<f64>]| match vectors.windows(2).all(|pair| pair[0].len() == pair[1].len()) {
            true => Ok(()),
            false => Err("the statistics must have one number a channel each".to_string()),
        };
        match self {
            TensorFunction::Cast(dtype) => Ok(operand(0)?.cast_bare(*dtype)),
            TensorFunction::Reshape(shape) => {
                operand(0)?.clone().reshape_bare(shape.clone()).map_err(|error| error.to_string())
            }
            TensorFunction::Transpose(order) => transposed(operand(0)?, order),
            TensorFunction::Rows { first, count } => {
                let x = operand(0)?;
                let rows = x.shape().first().copied().unwrap_or(0);
                if x.shape().is_empty() || first.checked_add(*count).is_none_or(|end| rows < end) {
                    return Err(format!("rows {first} to {first} + {count} of {rows}"));
                }
                let (row, mut shape) = (x.elements() / rows.max(1), x.shape().clone());
                shape[0] = *count;
                let items = numbers(0)?[first * row..(first + count) * row].to_vec();
                Tensor::new(shape, items).map_err(|error| error.to_string())
            }
            TensorFunction::Concat => {
                let mut shape = operand(0)?.shape().clone();
                let is_like = |own: &&Tensor| own.shape().rank() == shape.rank() && own.shape()[1..] == shape[1..];
                if shape.is_empty() || !operands.iter().all(is_like) {
                    return Err("operands of a concatenation must have rows of one shape".into());
                }
                shape[0] = operands.iter().map(|own| own.shape()[0]).sum();
                let mut items = Vec::with_capacity(shape.elements());
                for ix in 0..operands.len() {
                    items.extend_from_slice(numbers(ix)?);
                }
                Tensor::new(shape, items).map_err(|error| error.to_string())
            }
            TensorFunction::NormScale { epsilon, shape } => {
                let [scale, variance] = [operand(0)?.to_f64(), operand(1)?.to_f64()];
                same_length(&[scale.clone(), variance.clone()])?;
                let a = norm_scale(&scale, &variance, *epsilon).into_iter().map(|a| a as f32).collect();
                Tensor::new::<f32>(shape.clone(), a).map_err(|error| error.to_string())
            }
            TensorFunction::NormShift { epsilon, shape } => {
                let all = [operand(0)?.to_f64(), operand(1)?.to_f64(), operand(2)?.to_f64(), operand(3)?.to_f64()];
                same_length(&all)?;
                let [scale, shift, mean, variance] = all;
                let a = norm_scale(&scale, &variance, *epsilon);
                let b = (0..a.len()).map(|c| (shift[c] - mean[c] * a[c]) as f32).collect();
                Tensor::new::<f32>(shape.clone(), b).map_err(|error| error.to_string())
            }
            TensorFunction::ScaledWeight { changes, channels } => {
                let (weight, items) = (operand(0)?, numbers(0)?);
                let shape = weight.shape();
                let count = channels.checked_count(shape)?;
                let affine = affine(changes, count, operands.get(1..).unwrap_or_default())?;
                let channel = channels.of(shape);
                Ok(Tensor::from_fn(shape.clone(), |at| items[at] * affine.scale[channel(at)]))
            }
            TensorFunction::StoredWeight { format, channels } => {
                let (shape, items) = (operand(0)?.shape(), numbers(0)?);
                let decoded = format.decoded(items, channels.checked_count(shape)?, channels.of(shape));
                Tensor::new(shape.clone(), decoded).map_err(|error| error.to_string())
            }
            TensorFunction::ShiftedBias { changes, count, has_bias } => {
                let (old, rest) = match has_bias {
                    true => (Some(operand(0)?.to_f64()), &operands[1..]),
                    false => (None, operands),
                };
                if old.as_ref().is_some_and(|old| old.len() != *count) {
                    return Err(format!("the bias must have {count} elements"));
                }
                let affine = affine(changes, *count, rest)?;
                let channel = |at: usize| {
                    let old = old.as_ref().map_or(0.0, |old| old[at]) * f64::from(affine.scale[at]);
                    (old + affine.shift.as_ref().map_or(0.0, |shift| f64::from(shift[at]))) as f32
                };
                Ok(Tensor::vector((0..*count).map(channel).collect::<Vec<f32>>()))
            }
        }
    }
}

/// Batch normalization's factors.
fn norm_scale(scale: &[f64], variance: &[f64], epsilon: f32) -> Vec<f64> {
    scale.iter().zip(variance).map(|(scale, variance)| scale / (variance + f64::from(epsilon)).sqrt()).collect()
}

/// The changes of `count` channels by tensors of one number, or of one number a channel.
fn affine(changes: &[ChannelChange], count: usize, operands: &[&Tensor]) -> Result<ChannelAffine, String> {
    if changes.len() != operands.len() {
        return Err(format!("{} changes need as many operands, got {}", changes.len(), operands.len()));
    }
    let mut affine = ChannelAffine::new(count);
    for (&change, operand) in changes.iter().zip(operands) {
        let items = operand.as_slice::<f32>().ok_or("numbers of channels must be f32")?;
        match items.len() {
            1 => affine.then(change, &vec![items[0]; count]),
            own if own == count => affine.then(change, items),
            own => return Err(format!("{count} channels cannot take {own} numbers")),
        }
    }
    Ok(affine)
}

/// A tensor with its axes in another order.
fn transposed(x: &Tensor, order: &[usize]) -> Result<Tensor, String> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.shape().rank()) {
        return Err(format!("an order of axes of {} must be a permutation, got {order:?}", x.shape()));
    }
    Ok(match *order {
        [1, 0] => each_data!(x.data(), items => transposed_matrix(items, x.shape()[0], x.shape()[1])),
        _ => each_data!(x.data(), items => permuted(items, x.shape(), order)),
    })
}

fn permuted<T: Element>(items: &[T], x: &Shape, order: &[usize]) -> Tensor {
    let shape: Shape = order.iter().map(|&axis| x[axis]).collect();
    let from = x.row_major_strides();
    let strides: Vec<usize> = order.iter().map(|&axis| from[axis]).collect();
    let mut index = vec![0; order.len()];
    Tensor::from_fn(shape.clone(), |_| {
        let item = items[index.iter().zip(&strides).map(|(ix, stride)| ix * stride).sum::<usize>()];
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
        item
    })
}

/// A matrix with rows and columns exchanged, in tiles that stay in the cache.
fn transposed_matrix<T: Element>(items: &[T], rows: usize, columns: usize) -> Tensor {
    const TILE: usize = 16;
    let mut out = vec![T::default(); items.len()];
    for row_start in (0..rows).step_by(TILE) {
        for column_start in (0..columns).step_by(TILE) {
            for column in column_start..columns.min(column_start + TILE) {
                let row_end = rows.min(row_start + TILE);
                let to = &mut out[column * rows + row_start..column * rows + row_end];
                let from = items[row_start * columns + column..].iter().step_by(columns);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        }
    }
    Tensor::new(Shape::from([columns, rows]), out).expect("as many elements as before")
}

/// The most steps of one tensor.
const STEPS_MAX: usize = 256;
/// Tensors of equal elements are recorded as such up to this many elements: statistics that a file does not have.
const FULL_MAX: usize = 1 << 20;

impl Derivation {
    /// A tensor of the file.
    pub fn stored(name: &str) -> Derivation {
        Derivation { steps: vec![DerivationStep::Stored(name.to_string())] }
    }

    /// That of the result of a function. `None` if an operand has none.
    pub(crate) fn of(function: TensorFunction, operands: &[&Tensor]) -> Option<Derivation> {
        let mut steps: Vec<DerivationStep> = Vec::new();
        let mut ends = SmallVec::new();
        for operand in operands {
            let own = match operand.derivation() {
                Some(own) => own.steps.clone(),
                None => vec![full(operand)?],
            };
            let base = steps.len() as u32;
            steps.extend(own.into_iter().map(|step| match step {
                DerivationStep::Result(function, operands) => {
                    DerivationStep::Result(function, operands.into_iter().map(|operand| operand + base).collect())
                }
                step => step,
            }));
            ends.push(steps.len() as u32 - 1);
        }
        steps.push(DerivationStep::Result(function, ends));
        let is_derived = steps.iter().any(|step| matches!(step, DerivationStep::Stored(_)));
        (is_derived && steps.len() <= STEPS_MAX).then_some(Derivation { steps })
    }

    /// The names of the tensors of the file that it reads.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            DerivationStep::Stored(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The tensor, from those of a file. `limit` bounds the bytes of all steps together.
    ///
    /// # Errors
    /// A tensor that the file does not have; steps that do not fit each other; more bytes than the limit. For people.
    pub fn evaluate<'a>(&self, stored: &'a BTreeMap<String, Tensor>, limit: u64) -> Result<Cow<'a, Tensor>, String> {
        if STEPS_MAX < self.steps.len() {
            return Err(format!("a tensor has at most {STEPS_MAX} steps, got {}", self.steps.len()));
        }
        let mut left = limit;
        let mut take = |bytes: Option<u64>| {
            let rest = bytes.and_then(|bytes| left.checked_sub(bytes));
            left = rest.ok_or_else(|| format!("its steps take more than {limit} bytes"))?;
            Ok::<(), String>(())
        };
        let mut done: Vec<Cow<Tensor>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let tensor = match step {
                DerivationStep::Stored(name) => {
                    Cow::Borrowed(stored.get(name).ok_or_else(|| format!("it has no tensor `{name}`"))?)
                }
                DerivationStep::Full(shape, item) => {
                    let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
                    let elements = elements.filter(|&elements| elements <= FULL_MAX);
                    take(elements.map(|elements| 4 * elements as u64))?;
                    Cow::Owned(Tensor::full(shape.clone(), *item))
                }
                DerivationStep::Result(function, operands) => {
                    let operand = |&ix: &u32| done.get(ix as usize).map(Cow::as_ref).ok_or("an operand comes later");
                    let operands: Vec<&Tensor> = operands.iter().map(operand).collect::<Result<_, _>>()?;
                    // A result has the elements of the largest operand at most, of all operands, of some of its rows, or of
                    // the bias that it is; a cast makes them eight bytes at most.
                    let largest = operands.iter().map(|operand| operand.elements() as u64).max().unwrap_or(0);
                    let largest = match function {
                        TensorFunction::ShiftedBias { count, .. } => largest.max(*count as u64),
                        TensorFunction::Concat => operands.iter().map(|operand| operand.elements() as u64).sum(),
                        TensorFunction::Rows { count, .. } => {
                            let rows = operands.first().and_then(|operand| operand.shape().first().copied());
                            // More rows than there are is an error of the function.
                            largest / rows.unwrap_or(1).max(1) as u64 * (*count as u64).min(rows.unwrap_or(1) as u64)
                        }
                        _ => largest,
                    };
                    take(largest.checked_mul(if matches!(function, TensorFunction::Cast(_)) { 8 } else { 4 }))?;
                    Cow::Owned(function.apply(&operands)?)
                }
            };
            done.push(tensor);
        }
        done.pop().ok_or_else(|| "it has no steps".to_string())
    }
}

/// A tensor of equal elements as a step.
fn full(tensor: &Tensor) -> Option<DerivationStep> {
    let items = tensor.as_slice::<f32>()?;
    let (&first, rest) = items.split_first()?;
    let is_full = items.len() <= FULL_MAX && rest.iter().all(|item| item.to_bits() == first.to_bits());
    is_full.then(|| DerivationStep::Full(tensor.shape().clone(), first))
}

impl Tensor {
    /// The result of a function of tensors, with its derivation if all of them have one.
    ///
    /// # Errors
    /// Operands that the function does not take, for people.
    pub fn derived(function: TensorFunction, operands: &[&Tensor]) -> Result<Tensor, String> {
        let result = function.apply(operands)?;
        Ok(result.with_derivation(Derivation::of(function, operands).map(Arc::new)))
    }

    /// Records that this tensor is one of a file, by name.
    #[must_use]
    pub fn stored_as(self, name: &str) -> Tensor {
        self.with_derivation(Some(Arc::new(Derivation::stored(name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> BTreeMap<String, Tensor> {
        let ramp = |shape: &[usize], from: f32| {
            Tensor::from_fn(shape.iter().copied().collect(), |at| from + 0.37 * (at as f32).sin())
        };
        let tensors = [
            ("weight", ramp(&[4, 3, 2, 2], 0.1)),
            ("bias", ramp(&[4], 0.3)),
            ("scale", ramp(&[4], 1.0)),
            ("shift", ramp(&[4], -0.5)),
            ("mean", ramp(&[4], 0.0)),
            ("variance", ramp(&[4], 2.0)),
            ("half", ramp(&[6, 2], 0.0).cast(DType::Bf16)),
        ];
        tensors.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect()
    }

    fn stored(name: &str) -> Tensor {
        file()[name].clone().stored_as(name)
    }

    /// Checks that a tensor's derivation gives its bytes.
    fn check(tensor: &Tensor) {
        let derivation = tensor.derivation().expect("it is derived");
        let text = format!("{derivation:?}");
        let (file, again) = (file(), derivation.clone());
        let result = again.evaluate(&file, 1 << 20).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((result.shape(), result.to_le_bytes()), (tensor.shape(), tensor.to_le_bytes()), "{text}");
    }

    fn norm(kind: fn(f32, Shape) -> TensorFunction, names: &[&str]) -> Tensor {
        let operands: Vec<Tensor> = names.iter().map(|name| stored(name)).collect();
        let operands: Vec<&Tensor> = operands.iter().collect();
        Tensor::derived(kind(1e-5, Shape::from([4, 1, 1])), &operands).expect("the statistics agree")
    }

    #[test]
    fn derivation_gives_the_bytes_that_were_computed() {
        check(&stored("weight"));
        check(&stored("half").cast(DType::F32));
        check(&stored("half").cast(DType::F32).reshape(Shape::from([3, 4])).expect("as many elements"));
        for order in [[1, 0].as_slice(), &[0, 1]] {
            let x = stored("half").cast(DType::F32);
            check(&Tensor::derived(TensorFunction::Transpose(order.into()), &[&x]).expect("a permutation"));
        }
        let order = TensorFunction::Transpose([2, 0, 3, 1].as_slice().into());
        check(&Tensor::derived(order, &[&stored("weight")]).expect("a permutation"));
        let rows = |first: usize, count: usize| {
            Tensor::derived(TensorFunction::Rows { first, count }, &[&stored("weight")]).expect("in range")
        };
        check(&rows(1, 2));
        let joined = Tensor::derived(TensorFunction::Concat, &[&rows(3, 1), &rows(0, 2)]).expect("rows of one shape");
        assert_eq!(joined.shape()[..], [3, 3, 2, 2]);
        check(&joined);
        assert!(Tensor::derived(TensorFunction::Concat, &[&stored("weight"), &stored("bias")]).is_err());
        assert!(Tensor::derived(TensorFunction::Concat, &[]).is_err());
        let scale = norm(|epsilon, shape| TensorFunction::NormScale { epsilon, shape }, &["scale", "variance"]);
        let shift = norm(
            |epsilon, shape| TensorFunction::NormShift { epsilon, shape },
            &["scale", "shift", "mean", "variance"],
        );
        check(&scale);
        check(&shift);
        let changes: SmallVec<[ChannelChange; 2]> = [ChannelChange::Multiply, ChannelChange::Add].as_slice().into();
        for channels in [ChannelAxis::First, ChannelAxis::Groups(1)] {
            let weight = match channels {
                ChannelAxis::First => stored("weight"),
                _ => Tensor::derived(TensorFunction::Transpose([1, 0, 2, 3].as_slice().into()), &[&stored("weight")])
                    .expect("a permutation"),
            };
            let function = TensorFunction::ScaledWeight { changes: changes.clone(), channels };
            check(&Tensor::derived(function, &[&weight, &scale, &shift]).expect("the channels agree"));
        }
        let function = TensorFunction::ShiftedBias { changes, count: 4, has_bias: true };
        check(&Tensor::derived(function, &[&stored("bias"), &scale, &shift]).expect("the channels agree"));
    }

    #[test]
    fn statistics_that_a_file_lacks_are_recorded_as_numbers() {
        let ones = Tensor::full(Shape::from([4]), 1.0f32);
        let function = TensorFunction::NormScale { epsilon: 1e-5, shape: Shape::from([4]) };
        check(&Tensor::derived(function.clone(), &[&ones, &stored("variance")]).expect("the statistics agree"));
        let numbers = Tensor::vector(vec![1.0f32, 2.0, 3.0, 4.0]);
        let mixed = Tensor::derived(function.clone(), &[&numbers, &stored("variance")]).expect("they agree");
        assert_eq!(mixed.derivation(), None);
        let constant = Tensor::derived(function, &[&ones, &ones]).expect("they agree");
        assert_eq!(constant.derivation(), None, "it follows from no tensor of a file");
    }

    #[test]
    fn hostile_derivation_is_refused() {
        let error = |steps: Vec<DerivationStep>| {
            Derivation { steps }.evaluate(&file(), 1 << 12).expect_err("it is refused").to_string()
        };
        let result = |function, operands: &[u32]| DerivationStep::Result(function, operands.into());
        let of = |name: &str| DerivationStep::Stored(name.into());
        assert_eq!(error(vec![]), "it has no steps");
        assert_eq!(error(vec![of("none")]), "it has no tensor `none`");
        assert_eq!(error(vec![result(TensorFunction::Cast(DType::F32), &[0])]), "an operand comes later");
        assert_eq!(error(vec![of("bias"); STEPS_MAX + 1]), "a tensor has at most 256 steps, got 257");
        let many = DerivationStep::Full(Shape::from([1 << 40, 1 << 40]), 1.0);
        assert_eq!(error(vec![many]), "its steps take more than 4096 bytes");
        let casts = (0..200).map(|ix| result(TensorFunction::Cast(DType::F64), &[ix]));
        assert_eq!(error([of("weight")].into_iter().chain(casts).collect()), "its steps take more than 4096 bytes");
        let changes = SmallVec::from_slice(&[ChannelChange::Multiply]);
        for channels in [ChannelAxis::Groups(0), ChannelAxis::Groups(3), ChannelAxis::Groups(usize::MAX)] {
            let function = TensorFunction::ScaledWeight { changes: changes.clone(), channels };
            let steps = vec![of("weight"), of("scale"), result(function, &[0, 1])];
            assert!(error(steps).contains("channels"), "{channels:?}");
        }
        let function = TensorFunction::ShiftedBias { changes, count: usize::MAX, has_bias: false };
        assert!(error(vec![of("scale"), result(function, &[0])]).contains("4096 bytes"));
        let rows = TensorFunction::Rows { first: usize::MAX, count: 2 };
        assert!(error(vec![of("weight"), result(rows, &[0])]).contains("rows"));
        let reshape = TensorFunction::Reshape(Shape::from([1 << 33, 1 << 33]));
        assert!(error(vec![of("weight"), result(reshape, &[0])]).contains("elements"));
    }
}
