//! Not hurrying for a client that cannot follow.
//!
//! A server that is faster than its client is woken for every single request and answers each with a call
//! of its own; the client pays for the waking. So while many small replies lie unread in the client's
//! socket, the receiver pauses for a moment: the requests of that moment then come at once and are answered
//! at once. The client has enough to do meanwhile, so nothing is late. Over a local socket, 4 KiB reads at
//! depth 32 become a third faster, for half the server's CPU time.
//!
//! Only Unix sockets say what the peer has not read; TCP tells what the network has not acknowledged.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::AsFd;

use flaz_device::Env;
use flaz_device::rt::net::Stream;
use flaz_engine::volume::Volume;
use rustix::ioctl;

use super::Connection;
use crate::limits::{UNREAD_PAUSE, UNREAD_REPLIES_MAX};

/// Replies larger than this on average are not paced: a few of them fill the socket, which paces by itself.
const SMALL_REPLY_BYTES_MAX: usize = 8 << 10;
/// What the kernel counts for a byte sent, with its own structures: about 5/4.
const OVERHEAD_QUARTERS: usize = 5;
/// Share of the newest batch in the mean size of replies: 1/8.
const MEAN_SHIFT: u32 = 3;

/// What is known of the client's speed.
#[derive(Debug)]
pub(super) struct Pace {
    is_unix: bool,
    /// Mean size of a reply in bytes.
    reply_bytes: Cell<usize>,
}

impl Pace {
    pub(super) fn of(stream: &Stream) -> Self {
        let address = rustix::net::getsockname(stream);
        let is_unix =
            address.is_ok_and(|address| address.address_family() == rustix::net::AddressFamily::UNIX);
        Self {
            is_unix,
            reply_bytes: Cell::new(0),
        }
    }

    /// Notes a batch of replies.
    pub(super) fn sent(&self, bytes: usize, replies: usize) {
        let (old, new) = (self.reply_bytes.get(), bytes / replies.max(1));
        self.reply_bytes
            .set(old - (old >> MEAN_SHIFT) + (new >> MEAN_SHIFT));
    }

    /// Unread bytes from which on the client is to be spared; `None` if it is never.
    fn limit_bytes(&self) -> Option<usize> {
        let mean = self.reply_bytes.get();
        let paced = self.is_unix && mean <= SMALL_REPLY_BYTES_MAX;
        paced.then_some((UNREAD_REPLIES_MAX * mean * OVERHEAD_QUARTERS / 4).max(UNREAD_REPLIES_MAX * 1024))
    }
}

impl<V: Volume> Connection<V> {
    /// Pauses if the client has many replies to read.
    pub(super) async fn spare_the_client<E: Env>(&self, env: &E) {
        if let Some(limit) = self.pace.limit_bytes()
            && unread_bytes(&self.stream) >= limit
        {
            env.sleep(UNREAD_PAUSE).await;
        }
    }
}

/// Bytes that were sent and that the peer has not read, as the kernel counts them.
fn unread_bytes(stream: &Stream) -> usize {
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one C int to its argument.
    let unread = unsafe { ioctl::ioctl(stream.as_fd(), ioctl::Getter::<{ SIOCOUTQ }, c_int>::new()) };
    unread.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0))
}

/// `SIOCOUTQ` of unix(7), as the ioctl number of this architecture.
const SIOCOUTQ: ioctl::Opcode = libc::TIOCOUTQ as ioctl::Opcode;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_small_replies_on_unix_sockets_are_paced() {
        let pace = Pace {
            is_unix: true,
            reply_bytes: Cell::new(0),
        };
        assert_eq!(pace.limit_bytes(), Some(16 << 10));
        for _ in 0..100 {
            pace.sent(4 * 4124, 4);
        }
        let limit = pace.limit_bytes().unwrap();
        assert!((80_000..84_000).contains(&limit), "{limit}");
        for _ in 0..100 {
            pace.sent(16 << 10, 1);
        }
        assert_eq!(pace.limit_bytes(), None);
        assert_eq!(
            Pace {
                is_unix: false,
                reply_bytes: Cell::new(0)
            }
            .limit_bytes(),
            None
        );
    }

    #[test]
    fn the_kernel_tells_what_the_peer_has_not_read() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let stream = Stream::new(here.try_clone().unwrap().into()).unwrap();
        assert!(Pace::of(&stream).is_unix);
        assert_eq!(unread_bytes(&stream), 0);
        here.write_all(&[1; 5000]).unwrap();
        assert!(unread_bytes(&stream) >= 5000);
        there.read_exact(&mut [0; 5000]).unwrap();
        assert_eq!(unread_bytes(&stream), 0);
    }
}
