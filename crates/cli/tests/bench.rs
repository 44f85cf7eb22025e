//! `flaz bench` as a user runs it: output, refusals, exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

/// A published table of the benchmark's own tests.
fn table(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/report/tests/data");
    path.join(name).to_str().unwrap().to_owned()
}

fn means() -> String {
    table("sf1222-throughput.csv")
}

fn differences() -> String {
    table("sf1222-kernel-diff.csv")
}

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flaz"))
        .arg("bench")
        .args(words)
        .env_remove("FLAZ_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn succeeded(words: &[&str]) -> String {
    let output = bench(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words:?}\n{err}");
    assert_eq!(err, "", "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(words: &[&str], status: i32, parts: &[&str]) {
    let output = bench(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{words:?}\n{err}");
    assert!(output.stdout.is_empty(), "{words:?}");
    assert!(err.starts_with("flaz: "), "{words:?}\n{err}");
    assert!(
        !err.contains("panicked") && !err.contains("internal error"),
        "{err}"
    );
    for part in parts {
        assert!(err.contains(part), "{words:?}\nno '{part}' in\n{err}");
    }
}

#[test]
fn published_tables_have_the_known_counts() {
    let (means, differences) = (means(), differences());
    let words = ["compare", &means, &differences, "--runs", "10"];
    let page = succeeded(&words);
    assert!(!page.contains('\x1b'), "no colours in a pipe");
    for part in [
        "Welch 51, after Benjamini-Hochberg 49, after Holm 36",
        "deviation rule: 52",
    ] {
        assert!(page.contains(part), "no '{part}' in\n{page}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&succeeded(&[&words[..], &["--json"]].concat())).unwrap();
    let counts = &json["counts"];
    assert_eq!(
        [
            &counts["cells"],
            &counts["stddev_rule"],
            &counts["welch"],
            &counts["welch_benjamini_hochberg"],
            &counts["welch_holm"]
        ],
        [78, 52, 51, 49, 36]
    );
    assert_eq!(json["cells"].as_array().unwrap().len(), 78);
    let old = succeeded(&[&words[..], &["--rule", "stddev"]].concat());
    assert!(
        old.contains("has no fixed error") && old.contains("26 inconclusive"),
        "{old}"
    );
}

#[test]
fn a_campaign_equals_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let samples: Vec<f64> = (0..12).map(|run| 1e8 + f64::from(run % 5) * 1e4).collect();
    let text = serde_json::json!({
        "format": "flaz-campaign-1", "seed": 7,
        "cells": [{ "test": "read", "record_bytes": 4096, "level": "random", "unit": "bytes-per-s",
                    "samples": samples }]
    });
    fs::write(&path, text.to_string()).unwrap();
    let path = path.to_str().unwrap();
    for margin in [
        &["--delta", "0.5%"][..],
        &["--aa", path],
        &["--aa", path, "--aa", path],
    ] {
        let page = succeeded(&[&["compare", path, path], margin].concat());
        assert!(
            page.contains("1 cell: 0 faster, 0 slower, 1 equivalent"),
            "{page}"
        );
        assert!(page.contains("Mann-Whitney 0"), "{page}");
    }
}

#[test]
fn claims_on_the_command_line_and_in_a_file() {
    let means = means();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("claims.toml");
    fs::write(
        &file,
        "[[claim]]\ntest = \"read\"\nrate = \"200MB/s\"\nsource = \"the box\"\n",
    )
    .unwrap();
    let words = [
        "claim",
        &means,
        "--runs",
        "10",
        "--claim",
        "write=275MB/s",
        "--claims",
        file.to_str().unwrap(),
    ];
    let page = succeeded(&words);
    for part in [
        "Claim: write at 275 MB/s",
        "exaggerated",
        "Claim: read at 200 MB/s (190.7 MiB/s) (the box)",
        "outside the measured range",
    ] {
        assert!(page.contains(part), "no '{part}' in\n{page}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&succeeded(&[&words[..], &["--json"]].concat())).unwrap();
    let ratio = json["claims"][1]["curves"][0]["points"][0]["bs_ratio"]["estimate"].as_f64();
    assert!((ratio.unwrap() - 2.765).abs() < 0.001, "{json}");
}

#[test]
fn invalid_options_are_refused() {
    let (means, differences) = (means(), differences());
    refused(&[], USAGE, &["compare", "claim"]);
    refused(&["compare", &means], USAGE, &["<B>"]);
    let compare = |words: &[&str], parts: &[&str]| {
        refused(
            &[&["compare", &means, &differences], words].concat(),
            USAGE,
            parts,
        );
    };
    compare(
        &[],
        &[
            "sf1222-throughput.csv",
            "does not contain the number of runs",
            "--runs N",
        ],
    );
    compare(&["--runs", "1"], &["a whole number from 2 to"]);
    compare(&["--runs", "ten"], &["ten"]);
    compare(&["--rule", "gut"], &["gut", "welch, stddev"]);
    compare(&["--delta", "100"], &["0 to below 100"]);
    compare(&["--delta", "NaN"], &["0 to below 100"]);
    compare(&["--delta", "1", "--aa", "x"], &["cannot be used with"]);
    compare(
        &["--runs", "10", "--aa", "x", "--aa", "x", "--aa", "x"],
        &["3 A/A campaigns", "compared with each other"],
    );
    let claim = |words: &[&str], parts: &[&str]| {
        refused(
            &[&["claim", &means, "--runs", "10"], words].concat(),
            USAGE,
            parts,
        );
    };
    claim(&[], &["--claim"]);
    claim(
        &["--claim", "275MB/s"],
        &["'275MB/s' is not a claim", "write=275MB/s"],
    );
    claim(&["--claim", "write=275M"], &["unknown unit 'M'"]);
    claim(&["--claim", "write@big=275MB/s"], &["'big' is not a record size"]);
}

#[test]
fn invalid_files_are_refused() {
    let (means, differences) = (means(), differences());
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    let bad_path: PathBuf = bad.clone();
    let bad = bad.to_str().unwrap();
    let with = |text: &str, parts: &[&str]| {
        fs::write(&bad_path, text).unwrap();
        refused(&["compare", &means, bad, "--runs", "10"], FAILURE, parts);
    };
    refused(
        &["compare", "none.csv", &means, "--runs", "10"],
        FAILURE,
        &["none.csv: cannot be read: No such file"],
    );
    refused(
        &["compare", &differences, &means, "--runs", "10"],
        FAILURE,
        &["is a table of differences", "mean_kib_per_s"],
    );
    with("a,b\n1,2\n", &["bad.csv: is not a campaign", "begins with 'a,b'"]);
    let head = "record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s";
    with(
        &head.replace("mean", "avg"),
        &["line 1", "no column mean_kib_per_s"],
    );
    with(
        &format!("{head}\n1024,98,write,fast,1\n"),
        &["bad.csv, line 2: mean_kib_per_s is 'fast': expected a positive number"],
    );
    with(
        &format!("{head}\n1024,98,write,1\n"),
        &["line 2: expected 5 fields"],
    );
    with(&format!("{head}\n8,98,write,1,1\n"), &["no cell in common"]);
    with("{", &["bad.csv: is not a campaign", "line 1"]);
    refused(
        &["compare", &means, &means, "--runs", "10", "--aa", bad],
        FAILURE,
        &["bad.csv"],
    );
    refused(
        &["claim", &means, "--runs", "10", "--claim", "writ=1MB/s"],
        FAILURE,
        &["no cell for the claim about writ", "measured are", "write"],
    );
    refused(
        &["claim", &means, "--runs", "10", "--claims", bad],
        FAILURE,
        &["bad.csv: is not a claims file: line 1"],
    );
}

#[test]
fn every_command_has_help() {
    for words in [&["--help"][..], &["compare", "--help"], &["claim", "--help"]] {
        let help = succeeded(words);
        assert!(help.contains("Usage: flaz bench"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    }
}

#[test]
fn a_report_writes_all_requested_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, svg, csv) = (path("page.html"), path("svg"), path("a/csv"));
    let (means, differences) = (means(), differences());
    let words = ["report", &differences, "--baseline", &means, "--runs", "10"];
    let text = succeeded(&[&words[..], &["-o", &page, "--svg-dir", &svg, "--csv-dir", &csv]].concat());
    assert!(text.is_ascii(), "nothing but ASCII in a pipe");
    assert!(
        text.contains("faster") && text.contains('#') && text.contains("Written: "),
        "{text}"
    );
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("id=\"rate-write-bytes\""));
    let drawing = fs::read_to_string(Path::new(&svg).join("rate-write-bytes.svg")).unwrap();
    assert!(drawing.starts_with("<svg ") && !drawing.contains("var("));
    let differences = fs::read_to_string(Path::new(&csv).join("difference-write-bytes.csv")).unwrap();
    assert!(differences.starts_with("baseline,source,test,"));
    let cells = fs::read_to_string(Path::new(&csv).join("cells.csv")).unwrap();
    assert!(cells.starts_with("record_kib,compressibility_pct,test,mean_kib_per_s,"));

    let json: serde_json::Value =
        serde_json::from_str(&succeeded(&[&words[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["comparisons"][0]["counts"]["cells"], 78);
    let on_stdout = succeeded(&[&words[..], &["-o", "-"]].concat());
    assert_eq!(on_stdout, html);
    assert!(succeeded(&words).contains("add --output page.html"));
    for option in ["--svg-dir", "--csv-dir"] {
        refused(
            &[&words[..], &[option, &page]].concat(),
            2,
            &["page.html: expected a directory", "found a file"],
        );
    }
}

/// Neither may be replaced: another program reads one and has the other open.
#[test]
fn a_page_goes_to_pipes_and_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let means = means();
    let words = ["report", &means, "--runs", "10", "-o"];
    let page = succeeded(&[&words[..], &["-"]].concat());
    let piped = succeeded(&[&words[..], &["/dev/stdout"]].concat());
    assert!(piped.starts_with(&page) && piped.ends_with("Written: /dev/stdout\n"));
    let out = folder.path().join("out");
    let status = Command::new(env!("CARGO_BIN_EXE_flaz"))
        .arg("bench")
        .args(words)
        .arg("/dev/stdout")
        .stdout(fs::File::create(&out).unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(&out).unwrap(), piped);
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read_to_string(fifo).unwrap()
    });
    succeeded(&[&words[..], &[fifo.to_str().unwrap()]].concat());
    assert_eq!(reader.join().unwrap(), page);
}

#[test]
fn impossible_reports_are_refused() {
    let (means, differences) = (means(), differences());
    refused(&["report"], USAGE, &["FILE"]);
    refused(&["report", &means], USAGE, &["--runs N"]);
    refused(
        &["report", &differences, "--runs", "10"],
        FAILURE,
        &["table of differences"],
    );
    refused(
        &["report", &means, "--runs", "10", "--json", "-o", "-"],
        USAGE,
        &["both use standard output"],
    );
    refused(
        &["report", &means, "--runs", "10", "-o", "/nowhere/x.html"],
        FAILURE,
        &["writing /nowhere/x.html"],
    );
}

#[test]
fn output_of_other_programs_is_compared_claimed_and_reported() {
    let (fio, iozone) = (table("fio-runs"), table("iozone-runs"));
    assert!(succeeded(&["compare", &fio, &fio]).contains("fio output"));
    let claim = succeeded(&["claim", &iozone, "--claim", "fwrite=1GB/s"]);
    assert!(claim.contains("98 %") && claim.contains("50 %"), "{claim}");
    assert!(succeeded(&["report", &iozone]).contains("frewrite"));
    let one = table("fio-runs/1.json");
    refused(
        &["compare", &one, &one],
        FAILURE,
        &["put the files of all runs into a directory"],
    );
    assert!(succeeded(&["report", &one]).contains("a single run"));
}
