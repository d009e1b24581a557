//! [`Subject`]: the thing that is measured.

/// One run of the thing that is measured.
pub trait Subject: Send {
    /// Runs once, from inputs to outputs that are complete.
    ///
    /// # Errors
    /// The reason why the run failed, which ends the benchmark.
    fn run(&mut self) -> Result<(), String>;

    /// Samples of a run.
    fn batch(&self) -> u64 {
        1
    }
}

impl<F: FnMut() -> Result<(), String> + Send> Subject for F {
    fn run(&mut self) -> Result<(), String> {
        self()
    }
}
