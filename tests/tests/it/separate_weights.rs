//! Executables with separate weights: the daemon packs them from a file of its base folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value as Json;
use share::Client;
use share::server::{Binding, Server, ServerOptions};
use share::wire::Ask;
use types::{DType, Shape, Tensor};
use weights::TensorForm;
use zoo::{Init, NetworkOptions, ParameterSource, Seeded, ZooError};

use crate::environment;
use crate::executables::{compile, folder, output_of, program, text};

/// Seeded parameters, which are kept by name.
struct Recorded(BTreeMap<String, Tensor>);

impl ParameterSource for Recorded {
    fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError> {
        let tensor = Seeded(1).take(name, shape, init)?;
        self.0.insert(name.to_string(), tensor.clone());
        Ok(tensor)
    }
}

/// The parameters of a network of the zoo.
fn parameters(network: &str) -> BTreeMap<String, Tensor> {
    let mut recorded = Recorded(BTreeMap::new());
    zoo::build(network, 1, &mut recorded, &NetworkOptions::default()).expect("the zoo has it");
    recorded.0
}

fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) {
    let form = TensorForm::of(&path.display().to_string()).expect("its extension is one of the three");
    let bytes = weights::write(form, tensors).expect("the tensors can be written");
    std::fs::write(path, bytes).expect("the folder is writable");
}

/// A daemon in this process, with a base folder.
struct Daemon {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(folder: &Path, base: Option<&Path>) -> Daemon {
        let socket = folder.join("run/uprd.sock");
        let binding = Binding::new(&socket, false).expect("the folder is fresh");
        let options = ServerOptions { base: base.map(PathBuf::from), ..ServerOptions::new(1 << 30) };
        let run = move || Server::new(binding, options, None).expect("there are descriptors").run().expect("it serves");
        Daemon { socket, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let drained = Client::connect(&self.socket, true)
            .and_then(|mut client| client.done(&Ask::Drain, &[], Duration::from_secs(20)));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!((drained.is_ok() && matches!(ended, Some(Ok(())))) || std::thread::panicking());
    }
}

fn run(exe: &Path, socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(exe);
    command.args(["run", "--json", "--values", "all"]).args(words).env("UPRD_SOCKET", socket);
    output_of(&mut command)
}

fn done(output: &Output) -> Json {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    text(&output.stderr)
}

/// Compiles a network with separate weights. Returns the executable and the compiler's account of it.
fn compile_separate(folder: &Path, words: &[&str]) -> (PathBuf, Json) {
    let exe = folder.join("separate");
    let mut command = Command::new(program("prestow"));
    command.arg("compile").args(words).args(["--separate-weights", "--json", "-o"]).arg(&exe);
    let report = done(&output_of(&mut command));
    (exe, report["separate_weights"].clone())
}

#[test]
fn executable_without_weights_runs_by_a_daemon_that_packs_them_from_each_format() {
    for (network, extension, stored) in [
        ("lenet", "npz", None),
        ("squeezenet1_1", "params", None),
        ("mobilenet_v2", "safetensors", None),
        ("squeezenet1_1", "npz", Some("int8")),
        ("lenet", "params", Some("bf16")),
    ] {
        let folder = folder(&format!("separate-{network}-{extension}"));
        let base = folder.join("base");
        std::fs::create_dir(&base).expect("the folder is writable");
        let file = base.join(format!("{network}.{extension}"));
        write(&file, &parameters(network));
        let file = file.to_str().expect("it is text");
        let mut words = vec![network, "--weights", file];
        words.extend(stored.iter().flat_map(|format| ["--weights", *format]));
        let whole = compile(&folder, &words);
        let (exe, account) = compile_separate(&folder, &words);
        let length = |path: &Path| std::fs::metadata(path).expect("it was written").len();
        let bytes = |name: &str| account[name].as_u64().expect("a number");
        assert!(bytes("kept_bytes") * 50 < bytes("bytes"), "{network}: {account}");
        assert!(length(&exe) + bytes("bytes") * 9 / 10 < length(&whole), "{network}");

        let daemon = Daemon::start(&folder, Some(&base));
        let private = done(&run(&whole, &daemon.socket, &["--weights-from", "private"]));
        let shared = done(&run(&exe, &daemon.socket, &[]));
        assert_eq!(shared["weights"]["from"], "uprd");
        assert_eq!((&shared["outputs"], shared["outputs"].is_array()), (&private["outputs"], true), "{network}");
        // It is the model of the executable with weights: that one attaches to the same memory.
        let attached = done(&run(&whole, &daemon.socket, &["--weights-from", "uprd"]));
        assert_eq!(attached["weights"]["model"], shared["weights"]["model"]);
        assert_eq!(attached["weights"]["tier"], "host");
    }
}

#[test]
fn layers_of_executables_with_separate_weights_are_shared() {
    let folder = folder("separate-layers");
    let base = folder.join("base");
    std::fs::create_dir(&base).expect("the folder is writable");
    let file = base.join("lenet.safetensors");
    write(&file, &parameters("lenet"));
    let file = file.to_str().expect("it is text");
    let whole = compile(&folder, &["lenet", "--weights", file, "--batch", "2"]);
    let (exe, _) = compile_separate(&folder, &["lenet", "--weights", file, "--batch", "1,2"]);
    let daemon = Daemon::start(&folder, Some(&base));
    let layer = |exe: &Path| {
        let mut command = Command::new(exe);
        command.args(["run", "--json", "--values", "all", "--weights-from", "uprd"]);
        command.env("UPRD_SOCKET", &daemon.socket).env("UPR_SHARING_GRANULARITY", "layer");
        done(&output_of(&mut command))
    };
    let held = || {
        let mut client = Client::connect(&daemon.socket, true).expect("it listens");
        let (status, _) = client.text(&Ask::Status).expect("it answers");
        let status: Json = serde_json::from_str(&status).expect("it is JSON");
        status["tiers"]["host"]["tensor_bytes"].as_u64().expect("it is a number")
    };
    assert_eq!(layer(&exe)["weights"]["granularity"], "layer");
    let once = held();
    assert_eq!(layer(&whole)["weights"]["granularity"], "layer");
    assert!(0 < once && held() == once, "the tensors of both are the same, and held once: {once}, then {}", held());
}

/// The command of an executable, with weights of the daemon at `socket`.
fn command(exe: &Path, socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(exe);
    output_of(command.args(words).env("UPRD_SOCKET", socket).env("UPR_SHARING_GRANULARITY", "layer"))
}

#[test]
fn commands_that_read_no_weights_need_no_daemon_and_others_attach() {
    let folder = folder("separate-commands");
    let base = folder.join("base");
    std::fs::create_dir(&base).expect("the folder is writable");
    let file = base.join("lenet.safetensors");
    write(&file, &parameters("lenet"));
    let words = ["lenet", "--weights", file.to_str().expect("it is text")];
    let whole = compile(&folder, &words);
    let (exe, _) = compile_separate(&folder, &words);

    let nowhere = folder.join("nowhere.sock");
    for words in [&["describe"][..], &["describe", "--json"], &["memory", "--json"], &["memory", "--view", "map"]] {
        let [own, other] = [&exe, &whole].map(|exe| command(exe, &nowhere, words));
        assert!(own.status.success() && !own.stdout.is_empty(), "{words:?}: {}", text(&own.stderr));
        assert_eq!(text(&own.stdout), text(&other.stdout), "{words:?}");
    }
    let mut other = Command::new(program("prestow"));
    let placed = output_of(other.args(["profile", "import"]).arg(&exe));
    assert!(placed.status.success(), "{}", text(&placed.stderr));
    assert!(refusal(&command(&exe, &nowhere, &["weights", "-o", "x.npz"])).contains("no training step"));

    let daemon = Daemon::start(&folder, Some(&base));
    for words in [&["bench", "--iters", "1", "--json"][..], &["profile", "--iters", "1", "--json"], &["--json"]] {
        done(&command(&exe, &daemon.socket, words));
    }
    let measured = done(&command(&exe, &daemon.socket, &["memory", "--actual", "--json"]));
    let resident = measured["actual"]["planned_resident"].as_array().expect("it is a list");
    assert!(resident.iter().any(|item| item["what"] == "weights of the daemon"), "{resident:?}");
}

#[test]
fn weights_that_are_absent_or_others_are_refused() {
    let folder = folder("separate-refused");
    let [base, empty] = ["base", "empty"].map(|name| folder.join(name));
    [&base, &empty].into_iter().for_each(|path| std::fs::create_dir(path).expect("the folder is writable"));
    let file = base.join("lenet.safetensors");
    let mut tensors = parameters("lenet");
    write(&file, &tensors);
    let words = ["lenet", "--weights", file.to_str().expect("it is text")];
    let (exe, _) = compile_separate(&folder, &words);

    let nowhere = folder.join("nowhere.sock");
    let text = refusal(&run(&exe, &nowhere, &[]));
    assert!(text.contains("has no weights of its own") && text.contains("uprd serve --base DIR"), "{text}");
    assert!(refusal(&run(&exe, &nowhere, &["--weights-from", "private"])).contains("no weights of its own"));
    for words in [&["bench", "--iters", "1"][..], &["profile", "--iters", "1"], &["memory", "--actual"], &[]] {
        let refused = refusal(&output_of(Command::new(&exe).args(words).env("UPRD_SOCKET", &nowhere)));
        assert!(refused.contains("no weights of its own"), "{words:?}: {refused}");
    }
    {
        let daemon = Daemon::start(&folder, Some(&empty));
        let text = refusal(&run(&exe, &daemon.socket, &[]));
        assert!(text.contains("NOT_FOUND") && text.contains("no file of weights named `lenet`"), "{text}");
    }
    {
        let daemon = Daemon::start(&folder, None);
        assert!(refusal(&run(&exe, &daemon.socket, &[])).contains("--base DIR"));
    }
    let daemon = Daemon::start(&folder, Some(&base));
    let (name, tensor) = tensors.pop_first().expect("it has parameters");
    write(&file, &tensors);
    let text = refusal(&run(&exe, &daemon.socket, &[]));
    assert!(text.contains("STALE") && text.contains(&format!("it has no tensor `{name}`")), "{text}");
    let mut items = tensor.to_le_bytes();
    items[0] ^= 1;
    let other = Tensor::from_le_bytes(DType::F32, tensor.shape().clone(), &items).expect("as many bytes");
    tensors.insert(name.clone(), other);
    write(&file, &tensors);
    let text = refusal(&run(&exe, &daemon.socket, &[]));
    assert!(text.contains("STALE") && text.contains("other weights than the executable was compiled with"), "{text}");
    tensors.insert(name.clone(), Tensor::full(Shape::from([3]), 1.0f32));
    write(&file, &tensors);
    assert!(refusal(&run(&exe, &daemon.socket, &[])).contains("STALE"));
    std::fs::write(&file, b"{}").expect("the folder is writable");
    assert!(refusal(&run(&exe, &daemon.socket, &[])).contains("does not serve"));
    tensors.insert(name, tensor);
    write(&file, &tensors);
    assert_eq!(done(&run(&exe, &daemon.socket, &[]))["weights"]["from"], "uprd");
}

#[test]
fn separate_weights_need_a_file_and_no_training() {
    let folder = folder("separate-flags");
    let error = |words: &[&str]| {
        let mut command = Command::new(program("prestow"));
        command.arg("compile").args(words).arg("--separate-weights").arg("-o").arg(folder.join("model"));
        refusal(&output_of(&mut command))
    };
    assert!(error(&["lenet"]).contains("needs a file of weights"));
    assert!(error(&["lenet", "--weights", "w.pth"]).contains("safetensors, npz or params"));
    assert!(error(&["mnist_cnn", "--train", "--weights", "w.npz"]).contains("exclude each other"));
}

/// The share of constants with recipes, by network: `PRESTOW_SEPARATE=resnet18,bert_base` or `all`. Its table is in the
/// measurements; without the variable one network is checked.
#[test]
fn constants_of_networks_have_recipes() {
    let given = environment("PRESTOW_SEPARATE").unwrap_or_else(|| "resnet18".to_string());
    let names: Vec<&str> = match &*given {
        "all" => zoo::list().iter().map(|spec| spec.name).collect(),
        names => names.split(',').collect(),
    };
    let folder = folder("separate-zoo");
    println!("| network | constants | MB | with recipe, % of bytes | executable keeps, KB |");
    for name in names {
        let file = folder.join("weights.safetensors");
        write(&file, &parameters(name));
        let (exe, account) = compile_separate(&folder, &[name, "--weights", file.to_str().expect("it is text")]);
        let number = |name: &str| account[name].as_u64().expect("a number");
        let (bytes, kept) = (number("bytes"), number("kept_bytes"));
        let percent = 100.0 * (bytes - kept) as f64 / bytes as f64;
        let (constants, bytes, kept) = (number("constants"), bytes as f64 / 1e6, kept as f64 / 1e3);
        println!("| {name} | {constants} | {bytes:.1} | {percent:.2} | {kept:.1} |");
        std::fs::remove_file(exe).expect("it was written");
        assert!(given != "resnet18" || 99.9 < percent, "{account}");
    }
}
