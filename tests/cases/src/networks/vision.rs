//! Networks over images as they are published: hourglasses, pyramids, excitation, inception, shuffled groups, generators,
//! towers with shared weights, several inputs and outputs.

use ir::Op;
use ir::ValueId;
use ir::ops::{Binary, Conv, ConvTranspose, Epilogue, MatMul, Reduce, ReduceKind, Slice};
use types::{Shape, pointwise};

use super::Net;
use crate::{F, dims};

impl Net {
    /// Downward and upward again, with a sum at each extent.
    pub(super) fn hourglass(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 7, 12, 17]);
        let (extent, depth) = if full { (64, 4) } else { (16, 2) };
        let x = self.input(3, extent);
        let mut x = self.conv(x, width, 3, 1);
        for _ in 0..2 {
            let mut skips = Vec::new();
            for level in 0..depth {
                skips.push(self.conv(x, width + 2 * level, 3, 1));
                x = self.pool(x, 2, 2);
                x = self.conv(x, width + 2 * (level + 1), 3, 1);
                x = self.relu(x);
            }
            for skip in skips.into_iter().rev() {
                x = self.conv(x, self.channels(skip), 1, 1);
                x = self.resize(x, self.extent(skip));
                x = self.sum(x, skip);
            }
        }
        self.output(x);
        format!("{depth} levels of width {width}, {extent} pixels")
    }

    /// Convolutions of several dilations and the mean of the image, concatenated.
    pub(super) fn atrous(&mut self, full: bool) -> String {
        let (width, first) = (self.pick(&[5, 16, 21]), self.pick(&[7, 24, 40]));
        let extent = if full { 48 } else { self.between(10, 18) };
        let x = self.input(3, extent);
        let x = self.conv(x, first, 3, 1);
        let x = self.relu(x);
        let mut parts = vec![self.conv(x, width, 1, 1)];
        for rate in [1, 2, 4] {
            let geometry = Conv { dilation: dims(&[rate; 2]), ..Conv::square(1, rate) };
            let part = self.conv_with(x, width, [3, 3], geometry);
            parts.push(self.relu(part));
        }
        let mean = self.mean_of_image(x);
        let mean = self.conv(mean, width, 1, 1);
        parts.push(self.resize(mean, extent));
        let whole = self.concat(&parts);
        let y = self.conv(whole, 5, 1, 1);
        self.output(y);
        format!("branches of width {width}, {extent} pixels")
    }

    /// Inverted residuals whose channels are scaled by a function of their means.
    pub(super) fn excitation(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 7, 11, 16]);
        let (extent, blocks) = if full { (56, 6) } else { (self.between(12, 20), 2) };
        let x = self.input(3, extent);
        let mut x = self.conv(x, width, 3, 1);
        for block in 0..blocks {
            let stride = if block % 3 == 2 { 2 } else { 1 };
            let kernel = self.pick(&[3, 5]);
            let wide = self.conv(x, 4 * width, 1, 1);
            let wide = self.unary(wide, pointwise::Unary::HardSwish);
            let deep = self.depthwise(wide, kernel, stride);
            let deep = self.norm(deep);
            let mut scale = self.mean_of_image(deep);
            scale = self.conv(scale, width.div_ceil(2), 1, 1);
            scale = self.relu(scale);
            scale = self.conv(scale, 4 * width, 1, 1);
            scale = self.unary(scale, pointwise::Unary::Sigmoid);
            let scaled = self.product(deep, scale);
            let narrow = self.conv(scaled, width, 1, 1);
            x = if stride == 1 { self.sum(x, narrow) } else { narrow };
        }
        self.output(x);
        format!("{blocks} blocks of width {width}, {extent} pixels")
    }

    /// Modules of branches, among them a pool and pairs of `1 x n` and `n x 1`; some reduce the extent.
    pub(super) fn inception(&mut self, full: bool) -> String {
        let (extent, modules) = if full { (35, 6) } else { (self.between(11, 17), 3) };
        let width = self.pick(&[6, 12, 19]);
        let x = self.input(3, extent);
        let mut x = self.conv(x, 2 * width, 3, 1);
        for module in 0..modules {
            let parts = if module % 3 == 2 {
                let strided = self.conv(x, width, 3, 2);
                let deep = self.conv(x, width - 1, 1, 1);
                let deep = self.conv(deep, width + 3, 3, 2);
                vec![strided, deep, self.pool(x, 3, 2)]
            } else {
                let one = self.conv(x, width, 1, 1);
                let mut long = self.conv(x, width - 2, 1, 1);
                for kernel in [[1, 7], [7, 1]] {
                    let pad = kernel.map(|extent| [extent / 2; 2]);
                    long = self.conv_with(long, width, kernel, Conv { pad: dims(&pad), ..Conv::square(1, 0) });
                    long = self.relu(long);
                }
                let pooled = self.pool(x, 3, 1);
                vec![one, long, self.conv(pooled, width + 1, 1, 1)]
            };
            let whole = self.concat(&parts);
            x = self.relu(whole);
        }
        self.output(x);
        format!("{modules} modules of width {width}, {extent} pixels")
    }

    /// Half of the channels pass by, those of grouped convolutions are shuffled.
    pub(super) fn shuffle(&mut self, full: bool) -> String {
        let (groups, half) = (self.pick(&[2, 3]), self.pick(&[6, 12, 30]));
        let (extent, units) = if full { (56, 6) } else { (self.between(10, 16), 2) };
        let x = self.input(3, extent);
        let mut x = self.conv(x, 2 * half, 3, 1);
        for _ in 0..units {
            let [left, right] = [0, half].map(|start| {
                let slice = Slice::range(&self.graph.ty(x).shape, 1, start, half);
                self.add(slice, &[x])
            });
            let grouped = || Conv { groups, ..Conv::square(1, 0) };
            let mut new = self.conv_with(right, half, [1, 1], grouped());
            new = self.relu(new);
            new = self.depthwise(new, 3, 1);
            new = self.conv_with(new, half, [1, 1], grouped());
            let whole = self.concat(&[left, new]);
            let apart = self.reshape(whole, &[1, 2, half, extent, extent]);
            let shuffled = self.transpose(apart, &[0, 2, 1, 3, 4]);
            x = self.reshape(shuffled, &[1, 2 * half, extent, extent]);
        }
        self.output(x);
        format!("{units} units of 2 x {half} channels, {groups} groups, {extent} pixels")
    }

    /// An image from a few numbers by transposed convolutions.
    pub(super) fn generator(&mut self, full: bool) -> String {
        let (width, steps) = (self.pick(&[5, 8, 13]), if full { 5 } else { 3 });
        let start = self.between(2, 3);
        let mut x = self.input(9, start);
        for step in (0..steps).rev() {
            let weight = self.weight(&[self.channels(x), width << step, 4, 4]);
            let op = ConvTranspose {
                stride: dims(&[2, 2]),
                dilation: dims(&[1, 1]),
                pad: dims(&[[1, 1], [1, 1]]),
                output_pad: dims(&[0, 0]),
                groups: 1,
                epilogue: Epilogue::default(),
            };
            x = self.add(Op::ConvTranspose(op), &[x, weight]);
            x = self.norm(x);
            x = self.relu(x);
        }
        let image = self.conv(x, 3, 3, 1);
        let y = self.unary(image, pointwise::Unary::Tanh);
        self.output(y);
        format!("{steps} steps to width {width}, from {start} pixels")
    }

    /// A feature pyramid: outputs at each extent of a backbone, with sums from the smallest to the largest.
    pub(super) fn pyramid(&mut self, full: bool) -> String {
        let (width, out) = (self.pick(&[5, 9, 16]), self.pick(&[7, 20]));
        let (extent, levels) = if full { (64, 4) } else { (16, 3) };
        let mut x = self.input(3, extent);
        let mut features = Vec::new();
        for level in 0..levels {
            x = self.conv(x, width << level, 3, if level == 0 { 1 } else { 2 });
            x = self.relu(x);
            features.push(x);
        }
        let mut outputs: Vec<ValueId> = Vec::new();
        let mut above = None;
        for feature in features.into_iter().rev() {
            let mut own = self.conv(feature, out, 1, 1);
            if let Some(above) = above {
                let moved = self.resize(above, self.extent(own));
                own = self.sum(own, moved);
            }
            above = Some(own);
            outputs.push(self.conv(own, out, 3, 1));
        }
        self.outputs(&outputs);
        format!("{levels} levels of width {width} to {out}, {extent} pixels")
    }

    /// An image, a second one of fewer pixels and a vector that scales and shifts channels.
    pub(super) fn inputs(&mut self, full: bool) -> String {
        let (width, numbers) = (self.pick(&[6, 15, 20]), self.pick(&[3, 10]));
        let extent = if full { 48 } else { 2 * self.between(5, 8) };
        let x = self.input(3, extent);
        let small = self.graph.add_input("small", F, Shape::from([1, 2, extent / 2, extent / 2]));
        let vector = self.graph.add_input("vector", F, Shape::from([1, numbers]));
        let mut x = self.conv(x, width, 3, 1);
        for _ in 0..2 {
            let [scale, shift] = [(); 2].map(|()| {
                let row = self.linear(vector, width);
                self.reshape(row, &[1, width, 1, 1])
            });
            x = self.product(x, scale);
            x = self.sum(x, shift);
            x = self.relu(x);
            x = self.conv(x, width, 3, 1);
        }
        let large = self.resize(small, extent);
        let whole = self.concat(&[x, large]);
        let y = self.conv(whole, 4, 3, 1);
        self.output(y);
        format!("width {width}, {numbers} numbers, {extent} pixels")
    }

    /// Two images by the same weights, and the distance of their features.
    pub(super) fn towers(&mut self, full: bool) -> String {
        let width = self.pick(&[5, 12, 18]);
        let extent = if full { 56 } else { self.between(10, 18) };
        let images = ["left", "right"].map(|name| self.graph.add_input(name, F, Shape::from([1, 3, extent, extent])));
        let shapes = [[width, 3, 3, 3], [2 * width, width, 3, 3], [2 * width, 2 * width, 3, 3]];
        let weights = shapes.map(|shape| self.weight(&shape));
        let features = images.map(|image| {
            let convolved = weights.iter().zip([1, 2, 1]).fold(image, |x, (&weight, stride)| {
                let y = self.add(Op::Conv(Conv::square(stride, 1)), &[x, weight]);
                self.relu(y)
            });
            let mean = self.mean_of_image(convolved);
            self.reshape(mean, &[1, 2 * width])
        });
        let apart = self.add(Binary(pointwise::Binary::Sub), &features);
        let distance = self.unary(apart, pointwise::Unary::Abs);
        let y = self.linear(distance, 1);
        self.output(y);
        format!("width {width}, {extent} pixels")
    }

    pub(super) fn conv_with(&mut self, x: ValueId, out: usize, kernel: [usize; 2], geometry: Conv) -> ValueId {
        let ins = self.channels(x) / geometry.groups;
        let (weight, bias) = (self.weight(&[out, ins, kernel[0], kernel[1]]), self.weight(&[out]));
        self.add(Op::Conv(Conv { epilogue: Epilogue::bias(true), ..geometry }), &[x, weight, bias])
    }

    pub(super) fn linear(&mut self, x: ValueId, out: usize) -> ValueId {
        let ins = *self.graph.ty(x).shape.last().expect("it has columns");
        let (weight, bias) = (self.weight(&[ins, out]), self.weight(&[out]));
        let product = self.add(MatMul::default(), &[x, weight]);
        self.sum(product, bias)
    }

    pub(super) fn product(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.add(Binary(pointwise::Binary::Mul), &[a, b])
    }

    fn mean_of_image(&mut self, x: ValueId) -> ValueId {
        self.add(Reduce { kind: ReduceKind::Mean, axes: dims(&[2, 3]), keep: true }, &[x])
    }
}
