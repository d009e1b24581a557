//! Text for terminals: truncation, padding, bars of characters. Widths are in characters.

use std::ops::Range;

/// Shortens to `width` characters. The middle is replaced by `..`, so that both ends of a path remain.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_string();
    }
    if width < 4 {
        return text.chars().take(width).collect();
    }
    let tail = (width - 2) * 2 / 3;
    let head = width - 2 - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}..{end}")
}

/// Shortens texts to `width` characters so that they still differ: first the directories that all long ones share, then
/// the middle of each.
pub(crate) fn fit_all(texts: &[&str], width: usize) -> Vec<String> {
    let long: Vec<&str> = texts.iter().copied().filter(|text| width < text.chars().count()).collect();
    let mut shared = long.first().map_or("", |first| first.rsplit_once('/').map_or("", |(head, _)| head));
    while !shared.is_empty() && !long.iter().all(|text| text.strip_prefix(shared).is_some_and(|t| t.starts_with('/'))) {
        shared = shared.rsplit_once('/').map_or("", |(head, _)| head);
    }
    let short = |text: &&str| match text.strip_prefix(shared) {
        Some(rest) if !shared.is_empty() && width < text.chars().count() => fit(&format!("..{rest}"), width),
        _ => fit(text, width),
    };
    texts.iter().map(short).collect()
}

/// Truncates or pads to exactly `width` characters.
pub(crate) fn pad(text: &str, width: usize) -> String {
    let text = fit(text, width);
    let missing = width - text.chars().count();
    text + &" ".repeat(missing)
}

/// A bar for `part` of `whole` in at most `width` characters.
pub(crate) fn bar(part: u64, whole: u64, width: usize) -> String {
    "#".repeat(scale(part, whole, width))
}

/// `part` of `whole` scaled to `width`; at least 1 if `part` is not 0, and at most `width`.
pub(crate) fn scale(part: u64, whole: u64, width: usize) -> usize {
    let scaled = (part as f64 / whole.max(1) as f64 * width as f64).round() as usize;
    scaled.max(usize::from(0 < part)).min(width)
}

/// `part` of `whole` in percent.
pub(crate) fn percent(part: i64, whole: i64) -> f64 {
    100.0 * part as f64 / (whole as f64).abs().max(1.0)
}

/// Wraps words at `width` characters; lines after the first are indented.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let words = text.trim_start();
    let mut lines = vec![" ".repeat(text.len() - words.len())];
    for word in words.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.trim().is_empty() || line.chars().count() + 1 + word.chars().count() <= width {
            if !line.trim().is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        } else {
            lines.push(" ".repeat(indent) + &fit(word, width.saturating_sub(indent)));
        }
    }
    lines.join("\n")
}

/// The steps of each column of a picture: several columns per step if there is room, else several steps per column.
pub(crate) fn columns(steps: usize, width: usize) -> Vec<Range<usize>> {
    let room = width.saturating_sub(14).clamp(8, 1000);
    let columns = room.min(steps * (room / steps.max(1)).max(1)).max(1);
    let range = |column: usize| {
        let first = column * steps / columns;
        first..((column + 1) * steps / columns).max(first + 1)
    };
    (0..columns).map(range).collect()
}

/// A line with a mark under the first column of a step; its text is on the side with more room.
pub(crate) fn mark(columns: &[Range<usize>], step: u32, width: usize) -> String {
    let at = 13 + columns.iter().position(|steps| steps.contains(&(step as usize))).unwrap_or(0);
    let (before, text) = (at - 1, format!("peak, step {step}"));
    match at + 2 + text.len() <= width {
        true => format!("{}^ {text}", " ".repeat(at)),
        false => format!("{text:>before$} ^"),
    }
}

/// Entries in rows of at most `width` characters, all indented.
pub(crate) fn list(entries: &[String], width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for entry in entries {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + entry.chars().count() <= width => {
                line.push_str("  ");
                line.push_str(entry);
            }
            _ => lines.push(" ".repeat(indent) + entry),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_loses_its_middle() {
        assert_eq!(fit("layer1/0/conv1", 14), "layer1/0/conv1");
        assert_eq!(fit("encoder/layer/0/attention", 14), "enco..ttention");
        assert_eq!(pad("ab", 4), "ab  ");
        assert_eq!(fit("abcdef", 3), "abc");
    }

    #[test]
    fn shortened_names_keep_the_part_that_differs() {
        let names =
            ["encoder/layer/attention/self/query/heads/left", "encoder/layer/attention/self/key/heads/left", "a"];
        assert_eq!(fit_all(&names, 24), ["../query/heads/left", "../key/heads/left", "a"]);
        assert_eq!(fit_all(&names, 80), names);
        assert_eq!(fit_all(&[], 8), Vec::<String>::new());
    }

    #[test]
    fn bars_show_something_where_there_is_something() {
        assert_eq!((bar(1, 1_000_000, 10), bar(0, 10, 10), bar(10, 10, 4)), ("#".into(), String::new(), "####".into()));
    }

    #[test]
    fn lines_are_wrapped_at_words() {
        assert_eq!(wrap(" one two three", 8, 2), " one two\n  three");
    }
}
