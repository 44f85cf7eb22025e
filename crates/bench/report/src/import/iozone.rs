//! Reads IOzone's output: the table on standard output, or only the Excel-style lists (`-R`). Several outputs in one
//! file are several runs.
//!
//! | IOzone | flaz |
//! |---|---|
//! | columns `write` .. `freread`, lists `"Writer report"` .. | tests `write`, `rewrite`, .., `freread`, as in published tables |
//! | `-+w p` | the level p; a note has the constant share of a record |
//! | `-+d` | the level `diagnostic`: a pattern, not random data |
//! | neither | the level `iozone`, its default pattern; `unknown` without the command line |
//! | kB/s | KiB per second |
//! | `-O` | operations per second |
//!
//! With several file sizes, only the largest is used, because a cell has no file size.

use super::imported::{Imported, Run};
use crate::cell::{CellKey, Level, Percent};
use crate::error::Problem;
use crate::table_file::quoted;
use crate::unit::Unit;

const BANNER: &str = "Iozone: Performance Test of File I/O";

/// The tests in the order of the table, with the titles of their lists.
const TESTS: [(&str, &str); 13] = [
    ("write", "\"Writer report\""),
    ("rewrite", "\"Re-writer report\""),
    ("read", "\"Reader report\""),
    ("reread", "\"Re-Reader report\""),
    ("random_read", "\"Random read report\""),
    ("random_write", "\"Random write report\""),
    ("backwards_read", "\"Backward read report\""),
    ("record_rewrite", "\"Record rewrite report\""),
    ("strided_read", "\"Stride read report\""),
    ("fwrite", "\"Fwrite report\""),
    ("frewrite", "\"Re-Fwrite report\""),
    ("fread", "\"Fread report\""),
    ("freread", "\"Re-Fread report\""),
];

/// Maximum distance between the end of a value and that of its heading.
const OFF_COLUMNS_MAX: usize = 5;

/// Maximum record and file size in KiB that are accepted.
const KIB_MAX: u64 = 1 << 40;

/// A value in the output.
struct Entry {
    file_kib: u64,
    record_kib: u64,
    test: usize,
    value: f64,
}

/// Whether this is IOzone's output.
pub(super) fn is_output(text: &str) -> bool {
    text.contains(BANNER) || text.lines().any(|line| list_of(line).is_some())
}

/// The test of a list, if the line is its title.
fn list_of(line: &str) -> Option<usize> {
    TESTS
        .iter()
        .position(|(_, title)| title.eq_ignore_ascii_case(line.trim()))
}

/// Reads outputs.
pub(super) fn read(text: &str) -> Result<Imported, (Option<u64>, Problem)> {
    let mut imported = Imported::default();
    let lines: Vec<&str> = text.lines().collect();
    let mut starts: Vec<usize> = (0..lines.len())
        .filter(|&at| lines[at].contains(BANNER))
        .collect();
    if starts.first() != Some(&0) {
        // Text before the first banner: none, or lists that were cut out of an output.
        starts.insert(0, 0);
    }
    starts.push(lines.len());
    for pair in starts.windows(2) {
        take(&lines[pair[0]..pair[1]], pair[0] as u64 + 1, &mut imported)?;
    }
    if imported.runs.is_empty() {
        return Err((
            None,
            foreign("no table and no list of results: was it interrupted?".to_owned()),
        ));
    }
    Ok(imported)
}

fn foreign(what: String) -> Problem {
    Problem::Foreign {
        program: "IOzone",
        what,
    }
}

/// Adds the runs of one output; `first_line` is the number of its first line in the file.
fn take(lines: &[&str], first_line: u64, imported: &mut Imported) -> Result<(), (Option<u64>, Problem)> {
    let mut unit = Unit::BytesPerSecond;
    let mut command = None;
    for (line, number) in lines.iter().map(|line| line.trim()).zip(first_line..) {
        let refused = |what: &str| Err((Some(number), foreign(what.to_owned())));
        if line.starts_with("OPS Mode") {
            unit = Unit::OperationsPerSecond;
        } else if line.starts_with("Microseconds/op Mode") {
            return refused("times of operations (-N): expected rates");
        } else if line.starts_with("Throughput test with") {
            return refused("several processes (-t): expected the table of one process");
        } else if let Some(words) = line.strip_prefix("Command line used:") {
            command = Some(words.trim());
        } else if let Some(version) = line.strip_prefix("Version $Revision:") {
            imported.tell(
                "measured by",
                &format!("IOzone {}", version.trim_matches([' ', '$'])),
            );
        } else if let Some(time) = line.strip_prefix("Run began:") {
            imported.tell("time", time.trim());
        } else if let Some(build) = line.strip_prefix("Build:") {
            imported.tell("build", build.trim());
        } else if line.starts_with("Include ") {
            imported.tell("timing", &line.to_ascii_lowercase());
        }
    }
    let mut entries = table(lines, first_line)?;
    if entries.is_empty() {
        entries = lists(lines, first_line)?;
    }
    let Some(largest) = entries.iter().map(|entry| entry.file_kib).max() else {
        return Ok(());
    };
    imported.tell("file size", &format!("{largest} KiB"));
    if let Some(command) = command {
        imported.tell("command", command);
    }
    let level = level(command, imported).map_err(|problem| (None, problem))?;
    if entries.iter().any(|entry| entry.file_kib < largest) {
        imported.note(format!(
            "IOzone measured files of several sizes; only those of {largest} KiB are used."
        ));
    }
    for entry in entries.iter().filter(|entry| entry.file_kib == largest) {
        imported.runs.push(Run {
            key: CellKey {
                test: TESTS[entry.test].0.to_owned(),
                record_bytes: entry.record_kib * 1024,
                level: level.clone(),
            },
            unit,
            value: match unit {
                Unit::BytesPerSecond => entry.value * 1024.0,
                Unit::OperationsPerSecond => entry.value,
            },
        });
    }
    Ok(())
}

/// The kind of data, from the command line.
fn level(command: Option<&str>, imported: &mut Imported) -> Result<Level, Problem> {
    let Some(command) = command else {
        imported.note("The file does not contain IOzone's command line, so the data is unknown.".to_owned());
        return Ok(Level::Named("unknown".to_owned()));
    };
    let words: Vec<&str> = command.split_whitespace().collect();
    let percent = |option: &str| -> Option<Option<f64>> {
        let at = words.iter().position(|word| word.starts_with(option))?;
        let attached = &words[at][option.len()..];
        let text = if attached.is_empty() {
            words.get(at + 1).copied().unwrap_or_default()
        } else {
            attached
        };
        Some(text.parse().ok())
    };
    if let Some(found) = percent("-+w") {
        let level = found.and_then(Percent::new).ok_or_else(|| {
            foreign(format!(
                "-+w in '{}': expected 0 to 100 after it",
                quoted(command)
            ))
        })?;
        let asked = level.get();
        if [percent("-+y"), percent("-+C")] == [Some(Some(asked)), Some(Some(asked))] {
            imported.note(format!(
                "IOzone's {asked} % (-+w {asked} -+y {asked} -+C {asked}) makes only {:.2} % of each record \
                 constant; the rest is weakly random and also compressible.",
                asked * asked / 100.0
            ));
        }
        return Ok(Level::Percent(level));
    }
    if words.iter().any(|word| word.starts_with("-+d")) {
        imported.note("IOzone's -+d writes a diagnostic pattern, not random data.".to_owned());
        return Ok(Level::Named("diagnostic".to_owned()));
    }
    Ok(Level::Named("iozone".to_owned()))
}

/// The rows of the table.
fn table(lines: &[&str], first_line: u64) -> Result<Vec<Entry>, (Option<u64>, Problem)> {
    let mut entries = Vec::new();
    let mut header: Option<&str> = None;
    for (line, number) in lines.iter().zip(first_line..) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_some_and(|word| word.eq_ignore_ascii_case("kB"))
            && words.get(1) == Some(&"reclen")
        {
            header = Some(line);
            continue;
        }
        let Some(header_line) = header else { continue };
        let Some(numbers) = numbers(line) else {
            // A message of the program between two rows does not end the table; its last line does.
            if line.contains("iozone test complete") {
                header = None;
            }
            continue;
        };
        let row = row(&numbers, header_line).map_err(|what| (Some(number), foreign(what)))?;
        entries.extend(row);
    }
    Ok(entries)
}

/// Numbers of a line, each with the column after its end; `None` if there is other text, or fewer than three numbers.
fn numbers(line: &str) -> Option<Vec<(u64, usize)>> {
    let mut numbers = Vec::new();
    let mut at = 0;
    for piece in line.split(' ') {
        let end = at + piece.len();
        if !piece.is_empty() {
            numbers.push((piece.trim_end().parse().ok()?, end));
        }
        at = end + 1;
    }
    (numbers.len() >= 3).then_some(numbers)
}

/// One row: file size, record size, then the values of the selected tests, each in its column.
fn row(numbers: &[(u64, usize)], header: &str) -> Result<Vec<Entry>, String> {
    let (file_kib, record_kib) = (numbers[0].0, numbers[1].0);
    if file_kib > KIB_MAX || !(1..=KIB_MAX).contains(&record_kib) {
        return Err(format!(
            "a file of {file_kib} KiB with records of {record_kib} KiB"
        ));
    }
    let values = &numbers[2..];
    // The headings of file and record size come first; some versions have no columns for streams.
    let ends = ends(header);
    let ends = ends.get(2..).unwrap_or_default();
    let places = if values.len() == ends.len() && ends.len() <= TESTS.len() {
        (0..values.len()).collect()
    } else {
        places(values, ends)?
    };
    Ok(values
        .iter()
        .zip(places)
        .map(|(&(value, _), test)| Entry {
            file_kib,
            record_kib,
            test,
            value: value as f64,
        })
        .collect())
}

/// Columns of the ends of the words of a line.
fn ends(line: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    for piece in line.split(' ') {
        if !piece.is_empty() {
            ends.push(at + piece.len());
        }
        at += piece.len() + 1;
    }
    ends
}

/// Assigns values to tests if some were not run: each value ends near the end of its heading.
fn places(values: &[(u64, usize)], ends: &[usize]) -> Result<Vec<usize>, String> {
    let mut places: Vec<usize> = Vec::new();
    for &(value, end) in values {
        let nearest = (0..ends.len().min(TESTS.len())).min_by_key(|&test| ends[test].abs_diff(end));
        let fits = |&test: &usize| {
            ends[test].abs_diff(end) <= OFF_COLUMNS_MAX && places.last().is_none_or(|&last| last < test)
        };
        match nearest.filter(fits) {
            Some(test) => places.push(test),
            None => {
                return Err(format!(
                    "{value} is not below any heading, so its test is unknown"
                ));
            }
        }
    }
    Ok(places)
}

/// The Excel-style lists: a title, a line of record sizes, then one line per file size.
fn lists(lines: &[&str], first_line: u64) -> Result<Vec<Entry>, (Option<u64>, Problem)> {
    let mut entries = Vec::new();
    let mut test = None;
    let mut records: Vec<u64> = Vec::new();
    for (line, number) in lines.iter().zip(first_line..) {
        if let Some(found) = list_of(line) {
            test = Some(found);
            records.clear();
            continue;
        }
        let Some(of) = test else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        let quoted_words = words.iter().filter(|word| word.starts_with('"')).count();
        if words.is_empty() || quoted_words == 0 {
            test = None;
            continue;
        }
        let wrong = || {
            let what = format!(
                "'{}': expected \"SIZE\" and a rate for each record size",
                quoted(line)
            );
            (Some(number), foreign(what))
        };
        let size = |word: &&str| -> Option<u64> {
            let kib = word.trim_matches('"').parse().ok()?;
            (1..=KIB_MAX).contains(&kib).then_some(kib)
        };
        if quoted_words == words.len() && records.is_empty() {
            records = words.iter().map(size).collect::<Option<_>>().ok_or_else(wrong)?;
            continue;
        }
        let file_kib = words.first().and_then(size).ok_or_else(wrong)?;
        if words.len() > records.len() + 1 {
            return Err(wrong());
        }
        for (word, &record_kib) in words[1..].iter().zip(&records) {
            let value: f64 = word.parse().map_err(|_| wrong())?;
            // A record larger than the file was not measured.
            if value > 0.0 {
                entries.push(Entry {
                    file_kib,
                    record_kib,
                    test: of,
                    value,
                });
            }
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_489: &str = "              kB  reclen    write  rewrite    read    reread    read     write     read   rewrite      read   fwrite frewrite    fread  freread\n";
    const HEAD_414: &str = "              KB  reclen   write rewrite    read    reread    read   write    read  rewrite     read   fwrite frewrite   fread  freread\n";

    fn output(command: &str, table: &str) -> String {
        format!(
            "\t{BANNER}\n\t        Version $Revision: 3.489 $\n\tCommand line used: {command}\n{table}\niozone test complete.\n"
        )
    }

    fn runs(text: &str) -> Vec<(String, f64)> {
        let runs = read(text).unwrap().runs;
        runs.iter()
            .map(|run| (run.key.to_string(), run.value / 1024.0))
            .collect()
    }

    #[test]
    fn columns_identify_tests_if_some_were_not_run() {
        let row = "            4096      64   318530   492319                    2458549   617230                          \n";
        let found = runs(&output("iozone -s 4M", &format!("{HEAD_489}{row}")));
        let tests: Vec<&str> = found
            .iter()
            .map(|(cell, _)| cell.split(' ').next().unwrap())
            .collect();
        assert_eq!(tests, ["write", "rewrite", "random_read", "random_write"]);
        assert_eq!(
            found[2],
            ("random_read of 64 KiB at iozone".to_owned(), 2_458_549.0)
        );
        let old = format!(
            "{:>16}{:>8}{:>8}{:>8}{:>26}{:>8}{:>25}\n",
            4096, 64, 11, 12, 13, 14, 1_000_000
        );
        let found = runs(&output("iozone", &format!("{HEAD_414}{old}")));
        let tests: Vec<&str> = found
            .iter()
            .map(|(cell, _)| cell.split(' ').next().unwrap())
            .collect();
        assert_eq!(
            tests,
            ["write", "rewrite", "random_read", "random_write", "strided_read"]
        );
        let moved = "            4096      64   318530   492319 1 2\n";
        let (line, problem) = read(&output("iozone", &format!("{HEAD_489}{moved}"))).unwrap_err();
        assert!(
            line == Some(5) && problem.to_string().contains("not below any heading"),
            "{problem}"
        );
    }

    #[test]
    fn levels_of_command_lines() {
        let table = format!("{HEAD_489}            4096      64   318530   492319\n");
        for (command, level) in [
            ("iozone -+w 98 -+y 98 -+C 98 -s 1G", "98 %"),
            ("iozone -+w50", "50 %"),
            ("iozone -+d", "diagnostic"),
            ("iozone -a", "iozone"),
        ] {
            let found = runs(&output(command, &table));
            assert_eq!(found[0].0, format!("write of 64 KiB at {level}"));
        }
        let imported = read(&output("iozone -+w 98 -+y 98 -+C 98", &table)).unwrap();
        assert!(
            imported.notes[0].contains("96.04 % of each record"),
            "{:?}",
            imported.notes
        );
        let refused = read(&output("iozone -+w x", &table)).unwrap_err().1.to_string();
        assert!(refused.contains("-+w"), "{refused}");
    }

    #[test]
    fn lists_without_a_table_and_several_file_sizes() {
        let text = "Excel output is below:\n\n\"Writer report\"\n        \"4\"  \"8\"\n\"64\"   1  2 \n\"128\"   3  4 \n\n\
                    \"Re-Fread report\"\n        \"4\"  \"8\"\n\"128\"   5  0 \n";
        assert!(is_output(text));
        assert_eq!(
            runs(text),
            [
                ("write of 4 KiB at unknown".to_owned(), 3.0),
                ("write of 8 KiB at unknown".to_owned(), 4.0),
                ("freread of 4 KiB at unknown".to_owned(), 5.0)
            ]
        );
        assert!(
            read(text)
                .unwrap()
                .notes
                .iter()
                .any(|note| note.contains("only those of 128 KiB"))
        );
        let broken = text.replace("3  4", "3  4  5");
        let (line, problem) = read(&broken).unwrap_err();
        assert!(line == Some(6) && problem.to_string().contains("for each record size"));
    }

    #[test]
    fn several_outputs_are_runs() {
        let one = output(
            "iozone",
            &format!("{HEAD_489}            4096      64   318530   492319\n"),
        );
        assert_eq!(runs(&format!("{one}{one}")).len(), 4);
    }

    #[test]
    fn output_without_rates_is_refused() {
        let refused = |text: &str| read(&output("iozone", text)).unwrap_err().1.to_string();
        assert!(refused("\tMicroseconds/op Mode. Output is").contains("-N"));
        assert!(refused("\tThroughput test with 2 processes").contains("-t"));
        assert!(refused("").contains("interrupted"));
        assert!(!is_output("write, read\n"));
    }
}
