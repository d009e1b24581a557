//! The networks, one family a file: torchvision's and those that read words or patches here, other collections in
//! folders.

pub(crate) mod alexnet;
pub(crate) mod bert;
pub(crate) mod densenet;
pub(crate) mod dlbs;
pub(crate) mod efficientnet_lite;
pub(crate) mod gluon;
pub(crate) mod googlenet;
pub(crate) mod gpt2;
pub(crate) mod inception;
pub(crate) mod lenet;
pub(crate) mod mnist_cnn;
pub(crate) mod mobilenet;
pub(crate) mod recurrent;
pub(crate) mod residual;
pub(crate) mod resnet;
pub(crate) mod sockeye;
pub(crate) mod squeezenet;
pub(crate) mod transformer;
pub(crate) mod vgg;
pub(crate) mod vit;
