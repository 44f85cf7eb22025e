//! `flaz lab` as a user runs it: output, refusals, exit status. `interop/lab.rs` serves a device to clients.

use std::fs;
use std::process::{Command, Output, Stdio};

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

fn lab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flaz"))
        .arg("lab")
        .args(words)
        .env_remove("FLAZ_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn succeeded(words: &[&str]) -> String {
    let output = lab(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words:?}\n{err}");
    assert_eq!(err, "", "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(words: &[&str], status: i32, parts: &[&str]) {
    let output = lab(words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{words:?}\n{err}");
    assert!(output.stdout.is_empty(), "{words:?}");
    assert!(!err.contains("panicked"), "{err}");
    for part in parts {
        assert!(err.contains(part), "{words:?}\nno '{part}' in\n{err}");
    }
}

#[test]
fn a_preset_a_template_and_a_measured_distribution() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, mine, data, distribution) =
        (path("page.html"), path("mine.toml"), path("data"), path("d.json"));
    let text = succeeded(&["ssd", "--preset", "sf1222", "--levels", "98,0", "--html", &page]);
    assert!(
        text.contains("42 of 42 compared figures agree within 5 %") && !text.contains('\x1b'),
        "{text}"
    );
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    let template = succeeded(&["ssd", "--template"]);
    fs::write(&mine, template.replace("drives = 1", "drives = 2")).unwrap();
    fs::write(&data, vec![7; 1 << 20]).unwrap();
    let study = Command::new(env!("CARGO_BIN_EXE_flaz"))
        .args(["study", &data, "--distribution", &distribution])
        .output()
        .unwrap();
    assert!(study.status.success());
    let words = [
        "ssd",
        "--device",
        &mine,
        "--levels",
        "0",
        "--distribution",
        &distribution,
        "--json",
    ];
    let json: serde_json::Value = serde_json::from_str(&succeeded(&words)).unwrap();
    assert_eq!(
        (&json["device"]["name"], &json["device"]["drives"]),
        (&"mine".into(), &2.into())
    );
    assert_eq!(json["data"][1]["name"], "d.json");
    assert_eq!(json["data"][1]["stored_fraction"], 0.14);
    assert_eq!(json["published"], serde_json::Value::Null);
}

#[test]
fn a_replay_with_an_index_in_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.flaztrace");
    let lines: String = (0..4000)
        .map(|at| format!("{at} r {} 4096\n", at * 40_960))
        .collect();
    fs::write(&trace, format!("flaz-trace 1\n{lines}")).unwrap();
    let replay = |memory: &'static str| {
        let trace = trace.to_str().unwrap();
        ["replay", trace, "--cache", "64M", "--index-memory", memory]
    };
    let text = succeeded(&replay("100K"));
    assert!(
        text.contains("Page reads a lookup") && text.contains("100 KiB"),
        "{text}"
    );
    let codecs = ["lz4", "auto"].map(|codec| text.matches(&format!(" MiB  {codec} ")).count());
    assert_eq!(codecs, [2, 2], "both are replayed by default: {text}");
    let text = succeeded(&replay("32M:20G"));
    assert!(text.contains("102 KiB"), "{text}");
    let least = "a cache of 67108864 bytes: index memory: expected 36864 bytes or more";
    refused(&replay("1K"), FAILURE, &[least, "use a larger --index-memory"]);
    refused(
        &replay("64M:0"),
        USAGE,
        &["--index-memory", "more than 0 bytes behind ':'"],
    );
    refused(&replay("64M:many"), USAGE, &["--index-memory", "many"]);
    let sampled = [&replay("100K")[..], &["--sample", "2"]].concat();
    refused(&sampled, USAGE, &["--index-memory", "--sample"]);
}

/// The name of a file may be any bytes: in JSON those that are not UTF-8 are escaped.
#[test]
fn a_trace_whose_path_is_not_utf8_keeps_its_bytes() {
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.lis");
    fs::write(folder.path().join(name), "8 8 0 0\n16 8 0 1\n").unwrap();
    let page = folder.path().join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_flaz"))
        .args(["lab", "replay", "--cache", "32M", "--json", "--html"])
        .args([page.as_os_str(), name])
        .current_dir(folder.path())
        .env_remove("FLAZ_LOG")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["trace"]["path"], r"caf\xe9.lis");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("flaz lab replay caf\u{fffd}.lis"), "{page}");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mine = path("mine.toml");
    let template = succeeded(&["ssd", "--template"]);
    let line = 1 + template
        .lines()
        .position(|line| line.starts_with("page_kib"))
        .unwrap();
    fs::write(&mine, template.replace("page_kib = 8", "page_kib = 9")).unwrap();
    let place = format!("mine.toml, line {line}: page_kib: expected a power of two from 1 to 64, found 9");
    refused(&["ssd", "--device", &mine], FAILURE, &[&place]);
    refused(
        &["ssd", "--device", "sf12"],
        USAGE,
        &["sf12: no such device", "sf1222-raw", ".toml"],
    );
    refused(
        &["ssd", "--device", &path("no.toml")],
        FAILURE,
        &["no.toml: cannot be read"],
    );
    refused(&["ssd", "--levels", "101"], USAGE, &["101", "0 to 100"]);
    refused(&["ssd", "--per-day", "0"], USAGE, &["--per-day", "larger than 0"]);
    refused(
        &["ssd", "--distribution", &mine],
        FAILURE,
        &["mine.toml is not a distribution"],
    );
    refused(
        &["ssd", "--html", "/nowhere/page.html"],
        FAILURE,
        &["/nowhere/page.html"],
    );
    refused(&["ssd", "--device", &mine, "--template"], FAILURE, &["page_kib"]);
    let socket = format!("unix:{}", path("s"));
    refused(
        &["serve", "--nbd", &socket, "--size", "1M"],
        USAGE,
        &["--size: expected a size from 16 MiB"],
    );
    refused(
        &["serve", "--nbd", &socket, "--slowdown", "0"],
        USAGE,
        &["a number from 1 to 1000"],
    );
    refused(
        &["serve", "--nbd", "tcp:localhost"],
        USAGE,
        &["expected unix:PATH", "tcp:localhost"],
    );
    refused(
        &["serve", "--nbd", &socket, "--trace", "/nowhere/t"],
        FAILURE,
        &["/nowhere/t"],
    );
    refused(
        &["serve", "--nbd", &socket, "--directory", "/nowhere"],
        FAILURE,
        &["creating the contents in /nowhere"],
    );
    refused(&["serve"], USAGE, &["--nbd"]);
}
