//! The runner: the program of every compiled executable. Its own file contains the plan and the weights.
//!
//! Exit codes: 0 done; 1 the answer is no (plan and actual differ, or a limit is exceeded); 2 invalid usage or input.

mod arguments;
mod bandwidth;
mod commands;
mod inputs;
mod memory;
mod say;
mod train;
mod weights;

use std::process::ExitCode;

use runtime::heap::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    heap::exit_if_exhausted();
    files::fail_above_size_limit();
    files::protect_inputs();
    let outcome = arguments::parse(lexopt::Parser::from_env()).and_then(commands::execute);
    match outcome {
        Ok(commands::Answer::Yes) => ExitCode::SUCCESS,
        Ok(commands::Answer::No) => ExitCode::from(1),
        Err(error) => {
            say::error(&error);
            ExitCode::from(2)
        }
    }
}
