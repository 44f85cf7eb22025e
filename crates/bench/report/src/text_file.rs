//! Text files of limited size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{InputError, Problem};
use crate::input::FILE_BYTES_MAX;

/// Reads a text file of at most [`FILE_BYTES_MAX`].
///
/// # Errors
/// It cannot be read, is larger, or is not text.
pub(crate) fn read_text(path: &Path) -> Result<String, InputError> {
    let refused = |problem| InputError {
        path: path.to_owned(),
        line: None,
        problem,
    };
    let read_error = |error| refused(Problem::Read(error));
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(read_error)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refused(Problem::TooLarge));
    }
    String::from_utf8(bytes).map_err(|_| refused(Problem::NotText))
}
