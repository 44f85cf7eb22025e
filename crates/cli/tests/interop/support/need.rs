//! Requirements of a test on the machine. If one is missing, the test prints a message and passes, unless the
//! environment requires it: `FLAZ_REQUIRE_TOOLS=1` for programs, `FLAZ_REQUIRE_POSTGRES=1` for PostgreSQL,
//! `FLAZ_REQUIRE_KERNEL=1` for FUSE, loop devices and file systems.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

/// Directories with programs, also for users without sbin in their PATH.
const PROGRAM_DIRS: [&str; 6] = [
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
];

/// Whether every program is installed: pairs of a program and its Debian package.
///
/// # Panics
/// If one is missing and `FLAZ_REQUIRE_TOOLS=1`.
#[must_use]
pub fn tools(wanted: &[(&str, &str)]) -> bool {
    let missing: Vec<_> = wanted
        .iter()
        .filter(|(program, _)| {
            !PROGRAM_DIRS
                .iter()
                .any(|dir| Path::new(dir).join(program).exists())
        })
        .map(|(program, package)| format!("{program} (Debian package {package})"))
        .collect();
    missing.is_empty()
        || skip(
            "FLAZ_REQUIRE_TOOLS",
            &format!("not installed: {}", missing.join(", ")),
        )
}

/// Whether this process can mount `file_system` from a loop device over FUSE.
///
/// # Panics
/// If not, and `FLAZ_REQUIRE_KERNEL=1`.
#[must_use]
pub fn mounts(file_system: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return skip("FLAZ_REQUIRE_KERNEL", "mounting requires root");
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
            return skip("FLAZ_REQUIRE_KERNEL", &format!("{device}: {error}"));
        }
    }
    // In many kernels it is a module that is not loaded yet. If loading fails, the list shows that.
    let _ = std::process::Command::new("modprobe")
        .args(["-q", file_system])
        .env("PATH", PROGRAM_DIRS.join(":"))
        .status();
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(file_system));
    known
        || skip(
            "FLAZ_REQUIRE_KERNEL",
            &format!("the running kernel has no {file_system} loaded"),
        )
}

/// Whether this process can mount over FUSE.
///
/// # Panics
/// If not, and `FLAZ_REQUIRE_KERNEL=1`.
#[must_use]
pub fn fuse() -> bool {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(error) => skip("FLAZ_REQUIRE_KERNEL", &format!("/dev/fuse: {error}")),
    }
}

/// The directory of PostgreSQL's programs, in the newest version: its server is not in PATH.
///
/// # Panics
/// If there is none and `FLAZ_REQUIRE_POSTGRES=1`.
#[must_use]
pub fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = versions
        .filter_map(|version| version.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| programs_of(*version).join("initdb").exists())
        .max();
    if newest.is_none() {
        skip(
            "FLAZ_REQUIRE_POSTGRES",
            "not installed: PostgreSQL (Debian package postgresql)",
        );
    }
    newest.map(programs_of)
}

fn programs_of(version: u32) -> PathBuf {
    PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"))
}

fn skip(switch: &str, why: &str) -> bool {
    assert!(
        std::env::var_os(switch).is_none_or(|value| value != "1"),
        "{why}, and {switch}=1"
    );
    println!("skipped: {why}");
    false
}
