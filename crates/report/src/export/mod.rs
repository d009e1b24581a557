//! Exports: the report in the forms that other programs read. One form a file; each is a function of the [`Report`].
//!
//! Whatever shows the peak adds up to arena and constants, byte for byte; whatever shows lives has every buffer once.

mod collapsed;
pub(crate) mod mxnet;
mod pickle;
mod pprof;
mod snapshot;
pub(crate) mod tbd;
mod trace;
mod two_column;

pub use trace::StepTime;

use crate::Report;
use crate::view::Measure;

impl Report {
    /// MXNet's CSV with five columns: what is held at the peak.
    pub fn mxnet_csv(&self) -> String {
        mxnet::csv(self)
    }

    /// The older CSV of tag and MiB, without a header: what is held at the peak.
    pub fn two_column_csv(&self) -> String {
        two_column::csv(self)
    }

    /// The analysis that TBD's script writes: bytes and tags by keyword, at the peak.
    pub fn tbd_analysis(&self) -> String {
        tbd::analysis(self)
    }

    /// A snapshot for PyTorch's `memory_viz`, as JSON.
    pub fn snapshot_json(&self) -> String {
        snapshot::snapshot(self).to_string()
    }

    /// A snapshot for PyTorch's `memory_viz`, as a pickle of protocol 2.
    pub fn snapshot_pickle(&self) -> Vec<u8> {
        pickle::encode(&snapshot::snapshot(self))
    }

    /// A trace for Chrome and Perfetto: a counter for each role and a slice for each buffer's life. With the time of each
    /// step it is one of time and memory; without, a step lasts a millisecond.
    pub fn trace_json(&self, times: Option<&[StepTime]>) -> String {
        trace::trace(self, times)
    }

    /// Stacks of scopes with an amount each, as flame graph programs read them.
    pub fn collapsed(&self, measure: Measure) -> String {
        collapsed::collapsed(self, measure)
    }

    /// A gzipped profile for pprof, of bytes at the peak and of bytes times steps.
    pub fn pprof(&self) -> Vec<u8> {
        pprof::profile(self)
    }
}
