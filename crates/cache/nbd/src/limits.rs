//! Every maximum of server and client, in one place: what the peer can make this side hold, wait for or compute.

use std::time::Duration;

/// Time a client has from its connection to the end of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections served at a time; further ones are closed at once.
pub const CONNECTIONS_MAX: usize = 64;
/// Options of one handshake. Real clients send fewer than ten.
pub const OPTIONS_MAX: u32 = 128;
/// Bytes of one option's data that are looked at; a longer option is skipped and refused as too big.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Bytes of one option's data that are skipped; a longer option ends the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 32 << 20;
/// Bytes of any string of the protocol (names, descriptions, messages).
pub const STRING_BYTES_MAX: usize = 4096;
/// Bytes of data in one read or write.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Requests of one connection between the parsing of their header and the sending of their reply.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Bytes of data of these requests: of writes since their header was read, of reads until their reply was
/// sent. Must be at least [`PAYLOAD_BYTES_MAX`].
pub const BYTES_IN_FLIGHT_MAX: usize = 64 << 20;
/// Extents of one block-status reply: 8 bytes each.
pub const STATUS_EXTENTS_MAX: usize = 8 << 10;
/// Bytes of a connection's receive buffer. Must hold an option and many requests.
pub const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// A write's data goes through the receive buffer when at most this many bytes of it are still to come;
/// otherwise the rest is received straight into the buffers that go to the volume.
pub const BUFFERED_PAYLOAD_BYTES_MAX: usize = 32 << 10;
/// Time without a word from a client on TCP after which its machine is asked whether it is still there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two of these questions.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Questions without an answer after which the connection ends.
pub const KEEPALIVE_PROBES_MAX: u32 = 4;
/// Clients that may wait to be accepted.
pub const LISTEN_BACKLOG: i32 = 128;
/// How long a socket may go on listening after the process that had it was killed: the kernel takes requests apart that
/// were in an io_uring, the accept among them, when the process is gone already.
pub const SOCKET_LINGER_MAX: Duration = Duration::from_secs(30);
/// How long a server waits for others that make their sockets in the same directory.
pub const SOCKET_LOCK_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at either.
pub const SOCKET_LINGER_POLL: Duration = Duration::from_millis(5);
/// Pause after the system refused to accept (no more file descriptors, as a rule).
pub const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a client waits for the server: longer than an emulated disk with a full queue takes, or a server that is
/// started again behind a proxy.
pub const CLIENT_REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of an option's reply or of an error chunk that a client reads.
pub const CLIENT_MESSAGE_BYTES_MAX: u32 = 64 << 10;
/// Replies to one option that a client reads.
pub const CLIENT_OPTION_REPLIES_MAX: u32 = 64;
/// Chunks with data that a client puts together for one read.
pub const CLIENT_CHUNKS_MAX: usize = 1024;

const _: () = assert!(BYTES_IN_FLIGHT_MAX >= PAYLOAD_BYTES_MAX as usize);
const _: () = assert!(RECEIVE_BUFFER_BYTES >= OPTION_BYTES_MAX + BUFFERED_PAYLOAD_BYTES_MAX + 64);

/// The maxima that a host may change. The default is what the constants of this module say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`HANDSHAKE_TIMEOUT`].
    pub handshake_timeout: Duration,
    /// See [`REQUESTS_IN_FLIGHT_MAX`].
    pub requests_in_flight_max: usize,
    /// See [`BYTES_IN_FLIGHT_MAX`]; less than one payload is taken as one payload.
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
