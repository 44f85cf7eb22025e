//! The program to measure.

use std::path::PathBuf;
use std::process::Command;

/// flaz as it is in this checkout, or next to this program where it cannot be built.
///
/// # Errors
/// It cannot be built, and there is none.
pub fn program() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let beside = std::env::current_exe()?.with_file_name("flaz");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "-p", "flaz-cli"])
        .status();
    if !built.is_ok_and(|status| status.success()) && !beside.exists() {
        return Err("cannot build flaz: cargo build --release -p flaz-cli".into());
    }
    Ok(beside)
}
