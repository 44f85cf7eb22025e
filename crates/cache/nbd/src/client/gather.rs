//! The data of a read, which may arrive in several chunks.
//!
//! Invariant: the parts are inside the request and do not overlap. When [`Gather::is_complete`] is true, the server has
//! sent each byte exactly once.

use std::ops::Range;

use super::error::{ClientError, expect};
use crate::limits::CLIENT_CHUNKS_MAX;

/// The data of one read.
#[derive(Debug)]
pub(super) struct Gather {
    /// Device offset of the read.
    offset: u64,
    data: Vec<u8>,
    /// The parts that have arrived, in any order.
    parts: Vec<Range<usize>>,
}

impl Gather {
    pub fn new(offset: u64, length: u32) -> Self {
        Self {
            offset,
            data: vec![0; length as usize],
            parts: Vec::new(),
        }
    }

    /// Space for a chunk of `length` bytes at device offset `start`; the caller fills it.
    pub fn part(&mut self, start: u64, length: u32) -> Result<&mut [u8], ClientError> {
        let refused = |expected, found| ClientError::Protocol { expected, found };
        let range = start
            .checked_sub(self.offset)
            .and_then(|first| Some(first..first.checked_add(u64::from(length))?))
            .filter(|range| range.end <= self.data.len() as u64)
            .map(|range| range.start as usize..range.end as usize)
            .ok_or(refused("a chunk inside the request", start))?;
        let overlaps = |part: &Range<usize>| part.start < range.end && range.start < part.end;
        if self.parts.iter().any(overlaps) {
            return Err(refused("each byte once", start));
        }
        if self.parts.len() == CLIENT_CHUNKS_MAX {
            return Err(refused(
                "at most 1024 chunks in a reply",
                CLIENT_CHUNKS_MAX as u64 + 1,
            ));
        }
        self.parts.push(range.clone());
        Ok(&mut self.data[range])
    }

    /// The data.
    pub fn finish(self) -> Result<Vec<u8>, ClientError> {
        let sent: usize = self.parts.iter().map(Range::len).sum();
        expect(
            "as many bytes as were requested",
            sent as u64,
            self.data.len() as u64,
        )?;
        Ok(self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_may_come_in_any_order() {
        let mut gather = Gather::new(4096, 16);
        gather.part(4104, 8).unwrap().fill(5);
        gather.part(4096, 8).unwrap().fill(4);
        assert_eq!(gather.finish().unwrap(), [[4; 8], [5; 8]].concat());
    }

    #[test]
    fn parts_outside_twice_or_missing_are_refused() {
        let mut gather = Gather::new(4096, 16);
        gather.part(4096, 8).unwrap();
        for (start, length) in [
            (4095, 1),
            (4112, 1),
            (4104, 9),
            (0, 16),
            (u64::MAX, 2),
            (4097, 1),
            (4096, 16),
            (4103, 2),
        ] {
            assert!(gather.part(start, length).is_err(), "{length} bytes at {start}");
        }
        assert!(gather.finish().is_err());
    }

    #[test]
    fn chunks_of_a_reply_are_limited() {
        let mut gather = Gather::new(0, 4096);
        for start in 0..CLIENT_CHUNKS_MAX as u64 {
            gather.part(start, 1).unwrap();
        }
        assert!(gather.part(4000, 1).is_err());
    }
}
