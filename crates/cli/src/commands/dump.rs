//! `flaz dump`: lists the contents of a cache device, one object per line.

use std::io::{self, BufWriter, Write};

use crate::args::DumpArgs;
use crate::error::Failure;
use crate::host::{self, HostError};
use crate::page;

/// A failed write to standard output, passed through the server's error.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
struct Unwritten(#[source] io::Error);

/// Runs `flaz dump`.
///
/// # Errors
/// The device cannot be read.
pub fn run(args: &DumpArgs) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let dumped = host::dump(&args.cache, &mut |record| {
        let written = if args.json {
            serde_json::to_writer(&mut out, record)
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
        } else {
            out.write_all(page::dump(record).as_bytes())
        };
        written.map_err(|error| HostError::from(Unwritten(error)))
    });
    match dumped {
        Ok(()) => out.flush().map_err(Failure::output),
        Err(error) => match error.downcast::<Unwritten>() {
            Ok(unwritten) => Err(Failure::output(unwritten.0)),
            Err(error) => {
                // The objects read before the failure are still printed; a second failure would hide the first.
                let _ = out.flush();
                Err(Failure::host("dump", &args.cache)(error))
            }
        },
    }
}
