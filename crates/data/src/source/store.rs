//! [`Store`]: the client of `prestow-store`, which reads objects in a process of its own.
//!
//! `tools/store/src/main.rs` describes requests and responses. Requests of several threads run at the same time: a thread of
//! the client gives each response to its request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of one request of [`Store::read_all`].
const PART_BYTES: u64 = 4 << 20;

/// Requests of [`Store::read_all`] at the same time.
const PARTS_AHEAD: usize = 4;

/// The most bytes of a response: of a list, since those of a read are known.
const RESPONSE_MAX: usize = 1 << 30;

type Response = Result<Vec<u8>, String>;

/// The objects below a URL.
pub(crate) struct Store {
    url: String,
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    waiting: Arc<Mutex<Waiting>>,
    list: OnceLock<Vec<(u64, String)>>,
}

/// The requests without a response.
#[derive(Default)]
struct Waiting {
    next_id: u64,
    senders: BTreeMap<u64, Sender<Response>>,
    /// Why no response can come any more.
    ended: Option<String>,
}

impl Store {
    /// Starts the program and waits until it accepts requests.
    ///
    /// # Errors
    /// A program that does not start or refuses the URL.
    pub(super) fn open(url: &str, program: Option<&Path>) -> Result<Store, String> {
        let program = program.map_or_else(find_program, Path::to_path_buf);
        let mut command = Command::new(&program);
        command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            format!(
                "cannot start `{}`, which reads URLs: {error}; `cargo xtask store` builds it, PRESTOW_STORE names it",
                program.display()
            )
        })?;
        let input = child.stdin.take().expect("it is piped");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        if output.read_line(&mut line).is_err() || line != "ready\n" {
            let mut words = String::new();
            let _ = child.stderr.take().expect("it is piped").read_to_string(&mut words);
            let _ = (child.kill(), child.wait());
            return Err(words.trim().trim_start_matches("error: ").to_string());
        }
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let own = waiting.clone();
        let started = std::thread::Builder::new().spawn(move || {
            let reason = deliver(&mut output, &own);
            let mut waiting = own.lock().expect("no holder of this lock panics");
            waiting.ended = Some(reason);
            // Every sender that is dropped is an error of its receiver.
            waiting.senders.clear();
        });
        if let Err(error) = started {
            let _ = (child.kill(), child.wait());
            return Err(format!("cannot start a thread that reads from `{}`: {error}", program.display()));
        }
        Ok(Store { url: url.into(), child, input: Mutex::new(Some(input)), waiting, list: OnceLock::new() })
    }

    /// The URL.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Size and name of each object, sorted by name, as at the first call.
    ///
    /// # Errors
    /// A store that does not answer.
    pub(super) fn list(&self) -> Result<Vec<(u64, String)>, String> {
        if let Some(rows) = self.list.get() {
            return Ok(rows.clone());
        }
        let text = String::from_utf8(self.ask(|id| format!("list {id}"))?).map_err(|error| error.to_string())?;
        let row = |line: &str| line.split_once('\t').and_then(|(size, name)| Some((size.parse().ok()?, name.into())));
        let rows: Option<Vec<(u64, String)>> = text.lines().map(row).collect();
        Ok(self.list.get_or_init(|| rows.unwrap_or_default()).clone())
    }

    /// The size of an object.
    ///
    /// # Errors
    /// An object that does not exist or cannot be read.
    pub(super) fn size(&self, name: &str) -> Result<u64, String> {
        let bytes = self.ask(|id| format!("size {id} {name}"))?;
        let size = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
        size.ok_or_else(|| "the store must state a size".to_string())
    }

    /// Exactly `length` bytes of an object, `length` >= 1.
    ///
    /// # Errors
    /// An object that ends before or cannot be read.
    pub(super) fn read(&self, name: &str, offset: u64, length: u64) -> Result<Vec<u8>, String> {
        finish(self.start_read(name, offset, length)?, length, self)
    }

    /// All `size` bytes of an object, by several requests at a time.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(super) fn read_all(&self, name: &str, size: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size as usize).map_err(|error| error.to_string())?;
        let parts: Vec<(u64, u64)> =
            (0..size).step_by(PART_BYTES as usize).map(|at| (at, PART_BYTES.min(size - at))).collect();
        for group in parts.chunks(PARTS_AHEAD) {
            let started = group.iter().map(|&(at, length)| Ok((self.start_read(name, at, length)?, length)));
            for (receiver, length) in started.collect::<Result<Vec<_>, String>>()? {
                bytes.extend(finish(receiver, length, self)?);
            }
        }
        Ok(bytes)
    }

    fn start_read(&self, name: &str, offset: u64, length: u64) -> Result<Receiver<Response>, String> {
        self.start(|id| format!("read {id} {offset} {length} {name}"))
    }

    fn ask(&self, request: impl Fn(u64) -> String) -> Response {
        self.start(request)?.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    fn start(&self, request: impl Fn(u64) -> String) -> Result<Receiver<Response>, String> {
        let (sender, receiver) = channel();
        let id = {
            let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
            if let Some(reason) = &waiting.ended {
                return Err(reason.clone());
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.senders.insert(id, sender);
            id
        };
        let line = request(id);
        if line.contains(['\n', '\r']) {
            return Err("the name of an object must not have a line break".into());
        }
        let mut input = self.input.lock().expect("no holder of this lock panics");
        match input.as_mut().map(|input| writeln!(input, "{line}")) {
            Some(Ok(())) => Ok(receiver),
            _ => Err(self.ended()),
        }
    }

    fn ended(&self) -> String {
        let waiting = self.waiting.lock().expect("no holder of this lock panics");
        waiting.ended.clone().unwrap_or_else(|| "prestow-store has ended".into())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It ends with its input, and has no state to save.
        if let Ok(mut input) = self.input.lock() {
            *input = None;
        }
        let _ = (self.child.kill(), self.child.wait());
    }
}

fn finish(receiver: Receiver<Response>, length: u64, store: &Store) -> Response {
    let bytes = receiver.recv().unwrap_or_else(|_| Err(store.ended()))?;
    match bytes.len() as u64 {
        found if found == length => Ok(bytes),
        found => Err(format!("the store returned {found} bytes, required {length}")),
    }
}

/// Gives responses to their requests until the output ends. Returns the reason of the end.
fn deliver(output: &mut BufReader<ChildStdout>, waiting: &Mutex<Waiting>) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        match output.read_line(&mut line) {
            Ok(0) => return "prestow-store has ended".into(),
            Err(error) => return format!("cannot read from prestow-store: {error}"),
            Ok(_) => {}
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let head = match words[..] {
            [word @ ("ok" | "error"), id, length] => {
                id.parse::<u64>().ok().zip(length.parse().ok()).map(|own| (word, own))
            }
            _ => None,
        };
        let Some((word, (id, length))) = head.filter(|(_, (_, length))| *length <= RESPONSE_MAX) else {
            return format!("prestow-store must print a response, printed `{}`", line.trim_end());
        };
        let mut body = vec![0; length];
        if let Err(error) = output.read_exact(&mut body) {
            return format!("prestow-store ended in a response: {error}");
        }
        let response = match word {
            "ok" => Ok(body),
            _ => Err(String::from_utf8_lossy(&body).into_owned()),
        };
        let sender = waiting.lock().expect("no holder of this lock panics").senders.remove(&id);
        // A request may have been given up.
        let _ = sender.map(|sender| sender.send(response));
    }
}

/// The program in the folder of this one; else the name, which is searched for in PATH.
fn find_program() -> PathBuf {
    let name = format!("prestow-store{}", std::env::consts::EXE_SUFFIX);
    let own = std::env::current_exe().ok().map(|path| path.with_file_name(&name));
    own.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}
