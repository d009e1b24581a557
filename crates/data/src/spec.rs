//! [`DataSpec`]: a data set as a text, and how it is opened.

use std::path::PathBuf;
use std::str::FromStr;

use crate::format::{ArrayDataset, FolderDataset, RecordDataset, SyntheticDataset, open_idx};
use crate::image::{Crop, ImagePipeline, Jitter};
use crate::source::Location;
use crate::{Damaged, DataError, DataField, Dataset, Normalize};

/// A data set as a text: `KIND:SOURCE[,OPTION=VALUE]..`
///
/// | kind | source | fields |
/// | --- | --- | --- |
/// | `idx` | a folder with the files of MNIST or one of its successors, plain or `.gz`, or one file of images | `images` u8 `[1, rows, columns]`, `labels` u8 |
/// | `npz` | a file of arrays; `x=NAME`, `y=NAME` | the arrays |
/// | `csv` | a table of numbers; `label=COLUMN` | `columns` f32, `label` |
/// | `images` | a folder with a folder of PNG and JPEG files for each class | `images` u8 `[height, width, channels]`, `labels` i64 |
/// | `rec` | a RecordIO file of images; its `.idx` file is used if there is one | `images` as above, `labels` f32 |
/// | `synthetic` | a seed; `records=N` | those of the inputs |
///
/// A source is a path or a URL: `file://`, and with the program `prestow-store` `s3://`, `gs://`, `az://`, `http://` and
/// `https://`. The names below a URL are those of a folder.
///
/// Options of every kind: `split=train|test`, `scale=F`, `mean=F[/F/F]`, `std=F[/F/F]` ([`Normalize`]), `records=N` (the
/// first N records only).
///
/// Options of `images` and `rec`: `resize=N` (the shorter side before the crop), `crop=center|random|random-resized`,
/// `mirror=yes|no`, `brightness=F`, `contrast=F`, `saturation=F`, `reduced=yes|no` ([`ImagePipeline`]), `pixels=N` (the
/// most pixels of an image, by default 2^24; memory of a thread follows from it), `damaged=fail|skip` ([`Damaged`]).
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    text: String,
    kind: Kind,
    /// The path, or the seed of synthetic data.
    source: String,
    split: Option<Split>,
    records: Option<usize>,
    x: Option<String>,
    y: Option<String>,
    label: Option<String>,
    normalize: Option<Normalize>,
    /// Variations of images; the size is that of the input.
    pipeline: ImagePipeline,
    pixels_max: u64,
    damaged: Damaged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Idx,
    Npz,
    Csv,
    Images,
    Rec,
    Synthetic,
}

/// The kinds by name.
const KINDS: [(&str, Kind); 6] = [
    ("idx", Kind::Idx),
    ("npz", Kind::Npz),
    ("csv", Kind::Csv),
    ("images", Kind::Images),
    ("rec", Kind::Rec),
    ("synthetic", Kind::Synthetic),
];

/// The kinds of encoded images.
const PICTURES: &[Kind] = &[Kind::Images, Kind::Rec];

/// The options by name with the kinds that take them; all kinds if empty.
const OPTIONS: [(&str, &[Kind]); 17] = [
    ("split", &[]),
    ("records", &[]),
    ("scale", &[]),
    ("mean", &[]),
    ("std", &[]),
    ("x", &[Kind::Npz]),
    ("y", &[Kind::Npz]),
    ("label", &[Kind::Csv]),
    ("resize", PICTURES),
    ("crop", PICTURES),
    ("mirror", PICTURES),
    ("brightness", PICTURES),
    ("contrast", PICTURES),
    ("saturation", PICTURES),
    ("reduced", PICTURES),
    ("pixels", PICTURES),
    ("damaged", PICTURES),
];

/// The part of a data set that comes in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Split {
    /// For training.
    #[default]
    Train,
    /// For evaluation.
    Test,
}

/// Requirements of an executable on a data set.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The part, unless the text names one.
    pub split: Split,
    /// The size of the images that the executable takes.
    pub image: Option<ImageTarget>,
    /// The fields of synthetic records, each with a bound of its integers.
    pub synthetic: Vec<(DataField, u64)>,
    /// The names of the inputs: arrays of these names need no options.
    pub inputs: Vec<String>,
    /// The file of the program `prestow-store`, which reads URLs; `None`: in the folder of this program or in PATH.
    pub store: Option<PathBuf>,
}

/// The size of images in an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTarget {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// 3 or 1.
    pub channels: usize,
}

impl ImageTarget {
    /// The size of images in a sample of shape `[channels, height, width]` or `[height, width, channels]`; `None` for other
    /// shapes.
    pub fn of_sample(shape: &[usize]) -> Option<ImageTarget> {
        match *shape {
            [channels @ (1 | 3), height, width] => Some(ImageTarget { height, width, channels }),
            [height, width, channels @ (1 | 3)] => Some(ImageTarget { height, width, channels }),
            _ => None,
        }
    }
}

impl DataSpec {
    /// Opens the data set.
    ///
    /// # Errors
    /// A file that cannot be read or is malformed.
    pub fn open(&self, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
        let split = self.split.unwrap_or(options.split);
        let location = || {
            let is_folder = match self.kind {
                Kind::Images => true,
                Kind::Idx => !self.source.contains("idx3"),
                _ => false,
            };
            Location::open(&self.source, is_folder, options.store.as_deref())
        };
        let dataset = match self.kind {
            Kind::Idx => open_idx(&location()?, split)?,
            Kind::Npz => {
                let chosen = [self.x.as_deref(), self.y.as_deref()];
                ArrayDataset::npz_at(&location()?, chosen, &options.inputs, split)?
            }
            Kind::Csv => ArrayDataset::csv_at(&location()?, self.label.as_deref())?,
            Kind::Images | Kind::Rec => return self.open_pictures(location, options.image),
            Kind::Synthetic => {
                let seed = self.source.parse().map_err(|_| self.refused("the source must be a seed"))?;
                let (records, fields) = (self.records.unwrap_or(1024), options.synthetic.clone());
                return Ok(Box::new(SyntheticDataset::new(seed, records, fields)));
            }
        };
        Ok(Box::new(dataset.truncated(self.records.unwrap_or(usize::MAX))))
    }

    fn open_pictures(
        &self,
        location: impl Fn() -> Result<Location, DataError>,
        target: Option<ImageTarget>,
    ) -> Result<Box<dyn Dataset>, DataError> {
        let shape = "images need an input of shape [batch, 1 or 3, height, width] or [batch, height, width, 1 or 3]";
        let ImageTarget { height, width, channels } = target.ok_or_else(|| self.refused(shape))?;
        let pipeline = ImagePipeline { height, width, channels, ..self.pipeline.clone() };
        if pipeline.shorter_side.is_some_and(|side| side < height.min(width)) {
            return Err(self.refused(format!("`resize` must be >= {}, the side of the input", height.min(width))));
        }
        let (limit, location) = (self.records.unwrap_or(usize::MAX), location()?);
        Ok(match self.kind {
            Kind::Images => Box::new(FolderDataset::at(&location, pipeline, self.pixels_max)?.truncated(limit)),
            _ => Box::new(RecordDataset::at(&location, pipeline, self.pixels_max)?.truncated(limit)),
        })
    }

    /// Whether the text has random variations of images, which training must seed.
    pub fn varies(&self) -> bool {
        self.pipeline.crop != Crop::Center || self.pipeline.mirror || self.pipeline.jitter != Jitter::default()
    }

    /// The normalization of the first field: as given, else bytes of images are divided by 255. `mean` and `std` are in units of
    /// scaled bytes: `scale=1` makes them those of MXNet's iterators.
    pub fn normalize(&self) -> Normalize {
        let default = match self.kind {
            Kind::Idx | Kind::Images | Kind::Rec => Normalize { scale: 1.0 / 255.0, ..Normalize::default() },
            _ => Normalize::default(),
        };
        self.normalize.clone().unwrap_or(default)
    }

    /// The treatment of images that cannot be decoded.
    pub fn damaged(&self) -> Damaged {
        self.damaged
    }

    /// Whether the records are made from a seed.
    pub fn is_synthetic(&self) -> bool {
        self.kind == Kind::Synthetic
    }

    fn refused(&self, reason: impl ToString) -> DataError {
        DataError::Spec { text: self.text.clone(), reason: reason.to_string() }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let count = |value: &str| match value.parse() {
            Ok(count) if 0 < count => Ok(count),
            _ => Err(format!("`{name}` takes a number >= 1, got `{value}`")),
        };
        let floats = |value: &str| -> Result<Vec<f32>, String> {
            let parsed = value.split('/').map(|part| part.parse().ok().filter(|value: &f32| value.is_finite()));
            parsed
                .collect::<Option<_>>()
                .ok_or_else(|| format!("`{name}` takes numbers with `/` between them, got `{value}`"))
        };
        match name {
            "split" => {
                self.split = Some(match value {
                    "train" => Split::Train,
                    "test" => Split::Test,
                    _ => return Err(format!("`split` takes train or test, got `{value}`")),
                });
            }
            "records" => self.records = Some(count(value)?),
            "x" => self.x = Some(value.into()),
            "y" => self.y = Some(value.into()),
            "label" => self.label = Some(value.into()),
            "scale" | "mean" | "std" => {
                let default = self.normalize();
                let normalize = self.normalize.get_or_insert(default);
                let values = floats(value)?;
                match name {
                    "scale" => normalize.scale = values[0],
                    "mean" => normalize.mean = values,
                    _ => normalize.std = values,
                }
            }
            "resize" => self.pipeline.shorter_side = Some(count(value)?),
            "pixels" => self.pixels_max = count(value)? as u64,
            "damaged" => {
                self.damaged = match value {
                    "fail" => Damaged::Fail,
                    "skip" => Damaged::Skip,
                    _ => return Err(format!("`damaged` takes fail or skip, got `{value}`")),
                };
            }
            "crop" => {
                self.pipeline.crop = match value {
                    "center" => Crop::Center,
                    "random" => Crop::Random,
                    "random-resized" => Crop::RandomResized,
                    _ => return Err(format!("`crop` takes center, random or random-resized, got `{value}`")),
                };
            }
            "mirror" | "reduced" => {
                let given = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("`{name}` takes yes or no, got `{value}`")),
                };
                match name {
                    "mirror" => self.pipeline.mirror = given,
                    _ => self.pipeline.reduced = given,
                }
            }
            "brightness" | "contrast" | "saturation" => {
                let range = match floats(value)?[..] {
                    [range] if (0.0..=1.0).contains(&range) => range,
                    _ => return Err(format!("`{name}` takes a number in 0..=1, got `{value}`")),
                };
                let jitter = &mut self.pipeline.jitter;
                match name {
                    "brightness" => jitter.brightness = range,
                    "contrast" => jitter.contrast = range,
                    _ => jitter.saturation = range,
                }
            }
            other => unreachable!("`{other}` is in the table of options and has an arm here"),
        }
        Ok(())
    }
}

impl FromStr for DataSpec {
    type Err = DataError;

    fn from_str(text: &str) -> Result<DataSpec, DataError> {
        let refused = |reason: String| DataError::Spec { text: text.to_string(), reason };
        let kinds = || KINDS.map(|(name, _)| name).join(", ");
        let (kind, rest) =
            text.split_once(':').ok_or_else(|| refused(format!("must be KIND:SOURCE; the kinds are {}", kinds())))?;
        let (_, kind) = *KINDS
            .iter()
            .find(|(name, _)| *name == kind)
            .ok_or_else(|| refused(format!("`{kind}` is not a kind; the kinds are {}", kinds())))?;
        // A comma that no option follows belongs to the path.
        let is_option =
            |part: &str| part.split_once('=').is_some_and(|(name, _)| OPTIONS.iter().any(|(own, _)| *own == name));
        let mut parts: Vec<&str> = rest.split(',').collect();
        let first = parts.iter().rposition(|part| !is_option(part)).map_or(0, |last| last + 1);
        let given = parts.split_off(first);
        if given.is_empty()
            && let [_, .., last] = parts[..]
            && let Some((name, _)) = last.split_once('=')
        {
            let names: Vec<&str> =
                OPTIONS.iter().filter(|(_, of)| of.is_empty() || of.contains(&kind)).map(|(name, _)| *name).collect();
            return Err(refused(format!("`{name}` is not an option; the options are {}", names.join(", "))));
        }
        let source = parts.join(",");
        if source.is_empty() {
            return Err(refused("the source is missing".into()));
        }
        let mut spec = DataSpec {
            text: text.to_string(),
            kind,
            source,
            split: None,
            records: None,
            x: None,
            y: None,
            label: None,
            normalize: None,
            pipeline: ImagePipeline::new(0, 0, 0),
            pixels_max: 1 << 24,
            damaged: Damaged::Fail,
        };
        for option in given {
            let (name, value) = option.split_once('=').expect("is_option");
            let (_, of) = OPTIONS.iter().find(|(own, _)| *own == name).expect("is_option");
            if !of.is_empty() && !of.contains(&kind) {
                return Err(refused(format!("`{name}` is not an option of this kind")));
            }
            spec.set(name, value).map_err(refused)?;
        }
        if kind == Kind::Synthetic && spec.source.parse::<u64>().is_err() {
            return Err(refused(format!("the source must be a seed, got `{}`", spec.source)));
        }
        Ok(spec)
    }
}

impl std::fmt::Display for DataSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<DataSpec>().unwrap_err().to_string()
    }

    #[test]
    fn options_follow_the_source() {
        let spec: DataSpec = "npz:a,b.npz,x=data,y=labels,mean=1/2/3,split=test".parse().unwrap();
        assert_eq!((&spec.source[..], spec.x.as_deref(), spec.split), ("a,b.npz", Some("data"), Some(Split::Test)));
        assert_eq!(spec.normalize().mean, [1.0, 2.0, 3.0]);
        let spec: DataSpec = "idx:mnist".parse().unwrap();
        assert_eq!(spec.normalize().scale, 1.0 / 255.0);
        assert_eq!("idx:mnist,mean=0.1".parse::<DataSpec>().unwrap().normalize().scale, 1.0 / 255.0);
    }

    #[test]
    fn malformed_texts_are_refused() {
        assert!(refused("mnist").ends_with("must be KIND:SOURCE; the kinds are idx, npz, csv, images, rec, synthetic"));
        assert!(refused("tar:x").contains("`tar` is not a kind"));
        assert!(refused("idx:").ends_with("the source is missing"));
        assert!(refused("idx:x,x=a").ends_with("`x` is not an option of this kind"));
        assert!(refused("idx:x,sclae=1").contains("`sclae` is not an option; the options are split, records"));
        assert!(refused("idx:x,mean=a").contains("`mean` takes numbers"));
        assert!(refused("idx:x,records=0").contains("`records` takes a number >= 1"));
        assert!(refused("rec:x,damaged=no").contains("`damaged` takes fail or skip"));
        assert!(refused("idx:x,damaged=skip").ends_with("`damaged` is not an option of this kind"));
        assert!(refused("synthetic:x").ends_with("the source must be a seed, got `x`"));
    }
}
