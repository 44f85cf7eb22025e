//! Keeps a queue full: as many operations in flight as the depth, until there are no more.

use std::io;

use crate::pattern::Access;
use crate::ticker::Ticker;

/// An operation of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'d> {
    /// Read a record.
    Read(Access),
    /// Write a record with these bytes.
    Write(Access, &'d [u8]),
}

impl Operation<'_> {
    /// Offset and length.
    #[must_use]
    pub fn access(&self) -> Access {
        match self {
            Self::Read(access) | Self::Write(access, _) => *access,
        }
    }
}

/// Executes several operations concurrently, each in its own slot.
pub trait Queue<'d> {
    /// Submits an operation; it may reach the device only at the next [`Queue::wait`].
    ///
    /// # Errors
    /// It cannot be submitted.
    fn push(&mut self, slot: usize, operation: Operation<'d>) -> io::Result<()>;

    /// Waits until at least one operation completes, and adds the slots of all completed ones.
    ///
    /// # Errors
    /// The error of an operation: the device's, or a short transfer.
    fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()>;
}

/// Executes all operations, with `depth` of them in flight while enough remain. If it is stopped, it first waits for
/// those in flight.
///
/// # Errors
/// The queue's error; [`crate::ticker::interrupted`].
pub fn keep_full<'d>(
    queue: &mut impl Queue<'d>,
    depth: usize,
    operations: impl Iterator<Item = Operation<'d>>,
    ticker: &Ticker<'_>,
) -> io::Result<()> {
    let mut operations = operations.fuse();
    let mut free: Vec<usize> = (0..depth).rev().collect();
    let mut bytes_in = vec![0; depth];
    let mut ended = Vec::with_capacity(depth);
    let mut stopped = Ok(());
    loop {
        while stopped.is_ok()
            && let Some(&slot) = free.last()
        {
            stopped = ticker.check();
            if stopped.is_err() {
                break;
            }
            let Some(operation) = operations.next() else {
                break;
            };
            free.pop();
            bytes_in[slot] = operation.access().bytes;
            queue.push(slot, operation)?;
        }
        if free.len() == depth {
            return stopped;
        }
        queue.wait(&mut ended)?;
        for slot in ended.drain(..) {
            ticker.add(bytes_in[slot]);
            free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::pattern::{Order, Pattern};

    /// Completes operations in its own order, and records how many were in flight.
    #[derive(Default)]
    struct Odd {
        in_flight: Vec<usize>,
        seen: Vec<Access>,
        deepest: usize,
        fail_at: Option<usize>,
        stop_at: Option<(usize, &'static AtomicBool)>,
    }

    impl Queue<'static> for Odd {
        fn push(&mut self, slot: usize, operation: Operation<'static>) -> io::Result<()> {
            assert!(!self.in_flight.contains(&slot), "slot {slot} is taken");
            self.in_flight.push(slot);
            self.seen.push(operation.access());
            self.deepest = self.deepest.max(self.in_flight.len());
            if let Some((at, stop)) = self.stop_at
                && self.seen.len() == at
            {
                stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()> {
            assert!(!self.in_flight.is_empty(), "waiting for nothing");
            if self.fail_at.is_some_and(|at| self.seen.len() >= at) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let middle = self.in_flight.len() / 2;
            ended.extend(self.in_flight.drain(middle..));
            Ok(())
        }
    }

    fn operations(records: u64) -> impl Iterator<Item = Operation<'static>> {
        let pattern = Pattern {
            order: Order::Forward,
            records,
            record_bytes: 4096,
            seed: 0,
        };
        pattern.accesses().map(Operation::Read)
    }

    #[test]
    fn depth_is_reached_and_never_exceeded() {
        for (depth, records) in [(1, 5), (4, 100), (32, 10), (3, 0)] {
            let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
            let ticker = Ticker {
                done: &done,
                stop: &stop,
            };
            let mut queue = Odd::default();
            keep_full(&mut queue, depth, operations(records), &ticker).unwrap();
            assert_eq!(queue.deepest as u64, records.min(depth as u64));
            let offsets = queue.seen.iter().map(|access| access.offset / 4096);
            assert!(offsets.eq(0..records));
            assert_eq!(done.into_inner(), records * 4096);
            assert!(queue.in_flight.is_empty());
        }
    }

    #[test]
    fn a_stop_waits_for_what_is_in_flight() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let ticker = Ticker {
            done: &done,
            stop: &STOP,
        };
        let mut queue = Odd {
            stop_at: Some((10, &STOP)),
            ..Odd::default()
        };
        let error = keep_full(&mut queue, 4, operations(100), &ticker).unwrap_err();
        assert!(crate::ticker::is_interrupted(&error));
        assert_eq!((queue.seen.len(), queue.in_flight.len()), (10, 0));
    }

    #[test]
    fn a_failed_operation_ends_the_queue() {
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let ticker = Ticker {
            done: &done,
            stop: &stop,
        };
        let mut queue = Odd {
            fail_at: Some(8),
            ..Odd::default()
        };
        let error = keep_full(&mut queue, 4, operations(100), &ticker).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
