//! Discouraged words in comments, counted for each package.
//!
//! A sentence with one of them mostly has a shorter form with the field's noun: *run-time input* instead of a clause.

use std::fs;
use std::path::{Path, PathBuf};

use super::ratchet::Ratchet;
use super::{each_file, is_generated};
use crate::root;

/// The words and pairs of words.
const DISCOURAGED: [&str; 16] = [
    "what",
    "nobody",
    "whoever",
    "beside",
    "lies",
    "stands",
    "so many",
    "none where",
    "of which",
    "is none",
    "likes",
    "wants",
    "knows",
    "asks",
    "tells",
    "says",
];

/// Folders of packages, and packages.
const PARENTS: [&str; 2] = ["crates", "tools"];
const PACKAGES: [&str; 6] = ["xtask", "tests", "benches", "interop", "cuda", "examples"];

/// Counts the words of every package.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn count(ratchet: &mut Ratchet) -> Result<(), String> {
    for package in packages()? {
        let mut text = Text::default();
        for extension in ["rs", "cu", "cpp", "h"] {
            each_file(&root().join(&package), extension, &mut |_, source| text.add(source))?;
        }
        if 0 < text.words {
            ratchet.count(format!("words {}", package.display()), text.rate(), text.detail());
        }
    }
    Ok(())
}

/// The packages, relative to the root.
fn packages() -> Result<Vec<PathBuf>, String> {
    let mut packages: Vec<PathBuf> =
        PACKAGES.map(PathBuf::from).into_iter().filter(|own| root().join(own).is_dir()).collect();
    for parent in PARENTS {
        for entry in fs::read_dir(root().join(parent)).map_err(|error| format!("cannot list {parent}/: {error}"))? {
            packages.push(Path::new(parent).join(entry.map_err(|error| error.to_string())?.file_name()));
        }
    }
    packages.sort();
    Ok(packages)
}

/// Words of comments and the discouraged ones among them.
#[derive(Default)]
struct Text {
    words: usize,
    hits: [usize; DISCOURAGED.len()],
}

impl Text {
    /// Adds the comments of a source file that no program wrote.
    fn add(&mut self, source: &str) {
        if is_generated(source) {
            return;
        }
        let comments: Vec<String> = source.lines().filter_map(comment).map(str::to_lowercase).collect();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '\'' | '-');
        let words: Vec<&str> = comments
            .iter()
            .flat_map(|line| line.split(|letter| !is_part(letter)))
            .filter(|word| !word.is_empty())
            .collect();
        self.words += words.len();
        for (hits, entry) in self.hits.iter_mut().zip(DISCOURAGED) {
            *hits += match entry.split_once(' ') {
                Some((first, second)) => words.windows(2).filter(|pair| pair[0] == first && pair[1] == second).count(),
                None => words.iter().filter(|word| **word == entry).count(),
            };
        }
    }

    /// Hits in 1000 words.
    fn rate(&self) -> f64 {
        1000.0 * self.hits.iter().sum::<usize>() as f64 / self.words as f64
    }

    /// The words that occur, most frequent first.
    fn detail(&self) -> String {
        let mut hits: Vec<(usize, &str)> =
            self.hits.into_iter().zip(DISCOURAGED).filter(|(count, _)| 0 < *count).collect();
        hits.sort_by(|a, b| b.cmp(a));
        let hits: Vec<String> = hits.iter().map(|(count, word)| format!("{count} x `{word}`")).collect();
        format!("{} in {} words", hits.join(", "), self.words)
    }
}

/// The comment of a line. Lines with addresses have none.
fn comment(line: &str) -> Option<&str> {
    let (_, comment) = line.split_once("//").filter(|_| !line.contains("http"))?;
    Some(comment.trim_start_matches(['/', '!']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_pairs_are_counted_in_comments_only() {
        let mut text = Text::default();
        text.add("//! What it does, so\nlet what = 1; // many a time\n// see https://example.com/what\n");
        assert_eq!((text.words, text.hits[0], text.hits[6]), (7, 1, 1));
        assert_eq!(text.detail(), "1 x `what`, 1 x `so many` in 7 words");
    }
}
