//! Rows of a few elements, sixteen at a time, as columns: each lane has a row.

use crate::simd::vector::{LANES, Vector};

/// Transposes up to sixteen rows of `columns.len()` elements each. Lanes without a row have any numbers.
#[inline(always)]
pub(crate) fn read<V: Vector>(rows: &[f32], columns: &mut [[f32; LANES]]) {
    // Loops of a constant length are unrolled.
    match (columns.len(), rows.len() / LANES) {
        (2, 2..) => {
            let [a, b] = [V::read(rows), V::read(&rows[LANES..])];
            a.evens(b).write(&mut columns[0]);
            a.odds(b).write(&mut columns[1]);
        }
        (4, 4..) => {
            let [a, b, c, d] =
                [V::read(rows), V::read(&rows[LANES..]), V::read(&rows[2 * LANES..]), V::read(&rows[3 * LANES..])];
            let [evens, odds] = [[a.evens(b), c.evens(d)], [a.odds(b), c.odds(d)]];
            evens[0].evens(evens[1]).write(&mut columns[0]);
            odds[0].evens(odds[1]).write(&mut columns[1]);
            evens[0].odds(evens[1]).write(&mut columns[2]);
            odds[0].odds(odds[1]).write(&mut columns[3]);
        }
        (2, _) => read_some::<2>(rows, columns),
        (3, _) => read_some::<3>(rows, columns),
        (4, _) => read_some::<4>(rows, columns),
        (length @ 0..=LANES, _) => {
            let mut lanes = [V::zero(); LANES];
            for (row, items) in lanes.iter_mut().enumerate().take(rows.len() / length.max(1)) {
                // Elements of the next rows are in columns behind the last.
                *items = V::read_part(&rows[row * length..], 0.0);
            }
            for (items, column) in V::transpose(lanes).iter().zip(columns) {
                items.write(column);
            }
        }
        (length, _) => {
            for (lane, row) in rows.chunks_exact(length).enumerate() {
                columns.iter_mut().zip(row).for_each(|(column, &item)| column[lane] = item);
            }
        }
    }
}

#[inline(always)]
fn read_some<const LENGTH: usize>(rows: &[f32], columns: &mut [[f32; LANES]]) {
    let Some(columns) = columns.first_chunk_mut::<LENGTH>() else { return };
    for (lane, row) in rows.as_chunks::<LENGTH>().0.iter().enumerate().take(LANES) {
        for column in 0..LENGTH {
            columns[column][lane] = row[column];
        }
    }
}

/// Transposes columns back to up to sixteen rows.
#[inline(always)]
pub(crate) fn write<V: Vector>(columns: &[[f32; LANES]], rows: &mut [f32]) {
    match (columns.len(), rows.len() / LANES) {
        (2, 2..) => {
            for (ix, items) in V::read(&columns[0]).zip(V::read(&columns[1])).into_iter().enumerate() {
                items.write(&mut rows[ix * LANES..]);
            }
        }
        (4, 4..) => {
            let evens = V::read(&columns[0]).zip(V::read(&columns[2]));
            let odds = V::read(&columns[1]).zip(V::read(&columns[3]));
            for half in 0..2 {
                for (ix, items) in evens[half].zip(odds[half]).into_iter().enumerate() {
                    items.write(&mut rows[(2 * half + ix) * LANES..]);
                }
            }
        }
        (2, _) => write_some::<2>(columns, rows),
        (3, _) => write_some::<3>(columns, rows),
        (4, _) => write_some::<4>(columns, rows),
        (length @ 0..=LANES, _) => {
            let mut lanes = [V::zero(); LANES];
            for (items, column) in lanes.iter_mut().zip(columns) {
                *items = V::read(column);
            }
            for (row, items) in V::transpose(lanes).iter().enumerate() {
                let Some(row) = rows.get_mut(row * length..).filter(|row| !row.is_empty()) else { break };
                // What a whole vector has behind the row is overwritten by the next rows.
                if LANES <= row.len() {
                    items.write(row);
                } else {
                    items.write_part(&mut row[..length]);
                }
            }
        }
        (length, _) => {
            for (lane, row) in rows.chunks_exact_mut(length).enumerate() {
                row.iter_mut().zip(columns).for_each(|(cell, column)| *cell = column[lane]);
            }
        }
    }
}

#[inline(always)]
fn write_some<const LENGTH: usize>(columns: &[[f32; LANES]], rows: &mut [f32]) {
    let Some(columns) = columns.first_chunk::<LENGTH>() else { return };
    for (lane, row) in rows.as_chunks_mut::<LENGTH>().0.iter_mut().enumerate().take(LANES) {
        for column in 0..LENGTH {
            row[column] = columns[column][lane];
        }
    }
}
