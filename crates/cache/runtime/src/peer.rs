//! The process at the other end of a Unix socket.
//!
//! `rustix` has no room for the number 0, which the kernel reports of a process that this one cannot see.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected, or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number; `None` if it is in a PID namespace that has none for it here, such as that of the host of a container.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
}

/// The process at the other end of a Unix socket.
///
/// # Errors
/// The system's; for example, it is no Unix socket.
pub fn peer(socket: &impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` and `len` are of the types of this option, and live until the call returns.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<libc::ucred>() {
        return Err(io::Error::other(
            "the credentials of the other end are incomplete",
        ));
    }
    Ok(Peer::of(&found))
}

impl Peer {
    fn of(found: &libc::ucred) -> Self {
        Self {
            pid: u32::try_from(found.pid).ok().filter(|pid| *pid != 0),
            uid: found.uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_process_without_a_number_here_is_unknown() {
        let found = |pid| {
            let peer = Peer::of(&libc::ucred { pid, uid: 7, gid: 8 });
            assert_eq!(peer.uid, 7);
            peer.pid
        };
        assert_eq!(found(4711), Some(4711));
        assert_eq!(found(0), None);
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let found = peer(&one).unwrap();
        assert_eq!(found.pid, Some(std::process::id()));
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        let file = tempfile::tempfile().unwrap();
        assert!(peer(&file).is_err());
    }
}
