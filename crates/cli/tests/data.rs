//! `flaz bench data` and `flaz study` as a user runs them: output, refusals, exit status.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command line in the scratch directory.
    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flaz"));
        command
            .args(line.split_ascii_whitespace())
            .current_dir(self.0.path())
            .env_remove("FLAZ_LOG")
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn succeeded(&self, line: &str) -> String {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{line}\n{err}");
        assert_eq!(
            err, "",
            "{line}: nothing but results, and no progress bar in a pipe"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.succeeded(line)).unwrap()
    }

    #[track_caller]
    fn refused(&self, line: &str, status: i32, parts: &[&str]) {
        let output = self.run(line);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{line}\n{err}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(err.starts_with("flaz: "), "{line}\n{err}");
        assert!(
            !err.contains("panicked") && !err.contains("internal error"),
            "{err}"
        );
        for part in parts {
            assert!(err.contains(part), "{line}\nno '{part}' in\n{err}");
        }
    }
}

fn generated(path: &Path, bytes: usize, percent: f64) -> bool {
    let level = flaz_data::Level::new(percent).unwrap();
    let mut spec = flaz_data::DataSpec::new(flaz_data::Family::Run, level);
    spec.seed.campaign = 1;
    let found = fs::read(path).unwrap();
    found.len() == bytes && flaz_data::Generator::new(spec).unwrap().verify(0, &found).is_ok()
}

#[test]
fn data_goes_to_a_file_and_its_report_to_standard_output() {
    let scratch = Scratch::new();
    let page = scratch.succeeded("bench data --level 75% --size 3MB --output data");
    assert!(generated(&scratch.path("data"), 3_000_000, 75.0));
    for part in [
        "75 % requested",
        "lz4",
        "zstd:1",
        "zlib:6",
        "chunks of 1 MiB",
        "GB/s per thread",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let report = scratch.json("bench data --level 75 --size 3MB --json");
    assert_eq!(report["requested_percent"], 75.0);
    assert_eq!(report["seed"]["campaign"], 1);
    for row in report["achieved"].as_array().unwrap() {
        let mean = row["mean_percent"].as_f64().unwrap();
        assert!((mean - 75.0).abs() <= 1.0, "{row}");
    }
}

#[test]
fn data_goes_to_a_pipe_and_its_report_to_standard_error() {
    let scratch = Scratch::new();
    let output = scratch.run("bench data --level 50 --size 2MiB --output - --json");
    assert_eq!(output.status.code(), Some(0));
    fs::write(scratch.path("piped"), &output.stdout).unwrap();
    assert!(generated(&scratch.path("piped"), 2 << 20, 50.0));
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["size_bytes"], 2 << 20);
}

#[test]
fn a_reader_that_stops_early_is_not_a_failure() {
    let scratch = Scratch::new();
    let mut child = scratch
        .command("bench data --size 1GiB --output -")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn iozone_is_labelled_with_its_true_ratio() {
    let scratch = Scratch::new();
    let page = scratch.succeeded("bench data --family iozone --level 50 --size 4MiB");
    assert!(page.contains("25.00 % of each are constant, not 50%"), "{page}");
}

#[test]
fn invalid_data_options_are_refused() {
    let scratch = Scratch::new();
    scratch.refused("bench data --level 101", USAGE, &["--level", "0 to 100"]);
    scratch.refused(
        "bench data --family zeros --level 30",
        USAGE,
        &["--level requires"],
    );
    scratch.refused("bench data --family zip", USAGE, &["random-level"]);
    scratch.refused("bench data --chunk 5000", USAGE, &["power of two"]);
    scratch.refused("bench data --dedup 100", USAGE, &["99%"]);
    scratch.refused("bench data --size 0", USAGE, &["--size"]);
    scratch.refused("bench data --distance 4K", USAGE, &["--family copies"]);
    scratch.refused(
        "bench data --family copies --distance 4K",
        USAGE,
        &["half a chunk"],
    );
    scratch.refused("bench data --family replay", USAGE, &["flaz study"]);
    scratch.refused("bench data --distribution d", USAGE, &["--family replay"]);
    scratch.refused(
        "bench data --family replay --distribution none",
        FAILURE,
        &["cannot read", "none"],
    );
    fs::write(scratch.path("bad"), "{}").unwrap();
    scratch.refused(
        "bench data --family replay --distribution bad",
        FAILURE,
        &["bad is not a distribution"],
    );
    scratch.refused("bench data --output no/file", FAILURE, &["no/file"]);
    if File::open("/dev/full").is_ok() {
        scratch.refused("bench data --size 1M --output /dev/full", FAILURE, &["/dev/full"]);
    }
}

#[test]
fn a_study_of_generated_data_is_exact_and_replayable() {
    let scratch = Scratch::new();
    scratch.succeeded("bench data --family random-level --size 20MiB --output data");
    let study = scratch.json("study data --cache 10M --codec zlib --codec lzo --distribution d.json --json");
    assert_eq!(
        (study["exact"].as_bool(), study["total_bytes"].as_u64()),
        (Some(true), Some(20 << 20))
    );
    let codecs: Vec<_> = study["cache"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["codec"])
        .collect();
    assert_eq!(codecs, ["zlib:6", "lzo", "lz4", "zstd:1"]);
    let found = study["chunks"][1]["saved"]["percent"].as_f64().unwrap();
    // 5120 levels from 0 to 100: the mean is 50 with a deviation of 0.4.
    assert!((found - 50.0).abs() < 2.5, "{found}");
    let replayed = scratch.json("bench data --family replay --distribution d.json --size 16MiB --json");
    let row = &replayed["achieved"][0];
    assert_eq!(
        (row["codec"].as_str(), row["window_bytes"].as_u64()),
        (Some("lz4"), Some(4096))
    );
    assert!(
        (row["mean_percent"].as_f64().unwrap() - found).abs() < 5.0,
        "{row}"
    );
    assert!(
        (row["stddev_points"].as_f64().unwrap() - 28.9).abs() < 3.0,
        "{row}"
    );
    scratch.refused(
        "bench data --family replay --distribution d.json --chunk 8K",
        USAGE,
        &["4096, 65536, 1048576"],
    );
}

/// The name of a file may be any bytes: in JSON those that are not UTF-8, and backslashes, are escaped.
#[test]
fn a_study_of_a_path_that_is_not_utf8_keeps_its_bytes() {
    use std::os::unix::ffi::OsStrExt;

    let scratch = Scratch::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9 \\.img");
    fs::write(scratch.0.path().join(name), vec![7; 1 << 20]).unwrap();
    let study = scratch
        .command("study --json --distribution d.json")
        .arg(name)
        .output()
        .unwrap();
    assert!(study.status.success(), "{study:?}");
    let json: serde_json::Value = serde_json::from_slice(&study.stdout).unwrap();
    let expected = r"caf\xe9 \x5c.img";
    assert_eq!(json["paths"][0], expected);
    let distribution: serde_json::Value =
        serde_json::from_slice(&fs::read(scratch.path("d.json")).unwrap()).unwrap();
    assert_eq!(distribution["source"], expected);
}

#[test]
fn a_study_is_a_page_without_progress_in_a_pipe() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("folder")).unwrap();
    fs::write(scratch.path("folder/zeroes"), vec![0; 1 << 20]).unwrap();
    let page = scratch.succeeded("study folder --exact --cache 512K");
    for part in [
        "all data",
        "100.0 % of 4 KiB blocks",
        "a flaz cache holds",
        "a compressing SSD gains",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
}

#[test]
fn unusable_paths_are_refused_by_study() {
    let scratch = Scratch::new();
    scratch.refused("study", USAGE, &["PATH"]);
    scratch.refused(
        "study none",
        FAILURE,
        &["study: cannot read none", "No such file"],
    );
    scratch.refused("study /dev/null", FAILURE, &["is not a file, a directory"]);
    scratch.refused("study .", FAILURE, &["nothing to study"]);
    fs::write(scratch.path("file"), [1; 100]).unwrap();
    scratch.refused(
        "study file --distribution none/d.json",
        FAILURE,
        &["none/d.json", "the directory must exist"],
    );
    scratch.refused("study file --codec lzma", USAGE, &["lz4, zstd[:LEVEL]"]);
    scratch.refused("study file --codec zstd:99", USAGE, &["-7 to 19"]);
    scratch.refused("study file --cache 0", USAGE, &["--cache"]);
    scratch.refused("study file --within 0", USAGE, &["0.01 to 50"]);
    scratch.refused(
        "study file --exact --samples 100",
        USAGE,
        &["cannot be used with"],
    );
    let many = (1..=7)
        .map(|level| format!(" --codec zlib:{level}"))
        .collect::<String>();
    scratch.refused(&format!("study file{many}"), USAGE, &["at most 6"]);
    fs::create_dir(scratch.path("folder")).unwrap();
    scratch.refused(
        "study file --distribution folder",
        USAGE,
        &["folder is a directory", "expected a file"],
    );
    // The study was made and printed; only its file is missing.
    let output = scratch.run("study file --distribution /dev/full");
    assert_eq!(output.status.code(), Some(FAILURE));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Studied"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("writing /dev/full: No space left"));
}
