//! Tables.

use std::fmt::Write;

use crate::text::{escape, signs};

/// A table that scrolls if it is wider than the page; the first cell of each row is its head. `class` is of
/// the table, or empty; `names-2` and `names-3` align more columns of names to the left.
#[must_use]
pub fn table(class: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = match class {
        "" => "<div class=\"scroll\">\n<table>\n<thead><tr>".to_owned(),
        class => format!("<div class=\"scroll\">\n<table class=\"{class}\">\n<thead><tr>"),
    };
    // Writing to a String does not fail.
    for head in heads {
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape(head));
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let cell = escape(&signs(cell));
            let _ = match column {
                0 => write!(table, "<tr><th scope=\"row\">{cell}</th>"),
                _ => write!(table, "<td>{cell}</td>"),
            };
        }
        table.push_str("</tr>\n");
    }
    table + "</tbody>\n</table>\n</div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::well_formed::elements;

    #[test]
    fn a_table_is_well_formed() {
        let rows = [vec!["a & b".to_owned(), "<1>".to_owned()]];
        for class in ["", "compact"] {
            let table = table(class, &["", "x < y"], rows.clone());
            assert_eq!(elements(&format!("<!DOCTYPE html>{table}")), Ok(20), "{table}");
            assert!(table.contains("<tr><th scope=\"row\">a &amp; b</th><td>&lt;1&gt;</td></tr>"));
        }
    }
}
