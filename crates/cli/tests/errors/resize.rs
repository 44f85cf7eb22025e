//! `flaz resize` of a cache that is not running: what it does, and what it refuses.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use super::{FAILURE, Scratch, USAGE};

fn cache(options: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.file("origin");
    let made = scratch.run(&format!("create cache --size 8M {options} --origin origin"));
    made.succeeded();
    scratch
}

/// Its length, and whether its space is allocated.
fn file(scratch: &Scratch) -> (u64, bool) {
    let found = fs::metadata(scratch.path("cache")).unwrap();
    (found.len(), found.blocks() * 512 >= found.len())
}

#[test]
fn an_idle_cache_is_resized_with_its_file() {
    let scratch = cache("");
    let before = file(&scratch);
    let grown = scratch.run("resize cache --size 20M");
    let said = grown.succeeded();
    assert!(said.starts_with("resized: 20.0 MiB"), "{said}");
    assert!(!grown.err().contains(['\r', '\u{1b}']), "no bar in a pipe");
    assert_eq!(file(&scratch), (20 << 20, before.1));
    let status: Value = serde_json::from_str(&scratch.run("status cache --json").succeeded()).unwrap();
    assert_eq!(
        (&status["cache"]["size_bytes"], &status["state"]),
        (&(20 << 20).into(), &"clean".into())
    );
    let unchanged = scratch.run("resize cache").succeeded();
    assert!(unchanged.starts_with("unchanged: "), "{unchanged}");
    let shrunk: Value =
        serde_json::from_str(&scratch.run("resize cache --size 6M --json").succeeded()).unwrap();
    assert_eq!(shrunk["size_before_bytes"], 20 << 20);
    assert_eq!(file(&scratch).0, 6 << 20);
    assert!(scratch.run("check cache").succeeded().contains("6.00 MiB"));
    assert!(scratch.run("dump cache").succeeded().contains("6291456"));
}

#[test]
fn a_sparse_cache_file_stays_sparse() {
    let scratch = cache("--sparse");
    scratch.run("resize cache --size 64M").succeeded();
    assert_eq!(file(&scratch), (64 << 20, false));
}

/// As after `lvextend`.
#[test]
fn without_a_size_a_larger_file_is_used_up_to_its_end() {
    let scratch = cache("");
    let longer = fs::File::options().write(true).open(scratch.path("cache"));
    longer.unwrap().set_len(24 << 20).unwrap();
    let said = scratch.run("resize cache").succeeded();
    assert!(said.starts_with("resized: 24.0 MiB"), "{said}");
    assert_eq!(file(&scratch).0, 24 << 20);
}

#[test]
fn impossible_sizes_are_refused_and_change_nothing() {
    let scratch = cache("");
    let before = fs::read(scratch.path("cache")).unwrap().len();
    for (line, parts) in [
        (
            "resize cache --size 1G",
            [
                "expected a size of 1792KiB to ",
                "8 times",
                "found 1024MiB",
                "recreate",
            ],
        ),
        (
            "resize cache --size 64K",
            [
                "expected a size of 1792KiB to ",
                "8 times",
                "found 65536",
                "choose",
            ],
        ),
        (
            "resize missing --size 20M",
            ["missing", "no such cache device", "flaz create", ""],
        ),
    ] {
        scratch.run(line).refused(FAILURE, &parts);
    }
    scratch
        .run("resize cache --size lots")
        .refused(USAGE, &["--size", "lots"]);
    scratch.run("resize").refused(USAGE, &["CACHE"]);
    assert_eq!(fs::read(scratch.path("cache")).unwrap().len(), before);
    let status: Value = serde_json::from_str(&scratch.run("status cache --json").succeeded()).unwrap();
    assert_eq!(status["cache"]["size_bytes"], 8 << 20);
    assert_eq!(status["state"], "clean", "it was opened and closed");
}
