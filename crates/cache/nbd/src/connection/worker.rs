//! Workers: take a job, ask the volume, leave the reply in the outbox.

use flaz_engine::router::PIECES_MAX;
use flaz_engine::volume::{IoError, STRIPE_BYTES, Segments, Volume};

use super::Connection;
use crate::errno::Errno;
use crate::limits::STATUS_EXTENTS_MAX;
use crate::reply;
use crate::request::Command;

/// What a request about a range weighs at most, in bytes: the stripes of it that the router has under way at a time.
const RANGE_WEIGHT_BYTES_MAX: usize = PIECES_MAX * STRIPE_BYTES as usize;

/// A request for the volume.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Data of a write, cut as the volume wants it.
    pub(super) data: Segments,
}

impl Job {
    /// Bytes that the job counts for while it is in flight.
    pub(super) fn weight_bytes(command: Command, len: u32) -> usize {
        match command {
            Command::Read | Command::Write { .. } => len as usize,
            Command::BlockStatus { .. } => status_extents_max(command) * 8,
            // The volume works on some stripes of such a range at a time. A trim over dirty blocks writes zeroes.
            Command::Cache | Command::Trim { .. } | Command::WriteZeroes { .. } => {
                (len as usize).min(RANGE_WEIGHT_BYTES_MAX)
            }
            Command::Flush | Command::Disconnect => 0,
        }
    }
}

fn status_extents_max(command: Command) -> usize {
    if command == (Command::BlockStatus { one: true }) {
        1
    } else {
        STATUS_EXTENTS_MAX
    }
}

impl<V: Volume> Connection<V> {
    /// Works until the connection ends.
    pub(super) async fn work(&self, number: usize) {
        self.workers.arrived();
        loop {
            let job = self.queue.borrow_mut().pop_front();
            match job {
                Some(job) => self.execute(job).await,
                None if self.closing.get() => return,
                None => self.workers.rest(number).await,
            }
        }
    }

    async fn execute(&self, job: Job) {
        let Job {
            command,
            cookie,
            offset,
            len,
            data,
        } = job;
        let weight = Job::weight_bytes(command, len);
        let range = u64::from(len);
        let result = match command {
            // The specification leaves requests for nothing open; they succeed.
            _ if len == 0 && command != Command::Flush => Ok(()),
            Command::Read => match self.volume.read(offset, len).await {
                Ok(segments) => return self.finish_read(cookie, offset, len, segments),
                Err(error) => Err(error),
            },
            Command::Write { fua } => self.volume.write(offset, data, fua).await,
            Command::Flush => self.volume.flush().await,
            Command::Trim { fua } => self.volume.trim(offset, range, fua).await,
            Command::Cache => self.volume.prefetch(offset, range).await,
            Command::WriteZeroes { fua, may_unmap } => {
                self.volume.write_zeroes(offset, range, may_unmap, fua).await
            }
            Command::BlockStatus { .. } => {
                let extents_max = status_extents_max(command);
                match self.volume.block_status(offset, range, extents_max).await {
                    Ok(extents) => {
                        let mut bytes = vec![];
                        reply::block_status(&mut bytes, cookie, &extents, len, extents_max);
                        return self.reply_bytes(&bytes, weight);
                    }
                    Err(error) => Err(error),
                }
            }
            Command::Disconnect => Ok(()),
        };
        match result {
            Ok(()) => self.reply_done(cookie, weight),
            Err(error) => self.fail(&error, command, cookie, offset, range, weight),
        }
    }

    fn finish_read(&self, cookie: u64, offset: u64, len: u32, segments: Segments) {
        let got: usize = segments.iter().map(|segment| segment.len()).sum();
        // Another length would make the client take data for headers.
        assert!(
            got == len as usize,
            "the volume gave {got} bytes for a read of {len} at {offset}"
        );
        self.reply_data(cookie, offset, len, segments);
    }

    fn fail(&self, error: &IoError, command: Command, cookie: u64, offset: u64, range: u64, weight: usize) {
        self.counters().count_failed(command);
        let errno = Errno::of(error, command.writes());
        // Where the device failed, if that is inside of the request, as the protocol demands.
        let at = match error {
            IoError::Origin(device) if command == Command::Read => {
                Some(device.offset).filter(|at| (offset..offset + range).contains(at))
            }
            _ => None,
        };
        self.reply_error(cookie, errno, &error.to_string(), at, weight);
    }
}
