//! [`LoadLimit`] and [`LoadBudget`]: bounds of memory and arithmetic for reading files that are not trusted.
//!
//! A file of a few bytes can describe tensors of any size. Readers take every allocation that scales with a file's
//! *contents*, and every evaluation of an operator on constants, from one budget before they start it.

use std::cell::{Cell, OnceCell};

use crate::Bytes;

/// The most memory and arithmetic that reading one model or file may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimit {
    /// Bytes of tensors, messages and intermediate results, counted until the model is loaded.
    pub memory: Bytes,
    /// Elements and arithmetic operations that are evaluated while loading.
    pub work: u64,
}

impl LoadLimit {
    /// No limit, for trusted files.
    pub const UNLIMITED: LoadLimit = LoadLimit { memory: Bytes(u64::MAX), work: u64::MAX };

    /// A limit of memory, with two operations for each byte.
    pub fn of(memory: Bytes) -> LoadLimit {
        LoadLimit { memory, work: memory.0.saturating_mul(2) }
    }
}

/// 4 GiB and two operations for each byte.
impl Default for LoadLimit {
    fn default() -> LoadLimit {
        LoadLimit::of(Bytes(4 << 30))
    }
}

/// Memory or work beyond a [`LoadLimit`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadLimitError {
    /// More memory than the limit.
    #[error("loading must take at most {limit} of memory (the load limit), got {taken} taken and {need} needed")]
    Memory {
        /// The limit.
        limit: Bytes,
        /// The bytes already taken.
        taken: Bytes,
        /// The bytes that do not fit.
        need: Bytes,
    },
    /// More arithmetic than the limit.
    #[error("loading must evaluate at most {limit} operations (the load limit), got {taken} done and {need} needed")]
    Work {
        /// The limit.
        limit: u64,
        /// The operations already done.
        taken: u64,
        /// The operations that do not fit.
        need: u64,
    },
}

/// The rest of a [`LoadLimit`] while a model is read. Nothing is given back: counted tensors stay until loading ends.
#[derive(Debug)]
pub struct LoadBudget {
    limit: LoadLimit,
    memory: Cell<u64>,
    work: Cell<u64>,
    exceeded: OnceCell<LoadLimitError>,
}

impl LoadBudget {
    /// The whole of a limit.
    pub fn new(limit: LoadLimit) -> LoadBudget {
        LoadBudget { limit, memory: Cell::new(limit.memory.0), work: Cell::new(limit.work), exceeded: OnceCell::new() }
    }

    /// The bytes left.
    pub fn memory_left(&self) -> Bytes {
        Bytes(self.memory.get())
    }

    /// The first need that was refused. A reader that finds one stops: results since then are incomplete.
    pub fn exceeded(&self) -> Option<&LoadLimitError> {
        self.exceeded.get()
    }

    /// Takes memory.
    ///
    /// # Errors
    /// If less is left.
    pub fn take(&self, need: Bytes) -> Result<(), LoadLimitError> {
        let left = self.memory.get();
        let taken = Bytes(self.limit.memory.0 - left);
        match left.checked_sub(need.0) {
            Some(left) => {
                self.memory.set(left);
                Ok(())
            }
            None => Err(self.refuse(LoadLimitError::Memory { limit: self.limit.memory, taken, need })),
        }
    }

    /// Takes arithmetic.
    ///
    /// # Errors
    /// If less is left.
    pub fn work(&self, need: u64) -> Result<(), LoadLimitError> {
        let left = self.work.get();
        let taken = self.limit.work - left;
        match left.checked_sub(need) {
            Some(left) => {
                self.work.set(left);
                Ok(())
            }
            None => Err(self.refuse(LoadLimitError::Work { limit: self.limit.work, taken, need })),
        }
    }

    fn refuse(&self, error: LoadLimitError) -> LoadLimitError {
        // Later refusals are consequences of the first.
        let _ = self.exceeded.set(error.clone());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_need_leaves_the_budget_unchanged() {
        let budget = LoadBudget::new(LoadLimit::of(Bytes(10)));
        assert_eq!(budget.take(Bytes(4)), Ok(()));
        let error = budget.take(Bytes(7)).unwrap_err();
        assert_eq!(error, LoadLimitError::Memory { limit: Bytes(10), taken: Bytes(4), need: Bytes(7) });
        assert_eq!(budget.memory_left(), Bytes(6));
        assert!(budget.work(20).is_ok() && budget.work(1).is_err());
        assert!(LoadBudget::new(LoadLimit::UNLIMITED).take(Bytes(u64::MAX)).is_ok());
    }
}
