//! Reads fio's JSON (`--output-format=json`), also with messages in front of it. Several outputs in one file are
//! several runs.
//!
//! | fio | flaz |
//! |---|---|
//! | `rw=randread` | test `random_read`, by the direction of the transfers; `mixed_read`, `random_mixed_write`, .. for mixtures |
//! | `iodepth` above 1, with an engine that is not synchronous | test `random_read.qd32` |
//! | concurrent jobs (one group) with the same options | one run: the sum of their rates; test `read.j4` |
//! | consecutive jobs (`stonewall`) | runs |
//! | `buffer_compress_percentage` | the level; `zeros`, `pattern` and `random` for other contents |
//! | `bw_bytes` | the value, in bytes per second |
//!
//! fio omits options without a value (`zero_buffers`, `refill_buffers`) from its JSON: only `zero_buffers=1` appears.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::imported::{Imported, Run};
use crate::cell::{CellKey, Level, Percent, is_name};
use crate::error::Problem;
use crate::table_file::quoted;
use crate::unit::Unit;

/// Maximum record size of a job in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 40;

/// The fields of fio's output that are used.
#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(default)]
    time: Option<String>,
    #[serde(default, rename = "global options")]
    global: Map<String, Value>,
    #[serde(default)]
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    // Absent for the sum over all groups, which newer versions print.
    #[serde(default, rename = "jobname")]
    name: Option<String>,
    #[serde(default, rename = "groupid")]
    group: u64,
    #[serde(default)]
    error: i64,
    #[serde(default, rename = "job options")]
    options: Map<String, Value>,
    #[serde(default)]
    read: Moved,
    #[serde(default)]
    write: Moved,
}

/// The transfers of a job in one direction.
#[derive(Default, Deserialize)]
struct Moved {
    #[serde(default)]
    io_bytes: u64,
    #[serde(default)]
    bw_bytes: Option<f64>,
    /// In KiB/s; the only value before version 3.0.
    #[serde(default)]
    bw: f64,
}

/// Whether this is fio's JSON, complete or not.
pub(super) fn is_output(text: &str) -> bool {
    text.contains("\"fio version\"")
}

/// Reads outputs.
pub(super) fn read(text: &str) -> Result<Imported, (Option<u64>, Problem)> {
    let mut imported = Imported::default();
    let mut rest = text;
    let mut outputs = 0;
    // fio's messages precede the JSON, which begins with a brace alone on its line.
    while let Some(start) = beginning(rest) {
        rest = &rest[start..];
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<Output>();
        match stream.next() {
            Some(Ok(output)) => {
                let read_bytes = stream.byte_offset();
                take(&output, &mut imported).map_err(|problem| (None, problem))?;
                outputs += 1;
                rest = &rest[read_bytes..];
            }
            Some(Err(error)) => {
                return Err((None, foreign(format!("output {}: {error}", outputs + 1))));
            }
            None => break,
        }
    }
    if imported.runs.is_empty() {
        return Err((
            None,
            foreign("no job with a single record size transferred any bytes".to_owned()),
        ));
    }
    Ok(imported)
}

fn foreign(what: String) -> Problem {
    Problem::Foreign { program: "fio", what }
}

/// Start of the next line that begins an object.
fn beginning(text: &str) -> Option<usize> {
    let mut at = 0;
    text.split_inclusive('\n').find_map(|line| {
        let start = at;
        at += line.len();
        line.starts_with('{').then_some(start)
    })
}

/// Adds the runs of one output.
fn take(output: &Output, imported: &mut Imported) -> Result<(), Problem> {
    imported.tell(
        "measured by",
        &format!("fio {}", output.version.trim_start_matches("fio-")),
    );
    if let Some(time) = &output.time {
        imported.tell("time", time);
    }
    // Jobs of one group ran concurrently: their rates are added if they did the same.
    let mut together: BTreeMap<(u64, CellKey), f64> = BTreeMap::new();
    let mut order: Vec<(u64, CellKey)> = Vec::new();
    for job in &output.jobs {
        let Some(name) = &job.name else { continue };
        if job.error != 0 {
            return Err(foreign(format!(
                "job '{}' failed with error {}",
                quoted(name),
                job.error
            )));
        }
        let options = Options {
            job: &job.options,
            global: &output.global,
        };
        for name in ["ioengine", "direct", "filename", "fsync", "end_fsync"] {
            if let Some(value) = options.get(name) {
                imported.tell(name, &value);
            }
        }
        for (reads, moved) in [(true, &job.read), (false, &job.write)] {
            if moved.io_bytes == 0 {
                continue;
            }
            let Some(record_bytes) = options.record_bytes(reads) else {
                imported.note(format!(
                    "Job {}: ignored, because its records have several sizes.",
                    quoted(name)
                ));
                continue;
            };
            let alike = |other: &&Job| other.group == job.group && other.options == job.options;
            let entries = output.jobs.iter().filter(alike).count() as u64;
            let key = CellKey {
                test: options.test(reads, entries)?,
                record_bytes,
                level: options.level()?,
            };
            let rate = moved.bw_bytes.unwrap_or(moved.bw * 1024.0);
            let place = (job.group, key);
            match together.get_mut(&place) {
                Some(sum) => *sum += rate,
                None => {
                    together.insert(place.clone(), rate);
                    order.push(place);
                }
            }
        }
    }
    for place in order {
        let value = together[&place];
        imported.runs.push(Run {
            key: place.1,
            unit: Unit::BytesPerSecond,
            value,
        });
    }
    Ok(())
}

/// The options of a job: its own, else the global ones.
struct Options<'a> {
    job: &'a Map<String, Value>,
    global: &'a Map<String, Value>,
}

impl Options<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let value = self.job.get(name).or_else(|| self.global.get(name))?;
        Some(match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    fn any(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.get(name))
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|text| text.parse().ok()).unwrap_or(1)
    }

    /// The name of the test; `entries` are the concurrent jobs with the same options.
    fn test(&self, reads: bool, entries: u64) -> Result<String, Problem> {
        let rw = self
            .any(&["rw", "readwrite"])
            .unwrap_or_else(|| "read".to_owned());
        let (kind, after) = rw
            .split_once(':')
            .map_or((rw.as_str(), None), |(kind, after)| (kind, Some(after)));
        let direction = if reads { "read" } else { "write" };
        let mut test = match kind {
            "read" | "write" => direction.to_owned(),
            "randread" | "randwrite" => format!("random_{direction}"),
            "rw" | "readwrite" => format!("mixed_{direction}"),
            "randrw" => format!("random_mixed_{direction}"),
            _ => format!("{}_{direction}", quoted(kind)),
        };
        if let Some(after) = after {
            test = format!("{test}:{after}");
        }
        let engine = self.get("ioengine").unwrap_or_default();
        let depth = self.number("iodepth");
        let synchronous = matches!(
            engine.as_str(),
            "" | "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" | "mmap"
        );
        if depth > 1 && !synchronous {
            test = format!("{test}.qd{depth}");
        }
        let writers = entries.max(self.number("numjobs"));
        if writers > 1 {
            test = format!("{test}.j{writers}");
        }
        if is_name(&test) {
            Ok(test)
        } else {
            Err(foreign(format!(
                "rw={}: expected for example randread",
                quoted(&rw)
            )))
        }
    }

    fn level(&self) -> Result<Level, Problem> {
        let named = |name: &str| Ok(Level::Named(name.to_owned()));
        if let Some(text) = self.get("buffer_compress_percentage") {
            let percent = text.parse().ok().and_then(Percent::new);
            let percent = percent.ok_or_else(|| {
                foreign(format!(
                    "buffer_compress_percentage={}: expected 0 to 100",
                    quoted(&text)
                ))
            })?;
            return if percent.get() == 0.0 {
                named("random")
            } else {
                Ok(Level::Percent(percent))
            };
        }
        match self.get("zero_buffers").as_deref() {
            None | Some("0") if self.get("buffer_pattern").is_some() => named("pattern"),
            None | Some("0") => named("random"),
            Some(_) => named("zeros"),
        }
    }

    /// Record size in bytes; `None` if there is not a single size.
    fn record_bytes(&self, reads: bool) -> Option<u64> {
        if self
            .any(&["bsrange", "blocksize_range", "bssplit", "blocksize_split"])
            .is_some()
        {
            return None;
        }
        let text = self
            .any(&["bs", "blocksize"])
            .unwrap_or_else(|| "4096".to_owned());
        let mut sizes = text.split(',');
        let first = sizes.next()?;
        let size = match sizes.next() {
            Some(second) if !reads && !second.is_empty() => second,
            _ => first,
        };
        let decimal = self.get("kb_base").as_deref() == Some("1000");
        size_bytes(size, decimal).filter(|bytes| (1..=RECORD_BYTES_MAX).contains(bytes))
    }
}

/// A size as fio reads it: powers of 1024 without `i`, powers of 1000 with it, unless `kb_base=1000` exchanges the two.
fn size_bytes(text: &str, decimal: bool) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix('b').unwrap_or(unit);
    let (letter, marked) = unit
        .strip_suffix('i')
        .map_or((unit, false), |letter| (letter, true));
    let power = ["", "k", "m", "g", "t"]
        .iter()
        .position(|known| *known == letter)?;
    let step: u64 = if marked == decimal { 1024 } else { 1000 };
    number
        .parse::<u64>()
        .ok()?
        .checked_mul(step.checked_pow(power as u32)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(jobs: &str) -> String {
        format!("{{\n\"fio version\": \"fio-3.33\", \"jobs\": [{jobs}] }}\n")
    }

    fn job(group: u64, options: &str, read: u64, write: u64) -> String {
        format!(
            "{{\"jobname\": \"j\", \"groupid\": {group}, \"error\": 0, \"job options\": {{{options}}},
               \"read\": {{\"io_bytes\": {read}, \"bw_bytes\": {read}, \"bw\": 1}},
               \"write\": {{\"io_bytes\": {write}, \"bw_bytes\": {write}, \"bw\": 1}}}}"
        )
    }

    fn runs(text: &str) -> Vec<(String, f64)> {
        let runs = read(text).unwrap().runs;
        runs.iter().map(|run| (run.key.to_string(), run.value)).collect()
    }

    #[test]
    fn output_without_jobs_is_recognised_as_fio() {
        let text = "{\n\"fio version\": \"fio-3.33\" }\n";
        assert!(is_output(text));
        let (_, problem) = read(text).unwrap_err();
        assert!(matches!(&problem, Problem::Foreign { program: "fio", what } if what.contains("no job")));
    }

    #[test]
    fn concurrent_jobs_add_up_and_consecutive_jobs_are_runs() {
        let options = r#""rw": "write", "bs": "64k", "buffer_compress_percentage": "50""#;
        let text = output(
            &[
                job(0, options, 0, 10),
                job(0, options, 0, 20),
                job(1, options, 0, 40),
            ]
            .join(","),
        );
        assert_eq!(
            runs(&text),
            [
                ("write.j2 of 64 KiB at 50 %".to_owned(), 30.0),
                ("write of 64 KiB at 50 %".to_owned(), 40.0)
            ]
        );
    }

    #[test]
    fn noise_in_front_and_several_outputs() {
        let one = output(&job(0, r#""rw": "randread""#, 7, 0));
        let text = format!("fio: this is noise {{\nnote: more\n{one}fio: again\n{one}");
        let found = runs(&text);
        assert_eq!(found, vec![("random_read of 4 KiB at random".to_owned(), 7.0); 2]);
        assert!(read(&text[..text.len() - 20]).is_err(), "cut short");
    }

    #[test]
    fn options_make_the_cell() {
        for (options, cell) in [
            (
                r#""rw": "randrw", "bs": "4k,8k", "ioengine": "libaio", "iodepth": "32""#,
                "random_mixed_read.qd32 of 4 KiB at random",
            ),
            (
                r#""rw": "read", "bs": "1M", "iodepth": "32", "zero_buffers": "1""#,
                "read of 1 MiB at zeros",
            ),
            (
                r#""rw": "randread:2", "bs": "4kib", "kb_base": "1000", "buffer_pattern": "7""#,
                "random_read:2 of 4 KiB at pattern",
            ),
            (
                r#""readwrite": "read", "bs": "4ki", "numjobs": "3", "buffer_compress_percentage": "0""#,
                "read.j3 of 4000 B at random",
            ),
        ] {
            let text = output(&job(0, options, 5, 0));
            assert_eq!(runs(&text), [(cell.to_owned(), 5.0)], "{options}");
        }
        let text = output(&job(0, r#""rw": "randrw", "bs": "4k,8k""#, 0, 5));
        assert_eq!(runs(&text)[0].0, "random_mixed_write of 8 KiB at random");
    }

    #[test]
    fn unsupported_jobs_are_refused_or_ignored() {
        let refused = |text: &str| read(text).unwrap_err().1.to_string();
        let failed = output(&job(0, "", 1, 0)).replace("\"error\": 0", "\"error\": 5");
        assert!(refused(&failed).contains("job 'j' failed with error 5"));
        assert!(refused(&output("")).contains("transferred any bytes"));
        assert!(
            refused(&output(&job(0, r#""rw": "read", "bsrange": "4k-8k""#, 1, 0))).contains("record size")
        );
        let bad = output(&job(0, r#""buffer_compress_percentage": "150""#, 1, 0));
        assert!(refused(&bad).contains("0 to 100"));
        // The sum over all groups has no name.
        let sum = r#"{"groupid": 4294967295, "read": {"io_bytes": 9, "bw_bytes": 9}}"#;
        let text = output(&[job(0, "", 5, 0), sum.to_owned()].join(","));
        assert_eq!(runs(&text).len(), 1);
    }
}
