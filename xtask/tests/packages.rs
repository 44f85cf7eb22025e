//! `tools/packages` on fake systems: whether a browser is required, and the message if none can be installed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Programs that the script runs.
const NEEDED: [&str; 10] = [
    "rm", "tail", "sh", "sed", "grep", "find", "head", "sort", "tr", "mktemp",
];
/// Directories that the script adds to PATH.
const ADDED: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// A system with only the programs that the script needs and those added to it.
struct System(tempfile::TempDir);

impl System {
    /// `None`: its PATH always contains a browser.
    fn new(id: &str) -> Option<Self> {
        let browsers = ["chromium", "chromium-browser", "google-chrome"];
        if ADDED
            .iter()
            .any(|folder| browsers.iter().any(|name| Path::new(folder).join(name).exists()))
        {
            println!("skipped: this system has a browser among its system programs");
            return None;
        }
        let system = Self(tempfile::tempdir().unwrap());
        let folders = std::env::var_os("PATH").unwrap();
        for name in NEEDED {
            let program = std::env::split_paths(&folders)
                .map(|folder| folder.join(name))
                .find(|path| path.is_file());
            symlink(program.unwrap(), system.path(name)).unwrap();
        }
        system.script("id", "echo 0");
        fs::write(
            system.path("os-release"),
            format!("NAME=x\nID={id}\nID_LIKE=debian\n"),
        )
        .unwrap();
        Some(system)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    fn packages(&self, word: &str) -> Output {
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/packages"))
            .arg(word)
            .env("PATH", self.0.path())
            .env("FLAZ_OS_RELEASE", self.path("os-release"))
            .output()
            .unwrap()
    }

    fn wants_browser(&self) -> bool {
        self.packages("browser").status.success()
    }
}

#[test]
fn a_browser_is_required_if_the_archive_has_one() {
    let Some(debian) = System::new("debian") else {
        return;
    };
    assert!(!debian.wants_browser(), "nothing to install it with");
    // Neither package lists nor a network.
    debian.script("apt-get", "exit 100");
    debian.script("apt-cache", "exit 100");
    assert!(debian.wants_browser(), "Debian has it, whatever could be read");

    let Some(ubuntu) = System::new("ubuntu") else {
        return;
    };
    ubuntu.script("apt-get", "exit 0");
    ubuntu.script("apt-cache", "exit 0");
    assert!(!ubuntu.wants_browser());
    ubuntu.script("chromium", "exit 0");
    assert!(ubuntu.wants_browser(), "it is there");

    let Some(other) = System::new("other") else { return };
    other.script("apt-get", "exit 0");
    other.script("apt-cache", "echo Package: chromium");
    assert!(other.wants_browser(), "the archive says so");
}

#[test]
fn a_missing_browser_is_reported_and_tests_continue() {
    let Some(ubuntu) = System::new("ubuntu") else {
        return;
    };
    ubuntu.script("apt-get", "exit 0");
    ubuntu.script("apt-cache", "exit 0");
    let output = ubuntu.packages("test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("Not installed: chromium, which is not in this system's archive"),
        "{text}"
    );
    assert!(
        !text.contains("apt-get install -y --no-install-recommends chromium"),
        "{text}"
    );
}
