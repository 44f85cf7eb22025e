//! Loads: recordings, from files or generated.
//!
//! | module | contents |
//! |---|---|
//! | `file_server` | a load after SPECsfs2008 |
//! | `files` | a file system with a page cache, as far as its block trace needs it |
//! | [`generated`] | that load, and a sequential one |
//!
//! Invariant: a load fits its origin, and has at least one read or write.

mod file_server;
mod files;
pub mod generated;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flaz_engine::units::BLOCK_BYTES;
use flaz_trace::recording::{Recorded, Sizes};
use flaz_trace::{Format, Op, TraceError, TraceReader};

/// Largest origin that is simulated, in bytes: the memory of a replay grows with what is written and cached.
pub const ORIGIN_BYTES_MAX: u64 = 1 << 40;
/// Most blocks that a recording touches.
pub const BLOCKS_MAX: u64 = 1 << 20;
/// Most requests of a recording, all of which are in memory, and blocks that they read and write, each as often as it is.
pub const REQUESTS_MAX: usize = 4 << 20;
const SIZES_MAX: usize = 1 << 28;
/// Unit of the size of an origin.
const UNIT_BYTES: u64 = 1 << 20;

macro_rules! recordings {
    ($($name:literal),*) => {
        [$((
            concat!($name, ".flaztrace.zst"),
            include_bytes!(concat!("../../recordings/", $name, ".flaztrace.zst")),
        )),*]
    };
}

/// Recordings by `recordings/record.sh`.
static RECORDINGS: [(&str, &[u8]); 5] =
    recordings!("tpch-q3", "tpch-q11", "tpch-q14", "postmark", "postmark-x4");

/// A load.
#[derive(Clone, Debug)]
pub struct Workload {
    name: String,
    requests: Arc<[Arc<Recorded>]>,
    origin_bytes: u64,
    footprint_blocks: u64,
}

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// It cannot be read.
    #[error(transparent)]
    Trace(TraceError),
    /// It is no recording.
    #[error("{}: expected a recording of `flaz lab record`", path.display())]
    NoRecording {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error("{}:{number}: expected {expected}, found {found:?}: the recording is damaged, record it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        number: u64,
        /// Expected contents.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// It has nothing to replay, or too much.
    #[error("{name}: expected {expected}, found {found}")]
    Size {
        /// Name of the load.
        name: String,
        /// Expected contents.
        expected: &'static str,
        /// Found contents.
        found: String,
    },
}

impl From<TraceError> for WorkloadError {
    /// Without the advice about traces of other formats.
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::Format { path, .. } => Self::NoRecording { path },
            TraceError::Content {
                path,
                format: Format::Flaz,
                number,
                expected,
                found,
                ..
            } => Self::Damaged {
                path,
                number,
                expected,
                found,
            },
            TraceError::Content { path, .. } => Self::NoRecording { path },
            error => Self::Trace(error),
        }
    }
}

impl Workload {
    /// A load of these requests.
    ///
    /// # Errors
    /// It has no read or write, or exceeds the limits.
    pub fn new(name: &str, requests: impl IntoIterator<Item = Recorded>) -> Result<Self, WorkloadError> {
        let requests: Arc<[Arc<Recorded>]> = requests.into_iter().map(Arc::new).collect();
        let size = |expected, found: String| WorkloadError::Size {
            name: name.to_owned(),
            expected,
            found,
        };
        let end = requests
            .iter()
            .map(|it| it.request.offset.saturating_add(it.request.len));
        let end = end.max().unwrap_or(0);
        if end > ORIGIN_BYTES_MAX {
            return Err(size("a device of at most 1 TiB", format!("{end} bytes")));
        }
        let mut touched = HashSet::new();
        for block in requests.iter().flat_map(|it| blocks(it)) {
            touched.insert(block);
            if touched.len() as u64 > BLOCKS_MAX {
                break;
            }
        }
        let footprint_blocks = touched.len() as u64;
        if !(1..=BLOCKS_MAX).contains(&footprint_blocks) {
            return Err(size(
                "reads and writes of 1 to 1048576 different blocks (4 GiB)",
                match footprint_blocks {
                    0 => "none".to_owned(),
                    _ => "more".to_owned(),
                },
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            requests,
            origin_bytes: end.div_ceil(UNIT_BYTES) * UNIT_BYTES,
            footprint_blocks,
        })
    }

    /// A recording in a file.
    ///
    /// # Errors
    /// It cannot be read, or is no recording, or exceeds the limits.
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        Self::of(TraceReader::open(path, flaz_trace::Options::default())?, path)
    }

    fn of(mut reader: TraceReader, path: &Path) -> Result<Self, WorkloadError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (mut requests, mut sizes) = (Vec::new(), 0);
        while let Some(recorded) = reader.next_recorded()? {
            sizes += recorded.sizes.len();
            if requests.len() == REQUESTS_MAX || sizes > SIZES_MAX {
                return Err(WorkloadError::Size {
                    name: name.into_owned(),
                    expected: "at most 4194304 requests, for 1 TiB together",
                    found: "more".to_owned(),
                });
            }
            requests.push(recorded);
        }
        Self::new(name.split('.').next().unwrap_or_default(), requests)
    }

    /// The recordings of this crate: PostMark with one and four instances, queries 3, 11 and 14 of TPC-H on PostgreSQL.
    ///
    /// # Errors
    /// Never: a test reads them.
    pub fn recorded() -> Result<Vec<Self>, WorkloadError> {
        let read = |(name, bytes): &(&str, &'static [u8])| {
            let path = Path::new(name);
            let reader = TraceReader::new(*bytes, path, flaz_trace::Options::default())?;
            Self::of(reader, path)
        };
        RECORDINGS.iter().map(read).collect()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requests.
    #[must_use]
    pub fn requests(&self) -> &[Arc<Recorded>] {
        &self.requests
    }

    /// Bytes of the origin.
    #[must_use]
    pub fn origin_bytes(&self) -> u64 {
        self.origin_bytes
    }

    /// Bytes of the different blocks that are read or written.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        self.footprint_blocks * BLOCK_BYTES as u64
    }

    /// Its first `count` requests, on the same device.
    #[must_use]
    pub fn beginning(&self, count: usize) -> Self {
        let requests: Arc<[_]> = self.requests.iter().take(count).cloned().collect();
        let touched: HashSet<u64> = requests.iter().flat_map(|it| blocks(it)).collect();
        Self {
            name: self.name.clone(),
            footprint_blocks: touched.len() as u64,
            requests,
            origin_bytes: self.origin_bytes,
        }
    }

    /// Sizes of the blocks before the load: those of blocks that are read before they are written.
    pub(crate) fn first_contents(&self) -> HashMap<u64, Sizes> {
        let mut first = HashMap::new();
        let mut written = std::collections::HashSet::new();
        for recorded in self.requests.iter() {
            for (block, sizes) in blocks(recorded).zip(&recorded.sizes) {
                match recorded.request.op {
                    Op::Read if !written.contains(&block) => {
                        first.entry(block).or_insert(*sizes);
                    }
                    _ => {
                        written.insert(block);
                    }
                }
            }
        }
        first
    }
}

/// Numbers of the blocks that a read or write touches.
fn blocks(recorded: &Recorded) -> std::ops::Range<u64> {
    let first = recorded.request.offset / BLOCK_BYTES as u64;
    first..first + recorded.sizes.len() as u64
}
