//! Tests of the state machine in every state, and of a daemon in this process with real sockets.

mod bounds;
mod daemon;
mod devices;
mod model_check;
mod pool;
mod rules;
mod sharing;
mod support;
