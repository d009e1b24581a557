//! Memory of a GPU that processes share, by the driver's virtual memory management: an allocation is exported as a file
//! descriptor, and other processes import it and map it read-only. The physical memory lives as long as a descriptor or a
//! mapping of any process refers to it, so it outlives its maker.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::driver::{DeviceMemory, DriverError, Gpu, failed};

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const READ: sys::CUmemAccess_flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READ;
const READ_WRITE: sys::CUmemAccess_flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

fn location(gpu: &Gpu) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.device() }
}

fn properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: location(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Gpu {
    /// The unit of shared memory in bytes: sizes and starts are multiples of it, 2 MiB on most GPUs.
    ///
    /// # Errors
    /// The driver fails.
    pub fn sharing_unit(&self) -> Result<usize, DriverError> {
        let (mut bytes, properties) = (0, properties(self));
        let minimum = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        self.enter()?;
        // SAFETY: both pointers are valid.
        unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, minimum) }
            .result()
            .map_err(failed("reading the unit of shared memory"))?;
        Ok(bytes.max(1))
    }
}

/// A reference to physical memory of a GPU.
struct Physical(sys::CUmemGenericAllocationHandle);

impl Physical {
    /// Allocates memory that can be exported.
    fn new(gpu: &Gpu, size: usize) -> Result<Physical, DriverError> {
        let (mut handle, properties) = (0, properties(gpu));
        gpu.enter()?;
        // SAFETY: both pointers are valid; `Physical` releases the handle.
        unsafe { sys::cuMemCreate(&mut handle, size, &properties, 0) }
            .result()
            .map_err(failed("allocating shared memory"))?;
        Ok(Physical(handle))
    }

    /// Imports exported memory. The descriptor is not needed any more afterwards.
    fn import(gpu: &Gpu, descriptor: BorrowedFd) -> Result<Physical, DriverError> {
        let mut handle = 0;
        gpu.enter()?;
        // A descriptor is passed as a pointer's bits.
        let bits = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: the pointer is valid, and the driver checks the descriptor; `Physical` releases the handle.
        unsafe { sys::cuMemImportFromShareableHandle(&mut handle, bits, DESCRIPTOR) }
            .result()
            .map_err(failed("importing shared memory"))?;
        Ok(Physical(handle))
    }

    fn export(&self) -> Result<OwnedFd, DriverError> {
        let mut descriptor: i32 = -1;
        // SAFETY: the driver writes a descriptor, an `int`, to the pointer.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.0, DESCRIPTOR, 0) }
            .result()
            .map_err(failed("exporting shared memory"))?;
        // SAFETY: the driver made the descriptor for this call, and nothing else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(descriptor)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: `self` owns the handle. Mappings and descriptors keep the memory alive by themselves.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

/// Fills a chunk at an offset; `None` if that failed.
pub type FillChunk<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Option<()>;

/// A range of device addresses with mappings one after the other.
pub(crate) struct Range {
    gpu: Arc<Gpu>,
    start: sys::CUdeviceptr,
    size: usize,
    /// Sizes of the mappings.
    mapped: Vec<usize>,
}

impl Range {
    /// Reserves `size` bytes of addresses, a multiple of the unit.
    fn new(gpu: &Arc<Gpu>, size: usize) -> Result<Range, DriverError> {
        let mut start = 0;
        gpu.enter()?;
        // SAFETY: the pointer is valid; `Range` frees the addresses.
        unsafe { sys::cuMemAddressReserve(&mut start, size, 0, 0, 0) }
            .result()
            .map_err(failed("reserving addresses"))?;
        Ok(Range { gpu: gpu.clone(), start, size, mapped: Vec::new() })
    }

    pub(crate) fn start(&self) -> sys::CUdeviceptr {
        self.start
    }

    /// Maps memory behind the mappings that there are. A device that only reads cannot write to it.
    fn map(&mut self, memory: &Physical, size: usize, access: sys::CUmemAccess_flags) -> Result<(), DriverError> {
        let done: usize = self.mapped.iter().sum();
        assert!(size <= self.size - done, "the range is as large as its mappings");
        let at = self.start + done as u64;
        // SAFETY: the addresses are reserved and not mapped yet; the driver checks the size of the memory.
        unsafe { sys::cuMemMap(at, size, 0, memory.0, 0) }.result().map_err(failed("mapping shared memory"))?;
        self.mapped.push(size);
        let access = sys::CUmemAccessDesc { location: location(&self.gpu), flags: access };
        // SAFETY: the range was mapped above, and the pointer is valid.
        unsafe { sys::cuMemSetAccess(at, size, &access, 1) }.result().map_err(failed("mapping shared memory"))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // Work in flight may use the mappings. A failure has no remedy.
        let _ = self.gpu.finish();
        let mut at = self.start;
        for size in &self.mapped {
            // SAFETY: `self` owns the mapping, and no work is in flight.
            let _ = unsafe { sys::cuMemUnmap(at, *size) };
            at += *size as u64;
        }
        // SAFETY: `self` owns the addresses, and nothing is mapped there any more.
        let _ = unsafe { sys::cuMemAddressFree(self.start, self.size) };
    }
}

impl DeviceMemory {
    /// A block whose first `own` bytes are this process's, and whose rest is imported memory, mapped read-only, part after
    /// part: each a descriptor and its size. Returns the offset of the first part, a multiple of [`Gpu::sharing_unit`] as
    /// those of the other parts.
    ///
    /// # Errors
    /// Too little memory, a descriptor of something else or of another GPU.
    pub fn with_imported(
        gpu: &Arc<Gpu>,
        own: usize,
        parts: &[(BorrowedFd, usize)],
    ) -> Result<(DeviceMemory, usize), DriverError> {
        let unit = gpu.sharing_unit()?;
        let own = own.next_multiple_of(unit);
        let sizes = parts.iter().map(|(_, size)| size.max(&1).next_multiple_of(unit));
        let all = own + sizes.clone().sum::<usize>();
        let mut range = Range::new(gpu, all.max(unit))?;
        if 0 < own {
            range.map(&Physical::new(gpu, own)?, own, READ_WRITE)?;
        }
        for ((descriptor, _), size) in parts.iter().zip(sizes) {
            range.map(&Physical::import(gpu, *descriptor)?, size, READ)?;
        }
        Ok((DeviceMemory::of_range(gpu, range, all), own))
    }

    /// Makes memory of `size` bytes that other processes can import, and fills it by `read`, which gets the offset and the
    /// chunk to fill. Returns its descriptor and its size, a multiple of [`Gpu::sharing_unit`]. The descriptor alone keeps
    /// the memory.
    ///
    /// # Errors
    /// Too little memory, or a failure of the driver; `None` is a failure of `read`.
    pub fn export(gpu: &Arc<Gpu>, size: usize, read: FillChunk) -> Result<(OwnedFd, usize), Option<DriverError>> {
        let whole = size.max(1).next_multiple_of(gpu.sharing_unit()?);
        let physical = Physical::new(gpu, whole)?;
        let mut range = Range::new(gpu, whole)?;
        range.map(&physical, whole, READ_WRITE)?;
        let memory = DeviceMemory::of_range(gpu, range, whole);
        let mut buffer = vec![0; CHUNK_BYTES.min(whole)];
        for at in (0..size).step_by(CHUNK_BYTES) {
            let chunk = &mut buffer[..CHUNK_BYTES.min(size - at)];
            read(at as u64, chunk).ok_or(None)?;
            memory.upload(at, chunk)?;
        }
        let descriptor = physical.export()?;
        Ok((descriptor, whole))
    }
}

/// Bytes that are read and uploaded at a time.
const CHUNK_BYTES: usize = 32 << 20;
