//! Why a shard could not be restored, or its index image not be written.

use flaz_device::DeviceError;

use crate::format::FormatError;

/// Why an index image could not be written or read. The cache then starts cold, or from the log if that has the same contents, or if
/// blocks may be dirty.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The device failed.
    #[error("index image of shard {shard}: {source}")]
    Device {
        /// The shard.
        shard: u32,
        /// What happened.
        source: DeviceError,
    },
    /// The origin failed a flush.
    #[error("shard {shard}: the origin could not be flushed, so the cache is not marked as clean: {source}")]
    Origin {
        /// The shard.
        shard: u32,
        /// What happened.
        source: DeviceError,
    },
    /// The state page or the image is not valid.
    #[error("index image of shard {shard}: {source}")]
    Format {
        /// The shard.
        shard: u32,
        /// What is wrong.
        source: FormatError,
    },
    /// The parts of the image do not fit each other or the geometry.
    #[error("index image of shard {shard}: {what}")]
    Contents {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
    /// The manifest and the image are both undamaged and do not fit each other. Clean blocks are not missed, but the image may
    /// know dirty blocks of which a recovery from the log would find older versions.
    #[error(
        "shard {shard}: the manifest and the index image are undamaged but contradict each other ({what}): the cache device has \
         lost writes that it had reported as stable"
    )]
    Contradiction {
        /// The shard.
        shard: u32,
        /// How they differ.
        what: String,
    },
    /// There is no image that fits: the index was a table and is in pages now, or the other way round, or its pages could not be kept. The
    /// log has the same contents.
    #[error("shard {shard} has no index image that fits: {what}")]
    Absent {
        /// The shard.
        shard: u32,
        /// Why.
        what: String,
    },
    /// The image of a cache with an area for index pages, or a page that it names, is damaged. The log has the same contents.
    #[error("index of shard {shard}: {what}")]
    Damaged {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
    /// The cache device failed earlier; nothing may be left that looks valid.
    #[error(
        "shard {shard}: the cache device failed while the cache was served; the next start uses dirty blocks only"
    )]
    Failed {
        /// The shard.
        shard: u32,
    },
}

/// Why a shard could not be recovered. It then starts cold.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The device failed.
    #[error("recovery of shard {shard}: {source}")]
    Device {
        /// The shard.
        shard: u32,
        /// What happened.
        source: DeviceError,
    },
    /// What was known to be stable is not there.
    #[error("recovery of shard {shard}: {what}")]
    Damaged {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
}
