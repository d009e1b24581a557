//! Data sets at URLs: `prestow-store` with a real S3-compatible server (moto), and a proxy between them that injects faults.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use prestow_data::{
    BatchInput, BatchOptions, Batcher, DataSpec, Dataset, ImageRecord, ImageTarget, OpenOptions, Position, Prefetcher,
    RecordFile, RecordWriter, Shuffle,
};
use types::{Shape, Tensor};

use crate::{Folder, fixture};

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Counts a test as skipped, with the reason.
fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED: {test}: {reason}");
    if let Some(path) = std::env::var_os("PRESTOW_SKIPPED") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        writeln!(file.unwrap(), "{test}: {reason}").unwrap();
    }
}

/// `prestow-store`, two folders above this test's program.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).unwrap().join("prestow-store")
}

/// A failure of the proxy in place of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The connection ends without a response.
    Close,
    /// The server is overloaded, in the form of S3.
    SlowDown,
    /// The connection ends in the middle of the body.
    Cut,
    /// The body is half as long as requested, and the head agrees with it.
    Halve,
}

/// The server, its files, and the proxy in front of it.
struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
    faults: Arc<Mutex<VecDeque<Fault>>>,
    /// The port of the proxy.
    port: u16,
}

impl Server {
    /// A server with the files of `folder`; `None` if its packages or `prestow-store` are missing, which is recorded.
    fn start(test: &str, folder: &Path) -> Option<Server> {
        let python = root().join("data/stores/bin/python");
        if !python.exists() {
            skip(test, "moto is missing; run `cargo xtask fetch`");
            return None;
        }
        if !program().exists() {
            skip(test, "prestow-store is missing; run `cargo xtask store`");
            return None;
        }
        let mut command = Command::new(python);
        command.arg(root().join("tests/peers/s3_server.py")).arg(folder.join("objects"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let upstream: u16 = line.trim().strip_prefix("ready ").expect("the server starts").parse().unwrap();
        let faults = Arc::new(Mutex::new(VecDeque::new()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = faults.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, faults) = (client.unwrap(), own.clone());
                std::thread::spawn(move || forward(client, upstream, &faults));
            }
        });
        Some(Server { child, input, output, folder: folder.to_path_buf(), faults, port })
    }

    fn inject(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    fn put(&mut self, name: &str, file: &Path) {
        writeln!(self.input, "put {name} {}", file.display()).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    /// The variables with which `prestow-store` finds the proxy.
    fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// A script that starts `prestow-store` with these variables, for a client in this process.
    fn store(&self) -> PathBuf {
        let path = self.folder.join("store.sh");
        let variables: String =
            self.environment().iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
        let text = format!("#!/bin/sh\n{variables}exec {} \"$@\"\n", program().display());
        fs::write(&path, text).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
        path
    }

    fn open(&self, text: &str) -> Result<Arc<dyn Dataset>, String> {
        open(text, Some(self.store()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// One request and its response, with the next fault if the request is for the bytes of an object.
fn forward(mut client: TcpStream, upstream: u16, faults: &Mutex<VecDeque<Fault>>) {
    let Some(request) = head(&mut client) else { return };
    let is_read = request.starts_with("GET ") && request.to_lowercase().contains("\r\nrange:");
    let fault = if is_read { faults.lock().unwrap().pop_front() } else { None };
    match fault {
        Some(Fault::Close) => return,
        Some(Fault::SlowDown) => {
            let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
            let head = format!("HTTP/1.1 503 Slow Down\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = client.write_all(format!("{head}{body}").as_bytes());
            return;
        }
        Some(Fault::Cut | Fault::Halve) | None => {}
    }
    let mut server = TcpStream::connect(("127.0.0.1", upstream)).unwrap();
    // One request a connection, so that a response ends with its connection.
    let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(request.as_bytes()).unwrap();
    let Some(mut response) = head(&mut server) else { return };
    let mut body = Vec::new();
    let _ = server.read_to_end(&mut body);
    if matches!(fault, Some(Fault::Cut | Fault::Halve)) {
        let whole = format!("Content-Length: {}", body.len());
        assert!(response.contains(&whole), "{response}");
        body.truncate(body.len() / 2);
        if fault == Some(Fault::Halve) {
            response = response.replace(&whole, &format!("Content-Length: {}", body.len()));
        }
    }
    let _ = client.write_all(response.as_bytes()).and_then(|()| client.write_all(&body));
}

/// The head of a request or response with its empty line.
fn head(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).ok()
}

fn open(text: &str, store: Option<PathBuf>) -> Result<Arc<dyn Dataset>, String> {
    let image = Some(ImageTarget { height: 8, width: 8, channels: 3 });
    let spec: DataSpec = text.parse().map_err(|error: prestow_data::DataError| error.to_string())?;
    let options = OpenOptions { image, store, ..OpenOptions::default() };
    spec.open(&options).map(Arc::from).map_err(|error| error.to_string())
}

/// Images and labels of all records in some order.
fn contents(dataset: &Arc<dyn Dataset>, shuffle: Shuffle, threads: usize) -> Result<Vec<Vec<Vec<u8>>>, String> {
    let fields = dataset.fields();
    let inputs = (0..2).map(|ix| BatchInput::new(ix, fields[ix].dtype, fields[ix].shape.clone())).collect();
    let options = BatchOptions { batch: 4, shuffle, ..BatchOptions::default() };
    let batcher = Arc::new(Batcher::new(dataset.clone(), inputs, options).map_err(|error| error.to_string())?);
    let mut prefetcher =
        Prefetcher::new(&batcher, Position::default(), threads, 4).map_err(|error| error.to_string())?;
    let batch = |_| prefetcher.next_batch().map(|batch| batch.inputs.clone()).map_err(|error| error.to_string());
    (0..batcher.batches()).map(batch).collect()
}

/// A RecordIO file of `count` JPEG files, each with `padding` bytes after its end, which decoders ignore.
fn write_records(path: &Path, count: usize, padding: usize, with_index: bool) {
    let tiny = RecordFile::open(&fixture("tiny.rec")).unwrap();
    let images: Vec<Vec<u8>> = (0..tiny.records()).map(|ix| tiny.read(ix).unwrap()).collect();
    let (mut writer, mut index) = (RecordWriter::new(Vec::new()), String::new());
    for ix in 0..count {
        let parsed = ImageRecord::parse(&images[ix % images.len()]).unwrap();
        let image = [parsed.image, &vec![ix as u8; padding]].concat();
        let record = ImageRecord { labels: vec![ix as f32], id: ix as u64, image: &image }.to_bytes();
        index += &format!("{ix}\t{}\n", writer.write(&record).unwrap());
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, writer.into_inner()).unwrap();
    if with_index {
        fs::write(path.with_extension("idx"), index).unwrap();
    }
}

#[test]
fn records_of_a_store_are_those_of_the_file() {
    let guard = Folder::new("stores-records");
    let folder = guard.0.clone();
    // More than a block of 4 MiB.
    write_records(&folder.join("objects/set/large.rec"), 48, 150_000, true);
    write_records(&folder.join("objects/set/with blank.rec"), 12, 0, false);
    let Some(server) = Server::start("records_of_a_store_are_those_of_the_file", &folder) else { return };
    let at = |name: &str| folder.join("objects/set").join(name).display().to_string();
    let port = server.port;
    for (local, urls) in [
        (
            at("large.rec"),
            vec!["s3://data/set/large.rec".to_string(), format!("http://127.0.0.1:{port}/data/set/large.rec")],
        ),
        (
            at("with blank.rec"),
            vec!["s3://data/set/with%20blank.rec".into(), format!("file://{}", at("with blank.rec"))],
        ),
    ] {
        for url in urls {
            for (shuffle, threads) in [(Shuffle::None, 1), (Shuffle::Seed(3), 4)] {
                let ours = contents(&server.open(&format!("rec:{url}")).unwrap(), shuffle, threads).unwrap();
                let own = contents(&open(&format!("rec:{local}"), None).unwrap(), shuffle, 1).unwrap();
                assert!(2 < own.len() && ours == own, "{url} {shuffle:?}");
            }
        }
    }
    let remote = server.open("rec:s3://data/set/large.rec").unwrap();
    assert_eq!((remote.shared_bytes(), remote.records()), (32 << 20, 48), "the cache is stated");
}

#[test]
fn faults_of_a_store_are_retried_and_never_truncate() {
    let guard = Folder::new("stores-faults");
    let folder = guard.0.clone();
    write_records(&folder.join("objects/x.rec"), 24, 100_000, true);
    write_records(&folder.join("other.rec"), 24, 100_001, true);
    let Some(mut server) = Server::start("faults_of_a_store_are_retried_and_never_truncate", &folder) else { return };
    let own =
        contents(&open(&format!("rec:{}", folder.join("objects/x.rec").display()), None).unwrap(), Shuffle::None, 1);
    let own = own.unwrap();
    let dataset = server.open("rec:s3://data/x.rec").unwrap();
    server.inject(&[Fault::Close, Fault::Cut, Fault::SlowDown, Fault::Cut, Fault::Cut, Fault::Close, Fault::Halve]);
    assert_eq!(contents(&dataset, Shuffle::None, 2).unwrap(), own);
    assert!(server.faults.lock().unwrap().is_empty(), "every fault was met");

    // A server that always returns less than it states.
    server.inject(&[Fault::Halve; 64]);
    let dataset = server.open("rec:s3://data/x.rec");
    let error = dataset.and_then(|dataset| contents(&dataset, Shuffle::None, 1)).unwrap_err();
    assert!(error.contains("`s3://data/x.") && error.contains("received "), "{error}");
    server.faults.lock().unwrap().clear();

    // Another object under the name: a mixture of both would be silent.
    let dataset = server.open("rec:s3://data/x.rec").unwrap();
    let mut image = vec![0; 8 * 8 * 3];
    dataset.read(0, None, &mut [&mut image, &mut [0; 4]]).unwrap();
    server.put("x.rec", &folder.join("other.rec"));
    let last = (0..24).rev().find_map(|ix| dataset.read(ix, None, &mut [&mut image, &mut [0; 4]]).err());
    match last {
        Some(error) => assert!(error.to_string().contains("the object changed while it was read"), "{error}"),
        None => panic!("some record is in no block that was fetched before"),
    }
}

#[test]
fn data_sets_of_every_kind_are_read_from_a_store() {
    let guard = Folder::new("stores-kinds");
    let folder = guard.0.clone();
    let objects = folder.join("objects");
    fs::create_dir_all(objects.join("digits")).unwrap();
    for content in ["images-idx3-ubyte", "labels-idx1-ubyte"] {
        let to = objects.join(format!("digits/train-{content}"));
        fs::copy(fixture(&format!("tiny-{}", content)), to).unwrap();
    }
    fs::write(objects.join("points.csv"), "a,b,class\n1,2,0\n3,4,1\n5,6,1\n7,8,0\n").unwrap();
    let tiny = RecordFile::open(&fixture("tiny.rec")).unwrap();
    for ix in 0..4 {
        let class = objects.join(format!("images/class{}", ix % 2));
        fs::create_dir_all(&class).unwrap();
        let record = tiny.read(ix % tiny.records()).unwrap();
        fs::write(class.join(format!("{ix}.jpg")), ImageRecord::parse(&record).unwrap().image).unwrap();
    }
    let array = Tensor::new(Shape::from([4, 3]), (0..12).map(|value| value as f32).collect()).unwrap();
    let labels = Tensor::vector(vec![3i64, 1, 2, 0]);
    let arrays = [("x".to_string(), array), ("y".to_string(), labels)];
    let arrays = weights::write(weights::TensorForm::Npz, &arrays.into()).unwrap();
    fs::write(objects.join("arrays.npz"), arrays).unwrap();
    let Some(server) = Server::start("data_sets_of_every_kind_are_read_from_a_store", &folder) else { return };
    for (kind, name) in [("idx", "digits"), ("csv", "points.csv"), ("images", "images"), ("npz", "arrays.npz")] {
        let own = open(&format!("{kind}:{}", objects.join(name).display()), None).unwrap();
        let remote = server.open(&format!("{kind}:s3://data/{name}")).unwrap();
        assert_eq!((remote.records(), remote.fields()), (own.records(), own.fields()), "{kind}");
        assert_eq!(contents(&remote, Shuffle::None, 1), contents(&own, Shuffle::None, 1), "{kind}");
    }
    let absent = server.open("rec:s3://data/absent.rec").err().unwrap();
    assert!(absent.starts_with("`s3://data/absent.rec`: not found"), "{absent}");
    let absent = server.open("rec:s3://nobucket/x.rec").err().unwrap();
    assert!(absent.contains("not found"), "{absent}");
}

/// A standard output that is a file above the limit of file sizes: an error and no signal.
#[test]
fn response_above_the_limit_of_file_sizes_is_an_error() {
    if !program().exists() {
        return skip(
            "response_above_the_limit_of_file_sizes_is_an_error",
            "prestow-store is missing; run `cargo xtask store`",
        );
    }
    let folder = Folder::new("size-limit");
    let script = format!("ulimit -f 0; exec '{}' http://127.0.0.1:1/ > output", program().display());
    let done = Command::new("bash").args(["-c", &script]).current_dir(&folder.0).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{:?}: {said}", done.status);
    assert!(said.contains("error: cannot answer: File too large"), "{said}");
}
