//! Writing and reading real files, folders, links, devices and FIFOs.

#![cfg(unix)]

use std::fs::{self, File};
use std::io::{Error, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use prestow_files::{Kind, is_same, is_same_output, open_regular, read, write, write_all, write_with};
use types::Bytes;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("prestow-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write_text(path: &Path, text: &str) -> Result<(), prestow_files::FileError> {
    write(path, text.as_bytes())
}

#[test]
fn file_and_missing_folders_are_created() {
    let folder = Folder::new("create");
    write_text(&folder.path("a/b/c.txt"), "text").unwrap();
    assert_eq!(fs::read_to_string(folder.path("a/b/c.txt")).unwrap(), "text");
}

#[test]
fn failed_write_keeps_the_old_file_and_leaves_no_other() {
    let folder = Folder::new("failed");
    write_text(&folder.path("f"), "old").unwrap();
    let error = write_with(&folder.path("f"), Kind::Data, |file| {
        file.write_all(b"ne")?;
        Err(Error::other("out of ink"))
    });
    assert!(error.unwrap_err().to_string().ends_with("/f`: out of ink"));
    assert_eq!(fs::read_to_string(folder.path("f")).unwrap(), "old");
    assert_eq!(folder.names(), ["f"]);
}

#[test]
fn symbolic_link_survives_and_its_target_is_replaced() {
    let folder = Folder::new("links");
    fs::create_dir(folder.path("d")).unwrap();
    fs::write(folder.path("d/target"), "old").unwrap();
    symlink("d/target", folder.path("link")).unwrap();
    symlink("link", folder.path("second")).unwrap();
    symlink("d/absent", folder.path("dangling")).unwrap();
    write_text(&folder.path("second"), "new").unwrap();
    write_text(&folder.path("dangling"), "made").unwrap();
    assert_eq!(fs::read_to_string(folder.path("d/target")).unwrap(), "new");
    assert_eq!(fs::read_to_string(folder.path("d/absent")).unwrap(), "made");
    assert!(
        folder.path("link").is_symlink() && folder.path("second").is_symlink() && folder.path("dangling").is_symlink()
    );
}

#[test]
fn link_to_itself_is_an_error() {
    let folder = Folder::new("loop");
    symlink("a", folder.path("a")).unwrap();
    assert!(write_text(&folder.path("a"), "text").is_err());
    assert_eq!(folder.names(), ["a"]);
}

#[test]
fn fifo_and_device_are_written_through() {
    let folder = Folder::new("fifo");
    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || {
            let mut text = String::new();
            File::open(fifo).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    });
    write_text(&fifo, "through").unwrap();
    assert_eq!(reader.join().unwrap(), "through");
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    symlink("/dev/null", folder.path("null")).unwrap();
    write_text(&folder.path("null"), "gone").unwrap();
    assert!(fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
    assert_eq!(folder.names(), ["fifo", "null"]);
}

#[test]
fn full_device_is_an_error() {
    assert!(write_text(Path::new("/dev/full"), "text").unwrap_err().to_string().contains("/dev/full"));
}

#[test]
fn folder_in_the_way_is_an_error() {
    let folder = Folder::new("folder");
    let error = write_text(&folder.0, "text").unwrap_err().to_string();
    assert!(error.ends_with("it is a folder"), "{error}");
}

#[test]
fn replaced_data_file_keeps_its_permissions_and_a_program_is_executable() {
    let folder = Folder::new("mode");
    write_text(&folder.path("f"), "old").unwrap();
    fs::set_permissions(folder.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
    write_text(&folder.path("f"), "new").unwrap();
    let mode = |name: &str| fs::metadata(folder.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("f"), 0o640);
    write_with(&folder.path("p"), Kind::Program, |file| file.write_all(b"#!/bin/sh\n")).unwrap();
    // The umask of this process may take bits of the group and of others.
    assert_eq!(mode("p") & 0o700, 0o700);
    let umask = mode("p") ^ 0o777;
    write_text(&folder.path("q"), "data").unwrap();
    assert_eq!(mode("q"), 0o666 & !umask);
}

#[test]
fn abandoned_temporary_file_is_removed_and_a_locked_one_stays() {
    let folder = Folder::new("abandoned");
    fs::write(folder.path(".prestow-1-0.part"), "left by a killed process").unwrap();
    let locked = File::create(folder.path(".prestow-2-0.part")).unwrap();
    locked.lock().unwrap();
    write_text(&folder.path("f"), "text").unwrap();
    assert_eq!(folder.names(), [".prestow-2-0.part", "f"]);
}

/// Whether the file system of a folder has files without names.
fn has_nameless_files(folder: &Path) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    cfg!(target_os = "linux") && open(folder, OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR).is_ok()
}

/// The test runs itself as the process that ends.
#[test]
fn process_that_ends_while_it_writes_leaves_nothing() {
    const NAME: &str = "process_that_ends_while_it_writes_leaves_nothing";
    const PATH: &str = "PRESTOW_TEST_ENDED";
    if let Some(path) = std::env::var_os(PATH) {
        // As after a signal, nothing is dropped.
        let ended = write_with(Path::new(&path), Kind::Program, |file| {
            file.write_all(b"half")?;
            std::process::exit(7)
        });
        return ended.unwrap();
    }
    let folder = Folder::new("ended");
    if !has_nameless_files(&folder.0) {
        return skip(NAME, "the file system has no files without names");
    }
    write_text(&folder.path("old"), "old").unwrap();
    for name in ["old", "new"] {
        let mut ends = Command::new(std::env::current_exe().unwrap());
        let ended = ends.args(["--exact", NAME]).env(PATH, folder.path(name)).output().unwrap();
        assert_eq!(ended.status.code(), Some(7));
        assert_eq!(folder.names(), ["old"]);
        assert_eq!(fs::read_to_string(folder.path("old")).unwrap(), "old");
    }
}

#[test]
fn replaced_file_does_not_hand_on_its_owners_rights() {
    let folder = Folder::new("rights");
    write_text(&folder.path("f"), "old").unwrap();
    fs::set_permissions(folder.path("f"), fs::Permissions::from_mode(0o6755)).unwrap();
    write_text(&folder.path("f"), "new").unwrap();
    assert_eq!(fs::metadata(folder.path("f")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn many_files_are_written_together_or_not_at_all() {
    let folder = Folder::new("many");
    let files = |last: &str| vec![(folder.path("a"), b"1".to_vec()), (folder.path(last), b"2".to_vec())];
    fs::create_dir(folder.path("d")).unwrap();
    assert!(write_all(&files("d")).is_err());
    assert_eq!(folder.names(), ["d"]);
    write_all(&files("b")).unwrap();
    assert_eq!(folder.names(), ["a", "b", "d"]);
}

#[test]
fn two_outputs_at_one_path_are_refused() {
    let folder = Folder::new("twice");
    fs::create_dir(folder.path("d")).unwrap();
    symlink("new", folder.path("link")).unwrap();
    for (first, second) in [("new", "new"), ("new", "d/../new"), ("new", "link"), ("link", "./new")] {
        let files = [(folder.path(first), b"1".to_vec()), (folder.path(second), b"2".to_vec())];
        let error = write_all(&files).unwrap_err().to_string();
        assert!(error.ends_with("another output has this path; name two files"), "{first}, {second}: {error}");
        assert_eq!(folder.names(), ["d", "link"], "{first}, {second}");
    }
    // The null device loses everything, so that two outputs there are no mistake.
    write_all(&[("/dev/null".into(), b"1".to_vec()), ("/dev/null".into(), b"2".to_vec())]).unwrap();
}

#[test]
fn two_outputs_are_one_file_before_they_exist() {
    let folder = Folder::new("same-output");
    fs::create_dir(folder.path("d")).unwrap();
    symlink("new", folder.path("link")).unwrap();
    symlink("d", folder.path("e")).unwrap();
    let is_same = |left: &str, right: &str| is_same_output(&folder.path(left), &folder.path(right));
    for (left, right) in
        [("new", "d/../new"), ("new", "link"), ("d/x", "e/x"), ("d/no/x", "e/no/x"), ("no/a/x", "no/a/x")]
    {
        assert!(is_same(left, right), "{left}, {right}");
    }
    for (left, right) in [("new", "other"), ("d/x", "x"), ("no/x", "d/no/x")] {
        assert!(!is_same(left, right), "{left}, {right}");
    }
    assert!(!is_same_output(Path::new("/dev/null"), Path::new("/dev/null")));
    write_text(&folder.path("a"), "text").unwrap();
    fs::hard_link(folder.path("a"), folder.path("b")).unwrap();
    assert!(is_same("a", "b"));
}

#[test]
fn name_of_the_longest_length_is_written() {
    let folder = Folder::new("long");
    write_text(&folder.path(&"n".repeat(255)), "text").unwrap();
    assert_eq!(folder.names()[0].len(), 255);
}

#[test]
fn endless_device_stops_at_the_limit() {
    let error = read(Path::new("/dev/zero"), Bytes(1000)).unwrap_err().to_string();
    assert!(error.contains("/dev/zero"), "{error}");
    assert_eq!(read(Path::new("/dev/null"), Bytes(0)).unwrap(), b"");
}

#[test]
fn file_longer_than_the_limit_is_refused_before_it_is_read() {
    let folder = Folder::new("limit");
    let file = File::create(folder.path("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = read(&folder.path("sparse"), Bytes(1 << 20)).unwrap_err().to_string();
    assert!(error.ends_with("it has 1024.00 GiB, the limit is 1.00 MiB"), "{error}");
}

#[test]
fn open_regular_refuses_a_fifo_without_waiting() {
    let folder = Folder::new("regular");
    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert!(open_regular(&fifo).unwrap_err().to_string().ends_with("it is not a regular file"));
    assert!(open_regular(&folder.0).is_err());
    write_text(&folder.path("f"), "text").unwrap();
    assert!(open_regular(&folder.path("f")).is_ok());
}

#[test]
fn same_file_is_recognized_through_links() {
    let folder = Folder::new("same");
    write_text(&folder.path("f"), "text").unwrap();
    write_text(&folder.path("g"), "text").unwrap();
    symlink("f", folder.path("soft")).unwrap();
    fs::hard_link(folder.path("f"), folder.path("hard")).unwrap();
    let same = |name: &str| is_same(&folder.path("f"), &folder.path(name));
    assert_eq!([same("f"), same("soft"), same("hard"), same("g"), same("absent")], [true, true, true, false, false]);
}

/// Counts a test as skipped, with the reason.
fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED: {test}: {reason}");
    if let Some(path) = std::env::var_os("PRESTOW_SKIPPED") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        writeln!(file.unwrap(), "{test}: {reason}").unwrap();
    }
}

/// The new bytes are on disk before they replace the old ones, and the name after that: a power failure leaves one of the
/// two files. The test runs itself under strace.
#[test]
fn file_is_flushed_before_its_rename_and_its_folder_after_it() {
    const NAME: &str = "file_is_flushed_before_its_rename_and_its_folder_after_it";
    const PATH: &str = "PRESTOW_TEST_FLUSHED";
    if let Some(path) = std::env::var_os(PATH) {
        return write_text(Path::new(&path), "new").unwrap();
    }
    let folder = Folder::new("flushed");
    let log = folder.path("calls");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-y", "-e", "trace=fsync,linkat,rename,renameat,renameat2", "-o"]).arg(&log);
    traced.arg(std::env::current_exe().unwrap()).args(["--exact", NAME]).env(PATH, folder.path("f"));
    let Ok(done) = traced.output() else { return skip(NAME, "strace is missing") };
    if String::from_utf8_lossy(&done.stderr).contains("PTRACE") {
        return skip(NAME, "this system does not permit ptrace");
    }
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert_eq!(fs::read_to_string(folder.path("f")).unwrap(), "new");
    let calls = fs::read_to_string(&log).unwrap();
    // A line is the number of a thread, the call, and with `-y` the path of its descriptor.
    let call = |line: &str| {
        let is_part = line.contains(".part");
        Some((line.split('(').next()?.split(' ').next_back()?.trim_end_matches("at2").to_string(), is_part))
    };
    let calls: Vec<(String, bool)> = calls.lines().filter_map(call).collect();
    // A file without a name gets one when it is complete.
    let expected = match has_nameless_files(&folder.0) {
        true => vec![("fsync", false), ("linkat", true), ("rename", true), ("fsync", false)],
        false => vec![("fsync", true), ("rename", true), ("fsync", false)],
    };
    assert_eq!(calls, expected.into_iter().map(|(name, part)| (name.to_string(), part)).collect::<Vec<_>>());
}
