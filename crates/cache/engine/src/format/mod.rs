//! The on-disk format of a cache device: fixed little-endian layouts, described in prose in `docs/format.md`.
//!
//! | module | structure |
//! |---|---|
//! | [`geometry`] | the layout of the device |
//! | [`superblock`] | identity, geometry and state, in two slots |
//! | `stored_settings` | the settings in a superblock |
//! | [`manifest`] | the state of each region |
//! | [`intent`] | sectors of the intent bitmap |
//! | [`shard_state`] | one page a shard: location of the index image of a clean stop |
//! | [`extent`] | extent header, block records, fragment headers |
//! | [`dictionary`] | a dictionary of the second codec |
//! | [`summary`] | the list of a region's extents and records, at the region's end |
//!
//! Everything here is pure: bytes in, values or a [`FormatError`] out. The contents of a cache device are untrusted input:
//! every length is checked against the geometry, which itself is checked against the device.

pub mod dictionary;
pub mod extent;
pub mod geometry;
pub mod group;
pub mod intent;
pub mod layout;
pub mod manifest;
pub mod shard_state;
mod stored_settings;
pub mod summary;
pub mod superblock;

/// Why bytes were refused: the expected and the actual value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The structure does not begin with its magic number.
    #[error("{what}: no magic number (expected {expected:#x}, found {found:#x})")]
    Magic {
        /// Which structure.
        what: &'static str,
        /// The structure's magic number.
        expected: u64,
        /// The value found.
        found: u64,
    },
    /// The checksum does not match.
    #[error("{what}: checksum mismatch (stored {stored:#010x}, computed {computed:#010x})")]
    Checksum {
        /// Which structure.
        what: &'static str,
        /// The checksum on the device.
        stored: u32,
        /// The checksum of the bytes read.
        computed: u32,
    },
    /// A different version of the format.
    #[error("{}", other_version(*expected, *found))]
    Version {
        /// The version that this build reads.
        expected: u32,
        /// The version found.
        found: u32,
    },
    /// Features that this build does not support and must not ignore.
    #[error("unknown features {0:#x}: use a newer flaz, or recreate the cache")]
    Features(u64),
    /// The device or file is too small for a cache.
    #[error(
        "{found} bytes are too few: a cache of this origin needs at least {}KiB; use a larger cache device or --size",
        least.div_ceil(1 << 10)
    )]
    TooSmall {
        /// Its size in bytes.
        found: u64,
        /// Bytes of the least.
        least: u64,
    },
    /// A field has an invalid value.
    #[error("{what}: {field} is {found}, expected {expected}")]
    Field {
        /// Which structure.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// The expected value, in words.
        expected: String,
        /// The value found.
        found: String,
    },
}

fn other_version(expected: u32, found: u32) -> String {
    match found < expected {
        true => format!(
            "made by an older flaz (format {found}, this program has {expected}): detach it with that version, then create it again"
        ),
        false => {
            format!("made by a newer flaz (format {found}, this program has {expected}): use that version")
        }
    }
}

impl FormatError {
    pub(crate) fn field(
        what: &'static str,
        field: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Field {
            what,
            field,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// CRC-32C of `bytes`, with the four bytes at `at` taken as zero.
pub(crate) fn checksum_without(bytes: &[u8], at: usize) -> u32 {
    let sum = crc32c::crc32c(&bytes[..at]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[at + 4..])
}
