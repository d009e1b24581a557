//! Python's pickle, protocol 2, of JSON values: the subset that viewers of PyTorch's snapshots read.

use serde_json::Value;

/// Most items appended at once; decoders in browsers put them all on the stack.
const BATCH: usize = 1000;

/// The pickle of a value.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(&mut out, value);
    out.push(b'.');
    out
}

fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(true) => out.push(0x88),
        Value::Bool(false) => out.push(0x89),
        Value::Number(number) => match number.as_i64() {
            Some(small) if i32::try_from(small).is_ok() => {
                out.push(b'J');
                out.extend_from_slice(&(small as i32).to_le_bytes());
            }
            Some(long) => {
                out.extend_from_slice(&[0x8a, 8]);
                out.extend_from_slice(&long.to_le_bytes());
            }
            None => match number.as_u64() {
                // One byte more, so that the highest bit is not a sign.
                Some(long) => {
                    out.extend_from_slice(&[0x8a, 9]);
                    out.extend_from_slice(&long.to_le_bytes());
                    out.push(0);
                }
                None => {
                    out.push(b'G');
                    out.extend_from_slice(&number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
                }
            },
        },
        Value::String(text) => put_text(out, text),
        Value::Array(items) => {
            out.push(b']');
            for batch in items.chunks(BATCH) {
                out.push(b'(');
                batch.iter().for_each(|item| put(out, item));
                out.push(b'e');
            }
        }
        Value::Object(fields) => {
            out.extend_from_slice(b"}(");
            for (name, field) in fields {
                put_text(out, name);
                put(out, field);
            }
            out.push(b'u');
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
