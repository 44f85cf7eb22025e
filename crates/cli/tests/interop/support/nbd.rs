//! A small NBD client: several requests in flight on a connection, simple replies, and an end of the connection that
//! is no failure. It is written from the protocol document and not from the server's code.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MAGIC: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// Fixed newstyle, no zeroes.
const FLAGS: u32 = 3;
const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPT_GO: u32 = 7;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Longest wait for a reply: that of a retry shim while the server behind it is started again.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

/// Commands, by their numbers in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub command: Command,
    pub fua: bool,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

/// What came of the request with this cookie; `errno` is 0 for success. A read's data follows.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub cookie: u64,
    pub errno: u32,
}

/// One connection to the default export.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// When nobody listens, or hangs up meanwhile.
    ///
    /// # Panics
    /// If it does not speak NBD.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_WITHIN))?;
        stream.set_write_timeout(Some(REPLY_WITHIN))?;
        let mut client = Self { stream };
        let greeting: [u8; 18] = client.get()?;
        assert_eq!(greeting[..16], MAGIC[..], "no NBD server at {}", path.display());
        // No name (u32), no wishes (u16): the default export.
        let go = [
            &FLAGS.to_be_bytes()[..],
            OPTION,
            &OPT_GO.to_be_bytes(),
            &6_u32.to_be_bytes(),
            &[0; 6],
        ];
        client.stream.write_all(&go.concat())?;
        loop {
            assert_eq!(u64::from_be_bytes(client.get()?), OPTION_REPLY_MAGIC);
            assert_eq!(u32::from_be_bytes(client.get()?), OPT_GO);
            let kind = u32::from_be_bytes(client.get()?);
            let mut data = vec![0; u32::from_be_bytes(client.get()?) as usize];
            client.stream.read_exact(&mut data)?;
            match kind {
                REP_ACK => return Ok(client),
                REP_INFO => {}
                refused => panic!("refused: {refused:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    fn get<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a request, with its data if it is a write.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, request: Request, data: &[u8]) -> io::Result<()> {
        let message = [
            &REQUEST_MAGIC.to_be_bytes()[..],
            &u16::from(request.fua).to_be_bytes(),
            &(request.command as u16).to_be_bytes(),
            &request.cookie.to_be_bytes(),
            &request.offset.to_be_bytes(),
            &request.length.to_be_bytes(),
            data,
        ];
        self.stream.write_all(&message.concat())
    }

    /// The next reply, to whichever request.
    ///
    /// # Errors
    /// When the connection has ended, or nothing came for a minute.
    pub fn receive(&mut self) -> io::Result<Reply> {
        assert_eq!(u32::from_be_bytes(self.get()?), SIMPLE_REPLY_MAGIC);
        let errno = u32::from_be_bytes(self.get()?);
        let cookie = u64::from_be_bytes(self.get()?);
        Ok(Reply { cookie, errno })
    }

    /// The data that follow the successful reply to a read.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn receive_data(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    /// Sends one request and waits for its reply: the data of a read, nothing otherwise.
    ///
    /// # Errors
    /// When the connection has ended, or the server says so.
    pub fn call(&mut self, command: Command, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        let request = Request {
            command,
            fua: false,
            cookie: 0,
            offset,
            length,
        };
        self.send(request, &[])?;
        match self.receive()?.errno {
            0 if command == Command::Read => self.receive_data(length),
            0 => Ok(Vec::new()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    /// Writes, and waits until that is acknowledged.
    ///
    /// # Errors
    /// When the connection has ended, or the server says so.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let request = Request {
            command: Command::Write,
            fua: false,
            cookie: 0,
            offset,
            length: u32::try_from(data.len()).expect("a write is short"),
        };
        self.send(request, data)?;
        match self.receive()?.errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}
