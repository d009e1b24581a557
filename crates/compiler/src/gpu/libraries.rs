//! [`Libraries`]: `--cudnn` and `--cublas` on command lines.

use cuda::MathMode;
use types::Bytes;

use super::Precision;

/// NVIDIA's libraries that a plan may use, with their arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Convolutions by cuDNN. `None`: emitted kernels.
    pub cudnn: Option<MathMode>,
    /// Products by cuBLASLt. `None`: emitted kernels.
    pub cublas: Option<MathMode>,
    /// The most workspace of a cuBLASLt product. `None`: the size that NVIDIA recommends.
    pub cublas_workspace: Option<Bytes>,
}

impl Libraries {
    /// Whether a library is enabled.
    pub fn any(self) -> bool {
        self.cudnn.is_some() || self.cublas.is_some()
    }

    /// Whether a library rounds `f32` operands to TF32.
    pub fn rounds(self) -> bool {
        [self.cudnn, self.cublas].contains(&Some(MathMode::Tf32))
    }

    /// The arithmetic for one precision: `tf32` rounds in libraries too.
    pub fn of(mut self, precision: Precision) -> Libraries {
        if precision == Precision::Tf32 {
            [&mut self.cudnn, &mut self.cublas].into_iter().flatten().for_each(|math| *math = MathMode::Tf32);
        }
        self
    }

    /// Applies exact arithmetic, and rejects contradictions with the precisions and between the options.
    ///
    /// # Errors
    /// Two options exclude each other, or one requires another.
    pub fn resolve(mut self, exact: bool, precisions: &[Precision]) -> Result<Libraries, String> {
        if self.cublas.is_none() && self.cublas_workspace.is_some() {
            return Err("a workspace of cuBLASLt requires cuBLASLt".into());
        }
        for (library, math) in [("cuDNN", &mut self.cudnn), ("cuBLASLt", &mut self.cublas)] {
            match math {
                Some(MathMode::Tf32) if exact => {
                    return Err(format!("TF32 in {library} and exact algorithms exclude each other"));
                }
                Some(MathMode::Tf32) if precisions.iter().any(|precision| precision.dtype().is_half()) => {
                    return Err(format!(
                        "TF32 in {library} rounds operands of f32, but values are in half precision; leave out one of them"
                    ));
                }
                Some(MathMode::Strict) if exact => *math = Some(MathMode::Exact),
                _ => {}
            }
        }
        Ok(self)
    }
}
