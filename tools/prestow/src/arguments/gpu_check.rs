//! The words of `gpu-check`.

use std::path::PathBuf;

use compiler::source::Request;
use cuda::Math;
use lexopt::prelude::*;

use super::{
    Command, Libraries, Numbers, TUNE_SECONDS, Tune, number, parse_batches, parse_dtypes, parse_seconds, text_value,
};
use crate::gpu_check::PEERS;

/// Operators and networks to check on a GPU.
pub(crate) struct GpuCheck {
    pub(crate) device: usize,
    /// Whether networks are checked.
    pub(crate) networks: bool,
    /// None: all that have a name.
    pub(crate) models: Vec<String>,
    /// None where operators are not checked; else texts of which their cases have one in their names, none for all cases.
    pub(crate) operators: Option<Vec<String>>,
    /// None: 1, and 64 for networks that are compared with other runtimes.
    pub(crate) batches: Option<Vec<usize>>,
    pub(crate) iters: usize,
    /// Distinct ones.
    pub(crate) dtypes: Vec<Numbers>,
    pub(crate) libraries: Libraries,
    pub(crate) data: PathBuf,
    pub(crate) output: Option<PathBuf>,
    pub(crate) json: bool,
    /// The Python that may have other runtimes; none: the environment's.
    pub(crate) python: Option<PathBuf>,
    /// Those that are run beside ours.
    pub(crate) peers: Vec<String>,
    /// How long one of them may take to load a network.
    pub(crate) peer_seconds: u64,
    /// What libraries have for layers is measured.
    pub(crate) tune: Option<Tune>,
}

pub(super) fn parse(mut words: lexopt::Parser) -> Result<Command, String> {
    let text = |error: lexopt::Error| format!("{error}; --help lists what there is");
    let data = Request::default().data;
    let mut check = GpuCheck {
        device: 0,
        networks: true,
        models: Vec::new(),
        operators: None,
        batches: None,
        iters: 50,
        dtypes: Vec::new(),
        libraries: Libraries::default(),
        data,
        output: None,
        json: false,
        python: None,
        peers: PEERS.map(str::to_string).to_vec(),
        peer_seconds: 900,
        tune: None,
    };
    let (mut tune, mut tune_cache) = (None, None);
    while let Some(word) = words.next().map_err(text)? {
        match word {
            Value(word) => check.models.push(word.string().map_err(text)?),
            Long("device") => check.device = number("device", &mut words)? as usize,
            Long("batch") => check.batches = Some(parse_batches(&text_value(&mut words)?)?),
            Long("python") => check.python = Some(text_value(&mut words)?.into()),
            Long("peers") => check.peers = parse_peers(&text_value(&mut words)?)?,
            Long("peer-seconds") => check.peer_seconds = number("peer-seconds", &mut words)?.max(1),
            Long("dtype") => check.dtypes = parse_dtypes(&text_value(&mut words)?)?,
            Long(flag) if Libraries::takes(flag) => {
                let flag = flag.to_string();
                check.libraries.set(&flag, &mut words)?;
            }
            Long("operators") => drop(check.operators.get_or_insert_default()),
            Long("only") => check.operators.get_or_insert_default().push(text_value(&mut words)?),
            Long("tune") => {
                tune = Some(words.optional_value().map(parse_seconds).transpose()?.unwrap_or(TUNE_SECONDS));
            }
            Long("tune-cache") => tune_cache = Some(PathBuf::from(text_value(&mut words)?)),
            Long("iters") => check.iters = (number("iters", &mut words)? as usize).max(1),
            Long("data") => check.data = text_value(&mut words)?.into(),
            Long("output") | Short('o') => check.output = Some(text_value(&mut words)?.into()),
            Long("json") => check.json = true,
            Long("help") | Short('h') => return Ok(Command::Help),
            other => return Err(text(other.unexpected())),
        }
    }
    if check.dtypes.is_empty() {
        // What a library is to round says which numbers are meant.
        let rounds = [check.libraries.cudnn, check.libraries.cublas].contains(&Some(Math::Tf32));
        check.dtypes = if rounds { vec![Numbers::F32] } else { Numbers::ALL.to_vec() };
    }
    check.libraries = check.libraries.settled(false, &check.dtypes)?;
    // What is named is checked; where nothing is, everything.
    check.networks = !check.models.is_empty() || check.operators.is_none();
    if check.models.is_empty() {
        check.operators.get_or_insert_default();
    }
    if tune.is_none() && tune_cache.is_some() {
        return Err("--tune-cache says where --tune, which is missing, keeps what it measures".into());
    }
    if tune.is_some() && check.libraries.cudnn.is_none() && check.libraries.cublas.is_none() {
        return Err("on a GPU --tune chooses among what libraries have: add --cudnn or --cublas".into());
    }
    check.tune = tune.map(|seconds| Tune { seconds, threads: None, cache: tune_cache });
    Ok(Command::GpuCheck(Box::new(check)))
}

/// Distinct names of other runtimes, or `none`.
fn parse_peers(given: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for name in given.split(',').map(str::trim).filter(|_| given != "none") {
        if !PEERS.contains(&name) {
            return Err(format!("--peers {given}: `{name}` is not one of {}, none", PEERS.join(", ")));
        }
        if all.iter().any(|other| other == name) {
            return Err(format!("--peers names {name} twice"));
        }
        all.push(name.to_string());
    }
    Ok(all)
}
