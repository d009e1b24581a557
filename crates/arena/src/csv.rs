//! Problems as text, in the format of minimalloc (`google/minimalloc:src/converter.cc`). The caller reads and writes
//! files.
//!
//! The first line names the columns, in any order. Every further line that is not blank is a buffer.
//!
//! | column | also called | holds |
//! | --- | --- | --- |
//! | `id` | `buffer`, `buffer_id` | a name without commas |
//! | `lower` | `start`, `begin` | first step |
//! | `upper` | `end` | `upper`: the step after the last; `end`: the last step, here and in `gaps` |
//! | `size` | | bytes |
//! | `alignment` | | bytes; 1 if the column is missing or the field empty |
//! | `offset` | | fixed offset; free if the column is missing or the field empty |
//! | `hint` | | a preferred offset; none if the column is missing or the field empty or -1 |
//! | `gaps` | | words `a-b` (absent from step `a` to `b`) or `a-b@low:high` (only these bytes occupied) |
//!
//! Other columns are ignored.
//!
//! ```
//! use prestow_arena::csv;
//!
//! let table = csv::parse("id,lower,upper,size\nx,0,2,64\ny,1,3,32\n")?;
//! assert_eq!(table.ids, ["x", "y"]);
//! assert_eq!(csv::write(&table, None), "id,lower,upper,size\nx,0,2,64\ny,1,3,32\n");
//! # Ok::<(), csv::CsvError>(())
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::str::FromStr;

use types::Bytes;

use crate::problem::{Buffer, ByteWindow, Gap, Lifetime, Problem};

/// A problem whose buffers have names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// One name for each buffer, in the same order.
    pub ids: Vec<String>,
    /// The buffers; the format has no capacity.
    pub problem: Problem,
}

/// The reason for which a text is not a table. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// A required column is missing.
    #[error("the first line must have the columns `id,lower,upper,size`, got none called `{column}`")]
    MissingColumn {
        /// The name of the column.
        column: &'static str,
    },
    /// Two columns have the same meaning.
    #[error("column `{column}` must occur once in the first line, got it twice")]
    DuplicateColumn {
        /// The name of the column.
        column: String,
    },
    /// A line with more or fewer fields than the first.
    #[error("line `{line}` must have `{n_columns}` fields as the first line, got `{n_fields}`")]
    WrongFieldCount {
        /// The line.
        line: usize,
        /// The number of its fields.
        n_fields: usize,
        /// The number of columns.
        n_columns: usize,
    },
    /// A field has an invalid value.
    #[error("line `{line}`, column `{column}` must be {required}, got `{field}`")]
    BadField {
        /// The line.
        line: usize,
        /// The name of the column.
        column: &'static str,
        /// The value.
        field: String,
        /// The value required.
        required: &'static str,
    },
}

const A_STEP: &str = "a step from 0 to 4294967295";
const BYTES: &str = "a count of bytes from 0 to 18446744073709551615";
const A_GAP: &str = "a gap such as `3-5` or `3-5@0:64`";

/// Reads a table without checking lifetimes, gaps and sizes: see [`Problem::verify`].
pub fn parse(text: &str) -> Result<Table, CsvError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header = Header::parse(lines.next().map_or("", |(_, line)| line))?;
    let mut table = Table::default();
    for (line_ix, line) in lines {
        let row = header.row(line_ix + 1, line)?;
        table.ids.push(row.field("id").unwrap_or_default().to_owned());
        table.problem.buffers.push(row.buffer()?);
    }
    Ok(table)
}

/// Writes a table, with `lower` and `upper`; columns without information are left out.
///
/// The column `offset` has `offsets` if given, as minimalloc writes a placement; otherwise the fixed offsets. A comma or a line break in an id becomes `_`.
///
/// # Panics
/// If ids, buffers and offsets differ in number.
pub fn write(table: &Table, offsets: Option<&[Bytes]>) -> String {
    let buffers = &table.problem.buffers;
    assert_eq!(table.ids.len(), buffers.len(), "one id for each buffer");
    assert!(offsets.is_none_or(|offsets| offsets.len() == buffers.len()), "one offset for each buffer");
    let has_alignment = buffers.iter().any(|buffer| buffer.alignment != Bytes(1));
    let has_offset = offsets.is_some() || buffers.iter().any(|buffer| buffer.fixed.is_some());
    let has_hint = buffers.iter().any(|buffer| buffer.hint.is_some());
    let has_gaps = buffers.iter().any(|buffer| !buffer.gaps.is_empty());

    let mut text = String::from("id,lower,upper,size");
    let columns = [(",alignment", has_alignment), (",hint", has_hint), (",offset", has_offset), (",gaps", has_gaps)];
    for (column, is_there) in columns {
        text.push_str(if is_there { column } else { "" });
    }
    text.push('\n');
    for (ix, (id, buffer)) in table.ids.iter().zip(buffers).enumerate() {
        let id = id.replace([',', '\n', '\r'], "_");
        let Lifetime { first, end } = buffer.lifetime;
        put(&mut text, format_args!("{id},{first},{end},{}", buffer.size.0));
        if has_alignment {
            put(&mut text, format_args!(",{}", buffer.alignment.0));
        }
        if has_hint {
            text.push(',');
            if let Some(hint) = buffer.hint {
                put(&mut text, format_args!("{}", hint.0));
            }
        }
        if has_offset {
            text.push(',');
            if let Some(offset) = offsets.map_or(buffer.fixed, |offsets| Some(offsets[ix])) {
                put(&mut text, format_args!("{}", offset.0));
            }
        }
        if has_gaps {
            text.push(',');
            write_gaps(&mut text, &buffer.gaps);
        }
        text.push('\n');
    }
    text
}

fn write_gaps(text: &mut String, gaps: &[Gap]) {
    for (ix, gap) in gaps.iter().enumerate() {
        let space = if ix == 0 { "" } else { " " };
        put(text, format_args!("{space}{}-{}", gap.lifetime.first, gap.lifetime.end));
        if let Some(window) = gap.window {
            put(text, format_args!("@{}:{}", window.low.0, window.high.0));
        }
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all that is written to it");
}

/// The position of each column.
struct Header {
    columns: BTreeMap<String, usize>,
    n_columns: usize,
    last_step: LastStep,
}

/// The meaning of the column of ends.
#[derive(Clone, Copy)]
enum LastStep {
    /// `upper`: the step after the last.
    Excluded,
    /// `end`: the last step itself.
    Included,
}

impl Header {
    fn parse(line: &str) -> Result<Header, CsvError> {
        let mut header = Header { columns: BTreeMap::new(), n_columns: 0, last_step: LastStep::Excluded };
        for (ix, name) in line.split(',').map(str::trim).enumerate() {
            let plain = match name {
                "buffer" | "buffer_id" => "id",
                "start" | "begin" => "lower",
                "end" => "upper",
                _ => name,
            };
            if name == "end" {
                header.last_step = LastStep::Included;
            }
            if header.columns.insert(plain.to_owned(), ix).is_some() {
                return Err(CsvError::DuplicateColumn { column: plain.to_owned() });
            }
            header.n_columns = ix + 1;
        }
        match ["id", "lower", "upper", "size"].into_iter().find(|column| !header.columns.contains_key(*column)) {
            Some(column) => Err(CsvError::MissingColumn { column }),
            None => Ok(header),
        }
    }

    fn row<'a>(&'a self, line: usize, text: &'a str) -> Result<Row<'a>, CsvError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() == self.n_columns {
            Ok(Row { header: self, line, fields })
        } else {
            Err(CsvError::WrongFieldCount { line, n_fields: fields.len(), n_columns: self.n_columns })
        }
    }
}

/// One line, split at its commas.
struct Row<'a> {
    header: &'a Header,
    line: usize,
    fields: Vec<&'a str>,
}

impl Row<'_> {
    fn field(&self, column: &str) -> Option<&str> {
        self.header.columns.get(column).map(|ix| self.fields[*ix])
    }

    fn buffer(&self) -> Result<Buffer, CsvError> {
        let lifetime = Lifetime {
            first: self.number("lower", A_STEP)?,
            end: self.end("upper", A_STEP, self.number("upper", A_STEP)?)?,
        };
        let optional = |column| match self.field(column) {
            None | Some("") => Ok(None),
            Some(_) => self.number(column, BYTES).map(|size| Some(Bytes(size))),
        };
        let gaps = self.field("gaps").unwrap_or_default().split_whitespace();
        Ok(Buffer {
            lifetime,
            size: Bytes(self.number("size", BYTES)?),
            alignment: optional("alignment")?.unwrap_or(Bytes(1)),
            fixed: optional("offset")?,
            // minimalloc writes -1 for no hint.
            hint: if self.field("hint") == Some("-1") { None } else { optional("hint")? },
            gaps: gaps.map(|word| self.gap(word)).collect::<Result<_, _>>()?,
        })
    }

    fn gap(&self, word: &str) -> Result<Gap, CsvError> {
        let bad = || self.bad("gaps", word, A_GAP);
        let (steps, window) = match word.split_once('@') {
            Some((steps, window)) => (steps, Some(window)),
            None => (word, None),
        };
        let (first, end) = pair(steps, '-').ok_or_else(bad)?;
        let window = match window {
            Some(window) => Some(pair(window, ':').ok_or_else(bad)?),
            None => None,
        };
        Ok(Gap {
            lifetime: Lifetime { first, end: self.end("gaps", A_GAP, end)? },
            window: window.map(|(low, high)| ByteWindow { low: Bytes(low), high: Bytes(high) }),
        })
    }

    /// The step after the last, from the number in the text.
    fn end(&self, column: &'static str, required: &'static str, written: u32) -> Result<u32, CsvError> {
        match self.header.last_step {
            LastStep::Excluded => Ok(written),
            LastStep::Included => {
                written.checked_add(1).ok_or_else(|| self.bad(column, &written.to_string(), required))
            }
        }
    }

    fn number<T: FromStr>(&self, column: &'static str, required: &'static str) -> Result<T, CsvError> {
        let field = self.field(column).unwrap_or_default();
        field.parse().map_err(|_| self.bad(column, field, required))
    }

    fn bad(&self, column: &'static str, field: &str, required: &'static str) -> CsvError {
        CsvError::BadField { line: self.line, column, field: field.to_owned(), required }
    }
}

/// Two numbers with a separator.
fn pair<T: FromStr>(text: &str, mark: char) -> Option<(T, T)> {
    let (low, high) = text.split_once(mark)?;
    Some((low.parse().ok()?, high.parse().ok()?))
}
