//! [`Checkpoint`]: everything that a run needs to continue bit for bit.
//!
//! A checkpoint is one safetensors file, `step-0000001200.safetensors`: every state of the plan by name, and the run's
//! position and settings as texts in `__metadata__`. Its digest is the XXH3-64 of the whole file with zeros in place of the
//! digest. Files are written whole or not at all (`crates/files`); the newest two are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use types::{Bytes, Tensor};
use xxhash_rust::xxh3::xxh3_64;

use crate::metric::Tally;

/// Version of the metadata.
const VERSION: &str = "1";

/// Checkpoints that are kept in a folder.
const KEPT: usize = 2;

/// The largest checkpoint that is read.
const SIZE_MAX: Bytes = Bytes(1 << 40);

/// A point of a run between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Position and sums.
    pub position: Position,
    /// The run's settings by name, as texts: a resumed run must have the same.
    pub settings: BTreeMap<String, String>,
    /// The plan's states by name.
    pub states: BTreeMap<String, Tensor>,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// Steps that are done.
    pub step: u64,
    /// Epochs that are done.
    pub epoch: u64,
    /// Batches of the current epoch that are done.
    pub batch: u64,
    /// The loss of the current epoch so far.
    pub loss: Tally,
    /// The metric of the current epoch so far.
    pub metric: Tally,
}

impl Position {
    /// Whether a run of `per_epoch` batches an epoch is ever here: its steps are those of the epochs and batches that are done.
    pub(crate) fn is_possible(&self, per_epoch: u64) -> bool {
        let steps = self.epoch.checked_mul(per_epoch).and_then(|steps| steps.checked_add(self.batch));
        self.batch < per_epoch && steps == Some(self.step)
    }
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum CheckpointError {
    #[error("{0}")]
    File(#[from] files::FileError),
    #[error("cannot list `{path}`: {error}")]
    List { path: String, error: std::io::Error },
    #[error("checkpoint `{path}` is damaged: {reason}{}", one_before(.previous.as_deref()))]
    Damaged { path: String, reason: String, previous: Option<String> },
}

fn one_before(path: Option<&str>) -> String {
    match path {
        Some(path) => format!("; the one before it is `{path}`, continue with --resume {path}"),
        None => "; no other checkpoint is in its folder".into(),
    }
}

impl Checkpoint {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Position { step, epoch, batch, loss, metric } = self.position;
        let mut metadata: BTreeMap<String, String> =
            self.settings.iter().map(|(key, text)| (format!("settings.{key}"), text.clone())).collect();
        let numbers = [
            ("step", step.to_string()),
            ("epoch", epoch.to_string()),
            ("batch", batch.to_string()),
            ("loss.sum", loss.sum.to_string()),
            ("loss.count", loss.count.to_string()),
            ("metric.sum", metric.sum.to_string()),
            ("metric.count", metric.count.to_string()),
            ("format", format!("prestow checkpoint {VERSION}")),
            ("digest", ZEROS.into()),
        ];
        metadata.extend(numbers.map(|(key, text)| (key.to_string(), text)));
        let mut file = weights::write_safetensors(&self.states, &metadata);
        let digest = format!("{:016x}", xxh3_64(&file));
        let at = digest_at(&file).expect("the digest was written");
        file[at..at + ZEROS.len()].copy_from_slice(digest.as_bytes());
        file
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// The reason why they are not a whole checkpoint.
    pub fn from_bytes(path_name: &str, bytes: &[u8]) -> Result<Checkpoint, String> {
        let metadata = weights::metadata(bytes);
        let text = |key: &str| metadata.get(key).ok_or_else(|| format!("it has no `{key}`"));
        let expected = format!("prestow checkpoint {VERSION}");
        if *text("format")? != expected {
            return Err(format!("its format must be `{expected}`, got `{}`", text("format")?));
        }
        let mut zeroed = bytes.to_vec();
        let at = digest_at(bytes).ok_or("it has no digest")?;
        zeroed[at..at + ZEROS.len()].copy_from_slice(ZEROS.as_bytes());
        let digest = format!("{:016x}", xxh3_64(&zeroed));
        drop(zeroed);
        if *text("digest")? != digest {
            return Err(format!("its digest must be {digest}, got {}", text("digest")?));
        }
        let invalid = |key: &str| format!("`{key}` is not a number");
        let count = |key: &str| text(key)?.parse::<u64>().map_err(|_| invalid(key));
        let sum = |key: &str| text(key)?.parse::<f64>().map_err(|_| invalid(key));
        let tally = |sums: &str, counts: &str| {
            let tally = Tally { sum: sum(sums)?, count: sum(counts)? };
            let is_count = tally.count.is_finite() && 0.0 <= tally.count;
            if is_count { Ok(tally) } else { Err(format!("`{counts}` must be finite and >= 0, got {}", tally.count)) }
        };
        let position = Position {
            step: count("step")?,
            epoch: count("epoch")?,
            batch: count("batch")?,
            loss: tally("loss.sum", "loss.count")?,
            metric: tally("metric.sum", "metric.count")?,
        };
        let setting =
            |(key, text): (&String, &String)| key.strip_prefix("settings.").map(|key| (key.to_string(), text.clone()));
        let settings = metadata.iter().filter_map(setting).collect();
        let states = weights::read(path_name, bytes).map_err(|error| error.to_string())?;
        Ok(Checkpoint { position, settings, states })
    }
}

const ZEROS: &str = "0000000000000000";

/// The position of the digest in a file.
fn digest_at(file: &[u8]) -> Option<usize> {
    const KEY: &[u8] = b"\"digest\":\"";
    let header = u64::from_le_bytes(*file.first_chunk()?);
    let header = file.get(8..8usize.checked_add(usize::try_from(header).ok()?)?)?;
    let at = header.windows(KEY.len()).position(|window| window == KEY)? + 8 + KEY.len();
    (at + ZEROS.len() <= file.len()).then_some(at)
}

/// Writes a checkpoint to its folder, which is made, and removes all but the newest two. Returns its path.
///
/// # Errors
/// Those of the file system.
pub fn save(folder: &Path, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
    let path = folder.join(format!("{PREFIX}{:010}{SUFFIX}", checkpoint.position.step));
    files::write(&path, &checkpoint.to_bytes())?;
    let paths = list(folder)?;
    for old in &paths[..paths.len().saturating_sub(KEPT)] {
        // A file that stays takes space and does no harm.
        let _ = std::fs::remove_file(old);
    }
    Ok(path)
}

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";

/// The checkpoints of a folder, oldest first; none if there is no folder.
///
/// # Errors
/// Those of the file system.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let failed = |error| CheckpointError::List { path: folder.display().to_string(), error };
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let digits = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
        if digits.is_some_and(|digits| digits.len() == 10 && digits.bytes().all(|digit| digit.is_ascii_digit())) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads a checkpoint file, or the newest checkpoint of a folder; `None` if the folder has none.
///
/// # Errors
/// A damaged file, with the checkpoint before it.
pub fn load(path: &Path) -> Result<Option<(PathBuf, Checkpoint)>, CheckpointError> {
    let (file, folder) = match path.is_file() {
        true => (Some(path.to_path_buf()), path.parent().unwrap_or(Path::new(""))),
        false => (list(path)?.pop(), path),
    };
    let Some(file) = file else { return Ok(None) };
    let bytes = files::read_regular(&file, SIZE_MAX)?;
    match Checkpoint::from_bytes(&file.display().to_string(), &bytes) {
        Ok(checkpoint) => Ok(Some((file, checkpoint))),
        Err(reason) => {
            let before = list(folder)?.into_iter().rfind(|other| other.file_name() < file.file_name());
            let previous = before.map(|path| path.display().to_string());
            Err(CheckpointError::Damaged { path: file.display().to_string(), reason, previous })
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Shape;

    use super::*;

    fn at(step: u64) -> Checkpoint {
        let position = Position {
            step,
            epoch: 2,
            batch: 7,
            loss: Tally { sum: 0.1 + 0.2, count: 3.0 },
            metric: Tally { sum: 1.0 / 3.0, count: 1.0 },
        };
        let settings = BTreeMap::from([("schedule".to_string(), "cosine:end=0,warmup=\"5\"".to_string())]);
        let states = BTreeMap::from([
            (
                "conv.weight".to_string(),
                Tensor::new(Shape::from([1, 2]), vec![step as f32, f32::MIN_POSITIVE]).unwrap(),
            ),
            ("digest".to_string(), Tensor::vector(vec![1i64])),
        ]);
        Checkpoint { position, settings, states }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("prestow-checkpoint-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn checkpoint_is_read_back_bit_for_bit() {
        let bytes = at(12).to_bytes();
        assert_eq!(Checkpoint::from_bytes("a", &bytes), Ok(at(12)));
        assert_eq!(bytes, at(12).to_bytes());
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let bytes = at(12).to_bytes();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Checkpoint::from_bytes("a", &damaged).is_err(), "byte {at}");
        }
        for length in 0..bytes.len() {
            assert!(Checkpoint::from_bytes("a", &bytes[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn checkpoint_of_another_version_is_refused_before_its_digest() {
        let bytes = at(12).to_bytes();
        let (own, other) = (b"prestow checkpoint 1", b"prestow checkpoint 2");
        let start = bytes.windows(own.len()).position(|window| window == own).expect("the format is in the header");
        let mut changed = bytes;
        changed[start..start + other.len()].copy_from_slice(other);
        let want = "its format must be `prestow checkpoint 1`, got `prestow checkpoint 2`";
        assert_eq!(Checkpoint::from_bytes("a", &changed), Err(want.into()));
    }

    #[test]
    fn files_of_other_names_are_no_checkpoints() {
        let folder = folder("names");
        let own = save(&folder, &at(7)).unwrap();
        for name in
            ["step-99.safetensors", "step-00000000008.safetensors", "step-000000000x.safetensors", "step-0000000009"]
        {
            std::fs::write(folder.join(name), b"12345678").unwrap();
        }
        assert_eq!(list(&folder).unwrap(), [own]);
        assert_eq!(load(&folder).unwrap().unwrap().1, at(7));
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The digest is that of the changed file.
    #[test]
    fn count_that_is_no_count_is_refused() {
        for count in [-1.0, f64::INFINITY, f64::NAN] {
            let mut checkpoint = at(3);
            checkpoint.position.metric.count = count;
            let error = Checkpoint::from_bytes("a.safetensors", &checkpoint.to_bytes()).expect_err("it is no count");
            assert_eq!(error, format!("`metric.count` must be finite and >= 0, got {count}"));
        }
    }

    #[test]
    fn steps_are_those_of_epochs_and_batches() {
        let position = |step, epoch, batch| Position { step, epoch, batch, ..Position::default() };
        for possible in [position(0, 0, 0), position(3, 0, 3), position(4, 1, 0), position(11, 2, 3)] {
            assert!(possible.is_possible(4), "{possible:?}");
        }
        for other in [position(4, 0, 4), position(4, 0, 0), position(4, 2, 0), position(5, 1, 0), position(3, 1, 3)] {
            assert!(!other.is_possible(4), "{other:?}");
        }
        // Products and sums beyond 64 bits.
        assert!(!position(0, 1 << 62, 0).is_possible(4));
        assert!(!position(u64::MAX, u64::MAX, 1).is_possible(u64::MAX));
        assert!(!position(0, u64::MAX / 3, 1).is_possible(3));
    }

    #[test]
    fn newest_two_checkpoints_are_kept() {
        let folder = folder("kept");
        assert!(load(&folder).unwrap().is_none(), "a folder that does not exist has no checkpoint");
        for step in [1, 5, 10] {
            save(&folder, &at(step)).unwrap();
        }
        assert_eq!(list(&folder).unwrap().len(), 2);
        assert_eq!(load(&folder).unwrap().unwrap().1, at(10));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_checkpoint_names_the_one_before() {
        let folder = folder("damaged");
        let (old, new) = (save(&folder, &at(1)).unwrap(), save(&folder, &at(2)).unwrap());
        std::fs::write(&new, b"12345678").unwrap();
        let error = load(&folder).unwrap_err().to_string();
        assert!(error.contains(&format!("`{}` is damaged", new.display())), "{error}");
        assert!(error.ends_with(&format!("continue with --resume {}", old.display())), "{error}");
        assert_eq!(load(&old).unwrap().unwrap().1, at(1));
        std::fs::write(&old, b"").unwrap();
        assert!(load(&old).unwrap_err().to_string().ends_with("no other checkpoint is in its folder"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
