//! [`Cubin`]: machine code for one architecture, and what its functions take of a multiprocessor.

/// Machine code for one architecture, an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The architecture, as `sm_90`.
    pub arch: String,
    /// The file.
    pub bytes: Vec<u8>,
}

/// What a function takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources {
    /// Its name.
    pub name: String,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of memory of each thread beside them: arrays with indices at run time, and what registers had no room for.
    pub stack: u32,
}

// Attributes of the section `.nv.info`: of a symbol the registers, and the stack.
const REGISTERS: u8 = 0x2f;
const FRAME: u8 = 0x11;
/// The form of an attribute with a size and so many bytes.
const SIZED: u8 = 0x04;

impl Cubin {
    /// What each function takes, by name; none where the file is not what NVRTC writes.
    pub fn resources(&self) -> Option<Vec<Resources>> {
        let file = File(&self.bytes);
        let sections = file.sections()?;
        let info = sections.iter().find(|section| section.name == ".nv.info")?;
        let symbols = sections.iter().find(|section| section.name == ".symtab")?;
        let names = sections.iter().find(|section| section.name == ".strtab")?;
        let symbol = |ix: u32| {
            let entry = symbols.bytes.get(ix as usize * 24..)?;
            string(names.bytes, u32::from_le_bytes(*entry.first_chunk()?) as usize)
        };
        let mut found: Vec<Resources> = Vec::new();
        let mut rest = info.bytes;
        while let Some((&[form, attribute, low, high], after)) = rest.split_first_chunk::<4>() {
            let size = if form == SIZED { usize::from(u16::from_le_bytes([low, high])) } else { 0 };
            let (payload, after) = after.split_at_checked(size)?;
            rest = after;
            let (true, Some((ix, value))) = (form == SIZED, payload.split_first_chunk::<4>()) else { continue };
            let Some(value) = value.first_chunk::<4>().map(|value| u32::from_le_bytes(*value)) else { continue };
            if ![REGISTERS, FRAME].contains(&attribute) {
                continue;
            }
            let name = symbol(u32::from_le_bytes(*ix))?;
            let at = found.iter().position(|other| other.name == name).unwrap_or_else(|| {
                found.push(Resources { name, registers: 0, stack: 0 });
                found.len() - 1
            });
            match attribute {
                REGISTERS => found[at].registers = value,
                _ => found[at].stack = value,
            }
        }
        found.sort();
        Some(found)
    }
}

/// An ELF file of 64 bits, little-endian (System V ABI, "Object Files").
struct File<'a>(&'a [u8]);

struct Section<'a> {
    name: String,
    bytes: &'a [u8],
}

impl<'a> File<'a> {
    fn number(&self, at: usize, bytes: usize) -> Option<usize> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.0.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(number)).ok()
    }

    fn sections(&self) -> Option<Vec<Section<'a>>> {
        if self.0.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let (table, size, count) = (self.number(0x28, 8)?, self.number(0x3a, 2)?, self.number(0x3c, 2)?);
        let header = |ix: usize| table.checked_add(ix * size);
        let content = |ix: usize| -> Option<&'a [u8]> {
            let header = header(ix)?;
            // Sections without bytes in the file are empty here.
            if self.number(header + 4, 4)? == 8 {
                return Some(&[]);
            }
            let (start, size) = (self.number(header + 0x18, 8)?, self.number(header + 0x20, 8)?);
            self.0.get(start..start.checked_add(size)?)
        };
        let names = content(self.number(0x3e, 2)?)?;
        (0..count)
            .map(|ix| {
                let name = string(names, self.number(header(ix)?, 4)?)?;
                Some(Section { name, bytes: content(ix)? })
            })
            .collect()
    }
}

/// The text from a place on to its end at a zero.
fn string(bytes: &[u8], at: usize) -> Option<String> {
    let text = bytes.get(at..)?.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cubin_has_no_resources() {
        for bytes in [&b""[..], b"\x7fELF\x02\x01", b"text that is longer than the header of a file would be: 64 bytes"]
        {
            assert_eq!(Cubin { arch: "sm_90".into(), bytes: bytes.to_vec() }.resources(), None);
        }
        // A header that promises sections that are not there.
        let mut bytes = vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[0x3a..0x40].copy_from_slice(&[0xff; 6]);
        assert_eq!(Cubin { arch: "sm_90".into(), bytes }.resources(), None);
    }
}
