//! Resident memory of this process by kind, from the operating system. Linux only.

use std::ops::Range;

/// Resident memory of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident now.
    pub rss_bytes: u64,
    /// The peak of resident memory.
    pub peak_rss_bytes: u64,
    /// Resident, private and written to.
    pub private_dirty_bytes: u64,
    /// Resident memory by kind; adds up to `rss_bytes`.
    pub items: Vec<MemoryItem>,
    /// Bytes of constants that the last run read, if it reads any.
    pub read_in_run: Option<u64>,
    /// Used memory of a device, if it has its own.
    pub device: Vec<MemoryItem>,
    /// Of these, bytes that a run took.
    pub device_in_run: u64,
    /// Memory of processes as a device's management reports it, if it has one.
    pub device_usage: DeviceUsage,
}

/// Memory of whole processes as a device's management reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// The reported figures.
    pub items: Vec<MemoryItem>,
    /// The figures that it does not report.
    pub unavailable: Vec<Unavailable>,
    /// The number of driver allocations in a run, if known.
    pub allocations_in_run: Option<u64>,
}

/// A figure that is unavailable, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The figure.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// Resident bytes of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryItem {
    /// Their kind.
    pub what: String,
    /// How they were measured.
    pub method: String,
    /// Their number.
    pub bytes: u64,
}

/// Reads the memory of this process. `known` names address ranges of the caller, such as the arena and the mapped image.
/// `None` if the system does not report it.
pub fn memory(known: &[(&str, Range<usize>)]) -> Option<ProcessMemory> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let exe = std::fs::read_link("/proc/self/exe").map(|path| path.display().to_string()).unwrap_or_default();
    let mut memory = parse_smaps(&smaps, known, &exe);
    memory.peak_rss_bytes = field_kib(&status, "VmHWM:").unwrap_or(0) * 1024;
    // The kernel samples the peak, which may lag behind the sum of the mappings.
    memory.peak_rss_bytes = memory.peak_rss_bytes.max(memory.rss_bytes);
    Some(memory)
}

/// Sums the mappings of `/proc/PID/smaps` by kind.
fn parse_smaps(smaps: &str, known: &[(&str, Range<usize>)], exe: &str) -> ProcessMemory {
    let mut memory = ProcessMemory::default();
    let (mut what, mut method) = (String::new(), "");
    // The end of the last guard page: a short mapping without permissions. Thread stacks are above one.
    let mut guard_end = None;
    for line in smaps.lines() {
        if let Some((range, name)) = parse_header(line) {
            let is_stack = guard_end == Some(range.start);
            let is_guard = line.split(' ').nth(1) == Some("---p") && range.len() <= GUARD_MAX && name.is_empty();
            guard_end = is_guard.then_some(range.end);
            (what, method) = kind(&range, name, is_stack, known, exe);
        } else if let Some(kib) = field_kib(line, "Rss:") {
            memory.rss_bytes += kib * 1024;
            match memory.items.iter_mut().find(|item| item.what == what) {
                Some(item) => item.bytes += kib * 1024,
                None => {
                    memory.items.push(MemoryItem { what: what.clone(), method: method.to_string(), bytes: kib * 1024 })
                }
            }
        } else if let Some(kib) = field_kib(line, "Private_Dirty:") {
            memory.private_dirty_bytes += kib * 1024;
        }
    }
    memory.items.retain(|item| 0 < item.bytes);
    memory.items.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.what.cmp(&b.what)));
    memory
}

/// The address range and name of a mapping, if the line begins one.
fn parse_header(line: &str) -> Option<(Range<usize>, &str)> {
    let (start, rest) = line.split_once('-')?;
    let (end, rest) = rest.split_once(' ')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    // Permissions, offset, device and inode are between the range and the name.
    let name = rest.split_whitespace().nth(4).map_or("", |_| rest.splitn(5, ' ').nth(4).unwrap_or("").trim_start());
    Some((range, name))
}

/// The kind of memory that the daemon `uprd` shares.
pub const SHARED_WEIGHTS: &str = "weights of the daemon";

/// The maximum size of a guard page.
const GUARD_MAX: usize = 64 << 10;

/// The kind of a mapping, and how it was found.
fn kind(
    range: &Range<usize>,
    name: &str,
    is_stack: bool,
    known: &[(&str, Range<usize>)],
    exe: &str,
) -> (String, &'static str) {
    if let Some((what, _)) = known.iter().find(|(_, known)| known.start < range.end && range.start < known.end) {
        return ((*what).to_string(), "Rss of the mapping that holds its address");
    }
    let (what, method) = match name {
        "[heap]" => ("heap", "Rss of the mapping [heap]"),
        "[stack]" => ("stack of the main thread", "Rss of the mapping [stack]"),
        "" if is_stack => ("stacks of other threads", "Rss of anonymous mappings above a guard page"),
        "" => ("anonymous memory", "Rss of mappings without a name: large heap blocks, the allocator's own"),
        name if name.starts_with("/memfd:uprd") => (SHARED_WEIGHTS, "Rss of mappings of the daemon's sealed memory"),
        name if name.starts_with('[') => ("kernel pages (vdso, vvar)", "Rss of mappings in brackets"),
        name if name == exe => ("code and data of the executable", "Rss of mappings of its file, except the image"),
        name if name.contains(".so") => ("shared libraries", "Rss of mappings of .so files"),
        _ => ("other files", "Rss of mappings of other files"),
    };
    (what.into(), method)
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_mappings_by_kind() {
        let smaps = "\
            1000-3000 r-xp 00000000 08:01 42                         /bin/model\n\
            Rss:                   8 kB\nPrivate_Dirty:         0 kB\n\
            8000-9000 rw-p 00000000 00:00 0 \n\
            Rss:                   4 kB\nPrivate_Dirty:         4 kB\n\
            a000-b000 rw-p 00000000 00:00 0                          [heap]\n\
            Rss:                  12 kB\nPrivate_Dirty:        12 kB\n\
            c000-d000 r--p 00000000 08:01 43                         /lib/libc.so.6\n\
            Rss:                  16 kB\nPrivate_Dirty:         0 kB\n\
            d000-e000 ---p 00000000 00:00 0 \n\
            Rss:                   0 kB\nPrivate_Dirty:         0 kB\n\
            e000-f000 rw-p 00000000 00:00 0 \n\
            Rss:                   2 kB\nPrivate_Dirty:         2 kB\n\
            10000-11000 r--s 00000000 00:01 44                       /memfd:uprd-section (deleted)\n\
            Rss:                   1 kB\nPrivate_Dirty:         0 kB\n";
        let memory = parse_smaps(smaps, &[("arena", 0x8000..0x8800)], "/bin/model");
        assert_eq!((memory.rss_bytes, memory.private_dirty_bytes), (43 * 1024, 18 * 1024));
        let items: Vec<(&str, u64)> = memory.items.iter().map(|item| (&item.what[..], item.bytes / 1024)).collect();
        assert_eq!(
            items,
            [
                ("shared libraries", 16),
                ("heap", 12),
                ("code and data of the executable", 8),
                ("arena", 4),
                ("stacks of other threads", 2),
                (SHARED_WEIGHTS, 1)
            ]
        );
    }

    #[test]
    fn items_add_up_to_resident_memory() {
        let memory = memory(&[]).expect("Linux has /proc/self/smaps");
        assert_eq!(memory.items.iter().map(|item| item.bytes).sum::<u64>(), memory.rss_bytes);
        assert!(0 < memory.rss_bytes && memory.rss_bytes <= memory.peak_rss_bytes);
    }
}
