//! Inputs that attack the command line: names, outputs that are inputs, sizes beyond any memory.

use std::path::Path;
use std::process::Command;

use onnx_suite::model::{Attr, Dim, Message, Model, info, node};
use types::{DType, Tensor};

use crate::executables::{compile, folder, output_of, program, text};

fn x(extents: &[i64]) -> Message {
    info("x", DType::F32, &extents.iter().map(|&extent| Dim::Is(extent)).collect::<Vec<_>>())
}

/// Runs `prestow` in a folder and returns exit code and standard error.
fn prestow(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let done = output_of(Command::new(program("prestow")).args(words).current_dir(folder));
    (done.status.code(), text(&done.stderr))
}

#[test]
fn output_never_replaces_an_input() {
    let folder = folder("inputs");
    let relu = Model::new(17, vec![x(&[2])], vec![node("Relu", &["x"], &["y"], &[])], "y").write();
    std::fs::write(folder.join("m.onnx"), &relu).expect("writable");
    std::os::unix::fs::symlink("m.onnx", folder.join("link")).expect("the folder takes links");
    let table = "id,lower,upper,size\na,0,1,4\n";
    std::fs::write(folder.join("t.csv"), table).expect("writable");
    for words in [
        &["compile", "m.onnx", "-o", "m.onnx"][..],
        &["compile", "m.onnx", "-o", "./m.onnx"],
        &["compile", "m.onnx", "-o", "link"],
        &["compile", "link.onnx/../m.onnx", "-o", "m.onnx"],
        &["export", "m.onnx"],
        &["arena", "t.csv", "-o", "t.csv"],
    ] {
        let (code, stderr) = prestow(&folder, words);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        let names_reason = stderr.contains("it is an input; name another output") || words[1].contains("..");
        assert!(names_reason, "{words:?}: {stderr}");
    }
    assert_eq!(std::fs::read(folder.join("m.onnx")).expect("it is there"), relu);
    assert_eq!(std::fs::read_to_string(folder.join("t.csv")).expect("it is there"), table);
    // A copy of the same content is another file.
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "other"]);
    assert_eq!(code, Some(0), "{stderr}");
}

/// An executable is the input of its own reports; a program is read by the system.
#[test]
fn output_never_replaces_the_running_program() {
    let folder = folder("own-program");
    let exe = compile(&folder, &["lenet"]);
    std::fs::hard_link(&exe, folder.join("hard")).expect("the folder takes links");
    std::os::unix::fs::symlink("model", folder.join("soft")).expect("the folder takes links");
    let before = std::fs::read(&exe).expect("it was written");
    for words in [
        &["memory", "--html", "model"][..],
        &["memory", "--csv", "hard"],
        &["memory", "--placement", "soft"],
        &["profile", "--iters", "1", "--trace", "./model"],
    ] {
        let done = output_of(Command::new(&exe).args(words).current_dir(&folder));
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains("; name another output"), "{words:?}: {}", text(&done.stderr));
    }
    assert!(before == std::fs::read(&exe).expect("it is there"), "the executable is another");
    let own = folder.join("prestow");
    for name in ["prestow", "prestow-runner"] {
        std::fs::copy(program(name), folder.join(name)).expect("writable");
    }
    let done = output_of(Command::new(&own).args(["compile", "lenet", "-o", "prestow"]).current_dir(&folder));
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("it is the running program; name another output"), "{}", text(&done.stderr));
}

#[test]
fn dump_of_a_graph_never_replaces_an_input() {
    let folder = folder("dump");
    let model = Model::new(17, vec![x(&[2])], vec![node("Relu", &["x"], &["y"], &[])], "y").write();
    std::fs::write(folder.join("m.onnx"), &model).expect("writable");
    std::fs::create_dir(folder.join("ir")).expect("writable");
    std::os::unix::fs::symlink("../m.onnx", folder.join("ir/00-load.txt")).expect("the folder takes links");
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "exe", "--dump-ir", "ir"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("00-load.txt") && stderr.contains("it is an input"), "{stderr}");
    assert_eq!(std::fs::read(folder.join("m.onnx")).expect("it is there"), model);
}

#[test]
fn outputs_of_one_command_are_distinct_files() {
    let folder = folder("same-output");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    std::fs::create_dir(folder.join("sub")).expect("writable");
    for command in [
        format!("'{exe}' memory --html out --csv ./out"),
        format!("'{exe}' memory --html out --placement sub/../out"),
        format!("'{prestow}' profile import '{exe}' --pprof out --tbd out"),
        format!("'{prestow}' what-if lenet --batch 1 --html out --csv out"),
        format!("'{prestow}' benchmark lenet --num_batches 2 --json out --raw out"),
    ] {
        let done = output_of(Command::new("sh").args(["-c", &command]).current_dir(&folder));
        assert_eq!(done.status.code(), Some(2), "{command}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains("two files"), "{command}: {}", text(&done.stderr));
        assert!(!folder.join("out").exists(), "{command}");
    }
}

/// A cache of tuning results and a dump are outputs as the executable is.
#[test]
fn executable_never_replaces_another_output_of_its_command() {
    let folder = folder("other-output");
    std::fs::write(folder.join("cache.tsv"), "# kept\n").expect("writable");
    for words in [
        &["compile", "lenet", "--tune=1", "--tune-cache", "cache.tsv", "-o", "./cache.tsv"][..],
        &["compile", "lenet", "--tune=1", "--tune-cache", "new.tsv", "-o", "./new.tsv"],
        &["benchmark", "lenet", "--num_batches", "2", "--raw", "r.jsonl", "--json", "./r.query.jsonl"],
    ] {
        let (code, stderr) = prestow(&folder, words);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains("must be two files"), "{words:?}: {stderr}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("cache.tsv")).expect("it is there"), "# kept\n");
    assert!(!folder.join("new.tsv").exists());
    let (code, stderr) = prestow(&folder, &["compile", "lenet", "--dump-ir", "ir", "-o", "ir/00-load.txt"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("it is another output; name another output"), "{stderr}");
    let dumped = std::fs::read_to_string(folder.join("ir/00-load.txt"));
    assert!(dumped.is_ok_and(|text| text.contains("lenet") || text.contains("conv")), "the dump is another");
}

/// What no kernel counts is refused by the name of the node: a window of 2^28 cells, an axis of 2^32.
#[test]
fn extents_beyond_a_kernel_are_errors_of_their_node() {
    let folder = folder("beyond-kernel");
    let pool = |name, value| vec![("kernel_shape", Attr::Ints(vec![2, 2])), (name, Attr::Ints(value))];
    let cases = [
        ("MaxPool", vec![1, 1, 8, 8], pool("strides", vec![(1 << 31) - 1, 1])),
        ("MaxPool", vec![1, 1, 8, 8], pool("strides", vec![1 << 28, 1])),
        ("AveragePool", vec![1, 1, 8, 8], pool("strides", vec![1, 1 << 31])),
        ("LpPool", vec![1, 1, 8, 8], pool("strides", vec![1 << 30; 2])),
        ("MaxPool", vec![1, 1, 1 << 28, 4], pool("strides", vec![1, 1])),
        ("ArgMax", vec![1 << 33, 2], vec![("axis", Attr::Int(0))]),
    ];
    for (op, extents, attributes) in cases {
        let nodes = vec![node(op, &["x"], &["y"], &attributes)];
        std::fs::write(folder.join("m.onnx"), Model::new(19, vec![x(&extents)], nodes, "y").write()).expect("writable");
        let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "exe"]);
        assert_eq!(code, Some(2), "{op} {extents:?}: {stderr}");
        assert!(stderr.contains("node `") && !stderr.contains("panicked"), "{op} {extents:?}: {stderr}");
    }
}

/// A FIFO without a writer is waited for, and `/dev/zero` has no end.
#[test]
fn data_set_of_a_fifo_or_a_device_is_refused() {
    let folder = folder("data-fifo");
    let made = Command::new("mkfifo").arg(folder.join("pipe.npz")).status();
    assert!(made.is_ok_and(|status| status.success()));
    for data in ["npz:pipe.npz", "csv:pipe.npz", "csv:/dev/zero", "npz:/dev/zero"] {
        let words = ["benchmark", "lenet", "--num_batches", "2", "--data", data];
        let mut command = Command::new("timeout");
        let done = output_of(command.arg("60").arg(program("prestow")).args(words).current_dir(&folder));
        assert_eq!(done.status.code(), Some(1), "{data}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains("it is not a regular file"), "{data}: {}", text(&done.stderr));
    }
}

#[test]
fn names_of_outputs_become_distinct_files_and_plain_text() {
    let folder = folder("names");
    let long = &*"L".repeat(300).leak();
    let outputs = ["a/b", "a_b", "../up", "red\u{1b}[31m", long];
    let nodes = outputs.iter().map(|name| node("Relu", &["x"], &[name], &[])).collect();
    let mut graph = Model::new(17, vec![x(&[2])], nodes, outputs[0]).graph();
    for name in &outputs[1..] {
        graph = graph.message(12, &Message::new().text(1, name));
    }
    let model = Message::new().int(1, 8).message(8, &Message::new().int(2, 17)).message(7, &graph).0;
    let path = folder.join("m.onnx");
    std::fs::write(&path, model).expect("writable");
    let exe = compile(&folder, &[path.to_str().expect("UTF-8")]);
    let done = output_of(Command::new(&exe).args(["run", "--output-dir", "out"]).current_dir(&folder));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let screen = text(&done.stdout);
    assert!(!screen.contains('\u{1b}') && screen.contains("red\\u001b[31m"), "{screen}");
    let entries = std::fs::read_dir(folder.join("out")).expect("it was made").map(|entry| entry.expect("readable"));
    assert_eq!(entries.count(), outputs.len());
    assert!(!folder.join("up.npy").exists(), "a name left the folder");
}

#[test]
fn long_name_is_cut_off_in_a_message() {
    let folder = folder("long-message");
    let model = Model::new(17, vec![x(&[2])], vec![node(&"R".repeat(1 << 20), &["x"], &["y"], &[])], "y").write();
    std::fs::write(folder.join("m.onnx"), model).expect("writable");
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "none"]);
    assert_eq!(code, Some(2));
    assert!(stderr.len() < 10_000 && stderr.contains("more characters)"), "{} bytes", stderr.len());
    assert!(stderr.starts_with("error: `m.onnx`: node "), "{}", &stderr[..100]);
}

#[test]
fn sizes_beyond_any_memory_are_errors_of_their_node() {
    let folder = folder("sizes");
    let pads = ("pads", Attr::Ints(vec![1; 4]));
    let pool = [("kernel_shape", Attr::Ints(vec![3, 3])), pads];
    let cases = [
        ("constant", node("ConstantOfShape", &["shape"], &["y"], &[]), "node `ConstantOfShape_0`: loading must take"),
        ("pool", node("MaxPool", &["x"], &["y"], &pool), "extents must be below 2^28"),
        ("resize", node("Resize", &["x", "", "scales"], &["y"], &[]), "extents must be below 2^22"),
    ];
    for (name, node, expected) in cases {
        let model = Model::new(17, vec![x(&[1, 1, 2, 1 << 33])], vec![node], "y")
            .with("shape", &Tensor::vector(vec![1i64 << 30]))
            .with("scales", &Tensor::vector(vec![1.0f32, 1.0, 1.0, 2.0]));
        std::fs::write(folder.join("m.onnx"), model.write()).expect("writable");
        let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "none", "--load-limit", "1GiB"]);
        assert_eq!(code, Some(2), "{name}: {stderr}");
        assert!(stderr.contains(expected), "{name}: {stderr}");
    }
    let (code, stderr) = prestow(&folder, &["compile", "lenet", "--shape", "input=1x1x4294967296x4294967296"]);
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn batch_and_shape_agree_or_are_refused() {
    let folder = folder("batches");
    let open = info("x", DType::F32, &[Dim::Named("N"), Dim::Named("L")]);
    let model = Model::new(17, vec![open], vec![node("Relu", &["x"], &["y"], &[])], "y").write();
    std::fs::write(folder.join("m.onnx"), model).expect("writable");
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "none", "--shape", "x=4x8", "--batch", "2"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("the shape [4,8] must begin with the batch, 2, or with N in its place"), "{stderr}");
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "two", "--shape", "x=Nx8", "--batch", "1,8"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = prestow(&folder, &["compile", "m.onnx", "-o", "none", "--shape", "x=Nx8"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("add --batch N"), "{stderr}");
}

#[test]
fn symbol_without_parameters_needs_no_arrays() {
    let folder = folder("symbol");
    let symbol = r#"{"nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "relu", "name": "y", "inputs": [[0, 0, 0]]}
    ], "heads": [[1, 0, 0]]}"#;
    std::fs::write(folder.join("net-symbol.json"), symbol).expect("writable");
    let (code, stderr) = prestow(&folder, &["compile", "net-symbol.json", "-o", "net", "--shape", "data=2x3"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = prestow(&folder, &["compile", "net-symbol.json", "-o", "net"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("variable `data`") && stderr.contains("--params NET-0000.params"), "{stderr}");
}

#[test]
fn exhausted_memory_is_an_error_and_no_abort() {
    let folder = folder("exhausted");
    let exe = compile(&folder, &["resnet18"]);
    // 60 MB of address space: the weights alone have 47 MB, which compiling copies.
    let limited = |program: &Path, words: &str| {
        let script = format!("ulimit -v 60000; exec '{}' {words}", program.display());
        let done = output_of(Command::new("sh").args(["-c", &script]).current_dir(&folder));
        (done.status.code(), text(&done.stderr))
    };
    let (code, stderr) = limited(&exe, "run");
    assert_eq!(code, Some(2), "{stderr}");
    let (code, stderr) = limited(&program("prestow"), "compile resnet18 -o none");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(!folder.join("none").exists());
}

/// The text of a command must not follow the bytes of a file that it writes to the same place.
#[test]
fn executable_that_is_written_to_standard_output_is_whole() {
    let folder = folder("standard-output");
    let prestow = program("prestow").display().to_string();
    let ways = [
        "-o /dev/stdout 2> text | cat > exe",
        "-o /dev/stdout > exe 2> text",
        "-o /proc/self/fd/1 2> text | cat > exe",
    ];
    for way in ways {
        let script = format!("rm -f exe; '{prestow}' compile lenet {way} && chmod +x exe && ./exe run --json");
        let done = output_of(Command::new("bash").args(["-o", "pipefail", "-c", &script]).current_dir(&folder));
        assert_eq!(done.status.code(), Some(0), "{way}: {}", text(&done.stderr));
        assert!(text(&done.stdout).contains("logits"), "{way}: {}", text(&done.stdout));
        let said = std::fs::read_to_string(folder.join("text")).expect("it was made");
        assert!(said.contains("lenet for cpu:x86-64"), "{way}: the text is on standard error: {said}");
    }
}

#[test]
fn report_that_is_written_to_standard_output_is_whole() {
    let folder = folder("report-output");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let script =
        format!("'{exe}' memory --csv /dev/stdout 2> text | cat > table; '{exe}' memory --csv other > /dev/null");
    let done = output_of(Command::new("bash").args(["-c", &script]).current_dir(&folder));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was made");
    assert_eq!(read("table"), read("other"));
    assert!(read("text").contains("arena"), "the report is on standard error");
}

/// A full disk or a closed reader: an error or an end, never a panic.
#[test]
fn standard_streams_that_cannot_be_written_are_errors() {
    let folder = folder("full");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    let (benchmark, uprd) = (format!("'{prestow}' benchmark lenet --num_batches 2"), program("uprd"));
    let short =
        ["--help", "--version", "help compile", "models", "version", "completions bash", "what-if lenet --batch 1"];
    let mut commands: Vec<String> = short.iter().map(|words| format!("'{prestow}' {words}")).collect();
    commands
        .extend(["", "run", "run --json", "--help", "memory --json"].iter().map(|words| format!("'{exe}' {words}")));
    commands.extend([benchmark.clone(), format!("'{}' --help", uprd.display())]);
    for command in &commands {
        let shell = |redirect: &str| {
            let script = format!("{command} {redirect}");
            output_of(Command::new("bash").args(["-o", "pipefail", "-c", &script]).current_dir(&folder))
        };
        let done = shell("> /dev/full");
        assert_eq!(done.status.code(), Some(2), "{command}: {}", text(&done.stderr));
        let done = shell("> /dev/null 2> /dev/full");
        assert_eq!(done.status.code(), Some(0), "{command}, full standard error");
    }
    // The reader goes away after a byte.
    let script = format!("{benchmark} | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}");
    let done = output_of(Command::new("bash").args(["-c", &script]).current_dir(&folder));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
}

/// A limit of file sizes is an error that names it, as a full disk is, and no signal.
#[test]
fn write_above_the_limit_of_file_sizes_is_an_error() {
    let folder = folder("size-limit");
    let exe = compile(&folder, &["lenet"]).display().to_string();
    let prestow = program("prestow").display().to_string();
    // bash counts blocks of 1024 bytes.
    let limited = |limit: u32, words: &str| {
        let script = format!("ulimit -f {limit}; exec {words}");
        output_of(Command::new("bash").args(["-c", &script]).current_dir(&folder))
    };
    let with_files = [
        (64, format!("'{prestow}' compile lenet -o new")),
        (1, format!("'{prestow}' export lenet -o new.onnx")),
        (1, format!("'{exe}' memory --html new.html")),
        (0, format!("'{exe}' run --output-dir new-folder")),
    ];
    let programs = [prestow, program("uprd").display().to_string(), program("prestow-gpu-check").display().to_string()];
    let with_output = programs.iter().map(|program| (0, format!("'{program}' --help > output")));
    let run = [(0, format!("'{exe}' run --json > output"))];
    for (limit, words) in with_files.into_iter().chain(with_output).chain(run) {
        let done = limited(limit, &words);
        assert_eq!(done.status.code(), Some(2), "{words}: {:?}: {}", done.status, text(&done.stderr));
        let said = text(&done.stderr);
        assert!(said.contains("error: cannot write") && said.contains("File too large"), "{words}: {said}");
    }
    let names = std::fs::read_dir(&folder).expect("it is there").map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["model", "new-folder", "output"], "neither a part of a file nor a temporary one stays");
    let inside = std::fs::read_dir(folder.join("new-folder")).expect("it was made").count();
    assert_eq!(inside, 0);
}
