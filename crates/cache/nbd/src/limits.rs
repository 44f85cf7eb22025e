//! All limits of server and client: what the peer can make this side hold, wait for or compute.

use std::time::Duration;

/// Time limit of the handshake, from the connection on.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of options in one handshake. Real clients send fewer than ten.
pub const OPTIONS_MAX: u32 = 128;
/// Maximum length of an option's data, in bytes; a longer option is skipped and refused as too big.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Maximum length of skipped option data, in bytes; a longer option ends the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 32 << 20;
/// Maximum length of any string of the protocol (names, descriptions, messages), in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Maximum length of the data of one read or write, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Maximum number of requests in flight on one connection: from the parsing of the header to the sending of the reply.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Maximum number of data bytes of these requests: for writes since their header was read, for reads until their reply
/// was sent. Must be at least [`PAYLOAD_BYTES_MAX`].
pub const BYTES_IN_FLIGHT_MAX: usize = 64 << 20;
/// Maximum number of extents in one block-status reply, 8 bytes each.
pub const STATUS_EXTENTS_MAX: usize = 8 << 10;
/// Size of a connection's receive buffer in bytes. It must hold an option and many requests.
pub const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// A write's data goes through the receive buffer if at most this many bytes of it are still missing. Otherwise the
/// rest is received straight into the buffers for the volume.
pub const BUFFERED_PAYLOAD_BYTES_MAX: usize = 32 << 10;
/// Idle time of a TCP connection before the first keep-alive probe.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Number of unanswered probes after which the connection ends.
pub const KEEPALIVE_PROBES_MAX: u32 = 4;
/// Maximum number of clients that wait to be accepted.
pub const LISTEN_BACKLOG: i32 = 128;
/// How long a socket may stay in the listening state after its process was killed. The kernel completes io_uring
/// requests, among them the accept, after the process has ended.
pub const SOCKET_LINGER_MAX: Duration = Duration::from_secs(30);
/// How long a server waits for other servers that create their sockets in the same directory.
pub const SOCKET_LOCK_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks for either.
pub const SOCKET_LINGER_POLL: Duration = Duration::from_millis(5);
/// Pause after a failed accept (usually because there are no more file descriptors).
pub const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a client: longer than an emulated disk with a full queue takes, or a server that is restarted behind a
/// proxy.
pub const CLIENT_REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an option's reply or of an error chunk that a client reads, in bytes.
pub const CLIENT_MESSAGE_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of replies to one option that a client reads.
pub const CLIENT_OPTION_REPLIES_MAX: u32 = 64;
/// Maximum number of data chunks that a client accepts for one read.
pub const CLIENT_CHUNKS_MAX: usize = 1024;

const _: () = assert!(BYTES_IN_FLIGHT_MAX >= PAYLOAD_BYTES_MAX as usize);
const _: () = assert!(RECEIVE_BUFFER_BYTES >= OPTION_BYTES_MAX + BUFFERED_PAYLOAD_BYTES_MAX + 64);

/// The limits that a host may change. The defaults are the constants of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`HANDSHAKE_TIMEOUT`].
    pub handshake_timeout: Duration,
    /// See [`REQUESTS_IN_FLIGHT_MAX`].
    pub requests_in_flight_max: usize,
    /// See [`BYTES_IN_FLIGHT_MAX`]; a value below one payload counts as one payload.
    pub bytes_in_flight_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            requests_in_flight_max: REQUESTS_IN_FLIGHT_MAX,
            bytes_in_flight_max: BYTES_IN_FLIGHT_MAX,
        }
    }
}
