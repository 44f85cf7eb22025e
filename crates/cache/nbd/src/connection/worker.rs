//! Workers: take a job, call the volume, put the reply into the outbox.

use std::rc::Rc;

use flaz_device::Env;
use flaz_engine::volume::{IoError, Segments, Volume};

use super::job::{Job, status_extents_max};
use super::shared::Connection;
use crate::errno::Errno;
use crate::reply;
use crate::request::Command;

impl<V: Volume> Connection<V> {
    /// Passes a job to an idle worker, or to a new one. [`Connection::admit`] limits their number.
    pub(super) fn start<E: Env>(self: &Rc<Self>, env: &E, job: Job) {
        if let Some(number) = self.jobs.push(job) {
            let connection = Rc::clone(self);
            env.spawn(async move { connection.work(number).await });
        }
    }

    /// Works until the connection ends.
    async fn work(&self, number: usize) {
        self.jobs.arrived();
        while let Some(job) = self.jobs.next(number).await {
            self.execute(job).await;
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
            // The specification leaves requests of length zero undefined; here they succeed.
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
        // With another length, the client would take data for headers.
        assert!(
            got == len as usize,
            "the volume returned {got} bytes for a read of {len} at {offset}"
        );
        self.reply_data(cookie, offset, len, segments);
    }

    fn fail(&self, error: &IoError, command: Command, cookie: u64, offset: u64, range: u64, weight: usize) {
        if self.is_resent() && matches!(error, IoError::Stopping) {
            return self.withdraw(weight);
        }
        self.counters().count_failed(command);
        let errno = Errno::of(error, command.writes());
        // The offset at which the device failed, if it is inside the request, as the protocol requires.
        let at = match error {
            IoError::Origin(device) if command == Command::Read => {
                Some(device.offset).filter(|at| (offset..offset + range).contains(at))
            }
            _ => None,
        };
        self.reply_error(cookie, errno, &error.to_string(), at, weight);
    }
}
