//! Records a load: serves a device or file over NBD, passes every request through, and notes it with the compressed sizes of its blocks.
//!
//! | module | contents |
//! |---|---|
//! | `journal` | the requests in the order in which they were sent |
//! | `volume` | the device or file, and the sizes of the blocks that a request touches |
//!
//! Invariants: a client gets what the device or file has; a request is recorded exactly once, if it succeeded; an error of the recording
//! ends it, and not the service.

mod journal;
mod volume;

use std::fs::File;
use std::io::{self, Write};

use flaz_nbd::{NbdAddress, Shutdown};
use flaz_trace::recording::RecordingWriter;
use schemars::JsonSchema;
use serde::Serialize;

use crate::nbd::{self, ServeError};
use journal::Journal;
use volume::Recorded;

/// What is recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct RecordReport {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Trims.
    pub trims: u64,
    /// Bytes left of all blocks that were read or written, by codec, in percent.
    pub left_percent: Vec<CodecLeft>,
    /// Largest number of requests of a kind in flight.
    pub depth_max: u32,
    /// Time from the first request to the last, in seconds.
    pub seconds: f64,
}

/// What a codec leaves.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CodecLeft {
    /// Codec.
    pub codec: String,
    /// Bytes left, in percent.
    pub percent: f64,
}

/// Serves `origin` and writes the recording to `output` until `shutdown` is stopped. `ready` is called when clients can connect.
///
/// # Errors
/// [`ServeError`]; also if the recording could not be written.
pub fn record(
    origin: File,
    output: impl Write + Send + 'static,
    address: &NbdAddress,
    shutdown: &Shutdown,
    ready: impl FnOnce(),
) -> Result<RecordReport, ServeError> {
    let writing = || ServeError::system("writing the recording");
    let writer = RecordingWriter::new(io::BufWriter::new(output)).map_err(writing())?;
    let journal = Journal::new(writer);
    let volume = Recorded::new(origin, journal.clone()).map_err(ServeError::system("reading the size"))?;
    nbd::serve(
        volume,
        address,
        shutdown,
        ready,
        || (),
        |()| journal.finish().map_err(writing()),
    )
}
