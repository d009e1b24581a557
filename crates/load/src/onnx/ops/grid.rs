//! Images sampled at the positions of a grid, in two or three spatial dimensions.

use ir::{Refusal, ops};
use smallvec::{SmallVec, smallvec};
use types::pointwise::{Binary, Compare, Unary};
use types::{DType, Shape};

use crate::common::{NodeResult, Operand, counts, refuse};
use crate::onnx::node::ImportedNode;

/// The grid of an affine transformation: `theta: [n, d, d + 1]` times the positions of an image -> `[n, ..spatial, d]`.
pub(super) fn affine(node: &mut ImportedNode) -> NodeResult {
    let theta = node.input(0)?;
    let size = counts(&node.constant_ints(1, "size")?, "size")?;
    let aligned = node.flag("align_corners")?;
    let Some(spatial) = size.len().checked_sub(2).filter(|spatial| (2..=3).contains(spatial)) else {
        refuse!("`size` must have 4 or 5 numbers, got {}", size.len());
    };
    let extents = &size[2..];
    if node.shape(theta)[..] != [size[0], spatial, spatial + 1] {
        refuse!("`theta` must fit `size`, got shapes {} and {size:?}", node.shape(theta));
    }
    // A row per position: its coordinates from -1 to 1, last axis first, and a 1.
    let places: usize = extents.iter().product();
    let shape = Shape::from([places, spatial + 1]);
    let base = node.computed(shape, |at| {
        let (mut place, column) = (at / (spatial + 1), at % (spatial + 1));
        if column == spatial {
            return 1.0f32;
        }
        // Coordinate `column` is that of axis `column` from the end.
        for &extent in extents.iter().rev().take(column) {
            place /= extent;
        }
        let extent = extents[spatial - 1 - column];
        let at = (place % extent) as f32;
        match (aligned, extent) {
            (true, 1) => 0.0,
            (true, _) => 2.0 * at / (extent - 1) as f32 - 1.0,
            (false, _) => (2.0 * at + 1.0) / extent as f32 - 1.0,
        }
    })?;
    let base = node.constant(base);
    let theta = node.transpose(theta, &[0, 2, 1])?;
    let y = node.apply_f32(ops::MatMul::default(), &[base, theta])?;
    let out: Shape = [size[0]].into_iter().chain(extents.iter().copied()).chain([spatial]).collect();
    Ok(vec![node.reshape(y, out)?])
}

/// Value of positions outside the image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutsideMode {
    Zeros,
    Border,
    /// Reflected at the centers of the outermost cells if `aligned`, else at their edges.
    Reflection {
        aligned: bool,
    },
}

/// Images from which cells are gathered.
pub(super) struct Sampler {
    table: Table,
    /// The first row or element of the image of each position, as `i64` that broadcasts to the positions.
    starts: Operand,
    extents: SmallVec<[usize; 3]>,
    outside: OutsideMode,
}

/// Where cells are.
enum Table {
    /// `[n * cells, c]`: a row per cell of each image; with zeros outside, a row of zeros behind these `count` ones.
    Rows { rows: Operand, count: usize },
    /// `[n * c * cells]`, if few cells are read: `channels` has the distance of each channel's first cell, `[c]`.
    Elements { elements: Operand, channels: Operand },
}

/// Cells are gathered element by element, without a transposed copy of the images, if the images have at least this many cells
/// for each gathered one.
const CELLS_OF_FEW: usize = 4;

/// One cell along an axis for each position, and its weight.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    /// Integers as `f32`.
    cell: Operand,
    weight: Option<Operand>,
}

/// `x: [n, c, ..]`, `grid: [n, ..places, d]` from -1 to 1, the last axis first -> `[n, c, ..places]`.
pub(super) fn sample(node: &mut ImportedNode) -> NodeResult {
    let (x, grid) = (node.input(0)?, node.input(1)?);
    let (shape, grid_shape) = (node.shape(x), node.shape(grid));
    let rank = shape.rank();
    let spatial = rank.saturating_sub(2);
    if !(1..=3).contains(&spatial) || grid_shape.rank() != rank || grid_shape[rank - 1] != spatial {
        refuse!("the grid must be [n, ..positions, d] for input {shape}, got {grid_shape}");
    }
    if grid_shape[0] != shape[0]
        || shape.elements() == 0
        || node.dtype(x) != DType::F32
        || node.dtype(grid) != DType::F32
    {
        refuse!("sampling {}{shape} with grid {}{grid_shape} is not supported", node.dtype(x), node.dtype(grid));
    }
    let aligned = node.flag("align_corners")?;
    let outside = match node.text_or("padding_mode", "zeros") {
        "zeros" => OutsideMode::Zeros,
        "border" => OutsideMode::Border,
        "reflection" => OutsideMode::Reflection { aligned },
        other => refuse!("attribute `padding_mode`: `{other}` is not supported"),
    };
    let mode = match node.text_or("mode", "linear") {
        "linear" | "bilinear" => Mode::Linear,
        "nearest" => Mode::Nearest,
        "cubic" | "bicubic" => Mode::Cubic,
        other => refuse!("attribute `mode`: `{other}` is not supported"),
    };
    let places: Shape = grid_shape[..rank - 1].into();
    let batch = node.positions(shape[0], 0, places.rank())?;
    let sampler = Sampler::new(node, x, batch, outside, &places, mode)?;
    let mut taps = Vec::new();
    for axis in 0..spatial {
        let part = ops::Slice::range(&grid_shape, rank - 1, spatial - 1 - axis, 1);
        let part = node.apply(part, &[grid])?;
        let part = node.reshape(part, places.clone())?;
        let at = sampler.place(node, part, axis, aligned)?;
        taps.push(mode.taps(node, at)?);
    }
    let y = sampler.sampled(node, &taps, &places, Binary::Add)?;
    let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    Ok(vec![node.transpose(y, &order)?])
}

impl Sampler {
    /// Images `x: [n, c, ..]`, and for each of some positions the index of its image. `mode` has the number of cells that are read.
    pub(super) fn new(
        node: &mut ImportedNode,
        x: Operand,
        picture: Operand,
        outside: OutsideMode,
        places: &Shape,
        mode: Mode,
    ) -> Result<Sampler, Refusal> {
        let shape = node.shape(x);
        let extents: SmallVec<[usize; 3]> = shape[2..].into();
        let (cells, channels) = (extents.iter().product::<usize>(), shape[1]);
        let count = shape[0] * cells;
        let read = mode.taps_of_axis().pow(extents.len() as u32).saturating_mul(places.elements());
        let (table, step) = if read.saturating_mul(CELLS_OF_FEW) <= count {
            let elements = node.reshape(x, Shape::from([count * channels]))?;
            let channels_at = node.constant_of(Shape::from([channels]), |channel| (channel * cells) as i64)?;
            (Table::Elements { elements, channels: channels_at }, cells * channels)
        } else {
            let rows = node.reshape(x, Shape::from([shape[0], channels, cells]))?;
            let rows = node.transpose(rows, &[0, 2, 1])?;
            let mut rows = node.reshape(rows, Shape::from([count, channels]))?;
            if outside == OutsideMode::Zeros {
                let pad = smallvec![[0, 1], [0, 0]];
                rows = node.apply(ops::Pad { mode: ops::PadMode::Constant(0.0), pad }, &[rows])?;
            }
            (Table::Rows { rows, count }, cells)
        };
        let step = node.number(step as f64, DType::I64);
        let starts = node.binary(Binary::Mul, picture, step)?;
        Ok(Sampler { table, starts, extents, outside })
    }

    /// `[..positions, c]`: for each combination of one tap per axis, its cell times its weights, joined.
    pub(super) fn sampled(
        &self,
        node: &mut ImportedNode,
        taps: &[Vec<Tap>],
        places: &Shape,
        join: Binary,
    ) -> Result<Operand, Refusal> {
        let mut joined = None;
        for choice in 0..taps.iter().map(Vec::len).product::<usize>() {
            let mut rest = choice;
            let chosen: Vec<Tap> = taps
                .iter()
                .map(|taps| {
                    let tap = taps[rest % taps.len()];
                    rest /= taps.len();
                    tap
                })
                .collect();
            let part = self.weighted(node, &chosen, places)?;
            joined = Some(match joined {
                None => part,
                Some(joined) => node.binary(join, joined, part)?,
            });
        }
        joined.ok_or_else(|| Refusal("the input must have spatial axes".into()))
    }

    /// Coordinates in cells along an axis. If `aligned`, -1 and 1 are the centers of the outermost cells.
    fn place(&self, node: &mut ImportedNode, grid: Operand, axis: usize, aligned: bool) -> Result<Operand, Refusal> {
        let extent = self.extents[axis] as f64;
        // `(x + 1) / 2 * (extent - 1)`, or `((x + 1) * extent - 1) / 2`.
        let (factor, term) =
            if aligned { ((extent - 1.0) / 2.0, (extent - 1.0) / 2.0) } else { (extent / 2.0, (extent - 1.0) / 2.0) };
        let (factor, term) = (node.number(factor, DType::F32), node.number(term, DType::F32));
        let scaled = node.binary(Binary::Mul, grid, factor)?;
        let at = node.binary(Binary::Add, scaled, term)?;
        match self.outside {
            OutsideMode::Zeros => Ok(at),
            OutsideMode::Border => node.unary(Unary::Clip { min: 0.0, max: extent as f32 - 1.0 }, at),
            OutsideMode::Reflection { aligned } => self.reflected(node, at, axis, aligned),
        }
    }

    /// Reflects coordinates at the centers of the outermost cells, or at their edges.
    fn reflected(&self, node: &mut ImportedNode, at: Operand, axis: usize, aligned: bool) -> Result<Operand, Refusal> {
        let extent = self.extents[axis] as f64;
        let (low, high) = if aligned { (0.0, extent - 1.0) } else { (-0.5, extent - 0.5) };
        let range = high - low;
        if range == 0.0 {
            let zero = node.number(0.0, DType::F32);
            return node.binary(Binary::Mul, at, zero);
        }
        let [low, range, twice] = [low, range, 2.0 * range].map(|number| node.number(number, DType::F32));
        // Distance from the lower end, modulo the distance there and back.
        let way = node.binary(Binary::Sub, at, low)?;
        let turns = node.binary(Binary::Div, way, twice)?;
        let turns = node.unary(Unary::Floor, turns)?;
        let whole = node.binary(Binary::Mul, turns, twice)?;
        let way = node.binary(Binary::Sub, way, whole)?;
        let back = node.binary(Binary::Sub, twice, way)?;
        let is_there = node.compare(Compare::LessOrEqual, way, range)?;
        let folded = node.select(is_there, way, back)?;
        node.binary(Binary::Add, folded, low)
    }

    /// The cells of a combination of taps, `[..positions, c]`, times their weights.
    fn weighted(&self, node: &mut ImportedNode, taps: &[Tap], places: &Shape) -> Result<Operand, Refusal> {
        let (mut indices, mut weight, mut inside) = (Vec::new(), None::<Operand>, None::<Operand>);
        for (axis, tap) in taps.iter().enumerate() {
            let last = self.extents[axis] as f32 - 1.0;
            // Taps may be outside the image although the position is inside.
            let cell = match self.outside {
                OutsideMode::Reflection { aligned } => self.reflected(node, tap.cell, axis, aligned)?,
                _ => tap.cell,
            };
            let held = node.unary(Unary::Clip { min: 0.0, max: last }, cell)?;
            let held = node.unary(Unary::Round, held)?;
            if self.outside == OutsideMode::Zeros {
                let is_inside = node.compare(Compare::Equal, held, cell)?;
                inside = Some(match inside {
                    None => is_inside,
                    Some(other) => node.binary(Binary::And, other, is_inside)?,
                });
            }
            indices.push(node.cast(held, DType::I64)?);
            weight = match (weight, tap.weight) {
                (Some(a), Some(b)) => Some(node.binary(Binary::Mul, a, b)?),
                (a, b) => a.or(b),
            };
        }
        let flat = node.flat_index(&indices, &self.extents)?;
        let flat = node.binary(Binary::Add, flat, self.starts)?;
        let mut flat = node.expand(flat, places.clone())?;
        let mut spread = places.clone();
        spread.push(1);
        let zero = node.number(0.0, DType::F32);
        let mut y = match self.table {
            Table::Rows { rows, count } => {
                if let Some(inside) = inside.take() {
                    // Outside, zero times the row of zeros: a weight may be NaN there.
                    let empty = node.number(count as f64, DType::I64);
                    flat = node.select(inside, flat, empty)?;
                    weight = weight.map(|weight| node.select(inside, weight, zero)).transpose()?;
                }
                node.rows(rows, flat)?
            }
            Table::Elements { elements, channels } => {
                let flat = node.reshape(flat, spread.clone())?;
                let flat = node.binary(Binary::Add, flat, channels)?;
                node.rows(elements, flat)?
            }
        };
        if let Some(weight) = weight {
            let weight = node.reshape(weight, spread.clone())?;
            y = node.binary(Binary::Mul, y, weight)?;
        }
        match inside {
            Some(inside) => {
                let inside = node.reshape(inside, spread)?;
                node.select(inside, y, zero)
            }
            None => Ok(y),
        }
    }
}

/// Interpolation.
#[derive(Clone, Copy)]
pub(super) enum Mode {
    Nearest,
    Linear,
    Cubic,
}

impl Mode {
    /// The number of [`Mode::taps`].
    fn taps_of_axis(self) -> usize {
        match self {
            Mode::Nearest => 1,
            Mode::Linear => 2,
            Mode::Cubic => 4,
        }
    }

    /// The cells along an axis that contribute to a coordinate.
    pub(super) fn taps(self, node: &mut ImportedNode, at: Operand) -> Result<Vec<Tap>, Refusal> {
        if let Mode::Nearest = self {
            return Ok(vec![Tap { cell: node.unary(Unary::Round, at)?, weight: None }]);
        }
        let floor = node.unary(Unary::Floor, at)?;
        let part = node.binary(Binary::Sub, at, floor)?;
        let one = node.number(1.0, DType::F32);
        if let Mode::Linear = self {
            let rest = node.binary(Binary::Sub, one, part)?;
            let next = node.binary(Binary::Add, floor, one)?;
            return Ok(vec![Tap { cell: floor, weight: Some(rest) }, Tap { cell: next, weight: Some(part) }]);
        }
        let mut taps = Vec::new();
        for step in -1..=2 {
            let offset = node.number(f64::from(step), DType::F32);
            let cell = node.binary(Binary::Add, floor, offset)?;
            let distance = node.binary(Binary::Sub, part, offset)?;
            let distance = node.unary(Unary::Abs, distance)?;
            // Keys' kernel with a = -0.75: inside 1, and between 1 and 2.
            let polynomial: [f64; 4] = match step {
                0 | 1 => [1.25, -2.25, 0.0, 1.0],
                _ => [-0.75, 3.75, -6.0, 3.0],
            };
            let mut weight = node.number(polynomial[0], DType::F32);
            for coefficient in &polynomial[1..] {
                let coefficient = node.number(*coefficient, DType::F32);
                weight = node.binary(Binary::Mul, weight, distance)?;
                weight = node.binary(Binary::Add, weight, coefficient)?;
            }
            taps.push(Tap { cell, weight: Some(weight) });
        }
        Ok(taps)
    }
}
