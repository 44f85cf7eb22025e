//! The traces of the design's table, in memory as references to blocks.
//!
//! A request touches all 4 KiB blocks that it overlaps, each once. Reads and writes count alike, because the format of two of the
//! traces does not distinguish them. The traces are not part of this repository; the user specifies their directory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use flaz_trace::{Op, Options, TraceError, TraceReader};

use crate::sample::blocks_of;

/// Maximum number of block references in a trace: 4 GiB of memory.
const REFERENCES_MAX: usize = 1 << 29;

/// A trace of the design's table.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name in the table.
    pub name: &'static str,
    /// Its file in the directory of traces.
    pub file: &'static str,
    /// Number of block references.
    pub references: usize,
    /// Number of distinct blocks.
    pub distinct: usize,
}

/// The traces of the design's table.
pub const KNOWN: [Known; 3] = [
    Known {
        name: "arc-P3",
        file: "arc-P3.lis.zst",
        references: 611_918,
        distinct: 102_348,
    },
    Known {
        name: "arc-P6",
        file: "arc-P6.lis.zst",
        references: 2_021_684,
        distinct: 101_903,
    },
    Known {
        name: "cloudphysics",
        file: "cloudphysics.vscsi.zst",
        references: 1_141_869,
        distinct: 269_210,
    },
];

/// Why a trace cannot be studied.
#[derive(Debug, thiserror::Error)]
pub enum KnownError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace is too long.
    #[error("{}: expected at most 2^29 block references, found more", path.display())]
    Long {
        /// Which.
        path: PathBuf,
    },
    /// A valid trace, but not the one of that name.
    #[error("{path} has {references} references to {distinct} blocks, expected {expected_references} to {expected_distinct}: is it another trace?", path = path.display())]
    Count {
        /// Which.
        path: PathBuf,
        /// Found.
        references: usize,
        /// Found.
        distinct: usize,
        /// Known.
        expected_references: usize,
        /// Known.
        expected_distinct: usize,
    },
}

/// Block references in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The blocks, renumbered from 0 in the order of their first reference.
    pub references: Vec<u32>,
    /// Number of distinct blocks.
    pub distinct: usize,
}

impl Trace {
    /// Reads a trace of the design's table from the folder `dir` and checks its counts.
    ///
    /// # Errors
    /// The file is missing, damaged, or another trace.
    pub fn known(dir: &Path, known: &Known) -> Result<Self, KnownError> {
        let path = dir.join(known.file);
        let trace = Self::read(&path)?;
        if (trace.references.len(), trace.distinct) != (known.references, known.distinct) {
            return Err(KnownError::Count {
                path,
                references: trace.references.len(),
                distinct: trace.distinct,
                expected_references: known.references,
                expected_distinct: known.distinct,
            });
        }
        Ok(trace)
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is too long.
    pub fn read(path: &Path) -> Result<Self, KnownError> {
        let mut reader = TraceReader::open(path, Options::default())?;
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        let mut trace = Self::default();
        while let Some(request) = reader.next_request()? {
            if request.op == Op::Trim {
                continue;
            }
            for block in blocks_of(&request) {
                if trace.references.len() >= REFERENCES_MAX {
                    let path = path.to_owned();
                    return Err(KnownError::Long { path });
                }
                let next = numbers.len() as u32;
                trace.references.push(*numbers.entry(block).or_insert(next));
            }
        }
        trace.distinct = numbers.len();
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_touches_each_block_it_overlaps_once() {
        // Sectors 8 to 15 are block 1; 7 to 16 overlap three blocks; an empty request overlaps none.
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("t.lis");
        std::fs::write(&path, "8 8 0 0\n7 10 0 1\n\n100 0 0 2\n16 1 0 3\n").expect("written");
        let trace = Trace::read(&path).expect("a trace");
        assert_eq!((&trace.references[..], trace.distinct), (&[0, 1, 0, 2, 2][..], 3));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Trace::known(Path::new("/nonexistent"), &KNOWN[0]).expect_err("nothing there");
        assert_eq!(
            error.to_string(),
            "cannot read the trace /nonexistent/arc-P3.lis.zst"
        );
    }

    /// The counts that come with the traces; they are not in this repository.
    #[test]
    fn known_traces_have_the_published_counts() {
        let Some(dir) = std::env::var_os("FLAZ_TRACES") else {
            println!("skipped: FLAZ_TRACES is not set to the directory with the traces");
            return;
        };
        for known in &KNOWN {
            Trace::known(Path::new(&dir), known).expect("counts are checked");
        }
    }
}
