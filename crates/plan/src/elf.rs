//! [`with_headers_last`]: a runner that no system starts if its file is cut off.
//!
//! Linux maps the segments of an ELF file without a look at the file's length. A program whose file was truncated within a
//! segment ends with a signal before its first instruction, and cannot say why. But Linux reads the program headers
//! before it starts anything, and refuses a file (`ENOEXEC`) that ends before them. Therefore an executable has its
//! program headers behind its last segment: a file that was cut off in front of their end is refused with a message of
//! the program that starts it, and one that was cut off behind it runs far enough to miss its trailer.
//!
//! The headers must be in memory as well. They get a read-only segment of their own, whose address is its offset in the
//! file: Linux before 5.18 and QEMU compute the address of the headers from their offset.

use std::borrow::Cow;

/// Sizes of the structures of ELF64.
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// `p_type` of a segment that is loaded, and of the one that is the program headers.
const PT_LOAD: u32 = 1;
const PT_PHDR: u32 = 6;

/// `p_flags` of a segment that is only read.
const PF_R: u32 = 4;

/// The largest page of the systems that run these files; segments on distinct pages do not disturb each other.
const PAGE_MAX: u64 = 64 << 10;

/// The runner with its program headers at its end. Unchanged if it is not a little-endian ELF64 file that is independent of
/// its address, with its program headers in front.
pub(crate) fn with_headers_last(runner: &[u8]) -> Cow<'_, [u8]> {
    moved(runner).map_or(Cow::Borrowed(runner), Cow::Owned)
}

fn moved(runner: &[u8]) -> Option<Vec<u8>> {
    // Magic, 64 bits, little-endian; then the type `ET_DYN`.
    if !runner.starts_with(b"\x7fELF\x02\x01") || u16_at(runner, 16)? != 3 {
        return None;
    }
    let (offset, size, count) = (u64_at(runner, 32)?, u16_at(runner, 54)?, u16_at(runner, 56)?);
    if offset != FILE_HEADER as u64 || usize::from(size) != PROGRAM_HEADER {
        return None;
    }
    let table = runner.get(FILE_HEADER..FILE_HEADER + usize::from(count) * PROGRAM_HEADER)?;
    let mut headers: Vec<Vec<u8>> = table.chunks(PROGRAM_HEADER).map(<[u8]>::to_vec).collect();
    let kind = |header: &[u8]| u32_at(header, 0);
    let last_load = headers.iter().rposition(|header| kind(header) == Some(PT_LOAD))?;
    // The end of the program in memory: `p_vaddr + p_memsz`.
    let end = u64_at(&headers[last_load], 16)?.checked_add(u64_at(&headers[last_load], 40)?)?;
    let at = end.checked_next_multiple_of(PAGE_MAX)?.max((runner.len() as u64).next_multiple_of(8));
    // More zeros than this are a file with another layout than linkers make.
    if runner.len() as u64 + 16 * PAGE_MAX < at {
        return None;
    }
    let bytes = (headers.len() as u64 + 1) * PROGRAM_HEADER as u64;
    let place = |header: &mut [u8]| {
        // `p_offset`, `p_vaddr`, `p_paddr`, `p_filesz`, `p_memsz`.
        for (field, value) in [(8, at), (16, at), (24, at), (32, bytes), (40, bytes)] {
            header[field..field + 8].copy_from_slice(&value.to_le_bytes());
        }
    };
    let mut own = vec![0; PROGRAM_HEADER];
    own[..4].copy_from_slice(&PT_LOAD.to_le_bytes());
    own[4..8].copy_from_slice(&PF_R.to_le_bytes());
    own[48..56].copy_from_slice(&u64_at(&headers[last_load], 48)?.to_le_bytes());
    place(&mut own);
    headers.iter_mut().filter(|header| kind(header) == Some(PT_PHDR)).for_each(|header| place(header));
    // Segments that are loaded stand in the order of their addresses.
    headers.insert(last_load + 1, own);

    let mut file = runner.to_vec();
    file.resize(at as usize, 0);
    file.extend(headers.concat());
    file[32..40].copy_from_slice(&at.to_le_bytes());
    file[56..58].copy_from_slice(&count.checked_add(1)?.to_le_bytes());
    Some(file)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
