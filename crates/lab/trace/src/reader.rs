//! A trace as a stream of requests.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::blkparse::Blkparse;
use crate::fields::Bad;
use crate::format::Format;
use crate::input::{Input, LINE_BYTES_MAX};
use crate::iolog::Iolog;
use crate::msr::Msr;
use crate::own::Own;
use crate::recording::Recorded;
use crate::request::Request;
use crate::{arc, oracle, vscsi};

/// Number of skipped lines whose errors are kept.
pub const SKIPPED_SHOWN_MAX: usize = 5;

/// How a trace is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The format; `None`: it is detected.
    pub format: Option<Format>,
    /// Number of bad lines or records that are skipped.
    pub skip_bad: u64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read or decompressed.
    #[error("cannot read the trace {}{}", path.display(), after(*number))]
    Read {
        /// Which.
        path: PathBuf,
        /// The last line or record before it.
        number: u64,
        /// Why.
        source: io::Error,
    },
    /// The format is not known, or is not the one that is needed.
    #[error("{}: {reason}", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The contents do not match the format.
    #[error("{}:{number}: expected {expected} ({format} format), found {found:?}{}", path.display(), skips(*skipped))]
    Content {
        /// Which.
        path: PathBuf,
        /// Its format.
        format: Format,
        /// Line or record, counted from 1.
        number: u64,
        /// Expected contents.
        expected: &'static str,
        /// What was found.
        found: String,
        /// Number of bad lines before it, all of which were skipped.
        skipped: u64,
    },
}

fn after(number: u64) -> String {
    match number {
        0 => String::new(),
        number => format!(" after line or record {number}"),
    }
}

fn skips(skipped: u64) -> String {
    match skipped {
        0 => "; --skip-bad N skips N bad lines".to_owned(),
        1 => "; 1 bad line was skipped before, and --skip-bad allows no more".to_owned(),
        skipped => format!("; {skipped} bad lines were skipped before, and --skip-bad allows no more"),
    }
}

/// Converts lines or records of one format.
enum Decoder {
    Arc,
    Blkparse(Blkparse),
    Iolog(Iolog),
    Msr(Msr),
    Own(Own),
    Vscsi,
    OracleGeneral,
}

impl Decoder {
    fn new(format: Format, head: &[u8]) -> Self {
        match format {
            Format::Arc => Self::Arc,
            Format::Blkparse => Self::Blkparse(Blkparse::new(&String::from_utf8_lossy(head))),
            Format::Iolog => Self::Iolog(Iolog::new()),
            Format::Msr => Self::Msr(Msr::default()),
            Format::Flaz => Self::Own(Own::default()),
            Format::Vscsi => Self::Vscsi,
            Format::OracleGeneral => Self::OracleGeneral,
        }
    }

    /// Bytes of a record; `None`: the format has lines.
    fn record_bytes(&self) -> Option<usize> {
        match self {
            Self::Vscsi => Some(vscsi::RECORD_BYTES),
            Self::OracleGeneral => Some(oracle::RECORD_BYTES),
            _ => None,
        }
    }

    fn record(&self, record: &[u8]) -> Result<Option<Request>, Bad> {
        match self {
            Self::Vscsi => vscsi::record(record),
            _ => oracle::record(record),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Request>, Bad> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > LINE_BYTES_MAX {
            return Err(Bad::new(
                "a line of at most 4096 bytes",
                String::from_utf8_lossy(line),
            ));
        }
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(Bad::new("text", String::from_utf8_lossy(line)));
        };
        match self {
            Self::Arc => arc::line(line),
            Self::Blkparse(blkparse) => blkparse.line(line),
            Self::Iolog(iolog) => iolog.line(line),
            Self::Msr(msr) => msr.line(line),
            Self::Own(own) => own.line(line),
            // These have records.
            Self::Vscsi | Self::OracleGeneral => Ok(None),
        }
    }
}

/// A trace as a stream of requests.
pub struct TraceReader {
    path: PathBuf,
    format: Format,
    input: Input,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// Lines or records read.
    number: u64,
    skip_max: u64,
    skipped: u64,
    skipped_shown: Vec<String>,
    file_bytes: Option<u64>,
}

impl TraceReader {
    /// Opens a trace.
    ///
    /// # Errors
    /// The file cannot be read, or its format is not known.
    pub fn open(path: &Path, options: Options) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Read {
            path: path.to_owned(),
            number: 0,
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut reader = Self::new(file, path, options)?;
        reader.file_bytes = metadata.is_file().then_some(metadata.len());
        Ok(reader)
    }

    /// Reads a trace from `source`; `path` is used for its name, and for messages.
    ///
    /// # Errors
    /// As [`TraceReader::open`].
    pub fn new(source: impl Read + 'static, path: &Path, options: Options) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (input, head) = Input::new(source, &name).map_err(|source| TraceError::Read {
            path: path.to_owned(),
            number: 0,
            source,
        })?;
        let detected = options.format.map_or_else(|| Format::detect(&name, &head), Ok);
        let format = detected.map_err(|reason| TraceError::Format {
            path: path.to_owned(),
            reason: format!("cannot detect the format: {reason}"),
        })?;
        Ok(Self {
            path: path.to_owned(),
            format,
            input,
            decoder: Decoder::new(format, &head),
            buffer: Vec::new(),
            number: 0,
            skip_max: options.skip_bad,
            skipped: 0,
            skipped_shown: Vec::new(),
            file_bytes: None,
        })
    }

    /// The next request; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or more lines are bad than may be skipped. The error names the line.
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            let read = match self.decoder.record_bytes() {
                Some(bytes) => self.next_record(bytes),
                None => self.next_line(),
            };
            let parsed = read.map_err(|source| TraceError::Read {
                path: self.path.clone(),
                number: self.number,
                source,
            })?;
            match parsed {
                None => return Ok(None),
                Some(Ok(Some(request))) => return Ok(Some(request)),
                Some(Ok(None)) => {}
                Some(Err(bad)) => self.skip(bad)?,
            }
        }
    }

    /// The next request of a recording, with its other fields; `None` at the end.
    ///
    /// # Errors
    /// As [`TraceReader::next_request`], and if the trace is no recording.
    pub fn next_recorded(&mut self) -> Result<Option<Recorded>, TraceError> {
        let Some(request) = self.next_request()? else {
            return Ok(None);
        };
        let details = match &mut self.decoder {
            Decoder::Own(own) => own.take_details(),
            _ => None,
        };
        match details {
            Some(details) => Ok(Some(Recorded {
                request,
                depth: details.depth,
                think_us: details.think_us,
                sizes: details.sizes,
            })),
            None => Err(TraceError::Format {
                path: self.path.clone(),
                reason: "expected a recording of `flaz lab record`, whose first line is 'flaz-trace 2'"
                    .to_owned(),
            }),
        }
    }

    fn next_line(&mut self) -> io::Result<Option<Result<Option<Request>, Bad>>> {
        if !self.input.line(&mut self.buffer)? {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(self.decoder.line(&self.buffer)))
    }

    fn next_record(&mut self, bytes: usize) -> io::Result<Option<Result<Option<Request>, Bad>>> {
        self.buffer.resize(bytes, 0);
        let count = self.input.record(&mut self.buffer)?;
        if count == 0 {
            return Ok(None);
        }
        self.number += 1;
        if count < bytes {
            let found = format!("{count} bytes at the end of the file");
            return Ok(Some(Err(Bad::new("a whole record", found))));
        }
        Ok(Some(self.decoder.record(&self.buffer)))
    }

    /// Skips a bad line, if it may be skipped.
    fn skip(&mut self, bad: Bad) -> Result<(), TraceError> {
        let error = TraceError::Content {
            path: self.path.clone(),
            format: self.format,
            number: self.number,
            expected: bad.expected,
            found: bad.found.clone(),
            skipped: self.skipped,
        };
        if self.skipped == self.skip_max {
            return Err(error);
        }
        self.skipped += 1;
        if self.skipped_shown.len() < SKIPPED_SHOWN_MAX {
            let place = format!("{}:{}", self.path.display(), self.number);
            self.skipped_shown.push(format!(
                "{place}: expected {}, found {:?}",
                bad.expected, bad.found
            ));
        }
        Ok(())
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of bad lines that were skipped, and the first of them.
    #[must_use]
    pub fn skipped(&self) -> (u64, &[String]) {
        (self.skipped, &self.skipped_shown)
    }

    /// Size of the file, unless it is a pipe.
    #[must_use]
    pub fn file_bytes(&self) -> Option<u64> {
        self.file_bytes
    }

    /// Bytes of the file that have been read, before decompression.
    #[must_use]
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.input.bytes)
    }
}
