//! Many replies in one send.
//!
//! Small pieces are copied into one buffer; large ones are sent from their own memory. Adjacent small pieces become one
//! element of the I/O vector. A batch keeps its memory when it is cleared.

use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;

use flaz_device::IoBuf;

use crate::request::Request;

/// Maximum number of elements in one `sendmsg`: the kernel's UIO_MAXIOV.
const IOV_MAX: usize = 1024;
/// Buffers up to this many bytes are copied, which is cheaper than another element in the vector.
const COPY_MAX: usize = 1024;
/// Initial size of the buffer for small pieces, in bytes.
const SMALL_START: usize = 16 << 10;

enum Part {
    Small(Range<usize>),
    Buf(IoBuf),
}

/// A batch and the kernel's structures to send it; boxed, so that their address is stable.
pub(crate) struct Outgoing {
    small: IoBuf,
    small_len: usize,
    parts: Vec<Part>,
    bytes: usize,
    iov: Vec<libc::iovec>,
    /// First element of `iov` that is not completely sent.
    next: usize,
    msg: libc::msghdr,
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} parts, {} bytes)", self.parts.len(), self.bytes)
    }
}

impl Outgoing {
    fn new() -> Self {
        // SAFETY: all zeroes is the empty message: null pointers with lengths of zero.
        let msg: libc::msghdr = unsafe { std::mem::zeroed() };
        Self {
            small: IoBuf::new(SMALL_START),
            small_len: 0,
            parts: Vec::new(),
            bytes: 0,
            iov: Vec::new(),
            next: 0,
            msg,
        }
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.small_len;
        let end = start + bytes.len();
        if end > self.small.len() {
            let mut larger = IoBuf::new(end.next_power_of_two());
            larger[..start].copy_from_slice(&self.small[..start]);
            self.small = larger;
        }
        self.small[start..end].copy_from_slice(bytes);
        self.small_len = end;
        self.bytes += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Small(range)) => range.end = end,
            _ => self.parts.push(Part::Small(start..end)),
        }
    }

    /// Builds the vector, from the first byte.
    pub(crate) fn rewind(&mut self) {
        let base = self.small.as_mut_ptr();
        self.iov.clear();
        self.next = 0;
        for part in &mut self.parts {
            let element = match part {
                Part::Small(range) => libc::iovec {
                    iov_base: base.wrapping_add(range.start).cast(),
                    iov_len: range.len(),
                },
                Part::Buf(buf) => libc::iovec {
                    iov_base: buf.as_mut_ptr().cast(),
                    iov_len: buf.len(),
                },
            };
            self.iov.push(element);
        }
    }

    /// The request that sends the rest; `None` if everything is sent.
    pub(crate) fn request(&mut self, fd: RawFd) -> Option<Request> {
        let left = &mut self.iov[self.next..];
        match left {
            [] => None,
            [only] => {
                let len = only.iov_len.min(1 << 30) as u32;
                Some(Request::Send {
                    fd,
                    ptr: only.iov_base.cast_const().cast(),
                    len,
                })
            }
            several => {
                self.msg.msg_iov = several.as_mut_ptr();
                self.msg.msg_iovlen = several.len().min(IOV_MAX) as _;
                Some(Request::SendMsg {
                    fd,
                    msg: &raw const self.msg,
                })
            }
        }
    }

    /// Records that the kernel accepted `sent` bytes.
    pub(crate) fn advance(&mut self, mut sent: usize) {
        while let Some(element) = self.iov.get_mut(self.next) {
            if sent < element.iov_len {
                element.iov_base = element.iov_base.cast::<u8>().wrapping_add(sent).cast();
                element.iov_len -= sent;
                return;
            }
            sent -= element.iov_len;
            self.next += 1;
        }
        assert!(sent == 0, "the kernel sent {sent} bytes more than the batch held");
    }

    fn clear(&mut self) {
        self.parts.clear();
        self.iov.clear();
        self.next = 0;
        self.small_len = 0;
        self.bytes = 0;
    }
}

/// Pieces to send in order, by one call. Small ones are copied; buffers are kept until [`SendBatch::clear`].
pub struct SendBatch {
    pub(crate) outgoing: Box<Outgoing>,
}

impl SendBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            outgoing: Box::new(Outgoing::new()),
        }
    }

    /// Appends a copy of `bytes`.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.outgoing.push_bytes(bytes);
    }

    /// Appends a buffer; a small one is copied and returned to its pool at once.
    pub fn push_buf(&mut self, buf: IoBuf) {
        if buf.len() <= COPY_MAX {
            self.outgoing.push_bytes(&buf);
        } else {
            self.outgoing.bytes += buf.len();
            self.outgoing.parts.push(Part::Buf(buf));
        }
    }

    /// Removes all pieces; keeps the memory of the batch for the next ones.
    pub fn clear(&mut self) {
        self.outgoing.clear();
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outgoing.bytes == 0
    }

    /// Number of bytes to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.outgoing.bytes
    }
}

impl Default for SendBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outgoing.fmt(f)
    }
}
