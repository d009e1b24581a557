//! The list of networks: one row each, sorted.

use ir::ValueId;

use crate::networks::{
    alexnet, densenet, efficientnet_lite, googlenet, inception, lenet, mobilenet, resnet, squeezenet, vgg,
};
use crate::{Builder, ZooError};

/// Appends a network to its input and yields the logits.
pub(crate) type Network = fn(&mut Builder, ValueId) -> Result<ValueId, ZooError>;

/// One network.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The name it is built by: torchvision's, where torchvision has it.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// Learned parameters, as published; running statistics of batch norms are not among them.
    pub parameters: u64,
    /// Channels, rows and columns of the input.
    pub input: [usize; 3],
    /// The number of classes.
    pub classes: usize,
    pub(crate) network: Network,
}

/// All networks, sorted by name.
pub fn list() -> &'static [Spec] {
    NETWORKS
}

/// The network of that name. Upper case and `-`, `_`, `.` do not matter.
pub fn find(name: &str) -> Option<&'static Spec> {
    NETWORKS.iter().find(|spec| fold(spec.name) == fold(name))
}

const RGB_224: [usize; 3] = [3, 224, 224];

const fn row(name: &'static str, title: &'static str, parameters: u64, network: Network) -> Spec {
    Spec { name, title, parameters, input: RGB_224, classes: 1000, network }
}

const NETWORKS: &[Spec] = &[
    row("alexnet", "AlexNet", 61_100_840, alexnet::build),
    row("densenet121", "DenseNet-121", 7_978_856, |b, x| densenet::build(b, x, [6, 12, 24, 16])),
    row("efficientnet_lite0", "EfficientNet-Lite0", 4_652_008, efficientnet_lite::build),
    row("googlenet", "GoogLeNet", 6_624_904, googlenet::build),
    Spec { input: [3, 299, 299], ..row("inception_v3", "Inception v3", 23_834_568, inception::build) },
    Spec { input: [1, 28, 28], classes: 10, ..row("lenet", "LeNet-5", 61_706, lenet::build) },
    row("mobilenet_v2", "MobileNet v2", 3_504_872, mobilenet::build),
    row("resnet101", "ResNet-101", 44_549_160, |b, x| resnet::build(b, x, resnet::bottleneck, [3, 4, 23, 3])),
    row("resnet152", "ResNet-152", 60_192_808, |b, x| resnet::build(b, x, resnet::bottleneck, [3, 8, 36, 3])),
    row("resnet18", "ResNet-18", 11_689_512, |b, x| resnet::build(b, x, resnet::basic, [2, 2, 2, 2])),
    row("resnet34", "ResNet-34", 21_797_672, |b, x| resnet::build(b, x, resnet::basic, [3, 4, 6, 3])),
    row("resnet50", "ResNet-50", 25_557_032, |b, x| resnet::build(b, x, resnet::bottleneck, [3, 4, 6, 3])),
    row("squeezenet1_0", "SqueezeNet 1.0", 1_248_424, squeezenet::v1_0),
    row("squeezenet1_1", "SqueezeNet 1.1", 1_235_496, squeezenet::v1_1),
    row("vgg11", "VGG-11", 132_863_336, |b, x| vgg::build(b, x, vgg::Norm::None, [1, 1, 2, 2, 2])),
    row("vgg11_bn", "VGG-11 with batch norm", 132_868_840, |b, x| vgg::build(b, x, vgg::Norm::Batch, [1, 1, 2, 2, 2])),
    row("vgg13", "VGG-13", 133_047_848, |b, x| vgg::build(b, x, vgg::Norm::None, [2, 2, 2, 2, 2])),
    row("vgg13_bn", "VGG-13 with batch norm", 133_053_736, |b, x| vgg::build(b, x, vgg::Norm::Batch, [2, 2, 2, 2, 2])),
    row("vgg16", "VGG-16", 138_357_544, |b, x| vgg::build(b, x, vgg::Norm::None, [2, 2, 3, 3, 3])),
    row("vgg16_bn", "VGG-16 with batch norm", 138_365_992, |b, x| vgg::build(b, x, vgg::Norm::Batch, [2, 2, 3, 3, 3])),
    row("vgg19", "VGG-19", 143_667_240, |b, x| vgg::build(b, x, vgg::Norm::None, [2, 2, 4, 4, 4])),
    row("vgg19_bn", "VGG-19 with batch norm", 143_678_248, |b, x| vgg::build(b, x, vgg::Norm::Batch, [2, 2, 4, 4, 4])),
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
        true => format!("there are {}", quoted(NETWORKS.iter().map(|spec| spec.name).collect())),
        false => format!("near are {}", quoted(near.into_iter().map(|(_, name)| name).take(4).collect())),
    };
    ZooError::Unknown { name: name.to_string(), hint }
}

/// A name without what does not matter.
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
