//! One pass: the accesses of one writer in one test, executed on a medium and timed.

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

/// Maximum number of operations in flight per writer.
pub const DEPTH_MAX: usize = 4096;

/// The I/O engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One system call for each, one at a time.
    Synchronous,
    /// io_uring, with this many operations in flight: 1 to [`DEPTH_MAX`].
    IoUring {
        /// Operations in flight.
        depth: usize,
    },
}

/// The parameters of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'p> {
    /// The offsets and their order.
    pub pattern: Pattern,
    /// The direction.
    pub direction: Direction,
    /// Whether a stream with a buffer in user space is used; then the engine is always synchronous, and the pattern in
    /// order.
    pub stream: bool,
    /// The I/O engine.
    pub engine: Engine,
    /// The data to write; not needed for reads.
    pub source: Option<Source<'p>>,
    /// Whether the time includes the flush after writes.
    pub flush_timed: bool,
}

/// Start and end of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Before the first operation.
    pub start: Instant,
    /// After the last operation, and after the flush if the time includes it.
    pub end: Instant,
    /// Bytes moved.
    pub bytes: u64,
}

/// Executes a pass. Writes are always flushed, within the time or after it, so that the next pass does not pay for
/// them.
///
/// # Errors
/// The medium's error; [`interrupted`].
///
/// # Panics
/// If data is to be written and there is no source.
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
