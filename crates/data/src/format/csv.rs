//! Tables of numbers with a comma between them: one record a line.

use std::path::Path;

use types::{Bytes, Shape, Tensor};

use super::ArrayDataset;
use crate::DataError;
use crate::source::Location;

/// The largest file that is read.
const SIZE_MAX: Bytes = Bytes(4 << 30);

impl ArrayDataset {
    /// A table of numbers. The first line may be a header. Column `label` (a name of the header or a number from 0, by
    /// default the last) is the second field, `i64` if all its cells are integers; the other columns are the first field,
    /// `f32`.
    ///
    /// # Errors
    /// A file that cannot be read; a cell that is no number; lines of different lengths.
    pub fn open_csv(path: &Path, label: Option<&str>) -> Result<ArrayDataset, DataError> {
        ArrayDataset::csv_at(&Location::Local(path.to_path_buf()), label)
    }

    /// [`ArrayDataset::open_csv`] for a file or an object.
    pub(crate) fn csv_at(location: &Location, label: Option<&str>) -> Result<ArrayDataset, DataError> {
        let bytes = location.read(SIZE_MAX)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| location.failed("it must be UTF-8"))?;
        let arrays = parse(text, label).map_err(|reason| location.failed(reason))?;
        ArrayDataset::new(&location.to_string(), arrays)
    }
}

fn parse(text: &str, label: Option<&str>) -> Result<Vec<(String, Tensor)>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let cells = |line: &str| -> Vec<String> { line.split(',').map(|cell| cell.trim().to_string()).collect() };
    let (_, first) = lines.peek().ok_or("it must have at least one record, found none")?;
    let first = cells(first);
    let header = first.iter().any(|cell| cell.parse::<f64>().is_err());
    if header {
        lines.next();
    }
    let columns = first.len();
    let label = match label {
        None => columns - 1,
        Some(name) => match first.iter().position(|cell| header && cell.trim_matches('"') == name) {
            Some(column) => column,
            None => name
                .parse()
                .ok()
                .filter(|&column| column < columns)
                .ok_or_else(|| format!("no column is named `{name}`; the columns are {}", first.join(", ")))?,
        },
    };
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for (number, line) in lines {
        let cells = cells(line);
        if cells.len() != columns {
            return Err(format!("line {} must have {columns} cells, found {}", number + 1, cells.len()));
        }
        for (column, cell) in cells.iter().enumerate() {
            let value: f64 = cell.parse().map_err(|_| format!("line {}: `{cell}` is not a number", number + 1))?;
            match column == label {
                true => y.push(value),
                false => x.push(value as f32),
            }
        }
    }
    let records = y.len();
    let integers = y.iter().all(|value| value.fract() == 0.0 && value.abs() < 9e15);
    let labels = match integers {
        true => Tensor::vector(y.iter().map(|&value| value as i64).collect()),
        false => Tensor::vector(y.iter().map(|&value| value as f32).collect()),
    };
    let labels = ("label".to_string(), labels);
    if columns == 1 {
        return Ok(vec![labels]);
    }
    let x = Tensor::new(Shape::from([records, columns - 1]), x).map_err(|error| error.to_string())?;
    Ok(vec![("columns".to_string(), x), labels])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_label_column_are_found() {
        let arrays = parse("class, a,b\n3,1,2.5\n\n4,-1,1e3\n", Some("class")).unwrap();
        assert_eq!(arrays[0].1, Tensor::new(Shape::from([2, 2]), vec![1f32, 2.5, -1.0, 1000.0]).unwrap());
        assert_eq!(arrays[1].1, Tensor::vector(vec![3i64, 4]));
        let arrays = parse("1,0.5\n2,1.5", None).unwrap();
        assert_eq!(arrays[1].1, Tensor::vector(vec![0.5f32, 1.5]));
        // Whole numbers that are no exact integers of a file are no classes.
        let arrays = parse("1,1e16\n2,3\n", None).unwrap();
        assert_eq!(arrays[1].1, Tensor::vector(vec![1e16f32, 3.0]));
    }

    #[test]
    fn malformed_tables_are_refused_with_their_line() {
        let refused = |text, label| parse(text, label).unwrap_err();
        assert_eq!(refused("a,b\n1,2\n1\n", None), "line 3 must have 2 cells, found 1");
        assert_eq!(refused("a,b\n1,2,3\n", None), "line 2 must have 2 cells, found 3");
        assert_eq!(refused("a,b\n1,x\n", None), "line 2: `x` is not a number");
        assert_eq!(refused("a,b\n1,2\n", Some("c")), "no column is named `c`; the columns are a, b");
        assert_eq!(refused("1,2\n", Some("2")), "no column is named `2`; the columns are 1, 2");
        assert_eq!(refused("\n", None), "it must have at least one record, found none");
    }
}
