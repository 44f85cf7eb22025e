//! `flaz top`, without a terminal and on one.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use flaz_cli::control::Server;

use super::{Fake, Scratch, USAGE};

#[test]
fn top_prints_lines_without_a_terminal() {
    let scratch = Scratch::new();
    let none = scratch.run("top --count 1").succeeded();
    assert!(
        none.contains("CACHE") && none.contains("no cache is running"),
        "{none}"
    );
    fs::create_dir(scratch.path("run")).unwrap();
    let server = Server::start(&scratch.path("run/a.sock"), Arc::new(Fake)).unwrap();
    // A socket left behind by a killed daemon.
    drop(UnixListener::bind(scratch.path("run/killed.sock")).unwrap());
    let out = scratch.run("top --count 2 --interval 0.1").succeeded();
    let tables: Vec<&str> = out.split("\n\n").collect();
    assert_eq!(tables.len(), 2, "{out}");
    for table in tables {
        let words: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words[0][..3], ["CACHE", "STATE", "MODE"], "{out}");
        assert_eq!(words[1][..2], ["c", "running"], "{out}");
        assert_eq!(words[2][..2], ["killed", "gone"], "{out}");
        assert_eq!(words[3][..2], ["total", "(2)"], "{out}");
        assert!(table.lines().all(|line| line.len() <= 80), "{out}");
    }
    let elsewhere = scratch.run("top -n 1 --control none.sock").succeeded();
    assert!(elsewhere.contains("none"), "{elsewhere}");
    scratch.run("top --sort size").refused(USAGE, &["size", "--sort"]);
    scratch
        .run("top --count 0")
        .refused(USAGE, &["--count", "a whole number of at least 1"]);
    scratch.run("top --interval 0").refused(USAGE, &["0.1 seconds"]);
    server.close();
}

/// On a terminal of the program `script`: the screen is that of the caches, and the terminal is left as it was.
#[test]
fn top_uses_a_terminal_and_restores_it() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("run")).unwrap();
    let server = Server::start(&scratch.path("run/a.sock"), Arc::new(Fake)).unwrap();
    let line = format!(
        "stty rows 24 cols 80; {} top --count 2 --interval 0.2",
        env!("CARGO_BIN_EXE_flaz")
    );
    let ran = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("FLAZ_RUNTIME_DIR", scratch.path("run"))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = ran else {
        eprintln!("skipped: script (bsdutils) is not installed");
        return;
    };
    let screen = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{screen:?}");
    for part in ["flaz top: 1 cache, ", "CACHE", "running", "q quit"] {
        assert!(screen.contains(part), "no '{part}' in {screen:?}");
    }
    let (entered, left) = (screen.find("\x1b[?1049h"), screen.rfind("\x1b[?1049l"));
    assert!(entered.is_some() && entered < left, "{screen:?}");
    server.close();
}
