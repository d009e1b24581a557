//! MXNet's `gluon.model_zoo.vision`, all 34 networks, at inference. Parameters are called as `save_parameters` calls them.
//!
//! Source: MXNet 1.9.1. Children of a sequence are numbered through, those without parameters as well: [`Children`].

pub(crate) mod alexnet;
pub(crate) mod densenet;
pub(crate) mod inception;
pub(crate) mod mobilenet;
pub(crate) mod resnet;
pub(crate) mod squeezenet;
pub(crate) mod vgg;

/// The names of a `HybridSequential`'s children, in order.
pub(super) struct Children {
    parent: String,
    next: usize,
}

impl Children {
    pub(super) fn of(parent: impl Into<String>) -> Children {
        Children { parent: parent.into(), next: 0 }
    }

    /// The next child's name.
    pub(super) fn next(&mut self) -> String {
        self.next += 1;
        format!("{}.{}", self.parent, self.next - 1)
    }

    /// Passes over a child that does nothing at inference.
    pub(super) fn skip(&mut self) {
        self.next += 1;
    }
}
