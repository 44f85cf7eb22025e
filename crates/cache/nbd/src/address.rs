//! Addresses of an NBD server: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::protocol::DEFAULT_PORT;

/// Maximum length of a path in the address of a Unix socket (`sun_path` with its final NUL).
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// The address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NbdAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port of a host, without TLS.
    Tcp {
        /// Name or number; IPv6 numbers without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither `unix:` nor `tcp:`.
    #[error("`{0}` is not an NBD address: expected unix:PATH or tcp:HOST[:PORT]")]
    Scheme(String),
    /// The path or host is missing.
    #[error("`{0}` has no {1}")]
    Missing(String, &'static str),
    /// The path does not fit into a socket address.
    #[error("the socket path has {0} bytes: the maximum is {UNIX_PATH_BYTES_MAX}")]
    PathTooLong(usize),
    /// Not a port.
    #[error("`{0}` is not a port: expected a number from 1 to 65535")]
    Port(String),
}

/// TCP was requested without TLS and without the option that allows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: TCP without TLS is refused, because anyone who can reach the port could read and change the device; \
     use --insecure-tcp if the network is trusted, or unix:PATH"
)]
pub struct InsecureTcp(pub NbdAddress);

impl NbdAddress {
    /// Accepts Unix sockets always, and TCP only with the option.
    ///
    /// # Errors
    /// [`InsecureTcp`].
    pub fn check_insecure(&self, insecure_tcp: bool) -> Result<(), InsecureTcp> {
        match self {
            Self::Tcp { .. } if !insecure_tcp => Err(InsecureTcp(self.clone())),
            _ => Ok(()),
        }
    }

    /// The address as a URI for NBD clients, for the export `name` (empty: the default).
    #[must_use]
    pub fn uri(&self, name: &str) -> String {
        match self {
            Self::Unix(path) => {
                let path = escape(&path.to_string_lossy(), b"/");
                format!("nbd+unix:///{}?socket={path}", escape(name, b"/"))
            }
            Self::Tcp { host, port } if host.contains(':') => {
                format!("nbd://[{host}]:{port}/{}", escape(name, b"/"))
            }
            Self::Tcp { host, port } => format!("nbd://{host}:{port}/{}", escape(name, b"/")),
        }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl FromStr for NbdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(AddressError::Missing(text.to_owned(), "path"));
            }
            if path.len() > UNIX_PATH_BYTES_MAX {
                return Err(AddressError::PathTooLong(path.len()));
            }
            return Ok(Self::Unix(Path::new(path).to_owned()));
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(AddressError::Scheme(text.to_owned()));
        };
        let (host, port) = split_host(rest);
        if host.is_empty() {
            return Err(AddressError::Missing(text.to_owned(), "host"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(number) if number != 0 => number,
                _ => return Err(AddressError::Port(port.to_owned())),
            },
        };
        Ok(Self::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

/// Splits `HOST[:PORT]`; an IPv6 number is in brackets.
fn split_host(text: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        return (
            host,
            if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':').unwrap_or(rest))
            },
        );
    }
    match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

/// Percent-encodes the bytes that URIs do not allow, except for those in `keep`.
fn escape(text: &str, keep: &[u8]) -> String {
    use fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NbdAddress, AddressError> {
        text.parse()
    }

    #[test]
    fn addresses_are_read_and_written() {
        for (text, shown) in [
            ("unix:/run/flaz/disk.sock", "unix:/run/flaz/disk.sock"),
            ("unix:disk.sock", "unix:disk.sock"),
            ("tcp:localhost:10810", "tcp:localhost:10810"),
            ("tcp:localhost", "tcp:localhost:10809"),
            ("tcp:[::1]", "tcp:[::1]:10809"),
            ("tcp:[::1]:1", "tcp:[::1]:1"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(parse(shown), Ok(address));
        }
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for (text, message) in [
            ("/run/x.sock", "expected unix:PATH or tcp:HOST[:PORT]"),
            ("unix:", "has no path"),
            ("tcp:", "has no host"),
            ("tcp::10809", "has no host"),
            ("tcp:h:0", "`0` is not a port"),
            ("tcp:h:65536", "`65536` is not a port"),
            ("tcp:h:", "`` is not a port"),
            ("tcp:[::1]x", "`x` is not a port"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        assert_eq!(parse(&long), Err(AddressError::PathTooLong(108)));
    }

    #[test]
    fn tcp_requires_the_option() {
        let tcp = parse("tcp:localhost").unwrap();
        let error = tcp.check_insecure(false).unwrap_err().to_string();
        assert!(
            error.contains("--insecure-tcp") && error.contains("unix:"),
            "{error}"
        );
        assert_eq!(tcp.check_insecure(true), Ok(()));
        assert_eq!(parse("unix:x").unwrap().check_insecure(false), Ok(()));
    }

    #[test]
    fn addresses_have_uris_for_clients() {
        assert_eq!(
            parse("unix:/tmp/a b").unwrap().uri(""),
            "nbd+unix:///?socket=/tmp/a%20b"
        );
        assert_eq!(parse("tcp:h").unwrap().uri("my disk"), "nbd://h:10809/my%20disk");
        assert_eq!(parse("tcp:[::1]").unwrap().uri(""), "nbd://[::1]:10809/");
    }
}
