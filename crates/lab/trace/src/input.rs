//! Input of a reader: decompression, the beginning of the data, lines and records of bounded length.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the beginning by which the format is detected.
pub(crate) const HEAD_BYTES: usize = 64 << 10;
/// Maximum length of a line in bytes. The rest of a longer one is skipped.
pub(crate) const LINE_BYTES_MAX: usize = 4096;
const BUFFER_BYTES: usize = 256 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Counts the bytes that are read from a file.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Decompresses a file; says so if the file is cut.
struct Whole<R>(R);

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), "the file ends in the middle of its compressed data")
            }
            _ => error,
        })
    }
}

/// The decompressed data.
pub(crate) struct Input {
    data: Chain<Cursor<Vec<u8>>, Box<dyn BufRead>>,
    /// Bytes read from the file.
    pub bytes: Arc<AtomicU64>,
}

impl Input {
    /// The data and its beginning. `name`: data whose name ends in `.gz` or `.zst` is decompressed, and data that begins like it.
    pub fn new(source: impl Read + 'static, name: &str) -> io::Result<(Self, Vec<u8>)> {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            inner: source,
            bytes: Arc::clone(&bytes),
        };
        let mut file = BufReader::with_capacity(BUFFER_BYTES, counted);
        let begin = file.fill_buf()?;
        let mut data: Box<dyn BufRead> = if name.ends_with(".gz") || begin.starts_with(&GZIP) {
            let decoder = flate2::bufread::MultiGzDecoder::new(file);
            Box::new(BufReader::with_capacity(BUFFER_BYTES, Whole(decoder)))
        } else if name.ends_with(".zst") || begin.starts_with(&ZSTD) {
            let decoder = zstd::Decoder::with_buffer(file)?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, Whole(decoder)))
        } else {
            Box::new(file)
        };
        let mut head = Vec::new();
        (&mut data).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let data = Cursor::new(head.clone()).chain(data);
        Ok((Self { data, bytes }, head))
    }

    /// Reads a line without its end; false at the end of the data. Of a line that is too long, the beginning is kept, and is one
    /// byte longer than [`LINE_BYTES_MAX`].
    pub fn line(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        let mut any = false;
        loop {
            let buffer = self.data.fill_buf()?;
            if buffer.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let room = (LINE_BYTES_MAX + 1).saturating_sub(line.len());
            line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            self.data.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Reads up to a whole record. Returns the number of bytes, which is less only at the end of the data.
    pub fn record(&mut self, record: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < record.len() {
            match self.data.read(&mut record[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}
