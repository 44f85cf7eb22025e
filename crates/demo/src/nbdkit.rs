//! Another NBD server, to test the demo's clients.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// `nbdkit` serving `file`; killed at the end.
pub struct Nbdkit(Child);

impl Nbdkit {
    /// Starts it on `socket`; `None` if it is not installed.
    pub fn start(socket: &Path, arguments: &[&str]) -> Option<Self> {
        let child = match Command::new("nbdkit")
            .arg("-f")
            .arg("-U")
            .arg(socket)
            .args(arguments)
            .spawn()
        {
            Ok(child) => child,
            Err(error) => {
                eprintln!("not tested against nbdkit: {error} (Debian package nbdkit)");
                return None;
            }
        };
        let until = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < until, "nbdkit did not start");
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self(child))
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
