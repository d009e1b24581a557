//! Sources opened by their text.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use prestow_data::{DataError, DataSpec, Dataset, OpenOptions, Split};
use types::{DType, Shape};

use crate::{Folder, fixture};

fn open(text: &str) -> Result<Box<dyn Dataset>, DataError> {
    text.parse::<DataSpec>()?.open(&OpenOptions::default())
}

fn refused(text: &str) -> String {
    open(text).err().unwrap_or_else(|| panic!("`{text}` opens")).to_string()
}

/// The fields of a record.
fn record(dataset: &dyn Dataset, record: usize) -> Vec<Vec<u8>> {
    let mut fields: Vec<Vec<u8>> = dataset.fields().iter().map(|field| vec![0; field.size_bytes()]).collect();
    let mut slices: Vec<&mut [u8]> = fields.iter_mut().map(Vec::as_mut_slice).collect();
    dataset.read(record, None, &mut slices).unwrap();
    fields
}

#[test]
fn idx_files_are_found_plain_and_compressed() {
    let images = std::fs::read(fixture("tiny-images-idx3-ubyte")).unwrap();
    let labels = std::fs::read(fixture("tiny-labels-idx1-ubyte")).unwrap();
    let gzip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let folder = Folder::new("idx");
    folder.file("train-images-idx3-ubyte", &images);
    folder.file("train-images-idx3-ubyte.gz", b"not read: the plain file is preferred");
    folder.file("train-labels-idx1-ubyte.gz", &gzip(&labels));
    let path = folder.0.display();
    let dataset = open(&format!("idx:{path}")).unwrap();
    let [pixels, label] = dataset.fields() else { panic!("two fields") };
    assert_eq!((pixels.dtype, label.dtype), (DType::U8, DType::U8));
    assert_eq!((pixels.shape[0], label.shape.rank(), dataset.records()), (1, 0, 6));
    let size = pixels.size_bytes();
    assert_eq!(record(&*dataset, 1), [&images[16 + size..16 + 2 * size], &labels[9..10]]);
    assert_eq!(open(&format!("idx:{path},records=2")).unwrap().records(), 2);

    assert!(
        refused(&format!("idx:{path},split=test"))
            .ends_with("no file is named `t10k-images-idx3-ubyte` or `t10k-images-idx3-ubyte.gz`")
    );
    folder.file("small-train-labels-idx1-ubyte", &labels);
    assert!(refused(&format!("idx:{path}")).contains("several files are train labels"));
    let mut past = [vec![]];
    assert!(
        dataset
            .read(6, None, &mut past.each_mut().map(Vec::as_mut_slice))
            .unwrap_err()
            .to_string()
            .starts_with("record 6 of")
    );
}

#[test]
fn idx_file_of_images_has_its_labels_next_to_it() {
    let dataset = open(&format!("idx:{}", fixture("tiny-images-idx3-ubyte").display())).unwrap();
    assert_eq!(dataset.records(), 6);
    let folder = Folder::new("idx-file");
    let images = folder.file("a-images-idx3-ubyte", &std::fs::read(fixture("tiny-images-idx3-ubyte")).unwrap());
    let labels = folder.file("a-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 4]);
    let text = format!("idx:{}", images.display());
    assert_eq!(
        refused(&text),
        format!("`{}`: it has labels [1], but `{}` has 6 images", labels.display(), images.display())
    );
    folder.file("a-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 6, 4]);
    assert!(refused(&text).ends_with("its header states [6] bytes, found 1"));
    folder.file("a-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 4]);
    for extents in [[1, 0, 2], [1, 2, 0]] {
        let header = extents.map(|extent: u32| extent.to_be_bytes()).concat();
        folder.file("a-images-idx3-ubyte", &[&[0, 0, 8, 3][..], &header].concat());
        assert!(refused(&text).ends_with("it must have at least one image, found none"), "{extents:?}");
    }
    assert!(refused(&format!("idx:{}/pictures", folder.0.display())).contains("must be a folder or a file"));
}

#[test]
fn npz_arrays_are_chosen_by_name() {
    let path = fixture("tiny_decoded.npz");
    let path = path.display();
    let dataset = open(&format!("npz:{path},x=img1,y=img1")).err().unwrap().to_string();
    assert!(dataset.ends_with("it has no array `img1`"), "one array cannot be both: {dataset}");
    let dataset = open(&format!("npz:{path},x=img2")).unwrap();
    assert_eq!((dataset.records(), &dataset.fields()[0].shape), (32, &Shape::from([64, 3])));
    assert_eq!(dataset.fields().len(), 1, "arrays of other lengths are left out");
    assert!(refused(&format!("npz:{path}")).ends_with("add `,x=NAME,y=NAME`; its arrays are `img0`, `img1`, `img2`"));
    assert!(refused(&format!("npz:{path},x=img0,y=img1")).contains("array `img1` has 48 records, `img0` has 40"));
    assert!(refused("npz:absent.npz").starts_with("`absent.npz`: cannot read it"));

    // Names of inputs need no options.
    let spec: DataSpec = format!("npz:{path}").parse().unwrap();
    let with_inputs = |names: &[&str]| {
        let inputs = names.iter().map(|name| name.to_string()).collect();
        spec.open(&OpenOptions { inputs, ..OpenOptions::default() })
    };
    let dataset = with_inputs(&["img1"]).unwrap();
    assert_eq!((dataset.records(), &dataset.fields()[0].name[..]), (48, "img1"));
    let error = with_inputs(&["img1", "label"]).err().unwrap().to_string();
    assert!(error.contains("name its arrays as the inputs (`img1`, `label`), or add `,x=NAME,y=NAME`"), "{error}");
}

#[test]
fn split_is_that_of_the_text_before_that_of_the_program() {
    let folder = Folder::new("split");
    for part in ["train", "t10k"] {
        let count = if part == "train" { 2 } else { 1 };
        let images = [&[0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 1, 0, 0, 0, 1][..], &vec![5; count as usize]].concat();
        folder.file(&format!("{part}-images-idx3-ubyte"), &images);
        let labels = [&[0, 0, 8, 1, 0, 0, 0, count][..], &vec![1; count as usize]].concat();
        folder.file(&format!("{part}-labels-idx1-ubyte"), &labels);
    }
    let text = format!("idx:{}", folder.0.display());
    let records = |text: &str, split| {
        let spec: DataSpec = text.parse().unwrap();
        spec.open(&OpenOptions { split, ..OpenOptions::default() }).unwrap().records()
    };
    assert_eq!(records(&text, Split::Train), 2);
    assert_eq!(records(&text, Split::Test), 1);
    assert_eq!(records(&format!("{text},split=train"), Split::Test), 2);
}
