//! Exports to the formats of other programs, one file per format; each is a function of the [`Report`].
//!
//! Formats that show the peak add up to arena and constants, byte for byte; formats that show live ranges contain each
//! buffer once.

mod collapsed;
pub(crate) mod mxnet;
mod pickle;
mod pprof;
mod snapshot;
pub(crate) mod tbd;
mod trace;
pub(crate) mod two_column;

pub use trace::StepTime;

use crate::Report;
use crate::view::Measure;

impl Report {
    /// MXNet's five-column CSV of the memory at the peak.
    pub fn mxnet_csv(&self) -> String {
        mxnet::csv(self)
    }

    /// The older CSV of tag and MiB, without a header, of the memory at the peak.
    pub fn two_column_csv(&self) -> String {
        two_column::csv(self)
    }

    /// The analysis of TBD's script: bytes and tags by keyword at the peak.
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

    /// A trace for Chrome and Perfetto: a counter per role and a slice per buffer. With `times` it shows steps as they
    /// ran; without, a step lasts a millisecond.
    pub fn trace_json(&self, times: Option<&[StepTime]>) -> String {
        trace::trace(self, times)
    }

    /// Stacks of scopes with an amount each, for flame graph programs.
    pub fn collapsed(&self, measure: Measure) -> String {
        collapsed::collapsed(self, measure)
    }

    /// A gzipped pprof profile of bytes at the peak and byte-steps.
    pub fn pprof(&self) -> Vec<u8> {
        pprof::profile(self)
    }
}
