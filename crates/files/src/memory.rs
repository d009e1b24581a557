//! How much memory a process may take here.

use std::fs;
use std::path::Path;

use types::Bytes;

/// The least of the machine's memory, the limits of the process's control groups and its limit of address space; `None` if
/// the system states none of them.
pub fn memory_limit() -> Option<Bytes> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total_memory(&text));
    let address_space = read(Path::new("/proc/self/limits")).and_then(|text| address_space(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let group_limits = group_files(&groups);
    let group_limits = group_limits.iter().filter_map(|path| read(Path::new(path))?.trim().parse().ok());
    machine.into_iter().chain(address_space).chain(group_limits).min().map(Bytes)
}

/// `MemTotal` of `/proc/meminfo`, which is in KiB.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of address space in `/proc/self/limits`; `None` if it is unlimited.
fn address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The files with the memory limits of the control groups in `/proc/self/cgroup` and of the groups above them, for both
/// versions of control groups.
fn group_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_texts_of_the_system() {
        assert_eq!(total_memory("MemTotal:       24679844 kB\nMemFree: 1 kB\n"), Some(24_679_844 * 1024));
        assert_eq!(total_memory("MemTotal: many\n"), None);
        let limits = "Max cpu time  unlimited unlimited seconds\nMax address space  1048576  unlimited  bytes\n";
        assert_eq!(address_space(limits), Some(1_048_576));
        assert_eq!(address_space("Max address space         unlimited            unlimited            bytes\n"), None);
    }

    #[test]
    fn limits_of_groups_above_count() {
        assert_eq!(
            group_files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(group_files("5:cpu,cpuacct:/x\n4:memory:/\n"), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        assert!(memory_limit().is_some_and(|limit| Bytes(1 << 20) < limit));
    }
}
