//! [`ReportRequest`]: the views of a report to print and the files to write, from the flags of a command line. This module
//! does no I/O; its callers read and write the files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use types::Bytes;

use crate::view::{Depth, Fit, Groups, Measure, View, ViewOptions, WIDTH_MIN};
use crate::{Origin, Page, Report};

/// The largest file of groups.
pub const GROUPS_MAX: Bytes = Bytes(1 << 26);

/// The largest profile or report that is read.
pub const PROFILE_MAX: Bytes = Bytes(1 << 30);

/// A request for views and files of a report.
#[derive(Clone, Debug, Default)]
pub struct ReportRequest {
    /// The options of views; their groups come from the file below.
    pub options: ViewOptions,
    /// A file of groups.
    pub groups: Option<PathBuf>,
    /// The memory limit to compare with.
    pub fits: Option<Bytes>,
    /// The named views.
    pub views: Vec<View>,
    /// Formats and their files.
    pub files: Vec<(Form, PathBuf)>,
}

/// The formats of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The page.
    Html,
    /// A folder of SVG images.
    Svg,
    /// MXNet's CSV with five columns.
    Csv,
    /// The older CSV.
    TwoColumn,
    /// PyTorch's snapshot; a pickle if the file's name ends in `.pickle` or `.pkl`.
    Snapshot,
    /// A trace for Chrome and Perfetto.
    Trace,
    /// Collapsed stacks.
    Collapsed,
    /// A profile for pprof.
    Pprof,
    /// TBD's analysis.
    Tbd,
}

/// A flag of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The name without dashes.
    pub name: &'static str,
    /// The placeholder of the value.
    pub value: &'static str,
    /// The description.
    pub help: &'static str,
}

const fn flag(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, value, help }
}

const FORMS: [(&str, Form); 9] = [
    ("html", Form::Html),
    ("svg", Form::Svg),
    ("csv", Form::Csv),
    ("two-column", Form::TwoColumn),
    ("snapshot", Form::Snapshot),
    ("trace", Form::Trace),
    ("collapsed", Form::Collapsed),
    ("pprof", Form::Pprof),
    ("tbd", Form::Tbd),
];

/// The views that are printed by default.
const SCREEN: [View; 5] = [View::Headline, View::Bars, View::Top, View::Opportunities, View::Timeline];
/// Those of a training step.
const SCREEN_TRAINING: [View; 6] =
    [View::Headline, View::Bars, View::Top, View::Saved, View::Opportunities, View::Timeline];
/// Those of a plan that reads weights in every run.
const SCREEN_RESIDENT: [View; 6] =
    [View::Headline, View::Bars, View::Top, View::Resident, View::Opportunities, View::Timeline];
/// Those of an imported profile.
const SCREEN_IMPORTED: [View; 3] = [View::Headline, View::Bars, View::Top];

impl ReportRequest {
    /// Every flag, in the order of help texts. Each takes a value.
    pub const FLAGS: [Flag; 17] = [
        flag("fits", "BYTES", "exit with code 1 if the plan does not fit, as 8GiB"),
        flag(
            "view",
            "NAME[,NAME...]",
            "headline, bars, top, opportunities, saved, resident, timeline, map, flame, actual or all",
        ),
        flag("top", "K", "rows of tables (default 10)"),
        flag("depth", "N", "parts of a scope that make a layer (default: few layers)"),
        flag("groups", "FILE.toml", "categories by keywords instead of layers: [layer], [data_structure]"),
        flag("expected", "BYTES", "the total that another tool found, for comparison"),
        flag("by", "MEASURE", "measure of flame graphs: peak (default) or byte-steps"),
        flag("width", "N", "columns of the text, from 72 (default: those of the terminal, otherwise 80)"),
        flag("html", "FILE", "write the report as one page"),
        flag("svg", "DIR", "write bars, timeline, map and flame graph as pictures"),
        flag("csv", "FILE", "write MXNet's form with five columns"),
        flag("two-column", "FILE", "write MXNet's older form: tag,MiB"),
        flag("snapshot", "FILE", "write for PyTorch's memory_viz: JSON, or a pickle if FILE ends in .pickle"),
        flag("trace", "FILE.json", "write counters and lives for Chrome and Perfetto"),
        flag("collapsed", "FILE", "write collapsed stacks for flame graphs"),
        flag("pprof", "FILE", "write a profile for pprof"),
        flag("tbd", "FILE", "write TBD's analysis"),
    ];

    /// Whether a flag is in the table.
    pub fn takes(flag: &str) -> bool {
        ReportRequest::FLAGS.iter().any(|own| own.name == flag)
    }

    /// Sets a flag's value.
    ///
    /// # Errors
    /// The value is invalid for the flag.
    pub fn set(&mut self, flag: &str, value: OsString) -> Result<(), String> {
        if let Some((_, form)) = FORMS.iter().find(|(name, _)| *name == flag) {
            self.files.push((*form, value.into()));
            return Ok(());
        }
        if flag == "groups" {
            self.groups = Some(value.into());
            return Ok(());
        }
        let word = value.to_str().ok_or("expected text")?;
        let number = |least: usize| {
            let number = word.parse().ok().filter(|number| (least..=1_000_000).contains(number));
            number.ok_or_else(|| format!("expected a number from {least} to 1000000, got `{word}`"))
        };
        let bytes = || word.parse::<Bytes>().map_err(|error| error.to_string());
        match flag {
            "fits" => self.fits = Some(bytes()?),
            "expected" => self.options.expected = Some(bytes()?.0.min(i64::MAX as u64)),
            "top" => self.options.rows = number(1)?,
            "depth" => self.options.depth = Depth::Parts(number(1)?),
            "width" => self.options.width = number(WIDTH_MIN)?,
            "by" => {
                let measure = Measure::named(word);
                self.options.measure = measure.ok_or_else(|| format!("expected peak or byte-steps, got `{word}`"))?;
            }
            _ => self.views = View::list(word)?,
        }
        Ok(())
    }

    /// Takes the groups from their file's text.
    ///
    /// # Errors
    /// The text is invalid; the error names the file.
    pub fn set_groups(&mut self, path: &Path, text: &str) -> Result<(), String> {
        let groups = Groups::parse(text).map_err(|error| format!("`{}`: {error}", path.display()))?;
        self.options.groups = Some(groups);
        Ok(())
    }

    /// The comparison with the memory limit, if a limit is given.
    pub fn fit(&self, report: &Report) -> Option<Fit> {
        self.fits.map(|capacity| Fit::new(report, capacity.0))
    }

    /// The text to print: the named views; by default the usual ones, or the headline alone if files are requested.
    pub fn text(&self, report: &Report) -> String {
        let fit = self.fit(report);
        let views = match (&self.views[..], self.files.is_empty() && fit.is_none()) {
            ([], true) if report.origin != Origin::Plan => &SCREEN_IMPORTED[..],
            ([], true) if !report.planned.saved.is_empty() => &SCREEN_TRAINING[..],
            ([], true) if report.planned.resident.is_some() => &SCREEN_RESIDENT[..],
            ([], true) => &SCREEN[..],
            ([], false) => &[View::Headline],
            (views, _) => views,
        };
        let texts = views.iter().map(|view| report.text(*view, &self.options));
        texts.chain(fit.map(|fit| fit.text())).collect()
    }

    /// The report as JSON, with the comparison with the memory limit if one is given.
    pub fn json(&self, report: &Report) -> serde_json::Value {
        let mut value = serde_json::to_value(report).expect("a report has no maps with other keys than strings");
        if let Some(fit) = self.fit(report) {
            value["fit"] = serde_json::json!({
                "fits": fit.fits(),
                "need_bytes": fit.need_bytes,
                "capacity_bytes": fit.capacity_bytes,
            });
        }
        value
    }

    /// The requested files. `page` is the report's page.
    pub fn files(&self, page: &Page) -> Vec<(PathBuf, Vec<u8>)> {
        self.files.iter().flat_map(|(form, path)| self.file(page, *form, path)).collect()
    }

    fn file(&self, page: &Page, form: Form, path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let report = page.report;
        let is_pickle = path.extension().is_some_and(|extension| extension == "pickle" || extension == "pkl");
        let bytes = match form {
            Form::Html => page.html().into_bytes(),
            Form::Svg => {
                let picture = |view: View| {
                    let text = report.svg(view, &self.options)?;
                    Some((path.join(format!("{}.svg", view.name())), text.into_bytes()))
                };
                return View::ALL.into_iter().filter_map(picture).collect();
            }
            Form::Csv => report.mxnet_csv().into_bytes(),
            Form::TwoColumn => report.two_column_csv().into_bytes(),
            Form::Snapshot if is_pickle => report.snapshot_pickle(),
            Form::Snapshot => report.snapshot_json().into_bytes(),
            Form::Trace => report.trace_json(None).into_bytes(),
            Form::Collapsed => report.collapsed(self.options.measure).into_bytes(),
            Form::Pprof => report.pprof(),
            Form::Tbd => report.tbd_analysis().into_bytes(),
        };
        vec![(path.to_path_buf(), bytes)]
    }
}
