//! The idx format of MNIST and its successors: big-endian sizes, then bytes; plain or compressed with gzip.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use types::{Bytes, DType, Shape};

use super::ArrayDataset;
use crate::source::Location;
use crate::{Axes, DataError, DataField, Split};

/// The largest file, and the largest content of a compressed one.
const SIZE_MAX: Bytes = Bytes(16 << 30);

/// Opens the images and labels of a folder, or those of a file of images (`..images-idx3-ubyte`).
pub(crate) fn open(location: &Location, split: Split) -> Result<ArrayDataset, DataError> {
    let (images, labels) = match location.is_folder() {
        true => (find(location, split, "images", "idx3")?, find(location, split, "labels", "idx1")?),
        false => (location.clone(), labels_of(location)?),
    };
    let (extents, pixels) = read(&images)?;
    let (label_extents, classes) = read(&labels)?;
    let [records, height, width] = extents[..] else {
        let reason = format!("images must have 3 axes (records, rows, columns), found {}", extents.len());
        return Err(images.failed(reason));
    };
    if label_extents != [records] {
        let found = Shape::from(&label_extents[..]);
        let reason = format!("it has labels {found}, but `{images}` has {records} images");
        return Err(labels.failed(reason));
    }
    if records == 0 || height * width == 0 {
        return Err(images.failed("it must have at least one image, found none"));
    }
    let field = |name: &str, shape| DataField { name: name.into(), dtype: DType::U8, shape, axes: Axes::Plain };
    let fields = vec![field("images", Shape::from([1, height, width])), field("labels", Shape::scalar())];
    Ok(ArrayDataset::of_parts(images.to_string(), fields, vec![pixels, classes], records))
}

/// The one file of a split: `train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte` and the like, with any prefix, and `.gz`.
fn find(folder: &Location, split: Split, content: &str, axes: &str) -> Result<Location, DataError> {
    let part = if split == Split::Test { "t10k" } else { "train" };
    let mut found = Vec::new();
    for name in folder.names()? {
        let stem = name.strip_suffix(".gz").unwrap_or(&name);
        // Some copies are named `idx3.ubyte`. Objects of folders below have `/` in their names.
        let is_part = stem.contains(&format!("{part}-{content}")) && stem.contains(axes);
        if is_part && stem.ends_with("ubyte") && !name.contains('/') {
            found.push(name);
        }
    }
    found.sort();
    // A plain file is preferred to its compressed form.
    found.dedup_by(|second, first| *second == format!("{first}.gz"));
    match &found[..] {
        [one] => Ok(folder.named(one)),
        [] => {
            let reason =
                format!("no file is named `{part}-{content}-{axes}-ubyte` or `{part}-{content}-{axes}-ubyte.gz`");
            Err(folder.failed(reason))
        }
        several => {
            let reason = format!("several files are {part} {content}: {}; move them apart", several.join(", "));
            Err(folder.failed(reason))
        }
    }
}

fn labels_of(images: &Location) -> Result<Location, DataError> {
    let name = images.file_name();
    let labels = name.replace("images", "labels").replace("idx3", "idx1");
    match labels == name {
        true => Err(images.failed("must be a folder or a file named `..images-idx3-ubyte`")),
        false => Ok(images.named(&labels)),
    }
}

/// The extents and elements of a file.
fn read(location: &Location) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let mut bytes = location.read(SIZE_MAX)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        let mut decoder = MultiGzDecoder::new(&bytes[..]).take(SIZE_MAX.0);
        decoder.read_to_end(&mut plain).map_err(|error| location.failed(format!("gzip: {error}")))?;
        bytes = plain;
    }
    let (extents, start) = header(&bytes).map_err(|reason| location.failed(reason))?;
    bytes.drain(..start);
    Ok((extents, bytes))
}

/// The extents, and the position of the first element.
fn header(bytes: &[u8]) -> Result<(Vec<usize>, usize), String> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or("the file is truncated in its header")?;
    let [0, 0, 8, rank @ 1..=4] = *magic else {
        return Err(format!("an idx file of bytes must begin with 00 00 08 and a number of axes, found {magic:02x?}"));
    };
    let sizes = rest.get(..4 * usize::from(rank)).ok_or("the file is truncated in its header")?;
    let extents: Vec<usize> = sizes.as_chunks::<4>().0.iter().map(|size| u32::from_be_bytes(*size) as usize).collect();
    let elements = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    let start = 4 + sizes.len();
    let found = bytes.len() - start;
    match elements {
        Some(elements) if elements == found => Ok((extents, start)),
        _ => Err(format!("its header states {} bytes, found {found}", Shape::from(&extents[..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_headers_are_refused() {
        let good = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 9];
        assert_eq!(header(&good), Ok((vec![1, 1, 2], 16)));
        for length in 0..good.len() {
            assert!(header(&good[..length]).is_err(), "length {length}");
        }
        assert_eq!(header(&[&good[..], &[5]].concat()), Err("its header states [1,1,2] bytes, found 3".to_string()));
        assert!(header(&[0, 0, 13, 1, 0, 0, 0, 0]).is_err(), "floats");
        assert!(header(&[0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]).is_err());
    }
}
