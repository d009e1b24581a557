//! [`Tensor`]: a dtype, a shape and the elements, in host memory, row-major.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use crate::{Bytes, DType, Derivation, Shape, TensorFunction};

/// Elements by dtype.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "one variant per dtype")]
pub enum Data {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    Bool(Vec<bool>),
}

/// Runs the same expression for any element type of a [`Data`].
///
/// `each_data!(tensor.data(), items => items.len())`
#[macro_export]
macro_rules! each_data {
    ($data:expr, $items:ident => $body:expr) => {
        match $data {
            $crate::Data::F32($items) => $body,
            $crate::Data::F64($items) => $body,
            $crate::Data::F16($items) => $body,
            $crate::Data::Bf16($items) => $body,
            $crate::Data::I8($items) => $body,
            $crate::Data::I16($items) => $body,
            $crate::Data::I32($items) => $body,
            $crate::Data::I64($items) => $body,
            $crate::Data::U8($items) => $body,
            $crate::Data::U16($items) => $body,
            $crate::Data::U32($items) => $body,
            $crate::Data::U64($items) => $body,
            $crate::Data::Bool($items) => $body,
        }
    };
}

/// The host type of a [`DType`].
pub trait Element: Copy + PartialEq + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The dtype of this type.
    const DTYPE: DType;
    /// Wraps elements.
    fn wrap(items: Vec<Self>) -> Data;
    /// The elements, if the data has this type.
    fn slice(data: &Data) -> Option<&[Self]>;
    /// One element from its little-endian bytes; `bytes` has the dtype's size.
    fn from_le(bytes: &[u8]) -> Self;
    /// Appends the element's little-endian bytes.
    fn push_le(self, out: &mut Vec<u8>);
    /// Writes the element's little-endian bytes; `bytes` has the dtype's size.
    fn write_le(self, bytes: &mut [u8]);
    /// The element's bits as a number.
    fn bits(self) -> u64;
    /// The value as `f64`; integers above 2^53 lose digits.
    fn to_f64(self) -> f64;
    /// The value as `i64`: truncated towards zero, saturating.
    fn to_i64(self) -> i64;
    /// The nearest value of this type: integers truncate and saturate, `bool` is "not zero".
    fn from_f64(value: f64) -> Self;
    /// The same of an `f32`.
    fn from_f32(value: f32) -> Self;
    /// The value of this type with the same low bits: integers wrap, `bool` is "not zero".
    fn from_i64(value: i64) -> Self;
}

/// The `f32` that rounds to half precision as a number does: the number itself, or of its two neighbors the one with an odd
/// last bit, which no midpoint has (Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded sums"). The
/// conversions of `half` from `f64` drop the low half of the number, and round some that are just above a midpoint down.
pub fn odd_f32(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let bits = nearest.to_bits();
    let towards_zero = if value.abs() < f64::from(nearest).abs() { bits - 1 } else { bits };
    f32::from_bits(towards_zero | 1)
}

macro_rules! element {
    ($type:ty, $variant:ident, to_f64 $to_f64:expr, to_i64 $to_i64:expr, from_f64 $from_f64:expr, from_f32 $from_f32:expr, from_i64 $from_i64:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$variant;
            fn wrap(items: Vec<Self>) -> Data {
                Data::$variant(items)
            }
            fn slice(data: &Data) -> Option<&[Self]> {
                match data {
                    Data::$variant(items) => Some(items),
                    _ => None,
                }
            }
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the caller splits by the dtype's size"))
            }
            fn push_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn write_le(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn bits(self) -> u64 {
                let mut bits = [0; 8];
                bits[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
                u64::from_le_bytes(bits)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            #[inline]
            fn to_i64(self) -> i64 {
                $to_i64(self)
            }
            #[inline]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }
            #[inline]
            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }
            #[inline]
            fn from_i64(value: i64) -> Self {
                $from_i64(value)
            }
        }
    };
    ($type:ty, $variant:ident) => {
        element!(
            $type,
            $variant,
            to_f64 | v | v as f64,
            to_i64 | v | v as i64,
            from_f64 | v | v as $type,
            from_f32 | v: f32 | v as $type,
            from_i64 | v | v as $type
        );
    };
}

element!(f32, F32);
element!(f64, F64);
element!(f16, F16, to_f64 f16::to_f64, to_i64 |v: f16| v.to_f64() as i64, from_f64 |v| f16::from_f32(odd_f32(v)), from_f32 f16::from_f32, from_i64 |v| f16::from_f32(odd_f32(v as f64)));
element!(bf16, Bf16, to_f64 bf16::to_f64, to_i64 |v: bf16| v.to_f64() as i64, from_f64 |v| bf16::from_f32(odd_f32(v)), from_f32 bf16::from_f32, from_i64 |v| bf16::from_f32(odd_f32(v as f64)));
element!(i8, I8);
element!(i16, I16);
element!(i32, I32);
element!(i64, I64);
element!(u8, U8);
element!(u16, U16);
element!(u32, U32);
element!(u64, U64);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn wrap(items: Vec<Self>) -> Data {
        Data::Bool(items)
    }
    fn slice(data: &Data) -> Option<&[Self]> {
        match data {
            Data::Bool(items) => Some(items),
            _ => None,
        }
    }
    #[inline]
    fn from_le(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn push_le(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
    #[inline]
    fn write_le(self, bytes: &mut [u8]) {
        bytes[0] = u8::from(self);
    }
    #[inline]
    fn bits(self) -> u64 {
        u64::from(self)
    }
    #[inline]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    #[inline]
    fn to_i64(self) -> i64 {
        i64::from(self)
    }
    #[inline]
    fn from_f64(value: f64) -> Self {
        value != 0.0
    }
    #[inline]
    fn from_f32(value: f32) -> Self {
        value != 0.0
    }
    #[inline]
    fn from_i64(value: i64) -> Self {
        value != 0
    }
}

/// Elements that are read at once.
const READ_ELEMENTS: usize = 1 << 16;

/// The reason for which a tensor is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of elements does not match the shape.
    #[error("a tensor of shape {shape} must have {want} elements, got {got}")]
    Elements {
        /// The shape.
        shape: Shape,
        /// The elements of the shape.
        want: usize,
        /// The elements given.
        got: usize,
    },
    /// The number of bytes does not match the shape and dtype.
    #[error("a tensor of {dtype}{shape} must have {want} bytes, got {got}")]
    ByteLength {
        /// The dtype.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// The bytes of the tensor.
        want: u64,
        /// The bytes given.
        got: usize,
    },
}

/// A tensor on the host: elements in row-major order.
///
/// Invariant: the number of elements is the shape's.
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Shape,
    data: Data,
    /// How it follows from tensors of a file, if that is recorded. It is no part of the value.
    derivation: Option<Arc<Derivation>>,
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        (&self.shape, &self.data) == (&other.shape, &other.data)
    }
}

impl Tensor {
    /// A tensor of the given elements.
    pub fn new<T: Element>(shape: Shape, items: Vec<T>) -> Result<Tensor, TensorError> {
        if shape.elements() != items.len() {
            let (want, got) = (shape.elements(), items.len());
            return Err(TensorError::Elements { shape, want, got });
        }
        Ok(Tensor { shape, data: T::wrap(items), derivation: None })
    }

    /// A tensor of rank 0.
    pub fn scalar<T: Element>(item: T) -> Tensor {
        Tensor { shape: Shape::scalar(), data: T::wrap(vec![item]), derivation: None }
    }

    /// A tensor of rank 1.
    pub fn vector<T: Element>(items: Vec<T>) -> Tensor {
        Tensor { shape: Shape::from([items.len()]), data: T::wrap(items), derivation: None }
    }

    /// A tensor whose elements are all `item`.
    pub fn full<T: Element>(shape: Shape, item: T) -> Tensor {
        let items = vec![item; shape.elements()];
        Tensor { shape, data: T::wrap(items), derivation: None }
    }

    /// A tensor whose element at each flat row-major position is `item(position)`.
    pub fn from_fn<T: Element>(shape: Shape, item: impl FnMut(usize) -> T) -> Tensor {
        let items = (0..shape.elements()).map(item).collect();
        Tensor { shape, data: T::wrap(items), derivation: None }
    }

    /// A tensor from the little-endian bytes of its elements.
    pub fn from_le_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Tensor, TensorError> {
        let want = dtype.size().0.saturating_mul(shape.elements() as u64);
        if want != bytes.len() as u64 {
            return Err(TensorError::ByteLength { dtype, shape, want, got: bytes.len() });
        }
        Ok(Tensor::read_le(dtype, shape, &mut &bytes[..]).expect("it is as long as the elements"))
    }

    /// Reads the little-endian bytes of a tensor's elements, without a copy of all of them.
    ///
    /// # Errors
    /// Those of the source; `UnexpectedEof` if it ends before the last element; elements that memory does not hold.
    pub fn read_le(dtype: DType, shape: Shape, source: &mut dyn Read) -> io::Result<Tensor> {
        fn read<T: Element>(elements: usize, source: &mut dyn Read) -> io::Result<Data> {
            let mut items: Vec<T> = Vec::new();
            items.try_reserve_exact(elements).map_err(io::Error::other)?;
            let mut buffer = vec![0; size_of::<T>() * elements.min(READ_ELEMENTS)];
            while items.len() < elements {
                let bytes = &mut buffer[..size_of::<T>() * (elements - items.len()).min(READ_ELEMENTS)];
                source.read_exact(bytes)?;
                items.extend(bytes.chunks_exact(size_of::<T>()).map(T::from_le));
            }
            Ok(T::wrap(items))
        }
        let elements = shape.elements();
        let data = match dtype {
            DType::F32 => read::<f32>(elements, source),
            DType::F64 => read::<f64>(elements, source),
            DType::F16 => read::<f16>(elements, source),
            DType::Bf16 => read::<bf16>(elements, source),
            DType::I8 => read::<i8>(elements, source),
            DType::I16 => read::<i16>(elements, source),
            DType::I32 => read::<i32>(elements, source),
            DType::I64 => read::<i64>(elements, source),
            DType::U8 => read::<u8>(elements, source),
            DType::U16 => read::<u16>(elements, source),
            DType::U32 => read::<u32>(elements, source),
            DType::U64 => read::<u64>(elements, source),
            DType::Bool => read::<bool>(elements, source),
        };
        Ok(Tensor { shape, data: data?, derivation: None })
    }

    /// The elements' little-endian bytes.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        self.le_bytes_of(0..self.elements())
    }

    /// The little-endian bytes of some elements.
    ///
    /// # Panics
    /// Elements that the tensor does not have.
    pub fn le_bytes_of(&self, elements: Range<usize>) -> Vec<u8> {
        fn bytes<T: Element>(items: &[T]) -> Vec<u8> {
            let mut bytes = vec![0; size_of_val(items)];
            bytes.chunks_exact_mut(size_of::<T>()).zip(items).for_each(|(to, item)| item.write_le(to));
            bytes
        }
        each_data!(&self.data, items => bytes(&items[elements]))
    }

    /// The sum of the bits of all elements as numbers, modulo 2^64. The same elements in another order, and among more zeros,
    /// have the same sum.
    pub fn bit_sum(&self) -> u64 {
        fn sum<T: Element>(items: &[T]) -> u64 {
            items.iter().fold(0, |sum, item| sum.wrapping_add(item.bits()))
        }
        each_data!(&self.data, items => sum(items))
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        each_data!(&self.data, items => of(items))
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// The bytes of the elements.
    pub fn size(&self) -> Bytes {
        Bytes(self.dtype().size().0 * self.elements() as u64)
    }

    /// The elements as `T`, or `None` if the dtype differs.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.data)
    }

    /// How it follows from tensors of a file of weights, if that is recorded.
    pub fn derivation(&self) -> Option<&Derivation> {
        self.derivation.as_deref()
    }

    pub(crate) fn with_derivation(self, derivation: Option<Arc<Derivation>>) -> Tensor {
        Tensor { derivation, ..self }
    }

    /// The derivation of the result of a function of this tensor alone.
    fn derivation_of(&self, function: TensorFunction) -> Option<Arc<Derivation>> {
        self.derivation.as_ref().and_then(|_| Derivation::of(function, &[self])).map(Arc::new)
    }

    /// The same elements with another shape of the same size.
    pub fn reshape(self, shape: Shape) -> Result<Tensor, TensorError> {
        if shape == self.shape {
            return Ok(self);
        }
        let derivation = self.derivation_of(TensorFunction::Reshape(shape.clone()));
        Ok(self.reshape_bare(shape)?.with_derivation(derivation))
    }

    /// [`Tensor::reshape`] without its derivation.
    pub(crate) fn reshape_bare(self, shape: Shape) -> Result<Tensor, TensorError> {
        if shape.elements() != self.elements() {
            let (want, got) = (shape.elements(), self.elements());
            return Err(TensorError::Elements { shape, want, got });
        }
        Ok(Tensor { shape, data: self.data, derivation: None })
    }

    /// Each element converted to `dtype`: floats truncate towards zero to integers, integers wrap.
    pub fn cast(&self, dtype: DType) -> Tensor {
        if dtype == self.dtype() {
            return self.clone();
        }
        self.cast_bare(dtype).with_derivation(self.derivation_of(TensorFunction::Cast(dtype)))
    }

    /// [`Tensor::cast`] without its derivation.
    pub(crate) fn cast_bare(&self, dtype: DType) -> Tensor {
        fn convert<S: Element, T: Element>(items: &[S]) -> Data {
            if S::DTYPE.is_float() {
                T::wrap(items.iter().map(|item| T::from_f64(item.to_f64())).collect())
            } else if T::DTYPE.is_float() {
                // u64 above i64::MAX goes through f64 as well; `to_i64` would wrap it.
                T::wrap(items.iter().map(|item| T::from_f64(item.to_f64())).collect())
            } else {
                T::wrap(items.iter().map(|item| T::from_i64(item.to_i64())).collect())
            }
        }
        fn from<S: Element>(items: &[S], dtype: DType) -> Data {
            match dtype {
                DType::F32 => convert::<S, f32>(items),
                DType::F64 => convert::<S, f64>(items),
                DType::F16 => convert::<S, f16>(items),
                DType::Bf16 => convert::<S, bf16>(items),
                DType::I8 => convert::<S, i8>(items),
                DType::I16 => convert::<S, i16>(items),
                DType::I32 => convert::<S, i32>(items),
                DType::I64 => convert::<S, i64>(items),
                DType::U8 => convert::<S, u8>(items),
                DType::U16 => convert::<S, u16>(items),
                DType::U32 => convert::<S, u32>(items),
                DType::U64 => convert::<S, u64>(items),
                DType::Bool => convert::<S, bool>(items),
            }
        }
        if dtype == self.dtype() {
            return self.clone();
        }
        let data = each_data!(&self.data, items => from(items, dtype));
        Tensor { shape: self.shape.clone(), data, derivation: None }
    }

    /// The elements as `f64`, for comparisons and messages.
    pub fn to_f64(&self) -> Vec<f64> {
        each_data!(&self.data, items => items.iter().map(|item| item.to_f64()).collect())
    }

    /// The elements as `i64`, for shape arithmetic.
    pub fn to_i64(&self) -> Vec<i64> {
        each_data!(&self.data, items => items.iter().map(|item| item.to_i64()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a midpoint to the even neighbor, next to it to the nearer one, however little it is away.
    #[test]
    fn casts_to_half_precision_round_to_the_nearest() {
        for (dtype, step) in [(DType::F16, 2f64.powi(-10)), (DType::Bf16, 2f64.powi(-7))] {
            for at in 0..64 {
                let (low, high) = (1.0 + f64::from(at) * step, 1.0 + f64::from(at + 1) * step);
                let middle = low + step / 2.0;
                let even = if at % 2 == 0 { low } else { high };
                let numbers = [(middle, even), (middle.next_up(), high), (middle.next_down(), low)];
                let floats = [((middle as f32).next_up(), high), ((middle as f32).next_down(), low)];
                let floats = floats.map(|(number, want)| (f64::from(number), want));
                for (number, want) in numbers.into_iter().chain(floats) {
                    for (number, want) in [(number, want), (-number, -want)] {
                        assert_eq!(Tensor::scalar(number).cast(dtype).to_f64(), [want], "{dtype}: {number:e}");
                        let float = number as f32;
                        if f64::from(float) == number {
                            assert_eq!(Tensor::scalar(float).cast(dtype).to_f64(), [want], "{dtype}: {float:e}");
                        }
                    }
                }
            }
        }
        for number in [f64::MAX, f64::INFINITY, 1e-320, 5e-324] {
            let (half, want) = (Tensor::scalar(number).cast(DType::Bf16), number as f32);
            assert_eq!(half.to_f64(), [f64::from(want)], "{number:e}");
        }
        assert!(Tensor::scalar(f64::NAN).cast(DType::F16).to_f64()[0].is_nan());
    }

    #[test]
    fn bytes_round_trip_for_every_dtype() {
        for dtype in DType::ALL {
            let tensor = Tensor::vector(vec![0.0f32, 1.0, 2.0]).cast(dtype);
            assert_eq!(tensor.dtype(), dtype);
            let again = Tensor::from_le_bytes(dtype, Shape::from([3]), &tensor.to_le_bytes()).unwrap();
            assert_eq!(tensor, again);
        }
    }

    #[test]
    fn sum_of_bits_is_that_of_any_order_and_of_more_zeros() {
        for dtype in DType::ALL {
            let sum = |items: &[f32]| Tensor::vector(items.to_vec()).cast(dtype).bit_sum();
            assert_eq!(sum(&[1.0, 0.0, 3.0]), sum(&[3.0, 1.0, 0.0, 0.0]), "{dtype}");
            assert_ne!(sum(&[1.0, 1.0]), sum(&[1.0]), "{dtype}");
        }
        assert_eq!(Tensor::vector(vec![1.0f32, -1.0]).bit_sum(), 0x3f80_0000 + 0xbf80_0000);
    }

    #[test]
    fn elements_are_read_in_pieces() {
        let tensor = Tensor::from_fn(Shape::from([2, READ_ELEMENTS]), |at| at as u16);
        let bytes = tensor.to_le_bytes();
        let read = |bytes: &[u8]| Tensor::read_le(DType::U16, tensor.shape().clone(), &mut &bytes[..]);
        assert_eq!(read(&bytes).ok().as_ref(), Some(&tensor));
        assert_eq!(read(&bytes[1..]).map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn wrong_count_is_refused() {
        assert!(Tensor::new(Shape::from([2]), vec![1.0f32]).is_err());
        assert!(Tensor::from_le_bytes(DType::F32, Shape::from([2]), &[0; 7]).is_err());
    }

    #[test]
    fn casts_truncate_and_wrap() {
        assert_eq!(Tensor::vector(vec![-1.7f32, 300.0]).cast(DType::I32).to_i64(), [-1, 300]);
        assert_eq!(Tensor::vector(vec![257i64]).cast(DType::U8).to_i64(), [1]);
        assert_eq!(Tensor::vector(vec![0.5f32, 0.0]).cast(DType::Bool).to_i64(), [1, 0]);
    }
}
