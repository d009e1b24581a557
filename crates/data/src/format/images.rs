//! Data sets of encoded images: a folder for each class, or MXNet's records.

use std::path::Path;

use types::{Bytes, DType, Random, Shape};

use crate::image::ImagePipeline;
use crate::recordio::{ImageRecord, RecordFile};
use crate::source::{CACHE_BYTES, Location, THREAD_BYTES};
use crate::{Axes, DataError, DataField, Dataset};

/// The largest file of an image.
const FILE_MAX: Bytes = Bytes(1 << 30);

/// Bytes for each pixel while an image is decoded: the coefficients of a progressive JPEG, its samples, and RGB.
const DECODER_BYTES_PER_PIXEL: u64 = 12;

/// Images in folders: the folders, sorted by name, are the classes.
pub struct FolderDataset {
    location: Location,
    name: String,
    /// Path below the location, and class.
    files: Vec<(String, i64)>,
    classes: Vec<String>,
    pictures: Pictures,
}

/// Images in a RecordIO file.
pub struct RecordDataset {
    records: RecordFile,
    labels: usize,
    pictures: Pictures,
}

/// The decoding of all images of a data set.
struct Pictures {
    pipeline: ImagePipeline,
    pixels_max: u64,
    fields: Vec<DataField>,
}

impl Pictures {
    fn new(pipeline: ImagePipeline, pixels_max: u64, label: DataField) -> Pictures {
        let shape = Shape::from([pipeline.height, pipeline.width, pipeline.channels]);
        let image = DataField { name: "images".into(), dtype: DType::U8, shape, axes: Axes::Pixels };
        Pictures { pipeline, pixels_max, fields: vec![image, label] }
    }

    fn write(&self, bytes: &[u8], augment: Option<Random>, out: &mut [u8]) -> Result<(), String> {
        self.pipeline.read(bytes, self.pixels_max, augment, out)
    }

    fn scratch_bytes(&self) -> u64 {
        self.pixels_max * DECODER_BYTES_PER_PIXEL
    }
}

impl FolderDataset {
    /// The PNG and JPEG files in the folders of `path`. Labels are `i64`.
    ///
    /// # Errors
    /// A folder that cannot be read; no class or no image.
    pub fn open(path: &Path, pipeline: ImagePipeline, pixels_max: u64) -> Result<FolderDataset, DataError> {
        FolderDataset::at(&Location::Local(path.to_path_buf()), pipeline, pixels_max)
    }

    /// [`FolderDataset::open`] for a folder or the objects below a URL.
    pub(crate) fn at(
        location: &Location,
        pipeline: ImagePipeline,
        pixels_max: u64,
    ) -> Result<FolderDataset, DataError> {
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for (class, names) in location.folders()? {
            let images = names.into_iter().filter(|name| is_image(name));
            files.extend(images.map(|name| (format!("{class}/{name}"), classes.len() as i64)));
            classes.push(class);
        }
        if files.is_empty() {
            let reason = "it must have a folder for each class, with .png, .jpg or .jpeg files; found none";
            return Err(location.failed(reason));
        }
        let label = DataField { name: "labels".into(), dtype: DType::I64, shape: Shape::scalar(), axes: Axes::Plain };
        let pictures = Pictures::new(pipeline, pixels_max, label);
        Ok(FolderDataset { name: location.to_string(), location: location.clone(), files, classes, pictures })
    }

    /// The first `count` images only.
    pub fn truncated(mut self, count: usize) -> FolderDataset {
        self.files.truncate(count);
        self
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

fn is_image(name: &str) -> bool {
    let extension = Path::new(name).extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    matches!(&extension[..], "png" | "jpg" | "jpeg")
}

impl Dataset for FolderDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn fields(&self) -> &[DataField] {
        &self.pictures.fields
    }

    fn records(&self) -> usize {
        self.files.len()
    }

    fn read(&self, record: usize, augment: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        let absent = || DataError::record(self, record, format!("it has {} records", self.files.len()));
        let (path, class) = self.files.get(record).ok_or_else(absent)?;
        let file = self.location.named(path);
        let failed = |reason: String| DataError::record(self, record, format!("`{file}`: {reason}"));
        let bytes = file.read(FILE_MAX).map_err(|error| match error {
            DataError::Source { reason, .. } => failed(reason),
            other => other,
        })?;
        self.pictures.write(&bytes, augment, out[0]).map_err(failed)?;
        out[1].copy_from_slice(&class.to_le_bytes());
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        self.pictures.scratch_bytes()
    }
}

impl RecordDataset {
    /// The images of a `.rec` file in the order of the file. Labels are `f32`: a scalar if the first record has one label,
    /// else a vector.
    ///
    /// # Errors
    /// As [`RecordFile::open`]; a first record that is not an image record.
    pub fn open(path: &Path, pipeline: ImagePipeline, pixels_max: u64) -> Result<RecordDataset, DataError> {
        RecordDataset::at(&Location::Local(path.to_path_buf()), pipeline, pixels_max)
    }

    /// [`RecordDataset::open`] for a file or an object.
    pub(crate) fn at(
        location: &Location,
        pipeline: ImagePipeline,
        pixels_max: u64,
    ) -> Result<RecordDataset, DataError> {
        let records = RecordFile::at(location)?;
        let first = records.read(0).and_then(|bytes| ImageRecord::parse(&bytes).map(|record| record.labels.len()));
        let labels = first.map_err(|reason| location.failed(format!("the first record: {reason}")))?;
        let shape = if labels == 1 { Shape::scalar() } else { Shape::from([labels]) };
        let label = DataField { name: "labels".into(), dtype: DType::F32, shape, axes: Axes::Plain };
        Ok(RecordDataset { records, labels, pictures: Pictures::new(pipeline, pixels_max, label) })
    }

    /// The first `count` records only.
    pub fn truncated(mut self, count: usize) -> RecordDataset {
        self.records.truncate(count);
        self
    }
}

impl Dataset for RecordDataset {
    fn name(&self) -> &str {
        self.records.path()
    }

    fn fields(&self) -> &[DataField] {
        &self.pictures.fields
    }

    fn records(&self) -> usize {
        self.records.records()
    }

    fn read(&self, record: usize, augment: Option<Random>, out: &mut [&mut [u8]]) -> Result<(), DataError> {
        let failed = |reason: String| DataError::record(self, record, reason);
        let bytes = self.records.read(record).map_err(failed)?;
        let content = ImageRecord::parse(&bytes).map_err(failed)?;
        if content.labels.len() != self.labels {
            return Err(failed(format!("it must have {} labels, found {}", self.labels, content.labels.len())));
        }
        self.pictures.write(content.image, augment, out[0]).map_err(failed)?;
        for (out, label) in out[1].as_chunks_mut::<4>().0.iter_mut().zip(content.labels) {
            *out = label.to_le_bytes();
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        self.pictures.scratch_bytes() + if self.records.file().is_cached() { THREAD_BYTES } else { 0 }
    }

    fn shared_bytes(&self) -> u64 {
        if self.records.file().is_cached() { CACHE_BYTES } else { 0 }
    }
}
