//! Keeping a queue full: as many operations in flight as the depth says, until there are no more.

use std::io;

use crate::pattern::Access;
use crate::ticker::Ticker;

/// What the device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'d> {
    /// Read a record.
    Read(Access),
    /// Write a record, of these bytes.
    Write(Access, &'d [u8]),
}

impl Operation<'_> {
    /// Where, and how much.
    #[must_use]
    pub fn access(&self) -> Access {
        match self {
            Self::Read(access) | Self::Write(access, _) => *access,
        }
    }
}

/// Something that has several operations in flight, each in a slot of its own.
pub trait Queue<'d> {
    /// Takes an operation; it may wait for [`Queue::wait`] before it reaches the device.
    ///
    /// # Errors
    /// It cannot be taken.
    fn push(&mut self, slot: usize, operation: Operation<'d>) -> io::Result<()>;

    /// Waits until at least one operation has ended, and adds the slots of all that have.
    ///
    /// # Errors
    /// That of an operation: the device's, or that it moved less than it should.
    fn wait(&mut self, ended: &mut Vec<usize>) -> io::Result<()>;
}

/// Does all operations, `depth` of them in flight as long as there are as many. When asked to stop, it waits for those in
/// flight first.
///
/// # Errors
/// The queue's; [`crate::ticker::interrupted`].
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

    /// Ends operations in an order of its own, and notes how many were in flight.
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
    fn a_failed_operation_ends_it() {
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
