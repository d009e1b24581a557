//! [`ResultTable`]: results as text, CSV, Markdown, and a page with bars.

use std::fmt::Write;

/// A titled table of text cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultTable {
    /// The title.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, a cell for each column.
    pub rows: Vec<Vec<String>>,
    /// The plot of its numbers on a page.
    pub plot: Plot,
}

/// A plot of a table's numbers. The first column names lines and bars.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Plot {
    /// None.
    #[default]
    None,
    /// A line for each row, over the numbers in the heads of the columns.
    Columns {
        /// The name of the columns' parameter.
        over: String,
        /// The name of the cells' value.
        value: String,
    },
    /// For each of `ys` a plot over the column `x`, with a line for all rows of one name.
    Lines {
        /// The column of the horizontal axis.
        x: usize,
        /// The columns of the vertical axes.
        ys: Vec<usize>,
    },
    /// For each row a bar of each of these columns.
    Bars(Vec<usize>),
}

impl Plot {
    /// The attributes of the section, which the script of the page reads.
    fn attributes(&self) -> String {
        let list = |columns: &[usize]| columns.iter().map(ToString::to_string).collect::<Vec<String>>().join(" ");
        match self {
            Plot::None => String::new(),
            Plot::Columns { over, value } => {
                format!(" data-plot=\"columns\" data-over=\"{}\" data-value=\"{}\"", escape(over), escape(value))
            }
            Plot::Lines { x, ys } => format!(" data-plot=\"lines {x} {}\"", list(ys)),
            Plot::Bars(columns) => format!(" data-plot=\"bars {}\"", list(columns)),
        }
    }
}

/// The longest cell of a page that is never cut, in characters. The first column has names, which are not cut either.
const REASON_CHARS: usize = 32;

impl ResultTable {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> ResultTable {
        let columns = columns.iter().map(ToString::to_string).collect();
        ResultTable { title: title.into(), columns, rows: vec![], plot: Plot::None }
    }

    /// Removes those of the columns that have no value in any row, also from the plot.
    pub(crate) fn drop_empty(&mut self, columns: &[usize]) {
        let is_empty = |column: &usize| self.rows.iter().all(|row| row[*column].is_empty());
        let empty: Vec<usize> = columns.iter().copied().filter(is_empty).collect();
        let keep = |cells: &mut Vec<String>| {
            let mut ix = 0..;
            cells.retain(|_| !empty.contains(&ix.next().expect("it has no end")));
        };
        keep(&mut self.columns);
        self.rows.iter_mut().for_each(keep);
        if let Plot::Lines { ys: plotted, .. } | Plot::Bars(plotted) = &mut self.plot {
            plotted.retain(|column| !empty.contains(column));
            // The kept columns move to the left.
            plotted.iter_mut().for_each(|column| *column -= empty.iter().filter(|&&own| own < *column).count());
        }
    }

    /// Aligned columns; numbers to the right.
    pub fn text(&self) -> String {
        let all = || std::iter::once(&self.columns).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let numeric = self.numeric();
        let mut text = format!("{}\n", self.title);
        for row in all() {
            let mut line = String::new();
            for ((cell, &width), numeric) in row.iter().zip(&widths).zip(&numeric) {
                let pad = " ".repeat(width - cell.chars().count());
                let _ = match numeric {
                    true => write!(line, "  {pad}{cell}"),
                    false => write!(line, "  {cell}{pad}"),
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// For each column, whether all its cells are numbers or empty.
    fn numeric(&self) -> Vec<bool> {
        let is_numeric = |column: usize| self.rows.iter().all(|row| row[column].is_empty() || is_number(&row[column]));
        (0..self.columns.len()).map(is_numeric).collect()
    }

    /// Comma-separated values (RFC 4180), without the title.
    pub fn csv(&self) -> String {
        let quoted = |cell: &String| match cell.contains([',', '"', '\n']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.clone(),
        };
        let line = |row: &Vec<String>| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.columns).chain(&self.rows).map(line).collect()
    }

    /// A Markdown heading and table.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("| {} |\n", vec!["---"; self.columns.len()].join(" | "));
        let rows: String = self.rows.iter().map(line).collect();
        format!("## {}\n\n{}{rule}{rows}\n", self.title, line(&self.columns))
    }

    /// A section of a page. Measured cells, which have a fraction, have a bar in proportion to the largest of the column.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut html = format!(
            "<section{}><h2>{title}</h2><div class=\"both\"><div class=\"scroll\" tabindex=\"0\" role=\"region\" \
             aria-label=\"{title}\"><table><thead><tr>",
            self.plot.attributes()
        );
        // A column of numbers may have the reasons of failures.
        let is_numeric = |column: usize| {
            let cells = || self.rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
            0 < column && cells().count() < 2 * cells().filter(|cell| is_number(cell)).count()
        };
        let numeric: Vec<bool> = (0..self.columns.len()).map(is_numeric).collect();
        for (column, &is_numeric) in self.columns.iter().zip(&numeric) {
            let class = if is_numeric { " class=\"number\"" } else { "" };
            let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(column));
        }
        html.push_str("</tr></thead><tbody>");
        let most: Vec<f64> = (0..self.columns.len())
            .map(|column| self.rows.iter().filter_map(|row| row[column].parse().ok()).fold(0.0, f64::max))
            .collect();
        for row in &self.rows {
            html.push_str("<tr>");
            for (ix, (cell, most)) in row.iter().zip(&most).enumerate() {
                let number = if numeric[ix] { cell.parse::<f64>().ok() } else { None };
                let _ = match number {
                    Some(_) if !cell.contains('.') => write!(html, "<td class=\"number\">{}</td>", escape(cell)),
                    Some(value) if 0.0 < *most => {
                        write!(
                            html,
                            "<td class=\"number\"><span class=\"bar\" style=\"width:{:.1}%\"></span>{}</td>",
                            (100.0 * value / most).clamp(0.0, 100.0),
                            escape(cell)
                        )
                    }
                    _ if 0 < ix && REASON_CHARS < cell.chars().count() => {
                        write!(html, "<td class=\"reason\" title=\"{0}\">{0}</td>", escape(cell))
                    }
                    _ => write!(html, "<td>{}</td>", escape(cell)),
                };
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div>");
        if self.plot != Plot::None {
            html.push_str("<figure></figure>");
        }
        html.push_str("</div></section>\n");
        html
    }

    /// A page that needs neither network nor server: the tables, sortable by their headings, with a filter of rows.
    pub fn page(title: &str, tables: &[ResultTable]) -> String {
        let sections: String = tables.iter().map(ResultTable::html).collect();
        include_str!("page.html").replace("{{title}}", &escape(title)).replace("{{sections}}", &sections)
    }
}

fn is_number(cell: &str) -> bool {
    cell.parse::<f64>().is_ok()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ResultTable {
        let mut table = ResultTable::new("times <ms>", &["model", "ms"]);
        table.rows = vec![vec!["a,b|\"c\"".into(), "1.5".into()], vec!["d".into(), "12".into()]];
        table
    }

    #[test]
    fn every_form_escapes_its_own_separators() {
        assert_eq!(table().csv(), "model,ms\n\"a,b|\"\"c\"\"\",1.5\nd,12\n");
        assert!(table().markdown().contains("| a,b\\|\"c\" | 1.5 |\n"));
        let html = table().html();
        assert!(html.contains("<h2>times &lt;ms&gt;</h2>") && html.contains("a,b|&quot;c&quot;"), "{html}");
        assert!(html.contains("width:12.5%"), "{html}");
        assert_eq!(table().text(), "times <ms>\n  model     ms\n  a,b|\"c\"  1.5\n  d         12\n");
    }

    #[test]
    fn page_loads_nothing() {
        let page = ResultTable::page("run & compare", &[table()]);
        assert!(page.contains("<title>run &amp; compare</title>") && !page.contains("{{"));
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    }
}
