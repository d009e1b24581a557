//! [`Remap`]: a copy through one index table per axis: reflection and edge padding, nearest-neighbor resizing.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::kernel::{Args, InvalidKernel, KernelFn, Sizes, elements_mut, input, product};
use crate::movement::pieces::copy_items;
use crate::threads::Pool;
use crate::threads::shared_slice::for_each_chunk;

/// `out[i, j, ..] = x[tables[0][i], tables[1][j], ..]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remap {
    /// Element size in bytes: 1, 2, 4 or 8.
    pub element_size: usize,
    /// Extents of the input.
    pub shape: Vec<usize>,
    /// Per axis: the input index of each output index.
    pub tables: Vec<Vec<u32>>,
}

impl KernelFn for Remap {
    const NAME: &'static str = "remap";

    fn sizes(&self) -> Result<Sizes, InvalidKernel> {
        if ![1, 2, 4, 8].contains(&self.element_size) || self.tables.len() != self.shape.len() || self.shape.is_empty()
        {
            return Err(InvalidKernel("`element_size` must be 1, 2, 4 or 8, and there must be one table per axis"));
        }
        let inside = |(table, &extent): (&Vec<u32>, &usize)| table.iter().all(|&index| (index as usize) < extent);
        if !self.tables.iter().zip(&self.shape).all(inside) {
            return Err(InvalidKernel("table entries must be less than the axis's extent"));
        }
        let out: Vec<usize> = self.tables.iter().map(Vec::len).collect();
        Sizes::new(&[product(&self.shape)], product(&out), self.element_size)
    }

    fn alignment(&self, _: Option<usize>) -> usize {
        self.element_size
    }

    fn run(&self, args: Args, pool: &Pool) {
        match self.element_size {
            1 => self.run_typed::<u8>(args, pool),
            2 => self.run_typed::<u16>(args, pool),
            4 => self.run_typed::<u32>(args, pool),
            _ => self.run_typed::<u64>(args, pool),
        }
    }
}

/// Elements per task, unless one run is longer.
const TASK: usize = 1 << 13;

/// Fewer neighbors are moved one by one.
const SHORT: usize = 16;

/// The longest row of the output that is gathered with the others of its plane, and the most elements of such a plane.
const NARROW: usize = 64;
const PLANE: usize = 1024;

/// Whether a table moves nothing.
fn is_same(table: &[u32], extent: usize) -> bool {
    table.len() == extent && table.iter().enumerate().all(|(ix, &index)| ix == index as usize)
}

/// The longest part of a table whose entries are neighbors in ascending order.
fn longest_run(table: &[u32]) -> Range<usize> {
    let mut longest = 0..table.len().min(1);
    let (mut start, mut end) = (0, 1);
    while end < table.len() {
        // Most tables are long runs: sixteen entries are compared at a time.
        let block = table[end - 1..].first_chunk::<{ SHORT + 1 }>();
        if block
            .is_some_and(|block| (0..SHORT).fold(true, |all, ix| all & (block[ix].wrapping_add(1) == block[ix + 1])))
        {
            end += SHORT;
        } else if table[end - 1].wrapping_add(1) == table[end] {
            end += 1;
        } else {
            (start, end) = (end, end + 1);
        }
        if longest.len() < end - start {
            longest = start..end;
        }
    }
    longest
}

impl Remap {
    fn run_typed<T: bytemuck::Pod + Send + Sync>(&self, args: Args, pool: &Pool) {
        let x: &[T] = input(&args, 0);
        let out: &mut [T] = elements_mut(args.outputs[0]);
        if out.is_empty() {
            return;
        }
        // The innermost axes with an identity table move as one contiguous run.
        let stays = |axis: &usize| is_same(&self.tables[*axis], self.shape[*axis]);
        let moved = self.shape.len() - (0..self.shape.len()).rev().take_while(stays).count();
        let run: usize = self.shape[moved..].iter().product();
        let (columns, rows): (&[u32], _) = match self.tables[..moved].split_last() {
            Some((columns, rows)) => (columns, rows),
            None => (&[0], &[][..]),
        };
        let start_of = |row: usize| {
            let mut stride = run * self.shape[..moved].last().copied().unwrap_or(1);
            let (mut rest, mut start) = (row, 0);
            for (table, &extent) in rows.iter().zip(&self.shape).rev() {
                start += table[rest % table.len()] as usize * stride;
                rest /= table.len();
                stride *= extent;
            }
            start
        };
        // Planes of few elements are gathered as wholes: the inner axes of them that are not moved.
        let first = self.tables[..moved].iter().zip(&self.shape).take_while(|(table, extent)| is_same(table, **extent));
        let first = first.count();
        let [from, to] = [
            self.shape[first..].iter().product::<usize>(),
            self.tables[first..].iter().map(Vec::len).product::<usize>(),
        ];
        if columns.len() <= NARROW && run == 1 && to <= PLANE && first + 1 < moved {
            let mut sources = [0usize; PLANE];
            let sources = &mut sources[..to];
            for (place, source) in sources.iter_mut().enumerate() {
                *source = start_of(place / columns.len()) + columns[place % columns.len()] as usize;
            }
            let planes = (TASK / to).max(1);
            let sources = &*sources;
            return for_each_chunk(pool, out, planes * to, &|number, cells| {
                let planes = x[number * planes * from..].chunks_exact(from);
                for (cells, x) in cells.chunks_exact_mut(to).zip(planes) {
                    cells.iter_mut().zip(sources).for_each(|(cell, &source)| *cell = x[source]);
                }
            });
        }
        let middle = longest_run(columns);
        let runs = (TASK / run).max(1);
        for_each_chunk(pool, out, runs * run, &|number, mut cells| {
            let mut at = number * runs;
            while !cells.is_empty() {
                let (row, column) = (at / columns.len(), at % columns.len());
                let columns = &columns[column..];
                let count = columns.len().min(cells.len() / run);
                let (now, later) = cells.split_at_mut(count * run);
                let x = &x[start_of(row)..];
                if run == 1 && middle.len() < SHORT {
                    now.iter_mut().zip(columns).for_each(|(cell, &column)| *cell = x[column as usize]);
                } else if run == 1 {
                    // The neighbors among the columns of this part.
                    let [start, end] = [middle.start, middle.end].map(|at| at.clamp(column, column + count) - column);
                    let gather = |part: Range<usize>, cells: &mut [T]| {
                        cells.iter_mut().zip(&columns[part]).for_each(|(cell, &column)| *cell = x[column as usize]);
                    };
                    gather(0..start, &mut now[..start]);
                    if start < end {
                        copy_items(&x[columns[start] as usize..][..end - start], &mut now[start..end]);
                    }
                    gather(end..count, &mut now[end..]);
                } else {
                    for (cells, &column) in now.chunks_exact_mut(run).zip(columns) {
                        copy_items(&x[column as usize * run..][..run], cells);
                    }
                }
                (cells, at) = (later, at + count);
            }
        });
    }
}
