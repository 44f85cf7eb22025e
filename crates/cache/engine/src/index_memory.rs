//! How much memory the index of a cache takes, and how much it gets.
//!
//! | cache | memory | index |
//! |---|---|---|
//! | without an area for index pages | as much as it takes | a table |
//! | with one | a bound that was chosen, or a quarter of the machine's memory if the table would take more | in pages |
//! | with one | otherwise | a table |

use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::index::FRAMES_MIN;
use crate::units::BLOCK_BYTES;

/// Bytes of the table for each cached block.
const ENTRY_BYTES: u64 = 10;
/// Blocks stored in the space of one: expected, and for which there is space for index pages.
const BLOCKS_EXPECTED: u64 = 2;
const BLOCKS_MAX: u64 = 4;
/// Fewest bytes of memory for each page: 13 for its place in the directory, and some for its changes.
const BYTES_PER_PAGE_MIN: u64 = 16;

/// A cache cannot be served with this bound of the memory for its index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexMemoryError {
    /// No memory at all.
    #[error("index memory: expected more than 0 bytes; without --index-memory, flaz chooses")]
    Zero,
    /// It has no space for index pages.
    #[error(
        "index memory: expected {table} bytes or more, found {found}: this cache was created without an area for index pages. Serve it \
         without --index-memory, or create it again with `flaz create --index-memory`; volumes on a shared device have none"
    )]
    NoArea {
        /// What the index may take.
        table: u64,
        /// What was asked for.
        found: u64,
    },
    /// It is less than the directory of the pages, and the least number of them, take.
    #[error(
        "index memory: expected {least} bytes or more for a cache of this size, found {found}: use a larger --index-memory"
    )]
    TooSmall {
        /// The least.
        least: u64,
        /// What was asked for.
        found: u64,
    },
}

fn table_bytes(device_len: u64, blocks_of_one: u64) -> u64 {
    device_len / BLOCK_BYTES as u64 * blocks_of_one * ENTRY_BYTES
}

/// The bound for a cache of so many bytes if none is chosen. `None`: none is needed. `machine_bytes`: memory of this machine; 0: unknown.
#[must_use]
pub fn default(device_len: u64, machine_bytes: u64) -> Option<u64> {
    let quarter = machine_bytes / 4;
    (quarter > 0 && table_bytes(device_len, BLOCKS_EXPECTED) > quarter).then_some(quarter)
}

/// The bound with which a cache is served; `None`: its index is a table in memory.
///
/// # Errors
/// The cache cannot be served with the bound that was `chosen`.
pub fn bound(
    geometry: &Geometry,
    chosen: Option<u64>,
    machine_bytes: u64,
) -> Result<Option<u64>, IndexMemoryError> {
    if chosen == Some(0) {
        return Err(IndexMemoryError::Zero);
    }
    let table = table_bytes(geometry.device_len, BLOCKS_MAX);
    let Some(found) = chosen.filter(|bytes| *bytes < table) else {
        let default = default(geometry.device_len, machine_bytes);
        return Ok(default.filter(|_| chosen.is_none() && geometry.index_bytes > 0));
    };
    if geometry.index_bytes == 0 {
        return Err(IndexMemoryError::NoArea { table, found });
    }
    let pages = FRAMES_MIN as u64 * u64::from(geometry.shard_count);
    let least = pages * PAGE_BYTES as u64 + geometry.index_bytes / PAGE_BYTES as u64 * BYTES_PER_PAGE_MIN;
    if found < least {
        return Err(IndexMemoryError::TooSmall { least, found });
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;

    const GB: u64 = 1_000_000_000;
    const MB: u64 = 1_000_000;

    fn cache(len: u64, index_memory: Option<u64>) -> Geometry {
        let wish = GeometryOptions {
            index_memory,
            ..GeometryOptions::default()
        };
        Geometry::plan(len, 512, 4 * len, wish).expect("fits")
    }

    #[test]
    fn an_index_that_fits_is_a_table() {
        let (small, large) = (cache(GB, None), cache(500 * GB, Some(64 * MB)));
        assert_eq!(bound(&small, None, 16 * GB), Ok(None));
        assert_eq!(bound(&small, Some(GB), 16 * GB), Ok(None));
        assert_eq!(bound(&large, None, 16 * GB), Ok(None));
        assert_eq!(bound(&large, None, 8 * GB), Ok(Some(2 * GB)));
        assert_eq!(bound(&large, Some(64 * MB), 16 * GB), Ok(Some(64 * MB)));
        assert_eq!(bound(&large, Some(6 * GB), 8 * GB), Ok(None));
        assert_eq!(bound(&large, None, 0), Ok(None), "unknown");
        assert_eq!(
            (default(GB, 16 * GB), default(500 * GB, 8 * GB)),
            (None, Some(2 * GB))
        );
        assert_eq!(bound(&cache(500 * GB, None), None, 8 * GB), Ok(None), "no area");
    }

    #[test]
    fn a_bound_that_cannot_be_kept_is_refused() {
        let refused = |geometry: Geometry, bytes| {
            let refused = bound(&geometry, Some(bytes), 16 * GB).expect_err("it is too small");
            refused.to_string()
        };
        assert!(refused(cache(GB, None), MB).contains("flaz create --index-memory"));
        assert!(refused(cache(GB, Some(0)), 0).contains("more than 0 bytes"));
        let text = refused(cache(500 * GB, Some(MB)), MB);
        assert!(text.contains("use a larger --index-memory"), "{text}");
    }
}
