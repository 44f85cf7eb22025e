//! fread and fwrite: records through a stream whose user-space buffer has the size of a record.
//!
//! Streams of std, like those of C libraries, bypass their buffer if they get as much data as fits into it. A record is
//! therefore passed in two halves: it is copied once, and one system call transfers one record.

use std::io::{self, BufReader, BufWriter, Read, Write};

use crate::medium::Medium;
use crate::pattern::{Access, Accesses};
use crate::source::Source;
use crate::ticker::Ticker;

/// Position of a stream in its medium.
struct Cursor<'m> {
    medium: &'m dyn Medium,
    offset: u64,
    /// End of the medium; a stream does not read beyond it.
    end: u64,
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.end - self.offset).map_or(buffer.len(), |left| left.min(buffer.len()));
        self.medium.read(self.offset, &mut buffer[..len])?;
        self.offset += len as u64;
        Ok(len)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.medium.write(self.offset, data)?;
        self.offset += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the records, which must be in order.
///
/// # Errors
/// The medium's error, or [`crate::ticker::interrupted`].
pub(crate) fn read(
    medium: &dyn Medium,
    accesses: Accesses,
    record_bytes: usize,
    ticker: &Ticker<'_>,
) -> io::Result<()> {
    let end = accesses.size_hint().0 as u64 * record_bytes as u64;
    let cursor = Cursor {
        medium,
        offset: 0,
        end,
    };
    let mut stream = BufReader::with_capacity(record_bytes, cursor);
    let mut record = vec![0; record_bytes];
    let half = record_bytes / 2;
    for Access { bytes, .. } in accesses {
        ticker.check()?;
        stream.read_exact(&mut record[..half])?;
        stream.read_exact(&mut record[half..])?;
        std::hint::black_box(&record);
        ticker.add(bytes);
    }
    Ok(())
}

/// Writes the records, which must be in order.
///
/// # Errors
/// As [`read`].
pub(crate) fn write(
    medium: &dyn Medium,
    accesses: Accesses,
    source: &Source<'_>,
    record_bytes: usize,
    ticker: &Ticker<'_>,
) -> io::Result<()> {
    let cursor = Cursor {
        medium,
        offset: 0,
        end: u64::MAX,
    };
    let mut stream = BufWriter::with_capacity(record_bytes, cursor);
    for (number, access) in accesses.enumerate() {
        ticker.check()?;
        let record = source.record(number as u64, access);
        let (first, second) = record.split_at(record_bytes / 2);
        stream.write_all(first)?;
        stream.write_all(second)?;
        ticker.add(access.bytes);
    }
    stream.flush()
}
