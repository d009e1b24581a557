//! JPEG decoding with the pixels of libjpeg: 8-bit baseline, extended and progressive files with Huffman coding, gray or
//! three components.
//!
//! PIL, OpenCV, torchvision and MXNet decode with libjpeg or libjpeg-turbo. Equal pixels need the same integer inverse DCT
//! (`jidctint.c`: Loeffler, Ligtenberg and Moschytz 1989, with 13 fractional bits), the same triangle filter for chroma
//! (`jdsample.c`) and the same color tables (`jdcolor.c`). Syntax: ITU-T T.81.

use super::RgbImage;

/// Coefficients in the order of a file: row and column of each.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// Decodes a file.
///
/// # Errors
/// A malformed, truncated or unsupported file; more than `pixels_max` pixels.
pub(super) fn decode(bytes: &[u8], pixels_max: u64) -> Result<RgbImage, String> {
    let mut decoder = Decoder::new(bytes, pixels_max);
    let read = decoder.read_segments();
    let (width, height) = decoder.stated;
    super::check_size(width, height, pixels_max)?;
    let image = read.and_then(|()| decoder.image());
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
    table: Option<[u16; 64]>,
    /// Columns and rows of samples.
    width: usize,
    height: usize,
    /// Blocks of a row and of a column, up to whole MCUs.
    across: usize,
    down: usize,
    coefficients: Vec<[i16; 64]>,
    prediction: i32,
}

struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    pixels_max: u64,
    /// The size in the head of the frame, before it is checked.
    stated: (u64, u64),
    width: usize,
    height: usize,
    progressive: bool,
    components: Vec<Component>,
    quantization: [Option<[u16; 64]>; 4],
    dc: [Option<Huffman>; 4],
    ac: [Option<Huffman>; 4],
    /// MCUs between restart markers; 0 for none.
    restart: usize,
    jfif: bool,
    /// The color transform of an Adobe segment.
    adobe: Option<u8>,
    scans: usize,
}

/// One scan's part of a component.
#[derive(Clone, Copy)]
struct ScanComponent {
    component: usize,
    dc: usize,
    ac: usize,
}

/// The coefficients of a scan: positions and bits.
#[derive(Clone, Copy)]
struct Band {
    first: usize,
    last: usize,
    /// The lowest bit of an earlier scan; 0 in the first.
    high: u32,
    low: u32,
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
            width: 0,
            height: 0,
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
    fn read_segments(&mut self) -> Result<(), String> {
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
                0xc0..=0xc2 => self.frame(segment, marker == 0xc2)?,
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
                true => u16::from_be_bytes([values[2 * ix], values[2 * ix + 1]]),
                false => u16::from(values[ix]),
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

    fn frame(&mut self, segment: &[u8], progressive: bool) -> Result<(), String> {
        let [precision, h1, h0, w1, w0, count, rest @ ..] = segment else {
            return Err("the frame is truncated".into());
        };
        let (width, height) = (u16::from_be_bytes([*w1, *w0]).into(), u16::from_be_bytes([*h1, *h0]).into());
        if !self.components.is_empty() {
            return Err("a file must have one frame, found two".into());
        }
        if *precision != 8 {
            return Err(format!("JPEG samples must have 8 bits, got {precision}"));
        }
        self.stated = (width, height);
        super::check_size(width, height, self.pixels_max)?;
        if !matches!(count, 1 | 3) || rest.len() != 3 * usize::from(*count) {
            return Err(format!("JPEG colors must be RGB or gray, got {count} components; save the image as RGB"));
        }
        (self.width, self.height, self.progressive) = (width as usize, height as usize, progressive);
        let factors =
            || rest.as_chunks::<3>().0.iter().map(|part| (usize::from(part[1] >> 4), usize::from(part[1] & 15)));
        if factors().any(|(h, v)| !(1..=4).contains(&h) || !(1..=4).contains(&v)) {
            return Err("sampling factors must be in 1..=4".into());
        }
        let (h_max, v_max) = factors().fold((1, 1), |(h_max, v_max), (h, v)| (h_max.max(h), v_max.max(v)));
        if factors().any(|(h, v)| h_max % h != 0 || v_max % v != 0) {
            return Err("sampling factors must divide the largest".into());
        }
        let mcus = (self.width.div_ceil(8 * h_max), self.height.div_ceil(8 * v_max));
        for &[id, sampling, quantization] in rest.as_chunks::<3>().0 {
            let (h, v) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            let (across, down) = (mcus.0 * h, mcus.1 * v);
            self.components.push(Component {
                id,
                h,
                v,
                quantization: quantization.into(),
                table: None,
                width: (self.width * h).div_ceil(h_max),
                height: (self.height * v).div_ceil(v_max),
                across,
                down,
                coefficients: vec![[0; 64]; across * down],
                prediction: 0,
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
        let mut bits = Bits { bytes: self.bytes, at: self.at, buffer: 0, count: 0, zeros: 0 };
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
        let mut run = 0;
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
                let tables =
                    (self.dc.get(part.dc).and_then(Option::as_ref), self.ac.get(part.ac).and_then(Option::as_ref));
                for block in 0..h * v {
                    let place = (y * v + block / h) * component.across + x * h + block % h;
                    let block = &mut component.coefficients[place];
                    match (self.progressive, tables) {
                        (false, (Some(dc), Some(ac))) => bits.block(block, &mut component.prediction, dc, ac)?,
                        (false, _) => return Err("a scan uses a Huffman table that is not defined".into()),
                        (true, tables) => bits.progressive(block, &mut component.prediction, tables, band, &mut run)?,
                    }
                }
            }
            if bits.count < bits.zeros {
                return Err(TRUNCATED.into());
            }
        }
        self.at = bits.end();
        Ok(())
    }

    /// The inverse transform of all components, and their colors.
    fn image(mut self) -> Result<RgbImage, String> {
        if self.components.is_empty() || self.components.iter().any(|component| component.table.is_none()) {
            return Err("the file has no image".into());
        }
        let planes: Vec<Vec<u8>> = self.components.iter_mut().map(plane).collect();
        let ids: Vec<u8> = self.components.iter().map(|component| component.id).collect();
        let is_rgb = match (self.jfif, self.adobe) {
            (true, _) => false,
            (false, Some(transform)) => transform == 0,
            (false, None) => ids == *b"RGB",
        };
        let largest = |of: fn(&Component) -> usize| self.components.iter().map(of).max().unwrap_or(1);
        let (h_max, v_max) = (largest(|component| component.h), largest(|component| component.v));
        let colors = Colors::new();
        let mut rgb = vec![0; self.width * self.height * 3];
        let padded = self.width + 2 * 8 * h_max;
        let mut rows = vec![vec![0u8; padded]; self.components.len()];
        for (y, out) in rgb.chunks_exact_mut(self.width * 3).enumerate() {
            for ((component, plane), row) in self.components.iter().zip(&planes).zip(&mut rows) {
                upsample(component, plane, (h_max / component.h, v_max / component.v), y, row);
            }
            let pixels = out.as_chunks_mut::<3>().0;
            match &rows[..] {
                [gray] => pixels.iter_mut().zip(gray).for_each(|(pixel, &value)| *pixel = [value; 3]),
                [a, b, c] => {
                    for (((pixel, &a), &b), &c) in pixels.iter_mut().zip(a).zip(b).zip(c) {
                        *pixel = if is_rgb { [a, b, c] } else { colors.rgb(a, b, c) };
                    }
                }
                _ => unreachable!("a frame has 1 or 3 components"),
            }
        }
        Ok(RgbImage { width: self.width, height: self.height, rgb })
    }
}

/// A table of codes.
struct Huffman {
    /// Length and symbol of the code that begins with these 9 bits; length 0 for longer codes.
    short: [(u8, u8); 512],
    /// For each length, the first code after those of the length, left-aligned to 16 bits.
    limits: [u32; 17],
    /// For each length, the difference of a symbol's position and its code.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Huffman, String> {
        let mut table = Huffman { short: [(0, 0); 512], limits: [0; 17], offsets: [0; 17], symbols: symbols.to_vec() };
        let (mut code, mut first) = (0u32, 0usize);
        for length in 1..=16usize {
            let count = usize::from(counts[length - 1]);
            table.offsets[length] = first as i32 - code as i32;
            if 1 << length < code as usize + count {
                return Err("a Huffman table has more codes than their lengths allow".into());
            }
            for ix in 0..count {
                if length <= 9 {
                    let start = (code as usize + ix) << (9 - length);
                    table.short[start..start + (1 << (9 - length))].fill((length as u8, symbols[first + ix]));
                }
            }
            code += count as u32;
            first += count;
            table.limits[length] = code << (16 - length);
            code <<= 1;
        }
        Ok(table)
    }
}

/// Reads the bits of a scan. Past its end it reads zeros, which it counts.
struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte; at a marker it stays.
    at: usize,
    /// The next bits, the first is the highest.
    buffer: u64,
    /// Bits in the buffer.
    count: u32,
    /// Bits at the end of the buffer that the file does not have.
    zeros: u32,
}

impl Bits<'_> {
    fn refill(&mut self) {
        while self.count <= 56 {
            let byte = match self.bytes.get(self.at..) {
                Some([0xff, 0, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([0xff, ..]) | Some([]) | None => {
                    self.zeros += 8;
                    0
                }
                Some([byte, ..]) => {
                    self.at += 1;
                    *byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next bits as a number; at most 16.
    fn take(&mut self, count: u32) -> u32 {
        if count == 0 {
            return 0;
        }
        if self.count < count {
            self.refill();
        }
        let value = (self.buffer >> (64 - count)) as u32;
        self.skip(count);
        value
    }

    fn skip(&mut self, count: u32) {
        self.buffer <<= count;
        self.count -= count;
    }

    fn symbol(&mut self, table: &Huffman) -> Result<u8, String> {
        if self.count < 16 {
            self.refill();
        }
        let (length, symbol) = table.short[(self.buffer >> 55) as usize];
        if length != 0 {
            self.skip(length.into());
            return Ok(symbol);
        }
        let code = (self.buffer >> 48) as u32;
        for length in 10..=16usize {
            if code < table.limits[length] {
                let ix = (code >> (16 - length)) as i32 + table.offsets[length];
                self.skip(length as u32);
                return table.symbols.get(ix as usize).copied().ok_or_else(|| "a Huffman code has no symbol".into());
            }
        }
        Err("the file has a Huffman code that is not in its table".into())
    }

    /// A number of `size` bits; the first bit is 0 for negative numbers.
    fn signed(&mut self, size: u32) -> i32 {
        let value = self.take(size) as i32;
        match size {
            0 => 0,
            _ if value < 1 << (size - 1) => value - (1 << size) + 1,
            _ => value,
        }
    }

    fn dc(&mut self, prediction: &mut i32, table: &Huffman) -> Result<i32, String> {
        let size = self.symbol(table)?;
        if 11 < size {
            return Err("a DC difference must have <= 11 bits".into());
        }
        *prediction = prediction.wrapping_add(self.signed(size.into()));
        Ok(*prediction)
    }

    /// A block of a sequential scan.
    fn block(&mut self, block: &mut [i16; 64], prediction: &mut i32, dc: &Huffman, ac: &Huffman) -> Result<(), String> {
        block[0] = self.dc(prediction, dc)? as i16;
        let mut at = 1;
        while at < 64 {
            let symbol = self.symbol(ac)?;
            let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if zeros != 15 {
                    break;
                }
                at += 16;
                continue;
            }
            at += zeros;
            if 63 < at {
                return Err("a block has more than 64 coefficients".into());
            }
            block[usize::from(ZIGZAG[at])] = self.signed(size) as i16;
            at += 1;
        }
        Ok(())
    }

    /// A block of a progressive scan. `run` is the number of following blocks whose band is zero.
    fn progressive(
        &mut self,
        block: &mut [i16; 64],
        prediction: &mut i32,
        tables: (Option<&Huffman>, Option<&Huffman>),
        band: Band,
        run: &mut u32,
    ) -> Result<(), String> {
        if band.first == 0 {
            match tables.0 {
                Some(table) if band.high == 0 => block[0] = (self.dc(prediction, table)? << band.low) as i16,
                _ => block[0] |= (self.take(1) << band.low) as i16,
            }
            return Ok(());
        }
        let ac = tables.1.ok_or("a scan uses a Huffman table that is not defined")?;
        match band.high {
            0 => self.first_ac(block, ac, band, run),
            _ => self.refine_ac(block, ac, band, run),
        }
    }

    fn first_ac(&mut self, block: &mut [i16; 64], ac: &Huffman, band: Band, run: &mut u32) -> Result<(), String> {
        if 0 < *run {
            *run -= 1;
            return Ok(());
        }
        let mut at = band.first;
        while at <= band.last {
            let symbol = self.symbol(ac)?;
            let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if zeros < 15 {
                    *run = (1 << zeros) - 1 + self.take(zeros);
                    break;
                }
                at += 16;
                continue;
            }
            at += zeros as usize;
            if band.last < at {
                return Err("a block has more coefficients than its band".into());
            }
            block[usize::from(ZIGZAG[at])] = (self.signed(size) << band.low) as i16;
            at += 1;
        }
        Ok(())
    }

    /// One more bit of the coefficients of a band (T.81, G.1.2.3).
    fn refine_ac(&mut self, block: &mut [i16; 64], ac: &Huffman, band: Band, run: &mut u32) -> Result<(), String> {
        let bit = 1i16 << band.low;
        let mut at = band.first;
        if *run == 0 {
            while at <= band.last {
                let symbol = self.symbol(ac)?;
                let (mut zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                let mut value = 0;
                match size {
                    0 if zeros < 15 => {
                        *run = (1 << zeros) + self.take(zeros);
                        break;
                    }
                    0 => {}
                    1 => value = if self.take(1) == 1 { bit } else { -bit },
                    _ => return Err("a refined coefficient must have 1 bit".into()),
                }
                while at <= band.last {
                    let own = &mut block[usize::from(ZIGZAG[at])];
                    if *own != 0 {
                        self.refine(own, bit);
                    } else if zeros == 0 {
                        *own = value;
                        at += 1;
                        break;
                    } else {
                        zeros -= 1;
                    }
                    at += 1;
                }
            }
        }
        if 0 < *run {
            while at <= band.last {
                let own = &mut block[usize::from(ZIGZAG[at])];
                if *own != 0 {
                    self.refine(own, bit);
                }
                at += 1;
            }
            *run -= 1;
        }
        Ok(())
    }

    fn refine(&mut self, coefficient: &mut i16, bit: i16) {
        if self.take(1) == 1 && *coefficient & bit == 0 {
            *coefficient = coefficient.saturating_add(if *coefficient < 0 { -bit } else { bit });
        }
    }

    /// Goes to the byte after a restart marker.
    fn restart(&mut self) -> Result<(), String> {
        (self.buffer, self.count, self.zeros) = (0, 0, 0);
        match self.bytes.get(self.at..) {
            Some([0xff, 0xd0..=0xd7, ..]) => {
                self.at += 2;
                Ok(())
            }
            _ => Err(format!("byte {}: a restart marker is missing", self.at)),
        }
    }

    /// The marker after the scan.
    fn end(&self) -> usize {
        // Bytes in the buffer precede the marker, since reading stops there; encoders may add some.
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0;
        rest.windows(2).position(is_marker).map_or(self.bytes.len(), |found| self.at + found)
    }
}

/// The samples of a component: [`Component::across`] blocks wide.
fn plane(component: &mut Component) -> Vec<u8> {
    let table = component.table.expect("checked by the caller");
    let stride = component.across * 8;
    let mut samples = vec![0; stride * component.down * 8];
    for (ix, block) in component.coefficients.iter().enumerate() {
        let start = (ix / component.across) * 8 * stride + (ix % component.across) * 8;
        inverse_dct(block, &table, &mut samples[start..], stride);
    }
    component.coefficients = Vec::new();
    samples
}

/// The larger of the limits within which no sum of the transform overflows; valid files stay far below.
const COEFFICIENT_MAX: i32 = 8191;
const HALF_DONE_MAX: i32 = 16383;

fn inverse_dct(block: &[i16; 64], table: &[u16; 64], out: &mut [u8], stride: usize) {
    let coefficient =
        |ix: usize| (i32::from(block[ix]) * i32::from(table[ix])).clamp(-COEFFICIENT_MAX, COEFFICIENT_MAX);
    if block[1..].iter().all(|&value| value == 0) {
        let value = sample((coefficient(0) * 4 + 16) >> 5);
        for row in out.chunks_mut(stride).take(8) {
            row[..8].fill(value);
        }
        return;
    }
    let mut half = [0i32; 64];
    for x in 0..8 {
        let column = butterfly(std::array::from_fn(|y| coefficient(y * 8 + x)));
        for (y, sum) in column.into_iter().enumerate() {
            half[y * 8 + x] = ((sum + (1 << 10)) >> 11).clamp(-HALF_DONE_MAX, HALF_DONE_MAX);
        }
    }
    for (row, out) in half.as_chunks::<8>().0.iter().zip(out.chunks_mut(stride)) {
        let sums = butterfly(*row);
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sample((sum + (1 << 17)) >> 18);
        }
    }
}

/// Samples are stored around 0.
fn sample(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

/// Eight outputs of the one-dimensional transform, with 13 fractional bits.
fn butterfly(input: [i32; 8]) -> [i32; 8] {
    let sum = (input[2] + input[6]) * 4433;
    let (even2, even3) = (sum - input[6] * 15137, sum + input[2] * 6270);
    let (even0, even1) = ((input[0] + input[4]) << 13, (input[0] - input[4]) << 13);
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];
    let [a, b, c, d] = [input[7], input[5], input[3], input[1]];
    let all = (a + c + b + d) * 9633;
    let (z1, z2) = ((a + d) * -7373, (b + c) * -20995);
    let (z3, z4) = ((a + c) * -16069 + all, (b + d) * -3196 + all);
    let odd = [d * 12299 + z1 + z4, c * 25172 + z2 + z3, b * 16819 + z2 + z4, a * 2446 + z1 + z3];
    [
        even[0] + odd[0],
        even[1] + odd[1],
        even[2] + odd[2],
        even[3] + odd[3],
        even[3] - odd[3],
        even[2] - odd[2],
        even[1] - odd[1],
        even[0] - odd[0],
    ]
}

/// Row `y` of the image from a component whose samples are `ratio` times farther apart.
fn upsample(component: &Component, plane: &[u8], ratio: (usize, usize), y: usize, out: &mut [u8]) {
    let stride = component.across * 8;
    let row = |row: usize| &plane[row * stride..row * stride + component.width];
    // The other row that a pixel between two rows depends on; rows outside of the image equal those at its border.
    let far_row = |row: usize| match y % 2 {
        0 => row.saturating_sub(1),
        _ => (row + 1).min(component.height - 1),
    };
    match ratio {
        (1, 1) => out[..component.width].copy_from_slice(row(y)),
        (2, 1) if 2 < component.width => {
            let row = row(y).iter().map(|&sample| u32::from(sample));
            triangle(row, out, 2, [1, 2]);
        }
        (1, 2) => {
            let bias = if y.is_multiple_of(2) { 1 } else { 2 };
            for ((out, &near), &far) in out.iter_mut().zip(row(y / 2)).zip(row(far_row(y / 2))) {
                *out = ((3 * u32::from(near) + u32::from(far) + bias) >> 2) as u8;
            }
        }
        (2, 2) if 2 < component.width => {
            let near = row(y / 2).iter().map(|&sample| 3 * u32::from(sample));
            let sums = near.zip(row(far_row(y / 2))).map(|(near, &far)| near + u32::from(far));
            triangle(sums, out, 4, [8, 7]);
        }
        (h, v) => {
            let row = row(y / v);
            for (out, &sample) in out.chunks_mut(h).zip(row) {
                out.fill(sample);
            }
        }
    }
}

/// Two pixels for each sample: 3/4 of it and 1/4 of its neighbor on that side. A border has itself as its neighbor.
fn triangle(samples: impl Iterator<Item = u32>, out: &mut [u8], shift: u32, bias: [u32; 2]) {
    let mut samples = samples.peekable();
    let mut before = None;
    for pair in out.as_chunks_mut::<2>().0 {
        let Some(near) = samples.next() else { return };
        let side = |far: Option<u32>, bias: u32| ((3 * near + far.unwrap_or(near) + bias) >> shift) as u8;
        *pair = [side(before, bias[0]), side(samples.peek().copied(), bias[1])];
        before = Some(near);
    }
}

/// Tables of the color conversion, 16 fractional bits.
struct Colors {
    red: [i32; 256],
    blue: [i32; 256],
    green_of_red: [i32; 256],
    green_of_blue: [i32; 256],
}

impl Colors {
    fn new() -> Colors {
        let table = |of: fn(i32) -> i32| std::array::from_fn(|ix| of(ix as i32 - 128));
        Colors {
            red: table(|x| (91_881 * x + 32_768) >> 16),
            blue: table(|x| (116_130 * x + 32_768) >> 16),
            green_of_red: table(|x| -46_802 * x),
            green_of_blue: table(|x| -22_554 * x + 32_768),
        }
    }

    fn rgb(&self, luma: u8, blue: u8, red: u8) -> [u8; 3] {
        let (luma, blue, red) = (i32::from(luma), usize::from(blue), usize::from(red));
        let green = (self.green_of_blue[blue] + self.green_of_red[red]) >> 16;
        [luma + self.red[red], luma + green, luma + self.blue[blue]].map(|value| value.clamp(0, 255) as u8)
    }
}
