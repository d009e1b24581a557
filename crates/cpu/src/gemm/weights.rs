//! [`Weights`]: whether an operand was packed when the plan was written.

use serde::{Deserialize, Serialize};

/// Where a kernel's weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weights {
    /// Packed by the kernel's `pack`, when the plan was written.
    Packed,
    /// In the order of the model; each run packs them into the workspace.
    Dynamic,
}

impl Weights {
    /// Elements of the operand and of the workspace, given the operand's elements `[plain, packed]` and the elements that the
    /// workspace has apart from packed weights.
    pub(crate) fn elements(
        self,
        [plain, packed]: [Option<usize>; 2],
        workspace: Option<usize>,
    ) -> (Option<usize>, Option<usize>) {
        match self {
            Weights::Packed => (packed, workspace),
            Weights::Dynamic => {
                (plain, workspace.zip(packed).and_then(|(workspace, packed)| workspace.checked_add(packed)))
            }
        }
    }
}
