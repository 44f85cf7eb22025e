//! flaz's own format: a first line, then "time in microseconds, r or w or t, offset in bytes, length in bytes". `#` begins a comment.

use crate::fields::{Bad, number};
use crate::request::{Op, Request, in_bytes};

/// First line of the format.
const HEADER: &str = "flaz-trace 1";

#[derive(Debug, Default)]
pub(crate) struct Own {
    began: bool,
}

impl Own {
    pub fn line(&mut self, line: &str) -> Result<Option<Request>, Bad> {
        if !self.began {
            if !is_header(line) {
                return Err(Bad::new("'flaz-trace 1'", line));
            }
            self.began = true;
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
        match (
            time,
            op,
            number(fields.next()),
            number(fields.next()),
            fields.next(),
        ) {
            (Some(time), Some(op), Some(offset), Some(len), None) => in_bytes(Some(time), op, 0, offset, len),
            _ => Err(Bad::new("microseconds, r or w or t, offset, length", line)),
        }
    }
}

pub(crate) fn is_header(line: &str) -> bool {
    line.trim_end() == HEADER
}
