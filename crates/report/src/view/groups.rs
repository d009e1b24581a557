//! [`Groups`]: categories by keywords from a TOML file, as MXNet's memory profiler had them.
//!
//! ```toml
//! [layer]
//! Attention = ["attention", "/att"]
//!
//! [data_structure]
//! Parameters = ["in_arg", "arg_grad"]
//! Workspace = ["workspace", "temp_space"]
//! ```
//!
//! Categories are tried in the order of the file, and the first match takes the bytes, so that no byte is counted
//! twice. A keyword matches anywhere in a tag: of an imported profile in its own text; of a plan in MXNet's notation, in
//! the older one (`data_entry:NAME_oedge0`), or in ours.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Ordered categories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// For the bar by layer.
    pub layer: Vec<Group>,
    /// For the bar by data structure.
    pub data_structure: Vec<Group>,
}

/// A category.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Keywords. A tag must contain one of them.
    pub keywords: Vec<String>,
}

/// A text is not a valid file of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupsError(String);

impl std::fmt::Display for GroupsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; write [layer] and [data_structure] with lines `Name = [\"keyword\", ..]`", self.0)
    }
}

impl std::error::Error for GroupsError {}

/// Category of unmatched bytes.
pub(crate) const OTHERS: &str = "Others";
/// Category of expected bytes without a tag.
pub(crate) const UNTRACKABLE: &str = "Untrackable";

/// The deepest nesting of a file, and the most points in one name.
const DEPTH_MAX: i64 = 127;

impl Groups {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The line that is invalid, and the reason.
    pub fn parse(text: &str) -> Result<Groups, GroupsError> {
        // The reader recurses, and takes quadratic time for names of many parts.
        let mut depth = 0;
        let is_deep = text.lines().any(|line| {
            let count = |brackets: [char; 2]| line.matches(brackets).count() as i64;
            let deepest = depth + count(['[', '{']);
            depth = deepest - count([']', '}']);
            let is_long = |name: &str| DEPTH_MAX < name.matches('.').count() as i64;
            DEPTH_MAX < deepest || line.split(['=', ',', '{']).any(is_long)
        });
        if is_deep {
            return Err(GroupsError(format!("tables and lists must be nested at most {DEPTH_MAX} times")));
        }
        let file: File = basic_toml::from_str(text).map_err(|error| GroupsError(error.to_string()))?;
        let groups = Groups { layer: file.layer.0, data_structure: file.data_structure.0 };
        let all = || groups.layer.iter().chain(&groups.data_structure);
        if let Some(group) = all().find(|group| [OTHERS, UNTRACKABLE].contains(&&group.name[..])) {
            return Err(GroupsError(format!("`{}` is the name of the rest; choose another name", group.name)));
        }
        if let Some(group) = all().find(|group| group.keywords.iter().any(String::is_empty)) {
            return Err(GroupsError(format!("`{}` has an empty keyword, which every tag contains", group.name)));
        }
        Ok(groups)
    }
}

/// The first category with a keyword in one of the tags.
pub(crate) fn first_match<'a>(groups: &'a [Group], tags: &[&str]) -> Option<&'a str> {
    let hits = |group: &&Group| group.keywords.iter().any(|word| tags.iter().any(|tag| tag.contains(&word[..])));
    groups.iter().find(hits).map(|group| &group.name[..])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    layer: Table,
    #[serde(default)]
    data_structure: Table,
}

/// A table in the order of its lines.
#[derive(Default)]
struct Table(Vec<Group>);

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Table, D::Error> {
        struct Rows;
        impl<'de> Visitor<'de> for Rows {
            type Value = Table;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("lines `Name = [\"keyword\", ..]`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Table, A::Error> {
                let mut rows = Vec::new();
                while let Some((name, keywords)) = map.next_entry()? {
                    rows.push(Group { name, keywords });
                }
                Ok(Table(rows))
            }
        }
        deserializer.deserialize_map(Rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_file_decides() {
        let groups = Groups::parse("[layer]\nZ = [\"rnn\"]\nA = [\"rnn/0\", \"att\"]\n").expect("it is TOML");
        assert_eq!(first_match(&groups.layer, &["rnn/0"]), Some("Z"));
        assert_eq!(first_match(&groups.layer, &["x", "attention"]), Some("A"));
        assert_eq!(first_match(&groups.layer, &["conv"]), None);
    }

    #[test]
    fn invalid_group_file_is_refused() {
        for text in
            ["layer = 3", "[lair]\n", "[layer]\nA = \"x\"", "[layer]\nOthers = [\"x\"]", "[layer]\nA=[\"\"]", "["]
        {
            let error = Groups::parse(text).expect_err(text).to_string();
            assert!(error.contains("[layer]"), "{error}");
        }
    }

    #[test]
    fn deep_group_file_is_refused() {
        for text in [format!("a = {}", "[".repeat(50_000)), format!("[{}a]\nx = 1", "a.".repeat(20_000))] {
            let error = Groups::parse(&text).expect_err("it is deep").to_string();
            assert!(error.starts_with("tables and lists must be nested at most 127 times"), "{error}");
        }
        let many: String = (0..500).map(|ix| format!("A{ix} = [\n  \"x\",\n]\n")).collect();
        assert!(Groups::parse(&format!("[layer]\n{many}")).is_ok(), "many lists are not deep");
        let names: String = (0..500).map(|ix| format!("\"stage.{ix}.conv\", ")).collect();
        assert!(Groups::parse(&format!("[layer]\nA = [{names}]\n")).is_ok(), "many names are not deep");
    }
}
