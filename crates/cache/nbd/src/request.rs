//! Requests of the transmission phase: parses their header and decides whether they may be served.
//!
//! There are two steps, because they fail differently. A header without the magic number means that the stream is out
//! of step and ends the connection. An invalid request gets an error reply, after its payload (if it has one) was read
//! from the stream.

use zerocopy::FromBytes;

use crate::errno::Errno;
use crate::export::Export;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::negotiation::Session;
use crate::protocol::{REQUEST_MAGIC, RequestHeader, cmd, cmd_flag};

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();

/// A request as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags of [`cmd_flag`].
    pub flags: u16,
    /// A command of [`cmd`], or an unknown one.
    pub command: u16,
    /// Returned in the reply.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

/// The stream is out of step: the caller closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request begins with {0:#010x}: expected {REQUEST_MAGIC:#010x}")]
pub struct BadMagic(pub u32);

/// Why a request is refused: the error number and a message for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// What is wrong.
    pub reason: &'static str,
}

/// A request that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `len` bytes at `offset`.
    Read,
    /// Write `len` bytes at `offset`.
    Write {
        /// Stable before the reply.
        fua: bool,
    },
    /// Complete the requests in flight, then close.
    Disconnect,
    /// Make acknowledged writes stable.
    Flush,
    /// Discard a range.
    Trim {
        /// Stable before the reply.
        fua: bool,
    },
    /// Prefetch a range.
    Cache,
    /// Make a range read as zeroes.
    WriteZeroes {
        /// Stable before the reply.
        fua: bool,
        /// The range may be deallocated.
        may_unmap: bool,
    },
    /// Report which parts of a range are allocated.
    BlockStatus {
        /// Only the first extent.
        one: bool,
    },
}

impl Command {
    /// Whether the request changes data.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Trim { .. } | Self::WriteZeroes { .. }
        )
    }

    /// Name of the command for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write { .. } => "write",
            Self::Disconnect => "disconnect",
            Self::Flush => "flush",
            Self::Trim { .. } => "trim",
            Self::Cache => "cache",
            Self::WriteZeroes { .. } => "write-zeroes",
            Self::BlockStatus { .. } => "block-status",
        }
    }

    /// The command of [`cmd`], and its flags of [`cmd_flag`].
    fn numbers(self) -> (u16, u16) {
        let flag = |set, flag| if set { flag } else { 0 };
        match self {
            Self::Read => (cmd::READ, 0),
            Self::Write { fua } => (cmd::WRITE, flag(fua, cmd_flag::FUA)),
            Self::Disconnect => (cmd::DISC, 0),
            Self::Flush => (cmd::FLUSH, 0),
            Self::Trim { fua } => (cmd::TRIM, flag(fua, cmd_flag::FUA)),
            Self::Cache => (cmd::CACHE, 0),
            Self::WriteZeroes { fua, may_unmap } => {
                let no_hole = flag(!may_unmap, cmd_flag::NO_HOLE);
                (cmd::WRITE_ZEROES, flag(fua, cmd_flag::FUA) | no_hole)
            }
            Self::BlockStatus { one } => (cmd::BLOCK_STATUS, flag(one, cmd_flag::REQ_ONE)),
        }
    }
}

impl Request {
    /// A request to be sent by a client.
    #[must_use]
    pub fn new(command: Command, cookie: u64, offset: u64, len: u32) -> Self {
        let (command, flags) = command.numbers();
        Self {
            flags,
            command,
            cookie,
            offset,
            len,
        }
    }

    /// Encodes the header of the request.
    #[must_use]
    pub fn header(&self) -> RequestHeader {
        RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: self.flags.into(),
            command: self.command.into(),
            cookie: self.cookie.into(),
            offset: self.offset.into(),
            len: self.len.into(),
        }
    }

    /// Parses a header.
    ///
    /// # Errors
    /// [`BadMagic`] if this is not a request.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, BadMagic> {
        let header = RequestHeader::ref_from_bytes(bytes).map_err(|_| BadMagic(0))?;
        if header.magic.get() != REQUEST_MAGIC {
            return Err(BadMagic(header.magic.get()));
        }
        Ok(Self {
            flags: header.flags.get(),
            command: header.command.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: header.len.get(),
        })
    }

    /// Bytes that follow the header, for valid and invalid requests.
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        if self.command == cmd::WRITE { self.len } else { 0 }
    }

    /// Decides whether the request may be served.
    ///
    /// # Errors
    /// [`Refusal`]: the error reply.
    pub fn check(&self, export: &Export, session: Session) -> Result<Command, Refusal> {
        let fua = self.flags & cmd_flag::FUA != 0;
        // FUA is accepted on every command, as the specification requires, and has an effect on writes only.
        let (command, flags) = match self.command {
            cmd::READ if session.structured => (Command::Read, cmd_flag::DF),
            cmd::READ => (Command::Read, 0),
            cmd::WRITE => (Command::Write { fua }, 0),
            cmd::DISC => return Ok(Command::Disconnect),
            cmd::FLUSH => (Command::Flush, 0),
            cmd::TRIM => (Command::Trim { fua }, 0),
            cmd::CACHE => (Command::Cache, 0),
            cmd::WRITE_ZEROES => {
                let may_unmap = self.flags & cmd_flag::NO_HOLE == 0;
                let fast = if export.has_fast_zero() {
                    cmd_flag::FAST_ZERO
                } else {
                    0
                };
                (Command::WriteZeroes { fua, may_unmap }, cmd_flag::NO_HOLE | fast)
            }
            cmd::BLOCK_STATUS => {
                if !session.allocation_context {
                    return Err(inval(
                        "block status requires a metadata context, but none was negotiated",
                    ));
                }
                (
                    Command::BlockStatus {
                        one: self.flags & cmd_flag::REQ_ONE != 0,
                    },
                    cmd_flag::REQ_ONE,
                )
            }
            _ => return Err(inval("unknown command")),
        };
        if self.flags & !(flags | cmd_flag::FUA) != 0 {
            return Err(inval("the command does not support this flag"));
        }
        if command.writes() && export.is_read_only() {
            return Err(Refusal {
                errno: Errno::Perm,
                reason: "the export is read-only",
            });
        }
        match command {
            Command::Flush if self.offset != 0 || self.len != 0 => {
                return Err(inval("flush requires offset and length 0"));
            }
            Command::Read | Command::Write { .. } if self.len > PAYLOAD_BYTES_MAX => {
                return Err(inval("more data than the maximum payload of 32 MiB"));
            }
            Command::BlockStatus { .. } if self.len == 0 => {
                return Err(inval("block status of an empty range"));
            }
            _ => {}
        }
        match self.offset.checked_add(u64::from(self.len)) {
            Some(end) if end <= export.size() => Ok(command),
            _ => {
                let errno = match command {
                    Command::Write { .. } | Command::WriteZeroes { .. } => Errno::NoSpc,
                    _ => Errno::Inval,
                };
                Err(Refusal {
                    errno,
                    reason: "the range exceeds the device",
                })
            }
        }
    }
}

fn inval(reason: &'static str) -> Refusal {
    Refusal {
        errno: Errno::Inval,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const SIZE: u64 = 1 << 30;
    const ALL: Session = Session {
        structured: true,
        allocation_context: true,
    };

    fn request(command: u16, flags: u16, offset: u64, len: u32) -> Request {
        Request {
            flags,
            command,
            cookie: 1,
            offset,
            len,
        }
    }

    fn errno(request: Request, export: &Export, session: Session) -> Option<u32> {
        request
            .check(export, session)
            .err()
            .map(|refusal| refusal.errno.code())
    }

    #[test]
    fn a_header_is_read_byte_by_byte() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, // magic
            0x00, 0x01, // flags: FUA
            0x00, 0x01, // type: WRITE
            1, 2, 3, 4, 5, 6, 7, 8, // cookie
            0, 0, 0, 0, 0, 0, 0x10, 0, // offset 4096
            0, 0, 0x02, 0, // length 512
        ];
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(
            request,
            Request {
                flags: 1,
                command: 1,
                cookie: 0x0102_0304_0506_0708,
                offset: 4096,
                len: 512
            }
        );
        assert_eq!(request.payload_len(), 512);
        assert_eq!(
            request.check(&Export::new(SIZE), ALL),
            Ok(Command::Write { fua: true })
        );
        assert_eq!(request.header().as_bytes(), bytes);
        let mut wrong = bytes;
        wrong[3] = 0x14;
        assert_eq!(Request::parse(&wrong), Err(BadMagic(0x2560_9514)));
    }

    #[test]
    fn client_requests_are_parsed_by_the_server() {
        let mut commands = vec![Command::Read, Command::Disconnect, Command::Flush, Command::Cache];
        for yes in [false, true] {
            let may_unmap = yes;
            commands.extend([Command::Write { fua: yes }, Command::Trim { fua: yes }]);
            commands.extend([false, true].map(|fua| Command::WriteZeroes { fua, may_unmap }));
            commands.push(Command::BlockStatus { one: yes });
        }
        for command in commands {
            let range = if command == Command::Flush {
                (0, 0)
            } else {
                (4096, 512)
            };
            let request = Request::new(command, 7, range.0, range.1);
            let header = request.header();
            let bytes = header.as_bytes().first_chunk().unwrap();
            assert_eq!(Request::parse(bytes), Ok(request));
            assert_eq!(request.check(&Export::new(SIZE), ALL), Ok(command));
        }
    }

    #[test]
    fn flags_belong_to_commands() {
        let export = Export::new(SIZE);
        for command in 0..8 {
            for flag in 0..16 {
                let request = request(command, 1 << flag, 0, if command == cmd::FLUSH { 0 } else { 512 });
                let fits = flag == 0
                    || command == cmd::DISC
                    || (command == cmd::READ && flag == 2)
                    || (command == cmd::WRITE_ZEROES && flag == 1)
                    || (command == cmd::BLOCK_STATUS && flag == 3);
                let expected = if fits { None } else { Some(22) };
                assert_eq!(
                    errno(request, &export, ALL),
                    expected,
                    "command {command}, flag bit {flag}"
                );
            }
        }
        let fast = export.clone().fast_zero(true);
        assert_eq!(
            errno(request(cmd::WRITE_ZEROES, cmd_flag::FAST_ZERO, 0, 1), &fast, ALL),
            None
        );
        assert_eq!(
            errno(
                request(cmd::READ, cmd_flag::DF, 0, 1),
                &export,
                Session::default()
            ),
            Some(22)
        );
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let export = Export::new(SIZE);
        for (command, expected) in [
            (cmd::READ, 22),
            (cmd::WRITE, 28),
            (cmd::TRIM, 22),
            (cmd::CACHE, 22),
            (cmd::WRITE_ZEROES, 28),
            (cmd::BLOCK_STATUS, 22),
        ] {
            assert_eq!(errno(request(command, 0, SIZE - 1, 1), &export, ALL), None);
            for offset in [SIZE, SIZE - 511, u64::MAX, u64::MAX - 511] {
                let request = request(command, 0, offset, 512);
                assert_eq!(
                    errno(request, &export, ALL),
                    Some(expected),
                    "command {command} at {offset}"
                );
            }
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
        let export = Export::new(SIZE);
        assert_eq!(errno(request(8, 0, 0, 0), &export, ALL), Some(22));
        assert_eq!(errno(request(0xffff, 0, 0, 0), &export, ALL), Some(22));
        assert_eq!(errno(request(cmd::FLUSH, 0, 1, 0), &export, ALL), Some(22));
        assert_eq!(errno(request(cmd::FLUSH, 0, 0, 1), &export, ALL), Some(22));
        assert_eq!(errno(request(cmd::BLOCK_STATUS, 0, 0, 0), &export, ALL), Some(22));
        assert_eq!(
            errno(request(cmd::BLOCK_STATUS, 0, 0, 1), &export, Session::default()),
            Some(22)
        );
        assert_eq!(
            errno(request(cmd::READ, 0, 0, (32 << 20) + 1), &export, ALL),
            Some(22)
        );
        assert_eq!(
            errno(request(cmd::WRITE, 0, 0, (32 << 20) + 1), &export, ALL),
            Some(22)
        );
        // Commands without a payload have no limit.
        assert_eq!(errno(request(cmd::TRIM, 0, 0, 1 << 30), &export, ALL), None);
    }

    #[test]
    fn a_read_only_export_refuses_changes() {
        let export = Export::new(SIZE).read_only(true);
        for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(errno(request(command, 0, 0, 1), &export, ALL), Some(1));
        }
        for command in [cmd::READ, cmd::CACHE, cmd::BLOCK_STATUS] {
            assert_eq!(errno(request(command, 0, 0, 1), &export, ALL), None);
        }
    }
}
