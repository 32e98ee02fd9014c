//! A table of text cells with headers of two lines, as aligned text and as HTML.

use std::fmt::Write;

use crate::svg::escape;

/// A column: its header, and whether it is left-aligned.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) lines: [&'static str; 2],
    pub(crate) left: bool,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) heads: Vec<Head>,
    /// Each row has a cell for each column.
    pub(crate) rows: Vec<Vec<String>>,
}

/// A column of words.
pub(crate) const fn left(lines: [&'static str; 2]) -> Head {
    Head { lines, left: true }
}

/// A column of numbers.
pub(crate) const fn right(lines: [&'static str; 2]) -> Head {
    Head { lines, left: false }
}

impl Grid {
    /// Headers, a rule and rows; columns are two spaces apart.
    pub(crate) fn text(&self) -> String {
        let heads = (0..2).map(|line| self.heads.iter().map(|head| head.lines[line].to_owned()).collect());
        let lines: Vec<Vec<String>> = heads.chain(self.rows.iter().cloned()).collect();
        let width = |index: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(index))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let mut text = String::new();
        for (number, line) in lines.iter().enumerate() {
            let cells = line.iter().zip(&self.heads).zip(&widths).map(|((cell, head), &width)| {
                if head.left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
            if number == 1 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                let _ = writeln!(text, "{}", rule.join("  "));
            }
        }
        text
    }

    /// A heading and a table, in a scrolling box.
    pub(crate) fn html(&self) -> String {
        let class = |left: bool| if left { " class=\"l\"" } else { "" };
        let title = escape(&self.title);
        let mut text = format!(
            "<h3>{title}</h3>\n<div class=\"scroll\" role=\"region\" aria-label=\"{title}\" tabindex=\"0\"><table><thead><tr>"
        );
        for head in &self.heads {
            let _ = write!(text, "<th scope=\"col\"{}>{}</th>", class(head.left), escape(&head.words()));
        }
        text += "</tr></thead><tbody>\n";
        for row in &self.rows {
            text += "<tr>";
            for (cell, head) in row.iter().zip(&self.heads) {
                let _ = write!(text, "<td{}>{}</td>", class(head.left), escape(cell));
            }
            text += "</tr>\n";
        }
        text + "</tbody></table></div>\n"
    }
}

impl Head {
    /// Both lines as one; divided words are joined.
    fn words(&self) -> String {
        let [first, second] = self.lines;
        let divided = first.strip_suffix('-');
        match (divided, second.starts_with('/') && !second.starts_with("/ ")) {
            (Some(start), _) => format!("{start}{second}"),
            (None, true) => format!("{first}{second}"),
            (None, false) => format!("{first} {second}").trim().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_aligned_and_markup_is_escaped() {
        let grid = Grid {
            title: "a & b".into(),
            heads: vec![left(["name", ""]), right(["cycles", "per I/O"])],
            rows: vec![vec!["x<y".into(), "1,000".into()], vec!["long name".into(), "5".into()]],
        };
        let expected = "name        cycles\n           per I/O\n---------  -------\nx<y          1,000\nlong name        5\n";
        assert_eq!(grid.text(), expected);
        let html = grid.html();
        assert!(
            html.contains("<h3>a &amp; b</h3>") && html.contains("<td class=\"l\">x&lt;y</td><td>1,000</td>")
        );
        assert!(html.contains("<th scope=\"col\">cycles per I/O</th>"));
    }

    #[test]
    fn divided_words_are_joined() {
        let words = [["coal-", "escing"], ["cycles", "/IO"], ["IOPS", "/ off"], ["p50", "us"], ["disk", ""]];
        let words = words.map(|lines| right(lines).words());
        assert_eq!(words, ["coalescing", "cycles/IO", "IOPS / off", "p50 us", "disk"]);
    }
}
