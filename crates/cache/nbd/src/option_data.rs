//! Options and their data: parses them in place, checking every length against the data, and encodes them for a client.

use zerocopy::IntoBytes;

use crate::limits::STRING_BYTES_MAX;
use crate::protocol::{OPTION_MAGIC, OptionHeader};

/// What is wrong with an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length exceeds the data.
    #[error("a length in the option exceeds its data")]
    Truncated,
    /// There is more data than the lengths say.
    #[error("the option has trailing data")]
    Trailing,
    /// A string is longer than the protocol allows.
    #[error("a name is longer than 4096 bytes")]
    NameTooLong,
}

/// Data of INFO and GO: a name, and the requested information.
#[derive(Clone, Copy, Debug)]
pub struct ExportQuery<'d> {
    /// Name of the export.
    pub name: &'d [u8],
    wanted: &'d [u8],
}

impl<'d> ExportQuery<'d> {
    /// Parses the data of INFO or GO.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &'d [u8]) -> Result<Self, Malformed> {
        let (name, rest) = string(data)?;
        let (count, wanted) = rest.split_first_chunk::<2>().ok_or(Malformed::Truncated)?;
        let expected = usize::from(u16::from_be_bytes(*count)) * 2;
        match wanted.len() {
            len if len < expected => Err(Malformed::Truncated),
            len if len > expected => Err(Malformed::Trailing),
            _ => Ok(Self { name, wanted }),
        }
    }

    /// Whether the client requested this information.
    #[must_use]
    pub fn wants(&self, kind: u16) -> bool {
        self.wanted.chunks_exact(2).any(|pair| pair == kind.to_be_bytes())
    }
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT: a name, and queries for contexts.
#[derive(Clone, Copy, Debug)]
pub struct MetaQueries<'d> {
    /// Name of the export.
    pub name: &'d [u8],
    count: u32,
    queries: &'d [u8],
}

impl<'d> MetaQueries<'d> {
    /// Parses the data of LIST_META_CONTEXT or SET_META_CONTEXT.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(data: &'d [u8]) -> Result<Self, Malformed> {
        let (name, rest) = string(data)?;
        let (count, queries) = rest.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
        let count = u32::from_be_bytes(*count);
        // Each query takes at least 4 bytes, so the loop ends with the data for any `count`.
        let mut left = queries;
        for _ in 0..count {
            left = string(left)?.1;
        }
        if left.is_empty() {
            Ok(Self { name, count, queries })
        } else {
            Err(Malformed::Trailing)
        }
    }

    /// Whether there are no queries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The queries.
    pub fn iter(&self) -> impl Iterator<Item = &'d [u8]> {
        let mut left = self.queries;
        std::iter::from_fn(move || {
            let (query, rest) = string(left).ok()?;
            left = rest;
            Some(query)
        })
    }
}

/// Appends an option of a client.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    let header = OptionHeader {
        magic: OPTION_MAGIC.into(),
        option: option.into(),
        len: (data.len() as u32).into(),
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
}

/// Appends the data of INFO or GO: the export's name and the requested information.
pub fn put_export_query(out: &mut Vec<u8>, name: &[u8], wanted: &[u16]) {
    put_string(out, name);
    out.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    for kind in wanted {
        out.extend_from_slice(&kind.to_be_bytes());
    }
}

/// Appends the data of LIST_META_CONTEXT or SET_META_CONTEXT: the export's name, and queries for contexts.
pub fn put_meta_queries(out: &mut Vec<u8>, name: &[u8], queries: &[&[u8]]) {
    put_string(out, name);
    out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        put_string(out, query);
    }
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text);
}

/// Splits a 32-bit length and that many bytes from the front of `data`.
fn string(data: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (len, rest) = data.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > rest.len() {
        return Err(Malformed::Truncated);
    }
    if len > STRING_BYTES_MAX {
        return Err(Malformed::NameTooLong);
    }
    Ok(rest.split_at(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_query_is_parsed() {
        let query = ExportQuery::parse(b"\0\0\0\x04disk\0\x02\0\x03\0\x01").unwrap();
        assert_eq!(query.name, b"disk");
        assert!(query.wants(3) && query.wants(1) && !query.wants(2) && !query.wants(0));
        assert!(ExportQuery::parse(b"\0\0\0\0\0\0").unwrap().name.is_empty());
    }

    #[test]
    fn options_are_encoded() {
        let mut out = vec![];
        put_option(&mut out, 7, b"abc");
        assert_eq!(out, b"IHAVEOPT\0\0\0\x07\0\0\0\x03abc");
        out.clear();
        put_export_query(&mut out, b"disk", &[3, 1]);
        assert_eq!(out, b"\0\0\0\x04disk\0\x02\0\x03\0\x01");
        out.clear();
        put_meta_queries(&mut out, b"d", &[b"base:", b"x:"]);
        assert_eq!(out, b"\0\0\0\x01d\0\0\0\x02\0\0\0\x05base:\0\0\0\x02x:");
    }

    #[test]
    fn wrong_lengths_are_detected() {
        for short in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\x02d",
            b"\0\0\0\0",
            b"\0\0\0\0\0\x01",
            b"\xff\xff\xff\xffx",
        ] {
            assert_eq!(
                ExportQuery::parse(short).unwrap_err(),
                Malformed::Truncated,
                "{short:?}"
            );
        }
        assert_eq!(
            ExportQuery::parse(b"\0\0\0\0\0\0x").unwrap_err(),
            Malformed::Trailing
        );
        let mut long = 4097_u32.to_be_bytes().to_vec();
        long.resize(4 + 4097 + 2, b'n');
        assert_eq!(ExportQuery::parse(&long).unwrap_err(), Malformed::NameTooLong);
    }

    #[test]
    fn metadata_queries_are_parsed() {
        let queries = MetaQueries::parse(b"\0\0\0\x01d\0\0\0\x02\0\0\0\x05base:\0\0\0\x02x:").unwrap();
        assert_eq!(queries.name, b"d");
        assert_eq!(queries.iter().collect::<Vec<_>>(), [&b"base:"[..], b"x:"]);
        assert!(MetaQueries::parse(b"\0\0\0\0\0\0\0\0").unwrap().is_empty());
        // A count far larger than the data ends at once.
        let error = MetaQueries::parse(b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0").unwrap_err();
        assert_eq!(error, Malformed::Truncated);
        assert_eq!(
            MetaQueries::parse(b"\0\0\0\0\0\0\0\0x").unwrap_err(),
            Malformed::Trailing
        );
    }
}
