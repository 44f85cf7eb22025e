//! Numbers and names in lines and records.

use std::collections::HashMap;

use crate::request::DEVICES_MAX;

/// Maximum number of characters of a line in an error.
const SHOWN_MAX: usize = 100;

/// Why a line or record is no request.
#[derive(Debug)]
pub(crate) struct Bad {
    pub expected: &'static str,
    pub found: String,
}

impl Bad {
    pub fn new(expected: &'static str, found: impl Into<String>) -> Self {
        let mut found = found.into();
        if let Some((end, _)) = found.char_indices().nth(SHOWN_MAX) {
            found.truncate(end);
            found += "..";
        }
        Self { expected, found }
    }
}

/// A whole number.
pub(crate) fn number(field: Option<&str>) -> Option<u64> {
    field?.parse().ok()
}

/// Seconds with a fraction, in microseconds.
pub(crate) fn seconds(field: &str) -> Option<u64> {
    let (whole, fraction) = field.split_once('.').unwrap_or((field, ""));
    let digits = fraction.get(..fraction.len().min(6))?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: u64 = format!("{digits:0<6}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(micros)
}

/// Little-endian numbers of a record.
pub(crate) fn u16_at(record: &[u8], at: usize) -> u16 {
    bytes_at(record, at).map_or(0, u16::from_le_bytes)
}

pub(crate) fn u32_at(record: &[u8], at: usize) -> u32 {
    bytes_at(record, at).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(record: &[u8], at: usize) -> u64 {
    bytes_at(record, at).map_or(0, u64::from_le_bytes)
}

fn bytes_at<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..at + N)?.try_into().ok()
}

/// Numbers of the devices of a trace, by their names.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    numbers: HashMap<String, u32>,
}

impl Devices {
    pub fn number(&mut self, name: &str) -> Result<u32, Bad> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if self.numbers.len() == DEVICES_MAX {
            return Err(Bad::new("at most 4096 devices", name));
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}
