//! pprof: a gzipped protocol buffer, message `perftools.profiles.Profile` of google/pprof's `profile.proto`.

use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::Report;
use crate::view::{Measure, stacks};

/// A sample per stack of scopes, with its bytes at the peak and its byte-steps.
pub(crate) fn profile(report: &Report) -> Vec<u8> {
    let mut strings = Strings::default();
    strings.ix("");
    let mut samples: BTreeMap<Vec<String>, [i64; 2]> = BTreeMap::new();
    for (which, measure) in [Measure::PeakBytes, Measure::ByteSteps].into_iter().enumerate() {
        for (path, amount) in stacks(report, measure) {
            samples.entry(path).or_default()[which] = i64::try_from(amount).unwrap_or(i64::MAX);
        }
    }
    let mut profile = Message::default();
    for (kind, unit) in [("peak", "bytes"), ("held", "byte-steps")] {
        let mut value_type = Message::default();
        value_type.number(1, strings.ix(kind));
        value_type.number(2, strings.ix(unit));
        profile.message(1, &value_type);
    }
    // Functions and locations correspond one to one: a frame has only a name.
    let mut frames = Strings::default();
    for (path, values) in &samples {
        let mut sample = Message::default();
        // Viewers merge frames by name, so a scope's frame has its whole path: `0` of two layers are two frames. The leaf
        // is the role, whose bytes are to be merged.
        let scopes = (1..path.len()).map(|depth| path[..depth].join("/"));
        let names: Vec<String> = scopes.chain(path.last().cloned()).collect();
        sample.packed(1, names.iter().rev().map(|frame| frames.ix(frame) + 1));
        sample.packed(2, values.iter().map(|value| *value as u64));
        if let Some(role) = path.last() {
            let mut label = Message::default();
            label.number(1, strings.ix("role"));
            label.number(2, strings.ix(role));
            sample.message(3, &label);
        }
        profile.message(2, &sample);
    }
    for (ix, name) in frames.list.iter().enumerate() {
        let id = ix as u64 + 1;
        let (mut line, mut location, mut function) = (Message::default(), Message::default(), Message::default());
        line.number(1, id);
        location.number(1, id);
        location.message(4, &line);
        profile.message(4, &location);
        let name = strings.ix(name);
        function.number(1, id);
        function.number(2, name);
        function.number(3, name);
        profile.message(5, &function);
    }
    let comment = strings.ix(&format!("{} for {}, batch {}", report.model, report.target, report.batch));
    let default = strings.ix("peak");
    strings.list.iter().for_each(|text| profile.bytes(6, text.as_bytes()));
    profile.number(13, comment);
    profile.number(14, default);

    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    let written = gzip.write_all(&profile.0).and_then(|()| gzip.finish());
    written.expect("memory is writable")
}

/// Strings, each stored once.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    at: BTreeMap<String, u64>,
}

impl Strings {
    fn ix(&mut self, text: &str) -> u64 {
        if let Some(&ix) = self.at.get(text) {
            return ix;
        }
        let ix = self.list.len() as u64;
        self.list.push(text.to_string());
        self.at.insert(text.to_string(), ix);
        ix
    }
}

/// A protocol buffer message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while 0x80 <= value {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: impl Iterator<Item = u64>) {
        let mut inner = Message::default();
        values.for_each(|value| inner.varint(value));
        self.message(field, &inner);
    }
}
