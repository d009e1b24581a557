//! Training: the step of a symbol against MXNet's recorded losses, and executables that train, stop, continue and refuse.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use compiler::compile_training;
use compiler::source::{Request, load_trainable};
use lower::cpu::CpuTarget;
use passes::training::{Optimizer, Recipe};
use serde_json::Value as Json;
use types::{Shape, Tensor};
use weights::npy;

use crate::executables::{compile, folder, json, output_of, program, text};
use crate::support::{difference, open, root};

fn recorded(name: &str) -> PathBuf {
    root().join("tests/data/mxnet").join(name)
}

/// `mnist_cnn-symbol.json` with its arrays and a recipe.
fn step_of_symbol(optimizer: &str) -> [compiler::Compiled; 2] {
    let request = Request {
        model: recorded("mnist_cnn-symbol.json").display().to_string(),
        params: Some(recorded("mnist_cnn-0000.params")),
        shapes: BTreeMap::from([("data".to_string(), Shape::from([4, 1, 28, 28]))]),
        ..Request::default()
    };
    let optimizer: Optimizer = optimizer.parse().expect("an optimizer");
    let recipe = Recipe { loss: "softmax_cross_entropy".parse().ok(), optimizer, ..Recipe::default() };
    let model = load_trainable(&request).expect("the symbol is in the repository");
    compile_training(model, &recipe, &CpuTarget::new(), compiler::Goal::default(), |_, _| {})
        .expect("the step compiles")
}

#[test]
fn mnist_cnn_trains_step_by_step_as_in_mxnet() {
    let [step, evaluation] = step_of_symbol("adam:lr=1e-3,epsilon_hat");
    let reference = std::fs::read(recorded("mnist_cnn_train_ref.json")).expect("it is in the repository");
    let reference: Json = serde_json::from_slice(&reference).expect("JSON");
    let labels: Vec<i64> = reference["label"].as_array().unwrap().iter().map(|label| label.as_i64().unwrap()).collect();
    let label = Tensor::vector(labels.iter().map(|&label| label as i32).collect::<Vec<i32>>());
    let input = std::fs::read(recorded("mnist_cnn_input.npy")).expect("it is in the repository");
    let input = npy::read(&input).expect("an npy file");
    let (mut training, mut evaluating) = (open(&step, 2), open(&evaluation, 2));
    for (number, want) in (1i64..).zip(reference["loss_per_sample_by_step"].as_array().unwrap()) {
        train::copy_states(&training, &mut evaluating).expect("the states have the same names");
        let outputs = evaluating.run_tensors(&[input.clone(), label.clone()]).expect("the inputs fit");
        let want: Vec<f32> = want.as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap() as f32).collect();
        let want = Tensor::vector(want);
        let got = outputs.last().expect("the loss is the last output");
        assert_eq!(difference(got, &want, 1e-4, 1e-5), None, "losses before step {number}");
        let scalars = [Tensor::scalar(1e-3f32), Tensor::scalar(number)];
        let inputs = [vec![input.clone(), label.clone()], scalars.to_vec()].concat();
        let outputs = training.run_tensors(&inputs).expect("the inputs fit");
        let mean = want.to_f64().iter().sum::<f64>() / 4.0;
        let got = outputs[0].to_f64()[0];
        assert!((got - mean).abs() < 1e-4 * mean, "step {number}: loss {got}, not {mean}");
    }
}

/// The executable that trains mnist_cnn in batches of 100.
fn mnist(name: &str) -> (PathBuf, PathBuf) {
    let folder = folder(name);
    let exe = compile(&folder, &["mnist_cnn", "--train", "--batch", "100"]);
    (exe, folder)
}

fn digits() -> String {
    format!("--data=idx:{}", root().join("tests/data/mnist10k").display())
}

/// Exit code, standard output and standard error.
fn run(exe: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let done = output_of(Command::new(exe).args(words));
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn digits_are_learned_and_the_weights_compile_for_inference() {
    let (exe, folder) = mnist("train-digits");
    let (data, checkpoints) = (digits(), folder.join("checkpoints"));
    let validate = data.replace("--data", "--validate");
    let log = folder.join("log.jsonl");
    let outcome = json(
        &exe,
        &[
            "train",
            &data,
            &validate,
            "--epochs",
            "1",
            &format!("--checkpoint={}", checkpoints.display()),
            &format!("--log={}", log.display()),
        ],
    );
    let accuracy = outcome["validation"]["accuracy"].as_f64().expect("accuracy is the metric of classes");
    assert!(0.88 < accuracy, "{outcome}");
    assert_eq!((&outcome["steps"], &outcome["validation"]["samples"]), (&Json::from(79), &Json::from(2004)));
    let lines = std::fs::read_to_string(&log).expect("the log was written");
    let lines: Vec<Json> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    assert_eq!(lines.iter().filter(|line| line["event"] == "step").count(), 79);
    assert_eq!(lines.iter().filter(|line| line["event"] == "epoch").count(), 1);

    let from = format!("--checkpoint={}", checkpoints.display());
    let scores = json(&exe, &["evaluate", &data, &from]);
    assert_eq!(scores["accuracy"].as_f64(), Some(accuracy), "the checkpoint has the state that was evaluated");

    let mut inferred = Vec::new();
    let inference = folder.join("inference");
    std::fs::create_dir_all(&inference).expect("writable");
    for form in ["safetensors", "npz", "params"] {
        let weights = folder.join(format!("weights.{form}"));
        let (code, _, error) = run(&exe, &["weights", "-o", &weights.display().to_string(), &from]);
        assert_eq!(code, Some(0), "{error}");
        let inference = compile(&inference, &["mnist_cnn", "--weights", &weights.display().to_string()]);
        inferred.push(json(&inference, &["run", "--synthetic=seed:5"])["outputs"].clone());
    }
    assert!(inferred[0] == inferred[1] && inferred[1] == inferred[2], "{inferred:?}");
}

/// The bytes of the newest checkpoint.
fn newest(folder: &Path) -> Vec<u8> {
    let path = train::checkpoint::list(folder).expect("a folder").pop().expect("a checkpoint");
    std::fs::read(path).expect("readable")
}

#[test]
fn same_seed_gives_the_same_bits_on_any_number_of_threads() {
    let (exe, folder) = mnist("train-seeds");
    let trained = |name: &str, flags: &[&str]| {
        let checkpoints = folder.join(name);
        let place = format!("--checkpoint={}", checkpoints.display());
        let data = digits();
        let words = [&["train", &data, "--steps", "6", &place], flags].concat();
        let (code, _, error) = run(&exe, &words);
        assert_eq!(code, Some(0), "{error}");
        newest(&checkpoints)
    };
    let one = trained("one", &["--threads", "1", "--seed", "3"]);
    assert!(one == trained("two", &["--threads", "2", "--seed", "3"]), "two threads give other bits");
    assert!(one != trained("other", &["--threads", "2", "--seed", "4"]), "the seed does not matter");
}

/// Starts a run again and again, and kills it each time after a random number of pauses from `least` on, until it ends by
/// itself. Returns how often it was killed.
fn until_done(exe: &Path, words: &[String], seed: u64, least: u64) -> u64 {
    let mut random = types::Random::new(seed);
    let mut kills = 0;
    loop {
        let mut child = Command::new(exe).args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.as_mut().expect("the executable starts");
        let mut waits = 0;
        // Longer with each attempt, so that a slow machine ends as well.
        let limit = least + random.below(80) + kills;
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is our child") {
                break Some(status);
            }
            if waits == limit {
                child.kill().expect("it is our child");
                child.wait().expect("it is our child");
                break None;
            }
            waits += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        match status {
            Some(status) => {
                assert!(status.success(), "{words:?}");
                return kills;
            }
            None => kills += 1,
        }
    }
}

#[test]
fn killed_run_continues_to_the_same_bits() {
    let (exe, folder) = mnist("train-killed");
    let data = digits();
    let words = |place: &str| -> Vec<String> {
        let place = folder.join(place).display().to_string();
        let fixed = ["train", &data, "--steps=16", "--every=1", "--schedule=cosine", "--seed=9"].map(String::from);
        [&fixed[..], &[format!("--checkpoint={place}"), format!("--resume={place}")]].concat()
    };
    let whole = output_of(Command::new(&exe).args(words("whole")));
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    assert!(text(&whole.stderr).contains("has no checkpoint: the run starts from the beginning"));

    let kills = until_done(&exe, &words("killed"), 1, 30);
    assert!(newest(&folder.join("whole")) == newest(&folder.join("killed")), "{kills} kills changed the result");

    // A damaged checkpoint is refused with the one before it.
    let paths = train::checkpoint::list(&folder.join("whole")).expect("a folder");
    let [old, new] = &paths[..] else { panic!("{paths:?}") };
    std::fs::OpenOptions::new().append(true).open(new).unwrap().write_all(b"x").unwrap();
    let refused = output_of(Command::new(&exe).args(words("whole")));
    assert_eq!(refused.status.code(), Some(2));
    let error = text(&refused.stderr);
    assert!(error.contains("is damaged") && error.contains(&format!("--resume {}", old.display())), "{error}");
}

/// The pictures of a RecordIO file of MXNet, several files of each in the folder of its class, and a RecordIO file of them.
fn pictures(folder: &Path) -> [String; 2] {
    let records =
        data::RecordFile::open(&root().join("crates/data/tests/data/tiny.rec")).expect("it is in the repository");
    let images = folder.join("images");
    for ix in 0..records.records() {
        let record = records.read(ix).expect("it is whole");
        let record = data::ImageRecord::parse(&record).expect("it is an image");
        let class = images.join(format!("class{}", record.labels[0]));
        std::fs::create_dir_all(&class).expect("writable");
        (0..5).for_each(|copy| std::fs::write(class.join(format!("{copy}.jpg")), record.image).expect("writable"));
    }
    let (prefix, images) = (folder.join("packed").display().to_string(), images.display().to_string());
    for words in [&["--list", "--recursive", "--no-shuffle"][..], &["--pass-through"]] {
        let done = output_of(Command::new(program("prestow")).args(["im2rec", &prefix, &images]).args(words));
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
    }
    [format!("images:{images}"), format!("rec:{prefix}.rec")]
}

#[test]
fn folders_and_records_of_pictures_train_alike_and_continue_after_kills() {
    let folder = folder("train-pictures");
    let exe = compile(
        &folder,
        &["squeezenet1.1", "--train", "--shape", "input=4x3x48x48", "--optimizer", "sgd:momentum=0.9"],
    );
    let trained = pictures(&folder).map(|data| {
        let kind = data.split(':').next().expect("it has a kind").to_string();
        let spec = format!("--data={data},resize=52,crop=random,mirror=yes");
        let words = |name: &str| -> Vec<String> {
            let place = folder.join(format!("{kind}-{name}")).display().to_string();
            let fixed = ["train", &spec, "--steps=9", "--every=1", "--seed=5", "--lr=0.01"].map(String::from);
            [&fixed[..], &[format!("--checkpoint={place}"), format!("--resume={place}")]].concat()
        };
        let whole = output_of(Command::new(&exe).args(words("whole")));
        assert!(whole.status.success(), "{kind}: {}", text(&whole.stderr));
        let kills = until_done(&exe, &words("killed"), 2, 5);
        let [whole, killed] = ["whole", "killed"].map(|name| newest(&folder.join(format!("{kind}-{name}"))));
        assert!(whole == killed, "{kind}: {kills} kills changed the result");
        let place = folder.join(format!("{kind}-whole"));
        let (code, said, error) =
            run(&exe, &["evaluate", &format!("--data={data},resize=52"), &format!("--checkpoint={}", place.display())]);
        assert!(code == Some(0) && said.contains("of 15 samples"), "{said}{error}");
        train::checkpoint::load(&place).expect("readable").expect("a checkpoint").1.states
    });
    assert!(trained[0] == trained[1], "a folder and a RecordIO file of the same pictures give other weights");
}

#[test]
fn weights_are_in_memory_once_and_large_gradients_in_part() {
    let exe = compile(&folder("train-fully-connected"), &["dlbs/deep_mnist", "--train", "--batch", "32"]);
    let report = json(&exe, &["memory", "--actual"]);
    assert_eq!(report["verdict"], "equal");
    // The largest weight has 19 MiB. Its initial value is read from the file and then not in memory any more.
    let resident = report["actual"]["planned_resident"].as_array().expect("a list");
    let image = resident.iter().find(|item| item["what"] == "executable (plan and weights)").expect("it is mapped");
    let (image, weights) = (image["bytes"].as_u64().unwrap(), report["planned"]["weights_bytes"].as_u64().unwrap());
    assert!(image < 4 << 20 && 40 << 20 < weights, "{image} of {weights} bytes of the file are in memory");
    let buffers = report["planned"]["buffers"].as_array().expect("a list");
    let largest = |role: &str| {
        let of_role = buffers.iter().filter(|buffer| buffer["role"] == role);
        of_role.map(|buffer| buffer["bytes"].as_u64().unwrap()).max().unwrap_or(0)
    };
    assert!(largest("weight_gradient").max(largest("workspace")) <= 1 << 20, "{report}");
}

#[test]
fn arrays_and_tables_continue_after_kills() {
    let (exe, folder) = mnist("train-killed-kinds");
    let labels: Vec<i64> = (0..230).map(|ix| ix % 10).collect();
    let rows = labels.iter().map(|label| format!("{},{label}\n", vec![format!("{}.5", label * 3); 784].join(",")));
    let table = folder.join("table.csv");
    let head = (0..784).map(|ix| format!("p{ix},")).collect::<String>() + "label\n";
    std::fs::write(&table, head + &rows.collect::<String>()).expect("writable");
    let data = [
        npz(&folder, "arrays.npz", &[230, 1, 28, 28], labels),
        format!("--data=csv:{},scale=0.01", table.display()),
        "--data=synthetic:4,records=250".to_string(),
    ];
    for (kind, data) in data.iter().enumerate() {
        let words = |name: &str| -> Vec<String> {
            let place = folder.join(format!("{name}-{kind}")).display().to_string();
            let fixed =
                ["train", data, "--steps=12", "--every=1", "--schedule=linear-warmup:steps=4"].map(String::from);
            [&fixed[..], &[format!("--checkpoint={place}"), format!("--resume={place}")]].concat()
        };
        let whole = output_of(Command::new(&exe).args(words("whole")));
        assert!(whole.status.success(), "{data}: {}", text(&whole.stderr));
        let kills = until_done(&exe, &words("killed"), kind as u64, 5);
        let [whole, killed] = ["whole", "killed"].map(|name| newest(&folder.join(format!("{name}-{kind}"))));
        assert!(whole == killed, "{data}: {kills} kills changed the result");
    }
}

#[test]
fn settings_of_a_resumed_run_are_compared() {
    let (exe, folder) = mnist("train-settings");
    let (data, place) = (digits(), format!("--checkpoint={}", folder.join("c").display()));
    let (code, _, error) = run(&exe, &["train", &data, "--steps=2", &place]);
    assert_eq!(code, Some(0), "{error}");
    let resume = format!("--resume={}", folder.join("c").display());
    let (code, _, error) = run(&exe, &["train", &data, "--steps=4", &resume, "--lr=0.1"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("the checkpoint has lr `0.001`, this run has `0.1`"), "{error}");
}

#[test]
fn divergence_is_noticed_and_named() {
    let (exe, _) = mnist("train-nan");
    let data = digits();
    let (code, _, error) = run(&exe, &["train", &data, "--steps=20", "--lr=1e38"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("run again with --check-finite"), "{error}");
    let (code, _, error) = run(&exe, &["train", &data, "--steps=20", "--lr=1e38", "--check-finite"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("(epoch 1): `") && (error.contains("a NaN") || error.contains("an infinity")), "{error}");
}

/// A npz file of images `x` and labels `y`.
fn npz(folder: &Path, name: &str, shape: &[usize], labels: Vec<i64>) -> String {
    let images = Tensor::from_fn(Shape::from(shape), |at| (at % 7) as f32 / 7.0);
    let arrays = BTreeMap::from([("x".to_string(), images), ("y".to_string(), Tensor::vector(labels))]);
    let path = folder.join(name);
    let bytes = weights::write(weights::TensorForm::Npz, &arrays).expect("a small archive");
    std::fs::write(&path, bytes).expect("writable");
    format!("--data=npz:{},x=x,y=y", path.display())
}

#[test]
fn bad_data_is_refused_by_record() {
    let (exe, folder) = mnist("train-bad-data");
    let refused = |data: &str, want: &[&str]| {
        let (code, _, error) = run(&exe, &["train", data, "--epochs=1"]);
        assert_eq!(code, Some(2), "{error}");
        for want in want {
            assert!(error.contains(want), "`{want}` is missing: {error}");
        }
    };
    let mut labels = vec![1; 100];
    labels[42] = 10;
    refused(&npz(&folder, "label.npz", &[100, 1, 28, 28], labels), &["record 42", "10"]);
    refused(&npz(&folder, "shape.npz", &[100, 1, 27, 28], vec![1; 100]), &["27"]);
    refused(&npz(&folder, "few.npz", &[10, 1, 28, 28], vec![1; 10]), &["10 records"]);
    refused(&npz(&folder, "empty.npz", &[0, 1, 28, 28], vec![]), &["empty.npz"]);
    refused("--data=idx:/no/such/folder", &["/no/such/folder"]);
    let images = folder.join("images/a");
    std::fs::create_dir_all(&images).expect("writable");
    (0..100).for_each(|ix| std::fs::write(images.join(format!("{ix:03}.png")), b"no image").expect("writable"));
    refused(&format!("--data=images:{}", folder.join("images").display()), &["record "]);
}

#[test]
fn model_without_a_training_step_is_refused() {
    let folder = folder("train-inference");
    let exe = compile(&folder, &["lenet"]);
    let (code, _, error) = run(&exe, &["train", "--data=synthetic:1", "--steps=1"]);
    assert_eq!((code, error.contains("compile the model with --train")), (Some(2), true), "{error}");
    let refused = |words: &[&str], want: &str| {
        let done = output_of(Command::new(program("prestow")).arg("compile").args(words).current_dir(root()));
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains(want), "{}", text(&done.stderr));
    };
    refused(&["lenet", "--train", "--freeze", "conv9*"], "`conv9*` matches no weight");
    refused(&["lenet", "--train", "--optimizer", "adagard"], "must be one of adadelta, adagrad, adam");
    refused(&["lenet", "--train", "--batch", "1,2"], "--train takes one --batch");
    refused(&["lenet", "--loss", "mse"], "--train");
}

#[test]
fn planned_memory_of_a_step_is_written() {
    let folder = folder("train-memory");
    let clipped = ["lenet", "--train", "--batch", "8", "--optimizer", "sgd:momentum=0.9", "--clip-norm", "1"];
    let networks = [&clipped[..], &["mnist_cnn", "--train", "--batch", "4"], &["resnet18", "--train", "--batch", "2"]];
    for words in networks {
        let exe = compile(&folder, words);
        let done = output_of(Command::new(&exe).args(["memory", "--actual", "--json"]));
        let report: Json = serde_json::from_slice(&done.stdout).expect("--json prints JSON");
        let actual = &report["actual"];
        assert_eq!(done.status.code(), Some(0), "{words:?}: {actual}");
        assert_eq!(actual["outside_bytes"], 0, "{words:?}: {actual}");
        assert_eq!(actual["heap_allocations_in_run"], 0, "{words:?}: {actual}");
        assert_eq!(actual["arena_written_bytes"], actual["arena_planned_bytes"], "{words:?}");
    }
    let exe = compile(&folder, &clipped);
    let bench = json(&exe, &["bench", "--warmup", "1", "--iters", "3"]);
    assert!(bench["steps_per_s"].as_f64().is_some_and(|steps| 0.0 < steps), "{bench}");
}

/// Every buffer that is alive at the peak for the backward pass is in the list of saved values, which is made from the steps
/// and not from the lives of buffers.
#[test]
fn values_saved_for_the_backward_pass_are_listed_with_reasons() {
    let folder = folder("train-saved");
    for (words, reasons) in [
        (&["mnist_cnn", "--train", "--batch", "4"][..], &["input of `", "logits of `", "labels of `"][..]),
        (
            &["resnet18", "--train", "--batch", "2"],
            &["input of `", "which is normalized again", "is computed again from it"],
        ),
    ] {
        let exe = compile(&folder, words);
        let report = json(&exe, &["memory"]);
        let planned = &report["planned"];
        let saved = planned["saved"].as_array().expect("a step of training saves values");
        let number = |json: &Json| json.as_u64().unwrap_or_else(|| panic!("{json} is no number"));
        let steps = planned["steps"].as_array().expect("a list");
        for row in saved {
            let buffer = &planned["buffers"][number(&row["buffer"]) as usize];
            let readers = row["readers"].as_array().expect("a list");
            let last = number(&readers.last().expect("each value has a reader")["step"]);
            let first = row["writer"]["step"].as_u64().unwrap_or(0);
            assert!(number(&buffer["first_step"]) <= first && first < last, "{row}");
            assert!(last <= number(&buffer["last_step"]), "{row}");
            assert!(number(&row["bytes"]) <= number(&buffer["bytes"]), "{row}");
            for reader in readers {
                assert_eq!(steps[number(&reader["step"]) as usize]["scope"], reader["scope"], "{row}");
            }
        }
        let is_listed = |buffer: &Json| saved.iter().any(|row| row["buffer"] == *buffer);
        for row in planned["alive_at_peak"].as_array().expect("a list") {
            // Values that are computed again wait too, for a short time.
            let is_again = row["tag"].as_str().is_some_and(|tag| tag.contains("/again"));
            let waits = row["why"]["kind"] == "saved_for_backward" && !is_again;
            assert!(!waits || is_listed(&row["buffer"]), "{words:?}: {row} is not listed");
        }
        let said = text(&output_of(Command::new(&exe).args(["memory", "--view", "saved", "--top", "500"])).stdout);
        // Lines are wrapped.
        let words_of = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(reasons.iter().all(|reason| words_of.contains(reason)), "{reasons:?}: {said}");
        assert_eq!(words_of.contains("computed again instead of saved"), planned["recomputed"].is_array(), "{said}");
    }
}

#[test]
fn accumulated_gradients_are_those_of_one_large_batch() {
    let folder = folder("train-accumulate");
    let trained = |name: &str, words: &[&str]| {
        std::fs::create_dir_all(folder.join(name)).expect("writable");
        let exe =
            compile(&folder.join(name), &[&["mnist_cnn", "--train", "--optimizer", "sgd:lr=0.1"], words].concat());
        let place = folder.join(name).join("c");
        let (code, _, error) =
            run(&exe, &["train", &digits(), "--steps=3", &format!("--checkpoint={}", place.display())]);
        assert_eq!(code, Some(0), "{error}");
        let path = train::checkpoint::list(&place).expect("a folder").pop().expect("a checkpoint");
        train::checkpoint::load(&path).expect("it is whole").expect("it is there").1.states
    };
    let whole = trained("whole", &["--batch", "60"]);
    let parts = trained("parts", &["--batch", "20", "--accumulate", "3"]);
    assert_eq!(whole.len(), parts.len());
    for (name, want) in &whole {
        assert_eq!(difference(&parts[name], want, 1e-4, 1e-5), None, "{name}");
    }
}
