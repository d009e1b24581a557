//! Huffman codes and the bits of a scan.

/// Coefficients in the order of a file: row and column of each.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

const NOT_IN_TABLE: &str = "the file has a Huffman code that is not in its table";

/// The coefficients of a scan: positions and bits.
#[derive(Clone, Copy)]
pub(super) struct Band {
    pub(super) first: usize,
    pub(super) last: usize,
    /// The lowest bit of an earlier scan; 0 in the first.
    pub(super) high: u32,
    pub(super) low: u32,
}

/// A table of codes.
pub(super) struct Huffman {
    /// Length and symbol of the code that begins with these 9 bits; length 0 for longer codes.
    short: [(u8, u8); 512],
    /// For each length, the first code after those of the length, left-aligned to 16 bits.
    limits: [u32; 17],
    /// For each length, the difference of a symbol's position and its code.
    offsets: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Huffman, String> {
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

    /// Length and symbol of the code at the head of 16 bits that begin with none of the short codes.
    #[inline(never)]
    fn long(&self, code: u32) -> Result<(u32, u8), &'static str> {
        for length in 10..=16usize {
            if code < self.limits[length] {
                let ix = (code >> (16 - length)) as i32 + self.offsets[length];
                let symbol = self.symbols.get(ix as usize).ok_or("a Huffman code has no symbol")?;
                return Ok((length as u32, *symbol));
            }
        }
        Err(NOT_IN_TABLE)
    }
}

/// Bits that index a [`Lookup`].
const LOOKUP_BITS: u32 = 10;

/// A table of codes together with the numbers that follow them, for sequential scans.
pub(super) struct Lookup<'a> {
    /// The entry of the next [`LOOKUP_BITS`] bits. Bits 0 to 7: the bits to skip, 0 for longer codes. Bits 8 to 15: the
    /// symbol. Bits 16 to 31: the number, if all of its bits are among those of the index, else 0; no number is 0.
    entries: [i32; 1 << LOOKUP_BITS],
    codes: &'a Huffman,
}

impl Lookup<'_> {
    pub(super) fn new(codes: &Huffman) -> Lookup<'_> {
        let mut entries = [0; 1 << LOOKUP_BITS];
        for (bits, entry) in entries.iter_mut().enumerate() {
            let (length, symbol) = match codes.short[bits >> (LOOKUP_BITS - 9)] {
                (0, _) => match codes.long((bits as u32) << (16 - LOOKUP_BITS)) {
                    Ok((length, symbol)) if length <= LOOKUP_BITS => (length, symbol),
                    _ => continue,
                },
                (length, symbol) => (u32::from(length), symbol),
            };
            let size = u32::from(symbol & 15);
            *entry = length as i32 | i32::from(symbol) << 8;
            if 0 < size && length + size <= LOOKUP_BITS {
                let number = (bits as u32 >> (LOOKUP_BITS - length - size)) & ((1 << size) - 1);
                *entry += size as i32 + (extended(number, size) << 16);
            }
        }
        Lookup { entries, codes }
    }
}

/// A number of `size` bits, 1 to 15; the first bit is 0 for negative numbers.
fn extended(number: u32, size: u32) -> i32 {
    let negative = i32::from(number >> (size - 1) == 0);
    number as i32 - negative * ((1 << size) - 1)
}

/// Reads the bits of a scan. Past its end it reads zeros, which it counts.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte; at a marker it stays.
    at: usize,
    /// The next bits, the first is the highest. Bits after the first [`Bits::count`] are those of the next byte or 0.
    buffer: u64,
    /// Bits in the buffer.
    count: u32,
    /// Bits at the end of the buffer that the file does not have.
    zeros: u32,
}

impl<'a> Bits<'a> {
    /// The bits from byte `at` on.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Bits<'a> {
        Bits { bytes, at, buffer: 0, count: 0, zeros: 0 }
    }

    /// Whether bits were read that the file does not have.
    pub(super) fn is_past_the_end(&self) -> bool {
        self.count < self.zeros
    }

    /// Fills the buffer to at least 56 bits.
    #[inline(always)]
    fn refill(&mut self) {
        const HIGH: u64 = 0x8080_8080_8080_8080;
        const ONES: u64 = 0x0101_0101_0101_0101;
        if let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_be_bytes(*word);
            // A byte ff is a marker or is followed by a byte that is left out.
            if (!word).wrapping_sub(ONES) & word & HIGH == 0 {
                self.buffer |= word >> self.count;
                self.at += (63 - self.count as usize) / 8;
                self.count |= 56;
                return;
            }
        }
        self.refill_by_bytes();
    }

    #[inline(never)]
    fn refill_by_bytes(&mut self) {
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

    fn symbol(&mut self, table: &Huffman) -> Result<u8, &'static str> {
        if self.count < 16 {
            self.refill();
        }
        let (mut length, mut symbol) = table.short[(self.buffer >> 55) as usize];
        if length == 0 {
            let (long, found) = table.long((self.buffer >> 48) as u32)?;
            (length, symbol) = (long as u8, found);
        }
        self.skip(length.into());
        Ok(symbol)
    }

    /// A number of `size` bits.
    fn signed(&mut self, size: u32) -> i32 {
        match size {
            0 => 0,
            _ => extended(self.take(size), size),
        }
    }

    fn dc(&mut self, prediction: &mut i32, table: &Huffman) -> Result<i32, &'static str> {
        let size = self.symbol(table)?;
        if 11 < size {
            return Err("a DC difference must have <= 11 bits");
        }
        *prediction = prediction.wrapping_add(self.signed(size.into()));
        Ok(*prediction)
    }

    /// The next symbol and its number: 0 if the symbol has none.
    #[inline(always)]
    fn pair(&mut self, table: &Lookup) -> Result<(u8, i32), &'static str> {
        // The longest code and the longest number have 31 bits together.
        if self.count < 32 {
            self.refill();
        }
        let entry = table.entries[(self.buffer >> (64 - LOOKUP_BITS)) as usize];
        let (skip, mut symbol, mut number) = (entry as u32 & 0xff, (entry >> 8) as u8, entry >> 16);
        if number == 0 {
            let mut length = skip;
            if length == 0 {
                (length, symbol) = table.codes.long((self.buffer >> 48) as u32)?;
            }
            self.skip(length);
            let size = u32::from(symbol & 15);
            if size != 0 {
                number = extended((self.buffer >> (64 - size)) as u32, size);
                self.skip(size);
            }
        } else {
            self.skip(skip);
        }
        Ok((symbol, number))
    }

    /// A block of a sequential scan. Returns whether it has coefficients other than the first.
    pub(super) fn block(
        &mut self,
        block: &mut [i16; 64],
        prediction: &mut i32,
        (dc, ac): (&Lookup, &Lookup),
    ) -> Result<bool, &'static str> {
        let (size, difference) = self.pair(dc)?;
        if 11 < size {
            return Err("a DC difference must have <= 11 bits");
        }
        *prediction = prediction.wrapping_add(difference);
        block[0] = *prediction as i16;
        let mut at = 1;
        while at < 64 {
            let (symbol, number) = self.pair(ac)?;
            let zeros = usize::from(symbol >> 4);
            if number == 0 {
                if zeros != 15 {
                    break;
                }
                at += 16;
                continue;
            }
            at += zeros;
            if 63 < at {
                return Err("a block has more than 64 coefficients");
            }
            block[usize::from(ZIGZAG[at]) & 63] = number as i16;
            at += 1;
        }
        Ok(1 < at)
    }

    /// A block of a progressive scan. `run` is the number of following blocks whose band is zero.
    pub(super) fn progressive(
        &mut self,
        block: &mut [i16; 64],
        prediction: &mut i32,
        tables: (Option<&Huffman>, Option<&Huffman>),
        band: Band,
        run: &mut u32,
    ) -> Result<(), &'static str> {
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

    fn first_ac(&mut self, block: &mut [i16; 64], ac: &Huffman, band: Band, run: &mut u32) -> Result<(), &'static str> {
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
                return Err("a block has more coefficients than its band");
            }
            block[usize::from(ZIGZAG[at])] = (self.signed(size) << band.low) as i16;
            at += 1;
        }
        Ok(())
    }

    /// One more bit of the coefficients of a band (T.81, G.1.2.3).
    fn refine_ac(
        &mut self,
        block: &mut [i16; 64],
        ac: &Huffman,
        band: Band,
        run: &mut u32,
    ) -> Result<(), &'static str> {
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
                    _ => return Err("a refined coefficient must have 1 bit"),
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
    pub(super) fn restart(&mut self) -> Result<(), String> {
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
    pub(super) fn end(&self) -> usize {
        // Bytes in the buffer precede the marker, since reading stops there; encoders may add some.
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0;
        rest.windows(2).position(is_marker).map_or(self.bytes.len(), |found| self.at + found)
    }
}
