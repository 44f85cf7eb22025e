//! flaz's own format: a first line, then "time in microseconds, r or w or t, offset in bytes, length in bytes". `#` begins a comment.
//! Version 2 is a recording, whose lines have more fields: see [`crate::recording`].

use crate::fields::{Bad, number};
use crate::recording::{Details, RECORDING_HEADER, details};
use crate::request::{Op, Request, in_bytes};

/// First line of version 1.
const HEADER: &str = "flaz-trace 1";

#[derive(Debug, Default)]
enum Version {
    /// The first line was not read yet.
    #[default]
    Unknown,
    Trace,
    Recording,
}

#[derive(Debug, Default)]
pub(crate) struct Own {
    version: Version,
    /// Of the last request of a recording.
    details: Option<Details>,
}

impl Own {
    pub fn line(&mut self, line: &str) -> Result<Option<Request>, Bad> {
        if let Version::Unknown = self.version {
            self.version = match line.trim_end() {
                HEADER => Version::Trace,
                RECORDING_HEADER => Version::Recording,
                _ => return Err(Bad::new("'flaz-trace 1' or 'flaz-trace 2'", line)),
            };
            return Ok(None);
        }
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            return Ok(None);
        }
        let mut fields = line.split_ascii_whitespace();
        let time = number(fields.next());
        let op = match fields.next() {
            Some("r") => Some(Op::Read),
            Some("w") => Some(Op::Write),
            Some("t") => Some(Op::Trim),
            _ => None,
        };
        let (offset, len) = (number(fields.next()), number(fields.next()));
        let bad = || Bad::new("microseconds, r or w or t, offset, length", line);
        let (Some(time), Some(op), Some(offset), Some(len)) = (time, op, offset, len) else {
            return Err(bad());
        };
        let request = in_bytes(Some(time), op, 0, offset, len)?;
        match (&self.version, request) {
            (Version::Recording, Some(request)) => self.details = Some(details(&mut fields, &request)?),
            (Version::Recording, None) => {}
            _ if fields.next().is_some() => return Err(bad()),
            _ => {}
        }
        Ok(request)
    }

    /// The other fields of the last request; `None` if this is no recording.
    pub fn take_details(&mut self) -> Option<Details> {
        self.details.take()
    }
}

pub(crate) fn is_header(line: &str) -> bool {
    matches!(line.trim_end(), HEADER | RECORDING_HEADER)
}
