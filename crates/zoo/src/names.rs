//! [`Names`]: patterns that map the tensor names of a file to those of a network.

use std::collections::BTreeMap;

use types::Tensor;

use crate::ZooError;

/// A list of patterns as text: each line has the name in the file, blanks, and the name in the network.
///
/// - `*` matches one or more characters that are neither `.` nor `/`; the first on the right is what the first on the
///   left stood for, and so on.
/// - The first matching line is used. A name without a match is unchanged.
/// - `-` on the right leaves tensors out. `#` begins a comment.
///
/// ```
/// let names = prestow_zoo::Names::parse("block*_conv.kernel  layer*.conv.weight").unwrap();
/// assert_eq!(names.rename("block3_conv.kernel").as_deref(), Some("layer3.conv.weight"));
/// assert_eq!(names.rename("head.bias").as_deref(), Some("head.bias"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(Vec<(String, String)>);

impl Names {
    /// Reads the text form.
    ///
    /// # Errors
    /// A line that has not two words, or more stars on the right than on the left, by its number.
    pub fn parse(text: &str) -> Result<Names, ZooError> {
        let mut rows = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let refused = |problem: String| Err(ZooError::Names(format!("line {number}: {problem}")));
            match words[..] {
                [] => {}
                [from, to] if from.matches('*').count() < to.matches('*').count() => {
                    return refused(format!("`{to}` has more stars than `{from}`"));
                }
                [from, to] => rows.push((from.to_string(), to.to_string())),
                _ => return refused(format!("two patterns belong on a line, not `{}`", line.trim())),
            }
        }
        Ok(Names(rows))
    }

    /// The name of a tensor in the network; `None` if it is dropped.
    pub fn rename(&self, name: &str) -> Option<String> {
        for (from, to) in &self.0 {
            let mut stars = Vec::new();
            if fits(from, name, &mut stars) {
                let mut stars = stars.into_iter();
                let filled =
                    to.split('*').map(str::to_string).reduce(|out, part| out + stars.next().unwrap_or("") + &part);
                return filled.filter(|name| name != "-");
            }
        }
        Some(name.to_string())
    }

    /// Renames the tensors of a file.
    ///
    /// # Errors
    /// Two tensors that get one name.
    pub fn apply(&self, tensors: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, ZooError> {
        let mut renamed = BTreeMap::new();
        for (name, tensor) in tensors {
            let Some(new) = self.rename(&name) else { continue };
            if renamed.insert(new.clone(), tensor).is_some() {
                return Err(ZooError::Names(format!("two tensors become `{new}`, one of them is `{name}`")));
            }
        }
        Ok(renamed)
    }
}

/// Whether a pattern matches a whole name; `stars` has the texts that its stars match.
fn fits<'n>(pattern: &str, name: &'n str, stars: &mut Vec<&'n str>) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    let run = name.find(['.', '/']).unwrap_or(name.len());
    // The shortest first.
    for end in name.char_indices().map(|(at, char)| at + char.len_utf8()).take_while(|&end| end <= run) {
        stars.push(&name[..end]);
        if fits(rest, &name[end..], stars) {
            return true;
        }
        stars.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        Names::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn stars_stand_for_runs_without_separators() {
        let names = names("a.*.b.*  c.*.*\n*_x_*  *.x.*\nfixed - # gone\n");
        assert_eq!(names.rename("a.1.b.weight").as_deref(), Some("c.1.weight"));
        assert_eq!(names.rename("a.1.2.b.weight").as_deref(), Some("a.1.2.b.weight"));
        assert_eq!(names.rename("p_q_x_r").as_deref(), Some("p_q.x.r"));
        assert_eq!(names.rename("_x_r").as_deref(), Some("_x_r"));
        assert_eq!(names.rename("fixed"), None);
    }

    #[test]
    fn invalid_list_of_names_is_refused() {
        let error = |text: &str| Names::parse(text).expect_err("it is refused").to_string();
        assert_eq!(error("a b\n\na b c"), "names: line 3: two patterns belong on a line, not `a b c`");
        assert_eq!(error("a.* b.*.*"), "names: line 1: `b.*.*` has more stars than `a.*`");
        let tensors = ["a.1", "b.1"].map(|name| (name.to_string(), Tensor::scalar(0.0f32)));
        let error = names("a.* c\nb.* c").apply(tensors.into()).expect_err("both become one").to_string();
        assert_eq!(error, "names: two tensors become `c`, one of them is `b.1`");
    }
}
