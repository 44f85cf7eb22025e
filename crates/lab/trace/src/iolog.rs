//! fio's iolog, versions 2 and 3: "file action offset length", in version 3 after a time in milliseconds.

use crate::fields::{Bad, Devices, number};
use crate::request::{Op, Request, in_bytes};

/// First line of the format.
const HEADERS: [(&str, bool); 2] = [("fio version 2 iolog", false), ("fio version 3 iolog", true)];

/// Reads a log after its first line.
#[derive(Debug)]
pub(crate) struct Iolog {
    has_times: bool,
    began: bool,
    /// The waits of version 2, added up.
    waited_us: Option<u64>,
    devices: Devices,
}

impl Iolog {
    pub fn new() -> Self {
        Self {
            has_times: false,
            began: false,
            waited_us: None,
            devices: Devices::default(),
        }
    }

    pub fn line(&mut self, line: &str) -> Result<Option<Request>, Bad> {
        if !self.began {
            let known = HEADERS.iter().find(|(header, _)| line.trim() == *header);
            let Some((_, has_times)) = known else {
                return Err(Bad::new("'fio version 2 iolog' or 'fio version 3 iolog'", line));
            };
            (self.began, self.has_times) = (true, *has_times);
            return Ok(None);
        }
        const FIELDS: &str = "file, action, offset and length, in version 3 after a time in milliseconds";
        let bad = || Bad::new(FIELDS, line);
        let mut fields = line.split_ascii_whitespace();
        let at_us = match self.has_times {
            true => {
                let Some(first) = fields.next() else {
                    return Ok(None);
                };
                let micros = number(Some(first)).and_then(|millis| millis.checked_mul(1000));
                Some(micros.ok_or_else(bad)?)
            }
            false => self.waited_us,
        };
        let Some(file) = fields.next() else {
            return match self.has_times {
                true => Err(bad()),
                false => Ok(None),
            };
        };
        let op = match fields.next() {
            Some("add" | "open" | "close" | "sync" | "datasync") => return Ok(None),
            Some("wait") if !self.has_times => {
                let wait = number(fields.next()).ok_or_else(bad)?;
                self.waited_us = Some(self.waited_us.unwrap_or(0).saturating_add(wait));
                return Ok(None);
            }
            Some("read") => Op::Read,
            Some("write") => Op::Write,
            Some("trim") => Op::Trim,
            _ => return Err(bad()),
        };
        match (number(fields.next()), number(fields.next())) {
            (Some(offset), Some(len)) => in_bytes(at_us, op, self.devices.number(file)?, offset, len),
            _ => Err(bad()),
        }
    }
}

pub(crate) fn is_header(line: &str) -> bool {
    HEADERS.iter().any(|(header, _)| line.trim() == *header)
}
