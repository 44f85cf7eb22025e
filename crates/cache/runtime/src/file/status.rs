//! Reports which parts of a file are holes.

use std::io;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::handle::FileDevice;
use super::kind::Kind;
use crate::queries::HOLES;

/// How long a caller waits for the file system.
const HOLES_WITHIN: Duration = Duration::from_secs(10);
/// After this time, only the runs found so far are reported.
const RUNS_WITHIN: Duration = Duration::from_secs(1);

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes.
    pub len: u64,
    /// A hole: it reads as zeroes.
    pub hole: bool,
}

impl FileDevice {
    /// As [`FileDevice::status`], on another thread, because the file system may hang, and hits of other clients must not wait for it.
    /// If it times out, the whole range is reported as data.
    pub(super) async fn status_on_thread(
        &self,
        offset: u64,
        len: u64,
        runs_max: usize,
    ) -> io::Result<Vec<Run>> {
        if self.inner.kind == Kind::BlockDevice || len == 0 {
            return self.status(offset, len, runs_max);
        }
        self.end_of(offset, len)?;
        let file = self.clone();
        let answer = HOLES.run(HOLES_WITHIN, move || file.status(offset, len, runs_max));
        let all_data = |_| Ok(vec![Run { len, hole: false }]);
        answer.await.unwrap_or_else(all_data)
    }

    /// The end of a range, which must be inside the device.
    fn end_of(&self, offset: u64, len: u64) -> io::Result<u64> {
        let end = offset.checked_add(len).filter(|end| *end <= self.known_len());
        end.ok_or_else(|| {
            let message = format!(
                "{len} bytes at {offset} are beyond the end of the device at {}",
                self.known_len()
            );
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })
    }

    /// Allocation of `len` bytes at `offset`, as at most `runs_max` runs: at least one, unless `len` is 0. Together
    /// they may be shorter than `len` if there are more runs, or if finding them takes longer than a second.
    /// Runs end on sectors of 512 bytes; a sector that is partly
    /// data is data. Block devices and file systems without this information are all data, and so is what a file has lost by
    /// being truncated, because it does not read as zeroes: reading it fails.
    ///
    /// # Errors
    /// The range is not inside the device, or the file system fails.
    pub fn status(&self, offset: u64, len: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let end = self.end_of(offset, len)?;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = offset;
        let begun = Instant::now();
        let may_go_on = |known: usize| known == 0 || known < runs_max && begun.elapsed() < RUNS_WITHIN;
        while at < end && may_go_on(runs.len()) {
            let data = self.next_data(at)?.clamp(at, end);
            if data > at {
                runs.push(Run {
                    len: data - at,
                    hole: true,
                });
                at = data;
                continue;
            }
            let hole = self.next_hole(at)?.min(end);
            match runs.last_mut() {
                Some(last) if !last.hole => last.len += hole - at,
                _ => runs.push(Run {
                    len: hole - at,
                    hole: false,
                }),
            }
            at = hole;
        }
        Ok(runs)
    }

    /// Start of the first data at or after `at`, rounded down to a sector. Without data, the end of the file: it may be
    /// before the known end.
    fn next_data(&self, at: u64) -> io::Result<u64> {
        if self.inner.kind == Kind::BlockDevice {
            return Ok(at);
        }
        let data = match rustix::fs::seek(&self.inner.fd, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => u64::try_from(rustix::fs::fstat(&self.inner.fd)?.st_size).unwrap_or(0),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        Ok((data / 512 * 512).max(at))
    }

    /// Start of the first hole after `at`, rounded up to a sector. The end of the file counts as a hole.
    fn next_hole(&self, at: u64) -> io::Result<u64> {
        if self.inner.kind == Kind::BlockDevice {
            return Ok(self.known_len());
        }
        match rustix::fs::seek(&self.inner.fd, SeekFrom::Hole(at)) {
            Ok(hole) => Ok(hole.max(at + 1).div_ceil(512) * 512),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(self.known_len()),
            Err(error) => Err(error.into()),
        }
    }
}
