//! [`mutate`]: a changed copy of an input.

use types::Random;

/// The longest input.
pub(crate) const LENGTH_MAX: usize = 64 << 10;

/// Numbers at which readers change their mind.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

fn place(random: &mut Random, length: usize) -> usize {
    random.below(length.max(1) as u64) as usize
}

/// A length of 1 to 512, short ones more often.
fn short(random: &mut Random) -> usize {
    let largest = 1 << random.below(10);
    1 + place(random, largest)
}

/// Changes 1 to 6 places: bits, bytes, numbers of 1 to 8 bytes in both orders, decimal digits, ranges that are removed,
/// repeated, moved or taken from `other`.
pub(crate) fn mutate(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let count = 1 + random.below(6).min(random.below(6));
    for _ in 0..count {
        let at = place(random, out.len());
        let end = (at + short(random)).min(out.len());
        match random.below(12) {
            _ if out.is_empty() => out.push(random.bits() as u8),
            0 | 1 => out[at] ^= 1 << random.below(8),
            2 => out[at] = random.bits() as u8,
            3 | 4 => {
                let number = match random.below(3) {
                    0 => NUMBERS[place(random, NUMBERS.len())],
                    1 => (out.len() as u64 + random.below(9)).wrapping_sub(4),
                    _ => random.bits() >> random.below(64),
                };
                let width = (1usize << random.below(4)).min(out.len() - at);
                let bytes = if random.below(2) == 0 { number.to_le_bytes() } else { number.swap_bytes().to_be_bytes() };
                match random.below(2) {
                    0 => out[at..at + width].copy_from_slice(&bytes[..width]),
                    _ => bytes[..width].iter().rev().zip(&mut out[at..]).for_each(|(byte, to)| *to = *byte),
                }
            }
            5 => {
                // The digits of a number in a text.
                let digits: Vec<usize> = (0..out.len()).filter(|&at| out[at].is_ascii_digit()).collect();
                if let Some(&at) = digits.get(place(random, digits.len())) {
                    let end = at + out[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    let number = NUMBERS[place(random, NUMBERS.len())].to_string();
                    out.splice(at..end, number.into_bytes());
                }
            }
            6 => drop(out.drain(at..end)),
            7 => {
                let copy = out[at..end].to_vec();
                let to = place(random, out.len());
                out.splice(to..to, copy);
            }
            8 => {
                let copy = out[at..end].to_vec();
                let to = place(random, out.len() - copy.len() + 1);
                out[to..to + copy.len()].copy_from_slice(&copy);
            }
            9 if !other.is_empty() => {
                let from = place(random, other.len());
                let length = short(random).min(other.len() - from);
                let is_insert = random.below(2) == 0;
                let to_end = if is_insert { at } else { (at + length).min(out.len()) };
                out.splice(at..to_end, other[from..from + length].iter().copied());
            }
            10 => out.truncate(at),
            _ => out.insert(at, random.bits() as u8),
        }
    }
    out.truncate(LENGTH_MAX);
    out
}
