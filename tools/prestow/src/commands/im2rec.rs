//! `prestow im2rec`: image files to RecordIO, with the list files and flags of MXNet's `tools/im2rec.py`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use data::image::{self, RgbImage};
use data::{ImageRecord, RecordWriter};
use types::{Bytes, Random};

use crate::progress::Progress;

/// Flags of `prestow im2rec`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lists are PREFIX*.lst; their records are written next to them.
    #[arg(value_name = "PREFIX")]
    prefix: PathBuf,
    /// Folder of the images.
    #[arg(value_name = "ROOT")]
    root: PathBuf,
    /// Make the lists instead of the records: the folders of ROOT are the classes.
    #[arg(long)]
    list: bool,
    /// Extensions of images.
    #[arg(long, value_name = "EXT", num_args = 1.., default_values_t = [".jpeg".to_string(), ".jpg".into(), ".png".into()])]
    exts: Vec<String>,
    /// Number of lists.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    chunks: usize,
    /// Part of the images in PREFIX_train.lst.
    #[arg(long = "train-ratio", value_name = "F", default_value_t = 1.0)]
    train_ratio: f64,
    /// Part of the images in PREFIX_test.lst.
    #[arg(long = "test-ratio", value_name = "F", default_value_t = 0.0)]
    test_ratio: f64,
    /// Descend into folders; each folder with images is a class.
    #[arg(long)]
    recursive: bool,
    /// Keep the order of the folders.
    #[arg(long = "no-shuffle")]
    no_shuffle: bool,
    /// Seed of the shuffle.
    #[arg(long, value_name = "N", default_value_t = 100)]
    seed: u64,
    /// Keep the bytes of the files.
    #[arg(long = "pass-through", conflicts_with_all = ["resize", "center_crop"])]
    pass_through: bool,
    /// Length of the shorter side; 0 keeps the size.
    #[arg(long, value_name = "N", default_value_t = 0)]
    resize: usize,
    /// Crop the centered square first.
    #[arg(long = "center-crop")]
    center_crop: bool,
    /// Quality of JPEG, 1 to 100; compression of PNG, 0 to 9.
    #[arg(long, value_name = "N", default_value_t = 95)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    quality: u8,
    /// Threads that encode. The records do not depend on their number.
    #[arg(long = "num-thread", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    num_thread: usize,
    /// Format of the images in the records.
    #[arg(long, value_name = ".jpg|.png", default_value = ".jpg", value_parser = [".jpg", ".png"])]
    encoding: String,
    /// Write several labels of a row after the head of the record.
    #[arg(long = "pack-label")]
    pack_label: bool,
    /// Fail at the first image that cannot be read; without it such images are skipped and counted.
    #[arg(long)]
    strict: bool,
}

/// A row of a list.
struct Row {
    id: u64,
    labels: Vec<f32>,
    path: String,
}

/// Writes lists or records.
pub(crate) fn run(args: &Args) -> Result<String, String> {
    if args.list { make_lists(args) } else { make_records(args) }
}

fn make_lists(args: &Args) -> Result<String, String> {
    let (train, test) = (args.train_ratio, args.test_ratio);
    if !(0.0..=1.0).contains(&train) || !(0.0..=1.0).contains(&test) || 1.0 + 1e-9 < train + test {
        return Err(format!("--train-ratio and --test-ratio must be in 0..=1 with a sum <= 1, got {train} and {test}"));
    }
    let mut rows = Vec::new();
    find_images(args, &args.root, &mut rows)?;
    let mut classes: Vec<PathBuf> = rows.iter().map(|path| class_of(args, path)).collect();
    let of_row = classes.clone();
    classes.sort();
    classes.dedup();
    let mut rows: Vec<Row> = rows
        .iter()
        .zip(&of_row)
        .enumerate()
        .map(|(id, (path, class))| {
            let label = classes.binary_search(class).expect("a class of a row") as f32;
            Row { id: id as u64, labels: vec![label], path: path.to_string_lossy().into_owned() }
        })
        .collect();
    if rows.is_empty() {
        return Err(format!("`{}` has no image with an extension of --exts", args.root.display()));
    }
    if !args.no_shuffle {
        let mut random = Random::new(args.seed);
        for ix in (1..rows.len()).rev() {
            rows.swap(ix, random.below(ix as u64 + 1) as usize);
        }
    }
    let mut report = String::new();
    let size = rows.len().div_ceil(args.chunks);
    for (number, chunk) in rows.chunks(size).enumerate() {
        let suffix = if args.chunks == 1 { String::new() } else { format!("_{number}") };
        let (tests, trains) = ((chunk.len() as f64 * test) as usize, (chunk.len() as f64 * train) as usize);
        let parts = match (train, test) {
            (1.0, _) => vec![("", chunk)],
            _ => vec![
                ("_test", &chunk[..tests]),
                ("_train", &chunk[tests..tests + trains]),
                ("_val", &chunk[tests + trains..]),
            ],
        };
        for (part, rows) in parts.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            let path = PathBuf::from(format!("{}{suffix}{part}.lst", args.prefix.display()));
            let line = |row: &Row| format!("{}\t{:.6}\t{}\n", row.id, row.labels[0], row.path);
            let text: String = rows.iter().map(line).collect();
            files::write(&path, text.as_bytes()).map_err(|error| error.to_string())?;
            report += &format!("wrote {}: {} images, {} classes\n", path.display(), rows.len(), classes.len());
        }
    }
    Ok(report)
}

/// The class of an image: its folder, or the first folder below ROOT.
fn class_of(args: &Args, path: &Path) -> PathBuf {
    match args.recursive {
        true => path.parent().unwrap_or(Path::new("")).to_path_buf(),
        false => PathBuf::new(),
    }
}

/// Paths of images relative to ROOT, sorted.
fn find_images(args: &Args, folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("`{}`: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut entries: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if args.recursive {
                find_images(args, &entry, found)?;
            }
            continue;
        }
        let name = entry.to_string_lossy().to_lowercase();
        if args.exts.iter().any(|extension| name.ends_with(&extension.to_lowercase())) {
            found.push(entry.strip_prefix(&args.root).unwrap_or(&entry).to_path_buf());
        }
    }
    Ok(())
}

fn make_records(args: &Args) -> Result<String, String> {
    let folder = args.prefix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = args.prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("`{}`: {error}", folder.display());
    let mut lists = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.starts_with(&stem) && name.ends_with(".lst") {
            lists.push(folder.join(name));
        }
    }
    lists.sort();
    if lists.is_empty() {
        return Err(format!("no list is named `{}*.lst`; make one with --list", args.prefix.display()));
    }
    lists.iter().map(|list| make_record_file(args, list)).collect()
}

/// Writes the records of one list, complete or not at all.
fn make_record_file(args: &Args, list: &Path) -> Result<String, String> {
    let rows = read_list(list, args.pack_label)?;
    let progress = Progress::bar(rows.len(), &list.display().to_string());
    let (records, index) = (list.with_extension("rec"), list.with_extension("idx"));
    let (mut lines, mut skipped, mut failure) = (String::new(), Vec::new(), None);
    let written = files::write_with(&records, files::Kind::Data, |file: &mut File| {
        let mut writer = RecordWriter::new(BufWriter::new(file));
        // Memory is bounded by the images of a group.
        for group in rows.chunks(8 * args.num_thread) {
            for (row, record) in group.iter().zip(encode_all(args, group)) {
                match record {
                    Ok(record) => lines += &format!("{}\t{}\n", row.id, writer.write(&record)?),
                    Err(reason) if args.strict => {
                        failure = Some(reason);
                        return Err(std::io::Error::other("an image cannot be read"));
                    }
                    Err(reason) => skipped.push(reason),
                }
                progress.message(format!("{} of {} images", row.id, rows.len()));
            }
        }
        writer.into_inner().flush()
    });
    drop(progress);
    if let Some(reason) = failure {
        return Err(reason);
    }
    written.map_err(|error| error.to_string())?;
    files::write(&index, lines.as_bytes()).map_err(|error| error.to_string())?;
    let mut report = format!("wrote {}: {} records\n", records.display(), rows.len() - skipped.len());
    if let Some(first) = skipped.first() {
        report += &format!("skipped {} images that cannot be read; the first: {first}\n", skipped.len());
    }
    Ok(report)
}

/// Rows `ID<TAB>LABEL[<TAB>LABEL..]<TAB>PATH`.
fn read_list(path: &Path, several: bool) -> Result<Vec<Row>, String> {
    let bytes = files::read(path, Bytes(1 << 32)).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    let row = |(number, line): (usize, &str)| {
        let refused = |reason: String| format!("`{}` line {}: {reason}", path.display(), number + 1);
        let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [id, labels @ .., name] = &cells[..] else {
            return Err(refused(format!("must be ID<TAB>LABEL<TAB>PATH, found `{line}`")));
        };
        if labels.is_empty() || 1 < labels.len() && !several {
            let reason = format!("must have one label, found {}; --pack-label takes several", labels.len());
            return Err(refused(reason));
        }
        // MXNet's own lists may have an id as `1.0`.
        let id = id.parse::<f64>().ok().filter(|id| 0.0 <= *id && id.fract() == 0.0);
        let id = id.ok_or_else(|| refused("the id must be an integer >= 0".into()))? as u64;
        let labels = labels.iter().map(|label| label.parse().map_err(|_| refused(format!("`{label}` is no number"))));
        Ok(Row { id, labels: labels.collect::<Result<_, _>>()?, path: name.to_string() })
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(row).collect()
}

/// The records of some rows in their order.
fn encode_all(args: &Args, rows: &[Row]) -> Vec<Result<Vec<u8>, String>> {
    let next = AtomicUsize::new(0);
    let slots: Vec<OnceLock<Result<Vec<u8>, String>>> = rows.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let ix = next.fetch_add(1, Ordering::Relaxed);
            let (Some(row), Some(slot)) = (rows.get(ix), slots.get(ix)) else { return };
            slot.set(encode(args, row)).expect("each row is taken once");
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..args.num_thread.min(rows.len()) {
            // If the system starts no more threads, those that run do all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    slots.into_iter().map(|slot| slot.into_inner().expect("every row is encoded")).collect()
}

fn encode(args: &Args, row: &Row) -> Result<Vec<u8>, String> {
    let path = args.root.join(&row.path);
    let failed = |reason: String| format!("`{}`: {reason}", path.display());
    let bytes = files::read_regular(&path, Bytes(1 << 30)).map_err(|error| error.to_string())?;
    let image = match args.pass_through {
        true => bytes,
        false => {
            let decoded = image::decode(&bytes).map_err(failed)?;
            let sized = resized(args, decoded).map_err(failed)?;
            encoded(args, &sized).map_err(failed)?
        }
    };
    Ok(ImageRecord { labels: row.labels.clone(), id: row.id, image: &image }.to_bytes())
}

/// The most pixels of a resized image: those of an image that is decoded, so that records can be read again.
const PIXELS_MAX: usize = 1 << 26;

fn resized(args: &Args, image: RgbImage) -> Result<RgbImage, String> {
    let mut image = image;
    if args.center_crop && image.width != image.height {
        let side = image.width.min(image.height);
        let (x, y) = ((image.width - side) / 2, (image.height - side) / 2);
        let row = |row: usize| &image.rgb[((y + row) * image.width + x) * 3..][..side * 3];
        let rgb = (0..side).flat_map(row).copied().collect();
        image = RgbImage { width: side, height: side, rgb };
    }
    let (side, width, height) = (args.resize, image.width, image.height);
    if side == 0 {
        return Ok(image);
    }
    let longer = width.max(height).checked_mul(side).map(|longer| (longer / width.min(height)).max(1));
    let longer = longer.filter(|longer| longer.checked_mul(side).is_some_and(|pixels| pixels <= PIXELS_MAX));
    let Some(longer) = longer else {
        return Err(format!(
            "--resize {side} makes more than {PIXELS_MAX} pixels of {width} x {height}; choose a shorter side"
        ));
    };
    Ok(match width < height {
        true => image::resize(&image, side, longer),
        false => image::resize(&image, longer, side),
    })
}

fn encoded(args: &Args, image: &RgbImage) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    if args.encoding == ".png" {
        let mut encoder = png::Encoder::new(&mut bytes, image.width as u32, image.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(if args.quality < 4 { png::Compression::Fast } else { png::Compression::Balanced });
        let mut writer = encoder.write_header().map_err(|error| error.to_string())?;
        writer.write_image_data(&image.rgb).map_err(|error| error.to_string())?;
        drop(writer);
        return Ok(bytes);
    }
    let side = |extent: usize| {
        u16::try_from(extent).map_err(|_| format!("a JPEG has at most 65535 pixels a side, got {extent}"))
    };
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, args.quality.max(1));
    encoder
        .encode(&image.rgb, side(image.width)?, side(image.height)?, jpeg_encoder::ColorType::Rgb)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}
