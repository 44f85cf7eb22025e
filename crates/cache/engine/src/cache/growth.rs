//! An origin that has grown: whether the cache can take it over, and taking it over while the cache is idle.
//!
//! The layout has room for a larger origin, so the size in the superblock is all that changes on the device. The origin is as
//! long already, so a crash before or after the change is harmless; but no request beyond the old size may reach a shard before
//! the superblock is stable, because the next opening refuses blocks beyond the recorded size.

use flaz_device::Device;

use super::error::{CacheError, Served};
use super::superblock::write_superblock;
use crate::fingerprint::{FINGERPRINT_BYTES, fingerprint};
use crate::format::geometry::Geometry;
use crate::format::superblock::{State, Superblock};

/// The size of an origin before and after it was taken over, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrownOrigin {
    /// Before.
    pub before: u64,
    /// After; the same if it had not grown.
    pub after: u64,
}

/// Why the size of an origin cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowthError {
    /// It has shrunk.
    #[error(
        "the origin has {found} bytes, expected at least the {expected} that the cache serves: the data beyond its end would be \
         lost; restore the size of the origin, or shrink the file system, run `flaz detach`, and create the cache \
         again"
    )]
    Smaller {
        /// Bytes that are served.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The layout of the cache has no room for it.
    #[error(
        "the origin has {found} bytes, expected at most {expected}, the maximum for this cache: write all dirty blocks to the \
         origin with `flaz flush`, stop the cache, and create it again with `flaz create --force`"
    )]
    Larger {
        /// The largest size.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
}

/// Checks that a cache can serve `len` bytes of an origin.
///
/// # Errors
/// [`GrowthError`].
pub(super) fn check_growth(geometry: &Geometry, len: u64) -> Result<GrownOrigin, GrowthError> {
    let (before, largest) = (geometry.origin_len, geometry.origin_len_max());
    if len < before {
        return Err(GrowthError::Smaller {
            expected: before,
            found: len,
        });
    }
    if len > largest {
        return Err(GrowthError::Larger {
            expected: largest,
            found: len,
        });
    }
    Ok(GrownOrigin { before, after: len })
}

/// Takes over the size of an origin, and its `identity`, while the cache is not open, whatever its state. Both are stable on
/// return. The caller has made sure that it is the same origin.
///
/// # Errors
/// [`CacheError::Growth`]; [`CacheError::OriginChanged`] if the origin was written since a clean stop; or a device fails.
pub async fn grow_idle_origin<C: Device, O: Device>(
    cache: &C,
    origin: &O,
    superblock: &mut Superblock,
    identity: &str,
) -> Result<GrownOrigin, CacheError> {
    let len = origin.len();
    let grown = check_growth(&superblock.geometry, len)?;
    if grown.before == grown.after && superblock.origin_identity == identity {
        return Ok(grown);
    }
    if superblock.state == State::Clean
        && let Some(expected) = superblock.origin_fingerprint
    {
        // The fingerprint of the larger origin may be another one: a partition may begin near the old end, or beyond it.
        let now = fingerprint(origin, grown.before).await?;
        if !now.fits(expected) {
            return Err(CacheError::OriginChanged {
                since: Served::UntilStop,
                dirty: superblock.dirty,
                bytes: FINGERPRINT_BYTES.min(grown.before),
                expected: expected.get(),
                found: now.value.get(),
            });
        }
        superblock.origin_fingerprint = Some(fingerprint(origin, len).await?.value);
    }
    superblock.geometry.origin_len = len;
    superblock.origin_identity = identity.to_owned();
    write_superblock(cache, superblock).await?;
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;

    #[test]
    fn a_size_is_taken_over_within_the_room_of_the_layout() {
        let geometry = Geometry::plan(64 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits");
        let largest = geometry.origin_len_max();
        assert!(largest >= 4 << 30, "{largest}");
        for after in [1 << 30, (1 << 30) + 512, largest] {
            let before = 1 << 30;
            assert_eq!(check_growth(&geometry, after), Ok(GrownOrigin { before, after }));
            let grown = Geometry {
                origin_len: after,
                ..geometry
            };
            grown.check(64 << 20).expect("it can be read again");
        }
        let error = check_growth(&geometry, (1 << 30) - 512)
            .expect_err("smaller")
            .to_string();
        assert!(
            error.contains("1073741824") && error.contains("flaz detach"),
            "{error}"
        );
        let error = check_growth(&geometry, largest + 512)
            .expect_err("larger")
            .to_string();
        assert!(
            error.contains(&largest.to_string()) && error.contains("flaz flush"),
            "{error}"
        );
    }
}
