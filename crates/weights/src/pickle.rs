//! A pickle machine, protocols 0 to 5, that can build tensors only.
//!
//! Specification: CPython's `Lib/pickletools.py`. The machine has a stack, marks on it and a memo. Opcodes that files of
//! tensors do not need (sets, classes, extensions, out-of-band buffers) are refused. It does not recurse.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::object::{Callable, Heap, Object, ObjectId};
use crate::{Budget, FormatError};

/// The content of a pickle.
pub(super) struct Pickle<'a> {
    /// Its objects.
    pub(super) heap: Heap<'a>,
    /// The outermost object.
    pub(super) root: ObjectId,
    /// The length of the pickle; more data may follow.
    pub(super) size_bytes: usize,
}

/// Runs the pickle at the start of `bytes`.
pub(super) fn load<'a>(bytes: &'a [u8], budget: &mut Budget) -> Result<Pickle<'a>, FormatError> {
    let mut machine = Machine {
        file: Reader { bytes, at: 0 },
        heap: Heap::default(),
        stack: vec![],
        marks: vec![],
        memo: BTreeMap::new(),
    };
    loop {
        let at = machine.file.at;
        let [opcode] = machine.file.array()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { heap: machine.heap, root, size_bytes: machine.file.at });
        }
        machine.step(opcode, at, budget)?;
    }
}

struct Machine<'a> {
    file: Reader<'a>,
    heap: Heap<'a>,
    stack: Vec<ObjectId>,
    /// Heights of the stack. Opcodes do not access the stack below the last mark.
    marks: Vec<usize>,
    memo: BTreeMap<usize, ObjectId>,
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8, at: usize, budget: &mut Budget) -> Result<(), FormatError> {
        match opcode {
            // Protocol and frames.
            0x80 => match self.file.array()? {
                [0..=5] => Ok(()),
                _ => self.malformed("the pickle protocol must be at most 5"),
            },
            0x95 => self.file.take(8).map(drop),

            // The stack.
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(drop),
            b'1' => self.pop_to_mark().map(drop),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
                Ok(())
            }

            // Numbers and constants.
            b'N' => self.push(Object::None),
            0x88 => self.push(Object::Bool(true)),
            0x89 => self.push(Object::Bool(false)),
            b'I' => match self.file.line()? {
                b"00" => self.push(Object::Bool(false)),
                b"01" => self.push(Object::Bool(true)),
                line => self.push_decimal(line),
            },
            b'L' => {
                let line = self.file.line()?;
                self.push_decimal(line.strip_suffix(b"L").unwrap_or(line))
            }
            b'J' => {
                let value = i32::from_le_bytes(self.file.array()?);
                self.push(Object::Int(value.into()))
            }
            b'K' => {
                let value = self.file.size(1)?;
                self.push(Object::Int(value as i64))
            }
            b'M' => {
                let value = self.file.size(2)?;
                self.push(Object::Int(value as i64))
            }
            0x8a => {
                let length = self.file.size(1)?;
                self.push_long(length)
            }
            0x8b => {
                let length = self.file.size(4)?;
                self.push_long(length)
            }
            b'F' => {
                self.file.line()?;
                self.push(Object::Number)
            }
            b'G' => {
                self.file.take(8)?;
                self.push(Object::Number)
            }

            // Bytes; `S`, `T` and `U` are strings of Python 2, which are bytes.
            b'S' => {
                let line = self.file.line()?;
                let bytes =
                    unquote(line).ok_or(FormatError::Malformed { at, reason: "a quoted string is malformed" })?;
                self.push(Object::Bytes(bytes.into()))
            }
            b'U' | b'C' => self.push_bytes(1),
            b'T' | b'B' => self.push_bytes(4),
            0x8e | 0x96 => self.push_bytes(8),

            // Text.
            b'V' => {
                let line = self.file.line()?;
                let text =
                    unescape(line).ok_or(FormatError::Malformed { at, reason: "an escape sequence is malformed" })?;
                self.push(Object::Text(text.into()))
            }
            0x8c => self.push_text(1),
            b'X' => self.push_text(4),
            0x8d => self.push_text(8),

            // Containers.
            b')' => self.push(Object::Tuple(vec![])),
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.push(Object::Tuple(items))
            }
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Object::Tuple(items))
            }
            b']' => self.push(Object::List(vec![])),
            b'l' => {
                let items = self.pop_to_mark()?;
                self.push(Object::List(items))
            }
            b'a' => {
                let items = self.pop_many(1)?;
                self.append(items)
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.append(items)
            }
            b'}' => self.push(Object::Dict(vec![])),
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push(Object::Dict(vec![]))?;
                self.set(items)
            }
            b's' => {
                let items = self.pop_many(2)?;
                self.set(items)
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set(items)
            }

            // The memo.
            b'p' => {
                let slot = self.file.decimal()?;
                self.memorize(slot)
            }
            b'q' => {
                let slot = self.file.size(1)?;
                self.memorize(slot)
            }
            b'r' => {
                let slot = self.file.size(4)?;
                self.memorize(slot)
            }
            0x94 => self.memorize(self.memo.len()),
            b'g' => {
                let slot = self.file.decimal()?;
                self.recall(slot)
            }
            b'h' => {
                let slot = self.file.size(1)?;
                self.recall(slot)
            }
            b'j' => {
                let slot = self.file.size(4)?;
                self.recall(slot)
            }

            // Calls.
            b'c' => {
                let (module, name) = (self.file.line()?, self.file.line()?);
                let callable = Callable::find(&String::from_utf8_lossy(module), &String::from_utf8_lossy(name))?;
                self.push(Object::Callable(callable))
            }
            0x93 => {
                let operands = self.pop_many(2)?;
                match (self.heap.text(operands[0]), self.heap.text(operands[1])) {
                    (Some(module), Some(name)) => {
                        let callable = Callable::find(module, name)?;
                        self.push(Object::Callable(callable))
                    }
                    _ => self.malformed("the name of a function must be text"),
                }
            }
            b'R' | 0x81 => self.call(budget),
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                match self.heap.build(target, state) {
                    true => Ok(()),
                    false => self.malformed("the state does not fit the object"),
                }
            }
            b'Q' => {
                let id = self.pop()?;
                match self.heap.storage(id) {
                    Some(storage) => {
                        budget.take(storage.key.len() as u64)?;
                        self.push(Object::Storage(storage))
                    }
                    None => self.malformed("a persistent id must be that of a storage"),
                }
            }
            _ => Err(FormatError::Opcode { opcode, at }),
        }
    }

    fn malformed<T>(&self, reason: &'static str) -> Result<T, FormatError> {
        Err(FormatError::Malformed { at: self.file.at, reason })
    }

    fn push(&mut self, object: Object<'a>) -> Result<(), FormatError> {
        let id = self.heap.push(object)?;
        self.stack.push(id);
        Ok(())
    }

    /// The first accessible position of the stack.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<ObjectId, FormatError> {
        match self.stack[self.floor()..].last() {
            Some(&id) => Ok(id),
            None => self.malformed("the pickle's stack is empty"),
        }
    }

    fn pop(&mut self) -> Result<ObjectId, FormatError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<ObjectId>, FormatError> {
        match self.stack.len().checked_sub(count) {
            Some(start) if self.floor() <= start => Ok(self.stack.drain(start..).collect()),
            _ => self.malformed("the pickle's stack is empty"),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<ObjectId>, FormatError> {
        match self.marks.pop() {
            // No opcode pops below a mark, so the mark is inside the stack.
            Some(mark) => Ok(self.stack.drain(mark..).collect()),
            None => self.malformed("the pickle's stack has no mark"),
        }
    }

    fn push_decimal(&mut self, line: &[u8]) -> Result<(), FormatError> {
        match std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()) {
            Some(value) => self.push(Object::Int(value)),
            None if !line.is_empty() && line.iter().all(|byte| matches!(byte, b'-' | b'0'..=b'9')) => {
                self.push(Object::Number)
            }
            None => self.malformed("an integer is malformed"),
        }
    }

    /// An integer of `length` bytes, in two's complement.
    fn push_long(&mut self, length: usize) -> Result<(), FormatError> {
        let bytes = self.file.take(length)?;
        if 8 < length {
            return self.push(Object::Number);
        }
        let sign = if bytes.last().is_some_and(|byte| 0x80 <= *byte) { 0xff } else { 0 };
        let mut wide = [sign; 8];
        wide[..length].copy_from_slice(bytes);
        self.push(Object::Int(i64::from_le_bytes(wide)))
    }

    /// Bytes with a length prefix of `width` bytes.
    fn push_bytes(&mut self, width: usize) -> Result<(), FormatError> {
        let length = self.file.size(width)?;
        let bytes = self.file.take(length)?;
        self.push(Object::Bytes(Cow::Borrowed(bytes)))
    }

    fn push_text(&mut self, width: usize) -> Result<(), FormatError> {
        let length = self.file.size(width)?;
        match std::str::from_utf8(self.file.take(length)?) {
            Ok(text) => self.push(Object::Text(Cow::Borrowed(text))),
            Err(_) => self.malformed("text must be UTF-8"),
        }
    }

    fn append(&mut self, new: Vec<ObjectId>) -> Result<(), FormatError> {
        let list = self.top()?;
        match self.heap.get_mut(list) {
            Object::List(items) => {
                items.extend(new);
                Ok(())
            }
            _ => self.malformed("the target of an append must be a list"),
        }
    }

    fn set(&mut self, new: Vec<ObjectId>) -> Result<(), FormatError> {
        let dict = self.top()?;
        match self.heap.get_mut(dict) {
            Object::Dict(pairs) if new.len().is_multiple_of(2) => {
                pairs.extend(new.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => self.malformed("the target of an item assignment must be a dictionary"),
        }
    }

    fn memorize(&mut self, slot: usize) -> Result<(), FormatError> {
        let top = self.top()?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn recall(&mut self, slot: usize) -> Result<(), FormatError> {
        match self.memo.get(&slot) {
            Some(&id) => {
                self.stack.push(id);
                Ok(())
            }
            None => self.malformed("the memo has no such entry"),
        }
    }

    fn call(&mut self, budget: &mut Budget) -> Result<(), FormatError> {
        let operands = self.pop_many(2)?;
        let &Object::Callable(callable) = self.heap.get(operands[0]) else {
            return self.malformed("the target of a call must be a function");
        };
        // No supported function has more than 8 arguments.
        let args: Vec<ObjectId> = match self.heap.tuple(operands[1]) {
            Some(args) if args.len() <= 8 => args.to_vec(),
            _ => return self.malformed("the arguments of a call must be a tuple of at most 8"),
        };
        match self.heap.call(callable, &args, budget)? {
            Some(result) => {
                self.stack.push(result);
                Ok(())
            }
            None => self.malformed("the arguments do not fit the function"),
        }
    }
}

/// Bytes and the read position.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let taken = self.bytes[self.at..].get(..count).ok_or(FormatError::Truncated { part: "a pickle" })?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        Ok(self.take(N)?.try_into().expect("`N` bytes were taken"))
    }

    /// An unsigned little-endian number of `width` bytes, at most 8.
    fn size(&mut self, width: usize) -> Result<usize, FormatError> {
        let bytes = self.take(width)?;
        Ok(bytes.iter().rev().fold(0, |sum, &byte| (sum << 8) | usize::from(byte)))
    }

    /// Bytes up to the next newline, which is consumed.
    fn line(&mut self) -> Result<&'a [u8], FormatError> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(FormatError::Truncated { part: "a pickle" })?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn decimal(&mut self) -> Result<usize, FormatError> {
        let line = self.line()?;
        let number = std::str::from_utf8(line).ok().and_then(|text| text.parse().ok());
        number.ok_or(FormatError::Malformed { at: self.at, reason: "an integer is malformed" })
    }
}

/// Python 2's `repr` of a string.
fn unquote(line: &[u8]) -> Option<Vec<u8>> {
    let (quote, rest) = line.split_first().filter(|(quote, _)| matches!(quote, b'\'' | b'"'))?;
    let mut inner = rest.strip_suffix(&[*quote])?.iter().copied();
    let mut bytes = vec![];
    while let Some(byte) = inner.next() {
        bytes.push(match byte {
            b'\\' => match inner.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => (hex(inner.next()?)? << 4 | hex(inner.next()?)?) as u8,
                other @ (b'\\' | b'\'' | b'"') => other,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

/// Python's `raw-unicode-escape`: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
fn unescape(line: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut rest = line;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = match (byte, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.push(char::from(byte));
                rest = tail;
                continue;
            }
        };
        let (code, after) = tail[1..].split_at_checked(digits)?;
        let code = code.iter().try_fold(0u32, |sum, &digit| Some(sum << 4 | hex(digit)?))?;
        text.push(char::from_u32(code)?);
        rest = after;
    }
    Some(text)
}

fn hex(digit: u8) -> Option<u32> {
    char::from(digit).to_digit(16)
}
