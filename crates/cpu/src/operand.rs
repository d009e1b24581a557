//! [`Args`]: what a kernel is called with, and [`Cells`], the one place where bytes become elements that tasks share.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::kernel::Sizes;

/// An input of a kernel. Its bytes are aligned to its element.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// Bytes of its own.
    Bytes(&'a [u8]),
    /// The bytes of the output with this number, which hold the input before the kernel runs.
    InPlace(usize),
}

/// What a kernel is called with. Sizes are those of [`Kernel::sizes`](crate::Kernel::sizes), to the byte.
#[derive(Debug)]
pub struct Args<'a, 'b> {
    /// Inputs, in the kernel's order.
    pub inputs: &'b [Operand<'a>],
    /// Outputs, in the kernel's order, aligned to their elements.
    pub outputs: &'b mut [&'a mut [u8]],
    /// Bytes to work in, aligned to 4; what they hold before and after means nothing.
    pub workspace: &'b mut [u8],
}

/// The operands of a run whose sizes have been compared with the kernel's.
pub(crate) struct Operands<'b> {
    inputs: &'b [Operand<'b>],
    output: Cells<'b, u8>,
    workspace: Cells<'b, u8>,
}

impl<'b> Operands<'b> {
    /// Compares the sizes. Panics where they differ, or where an input is in place that `may_share` refuses.
    pub(crate) fn new(args: Args<'_, 'b>, sizes: &Sizes, may_share: impl Fn(usize) -> bool) -> Operands<'b>
    {
        let Args { inputs, outputs, workspace } = args;
        assert_eq!(inputs.len(), sizes.inputs.len(), "number of inputs");
        assert_eq!(outputs.len(), 1, "number of outputs");
        assert_eq!(outputs[0].len() as u64, sizes.outputs[0], "bytes of the output");
        assert_eq!(workspace.len() as u64, sizes.workspace, "bytes of the workspace");
        for (index, (input, &size)) in inputs.iter().zip(&sizes.inputs).enumerate() {
            match *input {
                Operand::Bytes(bytes) => assert_eq!(bytes.len() as u64, size, "bytes of input {index}"),
                Operand::InPlace(output) => {
                    assert!(output == 0 && may_share(index), "input {index} cannot be in place");
                    assert_eq!(size, sizes.outputs[0], "bytes of input {index}");
                }
            }
        }
        Operands { inputs, output: Cells::new(outputs[0]), workspace: Cells::new(workspace) }
    }

    /// The elements of an input that has bytes of its own.
    pub(crate) fn input<T: Pod>(&self, index: usize) -> &'b [T] {
        match self.inputs[index] {
            Operand::Bytes([]) => &[],
            Operand::Bytes(bytes) => bytemuck::cast_slice(bytes),
            Operand::InPlace(_) => panic!("input {index} cannot be in place"),
        }
    }

    /// The elements of an input that may be the output's: to be read as the output is, task by task.
    pub(crate) fn shared<T: Pod>(&self, index: usize) -> Cells<'b, T> {
        match self.inputs[index] {
            Operand::Bytes(bytes) => Cells::readable(bytes).cast(),
            Operand::InPlace(_) => self.output.cast(),
        }
    }

    /// Whether an input shares the output's bytes.
    pub(crate) fn in_place(&self, index: usize) -> bool {
        matches!(self.inputs[index], Operand::InPlace(_))
    }

    /// The elements of the output.
    pub(crate) fn output<T: Pod>(&self) -> Cells<'b, T> {
        self.output.cast()
    }

    /// The elements of the workspace.
    pub(crate) fn workspace<T: Pod>(&self) -> Cells<'b, T> {
        self.workspace.cast()
    }
}

/// A slice whose parts are lent to tasks. Bounds are always checked; that tasks do not overlap is what callers prove.
pub(crate) struct Cells<'a, T> {
    pointer: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Cells<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Cells<'_, T> {}

// SAFETY: a `Cells` is a pointer and a length; whoever makes a slice of it promises that no other task writes there.
unsafe impl<T: Pod + Send> Send for Cells<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for Cells<'_, T> {}

impl<'a, T: Pod> Cells<'a, T> {
    pub(crate) fn new(items: &'a mut [T]) -> Self {
        Cells { pointer: items.as_mut_ptr(), len: items.len(), life: PhantomData }
    }

    /// Cells that may only be read. Private to this file, whose callers hand them out as inputs.
    fn readable(items: &'a [T]) -> Self {
        Cells { pointer: items.as_ptr().cast_mut(), len: items.len(), life: PhantomData }
    }

    fn cast<U: Pod>(self) -> Cells<'a, U> {
        let size = size_of::<U>();
        if self.len == 0 {
            return Cells::new(&mut []);
        }
        let pointer = self.pointer.cast::<U>();
        let bytes = self.len * size_of::<T>();
        assert!(pointer.is_aligned() && bytes.is_multiple_of(size), "an operand is aligned to its element");
        Cells { pointer, len: bytes / size, life: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The elements from `start`.
    ///
    /// # Safety
    /// While the slice lives, nobody writes these elements.
    #[inline(always)]
    pub(crate) unsafe fn read(self, start: usize, len: usize) -> &'a [T] {
        assert!(start <= self.len && len <= self.len - start, "a task stays inside its operand");
        // SAFETY: in bounds by the line above; `T` is plain data; nobody writes, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.pointer.add(start), len) }
    }

    /// The elements from `start`, to be written.
    ///
    /// # Safety
    /// These are not cells of an input with bytes of its own, and while the slice lives nobody else reads or writes
    /// these elements.
    #[inline(always)]
    pub(crate) unsafe fn write(self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a task stays inside its operand");
        // SAFETY: in bounds by the line above; `T` is plain data; nobody else looks, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), len) }
    }
}
