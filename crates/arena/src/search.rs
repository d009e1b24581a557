//! [`Search`]: is there a placement within a capacity? Depth first over what lies lowest, exact when it comes to an
//! end.
//!
//! All of it happens on rectangles ([`Rect`]) over sections of time. Every section has a *floor*: what is below is
//! decided, taken or given up. A rectangle can lie no lower than the highest floor under it, rounded up to its
//! alignment: its *low*.
//!
//! **What is looked for.** If there is a placement at all, there is one in which nothing can be moved down: every
//! rectangle lies on another, on the ground, or where it is fixed. Only those are looked for, bottom up.
//!
//! **Where to branch.** A *niche* is a run of sections with equal floors between higher ones. Whatever lies at a
//! niche's level lies wholly in the niche, so for one section of it there are few cases: one of the rectangles over the
//! section whose low is the niche's level lies right there, or none does and the bytes up to the next level that any of
//! them can reach are wasted. These cases exclude each other and leave out nothing. The section with the fewest of them
//! is taken; one case is no choice and costs no branch.
//!
//! ```text
//!      |#####|                 |          The niche is sections 2 to 4. x and y fit into it, z does not: over section 3
//!      |#####|                 |#####     lie x, y and z. Cases: x at the niche's level, y at it, or a waste up to the
//!      |#####|                 |#####     least of z's low and what can lie under x or y.
//!      |#####|_________________|#####
//!         1     2     3     4     5
//! ```
//!
//! **What is known at once.** A section's floor rises to the least low of the rectangles over it: nothing will lie
//! below. Where a floor and the bytes that are still to come pass the capacity, the branch is dead. That, and not
//! running out of rectangles, is how nearly all branches end. A section remembers how often it ended one, and sections
//! with a record are branched on sooner ([`Choice::Failures`], known from constraint solving as *dom/wdeg*).
//!
//! **What is not done twice.** When no rectangle spans some boundary the parts beside it are solved one by one. States
//! that failed are kept in a table by a 128-bit hash of floors, tops and rectangles left, for this capacity; it
//! outlives restarts. Of equal rectangles with equal lifetimes only one is tried.

use std::ops::Range;

use types::Random;

use crate::instance::Work;

/// Bytes `0..size`, from an offset to be found, in the sections `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
}

impl Rect {
    /// The least offset from a level on.
    fn lift(&self, level: u64) -> u64 {
        // Most are of one grain, and to divide is slow.
        if self.alignment == 1 { level } else { level.next_multiple_of(self.alignment) }
    }

    fn sections(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

/// What a search says of its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// [`Search::offsets`] is a placement.
    Fits,
    /// No placement exists.
    DoesNotFit,
    /// Branches or work ran out.
    Stopped,
}

/// Which of the sections in niches is branched on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// That with the fewest cases; of equal ones that which ended most branches.
    Cases,
    /// That with the fewest cases for each branch that it ended.
    Failures,
}

/// What one run of a search may do, and its preferences.
pub(crate) struct Guide<'a> {
    pub(crate) choice: Choice,
    /// For each rectangle when it is tried: the lowest first.
    pub(crate) rank: &'a [u32],
    /// Branches before the run is stopped.
    pub(crate) branches: u64,
}

/// A capacity and what is known about placements within it.
pub(crate) struct Search<'a> {
    rects: &'a [Rect],
    capacity: u64,
    /// By section: what is decided below.
    floor: Vec<u64>,
    /// By section: the end of the highest rectangle that lies there.
    top: Vec<u64>,
    /// By section: bytes of rectangles that lie nowhere yet.
    left: Vec<u64>,
    /// By rectangle, what is looked at again and again while it lies nowhere.
    loose: Vec<Loose>,
    offsets: Vec<u64>,
    trail: Vec<Undo>,
    /// Rectangles of the components being solved, each in a range of its own.
    stack: Vec<u32>,
    /// By rectangle: its part in the hash of a state.
    keys: Vec<u128>,
    failed: Vec<u128>,
    /// By section: how many branches it ended, plus one.
    failures: Vec<u64>,
    scratch: Scratch,
}

/// A rectangle that lies nowhere yet.
#[derive(Clone, Copy)]
struct Loose {
    /// The least offset it can have.
    low: u64,
    size: u64,
    first: u32,
    end: u32,
}

impl Loose {
    fn new(rect: &Rect) -> Loose {
        Loose { low: rect.fixed.unwrap_or(0), size: rect.size, first: rect.first, end: rect.end }
    }

    fn covers(&self, section: usize) -> bool {
        self.first as usize <= section && section < self.end as usize
    }
}

/// What is computed anew at each look, by section.
struct Scratch {
    /// How many rectangles can lie at the level of a niche, as differences between neighbours.
    cases: Vec<i32>,
    /// How many rectangles span the boundary in front of a section, as differences between neighbours.
    spanning: Vec<i32>,
    /// The niche a section is in, as its end; 0 where in none.
    niche_end: Vec<u32>,
    /// The lower of the niche's walls.
    wall: Vec<u64>,
    /// At a niche's last section: the smallest rectangle in the niche.
    smallest: Vec<u64>,
    /// The least low of the rectangles over a section.
    least_low: Vec<u64>,
    /// The rectangles that can lie at the level of the section that is branched on.
    chosen: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Undo {
    Floor(u32, u64),
    Top(u32, u64),
    Low(u32, u64),
    Placed(u32),
}

/// A section to branch on, and the level that leaving it free would lift it to, if that can be.
struct Branch {
    section: usize,
    lift_to: Option<u64>,
    /// Whether no rectangle spans some boundary.
    is_split: bool,
}

/// What a look at a component says.
enum Look {
    Done(Answer),
    Branch(Branch),
}

const NONE: u64 = u64::MAX;
/// Failed states that are kept, at most, and for each rectangle.
const TABLE_MAX: usize = 1 << 15;
const TABLE_SHARE: usize = 256;

/// A number for each failure, in parts of 2^32.
fn ratio(n: u64, failures: u64) -> u64 {
    // Most sections ended no branch, and to divide is slow.
    if failures == 1 { n << 32 } else { (n << 32) / failures }
}

impl<'a> Search<'a> {
    pub(crate) fn new(rects: &'a [Rect], n_sections: usize, capacity: u64) -> Search<'a> {
        let mut left = vec![0; n_sections];
        rects.iter().for_each(|rect| left[rect.sections()].iter_mut().for_each(|left| *left += rect.size));
        let mut random = Random::new(7);
        Search {
            rects,
            capacity,
            floor: vec![0; n_sections],
            top: vec![0; n_sections],
            left,
            loose: rects.iter().map(Loose::new).collect(),
            offsets: vec![0; rects.len()],
            trail: Vec::new(),
            stack: Vec::new(),
            keys: rects.iter().map(|_| u128::from(random.bits()) << 64 | u128::from(random.bits())).collect(),
            failed: vec![0; (rects.len() * TABLE_SHARE).clamp(1, TABLE_MAX)],
            failures: vec![1; n_sections],
            scratch: Scratch {
                cases: vec![0; n_sections + 1],
                spanning: vec![0; n_sections + 1],
                niche_end: vec![0; n_sections],
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

    /// Searches from the start, with what earlier runs learned. Not after [`Answer::Fits`].
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

    /// Solves the rectangles `stack[items]`, the only ones in a span of sections. Unless they fit, the state afterwards
    /// is that before.
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

    /// Places whatever has no alternative, until there is a choice.
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
            self.find_niches(span.clone());
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

    fn find_niches(&mut self, span: Range<usize>) {
        let Scratch { cases, spanning, niche_end, wall, smallest, .. } = &mut self.scratch;
        cases[span.start..=span.end].fill(0);
        spanning[span.start..=span.end].fill(0);
        niche_end[span.clone()].fill(0);
        // Sections where nothing is to come are walls without end.
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
                niche_end[first..end].fill(end as u32);
                wall[first..end].fill(lower_wall);
                smallest[end - 1] = NONE;
            }
            (first, wall_before, here) = (end, here, next);
        }
    }

    /// For each section of a niche how many rectangles can lie at its level, and for each boundary how many span it.
    fn count_cases(&mut self, items: Range<usize>) {
        let Scratch { cases, spanning, niche_end, smallest, .. } = &mut self.scratch;
        for item in &self.stack[items] {
            let rect = self.loose[*item as usize];
            let (first, end) = (rect.first as usize, rect.end as usize);
            // The boundaries in front of sections first + 1 to end - 1.
            spanning[first + 1] += 1;
            spanning[end] -= 1;
            let niche_end = niche_end[first] as usize;
            if end <= niche_end {
                smallest[niche_end - 1] = smallest[niche_end - 1].min(rect.size);
                if rect.low == self.floor[first] {
                    cases[first] += 1;
                    cases[end] -= 1;
                }
            }
        }
    }

    /// The section to branch on, and whether no rectangle spans some boundary.
    fn choose(&self, span: Range<usize>, choice: Choice) -> (usize, bool) {
        let Scratch { cases, spanning, niche_end, wall, smallest, .. } = &self.scratch;
        let mut best = (u64::MAX, u64::MAX, span.start);
        let (mut n_rects, mut n_spanning, mut is_split) = (0, 0, false);
        for section in span.clone() {
            n_rects += cases[section];
            n_spanning += spanning[section];
            is_split |= n_spanning == 0 && section != span.start;
            let Some(last) = (niche_end[section] as usize).checked_sub(1) else { continue };
            let floor = self.floor[section];
            // A guess, since only the section chosen is looked at closely.
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
        // A rectangle that could lie on this level and does not lies on another one, which does not reach this section.
        for item in &self.stack[items] {
            let rect = self.loose[*item as usize];
            if rect.first < reach.1 && reach.0 < rect.end && !rect.covers(section) {
                lift_to = lift_to.min(rect.low + rect.size);
            }
        }
        (only, (lift_to <= highest).then_some(lift_to))
    }

    /// Solves the parts between boundaries that nothing spans, the smallest first.
    fn solve_parts(&mut self, items: Range<usize>, guide: &Guide, branches: &mut u64, work: &mut Work) -> Answer {
        let mut order: Vec<u32> = self.stack[items].to_vec();
        order.sort_unstable_by_key(|item| (self.rects[*item as usize].first, *item));
        // Which of them, and between which sections.
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

    /// A hash of what the future depends on.
    fn key(&self, items: Range<usize>, span: Range<usize>) -> u128 {
        const ODD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
        let rects = self.stack[items].iter().fold(0, |key, item| key ^ self.keys[*item as usize]);
        span.filter(|section| self.left[*section] != 0).fold(rects, |key, section| {
            let mixed = (key ^ u128::from(self.floor[section]) ^ u128::from(self.top[section]) << 64).wrapping_mul(ODD);
            mixed ^ mixed >> 61
        })
    }

    /// Lays a rectangle, which `stack[rest]` does not hold any more, at its low; false if that cannot lead anywhere.
    fn place(&mut self, item: u32, rest: Range<usize>, work: &mut Work) -> bool {
        let rect = self.rects[item as usize];
        let at = self.loose[item as usize].low;
        if rect.fixed.is_none() {
            let support = self.top[rect.sections()].iter().fold(0, |support, top| support.max(*top));
            if rect.lift(support) != at {
                // It could lie lower; that placement is found elsewhere.
                return false;
            }
        }
        self.offsets[item as usize] = at;
        self.trail.push(Undo::Placed(item));
        for section in rect.sections() {
            self.left[section] -= rect.size;
            self.trail.push(Undo::Top(section as u32, self.top[section]));
            self.top[section] = at + rect.size;
        }
        self.raise(rect.sections(), at + rect.size, rest, work)
    }

    /// Lifts floors to a level, and the lows of what lies over them; false if that cannot lead anywhere.
    fn raise(&mut self, sections: Range<usize>, level: u64, items: Range<usize>, work: &mut Work) -> bool {
        for section in sections.clone() {
            self.trail.push(Undo::Floor(section as u32, self.floor[section]));
            self.floor[section] = level;
        }
        let mut touched = sections.clone();
        for at in items.clone() {
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
            touched = touched.start.min(first)..touched.end.max(end);
        }
        self.settle(items, touched, work)
    }

    /// Lifts floors to the least low over them; false if a section then has too little room.
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
                    let rect = &self.rects[item as usize];
                    self.left[rect.sections()].iter_mut().for_each(|left| *left += rect.size);
                }
            }
        }
    }
}
