//! The networks of the list, their published sizes, and errors.

use std::collections::BTreeMap;

use prestow_zoo::{
    Head, Init, Named, Names, Network, NetworkOptions, ParameterSource, Seeded, Spec, ZooError, build, find, labels,
    list, pretrained,
};
use types::{ChannelOrder, Random, Shape, Tensor};

/// Zeros, allocated lazily.
struct Zeros;

impl ParameterSource for Zeros {
    fn take(&mut self, _name: &str, shape: &Shape, _init: Init) -> Result<Tensor, ZooError> {
        Ok(Tensor::full(shape.clone(), 0.0f32))
    }
}

/// Zeros that record the requested names.
#[derive(Default)]
struct Recorded(BTreeMap<String, Shape>);

impl ParameterSource for Recorded {
    fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError> {
        let before = self.0.insert(name.to_string(), shape.clone());
        assert_eq!(before, None, "`{name}` is asked for twice");
        Zeros.take(name, shape, init)
    }
}

fn names_and_shapes(name: &str) -> BTreeMap<String, Shape> {
    let mut recorded = Recorded::default();
    build(name, 1, &mut recorded, &NetworkOptions::default()).unwrap();
    recorded.0
}

fn check_build(name: &str, batch: usize) {
    let spec = find(name).unwrap();
    let model =
        build(name, batch, &mut Zeros, &NetworkOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let graph = &model.graph;
    assert_eq!(ir::verify(graph), Ok(()), "{name}");
    assert_eq!(graph.parameters(), spec.parameters, "{name}");
    // All work scales with the batch, except of nodes that depend on constants only.
    let flops = spec.flops * batch as u64;
    assert!(graph.flops().abs_diff(flops) <= flops / 1000, "{name}: {} FLOPs, listed are {flops}", graph.flops());
    assert!(batch != 1 || graph.flops() == spec.flops, "{name}: {} FLOPs", graph.flops());
    assert_eq!(graph.name, spec.name);
    for (input, &id) in spec.inputs.iter().zip(graph.inputs()) {
        let value = graph.value(id);
        assert_eq!((value.name.as_str(), value.ty.dtype), (input.name, input.dtype), "{name}");
        assert_eq!(value.ty.shape[..], [&[batch], input.shape].concat(), "{name}");
    }
    assert_eq!(graph.inputs().len(), spec.inputs.len(), "{name}");
    assert_eq!(graph.outputs()[0].name, spec.output, "{name}");
    if spec.inputs[0].shape.len() == 3 && name != "dlbs/deep_speech2" {
        let classes = if ["lenet", "mnist_cnn"].contains(&name) { 10 } else { 1000 };
        assert_eq!(graph.ty(graph.outputs()[0].value).shape, Shape::from([batch, classes]), "{name}");
    }
    let known =
        !["lenet", "mnist_cnn"].contains(&name) && spec.inputs[0].shape.len() == 3 && !name.starts_with("dlbs/");
    assert_eq!(model.preprocess.map(|preprocess| preprocess.height), known.then(|| spec.inputs[0].shape[1]), "{name}");
}

#[test]
fn networks_have_their_published_size() {
    assert!(list().is_sorted_by_key(|spec| spec.name));
    assert_eq!(list().iter().filter(|spec| spec.name.starts_with("gluon/")).count(), 34);
    assert_eq!(list().iter().filter(|spec| spec.name.starts_with("dlbs/")).count(), 22);
    // The linear layers of a VGG or AlexNet are half a gigabyte and do not depend on the batch.
    let check = |spec: &Spec| match spec.parameters < 30_000_000 {
        true => [1, 2].into_iter().for_each(|batch| check_build(spec.name, batch)),
        false => check_build(spec.name, 1),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| list().iter().step_by(2).for_each(check));
        list().iter().skip(1).step_by(2).for_each(check);
    });
}

/// Running statistics of batch norms; MXNet counts them separately from parameters.
#[test]
fn statistics_are_constants() {
    let check = |name: &str, want: usize| {
        let graph = build(name, 1, &mut Zeros, &NetworkOptions::default()).unwrap().graph;
        let statistics =
            graph.values().values().filter(|value| value.name.contains("moving_") || value.name.contains("running_"));
        assert_eq!(statistics.map(|value| value.ty.shape.elements()).sum::<usize>(), want, "{name}");
    };
    check("gluon/resnet50_v1", 53_120);
    check("gluon/densenet201", 229_056);
    check("dlbs/resnet269", 252_800);
    check("dlbs/inception4", 63_168);
    check("dlbs/inception_resnet_v2", 152_104);
    check("dlbs/deep_speech2", 128);
}

#[test]
fn parameters_have_torchvision_names() {
    let check = |network: &str, name: &str, shape: &[usize]| {
        assert_eq!(names_and_shapes(network).get(name), Some(&shape.into()), "{network}: {name}");
    };
    check("resnet18", "layer2.0.downsample.1.running_var", &[128]);
    check("resnet50", "layer4.2.conv3.weight", &[2048, 512, 1, 1]);
    check("resnet50", "fc.weight", &[1000, 2048]);
    check("squeezenet1_0", "features.12.expand3x3.weight", &[256, 64, 3, 3]);
    check("mobilenet_v2", "features.1.conv.0.0.weight", &[32, 1, 3, 3]);
    check("mobilenet_v2", "features.17.conv.2.weight", &[320, 960, 1, 1]);
    check("mobilenet_v2", "features.17.conv.3.running_mean", &[320]);
    check("densenet121", "features.denseblock4.denselayer16.norm1.weight", &[992]);
    check("densenet121", "features.transition3.conv.weight", &[512, 1024, 1, 1]);
    check("googlenet", "inception5b.branch3.1.conv.weight", &[128, 48, 3, 3]);
    check("inception_v3", "Mixed_6b.branch7x7dbl_4.conv.weight", &[128, 128, 7, 1]);
    check("inception_v3", "Mixed_7c.branch3x3dbl_3a.conv.weight", &[384, 384, 1, 3]);
    check("efficientnet_lite0", "_blocks.15._project_conv.weight", &[320, 1152, 1, 1]);
    check("lenet", "fc1.weight", &[120, 400]);
    check("vit_b_16", "encoder.layers.encoder_layer_11.self_attention.in_proj_weight", &[2304, 768]);
    check("bert_base", "encoder.layer.11.attention.output.LayerNorm.weight", &[768]);
    check("gpt2", "h.11.mlp.c_fc.weight", &[768, 3072]);
}

#[test]
fn other_collections_have_their_own_names() {
    let check = |network: &str, name: &str, shape: &[usize]| {
        assert_eq!(names_and_shapes(network).get(name), Some(&shape.into()), "{network}: {name}");
    };
    check("gluon/resnet50_v1", "features.4.0.body.0.bias", &[64]);
    check("gluon/resnet50_v2", "features.8.2.bn3.running_var", &[512]);
    check("gluon/inceptionv3", "features.16.2.1.1.0.0.weight", &[384, 384, 3, 1]);
    check("gluon/densenet121", "features.10.15.1.5.weight", &[32, 128, 3, 3]);
    check("gluon/mobilenetv2_0.25", "features.3.out.4.gamma", &[8]);
    check("gluon/squeezenet1.0", "features.12.1.1.0.bias", &[256]);
    check("dlbs/resnet50", "stage1_unit1_sc_bn_moving_var", &[256]);
    check("dlbs/googlenet", "conv_inception_5b_5x5_reduce_weight", &[48, 832, 1, 1]);
    check("dlbs/inception3", "inception_e1_b5_l1_0_conv_weight", &[192, 2048, 1, 1]);
    check("dlbs/inception4", "incept_v4_a0_b3_l1_0_conv_weight", &[96, 384, 1, 1]);
    check("dlbs/inception_resnet_v2", "convolution0_bias", &[32]);
    check("dlbs/deep_speech2", "rnnparameters", &[64_118_784]);
    check("sockeye", "decoder_rnn_l0_i2h_weight", &[2048, 768]);
}

/// Gluon's SqueezeNets and AlexNet equal torchvision's with other names.
#[test]
fn weights_convert_between_collections() {
    // Torchvision numbers convolutions, relus and dropouts as one sequence.
    let alexnet = "features.0.* features.0.*\nfeatures.2.* features.3.*\nfeatures.4.* features.6.*\n\
        features.5.* features.8.*\nfeatures.6.* features.10.*\nfeatures.9.* classifier.1.*\n\
        features.11.* classifier.4.*\noutput.* classifier.6.*";
    let squeezenet = include_str!("../../names/squeezenet.gluon.names");
    for (from, to, names) in [
        ("gluon/squeezenet1.1", "squeezenet1_1", squeezenet),
        ("gluon/squeezenet1.0", "squeezenet1_0", squeezenet),
        ("gluon/alexnet", "alexnet", alexnet),
    ] {
        let names = Names::parse(names).unwrap();
        let renamed = names_and_shapes(from).into_iter().map(|(name, shape)| (names.rename(&name).unwrap(), shape));
        assert_eq!(renamed.collect::<BTreeMap<_, _>>(), names_and_shapes(to), "{from}");
    }
    let theirs = Names::parse(squeezenet).unwrap().apply(seeded("gluon/squeezenet1.1")).unwrap();
    let mut named = Named::new(theirs);
    build("squeezenet1_1", 1, &mut named, &NetworkOptions::default()).unwrap();
    assert_eq!(named.unused().count(), 0);
}

#[test]
fn names_ignore_case_and_separators() {
    for name in ["ResNet-50", "resnet50", "RESNET_50"] {
        assert_eq!(find(name).unwrap().name, "resnet50");
    }
    assert_eq!(find("squeezenet1.1").unwrap().name, "squeezenet1_1");
    assert_eq!(pretrained("EfficientNet-Lite0").unwrap().name, "efficientnet_lite0");
    assert!(pretrained("resnet50").is_none());
}

#[test]
fn unknown_name_lists_similar_ones() {
    let message = |name: &str| build(name, 1, &mut Zeros, &NetworkOptions::default()).unwrap_err().to_string();
    let near = message("resnet51");
    assert!(near.starts_with("no network is called `resnet51`; similar names are `resnet50`, "), "{near}");
    assert_eq!(message("transformer-xl"), "no network is called `transformer-xl`");
}

#[test]
fn seed_builds_a_graph() {
    let graph = |seed: u64| build("resnet18", 1, &mut Seeded(seed), &NetworkOptions::default()).unwrap().graph;
    let first = graph(1);
    assert!(first == graph(1));
    assert!(first != graph(2));
}

#[test]
fn missing_tensor_is_named() {
    let mut tensors = seeded("lenet");
    tensors.remove("conv2.bias");
    let error = build("lenet", 1, &mut Named::new(tensors), &NetworkOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the weights have no tensor `conv2.bias` of shape [16]");
}

#[test]
fn tensor_of_wrong_shape_is_named() {
    let mut tensors = seeded("lenet");
    tensors.insert("fc2.weight".into(), Tensor::full(Shape::from([120, 84]), 0.0f32));
    let error = build("lenet", 1, &mut Named::new(tensors), &NetworkOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "tensor `fc2.weight` must have shape [84,120], got [120,84]");

    let mut tensors = seeded("lenet");
    tensors.insert("fc2.bias".into(), Tensor::full(Shape::from([84]), 0i64));
    let error = build("lenet", 1, &mut Named::new(tensors), &NetworkOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "tensor `fc2.bias` must have a float dtype, got i64");
}

#[test]
fn unused_tensors_are_returned() {
    let mut tensors = seeded("lenet");
    tensors.insert("aux.weight".into(), Tensor::scalar(0.0f32));
    tensors.insert("bn.num_batches_tracked".into(), Tensor::scalar(7i64));
    let mut named = Named::new(tensors);
    let model = build("lenet", 1, &mut named, &NetworkOptions::default()).unwrap();
    assert!(model == build("lenet", 1, &mut Seeded(3), &NetworkOptions::default()).unwrap());
    assert_eq!(named.unused().collect::<Vec<_>>(), ["aux.weight"]);
}

#[test]
fn input_too_small_is_refused_with_its_scope() {
    let check = |name: &str, side: usize, want: &str| {
        let error = build(name, 1, &mut Zeros, &sized(side)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check("squeezenet1_1", 2, "`features/0`: ");
    check("inception_v3", 32, "`Mixed_6a/branch3x3/conv`: ");
    check("vgg11", 100, "vgg11: `avgpool` pools to 7x7, which does not divide 3x3");
    check("resnet18", 0, "the input `input` has the shape [batch, 3, any, any], not [1,3,0,0] with a batch of 1");
    let asked = |name: &str, shape: &[usize]| NetworkOptions {
        shapes: [(name.to_string(), shape.into())].into(),
        ..NetworkOptions::default()
    };
    let error =
        |network: &str, options: NetworkOptions| build(network, 1, &mut Zeros, &options).unwrap_err().to_string();
    assert_eq!(error("lenet", asked("data", &[1, 1, 28, 28])), "lenet: there is no input `data`, but `input`");
    assert_eq!(
        error("bert_base", asked("input_ids", &[1, 64])),
        "bert_base: its inputs are of one length, at most 512 tokens"
    );
    assert_eq!(error("gpt2", asked("input_ids", &[1, 1025])), "gpt2: it takes at most 1024 tokens");
    assert_eq!(
        error("vit_b_16", asked("input", &[1, 3, 224, 225])),
        "vit_b_16: patches of 16x16 do not divide a picture of 224x225"
    );
    assert!(build("resnet18", 0, &mut Zeros, &NetworkOptions::default()).is_err());
}

#[test]
fn linear_layer_multiplies_by_the_transposed_weight() {
    let tensors = seeded("lenet");
    let weight = tensors["fc3.weight"].to_f64();
    let model = build("lenet", 1, &mut Named::new(tensors), &NetworkOptions::default()).unwrap();
    let value = model.graph.values().values().find(|value| value.name == "fc3.weight").unwrap();
    assert_eq!(value.ty.shape, Shape::from([84, 10]));
    let items = value.tensor().unwrap().to_f64();
    assert!((0..840).all(|at| items[at] == weight[at % 10 * 84 + at / 10]));
}

#[test]
fn seeded_activations_keep_their_scale() {
    // Small inputs, because the definition of a convolution is slow.
    for (name, side) in [("resnet152", 8), ("mobilenet_v2", 32)] {
        let model = build(name, 1, &mut Seeded(5), &sized(side)).unwrap();
        let (a, b) = (logits(&model, 1), logits(&model, 2));
        let rms = |items: &[f64]| (items.iter().map(|x| x * x).sum::<f64>() / items.len() as f64).sqrt();
        let difference: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        println!("{name}: logits {:.3}, difference of two inputs {:.3}", rms(&a), rms(&difference));
        assert!((0.05..50.0).contains(&rms(&a)), "{name}: {}", rms(&a));
        assert!(0.01 * rms(&a) < rms(&difference), "{name} does not look at its input");
    }
}

#[test]
fn head_returns_probabilities() {
    let options = NetworkOptions { head: Head::Probabilities, ..NetworkOptions::default() };
    let model = build("lenet", 2, &mut Seeded(1), &options).unwrap();
    assert_eq!(model.graph.outputs()[0].name, "probabilities");
    let sum: f64 = logits(&model, 1).iter().sum();
    assert!((sum - 2.0).abs() < 1e-5);
}

#[test]
fn squeezenet_builds_from_caffe_names() {
    let caffe = |layer: &str| match layer {
        "features.0" => "conv1".to_string(),
        "classifier.1" => "conv10".to_string(),
        fire => {
            let parts: Vec<&str> = fire.split('.').collect();
            let number = [3, 4, 6, 7, 9, 10, 11, 12].iter().position(|module| parts[1] == module.to_string()).unwrap();
            format!("fire{}/{}", number + 2, parts[2].replace("squeeze", "squeeze1x1"))
        }
    };
    let ours = seeded("squeezenet1_1");
    let theirs = ours.iter().map(|(name, tensor)| {
        let (layer, part) = name.rsplit_once('.').unwrap();
        match part {
            "bias" => (format!("{}.1", caffe(layer)), tensor.clone()),
            _ => (format!("{}.0", caffe(layer)), channels_last(tensor)),
        }
    });
    let pretrained = pretrained("squeezenet1.1").unwrap();
    let theirs: BTreeMap<String, Tensor> = theirs.collect();
    assert!((pretrained.adapt)(theirs.clone()).unwrap() == ours);

    let model = pretrained.build(1, theirs.clone(), no_shapes()).unwrap();
    assert_eq!(ir::verify(&model.graph), Ok(()));
    assert_eq!(model.graph.outputs()[0].name, "probabilities");
    let preprocess = model.preprocess.unwrap();
    assert_eq!((preprocess.height, preprocess.channel_order), (227, ChannelOrder::Bgr));
    // Rows before the last convolution: 227, 113, 56, 27, 13 with pools that have full windows only.
    let conv10 = model.graph.values().values().find(|value| value.name == "classifier/1").unwrap();
    assert_eq!(conv10.ty.shape, Shape::from([1, 1000, 13, 13]));

    let mut broken = theirs.clone();
    broken.insert("conv1.0".into(), Tensor::full(Shape::from([3, 3, 3]), 0.0f32));
    let error = pretrained.build(1, broken, no_shapes()).unwrap_err().to_string();
    assert_eq!(error, "tensor `features.0.weight` must have shape [64,3,3,3], got [3,3,3]");

    let mut broken = theirs;
    broken.remove("fire4/expand3x3.0");
    let error = pretrained.build(1, broken, no_shapes()).unwrap_err().to_string();
    assert_eq!(error, "the weights have no tensor `features.6.expand3x3.weight` of shape [128,32,3,3]");
}

#[test]
fn minilm_builds_from_transformers_names() {
    let pretrained = pretrained("all-MiniLM-L6-v2").unwrap();
    let theirs: BTreeMap<String, Tensor> = seeded("all_minilm_l6_v2").into_iter().collect();
    let chosen = |batch: usize| {
        ["input_ids", "token_type_ids", "attention_mask"].map(|name| (name.to_string(), Shape::from([batch, 20])))
    };
    let model = pretrained.build(2, theirs.clone(), BTreeMap::from(chosen(2))).unwrap();
    assert_eq!((ir::verify(&model.graph), model.preprocess), (Ok(()), None));
    let shape = |name: &str| {
        let output = model.graph.outputs().iter().find(|output| output.name == name).unwrap();
        model.graph.ty(output.value).shape.clone()
    };
    assert_eq!(shape("last_hidden_state"), Shape::from([2, 20, 384]));
    assert_eq!(shape("sentence_embedding"), Shape::from([2, 384]));
    let mut named = Named::new(theirs);
    build("all_minilm_l6_v2", 1, &mut named, &NetworkOptions::default()).unwrap();
    assert_eq!(named.unused().count(), 0);
}

fn no_shapes() -> BTreeMap<String, Shape> {
    BTreeMap::new()
}

#[test]
fn efficientnet_builds_from_the_names_of_its_file() {
    let pretrained = pretrained("efficientnet_lite0").unwrap();
    let model = pretrained.build(1, seeded("efficientnet_lite0"), no_shapes()).unwrap();
    assert_eq!(ir::verify(&model.graph), Ok(()));
    assert_eq!(model.graph.outputs()[0].name, "probabilities");
}

#[test]
fn labels_are_read() {
    assert_eq!(labels(r#"{"1": "b, c", "0": "a"}"#).unwrap(), ["a", "b, c"]);
    assert_eq!(labels(r#"["a", "b"]"#).unwrap(), ["a", "b"]);
    assert!(labels(r#"{"0": "a", "2": "b"}"#).unwrap_err().to_string().contains("none for class 1"));
    assert!(labels(r#"{"0": 1}"#).is_err());
    assert!(labels("7").is_err());
    assert!(labels("").is_err());
}

/// An image of another size.
fn sized(side: usize) -> NetworkOptions {
    NetworkOptions {
        shapes: [("input".to_string(), Shape::from([1, 3, side, side]))].into(),
        ..NetworkOptions::default()
    }
}

/// The parameters of a network from seed 3, by name.
fn seeded(name: &str) -> BTreeMap<String, Tensor> {
    struct Kept(BTreeMap<String, Tensor>);
    impl ParameterSource for Kept {
        fn take(&mut self, name: &str, shape: &Shape, init: Init) -> Result<Tensor, ZooError> {
            let tensor = Seeded(3).take(name, shape, init)?;
            self.0.insert(name.to_string(), tensor.clone());
            Ok(tensor)
        }
    }
    let mut kept = Kept(BTreeMap::new());
    build(name, 1, &mut kept, &NetworkOptions::default()).unwrap();
    kept.0
}

fn logits(model: &Network, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let shape = &model.graph.ty(model.graph.inputs()[0]).shape;
    let input = Tensor::from_fn(shape.clone(), |_| random.uniform(-1.7, 1.7));
    ir::evaluate(&model.graph, &[input]).unwrap()[0].to_f64()
}

/// From OIHW to HWIO.
fn channels_last(kernel: &Tensor) -> Tensor {
    let &[outputs, inputs, rows, columns] = &kernel.shape()[..] else { panic!("kernels have four dimensions") };
    let items: &[f32] = kernel.as_slice().unwrap();
    Tensor::from_fn(Shape::from([rows, columns, inputs, outputs]), |at| {
        let (cell, input, output) = (at / outputs / inputs, at / outputs % inputs, at % outputs);
        items[(output * inputs + input) * rows * columns + cell]
    })
}
