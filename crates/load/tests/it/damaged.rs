//! Damaged ONNX files: loading returns a graph that verifies or an error, and never panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use prestow_load::onnx::{self, Options};
use types::{DType, Random, Tensor};

use crate::models::small;
use crate::{data, effort};
use onnx_suite::model::{Dim, Model, fix_inputs, info, input_names, node};

/// Loads bytes and, if they are a model, verifies it.
#[track_caller]
fn survives(bytes: &[u8], options: &Options, case: &str) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(|| match onnx::load(bytes, None, options) {
        Ok(graph) => ir::verify(&graph).map(|()| true).map_err(|errors| format!("{errors:?}")),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Ok(false)
        }
    }));
    match outcome {
        Ok(Ok(loaded)) => loaded,
        Ok(Err(errors)) => panic!("{case}: the graph does not verify: {errors}"),
        Err(_) => panic!("{case}: loading panicked"),
    }
}

pub(crate) fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = |random: &mut Random, length: usize| random.below(length.max(1) as u64) as usize;
        let place = at(random, out.len());
        match random.below(7) {
            _ if out.is_empty() => out.push(random.bits() as u8),
            0 => out[place] ^= 1 << random.below(8),
            1 => out[place] = random.bits() as u8,
            2 => out.insert(place, random.bits() as u8),
            3 => out.truncate(place),
            4 => {
                let end = (place + 1 + at(random, 16)).min(out.len());
                out.drain(place..end);
            }
            5 => {
                let end = (place + 1 + at(random, 64)).min(out.len());
                let copy = out[place..end].to_vec();
                let to = at(random, out.len());
                out.splice(to..to, copy);
            }
            // Small numbers become large or negative.
            _ => {
                let value = [0x7f, 0x80, 0xff, 0x00][at(random, 4)];
                let end = (place + 1 + at(random, 4)).min(out.len());
                out[place..end].fill(value);
            }
        }
    }
    out
}

fn mutations(bytes: &[u8], options: &Options, count: usize, seed: u64, name: &str) {
    let mut random = Random::for_name(seed, name);
    let (count, mut loaded) = (count * effort(), 0);
    for ix in 0..count {
        let mutant = mutate(bytes, &mut random);
        loaded += usize::from(survives(&mutant, options, &format!("{name}, mutation {ix}")));
    }
    eprintln!("{name}: {loaded} of {count} mutations load");
}

#[test]
fn truncated_model_is_an_error() {
    let bytes = small().write();
    for end in 0..bytes.len() {
        let loaded = survives(&bytes[..end], &Options::default(), &format!("cut at {end}"));
        assert!(!loaded, "cut at {end} of {}", bytes.len());
    }
    assert!(survives(&bytes, &Options::default(), "whole"));
}

#[test]
fn names_of_several_lines_are_refused() {
    const LINES: &str = "name\nerror: of another program";
    let names = ["x", "y", "Relu", "n"];
    for at in 0..names.len() {
        let [input, output, operator, dimension] = std::array::from_fn(|ix| if ix == at { LINES } else { names[ix] });
        let x = info(input, DType::F32, &[Dim::Named(dimension)]);
        let bytes = Model::new(17, vec![x], vec![node(operator, &[input], &[output], &[])], output).write();
        let error = onnx::load(&bytes, None, &Options::default()).unwrap_err().to_string();
        assert!(error.contains("a name must be one line, got \"") && !error.contains('\n'), "{at}: {error}");
    }
}

#[test]
fn mutations_of_a_small_model_never_panic() {
    mutations(&small().write(), &Options::default(), 20_000, 1, "small");
}

/// Operators with much arithmetic while loading; their inputs are constant, so that they are folded.
#[test]
fn mutations_of_folded_operators_never_panic() {
    const CASES: &[&str] = &[
        "node/test_adagrad",
        "node/test_ai_onnx_ml_array_feature_extractor",
        "node/test_ai_onnx_ml_tree_ensemble_set_membership",
        "node/test_batchnorm_example_training_mode",
        "node/test_deform_conv_with_mask_bias",
        "node/test_dequantizelinear_blocked",
        "node/test_maxpool_with_argmax_2d_precomputed_pads",
        "node/test_maxunpool_export_with_output_shape",
        "node/test_nonmaxsuppression_two_classes",
        "node/test_resize_downsample_scales_cubic_antialias",
        "node/test_resize_tf_crop_and_resize",
        "node/test_roialign_aligned_true",
        "node/test_scan_sum",
        "node/test_tfidfvectorizer_tf_batch_uniandbigrams_skip5",
        "node/test_unique_sorted_with_axis_3d",
        "simple/test_sequence_model1",
        "simple/test_sequence_model7",
    ];
    let Some(root) = data("mutations_of_what_is_folded_never_panic", "onnx-test-data") else { return };
    for name in CASES {
        let model = std::fs::read(root.join(name).join("model.onnx")).expect("each test has a model");
        let input = |ix: usize| std::fs::read(root.join(name).join(format!("test_data_set_0/input_{ix}.pb")));
        let names = input_names(&model);
        let inputs: Vec<Tensor> = (0..names.len())
            .map(|ix| onnx::tensor(&input(ix).expect("each input has its data")).expect("a tensor"))
            .collect();
        let fixed: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&inputs).collect();
        // Some inputs stay run-time inputs, so that the graph is not empty.
        for (from, seed) in [(0, 4), (1, 5)] {
            mutations(&fix_inputs(&model, &fixed[from..]), &Options::default(), 300, seed, name);
        }
    }
}

#[test]
fn mutations_of_real_models_never_panic() {
    // Weights that are filled while loading take time; these are the three smallest models.
    let real = [
        ("onnx-test-data/light/light_squeezenet.onnx", "data_0", [1, 3, 224, 224]),
        ("onnx-test-data/light/light_shufflenet.onnx", "gpu_0/data_0", [1, 3, 224, 224]),
        ("models/ppocrv4/ch_ppocr_mobile_v2.0_cls_infer.onnx", "x", [1, 3, 48, 192]),
    ];
    for (path, input, shape) in real {
        let Some(found) = data("mutations_of_real_models_never_panic", path) else { continue };
        let bytes = std::fs::read(found).expect("readable");
        let options =
            Options { shapes: [(input.to_string(), shape.into())].into_iter().collect(), ..Options::default() };
        mutations(&bytes, &options, 1000, 2, path);
        // If the mutation changes the name of the input, a model with static shapes still loads without the shape.
        mutations(&bytes, &Options::default(), 300, 3, path);
    }
}
