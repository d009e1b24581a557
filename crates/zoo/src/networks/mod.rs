//! The networks, one family a file.

pub(crate) mod alexnet;
pub(crate) mod densenet;
pub(crate) mod efficientnet_lite;
pub(crate) mod googlenet;
pub(crate) mod inception;
pub(crate) mod lenet;
pub(crate) mod mobilenet;
pub(crate) mod resnet;
pub(crate) mod squeezenet;
pub(crate) mod vgg;
