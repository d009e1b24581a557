//! Places the buffers of a table in one arena: `arena_csv FILE.csv`, by default `examples/data/buffers.csv`.
//!
//! The columns are `id,lower,upper,size`: a buffer is alive from step `lower` to before step `upper`.

use std::error::Error;
use std::path::PathBuf;

use arena::{Limits, check, csv, place};

fn main() -> Result<(), Box<dyn Error>> {
    let sample = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/buffers.csv");
    let path = std::env::args_os().nth(1).map_or_else(sample, PathBuf::from);
    let table = csv::parse(&std::fs::read_to_string(path)?)?;
    let placement = place(&table.problem, Limits::default())?;
    check(&table.problem, &placement.offsets, placement.height()).expect("the checker accepts every placement");
    for (id, offset) in table.ids.iter().zip(&placement.offsets) {
        println!("{id} at {}", offset.0);
    }
    let bound = placement.certificate.lower_bound;
    println!("arena {} bytes, lower bound {}", placement.height().0, bound.0);
    Ok(())
}
