//! Inception v3 (Szegedy et al. 2016), as in torchvision at inference: without the auxiliary classifier and without
//! `transform_input`. Blocks A to E are torchvision's.

use ir::ValueId;

use super::googlenet::conv;
use crate::{Builder, Window, ZooError};

pub(crate) fn build(b: &mut Builder, x: ValueId) -> Result<ValueId, ZooError> {
    let x = conv(b, x, "Conv2d_1a_3x3", 32, Window::square(3).stride(2))?;
    let x = conv(b, x, "Conv2d_2a_3x3", 32, Window::square(3))?;
    let x = conv(b, x, "Conv2d_2b_3x3", 64, Window::square(3).centred())?;
    let x = b.max_pool(x, "maxpool1", Window::square(3).stride(2))?;
    let x = conv(b, x, "Conv2d_3b_1x1", 80, Window::square(1))?;
    let x = conv(b, x, "Conv2d_4a_3x3", 192, Window::square(3))?;
    let x = b.max_pool(x, "maxpool2", Window::square(3).stride(2))?;
    let x = block_a(b, x, "Mixed_5b", 32)?;
    let x = block_a(b, x, "Mixed_5c", 64)?;
    let x = block_a(b, x, "Mixed_5d", 64)?;
    let x = block_b(b, x, "Mixed_6a")?;
    let x = block_c(b, x, "Mixed_6b", 128)?;
    let x = block_c(b, x, "Mixed_6c", 160)?;
    let x = block_c(b, x, "Mixed_6d", 160)?;
    let x = block_c(b, x, "Mixed_6e", 192)?;
    let x = block_d(b, x, "Mixed_7a")?;
    let x = block_e(b, x, "Mixed_7b")?;
    let x = block_e(b, x, "Mixed_7c")?;
    let x = b.global_mean(x, "avgpool")?;
    b.linear(x, "fc", 1000)
}

/// 1x1, 5x5, twice 3x3, pooling.
fn block_a(b: &mut Builder, x: ValueId, name: &str, pooled: usize) -> Result<ValueId, ZooError> {
    let one = conv(b, x, &format!("{name}.branch1x1"), 64, Window::square(1))?;
    let five = conv(b, x, &format!("{name}.branch5x5_1"), 48, Window::square(1))?;
    let five = conv(b, five, &format!("{name}.branch5x5_2"), 64, Window::square(5).centred())?;
    let double = conv(b, x, &format!("{name}.branch3x3dbl_1"), 64, Window::square(1))?;
    let double = conv(b, double, &format!("{name}.branch3x3dbl_2"), 96, Window::square(3).centred())?;
    let double = conv(b, double, &format!("{name}.branch3x3dbl_3"), 96, Window::square(3).centred())?;
    let pool = branch_pool(b, x, name, pooled)?;
    b.concat(&[one, five, double, pool], &format!("{name}.concat"))
}

/// Halves rows and columns: 3x3, twice 3x3, pooling.
fn block_b(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let three = conv(b, x, &format!("{name}.branch3x3"), 384, Window::square(3).stride(2))?;
    let double = conv(b, x, &format!("{name}.branch3x3dbl_1"), 64, Window::square(1))?;
    let double = conv(b, double, &format!("{name}.branch3x3dbl_2"), 96, Window::square(3).centred())?;
    let double = conv(b, double, &format!("{name}.branch3x3dbl_3"), 96, Window::square(3).stride(2))?;
    let pool = b.max_pool(x, &format!("{name}.branch_pool"), Window::square(3).stride(2))?;
    b.concat(&[three, double, pool], &format!("{name}.concat"))
}

/// 1x1, 7x7 in two pieces, twice 7x7 in two pieces, pooling. `inner`: channels between the pieces.
fn block_c(b: &mut Builder, x: ValueId, name: &str, inner: usize) -> Result<ValueId, ZooError> {
    let (wide, tall) = (Window::cells(1, 7).centred(), Window::cells(7, 1).centred());
    let one = conv(b, x, &format!("{name}.branch1x1"), 192, Window::square(1))?;
    let seven = conv(b, x, &format!("{name}.branch7x7_1"), inner, Window::square(1))?;
    let seven = conv(b, seven, &format!("{name}.branch7x7_2"), inner, wide)?;
    let seven = conv(b, seven, &format!("{name}.branch7x7_3"), 192, tall)?;
    let double = conv(b, x, &format!("{name}.branch7x7dbl_1"), inner, Window::square(1))?;
    let double = conv(b, double, &format!("{name}.branch7x7dbl_2"), inner, tall)?;
    let double = conv(b, double, &format!("{name}.branch7x7dbl_3"), inner, wide)?;
    let double = conv(b, double, &format!("{name}.branch7x7dbl_4"), inner, tall)?;
    let double = conv(b, double, &format!("{name}.branch7x7dbl_5"), 192, wide)?;
    let pool = branch_pool(b, x, name, 192)?;
    b.concat(&[one, seven, double, pool], &format!("{name}.concat"))
}

/// Halves rows and columns: 3x3, 7x7 in two pieces and 3x3, pooling.
fn block_d(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let three = conv(b, x, &format!("{name}.branch3x3_1"), 192, Window::square(1))?;
    let three = conv(b, three, &format!("{name}.branch3x3_2"), 320, Window::square(3).stride(2))?;
    let seven = conv(b, x, &format!("{name}.branch7x7x3_1"), 192, Window::square(1))?;
    let seven = conv(b, seven, &format!("{name}.branch7x7x3_2"), 192, Window::cells(1, 7).centred())?;
    let seven = conv(b, seven, &format!("{name}.branch7x7x3_3"), 192, Window::cells(7, 1).centred())?;
    let seven = conv(b, seven, &format!("{name}.branch7x7x3_4"), 192, Window::square(3).stride(2))?;
    let pool = b.max_pool(x, &format!("{name}.branch_pool"), Window::square(3).stride(2))?;
    b.concat(&[three, seven, pool], &format!("{name}.concat"))
}

/// 1x1, 3x3 as a pair, twice 3x3 as a pair, pooling. A pair is 1x3 parallel to 3x1.
fn block_e(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let one = conv(b, x, &format!("{name}.branch1x1"), 320, Window::square(1))?;
    let three = conv(b, x, &format!("{name}.branch3x3_1"), 384, Window::square(1))?;
    let three = pair(b, three, &format!("{name}.branch3x3_2"))?;
    let double = conv(b, x, &format!("{name}.branch3x3dbl_1"), 448, Window::square(1))?;
    let double = conv(b, double, &format!("{name}.branch3x3dbl_2"), 384, Window::square(3).centred())?;
    let double = pair(b, double, &format!("{name}.branch3x3dbl_3"))?;
    let pool = branch_pool(b, x, name, 192)?;
    b.concat(&[one, three, double, pool], &format!("{name}.concat"))
}

fn pair(b: &mut Builder, x: ValueId, name: &str) -> Result<ValueId, ZooError> {
    let wide = conv(b, x, &format!("{name}a"), 384, Window::cells(1, 3).centred())?;
    let tall = conv(b, x, &format!("{name}b"), 384, Window::cells(3, 1).centred())?;
    b.concat(&[wide, tall], &format!("{name}.concat"))
}

fn branch_pool(b: &mut Builder, x: ValueId, name: &str, out: usize) -> Result<ValueId, ZooError> {
    let x = b.mean_pool(x, &format!("{name}.avg_pool"), Window::square(3).centred())?;
    conv(b, x, &format!("{name}.branch_pool"), out, Window::square(1))
}
