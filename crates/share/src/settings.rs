//! The environment variables of UPR, with their names and defaults. Unset and empty mean the default; a value that is not
//! understood is an error at start.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use crate::core::{EvictionPolicy, Granularity, POLICIES};

/// Every variable: name, default, effect.
pub const VARIABLES: [(&str, &str, &str); 28] = [
    ("UPR_ENABLED", "true", "whether executables use a daemon; false: each loads its own weights"),
    ("UPR_PROFILE_IO", "true", "with UPR_ENABLED=false: the trace has a span `read_params` for the read of the file"),
    ("UPR_RUN_ID", "[undefined]", "`run_id` of the trace"),
    ("UPR_GIT_SHA", "version of the program", "`git.commit` of the trace; also accepted as `git`"),
    ("UPR_GIT_BRANCH", "[undefined]", "`git.branch` of the trace"),
    ("UPR_GIT_TIME", "[undefined]", "`git.date` of the trace; also accepted as UPR_GIT_DATE"),
    ("UPR_CLIENT", "false", "executables write a trace also if UPR_PROFILE_TARGET is unset"),
    ("UPR_BASE_DIR", "$HOME/carml/data/mxnet", "folder of models that `uprd` finds by name; a final slash is optional"),
    ("UPR_MODEL_NAME", "bvlc_alexnet_1.0", "model that `uprd preload` and `uprd attach` take if none is given"),
    ("UPR_PROFILE_TARGET", "profile.json", "file of the trace"),
    ("UPR_INITIALIZE_EAGER", "false", "the trace of an executable starts after its initialization"),
    ("UPR_INITIALIZE_EAGER_ASYNC", "false", "an executable connects to the daemon while it decodes its plan"),
    ("UPR_INPUT_CHANNELS", "3", "channels of the input; must be those of the plan"),
    ("UPR_INPUT_WIDTH", "224", "width of the input; must be that of the plan"),
    ("UPR_INPUT_HEIGHT", "224", "height of the input; must be that of the plan"),
    ("UPR_INPUT_MEAN_R", "0", "subtracted from red pixels (0 to 255); unset: the plan's mean"),
    ("UPR_INPUT_MEAN_G", "0", "subtracted from green pixels"),
    ("UPR_INPUT_MEAN_B", "0", "subtracted from blue pixels"),
    ("UPR_ENABLE_MEMORY_PROFILE", "false", "the trace has a span for every mapping of weights"),
    ("UPR_ENABLE_CUDA_FREE", "false", "an executable unmaps weights and arena before it ends; false: its exit does"),
    ("UPR_SHARING_GRANULARITY", "model", "`model` or `layer`"),
    ("UPRD_EVICTION_POLICY", "lru", "lru, fifo, lcu, never, flush (or all), eager, lfu, size-aware, random; any case"),
    ("UPRD_ESTIMATION_RATE", "1.0", "factor on a model's bytes before it is loaded"),
    (
        "UPRD_MEMORY_PERCENTAGE",
        "0.8",
        "budget as a fraction (not a percentage) of the memory of the machine or cgroup, and of each device",
    ),
    ("UPRD_PERSIST_CPU", "true", "keep the host's copy of models that a device has"),
    ("UPRD_PERSIST_ONLY_CPU", "false", "drop a device's copy with its last lease"),
    ("UPRD_WRITE_PROFILE", "false", "the daemon writes a trace when it ends"),
    ("UPRD_ESTIMATE_WITH_INTERNAL_MEMORY", "true", "the estimate includes the arena of the plan that is loaded for"),
];

/// Reason why a variable is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be {want}, got `{got}`")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// The values that are accepted.
    pub want: String,
    /// Its value.
    pub got: String,
}

/// Reads variables through `lookup`.
struct Source<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Source<'_> {
    fn raw(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &'static str) -> Option<String> {
        self.raw(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn flag(&self, name: &'static str, default: bool) -> Result<bool, SettingError> {
        let Some(got) = self.text(name) else { return Ok(default) };
        match &*got.to_ascii_lowercase() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(SettingError { name, want: "true, false, 1 or 0".into(), got }),
        }
    }

    fn number<T: FromStr>(&self, name: &'static str, want: &str) -> Result<Option<T>, SettingError> {
        let Some(got) = self.text(name) else { return Ok(None) };
        got.parse().map(Some).map_err(|_| SettingError { name, want: want.into(), got })
    }
}

/// The variables of an executable.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// Whether a daemon is used.
    pub enabled: bool,
    /// Whether the private read has a span.
    pub profile_io: bool,
    /// For the trace.
    pub run_id: String,
    /// For the trace: `USER` or `LOGNAME`, else the number of the user.
    pub user_name: String,
    /// For the trace.
    pub git_commit: String,
    /// For the trace.
    pub git_branch: String,
    /// For the trace.
    pub git_date: String,
    /// Whether the process is a client: it writes a trace.
    pub is_client: bool,
    /// Folder of models.
    pub base_dir: PathBuf,
    /// A model's name.
    pub model_name: String,
    /// The trace's file, if one is written.
    pub profile_target: Option<PathBuf>,
    /// Whether the trace starts after initialization.
    pub eager: bool,
    /// Whether the connection is made in a thread.
    pub eager_async: bool,
    /// Channels, height and width, each if set.
    pub input: [Option<usize>; 3],
    /// Means of red, green and blue, each if set.
    pub mean: [Option<f32>; 3],
    /// Whether mappings have spans.
    pub memory_profile: bool,
    /// Whether memory is released before the exit.
    pub free: bool,
    /// The granularity.
    pub granularity: Granularity,
    /// The daemon's sockets, in the order in which they are tried; the first that exists is used.
    pub sockets: Vec<PathBuf>,
    /// Whether `UPRD_SOCKET` names the socket; then its daemon may be of any user.
    pub socket_is_explicit: bool,
}

impl ClientSettings {
    /// Reads the variables; `version` is the git commit if none is given.
    ///
    /// # Errors
    /// The first value that is not understood.
    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>, version: &str) -> Result<ClientSettings, SettingError> {
        let from = Source(lookup);
        let undefined = || "[undefined]".to_string();
        let user_number = || rustix::process::getuid().as_raw().to_string();
        let is_client = from.flag("UPR_CLIENT", false)?;
        let target = from.raw("UPR_PROFILE_TARGET").map(PathBuf::from);
        let granularity = match from.text("UPR_SHARING_GRANULARITY") {
            None => Granularity::Model,
            Some(got) => match &*got.to_ascii_lowercase() {
                "model" => Granularity::Model,
                "layer" => Granularity::Layer,
                _ => {
                    return Err(SettingError {
                        name: "UPR_SHARING_GRANULARITY",
                        want: "`model` or `layer`".into(),
                        got,
                    });
                }
            },
        };
        let extent = |name| from.number::<usize>(name, "a number");
        let mean = |name| from.number::<f32>(name, "a number");
        let date =
            from.text("UPR_GIT_TIME").or_else(|| from.text("UPR_GIT_DATE")).or_else(|| from.text("UPR_GIT_Date"));
        Ok(ClientSettings {
            enabled: from.flag("UPR_ENABLED", true)?,
            profile_io: from.flag("UPR_PROFILE_IO", true)?,
            run_id: from.text("UPR_RUN_ID").unwrap_or_else(undefined),
            user_name: from.text("USER").or_else(|| from.text("LOGNAME")).unwrap_or_else(user_number),
            git_commit: from.text("UPR_GIT_SHA").or_else(|| from.text("git")).unwrap_or_else(|| version.to_string()),
            git_branch: from.text("UPR_GIT_BRANCH").unwrap_or_else(undefined),
            git_date: date.unwrap_or_else(undefined),
            is_client,
            base_dir: base_dir(&from),
            model_name: from.text("UPR_MODEL_NAME").unwrap_or_else(|| "bvlc_alexnet_1.0".into()),
            profile_target: target.or_else(|| is_client.then(|| "profile.json".into())),
            eager: from.flag("UPR_INITIALIZE_EAGER", false)?,
            eager_async: from.flag("UPR_INITIALIZE_EAGER_ASYNC", false)?,
            input: [extent("UPR_INPUT_CHANNELS")?, extent("UPR_INPUT_HEIGHT")?, extent("UPR_INPUT_WIDTH")?],
            mean: [mean("UPR_INPUT_MEAN_R")?, mean("UPR_INPUT_MEAN_G")?, mean("UPR_INPUT_MEAN_B")?],
            memory_profile: from.flag("UPR_ENABLE_MEMORY_PROFILE", false)?,
            free: from.flag("UPR_ENABLE_CUDA_FREE", false)?,
            granularity,
            sockets: sockets(&from),
            socket_is_explicit: from.raw("UPRD_SOCKET").is_some(),
        })
    }

    /// The socket to connect to: the first that exists, or that this user may not look for.
    pub fn socket(&self) -> Option<&PathBuf> {
        self.sockets.iter().find(|path| path.try_exists().unwrap_or(true))
    }
}

fn base_dir(from: &Source) -> PathBuf {
    let home = || PathBuf::from((from.0)("HOME").unwrap_or_else(|| "/".into())).join("carml/data/mxnet");
    from.raw("UPR_BASE_DIR").map_or_else(home, PathBuf::from)
}

/// `UPRD_SOCKET`, or the places of a user's daemon and of the system's.
fn sockets(from: &Source) -> Vec<PathBuf> {
    if let Some(path) = from.raw("UPRD_SOCKET") {
        return vec![path.into()];
    }
    let own = from.raw("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("uprd/uprd.sock"));
    own.into_iter().chain([PathBuf::from("/run/uprd/uprd.sock")]).collect()
}

/// The variables of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonSettings {
    /// The policy.
    pub policy: EvictionPolicy,
    /// Factor on a model's bytes.
    pub estimation_rate: f64,
    /// Fraction of the memory.
    pub memory_fraction: f64,
    /// Whether host copies of device models are kept.
    pub persist_cpu: bool,
    /// Whether device copies are dropped when idle.
    pub persist_only_cpu: bool,
    /// Whether a trace is written.
    pub write_profile: bool,
    /// Whether estimates include the client's arena.
    pub with_internal: bool,
    /// The trace's file.
    pub profile_target: PathBuf,
    /// Folder of models.
    pub base_dir: PathBuf,
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// The other variables, for the trace.
    pub client: ClientSettings,
}

impl DaemonSettings {
    /// Reads the variables. `is_root` selects the place of the socket.
    ///
    /// # Errors
    /// The first value that is not understood.
    pub fn read(
        lookup: &dyn Fn(&str) -> Option<OsString>,
        version: &str,
        is_root: bool,
    ) -> Result<DaemonSettings, SettingError> {
        let from = Source(lookup);
        let client = ClientSettings::read(lookup, version)?;
        let policy = from.text("UPRD_EVICTION_POLICY").map_or(Ok(EvictionPolicy::Lru), |got| policy(&got))?;
        let rate = from.number("UPRD_ESTIMATION_RATE", "a number > 0")?.unwrap_or(1.0);
        let fraction = from.number("UPRD_MEMORY_PERCENTAGE", "a fraction > 0 and <= 1")?.unwrap_or(0.8);
        let refuse = |name, want: &str, got: f64| Err(SettingError { name, want: want.into(), got: got.to_string() });
        if !(rate > 0.0 && rate < 1e6) {
            return refuse("UPRD_ESTIMATION_RATE", "a number > 0", rate);
        }
        if !(fraction > 0.0 && fraction <= 1.0) {
            return refuse("UPRD_MEMORY_PERCENTAGE", "a fraction > 0 and <= 1 (0.8 is 80 %)", fraction);
        }
        let socket = match client.sockets.len() {
            2 if is_root => client.sockets[1].clone(),
            _ => client.sockets[0].clone(),
        };
        Ok(DaemonSettings {
            policy,
            estimation_rate: rate,
            memory_fraction: fraction,
            persist_cpu: from.flag("UPRD_PERSIST_CPU", true)?,
            persist_only_cpu: from.flag("UPRD_PERSIST_ONLY_CPU", false)?,
            write_profile: from.flag("UPRD_WRITE_PROFILE", false)?,
            with_internal: from.flag("UPRD_ESTIMATE_WITH_INTERNAL_MEMORY", true)?,
            profile_target: from.raw("UPR_PROFILE_TARGET").map_or_else(|| "server_profile.json".into(), PathBuf::from),
            base_dir: client.base_dir.clone(),
            socket,
            client,
        })
    }
}

/// The policy of a word in any case.
///
/// # Errors
/// A word that is not in [`POLICIES`].
pub fn policy(word: &str) -> Result<EvictionPolicy, SettingError> {
    let lower = word.to_ascii_lowercase();
    let words = || POLICIES.map(|(name, _)| name).join(", ");
    let found = POLICIES.iter().find(|(name, _)| *name == lower).map(|(_, policy)| *policy);
    found.ok_or_else(|| SettingError {
        name: "UPRD_EVICTION_POLICY",
        want: format!("one of {}", words()),
        got: word.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(pairs: &[(&str, &str)]) -> Result<DaemonSettings, SettingError> {
        let lookup = |name: &str| pairs.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
        DaemonSettings::read(&lookup, "v", false)
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let settings = daemon(&[("HOME", "/home/u"), ("UPRD_EVICTION_POLICY", "")]).expect("defaults are valid");
        assert_eq!(
            (settings.policy, settings.estimation_rate, settings.memory_fraction),
            (EvictionPolicy::Lru, 1.0, 0.8)
        );
        assert!(
            settings.persist_cpu && settings.with_internal && !settings.persist_only_cpu && !settings.write_profile
        );
        let client = settings.client;
        assert!(client.enabled && client.profile_io && !client.is_client && !client.eager && !client.free);
        assert_eq!(client.base_dir, PathBuf::from("/home/u/carml/data/mxnet"));
        assert_eq!((client.model_name.as_str(), client.granularity), ("bvlc_alexnet_1.0", Granularity::Model));
        assert_eq!(client.sockets, [PathBuf::from("/run/uprd/uprd.sock")]);
    }

    #[test]
    fn both_cases_and_spellings_are_accepted() {
        for word in ["LRU", "lru", "Lru"] {
            assert_eq!(daemon(&[("UPRD_EVICTION_POLICY", word)]).map(|own| own.policy), Ok(EvictionPolicy::Lru));
        }
        for (name, policy) in POLICIES {
            assert_eq!(daemon(&[("UPRD_EVICTION_POLICY", name)]).map(|own| own.policy), Ok(policy));
        }
        for name in ["UPR_GIT_TIME", "UPR_GIT_DATE", "UPR_GIT_Date"] {
            assert_eq!(daemon(&[(name, "today")]).map(|own| own.client.git_date), Ok("today".into()));
        }
        for (word, value) in [("TRUE", true), ("0", false), ("False", false), ("1", true)] {
            assert_eq!(daemon(&[("UPR_ENABLED", word)]).map(|own| own.client.enabled), Ok(value));
        }
        assert_eq!(
            daemon(&[("UPR_SHARING_GRANULARITY", "Layer")]).map(|own| own.client.granularity),
            Ok(Granularity::Layer)
        );
        let name = |dir: &str| daemon(&[("UPR_BASE_DIR", dir)]).map(|own| own.base_dir.join("m"));
        assert_eq!(name("/models"), name("/models/"));
    }

    #[test]
    fn values_that_are_not_understood_are_errors_at_start() {
        let error = |pairs: &[(&str, &str)]| daemon(pairs).expect_err("it is invalid").to_string();
        assert_eq!(
            error(&[("UPRD_MEMORY_PERCENTAGE", "80")]),
            "UPRD_MEMORY_PERCENTAGE must be a fraction > 0 and <= 1 (0.8 is 80 %), got `80`"
        );
        assert!(error(&[("UPRD_EVICTION_POLICY", "mru")]).ends_with("size-aware, random, got `mru`"));
        assert_eq!(error(&[("UPR_ENABLED", "yes")]), "UPR_ENABLED must be true, false, 1 or 0, got `yes`");
        assert!(error(&[("UPRD_ESTIMATION_RATE", "-1")]).starts_with("UPRD_ESTIMATION_RATE must be a number > 0"));
    }
}
