//! [`Style`]: color, pattern and letter of a role. The colors are those of Okabe and Ito, which remain distinct with
//! color vision deficiency. Each role also has a pattern and a letter, so that color is never the only distinction.

/// The appearance of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Its colour, as `#rrggbb`.
    pub(crate) color: &'static str,
    /// The pattern over the color.
    pub(crate) pattern: Pattern,
    /// The letter in pictures made of characters.
    pub(crate) letter: char,
}

/// A pattern over a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// No pattern.
    Plain,
    /// Diagonal lines, rising to the right.
    Rising,
    /// Diagonal lines, falling to the right.
    Falling,
    /// Both diagonals.
    Crossed,
    /// Horizontal lines.
    Level,
    /// Vertical lines.
    Upright,
    /// Dots.
    Dotted,
}

impl Pattern {
    /// Its identifier in pictures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Plain => "plain",
            Pattern::Rising => "rising",
            Pattern::Falling => "falling",
            Pattern::Crossed => "crossed",
            Pattern::Level => "level",
            Pattern::Upright => "upright",
            Pattern::Dotted => "dotted",
        }
    }
}

/// Every role and category with its style, in stacking order.
pub(crate) const STYLES: [(&str, Style); 15] = [
    ("weight", Style { color: "#009e73", pattern: Pattern::Plain, letter: 'W' }),
    ("constant", Style { color: "#56b4e9", pattern: Pattern::Dotted, letter: 'C' }),
    ("state", Style { color: "#f0e442", pattern: Pattern::Level, letter: 'S' }),
    ("input", Style { color: "#56b4e9", pattern: Pattern::Rising, letter: 'I' }),
    ("output", Style { color: "#0072b2", pattern: Pattern::Falling, letter: 'O' }),
    ("activation", Style { color: "#e69f00", pattern: Pattern::Plain, letter: 'A' }),
    ("weight_gradient", Style { color: "#d55e00", pattern: Pattern::Rising, letter: 'G' }),
    ("activation_gradient", Style { color: "#d55e00", pattern: Pattern::Falling, letter: 'D' }),
    ("optimizer_state", Style { color: "#f0e442", pattern: Pattern::Crossed, letter: 'M' }),
    ("workspace", Style { color: "#cc79a7", pattern: Pattern::Upright, letter: 'K' }),
    ("unknown", Style { color: "#999999", pattern: Pattern::Dotted, letter: '?' }),
    ("padding", Style { color: "#666666", pattern: Pattern::Dotted, letter: ',' }),
    ("free", Style { color: "#e4e6ea", pattern: Pattern::Plain, letter: '.' }),
    ("residual", Style { color: "#999999", pattern: Pattern::Level, letter: 'R' }),
    ("untrackable", Style { color: "#bbbbbb", pattern: Pattern::Rising, letter: 'U' }),
];

/// Colors of layers and scopes, which are no roles: pale, so that dark text is legible (Paul Tol's pale scheme).
pub(crate) const LAYER_COLORS: [&str; 6] = ["#bbccee", "#cceeff", "#ccddaa", "#eeeebb", "#ffcccc", "#dddddd"];

/// The style of a role or category; that of `unknown` for other names.
pub(crate) fn style(role: &str) -> Style {
    let found = STYLES.iter().find(|(name, _)| *name == role.to_ascii_lowercase());
    found.map_or(STYLES[10].1, |(_, style)| *style)
}

/// Position of a role in a stack.
pub(crate) fn rank(role: &str) -> usize {
    STYLES.iter().position(|(name, _)| *name == role).unwrap_or(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_look_of_its_own() {
        for (at, (name, style)) in STYLES.iter().enumerate() {
            for (other, against) in &STYLES[..at] {
                assert_ne!(style.letter, against.letter, "{name} and {other}");
                assert_ne!((style.color, style.pattern), (against.color, against.pattern), "{name} and {other}");
            }
            assert!(!LAYER_COLORS.contains(&style.color), "{name} has the color of a layer");
        }
        for role in types::Role::ALL {
            assert!(STYLES.iter().any(|(name, _)| *name == role.name()), "{role}");
        }
    }
}
