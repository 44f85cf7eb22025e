//! Runs programs of other projects.

use std::process::Command;

/// Whether a program is installed. If not, the test is skipped, or fails if `FLAZ_REQUIRE_TOOLS=1`.
pub fn have(tool: &str, package: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
    if !found {
        let message = format!("{tool} is not installed (Debian package {package})");
        assert!(
            std::env::var_os("FLAZ_REQUIRE_TOOLS").is_none_or(|value| value != "1"),
            "{message}"
        );
        println!("skipped: {message}");
    }
    found
}

/// Runs a program for at most 90 seconds and returns its output. Panics if it fails.
pub fn output(program: &str, arguments: &[&str]) -> String {
    let (succeeded, text) = run(program, arguments);
    assert!(succeeded, "{program} {arguments:?} failed:\n{text}");
    text
}

/// Runs a program that must fail and returns its output.
pub fn failure(program: &str, arguments: &[&str]) -> String {
    let (succeeded, text) = run(program, arguments);
    assert!(!succeeded, "{program} {arguments:?} succeeded:\n{text}");
    text
}

fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("timeout")
        .args(["90", program])
        .args(arguments)
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}
