//! VMware's vscsiStats, as published by CloudPhysics: records of 32 bytes, little-endian: serial u32, length in bytes u32, segments
//! u32, SCSI command u16, version u16, sector u64, time in microseconds u64.

use crate::fields::{Bad, u16_at, u32_at, u64_at};
use crate::request::{Op, Request, SECTOR_BYTES, in_sectors};

pub(crate) const RECORD_BYTES: usize = 32;
/// In the high byte; the low byte counts something that is no part of the version.
const VERSION: u16 = 1;

pub(crate) fn record(record: &[u8]) -> Result<Option<Request>, Bad> {
    let (len, command, version) = (u32_at(record, 4), u16_at(record, 12), u16_at(record, 14));
    if version >> 8 != VERSION {
        return Err(Bad::new(
            "version 1 in bytes 14 and 15",
            format!("version {}", version >> 8),
        ));
    }
    if u64::from(len) % SECTOR_BYTES != 0 {
        return Err(Bad::new("a length in whole sectors", format!("{len} bytes")));
    }
    let Some(op) = op(command) else {
        return Ok(None);
    };
    let (first, sectors) = (u64_at(record, 16), u64::from(len) / SECTOR_BYTES);
    in_sectors(Some(u64_at(record, 24)), op, 0, first, sectors)
}

/// READ and WRITE with 6, 10, 12 and 16 bytes; other commands move no blocks.
fn op(command: u16) -> Option<Op> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(Op::Write),
        _ => None,
    }
}

/// Whether all whole records of the beginning are such requests.
pub(crate) fn is_beginning(head: &[u8]) -> bool {
    let mut records = head.chunks_exact(RECORD_BYTES).take(64).peekable();
    records.peek().is_some() && records.all(|it| matches!(record(it), Ok(Some(_))))
}
