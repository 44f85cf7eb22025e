//! Sockets: accepting, receiving into a buffer, sending batches.

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
    /// Takes over a listening Unix socket. The path stays the caller's to remove.
    ///
    /// # Errors
    /// If the socket cannot be made blocking, which is what io_uring wants.
    pub fn from_unix(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        Ok(Self { fd: listener.into() })
    }

    /// Takes over a listening TCP socket.
    ///
    /// # Errors
    /// If the socket cannot be made blocking, which is what io_uring wants.
    pub fn from_tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        Ok(Self { fd: listener.into() })
    }

    /// The next connection. May be dropped while it waits.
    ///
    /// # Errors
    /// What `accept4` says; after EMFILE and the like the listener is still usable.
    pub async fn accept(&self) -> io::Result<OwnedFd> {
        let (_, result) = Op::new(
            Request::Accept {
                fd: self.fd.as_raw_fd(),
            },
            Payload::Accepted,
        )
        .await;
        let fd = check(result)?;
        // SAFETY: the kernel made this descriptor for us just now.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connected stream socket. Receiving and sending may go on at the same time, each at most once.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
}

impl Stream {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// If the socket cannot be made blocking, which is what io_uring wants.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        if flags.contains(rustix::fs::OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&fd, flags.difference(rustix::fs::OFlags::NONBLOCK))?;
        }
        // Batches are whole messages: waiting for more to send would only delay them. Unix sockets refuse.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Ok(Self { fd })
    }

    /// Receives into `buf[start..end]`; 0 bytes mean that the peer has ended, or [`Stream::shutdown`].
    /// May be dropped while it waits; bytes may be lost then.
    ///
    /// # Errors
    /// What `recv` says.
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

    /// Sends a whole batch, by one `sendmsg` as a rule, and returns it uncleared.
    ///
    /// # Errors
    /// What `sendmsg` says; part of the batch may have been sent.
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

    /// Ends the connection in both directions: a waiting `recv` returns 0, sends fail. Calling it again, or
    /// on a connection that the peer has ended, does nothing.
    pub fn shutdown(&self) {
        // The only possible failure is that there is no connection any more.
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
