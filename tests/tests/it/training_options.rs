//! Options of a training step: the loss of sequences, values saved in half precision, budgets, multipliers of a symbol.

use compiler::source::{Request, TrainableModel, load_trainable};
use compiler::{CompileError, Compiled, Goal, compile_training};
use ir::ops::{Binary, MatMul};
use ir::{Graph, Trainable};
use lower::cpu::CpuTarget;
use passes::training::Recipe;
use plan::Plan;
use serde_json::Value as Json;
use types::pointwise::Binary as Function;
use types::{Bytes, DType, Random, Scope, Shape, Tensor};

use crate::executables::folder;
use crate::support::{open, root};

/// The weight whose multipliers change.
const WEIGHT: &str = "conv0_weight";

fn recipe(loss: &str, optimizer: &str) -> Recipe {
    let optimizer = optimizer.parse().expect("an optimizer");
    Recipe { loss: loss.parse().ok(), optimizer, ..Recipe::default() }
}

/// One product by step: `[batch, steps, features]` to `[batch, steps, classes]`.
fn classifier_of_steps([batch, steps, features, classes]: [usize; 4]) -> TrainableModel {
    let mut random = Random::new(6);
    let mut graph = Graph::new("steps");
    let x = graph.add_input("data", DType::F32, Shape::from([batch, steps, features]));
    let weight = Tensor::from_fn(Shape::from([features, classes]), |_| random.uniform(-0.1, 0.1));
    let weight = graph.add_weight("weight", weight);
    let bias = graph.add_weight("bias", Tensor::full(Shape::from([classes]), 0.0f32));
    let y = graph.add1(MatMul::default().into(), &[x, weight], Scope::new("product")).expect("the shapes fit");
    let y = graph.add1(Binary(Function::Add).into(), &[y, bias], Scope::new("bias")).expect("the shapes fit");
    graph.set_outputs(vec![("logits".into(), y)]);
    TrainableModel { trainable: Trainable::from(graph), preprocess: None, labels: Vec::new() }
}

#[test]
fn sequences_of_labels_are_learned_without_an_alignment() {
    let [batch, steps, features, classes] = [4, 12, 8, 5];
    let model = classifier_of_steps([batch, steps, features, classes]);
    let recipe = recipe("ctc:labels=4", "adam:lr=0.05");
    let [step, _] =
        compile_training(model, &recipe, &CpuTarget::new(), Goal::default(), |_, _| {}).expect("it compiles");
    let mut random = Random::new(2);
    let x = Tensor::from_fn(Shape::from([batch, steps, features]), |_| random.uniform(-1.0, 1.0));
    // The last two sequences have padding.
    let labels = Tensor::new(Shape::from([batch, 4]), vec![1i32, 2, 3, 4, 2, 2, 1, 3, 4, 1, -1, -1, 3, 0, 0, 0]);
    let labels = labels.expect("as many labels as the shape has");
    let trained = [1, 3].map(|threads| {
        let mut session = open(&step, threads);
        let losses: Vec<f64> = (1..=300i64)
            .map(|number| {
                let inputs = [x.clone(), labels.clone(), Tensor::scalar(0.05f32), Tensor::scalar(number)];
                session.run_tensors(&inputs).expect("the inputs fit")[0].to_f64()[0]
            })
            .collect();
        losses
    });
    let losses = &trained[0];
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(5.0 < first && last < 0.2 * first, "from {first} to {last}");
    assert_eq!(trained[0], trained[1], "threads change no bit");
}

#[test]
fn classes_without_the_blank_are_refused() {
    let compiled = |loss: &str| {
        let model = classifier_of_steps([2, 4, 3, 5]);
        compile_training(model, &recipe(loss, "sgd"), &CpuTarget::new(), Goal::default(), |_, _| {}).map(|_| ())
    };
    let error = compiled("ctc:blank=5").expect_err("there are five classes").to_string();
    assert!(error.contains("blank must be one of 5 classes, got 5"), "{error}");
    compiled("ctc:blank=4,time=0").expect("steps are the first axis");
}

/// A step of a convolutional network with 32 images of 96 x 96.
fn step(dtype: DType, budget: Option<Bytes>) -> Result<Compiled, CompileError> {
    let shapes = [("input".to_string(), Shape::from([32, 3, 96, 96]))];
    let request = Request { model: "squeezenet1_1".into(), shapes: shapes.into(), ..Request::default() };
    let model = load_trainable(&request).expect("it is in the zoo");
    let target = CpuTarget { dtype, ..CpuTarget::new() };
    compile_training(
        model,
        &recipe("softmax_cross_entropy", "sgd"),
        &target,
        Goal { budget, ..Goal::default() },
        |_, _| {},
    )
    .map(|[step, _]| step)
}

/// The losses of three steps on one batch.
fn losses(step: &Compiled) -> Vec<f64> {
    let mut session = open(step, 2);
    let mut random = Random::new(3);
    let mut inputs = |plan: &Plan| -> Vec<Tensor> {
        let input = |input: &plan::Port| {
            let shape = input.shape.clone();
            match (input.name.as_str(), input.dtype) {
                ("learning_rate", _) => Tensor::scalar(0.01f32),
                (_, DType::F32) => Tensor::from_fn(shape, |_| random.uniform(-1.0, 1.0)),
                _ => Tensor::from_fn(shape, |_| random.below(1000) as i32),
            }
        };
        plan.inputs.iter().map(input).collect()
    };
    let inputs = inputs(&step.plan);
    (0..3).map(|_| session.run_tensors(&inputs).expect("the inputs fit")[0].to_f64()[0]).collect()
}

#[test]
fn values_saved_in_half_precision_take_less_memory() {
    let exact = step(DType::F32, None).expect("it compiles");
    let want = losses(&exact);
    for dtype in [DType::Bf16, DType::F16] {
        let half = step(dtype, None).expect("it compiles");
        let (least, most) = (half.plan.arena.size(), exact.plan.arena.size());
        assert!(least.0 * 10 < most.0 * 8, "{dtype}: {least} is not much less than {most}");
        for (got, want) in losses(&half).iter().zip(&want) {
            assert!((got - want).abs() < 0.01 * want, "{dtype}: {got} is not {want}");
        }
    }
}

#[test]
fn budget_of_a_step_is_kept_or_refused() {
    let free = step(DType::F32, None).expect("it compiles").plan.arena.size();
    match step(DType::F32, Some(Bytes(free.0 / 4))) {
        Err(CompileError::Budget { budget, smallest }) => assert!(budget < smallest && smallest <= free),
        Err(other) => panic!("{other}"),
        Ok(step) => panic!("{} of {free}", step.plan.arena.size()),
    }
    let fits = step(DType::F32, Some(free)).expect("it fits");
    assert!(fits.plan.arena.size() <= free, "{} of {free}", fits.plan.arena.size());
}

/// The weights behind one step of SGD with a weight decay, by multipliers of the first convolution's weight.
fn weights_of_symbol(name: &str, multipliers: &[(&str, &str)]) -> Result<Vec<(String, Vec<f64>)>, String> {
    let recorded = |name: &str| root().join("tests/data/mxnet").join(name);
    let symbol = std::fs::read(recorded("mnist_cnn-symbol.json")).expect("it is in the repository");
    let mut symbol: Json = serde_json::from_slice(&symbol).expect("JSON");
    let nodes = symbol["nodes"].as_array_mut().expect("a list");
    let node = nodes.iter_mut().find(|node| node["op"] == "null" && node["name"] == WEIGHT).expect("it has a weight");
    multipliers.iter().for_each(|&(key, text)| node["attrs"][key] = text.into());
    let file = folder(name).join("symbol-symbol.json");
    std::fs::write(&file, symbol.to_string()).expect("writable");
    let request = Request {
        model: file.display().to_string(),
        params: Some(recorded("mnist_cnn-0000.params")),
        shapes: [("data".to_string(), Shape::from([4, 1, 28, 28]))].into(),
        ..Request::default()
    };
    let model = load_trainable(&request).map_err(|error| error.to_string())?;
    let recipe = recipe("softmax_cross_entropy", "sgd:weight_decay=0.5");
    let [step, _] =
        compile_training(model, &recipe, &CpuTarget::new(), Goal::default(), |_, _| {}).expect("it compiles");
    let mut session = open(&step, 2);
    let mut random = Random::new(1);
    let x = Tensor::from_fn(Shape::from([4, 1, 28, 28]), |_| random.uniform(0.0, 1.0));
    let values = |session: &runtime::Session| -> Vec<(String, Vec<f64>)> {
        let weights = step.plan.states.iter().map(|state| state.port.name.clone());
        weights.map(|name| (name.clone(), session.state(&name).expect("it is a state").to_f64())).collect()
    };
    let before = values(&session);
    session.run_tensors(&[x, Tensor::vector(vec![3i32, 1, 4, 1]), Tensor::scalar(0.1f32)]).expect("the inputs fit");
    let moved = values(&session).into_iter().zip(before).map(|((name, after), (_, before))| {
        let moved = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        (name, moved)
    });
    Ok(moved.collect())
}

#[test]
fn multipliers_of_a_symbol_scale_the_update_of_its_weight() {
    let steps = |name: &str, multipliers: &[(&str, &str)]| weights_of_symbol(name, multipliers).expect("it loads");
    let plain = steps("multipliers-none", &[]);
    let no_decay = steps("multipliers-decay", &[("__wd_mult__", "0")]);
    let slow = steps("multipliers-rate", &[("__lr_mult__", "0.25"), ("__wd_mult__", "1")]);
    let still = steps("multipliers-zero", &[("__lr_mult__", "0.0")]);
    for (name, want) in &plain {
        let of =
            |all: &[(String, Vec<f64>)]| all.iter().find(|(own, _)| own == name).expect("the same states").1.clone();
        let (no_decay, slow, still) = (of(&no_decay), of(&slow), of(&still));
        if name != WEIGHT {
            // The graphs differ, so the compiler may select other kernels, whose rounding differs.
            let is_close = |other: &[f64]| want.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!([no_decay, slow, still].iter().all(|other| is_close(other)), "{name}");
            continue;
        }
        assert!(still.iter().all(|&moved| moved == 0.0) && *want != no_decay, "{name}");
        for (want, slow) in want.iter().zip(&slow) {
            assert!((slow - 0.25 * want).abs() < 1e-6, "{slow} is not a quarter of {want}");
        }
    }
    let error = weights_of_symbol("multipliers-bad", &[("__lr_mult__", "fast")]).expect_err("it is no number");
    assert!(error.contains("lr_mult must be a number >= 0, got `fast`"), "{error}");
}
