//! [`agreement`]: which of some sizes have the same sum as which of others, and how likely that is by chance.
//!
//! Where a rectangle is cut across, as many bytes end as begin. Of sizes that are large and taken at random, few subsets
//! have the same sum but those that were cut apart there; of small ones, and of the many subsets of many sizes, some
//! always have. The *doubt* of an agreement says how many there would be by chance: of all pairs of subsets with as many
//! sizes as these two, one in so many as their sum says.

use std::cmp::Ordering;

use crate::instance::Work;

/// Doubts are counted in parts of one agreement.
pub(crate) const ONE_DOUBT: u64 = 64;
/// Of more sizes than this in a list not even all pairs are looked at, but what pairs of one list and single sizes of the
/// other have in common.
const LISTED_MAX: usize = 90;

/// Positions in two lists of sizes, ascending, of some that have the same sum.
pub(crate) type Chosen = [Vec<usize>; 2];

/// What is known where nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vain {
    /// What agrees among as many sums is as much in doubt, or more; `u64::MAX` if nothing does.
    pub(crate) doubt: u64,
    /// Whether all subsets were looked at.
    pub(crate) saw_all: bool,
}

/// Finds sizes with the same sum in two lists of positive sizes, each sorted, but not all of both, that are not more
/// in doubt than `doubt_max`: two that are equal, or those in the least doubt among `n_sums` subsets of each list. These
/// are the subsets of the fewest sizes.
pub(crate) fn agreement(a: &[u64], b: &[u64], n_sums: usize, doubt_max: u64, work: &mut Work) -> Result<Chosen, Vain> {
    let is_sure = |found: &Agreement| found.doubt <= doubt_max;
    let is_more = |found: &Agreement| 1 < a.len().max(b.len()) && is_sure(found);
    if let Some(found) = equal(a, b).filter(is_more) {
        return Ok(found.chosen);
    }
    if LISTED_MAX < a.len().max(b.len()) {
        let swapped = |Agreement { chosen: [b, a], doubt }| Agreement { chosen: [a, b], doubt };
        let of_a = pair_for_one(a, b, doubt_max, work);
        let of_b = pair_for_one(b, a, doubt_max, work).map(swapped);
        let found = of_a.into_iter().chain(of_b).min_by_key(|found| found.doubt);
        return found.map(|found| found.chosen).ok_or(Vain { doubt: doubt_max + 1, saw_all: false });
    }
    let sums = [Sums::new(a, n_sums), Sums::new(b, n_sums)];
    work.spend((sums[0].sums.len() + sums[1].sums.len()) / 2);
    let found = least_doubt(&sums[0], &sums[1]);
    let doubt = found.as_ref().map_or(u64::MAX, |found| found.doubt);
    let saw_all = sums.iter().all(Sums::are_all);
    found.filter(is_sure).map(|found| found.chosen).ok_or(Vain { doubt, saw_all })
}

/// Some sizes of two lists that have the same sum.
struct Agreement {
    chosen: Chosen,
    /// How many there would be by chance, in parts of [`ONE_DOUBT`].
    doubt: u64,
}

fn doubt(n_sums: u64, sum: u64) -> u64 {
    let doubt = u128::from(n_sums) * u128::from(ONE_DOUBT) / u128::from(sum);
    u64::try_from(doubt).unwrap_or(u64::MAX)
}

/// The sums of subsets of some sizes, of all or of those with the fewest sizes.
struct Sums {
    /// The sums, those of the fewest sizes first.
    sums: Vec<u64>,
    /// For each sum which sizes, as bits.
    sets: Vec<u128>,
    n_sizes: u32,
}

impl Sums {
    fn new(sizes: &[u64], n_sums_max: usize) -> Sums {
        let mut sums = vec![0];
        let mut sets = vec![0_u128];
        let mut n_more = 1;
        let mut first = 0;
        for n_chosen in 1..=sizes.len() {
            n_more = n_more * (sizes.len() - n_chosen + 1) / n_chosen;
            if n_sums_max < sets.len() + n_more {
                break;
            }
            // The last ones, each with one more size that stands behind its own.
            let last = std::mem::replace(&mut first, sets.len())..sets.len();
            for ix in last {
                let (sum, set) = (sums[ix], sets[ix]);
                let behind = (u128::BITS - set.leading_zeros()) as usize;
                for (at, size) in sizes.iter().enumerate().skip(behind) {
                    sums.push(sum + size);
                    sets.push(set | 1 << at);
                }
            }
        }
        Sums { sums, sets, n_sizes: sizes.len() as u32 }
    }

    /// Whether no subset is missing.
    fn are_all(&self) -> bool {
        self.n_sizes < usize::BITS && self.sets.len() == 1 << self.n_sizes
    }

    /// How many subsets have as many sizes as one.
    fn n_alike(&self, set: u128) -> u64 {
        let n = u64::from(self.n_sizes);
        (0..u64::from(set.count_ones())).fold(1, |ways, chosen| ways * (n - chosen) / (chosen + 1))
    }
}

/// Of subsets with equal sums the two in the least doubt. Sums of the one are looked up in a table of those of the other.
fn least_doubt(a: &Sums, b: &Sums) -> Option<Agreement> {
    let table = Table::new(&a.sums);
    let mut best: Option<(u64, u64, u128, u128)> = None;
    // The first is the empty subset.
    for (sum, set_b) in b.sums.iter().zip(&b.sets).skip(1) {
        let Some(set_a) = table.find(&a.sums, *sum).map(|ix| a.sets[ix]) else { continue };
        let is_all = (set_a.count_ones(), set_b.count_ones()) == (a.n_sizes, b.n_sizes);
        let found = (doubt(a.n_alike(set_a).saturating_mul(b.n_alike(*set_b)), *sum), *sum, set_a, *set_b);
        if !is_all && best.is_none_or(|best| found < best) {
            best = Some(found);
        }
    }
    let chosen = |set: u128| (0..u128::BITS as usize).filter(|at| set >> at & 1 == 1).collect();
    best.map(|(doubt, _, a, b)| Agreement { chosen: [chosen(a), chosen(b)], doubt })
}

/// Where in a list a number stands first: positions in the order of a hash, zero for none, so that the first number of
/// the list is never found.
struct Table {
    positions: Vec<u32>,
    shift: u32,
}

impl Table {
    fn new(list: &[u64]) -> Table {
        let n_positions = (2 * list.len()).next_power_of_two();
        let mut table = Table { positions: vec![0; n_positions], shift: u64::BITS - n_positions.ilog2() };
        for (ix, number) in list.iter().enumerate().skip(1) {
            let at = table.seek(list, *number);
            if table.positions[at] == 0 {
                table.positions[at] = ix as u32;
            }
        }
        table
    }

    /// Where the position of a number is, or would be.
    fn seek(&self, list: &[u64], number: u64) -> usize {
        // Multiplied by the golden ratio, what differs in low bits differs in high ones.
        let mut at = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        while self.positions[at] != 0 && list[self.positions[at] as usize] != number {
            at = (at + 1) % self.positions.len();
        }
        at
    }

    fn find(&self, list: &[u64], number: u64) -> Option<usize> {
        let position = self.positions[self.seek(list, number)];
        (position != 0).then_some(position as usize)
    }
}

/// The greatest size that is in both lists.
fn equal(a: &[u64], b: &[u64]) -> Option<Agreement> {
    let (mut at_a, mut at_b) = (a.len(), b.len());
    while 0 < at_a && 0 < at_b {
        match a[at_a - 1].cmp(&b[at_b - 1]) {
            Ordering::Less => at_b -= 1,
            Ordering::Greater => at_a -= 1,
            Ordering::Equal => {
                let doubt = doubt((a.len() * b.len()) as u64, a[at_a - 1]);
                return Some(Agreement { chosen: [vec![at_a - 1], vec![at_b - 1]], doubt });
            }
        }
    }
    None
}

/// The greatest of some sizes that two of the others have as their sum, where that is not more in doubt than `doubt_max`.
fn pair_for_one(ones: &[u64], others: &[u64], doubt_max: u64, work: &mut Work) -> Option<Agreement> {
    let n_sums = (ones.len() * others.len() * others.len() / 2) as u64;
    for (at, one) in ones.iter().enumerate().rev().take_while(|(_, one)| doubt(n_sums, **one) <= doubt_max) {
        work.spend(others.len() / 4);
        let (mut low, mut high) = (0, others.len().saturating_sub(1));
        while low < high {
            match (others[low] + others[high]).cmp(one) {
                Ordering::Less => low += 1,
                Ordering::Equal => {
                    return Some(Agreement { chosen: [vec![at], vec![low, high]], doubt: doubt(n_sums, *one) });
                }
                Ordering::Greater => high -= 1,
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use types::Random;

    use super::*;

    fn found(a: &[u64], b: &[u64], n_sums: usize) -> Option<Chosen> {
        agreement(a, b, n_sums, u64::MAX - 1, &mut Work::new(1 << 30)).ok()
    }

    fn check(a: &[u64], b: &[u64], n_sums: usize, expected: Option<[&[usize]; 2]>) {
        assert_eq!(found(a, b, n_sums), expected.map(|chosen| chosen.map(<[usize]>::to_vec)));
    }

    #[test]
    fn the_fewest_sizes_with_the_same_sum_are_found() {
        check(&[300, 500, 1100], &[200, 700, 1000], 64, None);
        check(&[300, 500, 1100], &[200, 300, 1300], 64, Some([&[0], &[1]]));
        check(&[300, 500, 1100], &[400, 400, 1100], 64, Some([&[2], &[2]]));
        check(&[310, 500, 1100], &[400, 410, 1300], 64, Some([&[0, 1], &[0, 1]]));
    }

    #[test]
    fn subsets_that_are_too_many_are_left_out() {
        check(&[310, 500, 1100], &[400, 410, 1000], 4, None);
        let a: Vec<u64> = (0..200).map(|ix| 1_000_003 * (ix + 1)).collect();
        check(&a, &[5, 1_000_003 * 7 + 5], 4096, None);
        check(&a, &[5, 1_000_003 * 300], 4096, Some([&[99, 199], &[1]]));
        check(&[5, 1_000_003 * 300], &a, 4096, Some([&[1], &[99, 199]]));
    }

    #[test]
    fn what_many_small_sizes_agree_upon_is_in_doubt() {
        let (a, b) = ([3, 5, 8, 14], [1, 2, 6, 21]);
        assert!(found(&a, &b, 64).is_some());
        let vain = agreement(&a, &b, 64, ONE_DOUBT / 4, &mut Work::new(1 << 30)).expect_err("it is in doubt");
        assert!(ONE_DOUBT / 4 < vain.doubt && vain.doubt < u64::MAX && vain.saw_all);
        let large = |sizes: [u64; 4]| sizes.map(|size| size << 32);
        assert!(agreement(&large(a), &large(b), 64, 0, &mut Work::new(1 << 30)).is_ok());
    }

    #[test]
    fn what_is_said_to_agree_does() {
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let mut sizes = || {
                let mut sizes: Vec<u64> = (0..1 + random.below(8)).map(|_| 1 + random.below(60)).collect();
                sizes.sort_unstable();
                sizes
            };
            let (a, b) = (sizes(), sizes());
            let Some([in_a, in_b]) = found(&a, &b, 1 << 10) else { continue };
            let sum = |sizes: &[u64], chosen: &[usize]| chosen.iter().map(|at| sizes[*at]).sum::<u64>();
            assert_eq!(sum(&a, &in_a), sum(&b, &in_b));
            assert!(!in_a.is_empty() && (in_a.len() < a.len() || in_b.len() < b.len()));
        }
    }
}
