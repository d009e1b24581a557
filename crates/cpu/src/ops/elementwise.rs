//! [`Elementwise`]: one function on elements of any dtype. `f32` arithmetic uses [`Chain`](crate::Chain), which fuses
//! several.
//!
//! A tile of each operand is converted to registers of one type that holds its dtype exactly, or as the definition
//! converts it (`types::Element`): `u8`, `i8`, `i32`, `i64`, `f32` or `f64`. The function runs on registers, and its results are
//! converted to the output's dtype. The loops of a function are thus independent of dtypes and strides.

use serde::{Deserialize, Serialize};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Element, bf16, f16};

use crate::kernel::{Args, InvalidKernel, KernelFn, Operand, Sizes, product};
use crate::movement::axes::{Axes, Group, RANK};
use crate::ops::chain::reach;
use crate::simd::storage::{Item, convert};
use crate::simd::vector::{Vector, with_vector};
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// Elements per task.
const CHUNK: usize = 1 << 14;
/// The most elements of a register, and its bytes.
const TILE: usize = 1024;
const TILE_BYTES: usize = 2048;

/// The function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ElementwiseFn {
    /// A function of one operand; `is_nan` and `is_inf` return `bool`.
    Unary(Unary),
    /// A function of two operands of one dtype.
    Binary(Binary),
    /// A comparison of two operands of one dtype; returns `bool`.
    Compare(Compare),
    /// Takes a `bool` and two operands of one dtype; returns the first of these if it is true, else the second.
    Select,
    /// Conversion to another dtype.
    Cast(DType),
}

/// Applies `function` to each element of `shape`; operands are broadcast by their strides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elementwise {
    /// The function.
    pub function: ElementwiseFn,
    /// The dtype of the operands; for `Select`, of the second and third.
    pub dtype: DType,
    /// Extents of the output.
    pub shape: Vec<usize>,
    /// Per operand: the stride along each extent, in elements.
    pub strides: Vec<Vec<usize>>,
}

impl Elementwise {
    fn operand_dtypes(&self) -> Vec<DType> {
        match self.function {
            ElementwiseFn::Unary(_) | ElementwiseFn::Cast(_) => vec![self.dtype],
            ElementwiseFn::Binary(_) | ElementwiseFn::Compare(_) => vec![self.dtype; 2],
            ElementwiseFn::Select => vec![DType::Bool, self.dtype, self.dtype],
        }
    }

    fn output_dtype(&self) -> DType {
        match self.function {
            ElementwiseFn::Unary(Unary::IsNan | Unary::IsInf { .. }) | ElementwiseFn::Compare(_) => DType::Bool,
            ElementwiseFn::Cast(to) => to,
            _ => self.dtype,
        }
    }
}

impl KernelFn for Elementwise {
    const NAME: &'static str = "elementwise";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        let dtypes = self.operand_dtypes();
        if self.strides.len() != dtypes.len() || self.strides.iter().any(|strides| strides.len() != self.shape.len()) {
            return Err(InvalidKernel("there must be one stride per operand and extent"));
        }
        if RANK < self.shape.iter().filter(|&&extent| extent != 1).count() {
            return Err(InvalidKernel("there must be at most 16 extents"));
        }
        let bytes = |elements: Option<usize>, dtype: DType| {
            elements.and_then(|elements| elements.checked_mul(dtype.size().0 as usize))
        };
        let inputs: Vec<Option<usize>> =
            self.strides.iter().zip(dtypes).map(|(strides, dtype)| bytes(reach(&self.shape, strides), dtype)).collect();
        Sizes::new(&inputs, bytes(product(&self.shape), self.output_dtype()), 1)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        // Elements are assembled from bytes, so no alignment is needed.
        1
    }

    fn run(&self, args: Args, pool: &Pool) {
        let (inputs, size) = (args.inputs, self.output_dtype().size().0 as usize);
        for_each_chunk(pool, args.outputs[0], CHUNK * size, &|number, cells| {
            let mut axes = [Axes::NONE; 3];
            axes.iter_mut().zip(&self.strides).for_each(|(axes, strides)| *axes = Axes::of(&self.shape, strides));
            let job = &Job { kernel: self, inputs, axes, first: number * CHUNK };
            with_vector!(pool.isa(), run_chunk(job: &Job<'_>, cells: &mut [u8]));
        });
    }
}

/// The elements of a task.
struct Job<'a> {
    kernel: &'a Elementwise,
    inputs: &'a [Operand<'a>],
    /// Of each operand.
    axes: [Axes; 3],
    /// The position of the first element.
    first: usize,
}

/// The types of registers.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    U8,
    I8,
    I32,
    I64,
    F32,
    F64,
}

impl Elementwise {
    /// The registers that this function computes in.
    fn class(&self) -> Class {
        // Dtypes whose elements `i32` holds, and those that `f32` holds.
        let is_short =
            |dtype: DType| matches!(dtype, DType::Bool | DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32);
        let is_single = |dtype: DType| {
            matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) || (is_short(dtype) && dtype != DType::I32)
        };
        let dtype = self.dtype;
        // Dtypes of one byte, and those whose order is that of their bits.
        let (is_byte, is_unsigned) = (dtype.size().0 == 1, matches!(dtype, DType::U8 | DType::Bool));
        match self.function {
            // By their bits.
            ElementwiseFn::Select if is_byte => Class::U8,
            ElementwiseFn::Unary(Unary::Not) if is_byte => Class::U8,
            ElementwiseFn::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::And | Binary::Or | Binary::Xor)
                if is_byte && dtype != DType::Bool =>
            {
                Class::U8
            }
            ElementwiseFn::Binary(Binary::And | Binary::Or | Binary::Xor | Binary::Max | Binary::Min)
            | ElementwiseFn::Compare(_)
                if is_unsigned =>
            {
                Class::U8
            }
            ElementwiseFn::Compare(Compare::Equal) if is_byte => Class::U8,
            ElementwiseFn::Unary(Unary::Abs | Unary::Neg | Unary::Relu | Unary::Sign)
            | ElementwiseFn::Binary(Binary::Max | Binary::Min)
            | ElementwiseFn::Compare(_)
                if is_byte =>
            {
                if is_unsigned {
                    Class::U8
                } else {
                    Class::I8
                }
            }
            ElementwiseFn::Select if dtype.size().0 <= 4 => Class::I32,
            ElementwiseFn::Select => Class::I64,
            ElementwiseFn::Cast(to) if dtype.is_float() || to.is_float() => {
                // `i32` to `f32` rounds once in either class.
                if is_single(dtype) || (dtype == DType::I32 && to == DType::F32) { Class::F32 } else { Class::F64 }
            }
            ElementwiseFn::Cast(to) => {
                if is_short(dtype) && is_short(to) {
                    Class::I32
                } else {
                    Class::I64
                }
            }
            ElementwiseFn::Compare(_) if dtype.is_float() => {
                if is_single(dtype) {
                    Class::F32
                } else {
                    Class::F64
                }
            }
            ElementwiseFn::Compare(_) => {
                if is_short(dtype) {
                    Class::I32
                } else {
                    Class::I64
                }
            }
            ElementwiseFn::Unary(Unary::IsNan | Unary::IsInf { .. }) if is_single(dtype) => Class::F32,
            // For 16-bit floats, `f32` gives the same results as `f64`: it is exact, or its 24 bits are enough to round correctly to
            // the 8 or 11 bits of the result.
            ElementwiseFn::Unary(
                Unary::Abs | Unary::Neg | Unary::Relu | Unary::Sqrt | Unary::Ceil | Unary::Floor | Unary::Sign,
            )
            | ElementwiseFn::Binary(
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min,
            ) if matches!(dtype, DType::F16 | DType::Bf16) => Class::F32,
            ElementwiseFn::Unary(Unary::IsNan | Unary::IsInf { .. }) => Class::F64,
            ElementwiseFn::Unary(_) | ElementwiseFn::Binary(_) if dtype.is_float() => Class::F64,
            ElementwiseFn::Unary(Unary::Abs | Unary::Neg | Unary::Not | Unary::Relu | Unary::Sign)
                if is_short(dtype) =>
            {
                Class::I32
            }
            // The other functions of integers are defined by `i64`, and differ where `i32` overflows.
            ElementwiseFn::Binary(
                Binary::Add
                | Binary::Sub
                | Binary::Mul
                | Binary::Max
                | Binary::Min
                | Binary::And
                | Binary::Or
                | Binary::Xor,
            ) if is_short(dtype) => Class::I32,
            ElementwiseFn::Unary(_) | ElementwiseFn::Binary(_) => Class::I64,
        }
    }
}

/// Elements as a function computes with them.
trait Register: bytemuck::Pod + PartialOrd {
    const ZERO: Self;
    /// The dtypes whose elements have the same bits.
    const DTYPES: &[DType];
    fn of<T: Element>(element: T) -> Self;
    fn element<T: Element>(self) -> T;
    fn unary(function: Unary, x: &[Self], out: &mut [Self]);
    fn binary(function: Binary, x: &[Self], y: &[Self], out: &mut [Self]);
    /// The limits of a truncation to integers, if registers are floats.
    fn limits(_: DType) -> Option<Limits<Self>> {
        None
    }
    /// Truncates between limits.
    fn truncated(self, _: Limits<Self>) -> i32 {
        0
    }
    /// A number whose signed order is the unsigned order of `self`.
    fn unsigned_order(self) -> Self;
    /// Converts 16-bit floats by vectors; returns whether it did.
    fn read_halves<V: Vector>(_: DType, _: &[u8], _: &mut [Self]) -> bool {
        false
    }
    /// Rounds to 16-bit floats by vectors; returns whether it did.
    fn write_halves<V: Vector>(_: DType, _: &[Self], _: &mut [u8]) -> bool {
        false
    }
}

/// Whether elements of a dtype in memory are registers.
fn holds<W: Register>(dtype: DType) -> bool {
    cfg!(target_endian = "little") && W::DTYPES.contains(&dtype)
}

/// Computes each element of a register from those of others. If a register were updated in place, the compiler would turn
/// `if x < 0 { 0 } else { x }` into masked stores, which are slow.
macro_rules! each {
    ($out:ident = $x:ident => $value:expr) => {
        for (item, &$x) in $out.iter_mut().zip($x) {
            *item = $value;
        }
    };
    ($out:ident = $x:ident, $y:ident => $value:expr) => {
        for (item, (&$x, &$y)) in $out.iter_mut().zip($x.iter().zip($y)) {
            *item = $value;
        }
    };
}

macro_rules! integers {
    ($type:ident, [$($dtype:ident)*], $of:expr, $element:expr) => {
        impl Register for $type {
            const ZERO: $type = 0;
            const DTYPES: &[DType] = &[$(DType::$dtype),*];

            #[inline(always)]
            fn unsigned_order(self) -> $type {
                self ^ $type::MIN
            }

            #[inline(always)]
            fn of<T: Element>(element: T) -> $type {
                $of(element.to_i64())
            }

            #[inline(always)]
            fn element<T: Element>(self) -> T {
                T::from_i64($element(self))
            }

            #[inline(always)]
            fn unary(function: Unary, x: &[$type], out: &mut [$type]) {
                match function {
                    Unary::Neg => each!(out = x => x.wrapping_neg()),
                    Unary::Not => each!(out = x => $type::from(x == 0)),
                    Unary::Relu => each!(out = x => x.max($type::default())),
                    Unary::Abs => each!(out = x => $of($element(x).wrapping_abs())),
                    Unary::Sign => each!(out = x => $of($element(x).signum())),
                    _ => each!(out = x => $of(function.eval_i64($element(x)).unwrap_or(0))),
                }
            }

            #[inline(always)]
            fn binary(function: Binary, x: &[$type], y: &[$type], out: &mut [$type]) {
                match function {
                    Binary::Add => each!(out = x, y => x.wrapping_add(y)),
                    Binary::Sub => each!(out = x, y => x.wrapping_sub(y)),
                    Binary::Mul => each!(out = x, y => x.wrapping_mul(y)),
                    Binary::Max => each!(out = x, y => x.max(y)),
                    Binary::Min => each!(out = x, y => x.min(y)),
                    Binary::And => each!(out = x, y => x & y),
                    Binary::Or => each!(out = x, y => x | y),
                    Binary::Xor => each!(out = x, y => x ^ y),
                    _ => each!(out = x, y => $of(function.eval_i64($element(x), $element(y)))),
                }
            }
        }
    };
}
// Bytes that are not 0 are one `bool`.
integers!(u8, [U8], |wide: i64| wide as u8, i64::from);
integers!(i8, [I8], |wide: i64| wide as i8, i64::from);
integers!(i32, [I32 U32], |wide: i64| wide as i32, i64::from);
integers!(i64, [I64 U64], |wide: i64| wide, |wide: i64| wide);

macro_rules! floats {
    ($type:ident, $dtype:ident, $of:expr, $element:expr, $from:ident $(, $halves:item)*) => {
        impl Register for $type {
            $($halves)*
            const ZERO: $type = 0.0;
            const DTYPES: &[DType] = &[DType::$dtype];

            fn limits(dtype: DType) -> Option<Limits<$type>> {
                Limits::<$type>::of(dtype)
            }

            #[inline(always)]
            fn truncated(self, limits: Limits<$type>) -> i32 {
                limits.truncate(self)
            }

            #[inline(always)]
            fn unsigned_order(self) -> $type {
                self
            }

            #[inline(always)]
            fn of<T: Element>(element: T) -> $type {
                $of(element.to_f64())
            }

            #[inline(always)]
            fn element<T: Element>(self) -> T {
                T::$from(self)
            }

            #[inline(always)]
            fn unary(function: Unary, x: &[$type], out: &mut [$type]) {
                let flag = |yes: bool| if yes { 1.0 } else { 0.0 };
                match function {
                    Unary::IsNan => each!(out = x => flag(x.is_nan())),
                    Unary::IsInf { negative, positive } => each!(out = x => {
                        flag((positive && x == $type::INFINITY) || (negative && x == $type::NEG_INFINITY))
                    }),
                    Unary::Abs => each!(out = x => x.abs()),
                    Unary::Neg => each!(out = x => -x),
                    Unary::Relu => each!(out = x => if x < 0.0 { 0.0 } else { x }),
                    Unary::Sqrt => each!(out = x => x.sqrt()),
                    _ => each!(out = x => $of(function.eval($element(x)))),
                }
            }

            #[inline(always)]
            fn binary(function: Binary, x: &[$type], y: &[$type], out: &mut [$type]) {
                match function {
                    Binary::Add => each!(out = x, y => x + y),
                    Binary::Sub => each!(out = x, y => x - y),
                    Binary::Mul => each!(out = x, y => x * y),
                    Binary::Div => each!(out = x, y => x / y),
                    Binary::Max => each!(out = x, y => if x.is_nan() || x > y { x } else { y }),
                    Binary::Min => each!(out = x, y => if x.is_nan() || x < y { x } else { y }),
                    _ => each!(out = x, y => $of(function.eval($element(x), $element(y)))),
                }
            }
        }
    };
}
floats!(
    f32,
    F32,
    |wide: f64| wide as f32,
    f64::from,
    from_f32,
    #[inline(always)]
    fn read_halves<V: Vector>(dtype: DType, from: &[u8], to: &mut [f32]) -> bool {
        match dtype {
            DType::F16 => widen::<V, f16>(from, to),
            DType::Bf16 => widen::<V, bf16>(from, to),
            _ => false,
        }
    },
    #[inline(always)]
    fn write_halves<V: Vector>(dtype: DType, from: &[f32], to: &mut [u8]) -> bool {
        match dtype {
            DType::F16 => narrow::<V, f16>(from, to),
            DType::Bf16 => narrow::<V, bf16>(from, to),
            _ => false,
        }
    }
);
floats!(f64, F64, |wide: f64| wide, |wide: f64| wide, from_f64);

/// Converts aligned elements to `f32`; returns whether they are aligned.
#[inline(always)]
fn widen<V: Vector, T: Item>(from: &[u8], to: &mut [f32]) -> bool {
    match bytemuck::try_cast_slice::<u8, T>(from) {
        Ok(from) => {
            convert::<V, T, f32>(from, to);
            true
        }
        Err(_) => false,
    }
}

/// Rounds `f32` to aligned elements; returns whether they are aligned.
#[inline(always)]
fn narrow<V: Vector, T: Item>(from: &[f32], to: &mut [u8]) -> bool {
    match bytemuck::try_cast_slice_mut::<u8, T>(to) {
        Ok(to) => {
            convert::<V, f32, T>(from, to);
            true
        }
        Err(_) => false,
    }
}

/// Evaluates an expression in which `$type` is the Rust type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $type:ident => $body:expr) => {
        $crate::ops::elementwise::with_element!($dtype, $type => $body; F32 f32, F64 f64, F16 types::f16, Bf16 types::bf16, I8 i8, I16 i16, I32 i32,
            I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, Bool bool)
    };
    ($dtype:expr, $type:ident => $body:expr; $($variant:ident $element:ty),*) => {
        match $dtype {
            $(types::DType::$variant => {
                type $type = $element;
                $body
            })*
        }
    };
}
pub(crate) use with_element;

#[inline(always)]
fn run_chunk<V: Vector>(job: &Job<'_>, cells: &mut [u8]) {
    match job.kernel.class() {
        Class::U8 => run_tiles::<V, u8>(job, cells),
        Class::I8 => run_tiles::<V, i8>(job, cells),
        Class::I32 => run_tiles::<V, i32>(job, cells),
        Class::I64 => run_tiles::<V, i64>(job, cells),
        Class::F32 => run_tiles::<V, f32>(job, cells),
        Class::F64 => run_tiles::<V, f64>(job, cells),
    }
}

#[inline(always)]
fn run_tiles<V: Vector, W: Register>(job: &Job<'_>, cells: &mut [u8]) {
    let Elementwise { function, dtype, .. } = *job.kernel;
    let to = job.kernel.output_dtype();
    let size = to.size().0 as usize;
    // Elements that are only moved have no dtype but a size.
    let bits = |dtype: DType| match dtype.size().0 {
        1 => DType::U8,
        2 => DType::U16,
        4 => DType::U32,
        _ => DType::U64,
    };
    let operands: &[DType] = match function {
        ElementwiseFn::Unary(_) | ElementwiseFn::Cast(_) => &[dtype],
        ElementwiseFn::Binary(_) | ElementwiseFn::Compare(_) => &[dtype; 2],
        ElementwiseFn::Select => &[DType::Bool, bits(dtype), bits(dtype)],
    };
    let stored = if function == ElementwiseFn::Select { bits(to) } else { to };
    // These results are 0 or 1 as the operands are, which are the bytes of `bool`.
    let is_flag = stored == DType::Bool
        && size_of::<W>() == 1
        && matches!(
            function,
            ElementwiseFn::Unary(Unary::Not)
                | ElementwiseFn::Binary(Binary::And | Binary::Or | Binary::Xor | Binary::Max | Binary::Min)
        );
    let is_cast = matches!(function, ElementwiseFn::Cast(_));
    let [mut buffers @ .., mut result] = [[0u64; TILE_BYTES / 8]; 4];
    let length = TILE.min(TILE_BYTES / size_of::<W>());
    for (tile, cells) in cells.chunks_mut(length * size).enumerate() {
        let (at, count) = (job.first + tile * length, cells.len() / size);
        let is_direct = (holds::<W>(stored) || is_flag) && bytemuck::try_cast_slice::<u8, W>(cells).is_ok();
        let result: &mut [W] = &mut bytemuck::cast_slice_mut(&mut result)[..count];
        let out: &mut [W] = if is_direct { bytemuck::cast_slice_mut(cells) } else { &mut *result };
        // One place that reads and one that writes: each has a loop for every dtype.
        let mut dense: [Option<&[W]>; 3] = [None; 3];
        for (((operand, &dtype), buffer), dense) in operands.iter().enumerate().zip(&mut buffers).zip(&mut dense) {
            *dense = job.dense(operand, dtype, at, count);
            if dense.is_none() {
                // A conversion reads its operand into the result.
                let register: &mut [W] =
                    if is_cast { &mut *out } else { &mut bytemuck::cast_slice_mut(buffer)[..count] };
                job.read::<V, W>(operand, dtype, at, register);
            }
        }
        let operand = |ix: usize| dense[ix].unwrap_or_else(|| &bytemuck::cast_slice(&buffers[ix])[..count]);
        match function {
            ElementwiseFn::Cast(_) => {
                if let (Some(x), true) = (dense[0], is_direct) {
                    out.copy_from_slice(x);
                }
            }
            // The order of `u64` is that of `i64` with the first bit inverted.
            ElementwiseFn::Compare(compare) if dtype == DType::U64 => {
                let order = |ix: usize| operand(ix).iter().map(|number| number.unsigned_order());
                let pairs = order(0).zip(order(1));
                cells.iter_mut().zip(pairs).for_each(|(cell, (x, y))| *cell = u8::from(compare.eval(&x, &y)));
            }
            ElementwiseFn::Compare(compare) => write_comparison(compare, operand(0), operand(1), cells),
            ElementwiseFn::Unary(unary) => W::unary(unary, operand(0), out),
            ElementwiseFn::Binary(binary) => W::binary(binary, operand(0), operand(1), out),
            ElementwiseFn::Select => {
                for (((out, &x), &y), &z) in out.iter_mut().zip(operand(0)).zip(operand(1)).zip(operand(2)) {
                    *out = if x == W::ZERO { z } else { y };
                }
            }
        }
        if !is_direct && !matches!(function, ElementwiseFn::Compare(_)) {
            let from = if is_cast { dense[0].unwrap_or(result) } else { result };
            write::<V, W>(stored, from, cells);
        }
    }
}

impl Job<'_> {
    /// An operand's elements from a position on, if they are where a register's could be: one after the other and aligned.
    #[inline(always)]
    fn dense<W: Register>(&self, operand: usize, dtype: DType, position: usize, count: usize) -> Option<&[W]> {
        let Operand::Bytes(bytes) = self.inputs[operand] else { return None };
        let axes = &self.axes[operand];
        let axis = axes.last();
        if !holds::<W>(dtype) || axis.stride != 1 || axis.extent - position % axis.extent < count {
            return None;
        }
        let Group { length, start, .. } = axes.parts(position, count).next().filter(|group| group.length == count)?;
        bytemuck::try_cast_slice(bytes).ok()?.get(start..start + length)
    }

    /// Converts an operand's elements from a position on.
    #[inline(always)]
    fn read<V: Vector, W: Register>(&self, operand: usize, dtype: DType, position: usize, to: &mut [W]) {
        let Operand::Bytes(bytes) = self.inputs[operand] else { return };
        with_element!(dtype, T => self.read_typed::<V, W, T, { size_of::<T>() }>(dtype, bytes, operand, position, to));
    }

    #[inline(always)]
    fn read_typed<V: Vector, W: Register, T: Element, const SIZE: usize>(
        &self,
        dtype: DType,
        bytes: &[u8],
        operand: usize,
        position: usize,
        to: &mut [W],
    ) {
        let (items, _) = bytes.as_chunks::<SIZE>();
        let axes = &self.axes[operand];
        let stride = axes.last().stride;
        for Group { range, length, start, step } in axes.parts(position, to.len()) {
            for (part, to) in to[range].chunks_mut(length).enumerate() {
                let items = &items[start + part * step..];
                match stride {
                    1 if W::read_halves::<V>(dtype, items[..to.len()].as_flattened(), to) => {}
                    0 => to.fill(W::of(T::from_le(&items[0]))),
                    1 => {
                        let items = &items[..to.len()];
                        to.iter_mut().zip(items).for_each(|(to, item)| *to = W::of(T::from_le(item)));
                    }
                    _ => {
                        let items = items.iter().step_by(stride);
                        to.iter_mut().zip(items).for_each(|(to, item)| *to = W::of(T::from_le(item)));
                    }
                }
            }
        }
    }
}

/// Converts registers to elements.
#[inline(always)]
fn write<V: Vector, W: Register>(dtype: DType, from: &[W], cells: &mut [u8]) {
    if W::write_halves::<V>(dtype, from, cells) {
        return;
    }
    with_element!(dtype, T => {
        let (cells, _) = cells.as_chunks_mut::<{ size_of::<T>() }>();
        match W::limits(dtype) {
            Some(limits) => {
                for (cell, &item) in cells.iter_mut().zip(from) {
                    T::from_i64(i64::from(item.truncated(limits))).write_le(cell);
                }
            }
            None => cells.iter_mut().zip(from).for_each(|(cell, &item)| item.element::<T>().write_le(cell)),
        }
    });
}

/// The numbers between which floats of type `F` are truncated to integers of a dtype: the largest is below 2^31.
#[derive(Clone, Copy)]
struct Limits<F> {
    low: F,
    high: F,
    /// The result above `high`.
    above: i32,
}

macro_rules! limits {
    ($float:ident, $largest:expr) => {
        impl Limits<$float> {
            fn of(dtype: DType) -> Option<Limits<$float>> {
                let limits = |low: i32, high: i32| Limits { low: low as $float, high: high as $float, above: high };
                match dtype {
                    DType::I8 => Some(limits(i8::MIN.into(), i8::MAX.into())),
                    DType::U8 => Some(limits(0, u8::MAX.into())),
                    DType::I16 => Some(limits(i16::MIN.into(), i16::MAX.into())),
                    DType::U16 => Some(limits(0, u16::MAX.into())),
                    DType::I32 => Some(Limits { high: $largest, ..limits(i32::MIN, i32::MAX) }),
                    _ => None,
                }
            }

            /// As `as` converts, in a form that the compiler vectorizes.
            #[inline(always)]
            fn truncate(self, x: $float) -> i32 {
                let number = if x.is_nan() { 0.0 } else { x };
                let within = if number < self.low { self.low } else { number };
                let within = if within > self.high { self.high } else { within };
                // SAFETY: finite and, truncated, within `i32`.
                let whole = unsafe { within.to_int_unchecked::<i32>() };
                if number > self.high { self.above } else { whole }
            }
        }
    };
}
// The largest numbers below 2^31 whose truncations are exact.
limits!(f32, 2_147_483_520.0);
limits!(f64, 2_147_483_647.0);

#[inline(always)]
fn write_comparison<W: Register>(compare: Compare, x: &[W], y: &[W], cells: &mut [u8]) {
    macro_rules! hoisted {
        ($($variant:ident)*) => {
            match compare {
                $(Compare::$variant => {
                    for ((cell, x), y) in cells.iter_mut().zip(x).zip(y) {
                        *cell = u8::from(Compare::$variant.eval(x, y));
                    }
                })*
            }
        };
    }
    hoisted!(Equal Greater GreaterOrEqual Less LessOrEqual);
}
