//! CSV files: a field with a comma, a quote or a line end is in double quotes.

/// A table under construction.
#[derive(Debug)]
pub(super) struct Csv {
    text: String,
    columns: usize,
}

impl Csv {
    pub(super) fn new(columns: &[&str]) -> Self {
        Self {
            text: columns.join(",") + "\n",
            columns: columns.len(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of fields differs from that of the columns.
    pub(super) fn row(&mut self, fields: &[String]) {
        assert_eq!(fields.len(), self.columns, "a field for each column");
        for (at, field) in fields.iter().enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            // Control characters could end or hide a row.
            let field: String = field
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
            if field.contains([',', '"']) {
                self.text.push_str(&format!("\"{}\"", field.replace('"', "\"\"")));
            } else {
                self.text.push_str(&field);
            }
        }
        self.text.push('\n');
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let mut csv = Csv::new(&["a", "b"]);
        csv.row(&["x, y".to_owned(), "say \"1\"\n".to_owned()]);
        assert_eq!(csv.finish(), "a,b\n\"x, y\",\"say \"\"1\"\" \"\n");
    }
}
