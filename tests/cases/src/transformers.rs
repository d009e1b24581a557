//! Layer normalization and attention.

use ir::ops::*;
use types::HeadOrder;

use crate::{Case, F, case, with_weights};

/// All cases of this kind.
pub fn all() -> Vec<Case> {
    use HeadOrder::{HeadsFirst, TokensFirst};
    let mut cases = Vec::new();
    for (shape, axis) in
        [(&[3, 7][..], 1), (&[2, 5, 384], 2), (&[2, 3, 4, 5], 2), (&[1, 1], 1), (&[2, 0], 1), (&[0, 3], 1)]
    {
        for (scale, shift) in [(false, false), (true, false), (true, true)] {
            let norm = LayerNorm { axis, epsilon: 1e-5, scale, shift };
            let rows = vec![&shape[axis..]; usize::from(scale) + usize::from(shift)];
            cases.push(with_weights(&format!("layer norm {shape:?} {scale} {shift}"), norm, shape, &rows));
        }
    }
    // Rows shorter and longer than the threads of a block, and longer than several iterations of it.
    for shape in [&[5, 1][..], &[3, 255], &[2, 3, 257], &[3, 1025], &[1, 4097]] {
        let norm = LayerNorm { axis: shape.len() - 1, epsilon: 1e-5, scale: true, shift: true };
        let row = &shape[shape.len() - 1..];
        cases.push(with_weights(&format!("layer norm of rows {shape:?}"), norm, shape, &[row, row]));
    }
    // Queries, keys and values of two batches and three heads.
    let plain = Attention { scale: 0.25, order: [HeadsFirst; 3], result: HeadsFirst, mask: false };
    let mixed = Attention { order: [TokensFirst, HeadsFirst, TokensFirst], result: TokensFirst, ..plain.clone() };
    let (q, k, v) = (&[2, 3, 17, 20][..], &[2, 3, 150, 20][..], &[2, 3, 150, 33][..]);
    let (q_mixed, v_mixed) = (&[2, 17, 3, 20][..], &[2, 150, 3, 33][..]);
    cases.push(case("attention", plain.clone(), &[(F, q), (F, k), (F, v)]));
    cases.push(case("attention of tokens first", mixed.clone(), &[(F, q_mixed), (F, k), (F, v_mixed)]));
    for mask in [&[2, 1, 1, 150][..], &[17, 150], &[150], &[2, 3, 17, 150], &[3, 17, 1], &[1], &[]] {
        let masked = Attention { mask: true, ..mixed.clone() };
        let types = [(F, q_mixed), (F, k), (F, v_mixed), (F, mask)];
        cases.push(case(&format!("attention with a mask {mask:?}"), masked, &types));
    }
    let masked = Attention { mask: true, ..plain };
    let nothing = [(F, &[2, 3, 4, 5][..]), (F, &[2, 3, 0, 5]), (F, &[2, 3, 0, 6]), (F, &[4, 1])];
    cases.push(case("attention to nothing", masked.clone(), &nothing));
    let nobody = [(F, &[2, 3, 0, 5][..]), (F, &[2, 3, 4, 5]), (F, &[2, 3, 4, 6]), (F, &[4])];
    cases.push(case("attention of nobody", masked, &nobody));
    // One key, and more keys or elements of a value than a block has threads.
    for ([batch, heads, queries, keys], [width, of_values]) in [
        ([1, 1, 1, 1], [1, 1]),
        ([3, 1, 33, 1], [65, 7]),
        ([1, 5, 3, 257], [64, 64]),
        ([3, 2, 9, 40], [17, 300]),
        ([1, 2, 5, 1030], [33, 31]),
    ] {
        let of = |order: HeadOrder, tokens: usize, width: usize| match order {
            HeadsFirst => [batch, heads, tokens, width],
            TokensFirst => [batch, tokens, heads, width],
        };
        for (order, result) in [([HeadsFirst; 3], TokensFirst), ([TokensFirst, TokensFirst, HeadsFirst], HeadsFirst)] {
            let attention = Attention { scale: 0.25, order, result, mask: true };
            let q = of(order[0], queries, width);
            let (k, v) = (of(order[1], keys, width), of(order[2], keys, of_values));
            let name = format!("attention of {batch}x{heads}x{queries} to {keys}, {width} and {of_values}, {order:?}");
            cases.push(case(&name, attention, &[(F, &q), (F, &k), (F, &v), (F, &[queries, keys])]));
        }
    }
    cases
}
