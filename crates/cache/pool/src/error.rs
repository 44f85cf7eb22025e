//! Why a pool could not be opened or changed.

use std::io;

use flaz_device::DeviceError;

/// See the module's documentation.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The device failed.
    #[error("cache device: {0}")]
    Device(#[from] DeviceError),
    /// Neither slot has a superblock.
    #[error("no usable superblock of a shared device: slot 0: {0}; slot 1: {1}")]
    NoSuperblock(String, String),
    /// It is a cache of one origin.
    #[error("a cache of one origin, not a shared device")]
    NotShared,
    /// Neither slot has the magic number.
    #[error("it contains no flaz cache")]
    NoPool,
    /// Both copies of a sector of the table are damaged.
    #[error("both copies of sector {sector} of the chunk table are damaged: {first}; {second}")]
    Table {
        /// Number of the sector.
        sector: u32,
        /// What is wrong with the first copy.
        first: String,
        /// What is wrong with the second copy.
        second: String,
    },
    /// The table contradicts itself.
    #[error("the chunk table contradicts itself: {0}")]
    Contradiction(String),
    /// A value cannot be used.
    #[error("{what} is {found}, expected {expected}")]
    Field {
        /// The value's name.
        what: &'static str,
        /// The accepted values.
        expected: String,
        /// The value.
        found: String,
    },
    /// The volumes cannot all get what they are guaranteed.
    #[error(
        "the volumes together need, or are guaranteed, {sum} bytes: expected at most {most}, the space of the cache device; lower \
         --at-least of a volume, or remove a volume"
    )]
    Guarantees {
        /// Bytes that are guaranteed.
        sum: u64,
        /// Bytes for volumes.
        most: u64,
    },
    /// A pool cannot become so small.
    #[error(
        "the size is too small for the volumes with their guarantees, or for the chunk table: expected at least {least} bytes, \
         found {found}; lower --at-least of a volume, or remove a volume"
    )]
    TooSmall {
        /// Bytes of the least device.
        least: u64,
        /// Bytes of the wanted one.
        found: u64,
    },
    /// Requests to a part of a volume have not ended.
    #[error("part {index} of volume {volume} cannot be moved: requests to it have not ended")]
    Moving {
        /// Number of the volume.
        volume: u32,
        /// The part.
        index: u32,
    },
    /// All chunks are in use, or kept for other volumes.
    #[error("no chunk is free for volume {volume}: {why}")]
    NoChunk {
        /// Name of the volume.
        volume: String,
        /// The reason.
        why: &'static str,
    },
    /// There is no such volume.
    #[error("the cache device has no volume {0}")]
    NoVolume(String),
    /// There is one of this name.
    #[error("the cache device already has a volume {0}")]
    NameTaken(String),
}

impl PoolError {
    pub(crate) fn field(what: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self::Field {
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

impl From<PoolError> for io::Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NoChunk { .. } => Self::new(io::ErrorKind::StorageFull, error.to_string()),
            PoolError::Device(error) => error.source,
            error => Self::other(error.to_string()),
        }
    }
}
