//! Encodes replies of the transmission phase.
//!
//! If structured replies were negotiated, every reply is structured, so that errors carry a message. A read is one
//! chunk, sent when all its data is available, so that nothing can fail after its header.

use std::{fmt, io};

use flaz_engine::volume::StatusExtent;
use zerocopy::IntoBytes;

use crate::errno::Errno;
use crate::limits::STRING_BYTES_MAX;
use crate::protocol::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, ChunkHeader, ExtentDescriptor, OffsetDataHeader, SIMPLE_REPLY_MAGIC,
    SimpleReplyHeader, chunk,
};

/// An error reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Error number of the protocol; the numbers are those of Linux.
    pub errno: u32,
    /// The server's explanation; may be empty.
    pub message: String,
    /// Offset of the first byte concerned, if the server reports it.
    pub offset: Option<u64>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.errno as i32))?;
        if self.message.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.message)
        }
    }
}

/// A simple reply: success if `errno` is `None`.
#[must_use]
pub fn simple(cookie: u64, errno: Option<Errno>) -> SimpleReplyHeader {
    SimpleReplyHeader {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: errno.map_or(0, Errno::code).into(),
        cookie: cookie.into(),
    }
}

/// A structured reply that only signals success.
#[must_use]
pub fn done(cookie: u64) -> ChunkHeader {
    last_chunk(cookie, chunk::NONE, 0)
}

/// Header of the single chunk of a read; `len` bytes of data from `offset` on follow.
///
/// `len` must not be zero (such a read is answered by [`done`]) and must leave room for 8 more bytes.
#[must_use]
pub fn offset_data(cookie: u64, offset: u64, len: u32) -> OffsetDataHeader {
    debug_assert!(len > 0, "the protocol forbids an empty data chunk");
    OffsetDataHeader {
        chunk: last_chunk(cookie, chunk::OFFSET_DATA, len + 8),
        offset: offset.into(),
    }
}

/// Appends an error, with its device offset if it is known.
pub fn error(out: &mut Vec<u8>, cookie: u64, errno: Errno, message: &str, offset: Option<u64>) {
    let message = &message[..message.floor_char_boundary(STRING_BYTES_MAX)];
    let kind = if offset.is_some() {
        chunk::ERROR_OFFSET
    } else {
        chunk::ERROR
    };
    let len = 6 + message.len() + if offset.is_some() { 8 } else { 0 };
    out.extend_from_slice(last_chunk(cookie, kind, len as u32).as_bytes());
    out.extend_from_slice(&errno.code().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
    if let Some(offset) = offset {
        out.extend_from_slice(&offset.to_be_bytes());
    }
}

/// Parses the body of an error chunk of type `kind`: number, message, and an offset if the type has one.
#[must_use]
pub fn parse_error(kind: u16, body: &[u8]) -> Option<Failure> {
    let (errno, rest) = body.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (message, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
    let offset = match kind {
        chunk::ERROR_OFFSET => Some(u64::from_be_bytes(*rest.first_chunk()?)),
        _ => None,
    };
    Some(Failure {
        errno: u32::from_be_bytes(*errno),
        message: String::from_utf8_lossy(message).into_owned(),
        offset,
    })
}

/// Appends a block-status reply for a range of `len` bytes.
///
/// Converts any answer of a volume to one that the protocol allows: adjacent extents of equal state are joined, at most
/// `extents_max` extents are sent, none is empty, together they are no longer than `len`, and there is at least one.
pub fn block_status(out: &mut Vec<u8>, cookie: u64, extents: &[StatusExtent], len: u32, extents_max: usize) {
    let header_at = out.len();
    out.extend_from_slice(last_chunk(cookie, chunk::BLOCK_STATUS, 0).as_bytes());
    out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
    let mut left = len;
    let mut pending: Option<(u32, u32)> = None;
    let mut count = 0;
    for extent in extents {
        let part = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        if part == 0 {
            continue;
        }
        let state =
            if extent.hole { chunk::STATE_HOLE } else { 0 } | if extent.zero { chunk::STATE_ZERO } else { 0 };
        match &mut pending {
            Some((sum, same)) if *same == state => *sum += part,
            _ => {
                if count == extents_max {
                    break;
                }
                count += 1;
                if let Some(whole) = pending.replace((part, state)) {
                    push_extent(out, whole);
                }
            }
        }
        left -= part;
    }
    // The volume returned nothing: reply "allocated, contents unknown", which is always true.
    push_extent(out, pending.unwrap_or((len, 0)));
    let payload = out.len() - header_at - size_of::<ChunkHeader>();
    let header = last_chunk(cookie, chunk::BLOCK_STATUS, payload as u32);
    out[header_at..header_at + size_of::<ChunkHeader>()].copy_from_slice(header.as_bytes());
}

fn push_extent(out: &mut Vec<u8>, (len, state): (u32, u32)) {
    let descriptor = ExtentDescriptor {
        len: len.into(),
        state: state.into(),
    };
    out.extend_from_slice(descriptor.as_bytes());
}

fn last_chunk(cookie: u64, kind: u16, len: u32) -> ChunkHeader {
    ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: chunk::DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: len.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 0x1122_3344_5566_7788;

    fn extent(len: u64, hole: bool, zero: bool) -> StatusExtent {
        StatusExtent { len, hole, zero }
    }

    #[test]
    fn simple_replies() {
        assert_eq!(
            simple(COOKIE, None).as_bytes(),
            [
                0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88
            ]
        );
        assert_eq!(
            simple(COOKIE, Some(Errno::Shutdown)).as_bytes()[4..8],
            [0, 0, 0, 108]
        );
    }

    #[test]
    fn chunks_without_and_with_data() {
        let head = [0x66, 0x8e, 0x33, 0xef, 0, 1];
        let cookie = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        assert_eq!(
            done(COOKIE).as_bytes(),
            [&head[..], &[0, 0], &cookie, &[0, 0, 0, 0]].concat()
        );
        assert_eq!(
            offset_data(COOKIE, 0x8000, 4096).as_bytes(),
            [
                &head[..],
                &[0, 1],
                &cookie,
                &[0, 0, 0x10, 0x08],
                &[0, 0, 0, 0, 0, 0, 0x80, 0]
            ]
            .concat()
        );
    }

    #[test]
    fn errors_with_and_without_an_offset() {
        let mut out = vec![];
        error(&mut out, COOKIE, Errno::Io, "bad", None);
        let cookie = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        let expected = [
            &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 0x01][..],
            &cookie,
            &[0, 0, 0, 9, 0, 0, 0, 5, 0, 3, b'b', b'a', b'd'],
        ];
        assert_eq!(out, expected.concat());
        out.clear();
        error(&mut out, COOKIE, Errno::Io, "", Some(4096));
        let expected = [
            &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 0x02][..],
            &cookie,
            &[0, 0, 0, 14, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0],
        ];
        assert_eq!(out, expected.concat());
        out.clear();
        error(&mut out, COOKIE, Errno::Io, "bad", Some(4096));
        let failure = parse_error(chunk::ERROR_OFFSET, &out[20..]).unwrap();
        assert_eq!(
            (failure.errno, failure.message.as_str(), failure.offset),
            (5, "bad", Some(4096))
        );
        for len in 0..out.len() - 20 {
            assert_eq!(
                parse_error(chunk::ERROR_OFFSET, &out[20..20 + len]),
                None,
                "{len} bytes"
            );
        }
        out.clear();
        error(&mut out, COOKIE, Errno::Io, &"ä".repeat(4000), None);
        assert_eq!(out.len(), 20 + 6 + 4096);
    }

    #[test]
    fn block_status_on_the_wire() {
        let mut out = vec![];
        block_status(
            &mut out,
            COOKIE,
            &[extent(4096, false, false), extent(8192, true, true)],
            12288,
            8,
        );
        let expected = [
            &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5][..],
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            &[0, 0, 0, 20, 0, 0, 0, 1],
            &[0, 0, 0x10, 0, 0, 0, 0, 0],
            &[0, 0, 0x20, 0, 0, 0, 0, 3],
        ];
        assert_eq!(out, expected.concat());
    }

    /// Lengths and states of a block-status reply.
    fn status(extents: &[StatusExtent], len: u32, extents_max: usize) -> Vec<(u32, u32)> {
        let mut out = vec![];
        block_status(&mut out, 0, extents, len, extents_max);
        let number = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().unwrap());
        assert_eq!(number(16) as usize, out.len() - 20);
        (24..out.len())
            .step_by(8)
            .map(|at| (number(at), number(at + 4)))
            .collect()
    }

    #[test]
    fn invalid_block_status_is_corrected() {
        let (data, hole) = (extent(10, false, false), extent(10, true, true));
        assert_eq!(
            status(&[data, data, hole, hole, data], 100, 8),
            [(20, 0), (20, 3), (10, 0)]
        );
        assert_eq!(status(&[data, data, hole, hole, data], 100, 1), [(20, 0)]);
        assert_eq!(status(&[data, hole, hole, data], 100, 2), [(10, 0), (20, 3)]);
        assert_eq!(status(&[data, hole], 15, 8), [(10, 0), (5, 3)]);
        assert_eq!(status(&[extent(u64::MAX, false, true)], 15, 8), [(15, 2)]);
        assert_eq!(status(&[], 15, 8), [(15, 0)]);
        assert_eq!(status(&[extent(0, true, true), data], 15, 8), [(10, 0)]);
    }
}
