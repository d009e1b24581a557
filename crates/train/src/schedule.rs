//! [`Schedule`]: the learning rate of each step.
//!
//! A schedule is a factor of the base rate. It depends on the step's number and on nothing else, so that a resumed run has the
//! same rates. The rate is an input of the plan: no schedule needs a compiler.

use std::fmt;
use std::str::FromStr;

/// The factor of the learning rate by step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Schedule {
    /// 1 at every step: `constant`.
    #[default]
    Constant,
    /// `factor` after each `every` steps or epochs: `step:every=30e,factor=0.1`.
    Step {
        /// The distance of two drops.
        every: Period,
        /// The factor of one drop.
        factor: f64,
    },
    /// Half a cosine from 1 to `end` over the whole run, behind a linear warm-up: `cosine:end=0.01,warmup=500`
    /// (Loshchilov and Hutter 2017, without restarts).
    Cosine {
        /// The factor at the end.
        end: f64,
        /// The length of the warm-up.
        warmup: Period,
    },
    /// Linear from 0 to 1 over `steps`, then linear to `end` at the end of the run: `linear-warmup:steps=500,end=0`.
    LinearWarmup {
        /// The length of the warm-up.
        steps: Period,
        /// The factor at the end; 1 keeps the rate.
        end: f64,
    },
}

/// A number of steps or epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    count: u64,
    /// `30e`: the count is of epochs.
    in_epochs: bool,
}

/// The length of a run, which schedules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// All steps of the run.
    pub steps: u64,
    /// The steps of one epoch.
    pub steps_per_epoch: u64,
}

impl Period {
    fn steps(self, length: Length) -> u64 {
        if self.in_epochs { self.count * length.steps_per_epoch } else { self.count }
    }
}

impl Schedule {
    /// The factor of the base rate at a step, which counts from 0.
    pub fn factor(&self, step: u64, length: Length) -> f64 {
        match *self {
            Schedule::Constant => 1.0,
            Schedule::Step { every, factor } => {
                let drops = step / every.steps(length).max(1);
                factor.powi(i32::try_from(drops).unwrap_or(i32::MAX))
            }
            Schedule::Cosine { end, warmup } => match Schedule::progress(step, warmup.steps(length), length.steps) {
                Progress::WarmUp(done) => done,
                Progress::Rest(done) => end + (1.0 - end) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            },
            Schedule::LinearWarmup { steps, end } => {
                match Schedule::progress(step, steps.steps(length), length.steps) {
                    Progress::WarmUp(done) => done,
                    Progress::Rest(done) => 1.0 + (end - 1.0) * done,
                }
            }
        }
    }

    /// Whether the factors depend on the length of the whole run.
    pub fn depends_on_length(&self) -> bool {
        match self {
            Schedule::Constant | Schedule::Step { .. } => false,
            Schedule::LinearWarmup { end, .. } => *end != 1.0,
            Schedule::Cosine { .. } => true,
        }
    }

    fn progress(step: u64, warmup: u64, steps: u64) -> Progress {
        if step < warmup {
            // The first step has a rate above 0.
            return Progress::WarmUp((step + 1) as f64 / warmup as f64);
        }
        let rest = steps.saturating_sub(warmup).max(1);
        Progress::Rest(((step - warmup) as f64 / rest as f64).min(1.0))
    }
}

/// The part of a run that a step is in, with the share of it that is done.
enum Progress {
    WarmUp(f64),
    Rest(f64),
}

/// The form that [`Schedule::from_str`] reads.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant => f.write_str("constant"),
            Schedule::Step { every, factor } => write!(f, "step:every={every},factor={factor}"),
            Schedule::Cosine { end, warmup } => write!(f, "cosine:end={end},warmup={warmup}"),
            Schedule::LinearWarmup { steps, end } => write!(f, "linear-warmup:steps={steps},end={end}"),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.in_epochs { "e" } else { "" })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Schedule, String> {
        let (kind, options) = text.split_once(':').unwrap_or((text, ""));
        let options = Options::new(options)?;
        match kind {
            "constant" => options.only(&[]).map(|()| Schedule::Constant),
            "step" => {
                options.only(&["every", "factor"])?;
                let every: Period = options.get("every", "30e")?;
                if every.count == 0 {
                    return Err("`every` must be >= 1, got 0".into());
                }
                Ok(Schedule::Step { every, factor: options.factor("factor", "0.1")? })
            }
            "cosine" => {
                options.only(&["end", "warmup"])?;
                Ok(Schedule::Cosine { end: options.factor("end", "0")?, warmup: options.get("warmup", "0")? })
            }
            "linear-warmup" => {
                options.only(&["steps", "end"])?;
                Ok(Schedule::LinearWarmup { steps: options.get("steps", "500")?, end: options.factor("end", "1")? })
            }
            other => Err(format!("must be constant, step, cosine or linear-warmup, got `{other}`")),
        }
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Period, String> {
        let (digits, in_epochs) = text.strip_suffix('e').map_or((text, false), |digits| (digits, true));
        let count = digits.parse().ok().filter(|&count: &u64| count <= u64::from(u32::MAX));
        let count = count.ok_or_else(|| format!("must be a number of steps, or of epochs as `30e`, got `{text}`"))?;
        Ok(Period { count, in_epochs })
    }
}

/// `key=value` pairs behind a name.
struct Options<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Options<'a> {
    fn new(text: &'a str) -> Result<Options<'a>, String> {
        let pair = |part: &'a str| part.split_once('=').ok_or_else(|| format!("`{part}` must be KEY=VALUE"));
        text.split(',').filter(|part| !part.is_empty()).map(pair).collect::<Result<_, _>>().map(Options)
    }

    fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.0.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, _)) if known.is_empty() => Err(format!("a constant schedule has no option, got `{key}`")),
            Some((key, _)) => Err(format!("options must be {}, got `{key}`", known.join(", "))),
            None => Ok(()),
        }
    }

    fn get<T: FromStr<Err = String>>(&self, key: &str, default: &'a str) -> Result<T, String> {
        let text = self.0.iter().rev().find(|(own, _)| *own == key).map_or(default, |(_, text)| text);
        text.parse().map_err(|error| format!("`{key}` {error}"))
    }

    fn factor(&self, key: &str, default: &'a str) -> Result<f64, String> {
        let text = self.0.iter().rev().find(|(own, _)| *own == key).map_or(default, |(_, text)| text);
        let factor = text.parse().ok().filter(|factor| (0.0..=1e6).contains(factor));
        factor.ok_or_else(|| format!("`{key}` must be a number >= 0, got `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Length = Length { steps: 100, steps_per_epoch: 10 };

    #[track_caller]
    fn check(text: &str, expected: &[(u64, f64)]) {
        let schedule: Schedule = text.parse().unwrap();
        assert_eq!(schedule.to_string().parse(), Ok(schedule), "the printed form is read back");
        for &(step, factor) in expected {
            let got = schedule.factor(step, LENGTH);
            assert!((got - factor).abs() < 1e-12, "{text}, step {step}: {got} instead of {factor}");
        }
    }

    #[test]
    fn factors_follow_their_formulas() {
        check("constant", &[(0, 1.0), (99, 1.0)]);
        check("step:every=20,factor=0.5", &[(19, 1.0), (20, 0.5), (40, 0.25)]);
        check("step:every=3e,factor=0.1", &[(29, 1.0), (30, 0.1)]);
        check("cosine", &[(0, 1.0), (50, 0.5), (100, 0.0)]);
        check("cosine:end=0.2,warmup=1e", &[(0, 0.1), (9, 1.0), (10, 1.0), (55, 0.6), (100, 0.2)]);
        check("linear-warmup:steps=4", &[(0, 0.25), (3, 1.0), (4, 1.0), (99, 1.0)]);
        check("linear-warmup:steps=0,end=0", &[(0, 1.0), (75, 0.25)]);
    }

    #[test]
    fn invalid_schedule_is_refused_with_the_requirement() {
        let error = |text: &str| text.parse::<Schedule>().unwrap_err();
        assert_eq!(error("exp"), "must be constant, step, cosine or linear-warmup, got `exp`");
        assert_eq!(error("step:each=3"), "options must be every, factor, got `each`");
        assert_eq!(error("step:every=0"), "`every` must be >= 1, got 0");
        assert_eq!(error("cosine:end=-1"), "`end` must be a number >= 0, got `-1`");
        assert_eq!(error("linear-warmup:steps=x"), "`steps` must be a number of steps, or of epochs as `30e`, got `x`");
    }
}
