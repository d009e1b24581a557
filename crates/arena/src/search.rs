//! [`Search`]: is there a placement within a capacity? Depth first from the bottom; exact if it runs to the end.
//!
//! It works on rectangles ([`Rect`]) over sections of time; the top of a rectangle may have steps, its bottom is flat. Every section has a *floor*: the bytes below it are
//! decided, used or wasted. The *low* of a rectangle is the highest floor below it, rounded up to its alignment.
//!
//! **Normal form.** If there is a placement at all, there is one in which nothing can be moved down: every rectangle is
//! on another, on the ground, or fixed. Only those are searched, bottom up.
//!
//! **Branching.** A *gap* is a run of sections with equal floors between higher ones. A rectangle at the level of a gap
//! is wholly inside the gap, so a section of it has few cases: one of the rectangles over the section whose low is the
//! level is placed there, or none is, and the bytes up to the next level that any of them can reach are wasted. These
//! cases are disjoint and complete. The section with the fewest cases is chosen; a single case is forced and costs no
//! branch.
//!
//! ```text
//!      |#####|                 |          The gap is sections 2 to 4. x and y fit into it, z does not: over section 3
//!      |#####|                 |#####     are x, y and z. Cases: x at the level of the gap, y at it, or waste up to
//!      |#####|                 |#####     the least of z's low and the tops of rectangles under x or y.
//!      |#####|_________________|#####
//!         1     2     3     4     5
//! ```
//!
//! **Propagation.** The floor of a section rises to the least low of the rectangles over it: nothing can be below. A
//! branch fails if a floor plus the remaining bytes of its section exceed the capacity; nearly all branches end so. A
//! section counts the branches it has failed, and sections with failures are branched on sooner ([`Choice::Failures`];
//! constraint solvers call it *dom/wdeg*).
//!
//! **Memory.** If no rectangle spans some boundary, the parts on both sides are solved separately. Failed states are
//! kept in a table by a 128-bit hash of floors, tops and remaining rectangles, for this capacity; it outlives restarts.
//! Of equal rectangles with equal lifetimes only one is tried.

use std::ops::Range;

use types::Random;

use crate::instance::Work;

/// A buffer: `size` bytes in the sections `first..end`, at an offset to be found unless fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
    /// Its steps in [`Rects::steps`], if its height changes; else empty.
    pub(crate) steps: Steps,
}

/// A range of [`Rects::steps`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Some sections of a buffer whose height changes, and its height there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) height: u64,
}

/// The buffers of a search.
pub(crate) struct Rects {
    pub(crate) rects: Vec<Rect>,
    /// The steps of buffers whose height changes: those of one buffer tile its sections.
    pub(crate) steps: Vec<Step>,
}

impl Step {
    fn sections(self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

impl Rects {
    /// Heights of a rectangle by section.
    fn heights(&self, rect: &Rect) -> impl Iterator<Item = Step> + '_ {
        let plain = Step { first: rect.first, end: rect.end, height: rect.size };
        let steps = &self.steps[rect.steps.start as usize..rect.steps.end as usize];
        steps.iter().copied().chain(steps.is_empty().then_some(plain))
    }

    /// By section the bytes of all rectangles.
    pub(crate) fn totals(&self, n_sections: usize) -> Vec<u64> {
        let mut totals = vec![0; n_sections];
        for step in self.rects.iter().flat_map(|rect| self.heights(rect)) {
            totals[step.sections()].iter_mut().for_each(|total| *total += step.height);
        }
        totals
    }

    /// The least height of a rectangle.
    fn least_height(&self, rect: &Rect) -> u64 {
        self.heights(rect).map(|step| step.height).min().unwrap_or(rect.size)
    }
}

impl Rect {
    /// The least offset from a level on.
    fn lift(&self, level: u64) -> u64 {
        // Most alignments are one grain, and a division is slow.
        if self.alignment == 1 { level } else { level.next_multiple_of(self.alignment) }
    }

    fn sections(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

/// Whether a placement fits the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// [`Search::offsets`] is a placement.
    Fits,
    /// No placement exists.
    DoesNotFit,
    /// Unknown: the branches or the budget are spent.
    Stopped,
}

/// Which section of a gap is branched on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// The one with the fewest cases; among equals the one with the most failures.
    Cases,
    /// The one with the fewest cases for each failure.
    Failures,
}

/// The limit of one run of a search, and its preferences.
pub(crate) struct Guide<'a> {
    pub(crate) choice: Choice,
    /// By rectangle, the rank: the lowest is tried first.
    pub(crate) rank: &'a [u32],
    /// Branches before the run is stopped.
    pub(crate) branches: u64,
}

/// The state of a search within one capacity.
pub(crate) struct Search<'a> {
    all: &'a Rects,
    rects: &'a [Rect],
    capacity: u64,
    /// By section: the height below which all is decided.
    floor: Vec<u64>,
    /// By section: the end of the highest rectangle placed.
    top: Vec<u64>,
    /// By section: the bytes of the rectangles not placed yet.
    left: Vec<u64>,
    /// By rectangle, the fields that are read often before it is placed.
    loose: Vec<Loose>,
    offsets: Vec<u64>,
    trail: Vec<Undo>,
    /// Rectangles of the components being solved, each in a range of its own.
    stack: Vec<u32>,
    /// By rectangle: its part in the hash of a state.
    keys: Vec<u128>,
    failed: Vec<u128>,
    /// By section: one plus the number of branches it has failed.
    failures: Vec<u64>,
    scratch: Scratch,
}

/// A rectangle that is not placed yet.
#[derive(Clone, Copy)]
struct Loose {
    /// The least offset it can have.
    low: u64,
    /// Its least height.
    height: u64,
    first: u32,
    end: u32,
}

impl Loose {
    fn new(rect: &Rect, height: u64) -> Loose {
        Loose { low: rect.fixed.unwrap_or(0), height, first: rect.first, end: rect.end }
    }

    fn covers(&self, section: usize) -> bool {
        self.first as usize <= section && section < self.end as usize
    }
}

/// Values by section that are computed for each choice.
struct Scratch {
    /// The number of rectangles that can be at the level of a gap, as differences between neighbours.
    cases: Vec<i32>,
    /// The number of rectangles that span the boundary before a section, as differences between neighbours.
    spanning: Vec<i32>,
    /// The end of the gap of a section; 0 if it is in none.
    gap_end: Vec<u32>,
    /// The lower wall of the gap.
    wall: Vec<u64>,
    /// At the last section of a gap: the smallest rectangle in the gap.
    smallest: Vec<u64>,
    /// The least low of the rectangles over a section.
    least_low: Vec<u64>,
    /// The rectangles that can be at the level of the section that is branched on.
    chosen: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Undo {
    Floor(u32, u64),
    Top(u32, u64),
    Low(u32, u64),
    Placed(u32),
}

/// A section to branch on, and the level to which wasting its bytes would raise it, if that is possible.
struct Branch {
    section: usize,
    lift_to: Option<u64>,
    /// Whether no rectangle spans some boundary.
    is_split: bool,
}

/// The result of propagation in a component.
enum Look {
    Done(Answer),
    Branch(Branch),
}

const NONE: u64 = u64::MAX;
/// The most failed states that are kept: in all, and for each rectangle.
const TABLE_MAX: usize = 1 << 15;
const TABLE_SHARE: usize = 256;

/// The quotient of a number and the failures, in parts of 2^32.
fn ratio(n: u64, failures: u64) -> u64 {
    // Most sections have no failures, and a division is slow.
    if failures == 1 { n << 32 } else { (n << 32) / failures }
}

impl<'a> Search<'a> {
    pub(crate) fn new(all: &'a Rects, n_sections: usize, capacity: u64) -> Search<'a> {
        let rects = &all.rects[..];
        let mut random = Random::new(7);
        Search {
            all,
            rects,
            capacity,
            floor: vec![0; n_sections],
            top: vec![0; n_sections],
            left: all.totals(n_sections),
            loose: rects.iter().map(|rect| Loose::new(rect, all.least_height(rect))).collect(),
            offsets: vec![0; rects.len()],
            trail: Vec::new(),
            stack: Vec::new(),
            keys: rects.iter().map(|_| u128::from(random.bits()) << 64 | u128::from(random.bits())).collect(),
            failed: vec![0; (rects.len() * TABLE_SHARE).clamp(1, TABLE_MAX)],
            failures: vec![1; n_sections],
            scratch: Scratch {
                cases: vec![0; n_sections + 1],
                spanning: vec![0; n_sections + 1],
                gap_end: vec![0; n_sections],
                wall: vec![0; n_sections],
                smallest: vec![0; n_sections],
                least_low: vec![0; n_sections],
                chosen: Vec::new(),
            },
        }
    }

    /// Offsets by rectangle, after [`Answer::Fits`].
    pub(crate) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Searches from the start, with the failed states of earlier runs. Must not be called after [`Answer::Fits`].
    pub(crate) fn run(&mut self, guide: &Guide, work: &mut Work) -> Answer {
        if self.left.iter().any(|left| self.capacity < *left) {
            return Answer::DoesNotFit;
        }
        self.stack.clear();
        self.stack.extend(0..self.rects.len() as u32);
        let mut branches = guide.branches;
        let answer = match self.settle(0..self.stack.len(), 0..self.floor.len(), work) {
            true => self.solve(0..self.stack.len(), 0..self.floor.len(), guide, &mut branches, work),
            false => Answer::DoesNotFit,
        };
        if answer != Answer::Fits {
            self.undo(0);
        }
        answer
    }

    /// Solves the rectangles `stack[items]`, the only ones in a span of sections. Restores the state unless they fit.
    fn solve(
        &mut self,
        items: Range<usize>,
        span: Range<usize>,
        guide: &Guide,
        branches: &mut u64,
        work: &mut Work,
    ) -> Answer {
        let (mark, base) = (self.trail.len(), self.stack.len());
        self.stack.extend_from_within(items);
        let mut items = base..self.stack.len();
        let mut span = span;
        let mut answer = match self.look(&mut items, &mut span, guide, work) {
            Look::Done(answer) => answer,
            Look::Branch(branch) if branch.is_split => self.solve_parts(items, guide, branches, work),
            Look::Branch(branch) => self.branch(&branch, items, span, guide, branches, work),
        };
        if work.is_spent() && answer == Answer::DoesNotFit {
            answer = Answer::Stopped;
        }
        self.stack.truncate(base);
        if answer != Answer::Fits {
            self.undo(mark);
        }
        answer
    }

    /// Places forced rectangles until there is a choice.
    fn look(&mut self, items: &mut Range<usize>, span: &mut Range<usize>, guide: &Guide, work: &mut Work) -> Look {
        loop {
            if items.start == items.end {
                return Look::Done(Answer::Fits);
            }
            while self.left[span.start] == 0 {
                span.start += 1;
            }
            while self.left[span.end - 1] == 0 {
                span.end -= 1;
            }
            if !work.spend(1 + (2 * items.len() + 3 * span.len()) / 8) {
                return Look::Done(Answer::Stopped);
            }
            self.find_gaps(span.clone());
            self.count_cases(items.clone());
            let (section, is_split) = self.choose(span.clone(), guide.choice);
            let (only, lift_to) = self.cases_of(section, items.clone());
            match (only, lift_to) {
                (Some(at), None) => {
                    self.stack.swap(at, items.end - 1);
                    items.end -= 1;
                    let item = self.stack[items.end];
                    self.stack.truncate(items.end);
                    if !self.place(item, items.clone(), work) {
                        return Look::Done(Answer::DoesNotFit);
                    }
                }
                _ => return Look::Branch(Branch { section, lift_to, is_split }),
            }
        }
    }

    fn find_gaps(&mut self, span: Range<usize>) {
        let Scratch { cases, spanning, gap_end, wall, smallest, .. } = &mut self.scratch;
        cases[span.start..=span.end].fill(0);
        spanning[span.start..=span.end].fill(0);
        gap_end[span.clone()].fill(0);
        // Sections without remaining rectangles are walls of infinite height.
        let level = |section: usize| if self.left[section] != 0 { self.floor[section] } else { NONE };
        let (mut first, mut here, mut wall_before) = (span.start, level(span.start), NONE);
        while first < span.end {
            let mut end = first + 1;
            let mut next = NONE;
            while end < span.end {
                next = level(end);
                if next != here {
                    break;
                }
                end += 1;
            }
            if end == span.end {
                next = NONE;
            }
            let lower_wall = wall_before.min(next);
            if here < lower_wall {
                gap_end[first..end].fill(end as u32);
                wall[first..end].fill(lower_wall);
                smallest[end - 1] = NONE;
            }
            (first, wall_before, here) = (end, here, next);
        }
    }

    /// Counts, for each section of a gap, the rectangles that can be at its level, and for each boundary those that span it.
    fn count_cases(&mut self, items: Range<usize>) {
        let Scratch { cases, spanning, gap_end, smallest, .. } = &mut self.scratch;
        for item in &self.stack[items] {
            let rect = self.loose[*item as usize];
            let (first, end) = (rect.first as usize, rect.end as usize);
            // The boundaries before sections first + 1 to end - 1.
            spanning[first + 1] += 1;
            spanning[end] -= 1;
            let gap_end = gap_end[first] as usize;
            if end <= gap_end {
                smallest[gap_end - 1] = smallest[gap_end - 1].min(rect.height);
                if rect.low == self.floor[first] {
                    cases[first] += 1;
                    cases[end] -= 1;
                }
            }
        }
    }

    /// The section to branch on, and whether some boundary is spanned by no rectangle.
    fn choose(&self, span: Range<usize>, choice: Choice) -> (usize, bool) {
        let Scratch { cases, spanning, gap_end, wall, smallest, .. } = &self.scratch;
        let mut best = (u64::MAX, u64::MAX, span.start);
        let (mut n_rects, mut n_spanning, mut is_split) = (0, 0, false);
        for section in span.clone() {
            n_rects += cases[section];
            n_spanning += spanning[section];
            is_split |= n_spanning == 0 && section != span.start;
            let Some(last) = (gap_end[section] as usize).checked_sub(1) else { continue };
            let floor = self.floor[section];
            // An estimate: the exact cases are computed for the chosen section only.
            let lift = (wall[section] - floor).min(smallest[last]);
            let can_waste = lift <= self.capacity - self.left[section] - floor;
            let cases = n_rects as u64 + u64::from(can_waste);
            let failures = self.failures[section];
            let cost = match choice {
                Choice::Cases => cases,
                Choice::Failures if cases == 1 => 0,
                Choice::Failures => ratio(cases, failures),
            };
            if cost <= best.0 {
                best = best.min((cost, ratio(256, failures), section));
            }
        }
        (best.2, is_split)
    }

    /// The cases of a section: the position of its only rectangle, if there is no other, and the level that waste would
    /// lift the section to, if that is within the capacity.
    fn cases_of(&mut self, section: usize, items: Range<usize>) -> (Option<usize>, Option<u64>) {
        let floor = self.floor[section];
        let chosen = &mut self.scratch.chosen;
        chosen.clear();
        let mut only = None;
        let mut lift_to = NONE;
        let mut reach = (u32::MAX, 0);
        for at in items.clone() {
            let item = self.stack[at];
            let rect = self.loose[item as usize];
            if !rect.covers(section) {
                continue;
            }
            match rect.low == floor {
                true => {
                    only = Some(at);
                    chosen.push(item);
                    reach = (reach.0.min(rect.first), reach.1.max(rect.end));
                }
                false => lift_to = lift_to.min(rect.low),
            }
        }
        let only = only.filter(|_| chosen.len() == 1);
        let highest = self.capacity - self.left[section];
        if highest == floor {
            return (only, None);
        }
        // A rectangle that could be at this level and is not is on top of another one, which does not cover this section.
        for item in &self.stack[items] {
            let rect = self.loose[*item as usize];
            if rect.first < reach.1 && reach.0 < rect.end && !rect.covers(section) {
                lift_to = lift_to.min(rect.low + rect.height);
            }
        }
        (only, (lift_to <= highest).then_some(lift_to))
    }

    /// Solves the parts between boundaries that no rectangle spans, the smallest first.
    fn solve_parts(&mut self, items: Range<usize>, guide: &Guide, branches: &mut u64, work: &mut Work) -> Answer {
        let mut order: Vec<u32> = self.stack[items].to_vec();
        order.sort_unstable_by_key(|item| (self.rects[*item as usize].first, *item));
        // Ranges of `order` with their sections.
        let mut parts: Vec<(Range<usize>, Range<usize>)> = Vec::new();
        for (at, item) in order.iter().enumerate() {
            let sections = self.rects[*item as usize].sections();
            match parts.last_mut() {
                Some((part, span)) if sections.start < span.end => {
                    part.end = at + 1;
                    span.end = span.end.max(sections.end);
                }
                _ => parts.push((at..at + 1, sections)),
            }
        }
        parts.sort_by_key(|(part, _)| part.len());
        for (part, span) in parts {
            let base = self.stack.len();
            self.stack.extend(&order[part]);
            let answer = self.solve(base..self.stack.len(), span, guide, branches, work);
            self.stack.truncate(base);
            if answer != Answer::Fits {
                return answer;
            }
        }
        Answer::Fits
    }

    fn branch(
        &mut self,
        branch: &Branch,
        items: Range<usize>,
        span: Range<usize>,
        guide: &Guide,
        branches: &mut u64,
        work: &mut Work,
    ) -> Answer {
        let mut cases = self.scratch.chosen.clone();
        let key = self.key(items.clone(), span.clone());
        let slot = (key >> 64) as usize % self.failed.len();
        if self.failed[slot] == key {
            return Answer::DoesNotFit;
        }
        if *branches == 0 {
            return Answer::Stopped;
        }
        *branches -= 1;

        cases.sort_unstable_by_key(|item| guide.rank[*item as usize]);
        for (at, item) in cases.iter().enumerate() {
            let rect = self.rects[*item as usize];
            // Rectangles with steps differ in their steps.
            if cases[..at].iter().any(|earlier| self.rects[*earlier as usize] == rect) {
                continue;
            }
            let mark = self.trail.len();
            let rest = items.start..items.end - 1;
            let position = items.clone().find(|at| self.stack[*at] == *item);
            self.stack.swap(position.expect("cases are of the component"), rest.end);
            if self.place(*item, rest.clone(), work) {
                match self.solve(rest, span.clone(), guide, branches, work) {
                    Answer::DoesNotFit => {}
                    answer => return answer,
                }
            }
            self.undo(mark);
        }
        if let Some(level) = branch.lift_to {
            let mark = self.trail.len();
            if self.raise(branch.section..branch.section + 1, level, items.clone(), work) {
                match self.solve(items, span, guide, branches, work) {
                    Answer::DoesNotFit => {}
                    answer => return answer,
                }
            }
            self.undo(mark);
        }
        if work.is_spent() {
            return Answer::Stopped;
        }
        self.failed[slot] = key;
        Answer::DoesNotFit
    }

    /// A hash of the state.
    fn key(&self, items: Range<usize>, span: Range<usize>) -> u128 {
        const ODD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        let rects = self.stack[items].iter().fold(0, |key, item| key ^ self.keys[*item as usize]);
        span.filter(|section| self.left[*section] != 0).fold(rects, |key, section| {
            let mixed = (key ^ u128::from(self.floor[section]) ^ u128::from(self.top[section]) << 64).wrapping_mul(ODD);
            mixed ^ mixed >> 61
        })
    }

    /// Places a rectangle, already removed from `stack[rest]`, at its low; false if that fails.
    fn place(&mut self, item: u32, rest: Range<usize>, work: &mut Work) -> bool {
        let rect = self.rects[item as usize];
        let at = self.loose[item as usize].low;
        if rect.fixed.is_none() {
            let support = self.top[rect.sections()].iter().fold(0, |support, top| support.max(*top));
            if rect.lift(support) != at {
                // It could be lower; another branch finds that placement.
                return false;
            }
        }
        self.offsets[item as usize] = at;
        self.trail.push(Undo::Placed(item));
        let all = self.all;
        for step in all.heights(&rect) {
            for section in step.sections() {
                self.left[section] -= step.height;
                self.trail.push(Undo::Top(section as u32, self.top[section]));
                self.top[section] = at + step.height;
            }
        }
        let mut touched = rect.sections();
        all.heights(&rect).all(|step| self.lift(step.sections(), at + step.height, rest.clone(), &mut touched))
            && self.settle(rest, touched, work)
    }

    /// Raises floors to a level, and the lows of the rectangles over them; false if that fails.
    fn raise(&mut self, sections: Range<usize>, level: u64, items: Range<usize>, work: &mut Work) -> bool {
        let mut touched = sections.clone();
        self.lift(sections, level, items.clone(), &mut touched) && self.settle(items, touched, work)
    }

    /// Raises floors to a level, and the lows of the rectangles over them, whose sections are added to `touched`; false if a
    /// fixed one would rise.
    fn lift(&mut self, sections: Range<usize>, level: u64, items: Range<usize>, touched: &mut Range<usize>) -> bool {
        for section in sections.clone() {
            self.trail.push(Undo::Floor(section as u32, self.floor[section]));
            self.floor[section] = level;
        }
        for at in items {
            let item = self.stack[at];
            let Loose { low, first, end, .. } = self.loose[item as usize];
            let (first, end) = (first as usize, end as usize);
            if end <= sections.start || sections.end <= first || level <= low {
                continue;
            }
            let rect = &self.rects[item as usize];
            if rect.fixed.is_some() {
                return false;
            }
            self.trail.push(Undo::Low(item, low));
            self.loose[item as usize].low = rect.lift(level);
            *touched = touched.start.min(first)..touched.end.max(end);
        }
        true
    }

    /// Raises floors to the least low over them; false if the bytes of a section no longer fit.
    fn settle(&mut self, items: Range<usize>, sections: Range<usize>, work: &mut Work) -> bool {
        let least_low = &mut self.scratch.least_low;
        least_low[sections.clone()].fill(NONE);
        let mut visits = items.len();
        for item in &self.stack[items] {
            let Loose { low, first, end, .. } = self.loose[*item as usize];
            let both = sections.start.max(first as usize)..sections.end.min(end as usize);
            if !both.is_empty() {
                visits += both.len();
                least_low[both].iter_mut().for_each(|least| *least = low.min(*least));
            }
        }
        work.spend(1 + visits / 8);
        for section in sections {
            let least = self.scratch.least_low[section];
            if least == NONE || least <= self.floor[section] {
                continue;
            }
            if self.capacity - self.left[section] < least {
                self.failures[section] += 1;
                return false;
            }
            self.trail.push(Undo::Floor(section as u32, self.floor[section]));
            self.floor[section] = least;
        }
        true
    }

    fn undo(&mut self, mark: usize) {
        for undo in self.trail.drain(mark..).rev() {
            match undo {
                Undo::Floor(section, floor) => self.floor[section as usize] = floor,
                Undo::Top(section, top) => self.top[section as usize] = top,
                Undo::Low(item, low) => self.loose[item as usize].low = low,
                Undo::Placed(item) => {
                    for step in self.all.heights(&self.rects[item as usize]) {
                        self.left[step.sections()].iter_mut().for_each(|left| *left += step.height);
                    }
                }
            }
        }
    }
}
