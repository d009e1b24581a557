//! JPEG decoding with the pixels of libjpeg: 8-bit baseline, extended and progressive files with Huffman coding, gray or
//! three components.
//!
//! PIL, OpenCV, torchvision and MXNet decode with libjpeg or libjpeg-turbo. Equal pixels need the same integer inverse DCT
//! (`jidctint.c`: Loeffler, Ligtenberg and Moschytz 1989, with 13 fractional bits; `jidctred.c` for reduced sizes), the
//! same triangle filter for chroma and the same color conversion. Syntax: ITU-T T.81.
//!
//! The whole file is read, so that damage is found anywhere, but only the samples of a [`View`] are made.

mod entropy;
mod output;
mod transform;

use std::ops::Range;

use self::entropy::{Band, Bits, Huffman, Lookup, ZIGZAG};
use self::output::{Plane, needed};
use self::transform::Transform;
use super::{Part, RgbImage, View};

/// Decodes the view that `choose` returns for the columns and rows of the file.
///
/// # Errors
/// A malformed, truncated or unsupported file; more than `pixels_max` pixels.
pub(super) fn decode(
    bytes: &[u8],
    pixels_max: u64,
    choose: &mut dyn FnMut(usize, usize) -> View,
) -> Result<Part, String> {
    let mut decoder = Decoder::new(bytes, pixels_max);
    let read = decoder.read_segments(choose);
    let (width, height) = decoder.stated;
    super::check_size(width, height, pixels_max)?;
    let image = read.and_then(|()| decoder.part());
    image.map_err(|reason| format!("the JPEG image cannot be read: {reason}"))
}

/// The coefficients and samples of one component.
struct Component {
    id: u8,
    /// Sampling factors.
    h: usize,
    v: usize,
    quantization: usize,
    /// The table at the first scan of the component.
    table: Option<[i32; 64]>,
    /// Columns and rows of samples before a reduction.
    width: usize,
    height: usize,
    /// Blocks of a row and of a column, up to whole MCUs.
    across: usize,
    down: usize,
    /// All blocks, of a progressive file only.
    coefficients: Vec<[i16; 64]>,
    prediction: i32,
    /// Samples of a side of a block.
    size: usize,
    /// The columns and rows of blocks that the view depends on.
    columns: Range<usize>,
    rows: Range<usize>,
    plane: Plane,
}

impl Component {
    /// Writes the samples of the block at column `x` and row `y`, which the view depends on.
    fn transform(&mut self, transform: Transform, block: &[i16; 64], is_flat: bool, x: usize, y: usize) {
        let table = self.table.as_ref().expect("checked at the head of the scan");
        let start = (y - self.rows.start) * self.size * self.plane.stride + (x - self.columns.start) * self.size;
        transform.apply(block, is_flat, table, &mut self.plane.samples[start..], self.plane.stride);
    }
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    pixels_max: u64,
    /// The size in the head of the frame, before it is checked.
    stated: (u64, u64),
    view: View,
    progressive: bool,
    components: Vec<Component>,
    quantization: [Option<[i32; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    /// MCUs between restart markers; 0 for none.
    restart: usize,
    jfif: bool,
    /// The color transform of an Adobe segment.
    adobe: Option<u8>,
    scans: usize,
}

fn lookups(tables: &[Option<Huffman>]) -> Vec<Option<Lookup<'_>>> {
    tables.iter().map(|codes| codes.as_ref().map(Lookup::new)).collect()
}

/// One scan's part of a component.
#[derive(Clone, Copy)]
struct ScanComponent {
    component: usize,
    dc: usize,
    ac: usize,
}

const TRUNCATED: &str = "the file is truncated";

/// Scans of a file. A progressive file has about ten; the bound keeps the time of crafted files linear in their size.
const SCANS_MAX: usize = 200;

impl<'a> Decoder<'a> {
    fn new(bytes: &'a [u8], pixels_max: u64) -> Decoder<'a> {
        Decoder {
            bytes,
            at: 2,
            pixels_max,
            stated: (1, 1),
            view: View { reduction: 1, columns: 0..0, rows: 0..0 },
            progressive: false,
            components: Vec::new(),
            quantization: [None; 4],
            dc: [const { None }; 4],
            ac: [const { None }; 4],
            restart: 0,
            jfif: false,
            adobe: None,
            scans: 0,
        }
    }

    /// Reads all segments up to the end of the image.
    fn read_segments(&mut self, choose: &mut dyn FnMut(usize, usize) -> View) -> Result<(), String> {
        loop {
            let marker = self.marker()?;
            if marker == 0xd9 {
                return Ok(());
            }
            if matches!(marker, 0x01 | 0xd0..=0xd7) {
                continue;
            }
            let segment = self.segment()?;
            match marker {
                0xc0..=0xc2 => self.frame(segment, marker == 0xc2, choose)?,
                0xc4 => self.huffman_tables(segment)?,
                0xc3 | 0xc5..=0xc7 | 0xc9..=0xcf => {
                    return Err(format!(
                        "JPEG process 0x{marker:02x} is not supported (lossless or arithmetic coding)"
                    ));
                }
                0xda => self.scan(segment)?,
                0xdb => self.quantization_tables(segment)?,
                0xdd => {
                    let [high, low] = *segment else { return Err("the restart interval must have 2 bytes".into()) };
                    self.restart = usize::from(u16::from_be_bytes([high, low]));
                }
                0xe0 => self.jfif |= segment.starts_with(b"JFIF\0"),
                0xee if segment.starts_with(b"Adobe") => self.adobe = segment.get(11).copied(),
                _ => {}
            }
        }
    }

    /// The next marker, after fill bytes.
    fn marker(&mut self) -> Result<u8, String> {
        if *self.bytes.get(self.at).ok_or(TRUNCATED)? != 0xff {
            return Err(format!("byte {}: a marker must begin with ff", self.at));
        }
        while *self.bytes.get(self.at).ok_or(TRUNCATED)? == 0xff {
            self.at += 1;
        }
        self.at += 1;
        Ok(self.bytes[self.at - 1])
    }

    fn segment(&mut self) -> Result<&'a [u8], String> {
        let length = self.bytes.get(self.at..self.at + 2).ok_or(TRUNCATED)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        if length < 2 {
            return Err(format!("byte {}: the length of a segment must be >= 2", self.at));
        }
        let segment = self.bytes.get(self.at + 2..self.at + length).ok_or(TRUNCATED)?;
        self.at += length;
        Ok(segment)
    }

    fn quantization_tables(&mut self, mut segment: &[u8]) -> Result<(), String> {
        while let Some((&head, rest)) = segment.split_first() {
            let (wide, number) = (head >> 4 != 0, usize::from(head & 15));
            let size = if wide { 128 } else { 64 };
            let (values, rest) = rest.split_at_checked(size).ok_or("a quantization table is truncated")?;
            let slot = self.quantization.get_mut(number).ok_or("quantization tables are numbered 0 to 3")?;
            let value = |ix: usize| match wide {
                true => i32::from(u16::from_be_bytes([values[2 * ix], values[2 * ix + 1]])),
                false => i32::from(values[ix]),
            };
            let mut table = [0; 64];
            ZIGZAG.iter().enumerate().for_each(|(ix, &place)| table[usize::from(place)] = value(ix));
            *slot = Some(table);
            segment = rest;
        }
        Ok(())
    }

    fn huffman_tables(&mut self, mut segment: &[u8]) -> Result<(), String> {
        while let Some((&head, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or("a Huffman table is truncated")?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(total).ok_or("a Huffman table is truncated")?;
            let tables = if head >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let slot = tables.get_mut(usize::from(head & 15)).ok_or("Huffman tables are numbered 0 to 3")?;
            *slot = Some(Huffman::new(counts, symbols)?);
            segment = rest;
        }
        Ok(())
    }

    fn frame(
        &mut self,
        segment: &[u8],
        progressive: bool,
        choose: &mut dyn FnMut(usize, usize) -> View,
    ) -> Result<(), String> {
        let [precision, h1, h0, w1, w0, count, rest @ ..] = segment else {
            return Err("the frame is truncated".into());
        };
        let (width, height) = (u16::from_be_bytes([*w1, *w0]), u16::from_be_bytes([*h1, *h0]));
        if !self.components.is_empty() {
            return Err("a file must have one frame, found two".into());
        }
        if *precision != 8 {
            return Err(format!("JPEG samples must have 8 bits, got {precision}"));
        }
        self.stated = (width.into(), height.into());
        super::check_size(width.into(), height.into(), self.pixels_max)?;
        if !matches!(count, 1 | 3) || rest.len() != 3 * usize::from(*count) {
            return Err(format!("JPEG colors must be RGB or gray, got {count} components; save the image as RGB"));
        }
        let (width, height) = (usize::from(width), usize::from(height));
        self.progressive = progressive;
        let factors =
            || rest.as_chunks::<3>().0.iter().map(|part| (usize::from(part[1] >> 4), usize::from(part[1] & 15)));
        if factors().any(|(h, v)| !(1..=4).contains(&h) || !(1..=4).contains(&v)) {
            return Err("sampling factors must be in 1..=4".into());
        }
        let (h_max, v_max) = factors().fold((1, 1), |(h_max, v_max), (h, v)| (h_max.max(h), v_max.max(v)));
        if factors().any(|(h, v)| h_max % h != 0 || v_max % v != 0) {
            return Err("sampling factors must divide the largest".into());
        }
        let mcus = (width.div_ceil(8 * h_max), height.div_ceil(8 * v_max));
        self.view = choose(width, height);
        let View { reduction, columns, rows } = &self.view;
        let size_min = 8 / reduction;
        for &[id, sampling, quantization] in rest.as_chunks::<3>().0 {
            let (h, v) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            // libjpeg reduces chroma less where that saves its interpolation.
            let mut size = size_min;
            while size < 8 && (h_max * size_min) % (h * size * 2) == 0 && (v_max * size_min) % (v * size * 2) == 0 {
                size *= 2;
            }
            let ratio = (h_max * size_min / (h * size), v_max * size_min / (v * size));
            let (across, down) = (mcus.0 * h, mcus.1 * v);
            let samples = |extent: usize, factor: usize, max: usize| (extent * factor * size).div_ceil(max * 8);
            let plane_size = (samples(width, h, h_max), samples(height, v, v_max));
            let (x, y) = (needed(columns, ratio.0, plane_size.0), needed(rows, ratio.1, plane_size.1));
            let (columns, rows) = (x.start / size..x.end.div_ceil(size), y.start / size..y.end.div_ceil(size));
            let stride = columns.len() * size;
            self.components.push(Component {
                id,
                h,
                v,
                quantization: quantization.into(),
                table: None,
                width: (width * h).div_ceil(h_max),
                height: (height * v).div_ceil(v_max),
                across,
                down,
                coefficients: if progressive { vec![[0; 64]; across * down] } else { Vec::new() },
                prediction: 0,
                size,
                plane: Plane {
                    samples: vec![0; stride * rows.len() * size],
                    stride,
                    at: (columns.start * size, rows.start * size),
                    width: plane_size.0,
                    height: plane_size.1,
                    ratio,
                    is_smooth: 1 < size_min,
                },
                columns,
                rows,
            });
        }
        Ok(())
    }

    fn scan(&mut self, segment: &[u8]) -> Result<(), String> {
        let malformed = || "the head of a scan is malformed".to_string();
        let (&count, rest) = segment.split_first().ok_or_else(malformed)?;
        let (parts, rest) = rest.split_at_checked(2 * usize::from(count)).ok_or_else(malformed)?;
        let &[first, last, bits] = rest else { return Err(malformed()) };
        self.scans += 1;
        if SCANS_MAX < self.scans {
            return Err(format!("a file must have <= {SCANS_MAX} scans"));
        }
        let mut scan = Vec::new();
        for &[id, tables] in parts.as_chunks::<2>().0 {
            let component = self.components.iter().position(|own| own.id == id).ok_or_else(malformed)?;
            scan.push(ScanComponent { component, dc: usize::from(tables >> 4), ac: usize::from(tables & 15) });
        }
        let band = match self.progressive {
            false => Band { first: 0, last: 63, high: 0, low: 0 },
            true => Band { first: first.into(), last: last.into(), high: (bits >> 4).into(), low: (bits & 15).into() },
        };
        let mixes = band.first == 0 && band.last != 0 && self.progressive || 0 < band.first && 1 < scan.len();
        if scan.is_empty() || 63 < band.last || band.last < band.first || 13 < band.low || 14 < band.high || mixes {
            return Err(malformed());
        }
        for part in &scan {
            let needs_dc = band.first == 0 && band.high == 0;
            if needs_dc && self.dc.get(part.dc).is_none_or(Option::is_none)
                || 0 < band.last && self.ac.get(part.ac).is_none_or(Option::is_none)
            {
                return Err("a scan uses a Huffman table that is not defined".into());
            }
            let component = &mut self.components[part.component];
            if component.table.is_none() {
                let table = self.quantization.get(component.quantization).copied().flatten();
                component.table = Some(table.ok_or("a component uses a quantization table that is not defined")?);
            }
        }
        self.decode_scan(&scan, band)
    }

    fn decode_scan(&mut self, scan: &[ScanComponent], band: Band) -> Result<(), String> {
        let mut bits = Bits::new(self.bytes, self.at);
        self.components.iter_mut().for_each(|component| component.prediction = 0);
        // A scan of one component has the blocks of its samples; others have whole MCUs.
        let (across, down) = match scan {
            [only] => {
                let component = &self.components[only.component];
                (component.width.div_ceil(8), component.height.div_ceil(8))
            }
            _ => {
                let component = &self.components[scan[0].component];
                (component.across / component.h, component.down / component.v)
            }
        };
        let (dc, ac) = match self.progressive {
            true => (Vec::new(), Vec::new()),
            false => (lookups(&self.dc), lookups(&self.ac)),
        };
        let transforms = [1, 2, 4, 8].map(Transform::new);
        let mut run = 0;
        let mut block = [0; 64];
        for mcu in 0..across * down {
            if self.restart != 0 && mcu != 0 && mcu % self.restart == 0 {
                bits.restart()?;
                self.components.iter_mut().for_each(|component| component.prediction = 0);
                run = 0;
            }
            let (x, y) = (mcu % across, mcu / across);
            for part in scan {
                let component = &mut self.components[part.component];
                let (h, v) = if scan.len() == 1 { (1, 1) } else { (component.h, component.v) };
                for ix in 0..h * v {
                    let (x, y) = (x * h + ix % h, y * v + ix / h);
                    if self.progressive {
                        let tables = (
                            self.dc.get(part.dc).and_then(Option::as_ref),
                            self.ac.get(part.ac).and_then(Option::as_ref),
                        );
                        let block = &mut component.coefficients[y * component.across + x];
                        bits.progressive(block, &mut component.prediction, tables, band, &mut run)?;
                        continue;
                    }
                    let (Some(Some(dc)), Some(Some(ac))) = (dc.get(part.dc), ac.get(part.ac)) else {
                        return Err("a scan uses a Huffman table that is not defined".into());
                    };
                    let is_curved = bits.block(&mut block, &mut component.prediction, (dc, ac))?;
                    if component.columns.contains(&x) && component.rows.contains(&y) {
                        let transform = transforms[component.size.trailing_zeros() as usize];
                        component.transform(transform, &block, !is_curved, x, y);
                    }
                    if is_curved {
                        block = [0; 64];
                    }
                }
            }
            if bits.is_past_the_end() {
                return Err(TRUNCATED.into());
            }
        }
        self.at = bits.end();
        Ok(())
    }

    /// The inverse transform of the coefficients of a progressive file, and the colors.
    fn part(mut self) -> Result<Part, String> {
        if self.components.is_empty() || self.components.iter().any(|component| component.table.is_none()) {
            return Err("the file has no image".into());
        }
        for component in &mut self.components {
            let transform = Transform::new(component.size);
            let coefficients = std::mem::take(&mut component.coefficients);
            if coefficients.is_empty() {
                continue;
            }
            for y in component.rows.clone() {
                for x in component.columns.clone() {
                    let block = &coefficients[y * component.across + x];
                    let is_flat = block[1..].iter().all(|&value| value == 0);
                    component.transform(transform, block, is_flat, x, y);
                }
            }
        }
        let ids: Vec<u8> = self.components.iter().map(|component| component.id).collect();
        let is_rgb = match (self.jfif, self.adobe) {
            (true, _) => false,
            (false, Some(transform)) => transform == 0,
            (false, None) => ids == *b"RGB",
        };
        let View { columns, rows, .. } = self.view;
        let mut rgb = vec![0; columns.len() * rows.len() * 3];
        let planes: Vec<Plane> = self.components.into_iter().map(|component| component.plane).collect();
        let at = (columns.start, rows.start);
        let (width, height) = (columns.len(), rows.len());
        output::write(&planes, is_rgb, &columns, rows, &mut rgb);
        Ok(Part { image: RgbImage { width, height, rgb }, at })
    }
}
