//! `--dump-ir`: the graph after each pass, as text, and the tensors in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ir::{Graph, text};
use safetensors::tensor::{Dtype, TensorView};
use types::{DType, Tensor};

/// Writes `NN-pass.txt` per graph, and at the end the large tensors by hash.
pub(crate) struct Dump {
    directory: PathBuf,
    written: usize,
    tensors: BTreeMap<u64, Arc<Tensor>>,
    error: Option<String>,
}

impl Dump {
    pub(crate) fn new(directory: &Path) -> Result<Dump, String> {
        fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        Ok(Dump { directory: directory.to_path_buf(), written: 0, tensors: BTreeMap::new(), error: None })
    }

    /// Writes one graph. The first error is kept for [`Dump::finish`]: a pass cannot be stopped.
    pub(crate) fn show(&mut self, pass: &str, graph: &Graph) {
        let path = self.directory.join(format!("{:02}-{pass}.txt", self.written));
        self.written += 1;
        match files::write(&path, text::print(graph).as_bytes()) {
            Ok(()) => files::protect_output(&path),
            Err(error) => {
                self.error.get_or_insert(error.to_string());
            }
        }
        for tensor in graph.values().values().filter_map(|value| value.tensor()) {
            if text::INLINE_ELEMENTS < tensor.elements() {
                self.tensors.insert(text::tensor_hash(tensor), tensor.clone());
            }
        }
    }

    /// Writes another file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.directory.join(name);
        files::write(&path, bytes).map_err(|error| error.to_string())?;
        files::protect_output(&path);
        Ok(())
    }

    /// Writes `tensors.safetensors`: the tensors that the texts name by hash.
    pub(crate) fn finish(self) -> Result<(), String> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let bytes: Vec<(String, Vec<u8>, &Tensor)> = self
            .tensors
            .iter()
            .map(|(hash, tensor)| (format!("{hash:016x}"), tensor.to_le_bytes(), &**tensor))
            .collect();
        let views: Result<Vec<_>, _> = bytes
            .iter()
            .map(|(name, bytes, tensor)| {
                TensorView::new(dtype(tensor.dtype()), tensor.shape().to_vec(), bytes).map(|view| (name, view))
            })
            .collect();
        let path = self.directory.join("tensors.safetensors");
        let written = views.and_then(|views| safetensors::serialize(views, None));
        let file = written.map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        files::write(&path, &file).map_err(|error| error.to_string())?;
        files::protect_output(&path);
        Ok(())
    }
}

fn failed(path: &Path, error: std::io::Error) -> String {
    format!("cannot write `{}`: {error}", path.display())
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
    }
}
