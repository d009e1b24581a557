//! [`Tag`]: the name of a buffer or constant, a scope and a role.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The path of a node's name, parts separated by `/`: `stage1/block2/conv1`. Comes from the file or the builder.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(String);

impl Scope {
    /// A scope from a path; empty parts are removed (`/a//b` is `a/b`).
    pub fn new(path: &str) -> Scope {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        Scope(parts.join("/"))
    }

    /// The scope `name` below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Scope {
        Scope::new(&format!("{}/{name}", self.0))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first `depth` parts.
    #[must_use]
    pub fn prefix(&self, depth: usize) -> Scope {
        Scope(self.0.split('/').take(depth).collect::<Vec<_>>().join("/"))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The purpose of a buffer. Roles are exclusive; they come from the graph, never from matching strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Bytes the caller writes before a run.
    Input,
    /// Bytes the caller reads after a run.
    Output,
    /// A learned parameter.
    Weight,
    /// A constant that is not learned.
    Constant,
    /// State that survives a run (recurrent state, running statistics).
    State,
    /// An intermediate result.
    Activation,
    /// The gradient of a weight.
    WeightGradient,
    /// The gradient of an activation.
    ActivationGradient,
    /// State of an optimizer between updates.
    OptimizerState,
    /// A kernel's scratch, alive for one step.
    Workspace,
    /// Bytes between a buffer's size and its aligned size.
    Padding,
    /// Arena bytes in no live buffer at the peak.
    Free,
}

impl Role {
    /// All roles, in the order of reports.
    pub const ALL: [Role; 12] = [
        Role::Input,
        Role::Output,
        Role::Weight,
        Role::Constant,
        Role::State,
        Role::Activation,
        Role::WeightGradient,
        Role::ActivationGradient,
        Role::OptimizerState,
        Role::Workspace,
        Role::Padding,
        Role::Free,
    ];

    /// The name as printed and as written to JSON: `weight_gradient`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Input => "input",
            Role::Output => "output",
            Role::Weight => "weight",
            Role::Constant => "constant",
            Role::State => "state",
            Role::Activation => "activation",
            Role::WeightGradient => "weight_gradient",
            Role::ActivationGradient => "activation_gradient",
            Role::OptimizerState => "optimizer_state",
            Role::Workspace => "workspace",
            Role::Padding => "padding",
            Role::Free => "free",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Scope and role. Prints as `layer1/0/conv1:activation`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// The node that the bytes belong to.
    pub scope: Scope,
    /// Their purpose.
    pub role: Role,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.scope, self.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_paths() {
        assert_eq!(Scope::new("/a//b/").as_str(), "a/b");
        assert_eq!(Scope::new("a").child("b/c").as_str(), "a/b/c");
        assert_eq!(Scope::new("a/b/c").prefix(2).as_str(), "a/b");
        assert_eq!(Tag { scope: Scope::new("a/b"), role: Role::WeightGradient }.to_string(), "a/b:weight_gradient");
    }
}
