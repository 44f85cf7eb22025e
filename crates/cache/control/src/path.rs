//! Paths in JSON, which has no bytes: `#[serde(with = "crate::path")]`.
//!
//! A path is a string. In it, a byte that does not belong to UTF-8, and a backslash, are written as `\xNN`, with two
//! hexadecimal digits: the file `a\` followed by the byte 0xff is `a\x5c\xff`. So every path has one form, other paths are
//! written as they are, and `printf %b` of a shell restores the bytes.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serializer};

/// The form of a path in JSON.
#[must_use]
pub fn encode(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', r"\x5c"));
        for byte in chunk.invalid() {
            // Writing to a String does not fail.
            let _ = write!(text, r"\x{byte:02x}");
        }
    }
    text
}

/// The path of a form in JSON; `None` if a backslash is not followed by `x` and two hexadecimal digits.
#[must_use]
pub fn decode(text: &str) -> Option<PathBuf> {
    let mut parts = text.split('\\');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.strip_prefix('x')?.get(..2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[3..]);
    }
    Some(Path::new(OsStr::from_bytes(&bytes)).to_owned())
}

/// Writes a path.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&encode(path))
}

/// Writes a path that may be missing: `#[serde(serialize_with = "path::serialize_optional")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize_optional<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.serialize_some(&encode(path)),
        None => serializer.serialize_none(),
    }
}

/// Reads a path.
///
/// # Errors
/// It is not a string, or a backslash in it does not begin an escape.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "invalid path '{text}': expected \\xNN after a backslash, with two hexadecimal digits"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_reads_back() {
        for (bytes, text) in [
            (&b"/dev/sdb"[..], "/dev/sdb"),
            (b"caf\xc3\xa9 1", "café 1"),
            (b"/a/caf\xe9.img", r"/a/caf\xe9.img"),
            (b"a\\\xff", r"a\x5c\xff"),
            (b"\\x41", r"\x5cx41"),
            (b"\xf0\x9f\x92", r"\xf0\x9f\x92"),
            (b"", ""),
        ] {
            let path = Path::new(OsStr::from_bytes(bytes));
            assert_eq!(encode(path), text);
            assert_eq!(decode(text).as_deref(), Some(path), "{text}");
        }
        // Any byte after any other.
        for first in 0..=u8::MAX {
            let all: Vec<u8> = (0..=u8::MAX).flat_map(|second| [first, second]).collect();
            let path = Path::new(OsStr::from_bytes(&all));
            assert_eq!(decode(&encode(path)).as_deref(), Some(path));
        }
    }

    #[test]
    fn other_escapes_are_refused() {
        for text in ["\\", r"\n", r"\x", r"\x1", r"\xgg", r"\x+1", r"a\\b", "\\x1é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
