//! ARC `.lis`: lines of "first sector, sectors, ignored, request number". The format has neither times nor kinds of requests.

use crate::fields::{Bad, number};
use crate::request::{Op, Request, in_sectors};

pub(crate) fn line(line: &str) -> Result<Option<Request>, Bad> {
    let mut fields = line.split_ascii_whitespace();
    match (number(fields.next()), number(fields.next())) {
        (Some(first), Some(sectors)) => in_sectors(None, Op::Read, 0, first, sectors),
        _ if line.trim().is_empty() => Ok(None),
        _ => Err(Bad::new("first sector and number of sectors", line)),
    }
}

/// Four whole numbers.
pub(crate) fn is_line(line: &str) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let first = (0..4).all(|_| number(fields.next()).is_some());
    first && fields.next().is_none()
}
