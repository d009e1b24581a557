//! [`Style`]: how a role looks. Colours are those of Okabe and Ito, which people who see colours differently can tell apart;
//! each role has a pattern and a letter of its own beside, so that colour is never the only sign.

/// How something looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Its colour, as `#rrggbb`.
    pub(crate) color: &'static str,
    /// What is drawn over it.
    pub(crate) pattern: Pattern,
    /// What stands for it in pictures made of characters.
    pub(crate) letter: char,
}

/// What is drawn over a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Nothing.
    Plain,
    /// Lines up to the right.
    Rising,
    /// Lines down to the right.
    Falling,
    /// Both.
    Crossed,
    /// Level lines.
    Level,
    /// Upright lines.
    Upright,
    /// Dots.
    Dotted,
}

impl Pattern {
    /// Its name in pictures.
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

/// Every role and category with its style, in the order in which they are stacked.
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
    ("hole", Style { color: "#cccccc", pattern: Pattern::Crossed, letter: '.' }),
    ("residual", Style { color: "#999999", pattern: Pattern::Level, letter: 'R' }),
    ("untrackable", Style { color: "#bbbbbb", pattern: Pattern::Rising, letter: 'U' }),
];

/// The style of a role or category; that of `unknown` for a name that is none.
pub(crate) fn style(role: &str) -> Style {
    let found = STYLES.iter().find(|(name, _)| *name == role.to_ascii_lowercase());
    found.map_or(STYLES[10].1, |(_, style)| *style)
}

/// Where a role stands in a stack.
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
        }
        for role in types::Role::ALL {
            assert!(STYLES.iter().any(|(name, _)| *name == role.name()), "{role}");
        }
    }
}
