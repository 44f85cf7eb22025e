//! A small blocking NBD client over a Unix socket: what the demo's clients speak.
//!
//! Fixed newstyle negotiation with `NBD_OPT_GO`, simple and structured replies, one request at a time. It
//! follows the NBD protocol document (doc/proto.md of the NetworkBlockDevice project) and trusts nothing the
//! server says: lengths are checked before they are used, and a reply that does not fit is an error.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_FLAG_ERROR: u32 = 1 << 31;
const REP_ERR_UNSUP: u32 = REP_FLAG_ERROR | 1;
const INFO_EXPORT: u16 = 0;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;

const CHUNK_FLAG_DONE: u16 = 1;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_FLAG_ERROR: u16 = 1 << 15;

/// The longest option reply or error chunk that is read.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024;
/// How many option replies a server may send to one option.
const OPTION_REPLIES_MAX: u32 = 64;
/// How long a reply may take: longer than any emulated disk with a full queue needs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// What went wrong between this client and the server.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The socket cannot be reached.
    #[error("cannot connect to the NBD socket {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke, or no reply came in time.
    #[error("NBD {during}: {source}")]
    Io {
        /// What was going on.
        during: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The server does not keep to the protocol.
    #[error("NBD server breaks the protocol: expected {expected}, found {found:#x}")]
    Protocol {
        /// What should have come.
        expected: &'static str,
        /// What came.
        found: u64,
    },
    /// The server refused an option of the negotiation.
    #[error("NBD server refuses to open the export: reply type {reply:#x} {message}")]
    Refused {
        /// Reply type of the protocol.
        reply: u32,
        /// What the server said about it.
        message: String,
    },
    /// The server answered a request with an error.
    #[error("NBD {command} of {length} bytes at offset {offset}: {}", io::Error::from_raw_os_error(*errno))]
    Request {
        /// `read`, `write` or `flush`.
        command: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
        /// Error number as the protocol has it; those are Linux's.
        errno: i32,
    },
}

/// One connection to one export.
#[derive(Debug)]
pub struct NbdClient {
    stream: UnixStream,
    size_bytes: u64,
    cookie: u64,
}

impl NbdClient {
    /// Connects to the default export of the server at `path`.
    ///
    /// # Errors
    /// When nobody listens, the server speaks another protocol, or it refuses the export.
    pub fn connect(path: &Path) -> Result<Self, NbdError> {
        let failed = |source| NbdError::Connect {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT)).map_err(failed)?;
        let mut client = Self {
            stream,
            size_bytes: 0,
            cookie: 0,
        };
        client.negotiate()?;
        Ok(client)
    }

    /// Size of the export in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads `data.len()` bytes at `offset`.
    ///
    /// # Errors
    /// When the server answers with an error, breaks the protocol, or goes away.
    pub fn read_at(&mut self, offset: u64, data: &mut [u8]) -> Result<(), NbdError> {
        self.request(CMD_READ, offset, data.len() as u32, &[])?;
        self.reply("read", offset, data.len() as u32, data)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        self.request(CMD_WRITE, offset, data.len() as u32, data)?;
        self.reply("write", offset, data.len() as u32, &mut [])
    }

    /// Makes all acknowledged writes stable.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn flush(&mut self) -> Result<(), NbdError> {
        self.request(CMD_FLUSH, 0, 0, &[])?;
        self.reply("flush", 0, 0, &mut [])
    }

    fn negotiate(&mut self) -> Result<(), NbdError> {
        expect("the magic NBDMAGIC", self.get_u64("greeting")?, MAGIC)?;
        expect("the magic IHAVEOPT", self.get_u64("greeting")?, OPTION_MAGIC)?;
        let flags = self.get_u16("greeting")?;
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(NbdError::Protocol {
                expected: "the fixed-newstyle flag",
                found: flags.into(),
            });
        }
        let answer = u32::from(flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
        self.put("greeting", &answer.to_be_bytes())?;
        self.option(OPT_STRUCTURED_REPLY, &[])?;
        match self.option_reply(OPT_STRUCTURED_REPLY)? {
            (REP_ACK | REP_ERR_UNSUP, _) => {}
            (reply, message) => return Err(refused(reply, &message)),
        }
        // An empty export name (length u32) and no wishes for information (count u16).
        self.option(OPT_GO, &[0; 6])?;
        let mut size_bytes = None;
        for _ in 0..OPTION_REPLIES_MAX {
            match self.option_reply(OPT_GO)? {
                (REP_ACK, _) => {
                    self.size_bytes = size_bytes.ok_or(NbdError::Protocol {
                        expected: "NBD_INFO_EXPORT before the end of options",
                        found: 0,
                    })?;
                    return Ok(());
                }
                (REP_INFO, info) => {
                    if let Some((kind, rest)) = info.split_first_chunk::<2>()
                        && u16::from_be_bytes(*kind) == INFO_EXPORT
                    {
                        let size = rest.first_chunk::<8>().ok_or(NbdError::Protocol {
                            expected: "an NBD_INFO_EXPORT of 12 bytes",
                            found: info.len() as u64,
                        })?;
                        size_bytes = Some(u64::from_be_bytes(*size));
                    }
                }
                (reply, message) => return Err(refused(reply, &message)),
            }
        }
        Err(NbdError::Protocol {
            expected: "at most 64 replies to NBD_OPT_GO",
            found: 65,
        })
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let mut message = Vec::with_capacity(16 + data.len());
        message.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&(data.len() as u32).to_be_bytes());
        message.extend_from_slice(data);
        self.put("negotiation", &message)
    }

    fn option_reply(&mut self, option: u32) -> Result<(u32, Vec<u8>), NbdError> {
        expect(
            "the magic of an option reply",
            self.get_u64("negotiation")?,
            OPTION_REPLY_MAGIC,
        )?;
        expect(
            "a reply to the option sent",
            self.get_u32("negotiation")?.into(),
            option.into(),
        )?;
        let reply = self.get_u32("negotiation")?;
        let data = self.message("negotiation")?;
        Ok((reply, data))
    }

    /// Reads a length and as many bytes.
    fn message(&mut self, during: &'static str) -> Result<Vec<u8>, NbdError> {
        let length = self.get_u32(during)?;
        self.message_of(during, length)
    }

    fn message_of(&mut self, during: &'static str, length: u32) -> Result<Vec<u8>, NbdError> {
        if length > MESSAGE_BYTES_MAX {
            return Err(NbdError::Protocol {
                expected: "a message of at most 64 KiB",
                found: length.into(),
            });
        }
        let mut data = vec![0; length as usize];
        self.get(during, &mut data)?;
        Ok(data)
    }

    fn request(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> Result<(), NbdError> {
        self.cookie += 1;
        let mut header = [0; 28];
        header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..28].copy_from_slice(&length.to_be_bytes());
        self.put("request", &header)?;
        if data.is_empty() {
            Ok(())
        } else {
            self.put("request", data)
        }
    }

    /// Reads the reply to the request of `length` bytes at `offset` just sent, and a read's data into `data`.
    fn reply(
        &mut self,
        command: &'static str,
        offset: u64,
        length: u32,
        data: &mut [u8],
    ) -> Result<(), NbdError> {
        let failed = |errno: u32| NbdError::Request {
            command,
            offset,
            length,
            errno: errno as i32,
        };
        match self.get_u32("reply")? {
            SIMPLE_REPLY_MAGIC => {
                let errno = self.get_u32("reply")?;
                expect("the cookie of the request", self.get_u64("reply")?, self.cookie)?;
                if errno != 0 {
                    return Err(failed(errno));
                }
                self.get("reply", data)
            }
            STRUCTURED_REPLY_MAGIC => {
                let mut error = None;
                let mut received = 0;
                while !self.chunk(offset, data, &mut received, &mut error)? {
                    expect(
                        "the next chunk of the reply",
                        self.get_u32("reply")?.into(),
                        STRUCTURED_REPLY_MAGIC.into(),
                    )?;
                }
                match error {
                    Some(errno) => Err(failed(errno)),
                    None => expect("as many bytes as were asked for", received, data.len() as u64),
                }
            }
            found => Err(NbdError::Protocol {
                expected: "the magic of a reply",
                found: found.into(),
            }),
        }
    }

    /// Reads one chunk after its magic; says whether it was the last.
    fn chunk(
        &mut self,
        offset: u64,
        data: &mut [u8],
        received: &mut u64,
        error: &mut Option<u32>,
    ) -> Result<bool, NbdError> {
        let flags = self.get_u16("reply")?;
        let kind = self.get_u16("reply")?;
        expect("the cookie of the request", self.get_u64("reply")?, self.cookie)?;
        let length = self.get_u32("reply")?;
        match kind {
            CHUNK_NONE => expect("an empty chunk", length.into(), 0)?,
            CHUNK_OFFSET_DATA if length >= 8 => {
                let start = self.get_u64("reply")?;
                let part = part_of(data, offset, start, length - 8)?;
                *received += part.len() as u64;
                self.stream.read_exact(part).map_err(|source| NbdError::Io {
                    during: "reply",
                    source,
                })?;
            }
            CHUNK_OFFSET_HOLE if length == 12 => {
                let start = self.get_u64("reply")?;
                let hole = self.get_u32("reply")?;
                let part = part_of(data, offset, start, hole)?;
                *received += part.len() as u64;
                part.fill(0);
            }
            kind if kind & CHUNK_FLAG_ERROR != 0 => {
                let message = self.message_of("reply", length)?;
                let errno = message.first_chunk::<4>().ok_or(NbdError::Protocol {
                    expected: "an error chunk of at least 4 bytes",
                    found: length.into(),
                })?;
                error.get_or_insert(u32::from_be_bytes(*errno));
            }
            kind => {
                return Err(NbdError::Protocol {
                    expected: "a known kind of chunk",
                    found: kind.into(),
                });
            }
        }
        Ok(flags & CHUNK_FLAG_DONE != 0)
    }

    fn put(&mut self, during: &'static str, bytes: &[u8]) -> Result<(), NbdError> {
        self.stream
            .write_all(bytes)
            .map_err(|source| NbdError::Io { during, source })
    }

    fn get(&mut self, during: &'static str, bytes: &mut [u8]) -> Result<(), NbdError> {
        self.stream
            .read_exact(bytes)
            .map_err(|source| NbdError::Io { during, source })
    }

    fn get_u16(&mut self, during: &'static str) -> Result<u16, NbdError> {
        let mut bytes = [0; 2];
        self.get(during, &mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn get_u32(&mut self, during: &'static str) -> Result<u32, NbdError> {
        let mut bytes = [0; 4];
        self.get(during, &mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn get_u64(&mut self, during: &'static str) -> Result<u64, NbdError> {
        let mut bytes = [0; 8];
        self.get(during, &mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        // A courtesy: the server copes with a closed socket as well.
        let _ = self.request(CMD_DISC, 0, 0, &[]);
    }
}

fn expect(expected: &'static str, found: u64, wanted: u64) -> Result<(), NbdError> {
    if found == wanted {
        Ok(())
    } else {
        Err(NbdError::Protocol { expected, found })
    }
}

fn refused(reply: u32, message: &[u8]) -> NbdError {
    NbdError::Refused {
        reply,
        message: String::from_utf8_lossy(message).into_owned(),
    }
}

/// The part of `data` (which lies at `offset` of the export) that a chunk at `start` fills.
fn part_of(data: &mut [u8], offset: u64, start: u64, length: u32) -> Result<&mut [u8], NbdError> {
    let first = start.checked_sub(offset);
    let range = first.and_then(|first| Some(first..first.checked_add(u64::from(length))?));
    range
        .filter(|range| range.end <= data.len() as u64)
        .map(|range| &mut data[range.start as usize..range.end as usize])
        .ok_or(NbdError::Protocol {
            expected: "a chunk inside the request",
            found: start,
        })
}

#[cfg(test)]
mod tests;
