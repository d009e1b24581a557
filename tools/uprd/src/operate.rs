//! The commands of operators: one request each.

use std::fmt::Write;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use share::base;
use share::load::identify;
use share::wire::Ask;
use types::Bytes;

use crate::cli::{Command, PreloadArgs, TraceArgs};
use crate::{Failure, Place};

/// A load, a verification or a drain may take long.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Makes the request of a command; returns the text to print.
pub(crate) fn run(command: Command, place: &Place) -> Result<String, Failure> {
    if let Command::Preload(args) = &command {
        return preload(args, place);
    }
    let mut client = place.connect()?;
    let ask = match command {
        Command::Status(format) => {
            let status = json(&client.text(&Ask::Status)?.0)?;
            return Ok(if format.json { format!("{status:#}\n") } else { status_text(&status) });
        }
        Command::List(format) => {
            let rows = pages(&mut client, |from| Ask::List { from }, 0)?;
            return Ok(if format.json { format!("{:#}\n", Value::Array(rows)) } else { list_text(&rows) });
        }
        Command::History(args) => {
            let rows = pages(&mut client, |from| Ask::History { from }, args.from)?;
            return Ok(rows.iter().fold(String::new(), |text, row| text + &format!("{row}\n")));
        }
        Command::Config(args) => {
            let ask = match (args.budget, args.policy) {
                (None, None) => Ask::Settings,
                (budget, policy) => Ask::Configure {
                    limit: budget.map_or(0, |budget| budget.0),
                    policy: policy.map_or(String::new(), |policy| policy.name().into()),
                },
            };
            return Ok(format!("{:#}\n", json(&client.text(&ask)?.0)?));
        }
        Command::Pin(args) => Ask::Pin { model: args.model },
        Command::Unpin(args) => Ask::Unpin { model: args.model },
        Command::Evict(args) => Ask::Evict { model: args.model.model, drain: args.drain },
        Command::Verify(args) => Ask::Verify { model: args.model },
        Command::Drain => Ask::Drain,
        Command::Preload(_) | Command::Serve(_) | Command::Attach(_) | Command::Trace(_) => {
            unreachable!("these have functions of their own")
        }
    };
    client.done(&ask, &[], PATIENCE)?;
    Ok(String::new())
}

fn json(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Error(format!("the daemon's reply is not JSON: {error}")))
}

fn pages(client: &mut share::Client, ask: impl Fn(u64) -> Ask, from: u64) -> Result<Vec<Value>, Failure> {
    let (mut rows, mut from) = (Vec::new(), from);
    loop {
        let (text, next) = client.text(&ask(from))?;
        rows.extend(json(&text)?.as_array().cloned().unwrap_or_default());
        if next == 0 {
            return Ok(rows);
        }
        from = next;
    }
}

fn preload(args: &PreloadArgs, place: &Place) -> Result<String, Failure> {
    let given = args.file.clone().unwrap_or_else(|| PathBuf::from(&place.settings.model_name));
    let base = args.base.as_ref().unwrap_or(&place.settings.base_dir);
    let path = find(&given, base).map_err(Failure::Error)?;
    let error = |error: String| Failure::Error(format!("`{}`: {error}", path.display()));
    let file = files::open_regular(&path).map_err(|error| Failure::Error(error.to_string()))?;
    let granularity = args.granularity.unwrap_or(place.settings.granularity);
    let key = identify(&file, &path, granularity).map_err(|failure| error(failure.to_string()))?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&path));
    let ask = Ask::Preload { key, name, pin: !args.no_pin };
    place.connect()?.done(&ask, &[file.as_fd()], PATIENCE)?;
    Ok(String::new())
}

/// The name that a file is published under: without folders, and without the extension of tensor files.
pub(crate) fn name_of(path: &Path) -> String {
    let is_tensors = path.extension().is_some_and(|extension| base::EXTENSIONS.iter().any(|own| extension == *own));
    let name = if is_tensors { path.file_stem() } else { path.file_name() };
    name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The file of a path, or of a name in the base folder.
pub(crate) fn find(given: &Path, base: &Path) -> Result<PathBuf, String> {
    if given.is_file() {
        return Ok(given.into());
    }
    let name = given.display().to_string();
    if name.contains('/') {
        return Err(format!("there is no file `{name}`"));
    }
    let found = base::find(base, &name);
    found.ok_or_else(|| format!("there is no file `{name}`, and no model of that name in `{}`", base.display()))
}

/// Joins traces.
pub(crate) fn trace(args: &TraceArgs) -> Result<String, Failure> {
    let read = |path: &PathBuf| {
        let bytes = files::read(path, Bytes(1 << 30)).map_err(|error| Failure::Error(error.to_string()))?;
        let text = serde_json::from_slice(&bytes);
        text.map_err(|error| Failure::Error(format!("`{}` is not JSON: {error}", path.display())))
    };
    let traces: Result<Vec<Value>, Failure> = args.files.iter().map(read).collect();
    let merged = share::trace::merge(&traces?).map_err(Failure::Error)?;
    let written = files::write(&args.output, merged.to_string().as_bytes());
    written.map(|()| String::new()).map_err(|error| Failure::Error(error.to_string()))
}

/// A file for reading.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
    files::open_regular(path).map_err(|error| Failure::Error(error.to_string()))
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn status_text(status: &Value) -> String {
    let (mut text, bytes) = (String::new(), |pointer: &str| Bytes(number(status, pointer)));
    let host = |name: &str| bytes(&format!("/tiers/host/{name}"));
    let word = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or("?").to_string();
    let states = status["models"]
        .as_object()
        .map(|states| states.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(", "));
    let _ = writeln!(
        text,
        "state      {}, process {}, up {} s",
        word("/state"),
        status["process"],
        status["uptime_seconds"]
    );
    let _ = writeln!(text, "socket     {}", word("/socket"));
    let _ = writeln!(
        text,
        "host       {} of {} used, {} reserved by loads, policy {}",
        host("resident_bytes"),
        host("limit_bytes"),
        host("reserved_bytes"),
        word("/tiers/host/policy")
    );
    let _ = writeln!(
        text,
        "huge pages {} in pages of 2 MiB; the system's `shmem_enabled` is `{}`",
        host("huge_page_bytes"),
        word("/tiers/host/huge_pages")
    );
    let _ = writeln!(text, "shared     {} of tensors, {} saved by sharing", host("tensor_bytes"), host("saved_bytes"));
    let devices = status["tiers"]["devices"].as_array();
    for device in devices.into_iter().flatten() {
        let _ = writeln!(
            text,
            "device     {}: {} of {} used, {} reserved by loads, policy {}",
            device["device"].as_str().unwrap_or("?"),
            Bytes(number(device, "/resident_bytes")),
            Bytes(number(device, "/limit_bytes")),
            Bytes(number(device, "/reserved_bytes")),
            device["policy"].as_str().unwrap_or("?")
        );
    }
    let _ =
        writeln!(text, "models     {}", states.filter(|states| !states.is_empty()).unwrap_or_else(|| "none".into()));
    let _ = writeln!(text, "leases     {} of {} clients", status["leases"], status["clients"]);
    let _ = writeln!(
        text,
        "opens      {} on devices, {} resident, {} loaded, {} private while filling; {} loads, {} failed, {} evictions, {} refusals",
        status["opens"]["device"],
        status["opens"]["host"],
        status["opens"]["disk"],
        status["opens"]["filling"],
        status["loads"],
        status["load_failures"],
        status["evictions"],
        status["refusals"]
    );
    text
}

fn list_text(rows: &[Value]) -> String {
    let mut text = format!(
        "{:>6}  {:<10} {:<6} {:>12} {:>6} {:>8}  {:<22} {:<5} {}\n",
        "model", "state", "share", "bytes", "leases", "uses", "digest", "tier", "names"
    );
    for row in rows {
        let names: Vec<&str> = row["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let word = |name: &str| row[name].as_str().unwrap_or("?").to_string();
        let pin = if row["pinned"] == true { " (pinned)" } else { "" };
        let _ = writeln!(
            text,
            "{:>6}  {:<10} {:<6} {:>12} {:>6} {:>8}  {:<22} {:<5} {}{pin}",
            number(row, "/model"),
            word("state"),
            word("granularity"),
            Bytes(number(row, "/bytes")).to_string(),
            number(row, "/leases"),
            number(row, "/uses"),
            short(&word("digest")),
            if row["state"] == "EMPTY" { "-".into() } else { word("tier") },
            names.join(", ")
        );
    }
    text
}

/// The beginning of a digest, for people.
fn short(digest: &str) -> &str {
    digest.get(..DIGEST_SHOWN).unwrap_or(digest)
}

/// `blake3:` and 15 digits: a column of the list.
const DIGEST_SHOWN: usize = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_folders_and_extensions_of_tensor_files() {
        assert_eq!(name_of(Path::new("/a/resnet50")), "resnet50");
        assert_eq!(name_of(Path::new("a/w.safetensors")), "w");
        assert_eq!(name_of(Path::new("squeezenet1.1")), "squeezenet1.1");
    }

    #[test]
    fn name_that_is_nowhere_is_refused_with_the_folder() {
        let error = find(Path::new("nothing_1.0"), Path::new("/nowhere")).expect_err("there is none");
        assert_eq!(error, "there is no file `nothing_1.0`, and no model of that name in `/nowhere`");
    }
}
