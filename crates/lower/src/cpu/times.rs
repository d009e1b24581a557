//! [`Times`]: modelled times of kernels on a class of processors.
//!
//! The time of a kernel is a sum over amounts of work: products, bytes, tiles, one step. [`Workload::of`] counts them from the
//! kernel's parameters. A table has the time of a unit of each amount, by family of kernels. It is fitted to measured times by
//! `cargo xtask bench times`, which also writes down how far the model is off.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cpu::{
    ConvAlgorithm, ConvBlocked, ImageLayout, Isa, Kernel, PackedConv, PlainConv, Planes, Pool2dKind, Sizes,
    StorageType, Weights, Window,
};

use super::blocked::BLOCK;

/// Pixels of a tile of direct convolutions, and output channels of one of row-major convolutions.
const TILE_ROWS: usize = 6;
/// Pixels of a tile of row-major convolutions, and of the part of an image that all channels are computed for before the next.
const TILE_PIXELS: usize = 32;
const PART_PIXELS: usize = 256;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Channels that meet in a set of the caches beyond which no more vectors are missed.
const CONFLICTS_MAX: usize = 1024;

/// Bytes of the caches of a core.
const CACHES: [usize; 2] = [1 << 15, 1 << 19];

/// The factor on times of Winograd's algorithm.
const CAUTION: f64 = 1.2;

/// The amounts of work of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The kind of kernels whose amounts cost the same.
    pub family: &'static str,
    /// Amounts by their names. Sizes are in bytes.
    pub amounts: Vec<(&'static str, f64)>,
}

/// The times of units of work on a class of processors, in picoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times {
    /// By family and amount.
    units: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Recorded with one thread on a processor with AVX2.
static AVX2: LazyLock<Times> =
    LazyLock::new(|| Times::parse(include_str!("times/avx2.tsv")).expect("a test reads the table"));
/// Recorded with one thread on a processor that executes vectors of AVX-512 in two halves.
static AVX512: LazyLock<Times> =
    LazyLock::new(|| Times::parse(include_str!("times/avx512.tsv")).expect("a test reads the table"));
/// No table is recorded for four lanes: vectors of half the length double the time of products.
static FOUR_LANES: LazyLock<Times> = LazyLock::new(|| AVX2.with_products(2.0));

impl Times {
    /// Those of processors with this ISA.
    pub fn of(isa: Isa) -> &'static Times {
        match isa {
            Isa::Portable | Isa::Neon => &FOUR_LANES,
            Isa::Avx2 => &AVX2,
            Isa::Avx512 => &AVX512,
        }
    }

    /// Reads a table: lines of a family, an amount and the picoseconds of its unit, separated by tabs.
    ///
    /// # Errors
    /// The line that is not such a line.
    pub fn parse(table: &str) -> Result<Times, String> {
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        let mut times = Times::default();
        for line in lines {
            let words: Vec<&str> = line.split('\t').collect();
            let (family, amount, time) = match words[..] {
                [family, amount, time, ..] => (family, amount, time.parse::<f64>().ok()),
                _ => ("", "", None),
            };
            let time = time.filter(|time| time.is_finite() && 0.0 <= *time);
            let time = time.ok_or_else(|| format!("`{line}` is not a family, an amount and a time"))?;
            times.units.entry(family.to_string()).or_default().insert(amount.to_string(), time);
        }
        Ok(times)
    }

    /// These times, and those of another table instead of them where it has some.
    #[must_use]
    pub fn with(&self, other: &Times) -> Times {
        let mut times = self.clone();
        for (family, units) in &other.units {
            times.units.entry(family.clone()).or_default().extend(units.clone());
        }
        times
    }

    /// With products that take `factor` times as long.
    fn with_products(&self, factor: f64) -> Times {
        let mut times = self.clone();
        let units = times.units.values_mut().flatten();
        let products = units.filter(|(amount, _)| amount.starts_with("products"));
        products.for_each(|(_, time)| *time *= factor);
        times
    }

    /// The time of some work in picoseconds; `None` if its family is not in the table.
    pub fn of_work(&self, work: &Workload) -> Option<u64> {
        let units = self.units.get(work.family)?;
        let known = work.amounts.iter().filter_map(|&(name, amount)| Some(units.get(name)? * amount));
        known.reduce(|sum, time| sum + time).map(|sum| sum as u64)
    }

    /// The time of a kernel in picoseconds; `None` if it is not modelled. Kernels of Winograd's
    /// algorithm are charged a fifth more: they have several times the weights of direct ones, and must be faster by more than
    /// the usual error of the model.
    pub fn of_kernel(&self, kernel: &Kernel) -> Option<u64> {
        let work = Workload::of(kernel)?;
        let factor = if work.family.starts_with("winograd") { CAUTION } else { 1.0 };
        self.of_work(&work).map(|time| (time as f64 * factor) as u64)
    }

    /// The time to read or write `bytes` of values, element by element, in picoseconds.
    pub(super) fn of_bytes(&self, bytes: u64) -> u64 {
        self.of_work(&Workload { family: "elementwise", amounts: vec![("bytes", bytes as f64), ("step", 1.0)] })
            .unwrap_or(0)
    }
}

impl Workload {
    /// The work of a kernel; `None` if kernels of its kind are not modelled, or if its parameters contradict each other.
    pub fn of(kernel: &Kernel) -> Option<Workload> {
        let sizes = kernel.sizes().ok()?;
        let mut bytes = sizes.inputs.iter().chain(&sizes.outputs).sum::<u64>() as f64;
        let (family, mut amounts) = Workload::arithmetic(kernel, &sizes)?;
        if has_weights(kernel) {
            let weights = sizes.inputs[1] as f64;
            bytes -= weights;
            amounts.push(("weight bytes", weights));
        }
        amounts.extend(traffic(bytes));
        amounts.push(("step", 1.0));
        Some(Workload { family, amounts })
    }

    /// The family of a kernel, and its amounts other than those of operands.
    fn arithmetic(kernel: &Kernel, sizes: &Sizes) -> Option<(&'static str, Vec<(&'static str, f64)>)> {
        Some(match kernel {
            Kernel::ConvBlocked(kernel) => {
                let is_packed = packs_f32(kernel);
                let family = match (kernel.layout, is_packed) {
                    (ImageLayout::RowMajor, false) => "direct of images",
                    (ImageLayout::RowMajor, true) => "direct of packed images",
                    (ImageLayout::Blocked, false) => "direct",
                    (ImageLayout::Blocked, true) => "direct of packed blocks",
                };
                let mut amounts = direct(kernel);
                if is_packed {
                    amounts.push(("packed bytes", sizes.workspace as f64));
                }
                (family, amounts)
            }
            Kernel::Winograd(kernel) => {
                let family = ["winograd 2", "winograd 4", "winograd 6"][(kernel.tile / 2).clamp(1, 3) - 1];
                (family, winograd(kernel))
            }
            Kernel::DepthwiseBlocked(kernel) => groups_in_lanes(kernel),
            Kernel::DynamicConv(kernel) => match &kernel.conv {
                PackedConv::Depthwise(inner) if inner.group == [1, 1] => {
                    ("depthwise by run-time weights", depthwise(inner.batch, inner.channels, &inner.window))
                }
                PackedConv::Depthwise(inner) => groups_in_lanes(inner),
                PackedConv::Direct(inner) => ("direct by run-time weights", direct(inner)),
                PackedConv::Winograd(inner) => ("winograd by run-time weights", winograd(inner)),
            },
            Kernel::Conv(kernel) => {
                let family = if kernel.out_channels / kernel.groups < 3 { "rows of few channels" } else { "rows" };
                (family, rows(kernel))
            }
            Kernel::CompactConv(kernel) => {
                let plain = match kernel.conv.clone() {
                    PlainConv::Conv(conv) => conv.into(),
                    PlainConv::Transpose(conv) => conv.into(),
                    PlainConv::Unbuffered(conv) => conv.into(),
                };
                return Workload::arithmetic(&plain, sizes);
            }
            Kernel::ConvUnbuffered(kernel) => {
                let strided = kernel.window.stride[1] != 1;
                let family = match (kernel.transposed, strided) {
                    (false, false) => "unbuffered",
                    (false, true) => "strided unbuffered",
                    (true, false) => "transposed unbuffered",
                    (true, true) => "strided transposed unbuffered",
                };
                let channels = (kernel.batch * kernel.out_channels * (kernel.in_channels / kernel.groups)) as f64;
                let taps = covered(&kernel.depth) * row_taps(&kernel.window);
                // A vector has sums at the distance of the stride of a transposed convolution.
                let columns = match kernel.transposed {
                    true => kernel.window.input[1].div_ceil(kernel.window.stride[1]),
                    false => kernel.window.output[1],
                };
                let cells = taps * columns.next_multiple_of(BLOCK) as f64;
                let rows = kernel.turns() as f64 * taps;
                let mut amounts = vec![("products", channels * cells), ("rows", rows)];
                // Inputs at a distance of two are shuffled, others are collected one by one.
                match (kernel.transposed, kernel.window.stride[1]) {
                    (true, _) | (false, 1) => {}
                    (false, 2) => amounts.push(("shuffled", kernel.input_rows() as f64 * cells)),
                    (false, _) => amounts.push(("collected", kernel.input_rows() as f64 * cells)),
                }
                (family, amounts)
            }
            Kernel::ConvTranspose(kernel) => {
                let outs = kernel.batch * kernel.out_channels;
                let sums = outs as f64 * cells(&kernel.window, kernel.window.output);
                // The product has whole vectors of an image's pixels.
                let columns = kernel.window.output.iter().product::<usize>().next_multiple_of(BLOCK);
                let rows = (outs * area(&kernel.window)) as f64;
                let products = rows * (columns * (kernel.in_channels / kernel.groups)) as f64;
                // Each image reads the weights again.
                let weights = 4.0 * rows * (kernel.in_channels / kernel.groups) as f64;
                let row_sums = (outs * kernel.window.kernel[1]) as f64 * taps(&kernel.window, 0) as f64;
                let name = if kernel.window.stride[1] == 1 { "sums" } else { "sums strided" };
                let weights = ("weights again", weights - weights / kernel.batch.max(1) as f64);
                ("transposed", vec![("products", products), (name, sums), ("row sums", row_sums), weights])
            }
            Kernel::ConvDataGradient(kernel) if kernel.weights == Weights::Packed => {
                // Each phase is a convolution.
                let phases = kernel.convolutions();
                // Pixels that no tap reaches are filled.
                let reached: usize = phases.iter().map(|phase| phase.window.output.iter().product::<usize>()).sum();
                let filled =
                    kernel.batch * kernel.out_channels * (kernel.window.input.iter().product::<usize>() - reached);
                let mut sum: Vec<(&'static str, f64)> =
                    vec![("phases", phases.len() as f64), ("filled", filled as f64)];
                for (name, amount) in phases.iter().flat_map(direct) {
                    match sum.iter_mut().find(|(other, _)| *other == name) {
                        Some((_, all)) => *all += amount,
                        None => sum.push((name, amount)),
                    }
                }
                ("transposed of blocks", sum)
            }
            Kernel::ConvDataGradient(kernel) => {
                let terms = kernel.convolutions().first().map_or(0, |phase| phase.block_terms().all * BLOCK);
                ("data gradient", vec![("products", (kernel.batch * terms) as f64 * covered(&kernel.window))])
            }
            Kernel::ConvWeightGradient(kernel) => {
                // Channels of row-major images are read one by one.
                let family = match kernel.layout {
                    ImageLayout::Blocked => "weight gradient",
                    ImageLayout::RowMajor => "weight gradient of images",
                };
                let channels = kernel.channel_pairs();
                let products = (kernel.batch * channels) as f64 * covered(&kernel.window);
                (family, vec![("products", products), ("results", (channels * area(&kernel.window)) as f64)])
            }
            Kernel::WeightGradientRows(kernel) => {
                let channels = kernel.in_channels / kernel.groups * kernel.out_channels;
                let images = (kernel.batch * channels) as f64;
                let products = images * covered(&kernel.window) * covered(&kernel.depth);
                let rows = images * row_taps(&kernel.window) * covered(&kernel.depth);
                let of_stride = if kernel.window.stride[1] == 1 { "products" } else { "products strided" };
                ("weight gradient of rows", vec![(of_stride, products), ("rows", rows)])
            }
            Kernel::DepthwiseWeightGradient(kernel) => {
                ("depthwise weight gradient", depthwise(kernel.batch, kernel.channels, &kernel.window))
            }
            Kernel::DepthwiseDataGradient(kernel) => {
                ("depthwise data gradient", depthwise(kernel.batch, kernel.channels, &kernel.window))
            }
            Kernel::PoolBlocked(kernel) => {
                let family = if kernel.kind == Pool2dKind::Max { "max of blocks" } else { "mean of blocks" };
                let mut amounts = depthwise(kernel.batch, kernel.channels, &kernel.window);
                amounts
                    .iter_mut()
                    .filter(|(name, _)| *name == "products")
                    .for_each(|(_, amount)| *amount *= kernel.folds_per_cell());
                (family, amounts)
            }
            Kernel::Pool2d(kernel) => {
                let family = if kernel.kind == Pool2dKind::Max { "max of rows" } else { "mean of rows" };
                let rows = (kernel.planes * kernel.window.output[0]) as f64;
                let of_stride = if kernel.window.stride[1] == 1 { "products" } else { "products strided" };
                let row_taps = kernel.planes as f64 * row_taps(&kernel.window);
                let products = kernel.planes as f64 * covered(&kernel.window);
                (family, vec![(of_stride, products), ("rows", rows), ("row taps", row_taps)])
            }
            Kernel::PoolVolumes(kernel) => {
                let family = if kernel.kind == Pool2dKind::Max { "max of rows" } else { "mean of rows" };
                let of_stride = if kernel.window.stride[1] == 1 { "products" } else { "products strided" };
                let planes = kernel.volumes as f64 * covered(&kernel.depth);
                let rows = (kernel.volumes * kernel.depth.output[0] * kernel.window.output[0]) as f64;
                let row_taps = planes * row_taps(&kernel.window);
                (family, vec![(of_stride, planes * covered(&kernel.window)), ("rows", rows), ("row taps", row_taps)])
            }
            Kernel::PoolGradient(kernel) if kernel.planes.layout == ImageLayout::RowMajor => {
                let family = match kernel.kind {
                    Pool2dKind::Max if kernel.positions => "placed gradient of rows",
                    Pool2dKind::Max => "max gradient of rows",
                    Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => "mean gradient of rows",
                };
                (family, rows_of_planes(&kernel.planes, &kernel.window))
            }
            Kernel::PoolGradient(kernel) => {
                let family = match kernel.kind {
                    Pool2dKind::Max if kernel.positions => "placed gradient of blocks",
                    Pool2dKind::Max => "max gradient of blocks",
                    Pool2dKind::Mean | Pool2dKind::MeanWithPadding { .. } => "mean gradient of blocks",
                };
                (family, depthwise(kernel.planes.batch, kernel.planes.channels, &kernel.window))
            }
            Kernel::PoolWithPositions(kernel) if kernel.planes.layout == ImageLayout::RowMajor => {
                ("positions of rows", rows_of_planes(&kernel.planes, &kernel.window))
            }
            Kernel::PoolWithPositions(kernel) => {
                ("positions of blocks", depthwise(kernel.planes.batch, kernel.planes.channels, &kernel.window))
            }
            Kernel::Reorder(kernel) => {
                let family = if kernel.to_blocked { "to blocks" } else { "from blocks" };
                (family, vec![("planes", (kernel.batch * kernel.channels) as f64)])
            }
            Kernel::Elementwise(_) | Kernel::Chain(_) => ("elementwise", Vec::new()),
            _ => return None,
        })
    }
}

/// The family and amounts of a convolution in groups of few channels.
fn groups_in_lanes(kernel: &cpu::DepthwiseBlocked) -> (&'static str, Vec<(&'static str, f64)>) {
    let family = match (kernel.group == [1, 1], kernel.window.stride == [1, 1]) {
        (true, true) => "depthwise",
        (true, false) => "strided depthwise",
        (false, true) => "small groups",
        (false, false) => "strided small groups",
    };
    let mut amounts = depthwise(kernel.batch, kernel.channels, &kernel.window);
    if kernel.group != [1, 1] {
        let products = amounts[0].1 * kernel.group[0] as f64;
        amounts[0].1 = products;
        // A member is permuted into its lanes once for all products of an input column, or for each product.
        amounts.push(("choices", products / kernel.products_of_a_column() as f64));
    }
    (family, amounts)
}

/// The bytes of operands, and those of them beyond the capacity of caches.
fn traffic(bytes: f64) -> [(&'static str, f64); 3] {
    let beyond = |capacity: f64| (bytes - capacity).max(0.0);
    [("bytes", bytes), ("bytes beyond 512 KiB", beyond(524_288.0)), ("bytes beyond 8 MiB", beyond(8_388_608.0))]
}

/// Whether operand 1 is weights.
fn has_weights(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::ConvBlocked(_)
            | Kernel::Winograd(_)
            | Kernel::DepthwiseBlocked(_)
            | Kernel::DynamicConv(_)
            | Kernel::Conv(_)
            | Kernel::ConvUnbuffered(_)
            | Kernel::ConvTranspose(_)
            | Kernel::CompactConv(_)
            | Kernel::ConvDataGradient(_)
    )
}

/// Whether a convolution of `f32` reads a packed copy of its images.
fn packs_f32(kernel: &ConvBlocked) -> bool {
    kernel.algorithm == ConvAlgorithm::Packed && kernel.operands == StorageType::F32
}

fn direct(kernel: &ConvBlocked) -> Vec<(&'static str, f64)> {
    let (window, batch) = (&kernel.window, kernel.batch as f64);
    let terms = kernel.block_terms();
    // Packed pixels have their padding.
    let pairs = if packs_f32(kernel) { cells(window, window.output) } else { covered(window) };
    // The last of an odd number of blocks has a tile of its own.
    let products = |terms: usize| batch * (terms * BLOCK) as f64 * pairs;
    let [tiles, taps] = kernel.tiles(TILE_ROWS);
    let name = if window.stride == [1, 1] { "products" } else { "products strided" };
    vec![
        (name, products(terms.all)),
        ("products single", products(terms.single)),
        ("tiles", tiles * terms.blocks as f64),
        ("tile terms", taps * terms.all as f64),
    ]
}

fn winograd(kernel: &cpu::Winograd) -> Vec<(&'static str, f64)> {
    let (transforms, side) = (kernel.transform_flops() as f64, kernel.tile + 2);
    let tiles: usize = kernel.window.output.iter().map(|extent| extent.div_ceil(kernel.tile)).product();
    let transformed = (kernel.batch * tiles * side * side * padded(kernel.in_channels)) as f64;
    // The workspace holds `group` tiles at a time, and weights are read again for the next ones.
    let passes = (transformed / kernel.workspace_max.max(1) as f64).ceil();
    // Bytes beyond the second-level cache are written to and read from the next one.
    let workspace = 4.0 * transformed.min(kernel.workspace_max as f64);
    let spilled = 4.0 * transformed * (1.0 - 262_144.0 / workspace.max(262_144.0));
    let weights = 4.0 * (side * side * kernel.in_channels * padded(kernel.out_channels)) as f64;
    vec![
        ("products", (kernel.flops() as f64 - transforms) / 2.0),
        ("transforms", transforms),
        ("spilled bytes", spilled),
        ("weights again", weights * (passes - 1.0).max(0.0)),
    ]
}

/// The work of a window over each channel of blocks.
fn depthwise(batch: usize, channels: usize, window: &Window) -> Vec<(&'static str, f64)> {
    let lanes = (batch * padded(channels)) as f64;
    let rows = (batch * padded(channels) / BLOCK * window.output[0]) as f64;
    vec![("products", lanes * covered(window)), ("sums", lanes * cells(window, window.output)), ("rows", rows)]
}

fn rows(kernel: &cpu::Conv) -> Vec<(&'static str, f64)> {
    let cpu::Conv { batch, in_channels, out_channels, groups, window, .. } = kernel;
    let (ins, outs) = (in_channels / groups, out_channels / groups);
    // Outputs are counted along padded rows.
    let reach = |axis: usize| {
        (window.output[axis] - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1
    };
    if window.output.contains(&0) {
        return Vec::new();
    }
    let is_plain = kernel.reads_in_place();
    let pitch = reach(1).div_ceil(window.stride[1]);
    let pixels = (window.output[0] * pitch).next_multiple_of(TILE_PIXELS);
    let vectors = (batch * groups * ins * area(window)) as f64 * pixels as f64;
    // Rows of a block that the next block copies again.
    let again = if kernel.workspace_max == 0 { window.kernel[0].div_ceil(window.stride[0]) } else { 1 };
    // Only phases with a tap are copied.
    let phases = |axis: usize| window.stride[axis].min(window.kernel[axis]);
    let copied_rows = match is_plain {
        true => 0,
        false => batch * in_channels * reach(0).div_ceil(window.stride[0]) * phases(0) * phases(1) * again,
    };
    let copies = if window.stride[1] == 1 { "copies" } else { "copies strided" };
    let tile_rows = outs.div_ceil(TILE_ROWS);
    // Each tile of channels reads the pixels of a part again, and each tile of pixels the weights.
    let terms = ins * area(window);
    let tile_bytes = 4 * terms * (TILE_PIXELS + TILE_ROWS);
    let part_bytes = 4 * terms * PART_PIXELS.min(pixels);
    let beyond = |bytes: usize, cache: usize| 1.0 - cache as f64 / bytes.max(cache) as f64;
    let all_vectors = vectors * tile_rows as f64;
    // Channels of an input that is not copied meet in the same sets of the caches if their distance is a multiple of a page, the
    // more of them the more often.
    let is_aligned = is_plain && (window.input[0] * window.input[1]).is_multiple_of(PAGE / 4);
    let conflicts = if is_aligned { all_vectors * ins.min(CONFLICTS_MAX) as f64 } else { 0.0 };
    let products = if window.stride == [1, 1] { "products" } else { "products strided" };
    vec![
        (products, vectors * outs as f64),
        ("vectors", all_vectors),
        ("conflicts", conflicts),
        ("vectors beyond 32 KiB", all_vectors * beyond(tile_bytes, CACHES[0])),
        ("vectors beyond 512 KiB", all_vectors * beyond(part_bytes, CACHES[1])),
        (copies, (copied_rows * pitch) as f64),
        ("copied rows", copied_rows as f64),
        ("tiles", (batch * groups * tile_rows * pixels / TILE_PIXELS) as f64),
        ("groups", (batch * groups) as f64),
        ("row taps", (batch * out_channels * ins) as f64 * row_taps(window)),
    ]
}

/// The work of a window over row-major planes.
fn rows_of_planes(planes: &Planes, window: &Window) -> Vec<(&'static str, f64)> {
    let count = (planes.batch * planes.channels) as f64;
    let of_stride = if window.stride[1] == 1 { "products" } else { "products strided" };
    let outputs = (window.output[0] * window.output[1]) as f64;
    let vectors = window.output[1].div_ceil(BLOCK) as f64 * row_taps(window);
    vec![(of_stride, count * covered(window)), ("sums", count * outputs), ("vectors", count * vectors)]
}

fn padded(channels: usize) -> usize {
    channels.next_multiple_of(BLOCK)
}

/// Taps of a kernel.
fn area(window: &Window) -> usize {
    window.kernel[0] * window.kernel[1]
}

/// Taps times cells.
fn cells(window: &Window, cells: [usize; 2]) -> f64 {
    (area(window) * cells[0] * cells[1]) as f64
}

/// Pairs of an output and a tap along an axis that lie in the input.
fn taps(window: &Window, axis: usize) -> usize {
    let Window { input, output, kernel, stride, dilation, pad } = window;
    let outputs = |tap: usize| {
        let offset = tap * dilation[axis];
        let first = pad[axis].saturating_sub(offset).div_ceil(stride[axis]);
        let end = (input[axis] + pad[axis]).saturating_sub(offset).div_ceil(stride[axis]).min(output[axis]);
        end.saturating_sub(first)
    };
    (0..kernel[axis]).map(outputs).sum()
}

/// Pairs of a row of outputs and a tap that lie in the input.
fn row_taps(window: &Window) -> f64 {
    (taps(window, 0) * window.kernel[1]) as f64
}

/// Pairs of an output and a tap that lie in the input.
fn covered(window: &Window) -> f64 {
    taps(window, 0) as f64 * taps(window, 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_and_broken_lines_are_named() {
        assert!(!AVX2.units.is_empty());
        let times = Times::parse("# family\tamount\ttime\nelementwise\tbytes\t2.5\nelementwise\tstep\t1000").unwrap();
        assert_eq!(times.of_bytes(400), 2000);
        for line in
            ["elementwise\tbytes", "elementwise\tbytes\tmany", "elementwise\tbytes\t-1", "elementwise\tbytes\tinf"]
        {
            assert!(Times::parse(line).unwrap_err().contains(line));
        }
    }

    #[test]
    fn pools_and_weight_gradients_of_training_have_times() {
        let window =
            Window { input: [8, 8], output: [4, 4], kernel: [2, 2], stride: [2, 2], dilation: [1, 1], pad: [0, 0] };
        let mut kernels: Vec<Kernel> = Vec::new();
        for layout in [ImageLayout::RowMajor, ImageLayout::Blocked] {
            let planes = Planes { batch: 2, channels: 20, plane: 16, layout };
            kernels.push(cpu::PoolWithPositions { planes, window }.into());
            for (kind, positions) in [(Pool2dKind::Max, true), (Pool2dKind::Max, false), (Pool2dKind::Mean, false)] {
                kernels.push(cpu::PoolGradient { kind, planes, window, positions }.into());
            }
        }
        let depth = Window::ONE;
        let rows =
            |groups| cpu::WeightGradientRows { batch: 2, in_channels: 4, out_channels: 6, groups, depth, window };
        kernels.extend([rows(1).into(), rows(2).into()]);
        for kernel in &kernels {
            let work = Workload::of(kernel).expect("its work is counted");
            for times in [&*AVX2, &*AVX512] {
                let has = |amount: &str| times.units.get(work.family).is_some_and(|units| units.contains_key(amount));
                assert!(work.amounts.iter().all(|(amount, _)| has(amount)), "{kernel:?}");
            }
        }
    }

    #[test]
    fn taps_on_padding_are_not_counted() {
        let window =
            Window { input: [4, 4], output: [4, 2], kernel: [3, 3], stride: [1, 2], dilation: [1, 1], pad: [1, 1] };
        // Rows: 3, 4 and 3 outputs; columns at stride 2: 1, 2 and 2.
        assert_eq!((taps(&window, 0), taps(&window, 1)), (10, 5));
        let before = Window { dilation: [9, 9], ..window };
        assert_eq!(taps(&before, 0), 3);
    }
}
