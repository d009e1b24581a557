//! [`ArrayDataset`]: arrays in memory with one record for each index of their first axis.

use std::path::Path;

use types::{Bytes, Random, Shape, Tensor};

use crate::source::Location;
use crate::{Axes, DataError, DataField, Dataset, Split};

/// The largest file of arrays that is read.
const SIZE_MAX: Bytes = Bytes(64 << 30);

/// Arrays in memory; record `i` has element `i` of the first axis of each.
pub struct ArrayDataset {
    name: String,
    fields: Vec<DataField>,
    /// The elements of each field, little-endian.
    data: Vec<Vec<u8>>,
    records: usize,
}

impl ArrayDataset {
    /// A data set of named arrays.
    ///
    /// # Errors
    /// If there is no array or no record, or the lengths of the first axes differ.
    pub fn new(name: &str, arrays: Vec<(String, Tensor)>) -> Result<ArrayDataset, DataError> {
        let parts = arrays.into_iter().map(|(field, tensor)| {
            let data = tensor.to_le_bytes();
            (field, tensor.dtype(), tensor.shape().clone(), data)
        });
        let mut dataset = ArrayDataset { name: name.to_string(), fields: vec![], data: vec![], records: 0 };
        let refused = |reason: String| DataError::Source { path: name.to_string(), reason };
        for (field, dtype, mut shape, data) in parts {
            if shape.rank() == 0 {
                return Err(refused(format!("array `{field}` must have an axis of records, it is a scalar")));
            }
            let records = shape.remove(0);
            if let Some(first) = dataset.fields.first()
                && records != dataset.records
            {
                let (other, count) = (&first.name, dataset.records);
                return Err(refused(format!("array `{field}` has {records} records, `{other}` has {count}")));
            }
            dataset.records = records;
            dataset.fields.push(DataField { name: field, dtype, shape, axes: Axes::Plain });
            dataset.data.push(data);
        }
        match dataset.records {
            0 => Err(refused("it must have at least one record, found none".into())),
            _ => Ok(dataset),
        }
    }

    /// The arrays of a `.npz` file: `x` and `y` first, by default those of all `inputs`, or the pair among `x y`, `data labels`,
    /// `data label`, `images labels` or `x_train y_train` (`x_test y_test` of the test split); the others follow by name if
    /// they have the same number of records.
    ///
    /// # Errors
    /// A file that cannot be read; an array that does not exist.
    pub fn open_npz(
        path: &Path,
        chosen: [Option<&str>; 2],
        inputs: &[String],
        split: Split,
    ) -> Result<ArrayDataset, DataError> {
        ArrayDataset::npz_at(&Location::Local(path.to_path_buf()), chosen, inputs, split)
    }

    /// [`ArrayDataset::open_npz`] for a file or an object.
    pub(crate) fn npz_at(
        location: &Location,
        [x, y]: [Option<&str>; 2],
        inputs: &[String],
        split: Split,
    ) -> Result<ArrayDataset, DataError> {
        let bytes = location.read(SIZE_MAX)?;
        let mut arrays =
            weights::read(&location.to_string(), &bytes).map_err(|error| location.failed(&error.problem))?;
        let suffix = if split == Split::Test { "test" } else { "train" };
        let split_pair = (format!("x_{suffix}"), format!("y_{suffix}"));
        let known = [("x", "y"), ("data", "labels"), ("data", "label"), ("images", "labels")];
        let pair = known.into_iter().chain([(&split_pair.0[..], &split_pair.1[..])]);
        let pair = pair.into_iter().find(|(x, y)| arrays.contains_key(*x) && arrays.contains_key(*y));
        let by_input = x.is_none() && y.is_none() && !inputs.is_empty();
        let by_input = by_input && inputs.iter().all(|name| arrays.contains_key(name));
        let (x, y) = match (x, y, pair) {
            _ if by_input => (None, None),
            (None, None, None) if arrays.len() == 1 => (arrays.keys().next().cloned(), None),
            (None, _, None) => {
                let names: Vec<String> = arrays.keys().map(|name| format!("`{name}`")).collect();
                let inputs: Vec<String> = inputs.iter().map(|name| format!("`{name}`")).collect();
                let by_name = match inputs.is_empty() {
                    true => String::new(),
                    false => format!("name its arrays as the inputs ({}), or ", inputs.join(", ")),
                };
                let reason = format!("{by_name}add `,x=NAME,y=NAME`; its arrays are {}", names.join(", "));
                return Err(location.failed(reason));
            }
            (x, y, pair) => {
                let by_default = pair.filter(|_| x.is_none() && y.is_none());
                let x = x.or(pair.map(|(x, _)| x));
                (x.map(str::to_string), y.or(by_default.map(|(_, y)| y)).map(str::to_string))
            }
        };
        let mut chosen = Vec::new();
        let named = if by_input { inputs.to_vec() } else { [x, y].into_iter().flatten().collect() };
        for name in named {
            let absent = || location.failed(format!("it has no array `{name}`"));
            let tensor = arrays.remove(&name).ok_or_else(absent)?;
            chosen.push((name, tensor));
        }
        let records = chosen.first().and_then(|(_, tensor): &(String, Tensor)| tensor.shape().first().copied());
        chosen.extend(arrays.into_iter().filter(|(_, tensor)| tensor.shape().first().copied() == records));
        ArrayDataset::new(&location.to_string(), chosen)
    }

    pub(super) fn of_parts(name: String, fields: Vec<DataField>, data: Vec<Vec<u8>>, records: usize) -> ArrayDataset {
        ArrayDataset { name, fields, data, records }
    }

    /// Records `..count` only, or all if there are fewer.
    pub fn truncated(mut self, count: usize) -> ArrayDataset {
        self.records = self.records.min(count);
        self
    }

    /// The shape of a field with its axis of records.
    pub fn shape_of(&self, field: usize) -> Shape {
        let mut shape = self.fields[field].shape.clone();
        shape.insert(0, self.records);
        shape
    }
}

impl Dataset for ArrayDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> &[DataField] {
        &self.fields
    }

    fn records(&self) -> usize {
        self.records
    }

    fn read(&self, record: usize, _: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        if self.records <= record {
            return Err(DataError::record(self, record, format!("it has {} records", self.records)));
        }
        for ((out, field), data) in out.iter_mut().zip(&self.fields).zip(&self.data) {
            let size = field.size_bytes();
            out.copy_from_slice(&data[record * size..(record + 1) * size]);
        }
        Ok(())
    }
}
