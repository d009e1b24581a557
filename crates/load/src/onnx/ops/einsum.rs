//! [`einsum`]: products and sums over named axes.
//!
//! Operands are contracted from left to right. Axes that two operands share are batch axes if they are needed later, else
//! they are contracted by a matrix product; the other axes are its rows and columns.

use ir::{Refusal, ops};
use smallvec::SmallVec;
use types::Shape;

use crate::common::{NodeResult, Operand, refuse};
use crate::onnx::node::ImportedNode;

/// A tensor and the distinct names of its axes. Axes of `...` are named 0, 1, .. from the end.
struct Term {
    x: Operand,
    axes: Vec<char>,
}

pub(super) fn einsum(node: &mut ImportedNode) -> NodeResult {
    let equation: String = node.text_or("equation", "").chars().filter(|c| !c.is_whitespace()).collect();
    let inputs = node.all_inputs()?;
    let (left, right) = equation.split_once("->").map_or((&equation[..], None), |(left, right)| (left, Some(right)));
    let words: Vec<&str> = left.split(',').collect();
    if words.len() != inputs.len() {
        refuse!("`{equation}` requires {} operands, got {}", words.len(), inputs.len());
    }
    let mut terms = Vec::new();
    let mut named = Vec::new();
    for (word, &x) in words.iter().zip(&inputs) {
        let axes = axis_names(word, node.shape(x).rank(), &equation)?;
        named.extend(axes.iter().copied());
        terms.push(diagonals(node, Term { x, axes })?);
    }
    let ellipsis = named.iter().copied().filter(char::is_ascii_digit).max();
    let rank_of_rest = ellipsis.map_or(0, |last| last as usize - '0' as usize + 1);
    let wanted = match right {
        Some(word) => axis_names(word, word.replace("...", "").len() + rank_of_rest, &equation)?,
        // The default output: `...`, then names that occur once, in alphabetical order.
        None => {
            let once =
                |name: &char| name.is_ascii_alphabetic() && named.iter().filter(|other| *other == name).count() == 1;
            let mut letters: Vec<char> = named.iter().copied().filter(once).collect();
            letters.sort_unstable();
            rest_names(rank_of_rest).chain(letters).collect()
        }
    };
    if let Some(name) = wanted.iter().find(|name| !named.contains(name)) {
        refuse!("output axis `{name}` of `{equation}` must be an axis of an operand");
    }
    let mut terms = terms.into_iter();
    let Some(mut term) = terms.next() else { refuse!("at least one input is required") };
    let mut rest: Vec<Term> = terms.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let later: Vec<char> = rest.iter().flat_map(|term| term.axes.iter().copied()).chain(wanted.clone()).collect();
        term = joined(node, term, next, &later)?;
    }
    let term = summed(node, term, &wanted)?;
    let order = order_of(&term.axes, &wanted)?;
    Ok(vec![node.transpose(term.x, &order)?])
}

/// Names of the axes of `...`, first axis first. They count from the end, as in broadcasting.
fn rest_names(count: usize) -> impl Iterator<Item = char> {
    (0..count).rev().map(|ix| char::from_digit(ix as u32, 10).unwrap_or('9'))
}

fn axis_names(word: &str, rank: usize, equation: &str) -> Result<Vec<char>, Refusal> {
    let wrong = || Refusal(format!("`{word}` of `{equation}` does not fit an operand of rank {rank}"));
    let letters = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
    let axes: Vec<char> = match word.split_once("...") {
        None => word.chars().collect(),
        Some((front, back)) => {
            let count = rank.checked_sub(front.len() + back.len()).filter(|&count| count < 10).ok_or_else(wrong)?;
            front.chars().chain(rest_names(count)).chain(back.chars()).collect()
        }
    };
    match axes.len() == rank && letters(&word.replacen("...", "", 1)) {
        true => Ok(axes),
        false => Err(wrong()),
    }
}

/// Takes the diagonal over axes with the same name.
fn diagonals(node: &mut ImportedNode, mut term: Term) -> Result<Term, Refusal> {
    while let Some((first, second)) = repeated(&term.axes) {
        let shape = node.shape(term.x);
        let extent = shape[first];
        if shape[second] != extent {
            refuse!("extents of axes `{}` must be equal, got shape {shape}", term.axes[first]);
        }
        // Both axes move to the front; a step along the diagonal is one row and one column.
        let order: Vec<usize> = [first, second]
            .into_iter()
            .chain((0..shape.rank()).filter(|&axis| axis != first && axis != second))
            .collect();
        let x = node.transpose(term.x, &order)?;
        let inner: Vec<usize> = order[2..].iter().map(|&axis| shape[axis]).collect();
        let flat: Shape = [extent * extent].into_iter().chain(inner.iter().copied()).collect();
        let x = node.reshape(x, flat.clone())?;
        let mut slice = ops::Slice::whole(&flat);
        (slice.step[0], slice.count[0]) = (if extent < 2 { 1 } else { extent as isize + 1 }, extent);
        term.x = node.apply(slice, &[x])?;
        let name = term.axes[first];
        term.axes = [name].into_iter().chain(order[2..].iter().map(|&axis| term.axes[axis])).collect();
    }
    Ok(term)
}

fn repeated(axes: &[char]) -> Option<(usize, usize)> {
    let pair = |second: usize| Some((axes[..second].iter().position(|name| *name == axes[second])?, second));
    (0..axes.len()).find_map(pair)
}

/// Sums over axes that are not needed.
fn summed(node: &mut ImportedNode, term: Term, wanted: &[char]) -> Result<Term, Refusal> {
    let gone: SmallVec<[usize; 4]> = (0..term.axes.len()).filter(|&axis| !wanted.contains(&term.axes[axis])).collect();
    if gone.is_empty() {
        return Ok(term);
    }
    let x = node.reduce(ops::ReduceKind::Sum, term.x, gone, false)?;
    Ok(Term { x, axes: term.axes.into_iter().filter(|name| wanted.contains(name)).collect() })
}

/// The product of two terms, contracted over axes that are not needed later.
fn joined(node: &mut ImportedNode, a: Term, b: Term, later: &[char]) -> Result<Term, Refusal> {
    let both = |name: &char| a.axes.contains(name) && b.axes.contains(name);
    let batch: Vec<char> = a.axes.iter().copied().filter(|name| both(name) && later.contains(name)).collect();
    let inner: Vec<char> = a.axes.iter().copied().filter(|name| both(name) && !later.contains(name)).collect();
    // Axes of one operand that are not needed are summed first.
    let keep: Vec<char> = later.iter().copied().chain(inner.iter().copied()).collect();
    let (a, b) = (summed(node, a, &keep)?, summed(node, b, &keep)?);
    let free = |term: &Term, other: &Term| -> Vec<char> {
        term.axes.iter().copied().filter(|name| !other.axes.contains(name)).collect()
    };
    let (rows, columns) = (free(&a, &b), free(&b, &a));
    let extent = |node: &ImportedNode, name: &char| {
        let of = |term: &Term| term.axes.iter().position(|other| other == name).map(|axis| node.shape(term.x)[axis]);
        // An extent of 1 broadcasts.
        of(&a).into_iter().chain(of(&b)).max().unwrap_or(1)
    };
    let extents =
        |node: &ImportedNode, names: &[char]| -> Vec<usize> { names.iter().map(|name| extent(node, name)).collect() };
    let [batches, inners, row_extents, column_extents] =
        [&batch, &inner, &rows, &columns].map(|names| extents(node, names));
    let size = |extents: &[usize]| extents.iter().product::<usize>();
    let left = arranged(node, &a, [&batch, &rows, &inner], [&batches, &row_extents, &inners])?;
    let right = arranged(node, &b, [&batch, &inner, &columns], [&batches, &inners, &column_extents])?;
    let left = node.reshape(left, Shape::from([size(&batches), size(&row_extents), size(&inners)]))?;
    let right = node.reshape(right, Shape::from([size(&batches), size(&inners), size(&column_extents)]))?;
    let y = node.mat_mul(left, right)?;
    let shape: Shape = batches.iter().chain(&row_extents).chain(&column_extents).copied().collect();
    let x = node.reshape(y, shape)?;
    Ok(Term { x, axes: [batch, rows, columns].concat() })
}

/// A term with its axes in this order, broadcast to these extents.
fn arranged(
    node: &mut ImportedNode,
    term: &Term,
    names: [&Vec<char>; 3],
    extents: [&Vec<usize>; 3],
) -> Result<Operand, Refusal> {
    let order = order_of(&term.axes, &names.map(|names| &names[..]).concat())?;
    let x = node.transpose(term.x, &order)?;
    node.expand(x, extents.map(|extents| &extents[..]).concat()[..].into())
}

fn order_of(axes: &[char], wanted: &[char]) -> Result<Vec<usize>, Refusal> {
    let place = |name: &char| axes.iter().position(|other| other == name);
    match wanted.iter().map(place).collect::<Option<Vec<usize>>>() {
        Some(order) if order.len() == axes.len() => Ok(order),
        _ => {
            refuse!("axes must be `{1}`, got `{0}`", axes.iter().collect::<String>(), wanted.iter().collect::<String>())
        }
    }
}
