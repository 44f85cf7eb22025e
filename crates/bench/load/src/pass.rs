//! One pass: the accesses of one writer in one test, done to a medium, and how long that took.

use std::io;
use std::time::Instant;

use flaz_device::IoBuf;

use crate::medium::Medium;
use crate::pattern::Pattern;
use crate::queue::{self, Operation};
use crate::source::Source;
use crate::stream;
use crate::test::Direction;
use crate::ticker::Ticker;
use crate::uring;

/// Most operations in flight of one writer.
pub const DEPTH_MAX: usize = 4096;

/// How operations reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One system call for each, one at a time.
    Synchronous,
    /// io_uring, with so many in flight: 1 to [`DEPTH_MAX`].
    IoUring {
        /// Operations in flight.
        depth: usize,
    },
}

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'p> {
    /// Where, in which order.
    pub pattern: Pattern,
    /// To the medium or from it.
    pub direction: Direction,
    /// Through a stream with a buffer in user space; then the engine is synchronous whatever is asked for, and the pattern
    /// in order.
    pub stream: bool,
    /// How operations reach the kernel.
    pub engine: Engine,
    /// What is written; reads need none.
    pub source: Option<Source<'p>>,
    /// Whether the flush after writes is in the time.
    pub flush_timed: bool,
}

/// When a pass began and ended.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Before the first operation.
    pub start: Instant,
    /// After the last one, and after the flush if that is in the time.
    pub end: Instant,
    /// Bytes moved.
    pub bytes: u64,
}

/// Does a pass. Writes are flushed in any case, in the time or after it, so that the next pass does not pay for them.
///
/// # Errors
/// The medium's; [`interrupted`].
///
/// # Panics
/// When data is to be written and there is no source.
pub fn run(medium: &dyn Medium, pass: &Pass<'_>, ticker: &Ticker<'_>) -> io::Result<Span> {
    let start = Instant::now();
    match (pass.stream, pass.engine) {
        (true, _) => streamed(medium, pass, ticker)?,
        (false, Engine::Synchronous) => synchronous(medium, pass, ticker)?,
        (false, Engine::IoUring { depth }) => queued(medium, pass, depth, ticker)?,
    }
    let mut end = Instant::now();
    if pass.direction == Direction::Write {
        medium.flush()?;
        if pass.flush_timed {
            end = Instant::now();
        }
    }
    Ok(Span {
        start,
        end,
        bytes: pass.pattern.bytes(),
    })
}

fn source<'p>(pass: &Pass<'p>) -> Source<'p> {
    pass.source.expect("a pass that writes has a source")
}

fn streamed(medium: &dyn Medium, pass: &Pass<'_>, ticker: &Ticker<'_>) -> io::Result<()> {
    let (accesses, record_bytes) = (pass.pattern.accesses(), pass.pattern.record_bytes);
    match pass.direction {
        Direction::Read => stream::read(medium, accesses, record_bytes, ticker),
        Direction::Write => stream::write(medium, accesses, &source(pass), record_bytes, ticker),
    }
}

fn synchronous(medium: &dyn Medium, pass: &Pass<'_>, ticker: &Ticker<'_>) -> io::Result<()> {
    let accesses = pass.pattern.accesses();
    match pass.direction {
        Direction::Read => {
            let mut buffer = IoBuf::new(pass.pattern.record_bytes);
            for access in accesses {
                ticker.check()?;
                medium.read(access.offset, &mut buffer[..access.bytes])?;
                ticker.add(access.bytes);
            }
        }
        Direction::Write => {
            let source = source(pass);
            for (number, access) in accesses.enumerate() {
                ticker.check()?;
                medium.write(access.offset, source.record(number as u64, access))?;
                ticker.add(access.bytes);
            }
        }
    }
    Ok(())
}

fn queued(medium: &dyn Medium, pass: &Pass<'_>, depth: usize, ticker: &Ticker<'_>) -> io::Result<()> {
    let (descriptor, base) = medium.descriptor().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring needs a file, but this medium has none",
        )
    })?;
    let accesses = pass.pattern.accesses();
    let record_bytes = pass.pattern.record_bytes;
    match pass.direction {
        Direction::Read => {
            let mut ring = uring::Reads::new(descriptor, base, depth, record_bytes)?;
            let operations = accesses.map(Operation::Read);
            queue::keep_full(&mut ring, depth, operations, ticker)
        }
        Direction::Write => {
            let source = source(pass);
            let operations = accesses
                .enumerate()
                .map(|(number, access)| Operation::Write(access, source.record(number as u64, access)));
            uring::write(descriptor, base, depth, operations, ticker)
        }
    }
}
