//! Block traces: the referenced blocks in order.
//!
//! A request touches all 4 KiB blocks that it overlaps, each once. Reads and writes count alike, because two of the
//! formats do not distinguish them. The traces are not part of this repository; the user specifies their directory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Size of a sector in all formats, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Sectors in a block of 4 KiB.
const SECTORS_PER_BLOCK: u64 = 8;

/// Maximum number of sectors in a request (1 GiB): a trace with more is damaged.
const REQUEST_SECTORS_MAX: u64 = 1 << 21;

/// Maximum number of block references in a trace: 4 GiB of memory.
const REFERENCES_MAX: usize = 1 << 29;

/// Size of a record in the VSCSI format: serial u32, length u32, segments u32, command u16, version u16, sector u64,
/// microseconds u64, little-endian.
const VSCSI_RECORD_BYTES: usize = 32;

/// The format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Lines of "first sector, sectors, ignored, request number", as in the traces of the ARC paper.
    Arc,
    /// Binary records of SCSI requests, as recorded by VMware's vscsiStats.
    Vscsi,
}

/// A trace of the design's table.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Its name in the table.
    pub name: &'static str,
    /// Its file in the directory of traces.
    pub file: &'static str,
    /// Its format.
    pub format: Format,
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
        format: Format::Arc,
        references: 611_918,
        distinct: 102_348,
    },
    Known {
        name: "arc-P6",
        file: "arc-P6.lis.zst",
        format: Format::Arc,
        references: 2_021_684,
        distinct: 101_903,
    },
    Known {
        name: "cloudphysics",
        file: "cloudphysics.vscsi.zst",
        format: Format::Vscsi,
        references: 1_141_869,
        distinct: 269_210,
    },
];

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read or decompressed.
    #[error("cannot read the trace {path}: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The contents do not match the format.
    #[error("{path}, request {request}: expected {expected}, found {found:?}", path = path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Counted from 1.
        request: usize,
        /// Expected contents.
        expected: &'static str,
        /// What does.
        found: String,
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
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// The blocks, renumbered from 0 in the order of their first reference.
    pub references: Vec<u32>,
    /// For each of these numbers, the block's number on the traced device, in units of 4 KiB.
    pub blocks: Vec<u64>,
}

impl Trace {
    /// Reads a trace of the design's table from the folder `dir` and checks its counts.
    ///
    /// # Errors
    /// The file is missing, damaged, or another trace.
    pub fn known(dir: &Path, known: &Known) -> Result<Trace, TraceError> {
        let path = dir.join(known.file);
        let trace = Trace::read(&path, known.format)?;
        if (trace.references.len(), trace.distinct()) != (known.references, known.distinct) {
            return Err(TraceError::Count {
                path,
                references: trace.references.len(),
                distinct: trace.distinct(),
                expected_references: known.references,
                expected_distinct: known.distinct,
            });
        }
        Ok(trace)
    }

    /// Reads a trace from a file; one whose name ends in `.zst` is decompressed.
    ///
    /// # Errors
    /// The file cannot be read, or is not in that format.
    pub fn read(path: &Path, format: Format) -> Result<Trace, TraceError> {
        let cannot = |source| TraceError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(cannot)?;
        if path.extension().is_some_and(|extension| extension == "zst") {
            let decoder = zstd::Decoder::new(file).map_err(cannot)?;
            Trace::parse(BufReader::new(decoder), format, path)
        } else {
            Trace::parse(BufReader::new(file), format, path)
        }
    }

    /// Number of distinct blocks.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.blocks.len()
    }

    fn parse(input: impl BufRead, format: Format, path: &Path) -> Result<Trace, TraceError> {
        let mut collector = Collector::default();
        match format {
            Format::Arc => parse_arc(input, &mut collector),
            Format::Vscsi => parse_vscsi(input, &mut collector),
        }
        .map_err(|problem| match problem {
            Problem::Read(source) => TraceError::Read {
                path: path.to_owned(),
                source,
            },
            Problem::Content(expected, found) => TraceError::Content {
                path: path.to_owned(),
                request: collector.requests + 1,
                expected,
                found,
            },
        })?;
        Ok(collector.trace)
    }
}

enum Problem {
    Read(io::Error),
    Content(&'static str, String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Read(error)
    }
}

struct Collector {
    trace: Trace,
    numbers: std::collections::HashMap<u64, u32>,
    requests: usize,
}

impl Default for Collector {
    fn default() -> Self {
        let trace = Trace {
            references: Vec::new(),
            blocks: Vec::new(),
        };
        Collector {
            trace,
            numbers: std::collections::HashMap::new(),
            requests: 0,
        }
    }
}

impl Collector {
    fn request(&mut self, first_sector: u64, sectors: u64) -> Result<(), Problem> {
        if sectors > REQUEST_SECTORS_MAX || first_sector > u64::MAX - sectors {
            let found = format!("{sectors} sectors from {first_sector}");
            return Err(Problem::Content(
                "at most 1 GiB on a device below 2^64 sectors",
                found,
            ));
        }
        if sectors > 0 {
            let last = (first_sector + sectors - 1) / SECTORS_PER_BLOCK;
            for block in first_sector / SECTORS_PER_BLOCK..=last {
                self.reference(block)?;
            }
        }
        self.requests += 1;
        Ok(())
    }

    fn reference(&mut self, block: u64) -> Result<(), Problem> {
        if self.trace.references.len() >= REFERENCES_MAX {
            return Err(Problem::Content(
                "at most 2^29 block references",
                "more".to_owned(),
            ));
        }
        let next = self.trace.blocks.len() as u32;
        let number = *self.numbers.entry(block).or_insert(next);
        if number == next {
            self.trace.blocks.push(block);
        }
        self.trace.references.push(number);
        Ok(())
    }
}

fn parse_arc(input: impl BufRead, collector: &mut Collector) -> Result<(), Problem> {
    for line in input.lines() {
        let line = line?;
        let mut fields = line.split_ascii_whitespace();
        let mut number = || {
            let field = fields.next()?;
            field.parse::<u64>().ok()
        };
        match (number(), number()) {
            (Some(first), Some(sectors)) => collector.request(first, sectors)?,
            _ if line.trim().is_empty() => {}
            _ => return Err(Problem::Content("first sector and number of sectors", line)),
        }
    }
    Ok(())
}

fn parse_vscsi(mut input: impl Read, collector: &mut Collector) -> Result<(), Problem> {
    let mut record = [0; VSCSI_RECORD_BYTES];
    while read_record(&mut input, &mut record)? {
        let len = u64::from(u32::from_le_bytes([record[4], record[5], record[6], record[7]]));
        let mut sector = [0; 8];
        sector.copy_from_slice(&record[16..24]);
        if len % SECTOR_BYTES != 0 {
            return Err(Problem::Content(
                "a length in whole sectors",
                format!("{len} bytes"),
            ));
        }
        collector.request(u64::from_le_bytes(sector), len / SECTOR_BYTES)?;
    }
    Ok(())
}

/// False at the end of the input.
fn read_record(input: &mut impl Read, record: &mut [u8; VSCSI_RECORD_BYTES]) -> Result<bool, Problem> {
    let mut filled = 0;
    while filled < record.len() {
        match input.read(&mut record[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(Problem::Content("32 bytes", format!("{filled} and then the end"))),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], format: Format) -> Result<Trace, String> {
        Trace::parse(bytes, format, Path::new("t")).map_err(|error| error.to_string())
    }

    fn vscsi(len: u32, sector: u64) -> Vec<u8> {
        let mut record = vec![0xff; VSCSI_RECORD_BYTES];
        record[4..8].copy_from_slice(&len.to_le_bytes());
        record[16..24].copy_from_slice(&sector.to_le_bytes());
        record
    }

    #[test]
    fn a_request_touches_each_block_it_overlaps_once() {
        // Sectors 8 to 15 are block 1; 7 to 16 overlap three blocks; an empty request overlaps none.
        let trace = parse(b"8 8 0 0\n7 10 0 1\n\n100 0 0 2\n16 1 0 3\n", Format::Arc).expect("a trace");
        assert_eq!(trace.references, [0, 1, 0, 2, 2]);
        assert_eq!(trace.blocks, [1, 0, 2]);
        assert_eq!(trace.distinct(), 3);
    }

    #[test]
    fn both_formats_give_the_same_trace() {
        let records = [vscsi(4096, 8), vscsi(5120, 7), vscsi(512, 16)].concat();
        assert_eq!(
            parse(&records, Format::Vscsi),
            parse(b"8 8 0 0\n7 10 0 1\n16 1 0 2\n", Format::Arc)
        );
    }

    #[test]
    fn damage_is_reported_with_its_place() {
        let error = parse(b"8 8 0 0\n8 x 0 1\n", Format::Arc).expect_err("x is not a number");
        assert_eq!(
            error,
            "t, request 2: expected first sector and number of sectors, found \"8 x 0 1\""
        );
        let error = parse(&vscsi(4096, 8)[..31], Format::Vscsi).expect_err("a byte is missing");
        assert_eq!(
            error,
            "t, request 1: expected 32 bytes, found \"31 and then the end\""
        );
        let error = parse(&vscsi(100, 8), Format::Vscsi).expect_err("no whole sector");
        assert_eq!(
            error,
            "t, request 1: expected a length in whole sectors, found \"100 bytes\""
        );
        for (first, sectors) in [(0, u64::MAX), (u64::MAX, 2), (0, REQUEST_SECTORS_MAX + 1)] {
            let line = format!("{first} {sectors} 0 0\n");
            parse(line.as_bytes(), Format::Arc).expect_err("no such request");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Trace::known(Path::new("/nonexistent"), &KNOWN[0]).expect_err("nothing there");
        let text = error.to_string();
        assert!(
            text.starts_with("cannot read the trace /nonexistent/arc-P3.lis.zst: "),
            "{text}"
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
            let trace = Trace::known(Path::new(&dir), known).expect("counts are checked");
            assert_eq!(trace.references.len(), known.references);
            assert_eq!(trace.distinct(), known.distinct);
        }
    }
}
