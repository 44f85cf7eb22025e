//! `flaz bench detect` as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn detect(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flaz"))
        .args(["bench", "detect"])
        .args(words)
        .env_remove("FLAZ_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_plain_file_is_not_reported_as_compressing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = detect(&[
        path, "--sample", "2MiB", "--size", "16MiB", "--rounds", "5", "--json",
    ]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["schema"], 1);
    // As many again, if the first rounds give a result to be confirmed.
    assert!(
        found["rounds"] == 5 || found["rounds"] == 10,
        "{}",
        found["rounds"]
    );
    assert_eq!(found["effects"].as_array().unwrap().len(), 18);
    // /tmp may be on any file system; one that compresses would be detected.
    if found["facts"]["compression"] == "cannot" {
        for finding in found["findings"].as_array().unwrap() {
            assert_ne!(finding["answer"], "yes", "{finding}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

/// Runs on a plain file, without a *yes*.
const PLAIN_RUNS: u32 = 20;

/// A run on a file in `folder` that is removed afterwards.
fn run_in(folder: &Path, seed: u32) -> serde_json::Value {
    let folder = tempfile::tempdir_in(folder).unwrap();
    let path = folder.path().to_str().unwrap();
    let seed = seed.to_string();
    let output = detect(&[
        path, "--sample", "2MiB", "--size", "4MiB", "--rounds", "5", "--seed", &seed, "--json",
    ]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A directory on a file system that is known not to compress. Temporary files may be on an overlay of unknown layers,
/// as in containers.
fn plain_folder() -> Option<PathBuf> {
    let folders = [
        std::env::temp_dir(),
        env!("CARGO_TARGET_TMPDIR").into(),
        "/var/tmp".into(),
        // A file system in memory: smaller, and as fast as the processor.
        "/dev/shm".into(),
    ];
    let is_plain = |folder: &PathBuf| {
        let writable = tempfile::tempfile_in(folder).is_ok();
        writable && run_in(folder, PLAIN_RUNS)["facts"]["compression"] == "cannot"
    };
    let found = folders.iter().find(|folder| is_plain(folder)).cloned();
    if found.is_none() {
        let missing = format!(
            "none of {folders:?} is on a file system that is known not to compress; set TMPDIR to one that is"
        );
        assert!(
            std::env::var_os("FLAZ_REQUIRE_KERNEL").is_none_or(|value| value != "1"),
            "{missing}"
        );
        println!("skipped: {missing}");
    }
    found
}

#[test]
fn a_plain_file_gives_no_false_positive() {
    let Some(folder) = plain_folder() else { return };
    for seed in 1..=PLAIN_RUNS {
        let found = run_in(&folder, seed);
        for finding in found["findings"].as_array().unwrap() {
            assert_ne!(
                finding["answer"],
                "yes",
                "{}, seed {seed}: {finding}",
                folder.display()
            );
        }
    }
}

#[test]
fn a_file_is_overwritten_after_its_path_was_typed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("image");
    fs::File::create(&file).unwrap().set_len((5 << 20) + 7).unwrap();
    let path = file.to_str().unwrap();
    let output = detect(&[
        path,
        "--yes-destroy",
        path,
        "--sample",
        "2MiB",
        "--size",
        "4MiB",
        "--rounds",
        "4",
        "--json",
    ]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["target"], path);
    let after = fs::read(&file).unwrap();
    assert_eq!(after.len(), (5 << 20) + 7, "it is as long as before");
    assert!(
        after[4 << 20..].iter().all(|byte| *byte == 0),
        "and the rest of it as it was"
    );
    assert!(after[..4 << 20].iter().any(|byte| *byte != 0));
}

#[test]
fn the_page_lists_possible_causes_of_wrong_results() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = detect(&[
        path,
        "--sample",
        "2MiB",
        "--size",
        "4MiB",
        "--rounds",
        "4",
        "--buffered",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "Compresses: ",
        "Deduplicates: ",
        "page cache: possible",
        "file-system compression: ",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
}

#[test]
fn unusable_targets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let path = folder.path().to_str().unwrap();
    for (words, status, part) in [
        (&[file.to_str().unwrap()][..], 2, "all data on it will be lost"),
        (
            &[file.to_str().unwrap(), "--yes-destroy", path][..],
            2,
            "nothing was written",
        ),
        (&[path, "--yes-destroy", path][..], 2, "nothing is overwritten"),
        (&["/dev/null"][..], 1, "character device"),
        (&["/nowhere"][..], 1, "inspecting /nowhere"),
        (
            &[path, "--sample", "1000"][..],
            2,
            "whole MiB, from 2MiB to 1GiB, found 1000 bytes",
        ),
        (&[path, "--sample", "1MiB"][..], 2, "from 2MiB"),
        (&[path, "--size", "1MiB"][..], 2, "cannot hold two samples"),
        (&[path, "--size", "8EiB"][..], 2, ""),
        (&[path, "--rounds", "3"][..], 2, "from 4 to 1000"),
    ] {
        let output = detect(words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {err}");
        assert!(err.contains(part) && output.stdout.is_empty(), "{words:?}: {err}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}
