//! [`Svg`]: a self-contained picture in light and dark mode, with the patterns of `palette`.

use std::fmt::{self, Write};

use super::palette::{LAYER_COLORS, Pattern, STYLES, style};

/// A picture under construction.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1b1b1b}text.small{font-size:10px}text.title{font-size:15px;font-weight:600}\
text.end{text-anchor:end}text.mid{text-anchor:middle}.paper{fill:#fff}.axis{stroke:#777;fill:none}\
.edge{stroke:#0006;stroke-width:.5}.peak{stroke:#c00;stroke-width:1.5;stroke-dasharray:5 3;fill:none}\
.actual{stroke:#000;stroke-width:1.5;fill:none}.ink{stroke:#0007;stroke-width:1.2;fill:none}.dot{fill:#0007}\
@media(prefers-color-scheme:dark){text{fill:#eee}.paper{fill:#16181c}.axis{stroke:#999}.actual{stroke:#fff}\
.peak{stroke:#ff6b6b}text.on{fill:#111}}text.on{fill:#111}";

/// The quantity that a shape represents, written as an attribute, so that pictures can be added up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// No quantity.
    None,
    /// Bytes, as `data-bytes`; negative only for untrackable memory.
    Bytes(i128),
    /// Size times lifetime in steps, as `data-byte-steps`.
    ByteSteps(u128),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::None => Ok(()),
            Amount::Bytes(bytes) => write!(f, " data-bytes=\"{bytes}\""),
            Amount::ByteSteps(byte_steps) => write!(f, " data-byte-steps=\"{byte_steps}\""),
        }
    }
}

impl Svg {
    /// An empty picture.
    pub(crate) fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// A rectangle in the style of a role, with a text on hover.
    pub(crate) fn rect(&mut self, [x, y, width, height]: [f64; 4], role: &str, title: &str, amount: Amount) {
        let style = style(role);
        let size = format!("x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"");
        let _ = write!(
            self.body,
            "<g{amount}><title>{}</title><rect {size} fill=\"{}\" class=\"edge\"/>",
            escape(title),
            style.color
        );
        if style.pattern != Pattern::Plain {
            let _ = write!(self.body, "<rect {size} fill=\"url(#{})\"/>", style.pattern.name());
        }
        self.body.push_str("</g>\n");
    }

    /// A rectangle in the color of a layer or scope, with a text on hover.
    pub(crate) fn layer(&mut self, [x, y, width, height]: [f64; 4], at: usize, title: &str, amount: Amount) {
        let _ = writeln!(
            self.body,
            "<g{amount}><title>{}</title><rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" \
             fill=\"{}\" class=\"edge\"/></g>",
            escape(title),
            LAYER_COLORS[at % LAYER_COLORS.len()]
        );
    }

    /// A text with classes: `small`, `title`, `end`, `mid`, `on` (on a colored background).
    pub(crate) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(self.body, "<text x=\"{x:.2}\" y=\"{y:.2}\" class=\"{class}\">{}</text>", escape(text));
    }

    /// A line through points.
    pub(crate) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// A closed shape in the style of a role.
    pub(crate) fn area(&mut self, points: &[(f64, f64)], role: &str, amount: Amount) {
        let style = style(role);
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let points = points.join(" ");
        let _ = write!(
            self.body,
            "<g{amount}><title>{}</title><polygon points=\"{points}\" fill=\"{}\"/>",
            escape(role),
            style.color
        );
        if style.pattern != Pattern::Plain {
            let _ = write!(self.body, "<polygon points=\"{points}\" fill=\"url(#{})\"/>", style.pattern.name());
        }
        self.body.push_str("</g>\n");
    }

    /// A legend of roles at height `y`.
    pub(crate) fn legend(&mut self, x: f64, y: f64, roles: &[String]) {
        let mut at = x;
        for role in roles {
            let name = role;
            self.rect([at, y, 14.0, 14.0], role, name, Amount::None);
            self.text(at + 18.0, y + 11.5, "small", name);
            at += 34.0 + 6.2 * name.len() as f64;
        }
    }

    /// The complete file.
    pub(crate) fn finish(self) -> String {
        let (width, height) = (self.width, self.height);
        let mut defs = String::new();
        for (_, style) in STYLES {
            let def = pattern(style.pattern);
            if !defs.contains(&def) {
                defs.push_str(&def);
            }
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n<defs>{defs}</defs>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn pattern(pattern: Pattern) -> String {
    let marks = match pattern {
        Pattern::Plain => return String::new(),
        Pattern::Rising => "<path class=\"ink\" d=\"M-2,10L10,-2M4,10L10,4M-2,4L4,-2\"/>",
        Pattern::Falling => "<path class=\"ink\" d=\"M-2,-2L10,10M4,-2L10,4M-2,4L4,10\"/>",
        Pattern::Crossed => "<path class=\"ink\" d=\"M-2,10L10,-2M-2,-2L10,10\"/>",
        Pattern::Level => "<path class=\"ink\" d=\"M0,4H8\"/>",
        Pattern::Upright => "<path class=\"ink\" d=\"M4,0V8\"/>",
        Pattern::Dotted => "<circle class=\"dot\" cx=\"4\" cy=\"4\" r=\"1.3\"/>",
    };
    let name = pattern.name();
    format!("<pattern id=\"{name}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">{marks}</pattern>")
}

/// Escapes text for XML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML allows no other control characters.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
