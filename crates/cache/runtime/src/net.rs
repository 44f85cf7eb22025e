//! Sockets: accept connections, receive into a buffer, send batches.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;

use flaz_device::IoBuf;

use crate::batch::SendBatch;
use crate::op::Op;
use crate::op_table::Payload;
use crate::request::Request;

/// Takes connections.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Uses a listening Unix socket. The caller removes the path.
    ///
    /// # Errors
    /// The socket cannot be set to blocking mode, which io_uring requires.
    pub fn from_unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        Ok(Self { fd: listener.into() })
    }

    /// Uses a listening TCP socket.
    ///
    /// # Errors
    /// The socket cannot be set to blocking mode, which io_uring requires.
    pub fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        Ok(Self { fd: listener.into() })
    }

    /// The next connection. The future may be dropped while it waits.
    ///
    /// # Errors
    /// The error of `accept4`; after EMFILE and similar errors the listener is still usable.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        let (_, result) = Op::new(
            Request::Accept {
                fd: self.fd.as_raw_fd(),
            },
            Payload::Accepted,
        )
        .await;
        let fd = check(result)?;
        // SAFETY: the kernel has just created this descriptor for this listener.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connected stream socket. One receive and one send may be in progress at the same time.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
}

impl Stream {
    /// Uses a connected socket.
    ///
    /// # Errors
    /// The socket cannot be set to blocking mode, which io_uring requires.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if flags.contains(rustix::fs::OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&fd, flags.difference(rustix::fs::OFlags::NONBLOCK))?;
        }
        // Batches are complete messages, so waiting for more data would only delay them. Unix sockets do not support
        // this option.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Ok(Self { fd })
    }

    /// Receives into `buf[start..end]`; 0 bytes mean that the peer has closed the connection, or [`Stream::shutdown`].
    /// The future may be dropped while it waits; bytes may then be lost.
    ///
    /// # Errors
    /// The error of `recv`.
    ///
    /// # Panics
    /// If the range is not in the buffer.
    pub async fn recv(&self, mut buf: IoBuf, start: usize, end: usize) -> (IoBuf, io::Result<usize>) {
        let target = &mut buf[start..end];
        let len = target.len().min(1 << 30) as u32;
        let request = Request::Recv {
            fd: self.fd.as_raw_fd(),
            ptr: target.as_mut_ptr(),
            len,
        };
        let (payload, result) = Op::new(request, Payload::Buf(buf)).await;
        (payload.into_buf(), check(result))
    }

    /// Sends a whole batch, usually by one `sendmsg`, and returns it uncleared.
    ///
    /// # Errors
    /// The error of `sendmsg`; part of the batch may have been sent.
    pub async fn send_all(&self, batch: SendBatch) -> (SendBatch, io::Result<()>) {
        let mut outgoing = batch.outgoing;
        outgoing.rewind();
        let mut outcome = Ok(());
        while let Some(request) = outgoing.request(self.fd.as_raw_fd()) {
            let (payload, result) = Op::new(request, Payload::Batch(outgoing)).await;
            outgoing = payload.into_batch();
            match check(result) {
                Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => outgoing.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => outcome = Err(error),
            }
            if outcome.is_err() {
                break;
            }
        }
        (SendBatch { outgoing }, outcome)
    }

    /// Ends the connection in both directions: a waiting `recv` returns 0, sends fail. Calling it again, or on a
    /// connection that the peer has closed, has no effect.
    pub fn shutdown(&self) {
        // The only possible failure is that the connection has already ended.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The count in a completion, or its error.
fn check(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
