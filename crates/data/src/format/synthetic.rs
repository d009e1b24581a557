//! [`SyntheticDataset`]: records made from a seed.

use types::{DType, Random};

use crate::convert::store;
use crate::{DataError, DataField, Dataset};

/// Records made from a seed: floats uniform in `[-1, 1)`, integers uniform below a bound.
pub struct SyntheticDataset {
    name: String,
    seed: u64,
    records: usize,
    fields: Vec<DataField>,
    /// For each field, the bound of its integers.
    below: Vec<u64>,
}

impl SyntheticDataset {
    /// `records` records of `fields`. Each integer field has a bound: its elements are below it, and below 128 for 8-bit
    /// integers; booleans are 0 and 1.
    pub fn new(seed: u64, records: usize, fields: Vec<(DataField, u64)>) -> SyntheticDataset {
        let limit = |(field, below): (DataField, u64)| {
            let most = match field.dtype {
                DType::Bool => 2,
                DType::I8 | DType::U8 => 128,
                DType::I16 | DType::U16 => 1 << 15,
                _ => u64::MAX,
            };
            (field, below.clamp(1, most))
        };
        let (fields, below) = fields.into_iter().map(limit).unzip();
        SyntheticDataset { name: format!("synthetic:{seed}"), seed, records, fields, below }
    }
}

impl Dataset for SyntheticDataset {
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
        let seed = Random::new(self.seed ^ Random::new(record as u64).bits()).bits();
        for ((field, &below), out) in self.fields.iter().zip(&self.below).zip(out) {
            let mut random = Random::for_name(seed, &field.name);
            for ix in 0..field.shape.elements() {
                let value = match field.dtype.is_float() {
                    true => f64::from(random.uniform(-1.0, 1.0)),
                    false => random.below(below) as f64,
                };
                store(field.dtype, out, ix, value);
            }
        }
        Ok(())
    }
}
