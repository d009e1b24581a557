//! Networks over volumes: convolutions, transposed ones and pools over three axes.

use ir::Op;
use ir::ValueId;
use ir::ops::{Conv, ConvTranspose, Epilogue, Pool, PoolKind};
use types::Shape;

use super::Net;

impl Net {
    /// A U-Net of two levels over cubes.
    pub(super) fn volume_u_net(&mut self, full: bool) -> String {
        let width = self.pick(&[3, 5, 8]);
        let extent = if full { 32 } else { 8 };
        let mut x = self.graph.add_input("x", crate::F, Shape::from([1, 1, extent, extent, extent]));
        let mut skips = Vec::new();
        for level in 0..3 {
            for _ in 0..2 {
                x = self.conv_of_volumes(x, width << level, [3; 3], cubes(1, [1, 1]));
                x = self.relu(x);
            }
            if level < 2 {
                skips.push(x);
                x = self.pool_of_volumes(x, PoolKind::Max, [2; 3], cubes(2, [0, 0]));
            }
        }
        for (level, skip) in skips.into_iter().enumerate().rev() {
            let up = self.transposed_of_volumes(x, width << level, [2; 3], cubes(2, [0, 0]));
            x = self.concat(&[skip, up]);
            for _ in 0..2 {
                x = self.conv_of_volumes(x, width << level, [3; 3], cubes(1, [1, 1]));
                x = self.relu(x);
            }
        }
        let y = self.conv_of_volumes(x, 2, [1; 3], cubes(1, [0, 0]));
        self.output(y);
        format!("2 levels of width {width}, {extent} voxels")
    }

    /// Windows of any stride, dilation and padding over several volumes, in groups.
    pub(super) fn volumes(&mut self, full: bool) -> String {
        let (batch, groups) = (self.between(1, 2), self.between(1, 2));
        let extents = [(); 3].map(|()| if full { self.between(12, 24) } else { self.between(4, 9) });
        let width = self.pick(&[2, 4, 10, 16]);
        let [depth, height, columns] = extents;
        let first = self.pick(&[2, 6]);
        let mut x = self.graph.add_input("x", crate::F, Shape::from([batch, first, depth, height, columns]));
        for _ in 0..4 {
            let kernel = [(); 3].map(|()| self.between(1, 3));
            let mut geometry = cubes(1, [1, 1]);
            for (axis, taps) in kernel.into_iter().enumerate() {
                geometry.stride[axis] = self.between(1, 2);
                geometry.dilation[axis] = self.between(1, 2);
                let reach = (taps - 1) * geometry.dilation[axis];
                geometry.pad[axis] = [self.between(0, reach), reach];
            }
            let out = width + groups * self.between(0, 2);
            geometry.groups = groups;
            x = match self.between(0, 3) {
                0 => {
                    let kind = self.pick(&[PoolKind::Max, PoolKind::Mean, PoolKind::MeanWithPadding]);
                    // Each window has a cell.
                    geometry
                        .pad
                        .iter_mut()
                        .zip(kernel)
                        .for_each(|(pad, kernel)| *pad = pad.map(|by| by.min(kernel / 2)));
                    geometry.dilation.fill(1);
                    self.pool_of_volumes(x, kind, kernel, geometry)
                }
                1 => {
                    geometry.pad.iter_mut().for_each(|pad| pad[1] = 0);
                    self.transposed_of_volumes(x, out, kernel, geometry)
                }
                _ => {
                    let y = self.conv_of_volumes(x, out, kernel, geometry);
                    self.relu(y)
                }
            };
        }
        self.output(x);
        format!("{batch} of {depth} x {height} x {columns}, width {width}, {groups} groups")
    }

    fn conv_of_volumes(&mut self, x: ValueId, out: usize, kernel: [usize; 3], geometry: Conv) -> ValueId {
        let ins = self.channels(x) / geometry.groups;
        let (weight, bias) = (self.weight(&[&[out, ins][..], &kernel].concat()), self.weight(&[out]));
        self.add(Op::Conv(Conv { epilogue: Epilogue::bias(true), ..geometry }), &[x, weight, bias])
    }

    fn transposed_of_volumes(&mut self, x: ValueId, out: usize, kernel: [usize; 3], geometry: Conv) -> ValueId {
        let Conv { stride, dilation, pad, groups, .. } = geometry;
        let weight = self.weight(&[&[self.channels(x), out / groups][..], &kernel].concat());
        let (output_pad, epilogue) = (crate::dims(&[0; 3]), Epilogue::default());
        self.add(Op::ConvTranspose(ConvTranspose { stride, dilation, pad, output_pad, groups, epilogue }), &[x, weight])
    }

    fn pool_of_volumes(&mut self, x: ValueId, kind: PoolKind, kernel: [usize; 3], geometry: Conv) -> ValueId {
        let Conv { stride, dilation, pad, .. } = geometry;
        let kernel = crate::dims(&kernel);
        self.add(Op::Pool(Pool { kind, kernel, stride, dilation, pad, ceil: false }), &[x])
    }
}

/// A geometry over three axes with one stride and one padding.
fn cubes(stride: usize, pad: [usize; 2]) -> Conv {
    Conv {
        stride: crate::dims(&[stride; 3]),
        dilation: crate::dims(&[1; 3]),
        pad: crate::dims(&[pad; 3]),
        ..Conv::square(1, 0)
    }
}
