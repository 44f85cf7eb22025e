//! The answer to one HTTP/1.1 request. A connection has one request and is then closed.
//!
//! Limits: [`HEAD_BYTES_MAX`] for request line and headers, [`HEADERS_MAX`] headers, [`REQUEST_WITHIN`] until they have arrived.
//! No body is read. Libraries were considered: a server of the size of hyper is out of proportion, and tiny_http has no
//! timeouts and no limit of connections. Only the syntax is left to one (httparse).

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Maximum length of request line and headers in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of headers.
const HEADERS_MAX: usize = 64;
/// How long a client may take to send them.
pub(super) const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// How long the rest of what a client sends is read after an answer: closed before, the connection would be reset, and the
/// client might lose the answer.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Metrics,
    Refused { status: &'static str, why: &'static str },
}

const NOT_FOUND: Answer = Answer::Refused {
    status: "404 Not Found",
    why: "the metrics are at /metrics",
};
const WRONG_METHOD: Answer = Answer::Refused {
    status: "405 Method Not Allowed",
    why: "expected GET",
};
const TOO_LONG: Answer = Answer::Refused {
    status: "431 Request Header Fields Too Large",
    why: "expected at most 8 KiB and 64 headers",
};
const INVALID: Answer = Answer::Refused {
    status: "400 Bad Request",
    why: "expected an HTTP/1.1 request",
};
const LATE: Answer = Answer::Refused {
    status: "408 Request Timeout",
    why: "expected a request within five seconds",
};
const BUSY: Answer = Answer::Refused {
    status: "503 Service Unavailable",
    why: "too many connections",
};

/// A connection whose reads can have a time limit.
pub(super) trait Connection: Read + Write {
    /// Limits the time of the following reads.
    fn read_within(&self, limit: Duration) -> io::Result<()>;
}

/// Answers the request of a connection. `page` is called for a valid one.
pub(super) fn answer(connection: &mut impl Connection, page: impl FnOnce() -> String) -> io::Result<()> {
    match read_request(connection)? {
        Some(answer) => reply(connection, answer, page)?,
        // It left without a word: a check whether the port is open.
        None => return Ok(()),
    }
    let deadline = Instant::now() + CLOSE_WITHIN;
    let mut rest = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        connection.read_within(left)?;
        if connection.read(&mut rest)? == 0 {
            return Ok(());
        }
    }
}

/// Tells a client that there are too many.
pub(super) fn refuse_busy(connection: &mut impl Write) -> io::Result<()> {
    reply(connection, BUSY, String::new)
}

fn read_request(connection: &mut impl Connection) -> io::Result<Option<Answer>> {
    let deadline = Instant::now() + REQUEST_WITHIN;
    let mut head = [0; HEAD_BYTES_MAX];
    let mut len = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Some(LATE));
        }
        connection.read_within(left)?;
        match connection.read(&mut head[len..]) {
            Ok(0) if len == 0 => return Ok(None),
            Ok(0) => return Ok(Some(INVALID)),
            Ok(count) => len += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(Some(LATE));
            }
            Err(error) => return Err(error),
        }
        match parse(&head[..len]) {
            Some(answer) => return Ok(Some(answer)),
            None if len == HEAD_BYTES_MAX => return Ok(Some(TOO_LONG)),
            None => {}
        }
    }
}

/// The answer to a request, or `None` while it is incomplete.
fn parse(head: &[u8]) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            Some(match (request.method, path) {
                (Some("GET"), "/metrics") => Answer::Metrics,
                (Some("GET"), _) => NOT_FOUND,
                _ => WRONG_METHOD,
            })
        }
        Err(httparse::Error::TooManyHeaders) => Some(TOO_LONG),
        Err(_) => Some(INVALID),
    }
}

fn reply(connection: &mut impl Write, answer: Answer, page: impl FnOnce() -> String) -> io::Result<()> {
    let (status, kind, body) = match answer {
        Answer::Metrics => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page()),
        Answer::Refused { status, why } => (status, "text/plain; charset=utf-8", format!("{why}\n")),
    };
    let allow = if answer == WRONG_METHOD {
        "Allow: GET\r\n"
    } else {
        ""
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(text.as_bytes())?;
    connection.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends parts, one for each read, and then closes or waits.
    struct Client<'a> {
        parts: Vec<&'a [u8]>,
        waits: bool,
        received: Vec<u8>,
    }

    impl Read for Client<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(part) = self.parts.first_mut() else {
                return if self.waits {
                    Err(ErrorKind::WouldBlock.into())
                } else {
                    Ok(0)
                };
            };
            let count = part.len().min(buffer.len());
            buffer[..count].copy_from_slice(&part[..count]);
            *part = &part[count..];
            if part.is_empty() {
                self.parts.remove(0);
            }
            Ok(count)
        }
    }

    impl Write for Client<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.received.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Connection for Client<'_> {
        fn read_within(&self, limit: Duration) -> io::Result<()> {
            assert!(!limit.is_zero() && limit <= REQUEST_WITHIN);
            Ok(())
        }
    }

    fn ask(parts: &[&[u8]], waits: bool) -> String {
        let mut client = Client {
            parts: parts.to_vec(),
            waits,
            received: Vec::new(),
        };
        let _ = answer(&mut client, || "flaz_up 1\n".to_owned());
        String::from_utf8(client.received).unwrap()
    }

    #[test]
    fn a_scrape_is_answered_however_it_arrives() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n";
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        for parts in [
            &[&whole[..]][..],
            &bytes,
            &[b"GET /metrics?x=1 HTTP/1.0\r\n\r\nand more"],
        ] {
            let text = ask(parts, false);
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert!(text.contains("\r\nContent-Length: 10\r\n"), "{text}");
            assert!(text.contains("version=0.0.4"), "{text}");
            assert!(text.ends_with("\r\n\r\nflaz_up 1\n"), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let long = [b"GET /metrics HTTP/1.1\r\nX: ", &[b'x'; HEAD_BYTES_MAX][..]].concat();
        let many = [
            b"GET /metrics HTTP/1.1\r\n".to_vec(),
            b"a: b\r\n".repeat(HEADERS_MAX + 1),
        ]
        .concat();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "405"),
            (b"\x16\x03\x01\x02\x00\x01\x00", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /met", "400"),
            (&long, "431"),
            (&many, "431"),
        ] {
            let text = ask(&[request], false);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            assert!(!text.contains("flaz_up"), "{text}");
        }
        assert!(ask(&[b"GET /metrics HTTP/1.1\r\n"], true).starts_with("HTTP/1.1 408 "));
        assert_eq!(ask(&[], false), "", "a client that says nothing");
    }
}
