//! Recordings: the requests of one device, with the compressed sizes of their blocks, and with the order that a replay has to keep.
//!
//! A recording is a trace in flaz's own format, version 2. `docs/lab-evaluation.md` describes it.
//!
//! Invariants: what [`RecordingWriter`] writes, [`TraceReader::next_recorded`](crate::TraceReader::next_recorded) reads back; a
//! request has one pair of sizes for each block that it touches, a trim none.

use std::io::{self, Write};

use crate::fields::{Bad, number};
use crate::request::{Op, Request};

/// First line of a recording.
pub const RECORDING_HEADER: &str = "flaz-trace 2";
/// Codecs whose sizes are recorded, in this order: a fast one, and one with an entropy coder.
pub const RECORDED_CODECS: [&str; 2] = ["lz4", "zstd"];
/// Bytes of a block.
pub const RECORDED_BLOCK_BYTES: u64 = 4096;
/// Granules of a block, in which sizes are counted.
pub const GRANULES: u8 = 64;
/// Longest read or write in a line. The writer splits longer ones, because a line has a maximum length.
pub const RECORDED_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of requests in flight.
pub const DEPTH_MAX: u32 = 1 << 16;

/// Characters of the sizes from 1 to [`GRANULES`].
const ALPHABET: &[u8; GRANULES as usize] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/";
/// Character of a block whose bytes are all equal.
const SINGLE_VALUE: u8 = b'.';

/// Compressed size of a block in granules: 0 if all bytes are equal, [`GRANULES`] if it does not compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stored(u8);

impl Stored {
    /// All bytes are equal.
    pub const SINGLE_VALUE: Self = Self(0);

    /// A size in bytes, rounded up to a granule; a whole block and more is [`GRANULES`].
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        let granule = RECORDED_BLOCK_BYTES / u64::from(GRANULES);
        Self(bytes.div_ceil(granule).clamp(1, u64::from(GRANULES)) as u8)
    }

    /// The size in granules.
    #[must_use]
    pub fn granules(self) -> u8 {
        self.0
    }

    fn character(self) -> u8 {
        match self.0 {
            0 => SINGLE_VALUE,
            granules => ALPHABET[usize::from(granules - 1)],
        }
    }

    fn of_character(character: u8) -> Option<Self> {
        if character == SINGLE_VALUE {
            return Some(Self::SINGLE_VALUE);
        }
        let at = ALPHABET.iter().position(|known| *known == character)?;
        Some(Self(at as u8 + 1))
    }
}

/// Sizes of a block with each of [`RECORDED_CODECS`].
pub type Sizes = [Stored; RECORDED_CODECS.len()];

/// A request of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The request, with its time.
    pub request: Request,
    /// Requests of its kind in flight when it was sent, with itself: a replay sends it when fewer than that are in flight. Reads are
    /// of one kind, writes and trims of the other: a client that reads does not wait for a flusher.
    pub depth: u32,
    /// Time before a read without another read in flight, in microseconds: the client was computing. 0 for a write or trim, which a
    /// flusher sends when it wants.
    pub think_us: u64,
    /// Sizes of the blocks that are touched, in order; none for a trim. Of a write, the sizes after it.
    pub sizes: Vec<Sizes>,
}

/// Number of the blocks that a range touches.
#[must_use]
pub fn blocks_touched(offset: u64, len: u64) -> u64 {
    let end = offset.saturating_add(len).div_ceil(RECORDED_BLOCK_BYTES);
    end - (offset / RECORDED_BLOCK_BYTES).min(end)
}

/// The fields after the request: depth, time, and the sizes by each codec.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub depth: u32,
    pub think_us: u64,
    pub sizes: Vec<Sizes>,
}

/// Parses the fields after the length.
pub(crate) fn details<'a>(
    fields: &mut impl Iterator<Item = &'a str>,
    request: &Request,
) -> Result<Details, Bad> {
    let (depth, think) = (fields.next(), fields.next());
    let (Some(depth @ 1..), Some(think_us)) = (number(depth), number(think)) else {
        return Err(Bad::new(
            "requests in flight (1 or more), and microseconds without one, after the length",
            format!("{} {}", depth.unwrap_or(""), think.unwrap_or("")),
        ));
    };
    if depth > u64::from(DEPTH_MAX) {
        return Err(Bad::new("at most 65536 requests in flight", depth.to_string()));
    }
    let sizes = match request.op {
        Op::Trim => Vec::new(),
        Op::Read | Op::Write => sizes(fields, request)?,
    };
    match fields.next() {
        None => Ok(Details {
            depth: depth as u32,
            think_us,
            sizes,
        }),
        Some(more) => Err(Bad::new("the end of the line after the sizes", more)),
    }
}

fn sizes<'a>(fields: &mut impl Iterator<Item = &'a str>, request: &Request) -> Result<Vec<Sizes>, Bad> {
    let count = blocks_touched(request.offset, request.len);
    let mut sizes = vec![Sizes::default(); usize::try_from(count).unwrap_or(0)];
    for codec in 0..RECORDED_CODECS.len() {
        let field = fields.next().unwrap_or("");
        if field.len() as u64 != count {
            return Err(Bad::new(
                "a size for each block that the request touches, by lz4 and by zstd",
                format!("{} sizes for {count} blocks", field.len()),
            ));
        }
        for (block, character) in sizes.iter_mut().zip(field.bytes()) {
            block[codec] = Stored::of_character(character)
                .ok_or_else(|| Bad::new("sizes as . 0-9 A-Z a-z + or /", field))?;
        }
    }
    Ok(sizes)
}

/// Writes a recording.
pub struct RecordingWriter {
    /// Compresses; its end is written by [`Self::finish`].
    out: zstd::Encoder<'static, Box<dyn Write + Send>>,
    line: Vec<u8>,
    requests: u64,
}

impl std::fmt::Debug for RecordingWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordingWriter")
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}

impl RecordingWriter {
    /// A recording, compressed with zstd.
    ///
    /// # Errors
    /// The header cannot be written.
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(Box::new(out) as Box<dyn Write + Send>, 0)?;
        writeln!(out, "{RECORDING_HEADER}")?;
        Ok(Self {
            out,
            line: Vec::new(),
            requests: 0,
        })
    }

    /// Writes a request, in several lines if it is long.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Panics
    /// If the number of sizes is wrong.
    pub fn write(&mut self, recorded: &Recorded) -> io::Result<()> {
        let Request { op, offset, len, .. } = recorded.request;
        if op == Op::Trim {
            return self.line(recorded, offset, len, &[]);
        }
        assert_eq!(recorded.sizes.len() as u64, blocks_touched(offset, len));
        let (mut at, mut sizes) = (offset, &recorded.sizes[..]);
        while at < offset + len {
            let next = (at / RECORDED_BYTES_MAX + 1) * RECORDED_BYTES_MAX;
            let part = next.min(offset + len) - at;
            let (own, rest) = sizes.split_at(blocks_touched(at, part) as usize);
            self.line(recorded, at, part, own)?;
            (at, sizes) = (at + part, rest);
        }
        Ok(())
    }

    fn line(&mut self, recorded: &Recorded, offset: u64, len: u64, sizes: &[Sizes]) -> io::Result<()> {
        let op = match recorded.request.op {
            Op::Read => 'r',
            Op::Write => 'w',
            Op::Trim => 't',
        };
        // Only the first line of a request follows the time of the client.
        let think_us = match offset == recorded.request.offset {
            true => recorded.think_us,
            false => 0,
        };
        let time = recorded.request.at_us.unwrap_or(0);
        self.line.clear();
        write!(
            self.line,
            "{time} {op} {offset} {len} {} {think_us}",
            recorded.depth
        )?;
        if recorded.request.op != Op::Trim {
            for codec in 0..RECORDED_CODECS.len() {
                self.line.push(b' ');
                self.line
                    .extend(sizes.iter().map(|block| block[codec].character()));
            }
        }
        self.line.push(b'\n');
        self.requests += 1;
        self.out.write_all(&self.line)
    }

    /// Number of lines written.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Writes the end.
    ///
    /// # Errors
    /// The system's error.
    pub fn finish(self) -> io::Result<()> {
        self.out.finish()?.flush()
    }
}
