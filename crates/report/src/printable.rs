//! [`printable()`]: text for a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with control characters as `\u001b`, except line ends and tabs. Names in reports and messages come from models
/// and profiles; a terminal obeys escape sequences in them, and shows text after a change of direction in another order.
///
/// The form is that of JSON strings, so that printed JSON keeps its values.
///
/// ```
/// assert_eq!(prestow_report::printable("conv\u{1b}[2J\n"), "conv\\u001b[2J\n");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut printed = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            let _ = write!(printed, "\\u{:04x}", u32::from(c));
        } else {
            printed.push(c);
        }
    }
    Cow::Owned(printed)
}

/// Most characters of a message.
const MESSAGE_MAX: usize = 4000;

/// A message as [`printable()`] text, cut off after 4,000 characters: a name that it quotes may have megabytes.
///
/// ```
/// assert_eq!(prestow_report::printable_message("no node `a`"), "no node `a`");
/// ```
pub fn printable_message(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MESSAGE_MAX) {
        None => printable(text),
        Some((end, _)) => {
            let rest = text[end..].chars().count();
            format!("{} .. ({rest} more characters)", printable(&text[..end])).into()
        }
    }
}

/// Whether a character changes the state of a terminal or the order of text: a control character, a line or paragraph
/// separator, explicit directional formatting (Unicode Standard Annex 9, section 2).
fn is_unsafe(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    is_direction || is_separator || c.is_control() && !matches!(c, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_off_between_characters() {
        let (short, long) = ("é".repeat(MESSAGE_MAX), "é".repeat(MESSAGE_MAX + 7));
        assert_eq!(printable_message(&short), short);
        assert_eq!(printable_message(&long), format!("{short} .. (7 more characters)"));
    }

    #[test]
    fn control_characters_and_directions_are_escaped() {
        assert_eq!(printable("a\tb\nc"), "a\tb\nc");
        assert_eq!(
            printable("\u{9b}31m \u{7f}\r\u{202e}x\u{2069}\u{61c}"),
            "\\u009b31m \\u007f\\u000d\\u202ex\\u2069\\u061c"
        );
        assert_eq!(printable("größe 日本"), "größe 日本");
    }
}
