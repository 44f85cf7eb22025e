//! Sends bytes to the server and receives its bytes.

use std::io::{self, BufReader, Read, Write};

use zerocopy::{FromBytes, IntoBytes};

use super::error::ClientError;
use crate::limits::CLIENT_MESSAGE_BYTES_MAX;

/// A connection: receiving is buffered; each message is sent in one call.
#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: BufReader<S>,
    /// Buffer of the message that is sent. It is reused, so that a request allocates nothing.
    out: Vec<u8>,
    /// Receiving failed in the middle of a message, so the next bytes have no meaning.
    lost: bool,
}

impl<S: Read + Write> Wire<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream: BufReader::new(stream),
            out: Vec::new(),
            lost: false,
        }
    }

    /// Disables receiving.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    pub fn is_lost(&self) -> bool {
        self.lost
    }

    pub fn put(&mut self, during: &'static str, parts: &[&[u8]]) -> Result<(), ClientError> {
        self.out.clear();
        for part in parts {
            self.out.extend_from_slice(part);
        }
        self.stream
            .get_mut()
            .write_all(&self.out)
            .map_err(|source| ClientError::Io { during, source })
    }

    pub fn get_exact(&mut self, during: &'static str, bytes: &mut [u8]) -> Result<(), ClientError> {
        let received = if self.lost {
            Err(io::ErrorKind::NotConnected.into())
        } else {
            self.stream.read_exact(bytes)
        };
        received.map_err(|source| {
            self.lost = true;
            ClientError::Io { during, source }
        })
    }

    /// A number or a header.
    pub fn get<T: FromBytes + IntoBytes>(&mut self, during: &'static str) -> Result<T, ClientError> {
        let mut value = T::new_zeroed();
        self.get_exact(during, value.as_mut_bytes())?;
        Ok(value)
    }

    /// A header whose first bytes, `begin`, were already received.
    pub fn get_rest<T: FromBytes + IntoBytes>(
        &mut self,
        during: &'static str,
        begin: &[u8],
    ) -> Result<T, ClientError> {
        let mut value = T::new_zeroed();
        let (head, rest) = value.as_mut_bytes().split_at_mut(begin.len());
        head.copy_from_slice(begin);
        self.get_exact(during, rest)?;
        Ok(value)
    }

    /// `length` bytes that are not device data.
    pub fn message(&mut self, during: &'static str, length: u32) -> Result<Vec<u8>, ClientError> {
        if length > CLIENT_MESSAGE_BYTES_MAX {
            return Err(ClientError::Protocol {
                expected: "a message of at most 64 KiB",
                found: length.into(),
            });
        }
        let mut data = vec![0; length as usize];
        self.get_exact(during, &mut data)?;
        Ok(data)
    }
}
