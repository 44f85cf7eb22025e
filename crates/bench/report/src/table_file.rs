//! Tables of published results (CSV): means with standard deviations, or differences from such a table in percent.
//!
//! | form | columns |
//! |---|---|
//! | rates | `record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s` |
//! | differences | `record_kib,compressibility_pct,test,diff_pct,stddev_pct` |
//!
//! Columns may be in any order, and other columns are skipped. Both percentages of a difference are relative to the
//! baseline's mean. Empty lines and those that begin with `#` are skipped. A field may be in double quotes, and ends
//! with its line.

use std::collections::HashMap;

use crate::cell::{CellKey, is_name};
use crate::error::Problem;
use crate::input::{CELLS_MAX, DIFFERENCE_COLUMNS, RATE_COLUMNS};

/// Maximum number of characters of a file that an error message quotes.
const QUOTED_CHARS_MAX: usize = 60;

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Mean and standard deviation, in KiB/s.
    Rates,
    /// Difference and standard deviation, in percent of the baseline's mean.
    Differences,
}

impl Form {
    fn columns(self) -> &'static [&'static str; 5] {
        match self {
            Self::Rates => &RATE_COLUMNS,
            Self::Differences => &DIFFERENCE_COLUMNS,
        }
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its form.
    pub form: Form,
    /// Its rows; each cell once.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its line in the file, from 1.
    pub line: u64,
    /// Its cell.
    pub key: CellKey,
    /// The mean in KiB/s, or the difference in percent.
    pub value: f64,
    /// The standard deviation, in the same unit.
    pub stddev: f64,
}

/// The problem, and its line.
pub type Refused = (Option<u64>, Problem);

impl Table {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// It is not a table of either form; with the line.
    pub fn from_csv(text: &str) -> Result<Self, Refused> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let no_form = || {
            let found = quoted(text);
            (None, Problem::NotResults { found })
        };
        let (header_line, header) = lines.next().ok_or_else(no_form)?;
        let header = fields(header).map_err(|problem| (Some(header_line), problem))?;
        let form = form_of(&header).ok_or_else(no_form)?;
        let places = places_of(form, &header).map_err(|problem| (Some(header_line), problem))?;
        let mut rows: Vec<Row> = Vec::new();
        let mut first_lines = HashMap::new();
        for (line, text) in lines {
            let refused = |problem| (Some(line), problem);
            let fields = fields(text).map_err(refused)?;
            if fields.len() != header.len() {
                return Err(refused(Problem::Fields {
                    expected: header.len(),
                    found: fields.len(),
                }));
            }
            let row = row(form, &places.map(|place| fields[place].as_str()), line).map_err(refused)?;
            if let Some(first) = first_lines.insert(row.key.clone(), line) {
                let (key, first_line) = (row.key, Some(first));
                return Err(refused(Problem::Twice { key, first_line }));
            }
            if rows.len() == CELLS_MAX {
                return Err(refused(Problem::TooManyCells));
            }
            rows.push(row);
        }
        if rows.is_empty() {
            return Err((None, Problem::NoCells));
        }
        Ok(Self { form, rows })
    }
}

/// The fields of a line, without surrounding spaces and quotes; two consecutive quotes mean one.
fn fields(line: &str) -> Result<Vec<String>, Problem> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let field = rest.trim_start();
        let after = if let Some(mut inside) = field.strip_prefix('"') {
            let mut text = String::new();
            loop {
                let end = inside.find('"').ok_or(Problem::Quote)?;
                text.push_str(&inside[..end]);
                inside = &inside[end + 1..];
                match inside.strip_prefix('"') {
                    Some(next) => {
                        text.push('"');
                        inside = next;
                    }
                    None => break,
                }
            }
            fields.push(text);
            inside.trim_start()
        } else {
            let end = field.find(',').unwrap_or(field.len());
            fields.push(field[..end].trim_end().to_owned());
            &field[end..]
        };
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err(Problem::Quote),
        }
    }
}

/// The form that has more columns in common with the header; `None` without any.
fn form_of(header: &[String]) -> Option<Form> {
    let shared = |form: Form| {
        let columns = form.columns();
        header
            .iter()
            .filter(|name| columns.contains(&name.as_str()))
            .count()
    };
    let (rates, differences) = (shared(Form::Rates), shared(Form::Differences));
    match () {
        () if rates.max(differences) == 0 => None,
        () if differences > rates => Some(Form::Differences),
        () => Some(Form::Rates),
    }
}

/// Index of each column.
fn places_of(form: Form, header: &[String]) -> Result<[usize; 5], Problem> {
    let mut places = [0; 5];
    let mut missing = Vec::new();
    for (place, &column) in places.iter_mut().zip(form.columns()) {
        let mut found = (0..header.len()).filter(|&at| header[at] == column);
        match found.next() {
            Some(at) => *place = at,
            None => missing.push(column),
        }
        if found.next().is_some() {
            return Err(Problem::ColumnTwice(column));
        }
    }
    if missing.is_empty() {
        Ok(places)
    } else {
        Err(Problem::Columns {
            missing,
            expected: form.columns(),
            found: header.to_vec(),
        })
    }
}

fn row(form: Form, fields: &[&str; 5], line: u64) -> Result<Row, Problem> {
    let columns = form.columns();
    let wrong = |at: usize, expected| Problem::Value {
        column: columns[at],
        text: quoted(fields[at]),
        expected,
    };
    let number = |at: usize, expected, fits: fn(f64) -> bool| {
        let number = fields[at].parse::<f64>().ok().filter(|number| number.is_finite());
        number
            .filter(|&number| fits(number))
            .ok_or_else(|| wrong(at, expected))
    };
    let record_kib = number(0, "a record size in KiB, for example 4 or 1024", |kib| {
        kib > 0.0 && kib <= 1e9 && (kib * 1024.0).fract() == 0.0
    })?;
    let level = fields[1].parse().map_err(|expected| wrong(1, expected))?;
    if !is_name(fields[2]) {
        return Err(wrong(2, "a test name, for example write or random_read"));
    }
    let value = match form {
        Form::Rates => number(3, "a positive number, for example 259867.1", |mean| mean > 0.0)?,
        Form::Differences => number(3, "a percentage above -100, for example -2.13", |diff| {
            diff > -100.0
        })?,
    };
    let stddev = number(4, "a number, zero or more, for example 0.84", |stddev| {
        stddev >= 0.0
    })?;
    Ok(Row {
        line,
        key: CellKey {
            test: fields[2].to_owned(),
            record_bytes: (record_kib * 1024.0) as u64,
            level,
        },
        value,
        stddev,
    })
}

/// The beginning of a text's first line.
pub(crate) fn quoted(text: &str) -> String {
    let line = text.trim_start().lines().next().unwrap_or("").trim_end();
    let mut quoted: String = line
        .chars()
        .take(QUOTED_CHARS_MAX)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if quoted.len() < line.len() {
        quoted.push_str("..");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s\n";

    fn refused(text: &str) -> String {
        let (line, problem) = Table::from_csv(text).unwrap_err();
        format!("{}: {problem}", line.unwrap_or(0))
    }

    #[test]
    fn order_spaces_comments_quotes_and_line_ends_do_not_matter() {
        let table = Table::from_csv(
            "\u{feff}# from the article\r\ntest, diff_pct ,stddev_pct,note,record_kib,compressibility_pct\r\n\r\n\
             write,-2.5,0.5,\"a, b\",1024,random\r\n",
        )
        .unwrap();
        assert_eq!(table.form, Form::Differences);
        let row = &table.rows[0];
        assert_eq!((row.value, row.stddev, row.line), (-2.5, 0.5, 4));
        assert_eq!(row.key.to_string(), "write of 1 MiB at random");
    }

    #[test]
    fn errors_name_the_header() {
        assert!(refused("").contains("is not a campaign"));
        assert!(refused("hello, world\n1,2\n").contains("begins with 'hello, world'"));
        let misspelt = refused(&HEAD.replace("stddev_kib_per_s", "stddev_kb_per_s"));
        assert!(
            misspelt.starts_with("1: has no column stddev_kib_per_s:")
                && misspelt.ends_with("mean_kib_per_s,stddev_kb_per_s"),
            "{misspelt}"
        );
        let other = refused("record_kib,compressibility_pct,test,diff_pct\n");
        assert!(other.contains("no column stddev_pct"), "{other}");
        assert!(refused("test,test,record_kib\n").contains("test twice"));
        assert!(refused(HEAD).contains("no cells"));
    }

    #[test]
    fn errors_name_the_row() {
        let second = |row: &str| refused(&format!("{HEAD}1024,98,write,100,1\n{row}\n"));
        for (row, parts) in [
            (
                "1024,50,write,fast,1",
                ["3: mean_kib_per_s is 'fast'", "positive number"],
            ),
            (
                "1024,50,write,\"1,5\",1",
                ["mean_kib_per_s is '1,5'", "positive number"],
            ),
            ("1024,50,write,0,1", ["mean_kib_per_s is '0'", "positive number"]),
            (
                "1024,50,write,NaN,1",
                ["mean_kib_per_s is 'NaN'", "positive number"],
            ),
            (
                "1024,50,write,100,-1",
                ["stddev_kib_per_s is '-1'", "zero or more"],
            ),
            ("1024,50,write,100,", ["stddev_kib_per_s is ''", "zero or more"]),
            (
                "1024,150,write,100,1",
                ["compressibility_pct is '150'", "0 to 100"],
            ),
            ("1024,50,,100,1", ["test is ''", "test name"]),
            ("1 MiB,50,write,100,1", ["record_kib is '1 MiB'", "in KiB"]),
            ("1024,50,\"write,100,1", ["3: a double quote", "closed"]),
            ("1024,50,\"wri\"te,100,1", ["3: a double quote", "closed"]),
            ("1024,50,\"a\"\"b\",100,1", ["test is 'a\"b'", "test name"]),
            ("1024,50,write,100", ["expected 5 fields", "found 4"]),
            (
                "1024,98.0,write,100,1",
                ["3: write of 1 MiB at 98 % occurs twice", "line 2"],
            ),
        ] {
            let message = second(row);
            for part in parts {
                assert!(message.contains(part), "{row}: no '{part}' in {message}");
            }
        }
    }

    #[test]
    fn a_difference_must_leave_a_positive_rate() {
        let head = "record_kib,compressibility_pct,test,diff_pct,stddev_pct\n";
        assert!(refused(&format!("{head}1024,98,write,-100,1\n")).contains("above -100"));
    }
}
