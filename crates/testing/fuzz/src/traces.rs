//! Hostile traces: requests within the limits, or an error.

use std::io::Cursor;
use std::path::Path;

use flaz_trace::request::{END_BYTES_MAX, LENGTH_BYTES_MAX};
use flaz_trace::{Format, Op, Options, Request, TraceReader};

/// Requests that are read of one input, which may be compressed.
const REQUESTS_MAX: usize = 10_000;
/// Bad lines that are skipped.
const SKIPPED_MAX: u64 = 100;

fn read(data: &[u8], format: Option<Format>) -> Vec<Request> {
    let options = Options {
        format,
        skip_bad: SKIPPED_MAX,
    };
    let source = Cursor::new(data.to_vec());
    let Ok(mut reader) = TraceReader::new(source, Path::new("trace"), options) else {
        return Vec::new();
    };
    let mut requests = Vec::new();
    while requests.len() < REQUESTS_MAX
        && let Ok(Some(request)) = reader.next_request()
    {
        requests.push(request);
    }
    let (skipped, shown) = reader.skipped();
    assert!(skipped <= SKIPPED_MAX && shown.len() as u64 <= skipped);
    requests
}

/// A trace; its first byte selects the format, or that it is detected.
///
/// # Panics
/// If a request is outside the limits, or differs after it was written in flaz's own format and read again.
pub fn trace(data: &[u8]) {
    let (format, trace) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let format = match usize::from(format) % (Format::ALL.len() + 1) {
        0 => None,
        number => Some(Format::ALL[number - 1]),
    };
    let requests = read(trace, format);
    let mut own = "flaz-trace 1\n".to_owned();
    for request in &requests {
        let end = request.offset.checked_add(request.len).expect("no overflow");
        assert!(request.len > 0 && end <= END_BYTES_MAX, "{request:?}");
        assert!(
            request.op == Op::Trim || request.len <= LENGTH_BYTES_MAX,
            "{request:?}"
        );
        let op = match request.op {
            Op::Read => 'r',
            Op::Write => 'w',
            Op::Trim => 't',
        };
        let at_us = request.at_us.unwrap_or(0);
        own += &format!("{at_us} {op} {} {}\n", request.offset, request.len);
    }
    let again = read(own.as_bytes(), None);
    let alike = |(request, again): (&Request, &Request)| {
        (
            request.op,
            request.offset,
            request.len,
            request.at_us.unwrap_or(0),
        ) == (again.op, again.offset, again.len, again.at_us.unwrap_or(0))
    };
    assert_eq!(again.len(), requests.len());
    assert!(requests.iter().zip(&again).all(alike), "{own}");
}
