//! Tables for a terminal: aligned columns, optional colours.

use std::fmt::Write;

/// Emphasis of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// None.
    #[default]
    Plain,
    /// A heading.
    Bold,
    /// Less important.
    Dim,
    /// Good.
    Green,
    /// Bad.
    Red,
    /// Warning.
    Yellow,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
        }
    }
}

/// `text` in a style, if colours are enabled.
#[must_use]
pub fn paint(text: &str, style: Style, colour: bool) -> String {
    if colour && style != Style::Plain && !text.is_empty() {
        format!("{}{text}\x1b[0m", style.code())
    } else {
        text.to_owned()
    }
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Text in a style.
pub type Field = (String, Style);

/// Rows under headings.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Field>>,
}

impl Table {
    /// Without rows.
    #[must_use]
    pub fn new(heads: Vec<(&'static str, Align)>) -> Self {
        Self {
            heads,
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of fields differs from that of the headings.
    pub fn push(&mut self, row: Vec<Field>) {
        assert_eq!(row.len(), self.heads.len(), "a field for each heading");
        self.rows.push(row);
    }

    /// The table as lines; columns are as wide as their widest field.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let widths: Vec<usize> = (0..self.heads.len())
            .map(|column| {
                let fields = self.rows.iter().map(|row| row[column].0.chars().count());
                fields
                    .chain([self.heads[column].0.chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let heads: Vec<Field> = self
            .heads
            .iter()
            .map(|(head, _)| ((*head).to_owned(), Style::Bold))
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let last = row.iter().rposition(|(field, _)| !field.is_empty()).unwrap_or(0);
            for (column, (field, style)) in row.iter().enumerate().take(last + 1) {
                let gap = if column == 0 { "" } else { "  " };
                let space = " ".repeat(widths[column] - field.chars().count());
                let field = paint(field, *style, colour);
                // Writing to a String cannot fail.
                let _ = match self.heads[column].1 {
                    Align::Right => write!(text, "{gap}{space}{field}"),
                    Align::Left if column == last => write!(text, "{gap}{field}"),
                    Align::Left => write!(text, "{gap}{field}{space}"),
                };
            }
            text.push('\n');
        }
        text
    }
}

/// A number of bytes with three significant digits: `16.0 GiB`.
#[must_use]
pub fn decimal_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A p-value: `0.0354`, `3e-08`.
#[must_use]
pub fn p_value(p: f64) -> String {
    match p {
        p if p >= 0.00095 => format!("{p:.3}"),
        p if p > 1e-99 => format!("{p:.0e}"),
        _ => "<1e-99".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_with_and_without_colours() {
        let mut table = Table::new(vec![
            ("what", Align::Left),
            ("n", Align::Right),
            ("", Align::Left),
        ]);
        table.push(vec![
            ("a".to_owned(), Style::Plain),
            ("1000".to_owned(), Style::Green),
            (String::new(), Style::Plain),
        ]);
        assert_eq!(table.text(false), "what     n\na     1000\n");
        assert_eq!(
            table.text(true),
            "\x1b[1mwhat\x1b[0m     \x1b[1mn\x1b[0m\na     \x1b[32m1000\x1b[0m\n"
        );
    }

    #[test]
    fn bytes_are_formatted() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (16 << 30, "16.0 GiB"),
            (1_048_000, "1023 KiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(decimal_bytes(bytes), text);
        }
    }

    #[test]
    fn p_values_are_short() {
        for (p, text) in [
            (1.0, "1.000"),
            (0.0354, "0.035"),
            (0.0012, "0.001"),
            (0.000_000_034, "3e-8"),
            (0.0, "<1e-99"),
        ] {
            assert_eq!(p_value(p), text);
        }
    }
}
