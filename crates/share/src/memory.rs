//! Sealed memory: [`Extent`]s are memfds that no process can write, grow or shrink any more. They have no name: without a
//! descriptor there is no access. [`Mapped`] is a client's read-only view.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::core::ExtentId;

/// Mappings start at multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// A huge page. A mapping that is as far from a multiple of it in memory as in the descriptor can have huge pages.
pub const HUGE_PAGE: u64 = 2 << 20;

/// Tensors in an extent start at multiples of this many bytes: four cache lines, enough for every kernel and for CUDA.
pub const TENSOR_ALIGNMENT: u64 = 256;

/// The seals of memory that is shared.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// How often sealing is tried again, and how long after. Each try waits a tenth of a second in the system, too.
const SEAL_TRIES: usize = 8;
const SEAL_PAUSE: Duration = Duration::from_millis(20);

/// A memfd that is being filled. Only its maker has the descriptor.
#[derive(Debug)]
pub struct Filling {
    file: File,
    /// Bytes of it in huge pages.
    huge_bytes: u64,
}

impl Filling {
    /// An empty memfd of `size` bytes. It takes memory as it is written.
    ///
    /// # Errors
    /// Those of the system: too many descriptors, too little memory.
    pub fn new(name: &str, size: u64) -> io::Result<Filling> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not have the flag against execution.
        let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags))?;
        let file = File::from(made);
        file.set_len(size)?;
        let huge_bytes = if HUGE_PAGE <= size && has_huge_pages() { populate(&file, size) } else { 0 };
        Ok(Filling { file, huge_bytes })
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// Those of the system; memory that is exhausted is an error here, not a signal.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Reads bytes back.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Seals the memory: from now on its bytes cannot change.
    ///
    /// # Errors
    /// Those of the system.
    pub fn seal(self, id: ExtentId) -> io::Result<Extent> {
        add_seals(&self.file)?;
        let bytes = self.file.metadata()?.len();
        Ok(Extent { id, file: self.file, bytes, huge_bytes: self.huge_bytes })
    }
}

/// Seals memory. The system refuses while something else holds a page or a mapping, which ends by itself: compaction, or a child
/// process of another thread between `fork` and `exec`.
fn add_seals(file: &File) -> io::Result<()> {
    for _ in 0..SEAL_TRIES {
        match fcntl_add_seals(file, SEALS) {
            Err(Errno::BUSY) => std::thread::sleep(SEAL_PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(fcntl_add_seals(file, SEALS)?)
}

/// Whether the system gives shared memory huge pages, at least on request.
fn has_huge_pages() -> bool {
    matches!(huge_page_setting(), "always" | "within_size" | "advise" | "force")
}

/// The system's setting `shmem_enabled`: when shared memory has pages of 2 MiB; `unknown` if it has none.
pub fn huge_page_setting() -> &'static str {
    static SETTING: OnceLock<String> = OnceLock::new();
    SETTING.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        chosen(&text).unwrap_or("unknown").to_string()
    })
}

/// The word in brackets.
fn chosen(setting: &str) -> Option<&str> {
    Some(setting.split_once('[')?.1.split_once(']')?.0)
}

/// Requests huge pages for a fresh memfd, by a mapping that ends here. Returns the bytes for which there were some. Failures
/// are left to the writes that follow.
fn populate(file: &File, size: u64) -> u64 {
    let Ok(length) = usize::try_from(size) else { return 0 };
    let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping at an address that the kernel chooses, which nothing else refers to. No byte of it is accessed
    // by this process: the kernel populates it, and reports memory that is exhausted as an error, not as a signal.
    #[expect(unsafe_code, reason = "advice needs a mapping")]
    unsafe {
        let Ok(start) = mmap(std::ptr::null_mut(), length, flags.0, flags.1, file, 0) else { return 0 };
        let is_populated = madvise(start, length, Advice::LinuxHugepage).is_ok()
            && madvise(start, length, Advice::LinuxPopulateWrite).is_ok();
        let huge_bytes = if is_populated { huge_bytes_at(start as usize) } else { 0 };
        let _ = munmap(start, length);
        huge_bytes
    }
}

/// Bytes of this process's mapping at an address that are in huge pages of shared memory.
fn huge_bytes_at(start: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    shmem_pmd_mapped(&maps, start)
}

/// `ShmemPmdMapped` of the mapping that starts at an address, in bytes.
fn shmem_pmd_mapped(maps: &str, start: usize) -> u64 {
    let head = format!("{start:x}-");
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&head));
    let kib = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    kib.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Sealed memory.
#[derive(Debug)]
pub struct Extent {
    /// Its number in the daemon.
    pub id: ExtentId,
    /// The descriptor.
    pub file: File,
    /// Its size.
    pub bytes: u64,
    /// Bytes of it in huge pages.
    pub huge_bytes: u64,
}

/// Checks that a received descriptor is sealed memory, and returns its size.
///
/// # Errors
/// A descriptor that another process could still write or truncate.
pub fn check_sealed(descriptor: &impl AsFd) -> io::Result<u64> {
    let seals = fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "shared memory must be sealed against writes"));
    }
    Ok(rustix::fs::fstat(descriptor)?.st_size as u64)
}

/// A part of a descriptor's memory at an offset of a [`Mapped`] range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The position of the descriptor.
    pub extent: u32,
    /// Its first byte in the descriptor; a multiple of [`PAGE`].
    pub from: u64,
    /// Its first byte in the range; a multiple of [`PAGE`].
    pub to: u64,
    /// Its length; a multiple of [`PAGE`] unless it is the last of the descriptor.
    pub length: u64,
}

/// One contiguous read-only range of addresses, made of parts of sealed memory.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    /// Bytes of the reserved range; a multiple of [`PAGE`], at least one page.
    reserved: usize,
    length: usize,
}

// SAFETY: the memory is read-only for every process (it is sealed), and the range is released only by the owner's drop.
#[expect(unsafe_code, reason = "a raw pointer is neither `Send` nor `Sync` by itself")]
unsafe impl Send for Mapped {}
// SAFETY: as for `Send`; shared references only read.
#[expect(unsafe_code, reason = "a raw pointer is neither `Send` nor `Sync` by itself")]
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps segments into a fresh range of `length` bytes. Every descriptor must be sealed; each is checked.
    ///
    /// # Errors
    /// A descriptor that is not sealed, a segment outside its descriptor or outside the range, those of the system.
    pub fn new(descriptors: &[OwnedFd], segments: &[Segment], length: u64) -> io::Result<Mapped> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_string());
        let sizes: io::Result<Vec<u64>> = descriptors.iter().map(check_sealed).collect();
        let sizes = sizes?;
        let reserved = length.max(1).checked_next_multiple_of(PAGE).and_then(|bytes| usize::try_from(bytes).ok());
        let reserved = reserved.ok_or_else(|| invalid("the range is larger than the address space"))?;
        for segment in segments {
            let size = *sizes.get(segment.extent as usize).ok_or_else(|| invalid("a segment has no descriptor"))?;
            let is_inside = |start: u64, size: u64| {
                let end = start.checked_add(segment.length)?.checked_next_multiple_of(PAGE)?;
                (end <= size.checked_next_multiple_of(PAGE)?).then_some(())
            };
            let is_aligned = segment.from.is_multiple_of(PAGE) && segment.to.is_multiple_of(PAGE);
            let fits = is_inside(segment.from, size).and(is_inside(segment.to, reserved as u64)).is_some();
            if !is_aligned || !fits || segment.length == 0 {
                return Err(invalid("a segment is outside its descriptor or outside the range"));
            }
        }
        // One more huge page of addresses, so that the range can begin at a multiple of one.
        let spare = if HUGE_PAGE as usize <= reserved { HUGE_PAGE as usize } else { 0 };
        let addresses = reserved.checked_add(spare).ok_or_else(|| invalid("the range is too large"))?;
        // SAFETY: a fresh range at an address that the kernel chooses; nothing else refers to it.
        #[expect(unsafe_code, reason = "a reservation has no safe constructor")]
        let first = unsafe {
            mmap_anonymous(std::ptr::null_mut(), addresses, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let first = NonNull::new(first.cast::<u8>()).ok_or_else(|| invalid("the range is at address zero"))?;
        let before = if spare == 0 { 0 } else { first.as_ptr().align_offset(spare) };
        // SAFETY: `before` is less than `spare`, so the pointer stays inside of the reservation.
        #[expect(unsafe_code, reason = "an address in the reservation")]
        let start = unsafe { first.add(before) };
        let mapped = Mapped { start, reserved, length: length as usize };
        for (at, size) in [(first, before), (first_after(&mapped), spare - before)] {
            if 0 < size {
                // SAFETY: the pages are of the reservation and outside of `mapped`; nothing refers to them.
                #[expect(unsafe_code, reason = "the spare addresses are given back")]
                let done = unsafe { munmap(at.as_ptr().cast(), size) };
                debug_assert!(done.is_ok(), "the addresses were reserved");
            }
        }
        for segment in segments {
            let length = segment.length.next_multiple_of(PAGE) as usize;
            // SAFETY: `to + length <= reserved` was checked above, so the pointer stays inside the range of `mapped`, which
            // nothing refers to yet. The descriptor is sealed and has `from + length` bytes, up to its last page: its pages
            // can neither change nor vanish. The protection is read-only, so a store faults.
            #[expect(unsafe_code, reason = "a mapping has no safe constructor")]
            unsafe {
                let at = mapped.start.as_ptr().add(segment.to as usize);
                let descriptor = &descriptors[segment.extent as usize];
                mmap(at.cast(), length, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, descriptor, segment.from)?;
            }
        }
        Ok(mapped)
    }

    /// Maps all of one descriptor.
    ///
    /// # Errors
    /// As [`Mapped::new`].
    pub fn whole(descriptor: OwnedFd, length: u64) -> io::Result<Mapped> {
        let segments: &[Segment] = &[Segment { extent: 0, from: 0, to: 0, length }];
        Mapped::new(&[descriptor], if length == 0 { &[] } else { segments }, length)
    }
}

/// The first address behind a range.
fn first_after(mapped: &Mapped) -> NonNull<u8> {
    // SAFETY: the reservation has at least `reserved` bytes from `start` on, so this is at most its end.
    #[expect(unsafe_code, reason = "an address in the reservation")]
    unsafe {
        mapped.start.add(mapped.reserved)
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is mapped and readable for `length <= reserved` bytes until `self` is dropped. Pages are sealed
        // memory or anonymous zeros that are never written, so the bytes do not change.
        #[expect(unsafe_code, reason = "the mapping as a slice")]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.length)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was reserved by `new`, nothing else unmaps it, and no slice outlives `self`.
        #[expect(unsafe_code, reason = "the end of a mapping")]
        let done = unsafe { munmap(self.start.as_ptr().cast(), self.reserved) };
        debug_assert!(done.is_ok(), "the range was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As by a child process of another thread that has not called `exec` yet.
    #[test]
    fn sealing_waits_for_a_mapping_that_ends() {
        let filling = Filling::new("test", PAGE).expect("there is memory");
        let (length, protection) = (PAGE as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping at an address that the kernel chooses. No byte of it is accessed.
        #[expect(unsafe_code, reason = "a writable mapping")]
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &filling.file, 0) };
        let start = start.expect("there is memory").addr();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(SEAL_PAUSE * 2);
            // SAFETY: the mapping of above, which nothing refers to.
            #[expect(unsafe_code, reason = "the end of the mapping")]
            let ended = unsafe { munmap(std::ptr::without_provenance_mut(start), length) };
            ended.expect("it was mapped");
        });
        filling.seal(ExtentId(1)).expect("the mapping ends");
        holder.join().expect("it does not panic");
    }

    #[test]
    fn setting_of_huge_pages_is_the_word_in_brackets() {
        assert_eq!(chosen("always within_size advise [never] deny force\n"), Some("never"));
        assert_eq!((chosen(""), chosen("[x")), (None, None));
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_at_the_address() {
        let maps = "7f00-7f10 rw-s 0 00:01 4 /memfd:a (deleted)\nShmemPmdMapped:     2048 kB\n\
                    7f20-7f30 rw-s 0 00:01 4 /memfd:b (deleted)\nShmemPmdMapped:        0 kB\n\
                    7f40-7f50 rw-s 0 00:01 4 /memfd:c (deleted)\nShmemPmdMapped:     4096 kB\n";
        assert_eq!([0x7f00, 0x7f20, 0x7f40, 0x7f60].map(|at| shmem_pmd_mapped(maps, at)), [2 << 20, 0, 4 << 20, 0]);
    }

    /// Whatever the system's setting is, bytes that are populated in advance are written, and read as they were written.
    #[test]
    fn populated_memory_reads_as_written() {
        let size = 2 * HUGE_PAGE + PAGE;
        let filling = Filling::new("test", size).expect("there is memory");
        let huge_bytes = populate(&filling.file, size);
        assert!(huge_bytes <= size && huge_bytes.is_multiple_of(HUGE_PAGE), "{huge_bytes}");
        filling.write(&[7; 3], HUGE_PAGE - 1).expect("there is memory");
        let extent = filling.seal(ExtentId(1)).expect("no mapping is left that could write");
        let mapped = Mapped::whole(descriptor(&extent), size).expect("it is sealed");
        assert_eq!(mapped.as_ref()[HUGE_PAGE as usize - 2..][..5], [0, 7, 7, 7, 0]);
        assert_eq!(mapped.as_ref().len() as u64, size);
    }

    fn extent(pages: &[u8]) -> Extent {
        let filling = Filling::new("test", PAGE * pages.len() as u64).expect("there is memory");
        for (ix, byte) in pages.iter().enumerate() {
            filling.write(&[*byte; PAGE as usize], ix as u64 * PAGE).expect("there is memory");
        }
        filling.seal(ExtentId(1)).expect("it is not sealed yet")
    }

    fn descriptor(extent: &Extent) -> OwnedFd {
        extent.file.try_clone().expect("there are descriptors").into()
    }

    #[test]
    fn sealed_memory_refuses_writes_truncation_and_writable_mappings() {
        let extent = extent(&[7, 8]);
        assert!(extent.file.write_all_at(&[1], 0).is_err());
        assert!(extent.file.set_len(1).is_err());
        assert!(extent.file.set_len(PAGE * 3).is_err());
        assert!(fcntl_add_seals(&extent.file, SealFlags::FUTURE_WRITE).is_err(), "the seals are sealed");
        // SAFETY: the mapping is expected to fail; if it does not, nothing uses it.
        #[expect(unsafe_code, reason = "the test attempts a writable mapping")]
        let writable = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, &extent.file, 0) };
        assert!(writable.is_err());
    }

    #[test]
    fn segments_of_two_extents_are_one_range() {
        let (first, second) = (extent(&[1, 2, 3]), extent(&[4, 5]));
        let segments = [
            Segment { extent: 1, from: PAGE, to: 0, length: PAGE },
            Segment { extent: 0, from: 0, to: PAGE, length: 2 * PAGE },
        ];
        let mapped = Mapped::new(&[descriptor(&first), descriptor(&second)], &segments, 3 * PAGE).expect("they fit");
        let pages: Vec<u8> = mapped.as_ref().chunks(PAGE as usize).map(|page| page[99]).collect();
        assert_eq!(pages, [5, 1, 2]);
    }

    #[test]
    fn segments_outside_their_memory_are_refused() {
        let extent = extent(&[1, 2]);
        let bad = [
            Segment { extent: 1, from: 0, to: 0, length: PAGE },
            Segment { extent: 0, from: 0, to: 0, length: 3 * PAGE },
            Segment { extent: 0, from: PAGE, to: PAGE, length: 2 * PAGE },
            Segment { extent: 0, from: 0, to: 2 * PAGE, length: PAGE },
            Segment { extent: 0, from: 1, to: 0, length: PAGE },
            Segment { extent: 0, from: u64::MAX - 4095, to: 0, length: PAGE },
            Segment { extent: 0, from: 0, to: 0, length: 0 },
        ];
        for segment in bad {
            assert!(Mapped::new(&[descriptor(&extent)], &[segment], 2 * PAGE).is_err(), "{segment:?}");
        }
        // Inside the range, but behind the memory of the descriptor, where a read would end the process.
        for from in [PAGE, 2 * PAGE] {
            let segment = Segment { extent: 0, from, to: 0, length: 2 * PAGE };
            assert!(Mapped::new(&[descriptor(&extent)], &[segment], 4 * PAGE).is_err(), "{segment:?}");
        }
    }

    #[test]
    fn memory_that_lacks_one_seal_is_refused() {
        for seal in [SealFlags::WRITE, SealFlags::GROW, SealFlags::SHRINK, SealFlags::SEAL] {
            let filling = Filling::new("test", PAGE).expect("there is memory");
            fcntl_add_seals(&filling.file, SEALS.difference(seal)).expect("it is not sealed yet");
            assert!(check_sealed(&filling.file).is_err(), "{seal:?}");
        }
        assert_eq!(check_sealed(&extent(&[1]).file).expect("it is sealed"), PAGE);
    }

    #[test]
    fn memory_that_is_not_sealed_is_refused() {
        let filling = Filling::new("test", PAGE).expect("there is memory");
        let descriptor: OwnedFd = filling.file.into();
        assert!(Mapped::whole(descriptor, PAGE).is_err());
    }

    #[test]
    fn process_that_stores_into_a_mapping_dies_by_sigsegv_and_the_bytes_stay() {
        let extent = extent(&[7, 8]);
        let mapped = Mapped::whole(descriptor(&extent), 2 * PAGE).expect("it is sealed");
        let at = mapped.as_ref().as_ptr().cast_mut();
        // SAFETY: the child does nothing but store to a mapped address, which the kernel refuses, or exit. The store never
        // succeeds, so no shared reference sees a change; the parent only waits for its own child.
        #[expect(unsafe_code, reason = "the test makes a process that breaks the rules")]
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                std::ptr::write_volatile(at, 1);
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
        assert!(mapped.as_ref()[..PAGE as usize].iter().all(|byte| *byte == 7));
    }
}
