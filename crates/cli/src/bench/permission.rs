//! Checks whether a file or device may be overwritten: it is not in use, contains no known data, and its path was typed
//! as confirmation.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use crate::control::shell::quoted;
use crate::error::Failure;
use crate::safety::{self, Claim};

/// Runs all checks and holds the target; `None` for a directory, in which only new files are created.
///
/// # Errors
/// The objections. Nothing was written.
pub fn to_overwrite(target: &Path, typed: Option<&Path>) -> Result<Option<Claim>, Failure> {
    let in_place = match fs::metadata(target) {
        Ok(found) => !found.is_dir(),
        // A missing target will be created as a directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::system(format!("inspecting {}", target.display()))(error)),
    };
    if !in_place {
        return match typed {
            None => Ok(None),
            Some(typed) => Err(Failure::Usage(format!(
                "--yes-destroy {}: only for files and devices; nothing is overwritten in the directory {}",
                typed.display(),
                target.display()
            ))),
        };
    }
    // Check first: a target that is refused anyway needs no confirmation.
    let claim = safety::claim_to_overwrite(target)?;
    match typed {
        Some(typed) => agrees(target, &typed.to_string_lossy())?,
        None if io::stdin().is_terminal() && io::stderr().is_terminal() => {
            agrees(
                target,
                &asked(target).map_err(Failure::system("reading the confirmation"))?,
            )?;
        }
        None => {
            return Err(Failure::Usage(format!(
                "{}: all data on it will be lost: confirm with --yes-destroy {}",
                target.display(),
                quoted(target)
            )));
        }
    }
    Ok(Some(claim))
}

fn asked(target: &Path) -> io::Result<String> {
    let mut err = io::stderr().lock();
    write!(
        err,
        "All data on {} will be lost. Type its path to confirm: ",
        target.display()
    )?;
    err.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}

fn agrees(target: &Path, typed: &str) -> Result<(), Failure> {
    if target.as_os_str() == typed.trim_end_matches('\n') {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "expected {} as confirmation, found '{}': nothing was written",
        target.display(),
        typed.trim_end()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_path_confirms() {
        let target = Path::new("/dev/sdx");
        assert!(agrees(target, "/dev/sdx").is_ok() && agrees(target, "/dev/sdx\n").is_ok());
        for typed in ["", "y", "yes", "/dev/sdx1", "/dev/./sdx", " /dev/sdx"] {
            let refused = agrees(target, typed).unwrap_err().to_string();
            assert!(refused.contains("nothing was written"), "{refused}");
        }
    }
}
