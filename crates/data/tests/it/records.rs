//! RecordIO and encoded images: MXNet's own files, rewritten bit for bit, and damaged ones.

use std::path::Path;
use std::sync::Arc;

use prestow_data::image::{self, Crop, ImagePipeline, RgbImage};
use prestow_data::{
    BatchInput, BatchOptions, Batcher, Damaged, DataSpec, Dataset, ImageRecord, ImageTarget, LastBatch, OpenOptions,
    Position, RecordDataset, RecordFile, RecordWriter, Shuffle,
};
use types::{DType, Random, Shape, Tensor};
use weights::npy;

use crate::{Folder, fixture};

const PIXELS_MAX: u64 = 1 << 20;

fn all(file: &RecordFile) -> Vec<Vec<u8>> {
    (0..file.records()).map(|record| file.read(record).unwrap()).collect()
}

fn written(records: &[Vec<u8>]) -> (Vec<u8>, Vec<u64>) {
    let mut writer = RecordWriter::new(Vec::new());
    let offsets = records.iter().map(|record| writer.write(record).unwrap()).collect();
    (writer.into_inner(), offsets)
}

#[test]
fn files_of_mxnet_are_read_and_rewritten_bit_for_bit() {
    for name in ["multipart.rec", "tiny.rec"] {
        let file = RecordFile::open(&fixture(name)).unwrap();
        let (bytes, offsets) = written(&all(&file));
        assert_eq!(bytes, std::fs::read(fixture(name)).unwrap(), "{name}");
        assert_eq!(offsets, file.offsets());
    }
    let magic = [0x0a, 0x23, 0xd7, 0xce];
    let records = all(&RecordFile::open(&fixture("multipart.rec")).unwrap());
    assert_eq!(records.len(), 7);
    assert!(records.contains(&magic.to_vec()), "a record that is the magic number");
    assert!(records.contains(&[magic, magic].concat()), "and twice");
}

#[test]
fn random_records_survive_writing_with_and_without_an_index() {
    let folder = Folder::new("rec");
    let mut random = Random::new(1);
    let word = |random: &mut Random| match random.below(3) {
        0 => [0x0a, 0x23, 0xd7, 0xce],
        _ => (random.bits() as u32).to_le_bytes(),
    };
    let records: Vec<Vec<u8>> = (0..200)
        .map(|_| {
            let mut record: Vec<u8> = (0..random.below(9)).flat_map(|_| word(&mut random)).collect();
            record.truncate(record.len().saturating_sub(random.below(4) as usize));
            record
        })
        .collect();
    let (bytes, offsets) = written(&records);
    let path = folder.file("a.rec", &bytes);
    assert_eq!(all(&RecordFile::open(&path).unwrap()), records);
    let index: String = offsets.iter().enumerate().map(|(key, offset)| format!("{key}\t{offset}\n")).collect();
    folder.file("a.idx", index.as_bytes());
    assert_eq!(all(&RecordFile::open(&path).unwrap()), records);
}

/// One change of a byte, or a shorter file: an error or other records, and no panic.
#[test]
fn damaged_records_are_refused_or_differ() {
    let good = std::fs::read(fixture("multipart.rec")).unwrap();
    let folder = Folder::new("damaged");
    let read = |bytes: &[u8]| -> Result<Vec<Vec<u8>>, String> {
        let file = RecordFile::open(&folder.file("a.rec", bytes)).map_err(|error| error.to_string())?;
        (0..file.records()).map(|record| file.read(record)).collect()
    };
    let records = read(&good).unwrap();
    for at in 0..good.len() {
        for flip in [1u8, 0x20, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            if let Ok(found) = read(&bytes) {
                assert!(found.iter().map(Vec::len).sum::<usize>() <= good.len() + 4 * found.len());
            }
        }
        // A file that ends between two records is whole.
        if let Ok(found) = read(&good[..at]) {
            assert!(records.starts_with(&found), "length {at}");
        }
    }
    assert!(read(&good[..good.len() - 5]).is_err());
    let error = read(&[&good[..], &[0; 8]].concat()).unwrap_err();
    assert!(error.ends_with("byte 140: a record must begin with 0xced7230a, found 0x00000000"), "{error}");
    let mut lying = good.clone();
    lying[4..8].copy_from_slice(&0x1fff_ffffu32.to_le_bytes());
    assert!(read(&lying).unwrap_err().ends_with("byte 0: the record states 536870911 bytes, the file ends after 132"));
    assert!(read(&[]).unwrap_err().ends_with("it must have at least one record, found none"));
}

#[test]
fn malformed_index_is_refused_with_its_line() {
    let folder = Folder::new("index");
    let path = folder.file("a.rec", &std::fs::read(fixture("multipart.rec")).unwrap());
    let refused = |index: &str| {
        folder.file("a.idx", index.as_bytes());
        RecordFile::open(&path).err().unwrap().to_string()
    };
    assert!(refused("0\t0\nx\n").ends_with("line 2: must be KEY<TAB>OFFSET, found `x`"));
    assert!(refused("0\t999\n").contains("line 1: offset 999 is outside of the 140 bytes"));
    assert!(refused("0\t-4\n").contains("line 1: must be"));
    folder.file("a.idx", b"0\t4\n");
    assert!(RecordFile::open(&path).unwrap().read(0).unwrap_err().starts_with("byte 4: a record must begin with"));
}

#[test]
fn image_records_have_one_label_in_the_head_or_several_after_it() {
    for labels in [vec![3.0], vec![1.0, 2.5, -4.0], vec![]] {
        let record = ImageRecord { labels, id: 1 << 40, image: b"image" };
        let bytes = record.to_bytes();
        match record.labels.is_empty() {
            // No label is a head with label 0.
            true => assert_eq!(ImageRecord::parse(&bytes).unwrap().labels, [0.0]),
            false => {
                let behind = if record.labels.len() == 1 { 0 } else { 4 * record.labels.len() };
                assert_eq!(bytes.len(), 24 + behind + record.image.len());
                assert_eq!(ImageRecord::parse(&bytes), Ok(record));
            }
        }
        for length in 0..24 {
            assert!(ImageRecord::parse(&bytes[..length]).is_err());
        }
    }
    let lying = [&u32::MAX.to_le_bytes()[..], &[0; 30]].concat();
    assert!(ImageRecord::parse(&lying).is_err());
}

/// The images as MXNet's decoder yields them, in the order of `tiny.rec`.
fn decoded() -> Vec<RgbImage> {
    let bytes = std::fs::read(fixture("tiny_decoded.npz")).unwrap();
    let arrays = weights::read("tiny_decoded.npz", &bytes).unwrap();
    ["img2", "img1", "img0"]
        .map(|name| {
            let array = &arrays[name];
            RgbImage {
                width: array.shape()[1],
                height: array.shape()[0],
                rgb: array.as_slice::<u8>().unwrap().to_vec(),
            }
        })
        .to_vec()
}

/// `ImageRecordIter(resize=32, data_shape=(3, 28, 28), mean_r=123.68, .., std_r=58.393, ..)`.
fn iterated() -> Tensor {
    npy::read(&std::fs::read(fixture("tiny_iter_batch.npy")).unwrap()).unwrap()
}

const OPTIONS: &str = "resize=32,scale=1,mean=123.68/116.779/103.939,std=58.393/57.12/57.375";

/// A batch of all records of `path` as the iterator makes it.
fn batch_of(path: &Path) -> Vec<u8> {
    let spec: DataSpec = format!("rec:{},{OPTIONS}", path.display()).parse().unwrap();
    let target = ImageTarget::of_sample(&[3, 28, 28]);
    let dataset = Arc::from(spec.open(&OpenOptions { image: target, ..OpenOptions::default() }).unwrap());
    let images = BatchInput { normalize: spec.normalize(), ..BatchInput::new(0, DType::F32, Shape::from([3, 28, 28])) };
    let labels = BatchInput::new(1, DType::F32, Shape::scalar());
    let batcher =
        Batcher::new(dataset, vec![images, labels], BatchOptions { batch: 3, ..BatchOptions::default() }).unwrap();
    let (mut x, mut y) = (vec![0; 3 * 3 * 28 * 28 * 4], vec![0; 12]);
    batcher.fill(Position::default(), &mut [&mut x, &mut y]).unwrap();
    let want = npy::read(&std::fs::read(fixture("tiny_iter_label.npy")).unwrap()).unwrap();
    assert_eq!(y, want.to_le_bytes());
    x
}

#[test]
fn resized_and_cropped_batch_equals_image_record_iter() {
    // PNG keeps the pixels of MXNet's decoder.
    let folder = Folder::new("iterator");
    let records: Vec<Vec<u8>> = decoded()
        .iter()
        .enumerate()
        .map(|(ix, image)| {
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, image.width as u32, image.height as u32);
            encoder.set_color(png::ColorType::Rgb);
            encoder.write_header().unwrap().write_image_data(&image.rgb).unwrap();
            ImageRecord { labels: vec![2.0 - ix as f32], id: ix as u64, image: &file }.to_bytes()
        })
        .collect();
    let path = folder.file("a.rec", &written(&records).0);
    let (found, want) = (batch_of(&path), iterated().to_le_bytes());
    let count = |(a, b): (&[u8; 4], &[u8; 4])| a != b;
    let differ = found.as_chunks::<4>().0.iter().zip(want.as_chunks::<4>().0).filter(|pair| count(*pair)).count();
    assert_eq!(differ, 0, "elements that differ");
}

#[test]
fn jpeg_records_equal_image_record_iter_to_the_byte() {
    let file = RecordFile::open(&fixture("tiny.rec")).unwrap();
    for (record, want) in all(&file).iter().zip(decoded()) {
        assert_eq!(image::decode(ImageRecord::parse(record).unwrap().image).unwrap(), want);
    }
    assert!(batch_of(&fixture("tiny.rec")) == iterated().to_le_bytes());
}

/// Files by Pillow and OpenCV with every subsampling, progressive, with restart markers, of odd sizes; the pixels are those
/// of libjpeg-turbo.
#[test]
fn jpeg_pixels_are_those_of_libjpeg() {
    let bytes = std::fs::read(fixture("libjpeg.npz")).unwrap();
    let arrays = weights::read("libjpeg.npz", &bytes).unwrap();
    let mut count = 0;
    for (name, file) in arrays.iter().filter_map(|(name, file)| Some((name.strip_suffix("_file")?, file))) {
        let found = image::decode(file.as_slice::<u8>().unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let want = &arrays[&format!("{name}_rgb")];
        assert_eq!([found.height, found.width, 3], want.shape()[..], "{name}");
        let differ = found.rgb.iter().zip(want.as_slice::<u8>().unwrap()).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "{name}: samples that differ");
        count += 1;
    }
    assert_eq!(count, 15);
}

#[test]
fn undecodable_image_is_skipped_and_counted_or_fails() {
    let folder = Folder::new("undecodable");
    let mut records = all(&RecordFile::open(&fixture("tiny.rec")).unwrap());
    records[1].truncate(200);
    let path = folder.file("a.rec", &written(&records).0);
    let open = || RecordDataset::open(&path, ImagePipeline::new(28, 28, 3), PIXELS_MAX).unwrap();
    let batcher = |damaged| {
        let options = BatchOptions { batch: 3, damaged, last: LastBatch::Partial, ..BatchOptions::default() };
        Batcher::new(Arc::new(open()), vec![BatchInput::new(1, DType::F32, Shape::scalar())], options).unwrap()
    };
    let mut labels = vec![0; 12];
    let fill = batcher(Damaged::Skip).fill(Position::default(), &mut [&mut labels]).unwrap();
    assert_eq!((fill.count, fill.damaged.len()), (2, 1));
    assert_eq!(labels, [2f32, 0.0, 0.0].map(f32::to_le_bytes).concat());
    let error = batcher(Damaged::Fail).fill(Position::default(), &mut [&mut labels]).unwrap_err().to_string();
    assert!(error.starts_with("record 1 of `") && error.contains("the JPEG image cannot be read"), "{error}");
    let small = RecordDataset::open(&path, ImagePipeline::new(28, 28, 3), 100).unwrap();
    let (mut image, mut label) = (vec![0; 28 * 28 * 3], vec![0; 4]);
    let error = small.read(0, None, &mut [&mut image, &mut label]).unwrap_err().to_string();
    assert!(error.ends_with("an image must have 1 to 100 pixels, got 64 x 32; scale it down"), "{error}");
    assert_eq!(small.scratch_bytes(), 1200);
}

/// Bytes of images, changed at random: an error or an image, and no panic.
#[test]
fn damaged_images_never_panic() {
    let mut random = Random::new(2);
    let bytes = std::fs::read(fixture("libjpeg.npz")).unwrap();
    let arrays = weights::read("libjpeg.npz", &bytes).unwrap();
    for (_, good) in arrays.iter().filter(|(name, _)| name.ends_with("_file")) {
        let good = good.as_slice::<u8>().unwrap().to_vec();
        for _ in 0..2000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.bits() as u8;
            }
            bytes.truncate(bytes.len() - random.below(3) as usize * random.below(200) as usize);
            if let Ok(image) = image::decode_within(&bytes, PIXELS_MAX) {
                assert_eq!(image.rgb.len(), image.width * image.height * 3);
            }
        }
    }
}

#[test]
fn folders_are_classes_and_variations_are_deterministic() {
    let folder = Folder::new("classes");
    for (class, image) in ["owl", "cat", "dog"].iter().zip(all(&RecordFile::open(&fixture("tiny.rec")).unwrap())) {
        std::fs::create_dir(folder.0.join(class)).unwrap();
        folder.file(&format!("{class}/0.JPG"), ImageRecord::parse(&image).unwrap().image);
        folder.file(&format!("{class}/notes.txt"), b"left out");
    }
    let text = format!("images:{},crop=random-resized,mirror=yes,contrast=0.4", folder.0.display());
    let spec: DataSpec = text.parse().unwrap();
    assert!(spec.varies());
    let target = ImageTarget::of_sample(&[16, 16, 3]);
    let dataset: Arc<dyn Dataset> =
        Arc::from(spec.open(&OpenOptions { image: target, ..OpenOptions::default() }).unwrap());
    assert_eq!(dataset.records(), 3);
    let batch = |seed| {
        let inputs = vec![
            BatchInput::new(0, DType::U8, Shape::from([16, 16, 3])),
            BatchInput::new(1, DType::I32, Shape::scalar()),
        ];
        let options = BatchOptions { batch: 3, augment: seed, shuffle: Shuffle::None, ..BatchOptions::default() };
        let batcher = Batcher::new(dataset.clone(), inputs, options).unwrap();
        let (mut x, mut y) = (vec![0; 3 * 768], vec![0; 12]);
        batcher.fill(Position::default(), &mut [&mut x, &mut y]).unwrap();
        assert_eq!(y, [0i32, 1, 2].map(i32::to_le_bytes).concat(), "classes are sorted by name");
        x
    };
    assert_eq!(batch(Some(1)), batch(Some(1)));
    assert_ne!(batch(Some(1)), batch(Some(2)));
    let plain: DataSpec = format!("images:{}", folder.0.display()).parse().unwrap();
    assert!(!plain.varies());
    assert!(plain.open(&OpenOptions::default()).err().unwrap().to_string().contains("images need an input of shape"));
    let pipeline = ImagePipeline { crop: Crop::Random, ..ImagePipeline::new(100, 100, 3) };
    assert_eq!(
        prestow_data::FolderDataset::open(&folder.0, pipeline, PIXELS_MAX).unwrap().classes(),
        ["cat", "dog", "owl"]
    );
}

/// A part: its kind and its bytes.
fn part(kind: u32, bytes: &[u8]) -> Vec<u8> {
    let mut part = [0xced7_230a, kind << 29 | bytes.len() as u32].map(u32::to_le_bytes).concat();
    part.extend(bytes);
    part.resize(part.len().next_multiple_of(4), 0);
    part
}

#[test]
fn parts_of_a_record_are_in_order() {
    let folder = Folder::new("parts");
    let read = |parts: &[Vec<u8>]| {
        folder.file("a.idx", b"0\t0\n");
        RecordFile::open(&folder.file("a.rec", &parts.concat())).unwrap().read(0)
    };
    let magic = [0x0a, 0x23, 0xd7, 0xce];
    let whole = read(&[part(1, b"one."), part(2, b"two."), part(3, b"end")]).unwrap();
    assert_eq!(whole, [b"one.", &magic[..], b"two.", &magic, b"end"].concat());
    for kind in [2, 3] {
        assert_eq!(read(&[part(kind, b"two.")]).unwrap_err(), "byte 0: the part must be a first one");
    }
    for kind in [0, 1] {
        let parts = [part(1, b"one."), part(kind, b"two."), part(3, b"end")];
        assert_eq!(read(&parts).unwrap_err(), "byte 12: the part must be a later one");
    }
    for kind in 4..8 {
        let error = read(&[part(kind, b"one.")]).unwrap_err();
        assert_eq!(error, format!("byte 0: the kind of a part must be in 0..4, found {kind}"));
    }
}

#[test]
fn records_of_an_index_are_in_the_order_of_the_file_each_once() {
    let folder = Folder::new("order");
    let (bytes, offsets) = written(&[b"zero".to_vec(), b"one".to_vec(), b"two".to_vec()]);
    let path = folder.file("a.rec", &bytes);
    let index = format!("7\t{}\n3\t{}\n9\t{}\n", offsets[2], offsets[0], offsets[2]);
    folder.file("a.idx", index.as_bytes());
    let file = RecordFile::open(&path).unwrap();
    assert_eq!(file.offsets(), [offsets[0], offsets[2]]);
    assert_eq!(all(&file), [b"zero".to_vec(), b"two".to_vec()]);
    // Eight bytes are the head of an empty record; fewer are none.
    for (offset, is_inside) in [(bytes.len() - 8, true), (bytes.len() - 7, false), (bytes.len(), false)] {
        folder.file("a.idx", format!("0\t{offset}\n").as_bytes());
        assert_eq!(RecordFile::open(&path).is_ok(), is_inside, "{offset}");
    }
}
