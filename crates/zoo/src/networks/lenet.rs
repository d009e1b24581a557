//! LeNet-5 (LeCun et al. 1998) in the form that is taught today: 28x28 digits padded by 2, relu for the sigmoids, max
//! pooling for the trainable subsampling, every map of the second convolution connected, linear output.

use ir::ValueId;

use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = b.conv_bias(x, "conv1", 6, Window::square(5).centred())?;
    let x = b.relu(x, "relu1")?;
    let x = b.max_pool(x, "pool1", Window::square(2).stride(2))?;
    let x = b.conv_bias(x, "conv2", 16, Window::square(5))?;
    let x = b.relu(x, "relu2")?;
    let x = b.max_pool(x, "pool2", Window::square(2).stride(2))?;
    let x = b.flatten(x, "flatten")?;
    let x = b.linear(x, "fc1", 120)?;
    let x = b.relu(x, "relu3")?;
    let x = b.linear(x, "fc2", 84)?;
    let x = b.relu(x, "relu4")?;
    b.linear(x, "fc3", 10)
}
