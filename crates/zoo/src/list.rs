//! The list of networks: one row each, sorted.

use ir::ValueId;
use types::DType;

use crate::builder::Dialect;
use crate::networks::residual::Unit;
use crate::networks::{
    alexnet, bert, densenet, dlbs, efficientnet_lite, gluon, googlenet, gpt2, inception, lenet, mnist_cnn, mobilenet,
    resnet, sockeye, squeezenet, vgg, vit,
};
use crate::{Builder, InitialWeights, ZooError};

/// Appends a network to its inputs and yields its output.
pub(crate) type BuildFn = fn(&mut Builder, &[ValueId]) -> Result<ValueId, ZooError>;

/// One network.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The name it is built by: torchvision's, or that of another collection behind the collection's name.
    pub name: &'static str,
    /// The common name.
    pub title: &'static str,
    /// Learned parameters, as published; running statistics of batch norms are not among them.
    pub parameters: u64,
    /// Arithmetic operations of a run at batch 1; a multiply-add counts as two.
    pub flops: u64,
    /// The inputs.
    pub inputs: &'static [Input],
    /// The name of the output: `logits`, `probabilities` or that of the published network.
    pub output: &'static str,
    pub(crate) dialect: Dialect,
    /// Whether images are preprocessed as for torchvision's classifiers.
    pub(crate) imagenet: bool,
    /// The magnitude of initial weights.
    pub(crate) magnitude: f32,
    pub(crate) network: BuildFn,
}

/// An input of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The name.
    pub name: &'static str,
    /// The dtype.
    pub dtype: DType,
    /// The extents behind the batch.
    pub shape: &'static [usize],
    /// Which of these may be chosen otherwise.
    pub(crate) open: &'static [bool],
}

/// All networks, sorted by name.
pub fn list() -> &'static [Spec] {
    NETWORKS
}

/// The network of that name. Upper case and `-`, `_`, `.` do not matter.
pub fn find(name: &str) -> Option<&'static Spec> {
    NETWORKS.iter().find(|spec| fold(spec.name) == fold(name))
}

/// Whether a name is one of a collection's, as `gluon/resnet50_v1` is, and no path.
pub fn is_in_collection(name: &str) -> bool {
    let collection = |name: &str| name.split_once('/').map(|(collection, _)| fold(collection));
    collection(name).is_some_and(|asked| NETWORKS.iter().any(|spec| collection(spec.name).as_ref() == Some(&asked)))
}

const fn picture(shape: &'static [usize]) -> Input {
    Input { name: "input", dtype: DType::F32, shape, open: &[false, true, true] }
}

const fn vector(shape: &'static [usize]) -> Input {
    Input { name: "input", dtype: DType::F32, shape, open: &[false] }
}

const fn tokens(name: &'static str, shape: &'static [usize]) -> Input {
    Input { name, dtype: DType::I64, shape, open: &[true] }
}

const RGB_224: &[Input] = &[picture(&[3, 224, 224])];
const RGB_227: &[Input] = &[picture(&[3, 227, 227])];
const RGB_231: &[Input] = &[picture(&[3, 231, 231])];
const RGB_299: &[Input] = &[picture(&[3, 299, 299])];

/// A network of torchvision.
const fn row(name: &'static str, title: &'static str, parameters: u64, flops: u64, network: BuildFn) -> Spec {
    let (inputs, output, dialect) = (RGB_224, "logits", Dialect::Torch);
    let magnitude = InitialWeights::GLOROT;
    Spec { name, title, parameters, flops, inputs, output, dialect, imagenet: true, magnitude, network }
}

/// A network of gluon's `model_zoo.vision`.
const fn gluon(name: &'static str, title: &'static str, parameters: u64, flops: u64, network: BuildFn) -> Spec {
    Spec { dialect: Dialect::Gluon, ..row(name, title, parameters, flops, network) }
}

/// A network of the Deep Learning Benchmarking Suite, at inference.
const fn dlbs(name: &'static str, title: &'static str, parameters: u64, flops: u64, network: BuildFn) -> Spec {
    let (dialect, output) = (Dialect::Symbol, "probabilities");
    Spec { dialect, output, imagenet: false, ..row(name, title, parameters, flops, network) }
}

const NETWORKS: &[Spec] = &[
    row("alexnet", "AlexNet", 61_100_840, 1_430_159_208, |b, x| alexnet::build(b, x[0])),
    Spec {
        inputs: &[tokens("input_ids", &[128]), tokens("token_type_ids", &[128]), tokens("attention_mask", &[128])],
        output: "last_hidden_state",
        imagenet: false,
        ..row("all_minilm_l6_v2", "all-MiniLM-L6-v2", 22_713_216, 2_885_371_649, bert::all_minilm_l6_v2)
    },
    Spec {
        inputs: &[tokens("input_ids", &[128]), tokens("token_type_ids", &[128]), tokens("attention_mask", &[128])],
        output: "last_hidden_state",
        imagenet: false,
        ..row("bert_base", "BERT base, uncased", 109_482_240, 22_397_683_456, bert::base)
    },
    row("densenet121", "DenseNet-121", 7_978_856, 5_717_885_672, |b, x| densenet::build(b, x[0], [6, 12, 24, 16])),
    Spec {
        inputs: &[vector(&[540])],
        ..dlbs("dlbs/acoustic_model", "AcousticModel", 34_678_784, 69_382_144, |b, x| {
            dlbs::dense::build(b, x[0], &[2048; 5], 8192)
        })
    },
    Spec {
        inputs: RGB_227,
        ..dlbs("dlbs/alexnet", "AlexNet", 62_378_344, 2_276_752_104, |b, x| dlbs::alexnet::build(b, x[0]))
    },
    Spec {
        inputs: RGB_227,
        ..dlbs("dlbs/alexnet_owt", "AlexNetOWT", 61_100_840, 1_430_163_208, |b, x| dlbs::alexnet::owt(b, x[0]))
    },
    Spec {
        inputs: &[vector(&[784])],
        ..dlbs("dlbs/deep_mnist", "DeepMNIST", 11_972_510, 23_945_050, |b, x| {
            dlbs::dense::build(b, x[0], &[2500, 2000, 1500, 1000, 500], 10)
        })
    },
    Spec {
        inputs: &[picture(&[1, 200, 161])],
        ..dlbs("dlbs/deep_speech2", "DeepSpeech2", 67_819_562, 10_511_357_270, |b, x| {
            dlbs::deep_speech2::build(b, x[0])
        })
    },
    dlbs("dlbs/googlenet", "GoogleNet", 6_998_552, 2_951_707_960, |b, x| dlbs::googlenet::build(b, x[0])),
    Spec {
        inputs: RGB_299,
        ..dlbs("dlbs/inception3", "InceptionV3", 23_834_568, 11_477_870_088, |b, x| dlbs::inception::v3(b, x[0]))
    },
    Spec {
        inputs: RGB_299,
        ..dlbs("dlbs/inception4", "InceptionV4", 42_679_816, 24_598_327_592, |b, x| dlbs::inception::v4(b, x[0]))
    },
    Spec {
        inputs: RGB_299,
        ..dlbs("dlbs/inception_resnet_v2", "InceptionResNetV2", 56_009_476, 26_446_015_512, |b, x| {
            dlbs::inception_resnet::build(b, x[0])
        })
    },
    Spec {
        inputs: RGB_231,
        ..dlbs("dlbs/overfeat", "Overfeat", 145_920_872, 5_605_057_416, |b, x| dlbs::alexnet::overfeat(b, x[0]))
    },
    dlbs("dlbs/resnet101", "ResNet101", 44_549_160, 15_660_844_424, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Bottleneck, [3, 4, 23, 3])
    }),
    dlbs("dlbs/resnet152", "ResNet152", 60_192_808, 23_108_468_104, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Bottleneck, [3, 8, 36, 3])
    }),
    dlbs("dlbs/resnet18", "ResNet18", 11_693_736, 3_664_102_792, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Basic, [2, 2, 2, 2])
    }),
    dlbs("dlbs/resnet200", "ResNet200", 64_673_832, 30_131_502_472, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Bottleneck, [3, 24, 36, 3])
    }),
    dlbs("dlbs/resnet269", "ResNet269", 102_073_384, 40_205_588_872, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Bottleneck, [3, 30, 48, 8])
    }),
    dlbs("dlbs/resnet34", "ResNet34", 21_801_896, 7_367_869_320, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Basic, [3, 4, 6, 3])
    }),
    dlbs("dlbs/resnet50", "ResNet50", 25_557_032, 8_217_636_232, |b, x| {
        dlbs::resnet::build(b, x[0], Unit::Bottleneck, [3, 4, 6, 3])
    }),
    Spec {
        inputs: &[vector(&[784])],
        ..dlbs("dlbs/sensor_net", "SensorNet", 2_919_440, 5_838_928, |b, x| dlbs::dense::build(b, x[0], &[1024; 3], 16))
    },
    dlbs("dlbs/vgg11", "VGG11", 132_863_336, 15_239_175_048, |b, x| dlbs::vgg::build(b, x[0], [1, 1, 2, 2, 2])),
    dlbs("dlbs/vgg13", "VGG13", 133_047_848, 22_647_561_096, |b, x| dlbs::vgg::build(b, x[0], [2, 2, 2, 2, 2])),
    dlbs("dlbs/vgg16", "VGG16", 138_357_544, 30_973_766_536, |b, x| dlbs::vgg::build(b, x[0], [2, 2, 3, 3, 3])),
    dlbs("dlbs/vgg19", "VGG19", 143_667_240, 39_299_971_976, |b, x| dlbs::vgg::build(b, x[0], [2, 2, 4, 4, 4])),
    row("efficientnet_lite0", "EfficientNet-Lite0", 4_652_008, 790_281_864, |b, x| efficientnet_lite::build(b, x[0])),
    gluon("gluon/alexnet", "AlexNet", 61_100_840, 1_430_159_208, |b, x| gluon::alexnet::build(b, x[0])),
    gluon("gluon/densenet121", "DenseNet-121", 7_978_856, 5_717_885_672, |b, x| {
        gluon::densenet::build(b, x[0], 64, 32, [6, 12, 24, 16])
    }),
    gluon("gluon/densenet161", "DenseNet-161", 28_681_000, 15_547_985_320, |b, x| {
        gluon::densenet::build(b, x[0], 96, 48, [6, 12, 36, 24])
    }),
    gluon("gluon/densenet169", "DenseNet-169", 14_149_480, 6_779_372_008, |b, x| {
        gluon::densenet::build(b, x[0], 64, 32, [6, 12, 32, 32])
    }),
    gluon("gluon/densenet201", "DenseNet-201", 20_013_928, 8_659_527_144, |b, x| {
        gluon::densenet::build(b, x[0], 64, 32, [6, 12, 48, 32])
    }),
    Spec {
        inputs: RGB_299,
        ..gluon("gluon/inceptionv3", "Inception v3", 23_834_568, 11_477_866_088, |b, x| {
            gluon::inception::build(b, x[0])
        })
    },
    gluon("gluon/mobilenet0.25", "MobileNet 0.25", 470_072, 85_856_104, |b, x| gluon::mobilenet::v1(b, x[0], 1)),
    gluon("gluon/mobilenet0.5", "MobileNet 0.5", 1_331_592, 306_584_296, |b, x| gluon::mobilenet::v1(b, x[0], 2)),
    gluon("gluon/mobilenet0.75", "MobileNet 0.75", 2_585_560, 662_185_576, |b, x| gluon::mobilenet::v1(b, x[0], 3)),
    gluon("gluon/mobilenet1.0", "MobileNet 1.0", 4_231_976, 1_152_659_944, |b, x| gluon::mobilenet::v1(b, x[0], 4)),
    gluon("gluon/mobilenetv2_0.25", "MobileNet v2 0.25", 1_516_392, 66_386_224, |b, x| {
        gluon::mobilenet::v2(b, x[0], 1)
    }),
    gluon("gluon/mobilenetv2_0.5", "MobileNet v2 0.5", 1_964_736, 195_140_192, |b, x| gluon::mobilenet::v2(b, x[0], 2)),
    gluon("gluon/mobilenetv2_0.75", "MobileNet v2 0.75", 2_627_592, 389_072_784, |b, x| {
        gluon::mobilenet::v2(b, x[0], 3)
    }),
    gluon("gluon/mobilenetv2_1.0", "MobileNet v2 1.0", 3_504_960, 648_184_000, |b, x| gluon::mobilenet::v2(b, x[0], 4)),
    gluon("gluon/resnet101_v1", "ResNet-101 v1", 44_589_800, 15_208_002_024, |b, x| {
        gluon::resnet::v1(b, x[0], Unit::Bottleneck, [3, 4, 23, 3])
    }),
    gluon("gluon/resnet101_v2", "ResNet-101 v2", 44_541_614, 15_658_733_032, |b, x| {
        gluon::resnet::v2(b, x[0], Unit::Bottleneck, [3, 4, 23, 3])
    }),
    gluon("gluon/resnet152_v1", "ResNet-152 v1", 60_252_648, 22_660_894_184, |b, x| {
        gluon::resnet::v1(b, x[0], Unit::Bottleneck, [3, 8, 36, 3])
    }),
    gluon("gluon/resnet152_v2", "ResNet-152 v2", 60_185_262, 23_106_356_712, |b, x| {
        gluon::resnet::v2(b, x[0], Unit::Bottleneck, [3, 8, 36, 3])
    }),
    gluon("gluon/resnet18_v1", "ResNet-18 v1", 11_689_512, 3_638_007_272, |b, x| {
        gluon::resnet::v1(b, x[0], Unit::Basic, [2, 2, 2, 2])
    }),
    gluon("gluon/resnet18_v2", "ResNet-18 v2", 11_687_854, 3_638_559_208, |b, x| {
        gluon::resnet::v2(b, x[0], Unit::Basic, [2, 2, 2, 2])
    }),
    gluon("gluon/resnet34_v1", "ResNet-34 v1", 21_797_672, 7_341_773_800, |b, x| {
        gluon::resnet::v1(b, x[0], Unit::Basic, [3, 4, 6, 3])
    }),
    gluon("gluon/resnet34_v2", "ResNet-34 v2", 21_796_014, 7_342_325_736, |b, x| {
        gluon::resnet::v2(b, x[0], Unit::Basic, [3, 4, 6, 3])
    }),
    gluon("gluon/resnet50_v1", "ResNet-50 v1", 25_575_912, 7_760_528_872, |b, x| {
        gluon::resnet::v1(b, x[0], Unit::Bottleneck, [3, 4, 6, 3])
    }),
    gluon("gluon/resnet50_v2", "ResNet-50 v2", 25_549_486, 8_215_524_840, |b, x| {
        gluon::resnet::v2(b, x[0], Unit::Bottleneck, [3, 4, 6, 3])
    }),
    gluon("gluon/squeezenet1.0", "SqueezeNet 1.0", 1_248_424, 1_651_688_440, |b, x| gluon::squeezenet::v1_0(b, x[0])),
    gluon("gluon/squeezenet1.1", "SqueezeNet 1.1", 1_235_496, 706_623_160, |b, x| gluon::squeezenet::v1_1(b, x[0])),
    gluon("gluon/vgg11", "VGG-11", 132_863_336, 15_239_171_048, |b, x| {
        gluon::vgg::build(b, x[0], false, [1, 1, 2, 2, 2])
    }),
    gluon("gluon/vgg11_bn", "VGG-11 with batch norm", 132_868_840, 15_254_023_144, |b, x| {
        gluon::vgg::build(b, x[0], true, [1, 1, 2, 2, 2])
    }),
    gluon("gluon/vgg13", "VGG-13", 133_047_848, 22_647_557_096, |b, x| {
        gluon::vgg::build(b, x[0], false, [2, 2, 2, 2, 2])
    }),
    gluon("gluon/vgg13_bn", "VGG-13 with batch norm", 133_053_736, 22_672_042_984, |b, x| {
        gluon::vgg::build(b, x[0], true, [2, 2, 2, 2, 2])
    }),
    gluon("gluon/vgg16", "VGG-16", 138_357_544, 30_973_762_536, |b, x| {
        gluon::vgg::build(b, x[0], false, [2, 2, 3, 3, 3])
    }),
    gluon("gluon/vgg16_bn", "VGG-16 with batch norm", 138_365_992, 31_000_857_576, |b, x| {
        gluon::vgg::build(b, x[0], true, [2, 2, 3, 3, 3])
    }),
    gluon("gluon/vgg19", "VGG-19", 143_667_240, 39_299_967_976, |b, x| {
        gluon::vgg::build(b, x[0], false, [2, 2, 4, 4, 4])
    }),
    gluon("gluon/vgg19_bn", "VGG-19 with batch norm", 143_678_248, 39_329_672_168, |b, x| {
        gluon::vgg::build(b, x[0], true, [2, 2, 4, 4, 4])
    }),
    row("googlenet", "GoogLeNet", 6_624_904, 3_019_035_448, |b, x| googlenet::build(b, x[0])),
    Spec {
        inputs: &[tokens("input_ids", &[128])],
        imagenet: false,
        ..row("gpt2", "GPT-2 small", 124_439_808, 32_277_331_968, gpt2::small)
    },
    Spec {
        inputs: RGB_299,
        ..row("inception_v3", "Inception v3", 23_834_568, 11_477_866_088, |b, x| inception::build(b, x[0]))
    },
    Spec {
        inputs: &[picture(&[1, 28, 28])],
        imagenet: false,
        ..row("lenet", "LeNet-5", 61_706, 852_370, |b, x| lenet::build(b, x[0]))
    },
    Spec {
        inputs: &[Input { name: "data", dtype: DType::F32, shape: &[1, 28, 28], open: &[false, false, false] }],
        dialect: Dialect::Symbol,
        imagenet: false,
        magnitude: 2.24,
        ..row("mnist_cnn", "CNN for MNIST (FASRC)", 431_080, 4_631_180, |b, x| mnist_cnn::build(b, x[0]))
    },
    row("mobilenet_v2", "MobileNet v2", 3_504_872, 621_290_664, |b, x| mobilenet::build(b, x[0])),
    row("resnet101", "ResNet-101", 44_549_160, 15_660_840_424, |b, x| {
        resnet::build(b, x[0], resnet::bottleneck, [3, 4, 23, 3])
    }),
    row("resnet152", "ResNet-152", 60_192_808, 23_108_464_104, |b, x| {
        resnet::build(b, x[0], resnet::bottleneck, [3, 8, 36, 3])
    }),
    row("resnet18", "ResNet-18", 11_689_512, 3_638_007_272, |b, x| resnet::build(b, x[0], resnet::basic, [2, 2, 2, 2])),
    row("resnet34", "ResNet-34", 21_797_672, 7_341_773_800, |b, x| resnet::build(b, x[0], resnet::basic, [3, 4, 6, 3])),
    row("resnet50", "ResNet-50", 25_557_032, 8_217_632_232, |b, x| {
        resnet::build(b, x[0], resnet::bottleneck, [3, 4, 6, 3])
    }),
    Spec {
        inputs: &[tokens("source", &[61]), tokens("target", &[61])],
        output: "probabilities",
        dialect: Dialect::Symbol,
        imagenet: false,
        ..row("sockeye", "Sockeye's LSTM with attention", 35_479_345, 2_405_060_354, sockeye::published)
    },
    row("squeezenet1_0", "SqueezeNet 1.0", 1_248_424, 1_651_688_440, |b, x| squeezenet::v1_0(b, x[0])),
    row("squeezenet1_1", "SqueezeNet 1.1", 1_235_496, 706_623_160, |b, x| squeezenet::v1_1(b, x[0])),
    row("vgg11", "VGG-11", 132_863_336, 15_239_171_048, |b, x| vgg::build(b, x[0], vgg::Norm::None, [1, 1, 2, 2, 2])),
    row("vgg11_bn", "VGG-11 with batch norm", 132_868_840, 15_254_023_144, |b, x| {
        vgg::build(b, x[0], vgg::Norm::Batch, [1, 1, 2, 2, 2])
    }),
    row("vgg13", "VGG-13", 133_047_848, 22_647_557_096, |b, x| vgg::build(b, x[0], vgg::Norm::None, [2, 2, 2, 2, 2])),
    row("vgg13_bn", "VGG-13 with batch norm", 133_053_736, 22_672_042_984, |b, x| {
        vgg::build(b, x[0], vgg::Norm::Batch, [2, 2, 2, 2, 2])
    }),
    row("vgg16", "VGG-16", 138_357_544, 30_973_762_536, |b, x| vgg::build(b, x[0], vgg::Norm::None, [2, 2, 3, 3, 3])),
    row("vgg16_bn", "VGG-16 with batch norm", 138_365_992, 31_000_857_576, |b, x| {
        vgg::build(b, x[0], vgg::Norm::Batch, [2, 2, 3, 3, 3])
    }),
    row("vgg19", "VGG-19", 143_667_240, 39_299_967_976, |b, x| vgg::build(b, x[0], vgg::Norm::None, [2, 2, 4, 4, 4])),
    row("vgg19_bn", "VGG-19 with batch norm", 143_678_248, 39_329_672_168, |b, x| {
        vgg::build(b, x[0], vgg::Norm::Batch, [2, 2, 4, 4, 4])
    }),
    row("vit_b_16", "ViT-B/16", 86_567_656, 35_208_558_136, vit::b_16),
];

/// The error for a name that is not on the list, with names that are near.
pub(crate) fn unknown(name: &str) -> ZooError {
    let asked = fold(name);
    let limit = 2.max(asked.len() / 3);
    let mut near: Vec<(usize, &str)> =
        NETWORKS.iter().map(|spec| (distance(&asked, &fold(spec.name)), spec.name)).collect();
    near.retain(|(distance, _)| *distance <= limit);
    near.sort();
    let quoted = |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let hint = match near.is_empty() {
        true => String::new(),
        false => format!("; similar names are {}", quoted(near.into_iter().map(|(_, name)| name).take(4).collect())),
    };
    ZooError::Unknown { name: name.to_string(), hint }
}

/// A name without separators and case.
pub(crate) fn fold(name: &str) -> String {
    name.chars().filter(|char| !matches!(char, '-' | '_' | '.' | ' ')).flat_map(char::to_lowercase).collect()
}

/// Levenshtein's distance: insertions, removals and replacements from one text to another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (ix, a_char) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = ix + 1;
        for (at, b_char) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a_char != *b_char);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(distance("resnet51", "resnet50"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
