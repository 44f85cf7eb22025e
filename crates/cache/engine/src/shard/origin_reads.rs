//! Origin reads of missed blocks.
//!
//! Invariants:
//! - One read for each missed block: a request that misses a block whose read is in flight joins that read (single-flight),
//!   unless a write has overtaken it.
//! - At most [`ORIGIN_READS_MAX`] reads are in flight at the origin. Others wait on the list, where requests can join them.
//! - A read leaves the list when it ends, even if the request that began it is dropped. Joined requests are then woken.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::local::{Notify, Semaphore};
use flaz_device::{DeviceError, IoBuf};

use super::order::{Version, WriteOrder};
use crate::planted::{PlantedBug, planted};
use crate::stats::{Stats, count, raise};
use crate::units::LocalBlock;

/// Most reads of misses in flight at the origin. Others wait with their requests, whose number front ends limit.
pub const ORIGIN_READS_MAX: usize = 256;

/// A read that other requests may join.
#[derive(Debug)]
pub(super) struct OriginRead {
    first: LocalBlock,
    /// The versions of the blocks before the read. `None`: the block was cached then, so the origin may have been out of
    /// date. If such a block is written back and reclaimed, no version changes.
    versions: Vec<Option<Version>>,
    /// `None` while the read is in flight.
    result: RefCell<Option<Result<Arc<IoBuf>, ReadFailed>>>,
    ended: Notify,
}

/// A joined read failed. The cause may be a different block of the read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFailed;

impl OriginRead {
    /// The versions of the blocks before the read.
    pub(super) fn versions(&self) -> &[Option<Version>] {
        &self.versions
    }

    /// Waits for the data.
    ///
    /// # Errors
    /// The read failed, or the request that began it was dropped.
    pub(super) async fn joined(&self) -> Result<Arc<IoBuf>, ReadFailed> {
        loop {
            if let Some(result) = &*self.result.borrow() {
                return result.clone();
            }
            self.ended.notified().await;
        }
    }

    /// The index of `block` in this read, if a request that misses the block now may use its data.
    fn index_of(&self, block: LocalBlock, order: &WriteOrder) -> Option<usize> {
        let index = block.0.checked_sub(self.first.0)?;
        let version = *self.versions.get(index as usize)?;
        let current = version == Some(order.version(block)) || planted(PlantedBug::OvertakenReadJoined);
        current.then_some(index as usize)
    }
}

/// A run of adjacent missed blocks.
#[derive(Debug)]
pub(super) enum Run {
    /// This request must read it.
    Own { blocks: usize },
    /// Part of a read in flight.
    Join {
        read: Rc<OriginRead>,
        from: usize,
        blocks: usize,
    },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct OriginReads {
    under_way: RefCell<Vec<Rc<OriginRead>>>,
    slots: Semaphore,
}

impl OriginReads {
    pub(super) fn new() -> Self {
        Self {
            under_way: RefCell::default(),
            slots: Semaphore::new(ORIGIN_READS_MAX),
        }
    }

    /// Number of reads in flight at the origin.
    pub(super) fn at_origin(&self) -> u64 {
        let free = self.slots.available();
        assert!(free <= ORIGIN_READS_MAX, "slots are given back once");
        (ORIGIN_READS_MAX - free) as u64
    }

    /// Splits missed blocks (their sorted distances from `first`) into runs of adjacent blocks, each of which either joins
    /// one read or needs its own.
    pub(super) fn split(&self, first: LocalBlock, missed: &[usize], order: &WriteOrder) -> Vec<(usize, Run)> {
        let under_way = self.under_way.borrow();
        let mut runs: Vec<(usize, Run)> = Vec::new();
        for &index in missed {
            let block = LocalBlock(first.0 + index as u64);
            let joined = (under_way.iter()).find_map(|read| Some((read, read.index_of(block, order)?)));
            match (&joined, runs.last_mut()) {
                (None, Some((start, Run::Own { blocks }))) if *start + *blocks == index => *blocks += 1,
                (
                    Some((read, within)),
                    Some((
                        start,
                        Run::Join {
                            read: last,
                            from,
                            blocks,
                        },
                    )),
                ) if Rc::ptr_eq(read, last) && *start + *blocks == index && *from + *blocks == *within => {
                    *blocks += 1;
                }
                _ => {
                    let run = match joined {
                        Some((read, from)) => {
                            let read = Rc::clone(read);
                            Run::Join {
                                read,
                                from,
                                blocks: 1,
                            }
                        }
                        None => Run::Own { blocks: 1 },
                    };
                    runs.push((index, run));
                }
            }
        }
        runs
    }

    /// Lists a read of blocks from `first` on, which other requests can join from now on. `versions` are the current versions of the
    /// blocks, `None` for a cached block.
    pub(super) fn list(&self, first: LocalBlock, versions: Vec<Option<Version>>) -> Listed<'_> {
        assert!(!versions.is_empty(), "a read has blocks");
        let read = Rc::new(OriginRead {
            first,
            versions,
            result: RefCell::new(None),
            ended: Notify::new(),
        });
        self.under_way.borrow_mut().push(Rc::clone(&read));
        Listed { reads: self, read }
    }
}

/// A read on the list, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Listed<'a> {
    reads: &'a OriginReads,
    read: Rc<OriginRead>,
}

impl Listed<'_> {
    /// Reads with `read`, which starts when a slot is free, for all requests that join. Also returns the read, for its versions.
    ///
    /// # Errors
    /// The error of `read`.
    pub(super) async fn fetch(
        self,
        stats: &Stats,
        read: impl Future<Output = (IoBuf, Result<(), DeviceError>)>,
    ) -> Result<(Rc<OriginRead>, Arc<IoBuf>), DeviceError> {
        let reads = self.reads;
        // The read is on the list while it waits for its slot, so that others can join it. A write in the meantime makes
        // the versions old: then nothing is admitted.
        let slot = match reads.slots.try_acquire(1) {
            Some(slot) => slot,
            None => {
                count(&stats.counters.origin_reads_full, 1);
                reads.slots.acquire(1).await
            }
        };
        raise(&stats.peaks.origin_reads, reads.at_origin());
        let (buf, result) = read.await;
        drop(slot);
        let data = Arc::new(buf);
        let shared = result.is_ok().then(|| Arc::clone(&data)).ok_or(ReadFailed);
        let before = self.read.result.replace(Some(shared));
        assert!(before.is_none(), "a read ends once");
        result.map(|()| (Rc::clone(&self.read), data))
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut under_way = self.reads.under_way.borrow_mut();
        let before = under_way.len();
        under_way.retain(|other| !Rc::ptr_eq(other, &self.read));
        assert_eq!(under_way.len() + 1, before, "a read is listed once");
        self.read.result.borrow_mut().get_or_insert(Err(ReadFailed));
        self.read.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flaz_device::DeviceOp;
    use futures_util::FutureExt;
    use futures_util::future::pending;

    const BLOCK: usize = 4096;

    fn versions(order: &WriteOrder, blocks: std::ops::Range<u64>) -> Vec<Option<Version>> {
        blocks
            .map(|block| Some(order.version(LocalBlock(block))))
            .collect()
    }

    fn shape(runs: &[(usize, Run)]) -> Vec<(usize, Option<usize>, usize)> {
        let shape = |run: &Run| match *run {
            Run::Own { blocks } => (None, blocks),
            Run::Join { from, blocks, .. } => (Some(from), blocks),
        };
        runs.iter()
            .map(|(at, run)| (*at, shape(run).0, shape(run).1))
            .collect()
    }

    #[test]
    fn missed_blocks_join_the_read_that_covers_them() {
        let (reads, order) = (OriginReads::new(), WriteOrder::new(0, None));
        // Before it waits for anything: the blocks of a request are looked up once.
        let _listed = reads.list(LocalBlock(4), versions(&order, 4..8));
        let runs = reads.split(LocalBlock(2), &[0, 1, 2, 3, 5, 8], &order);
        assert_eq!(
            shape(&runs),
            [(0, None, 2), (2, Some(0), 2), (5, Some(3), 1), (8, None, 1)]
        );
    }

    #[test]
    fn a_read_that_a_write_has_overtaken_is_not_joined() {
        let (reads, order, stats) = (OriginReads::new(), WriteOrder::new(0, None), Stats::default());
        let mut all = versions(&order, 0..3);
        all[2] = None;
        let mut fetch = Box::pin(reads.list(LocalBlock(0), all).fetch(&stats, pending()));
        assert!((&mut fetch).now_or_never().is_none());
        let lock = order.lock(LocalBlock(1)..LocalBlock(2)).now_or_never();
        lock.expect("free").bump();
        let runs = reads.split(LocalBlock(0), &[0, 1, 2], &order);
        assert_eq!(shape(&runs), [(0, Some(0), 1), (1, None, 2)]);
    }

    #[test]
    fn joined_requests_get_the_data_or_hear_of_the_failure() {
        let (reads, order, stats) = (OriginReads::new(), WriteOrder::new(0, None), Stats::default());
        let join = || match reads.split(LocalBlock(0), &[0], &order).pop() {
            Some((0, Run::Join { read, .. })) => read,
            other => panic!("expected one to join, found {other:?}"),
        };
        let failed = || DeviceError::new(DeviceOp::Read, 0, 0, std::io::Error::other("a test"));
        for well in [true, false] {
            let gate = Rc::new(Notify::new());
            let opened = Rc::clone(&gate);
            let read = async move {
                opened.notified().await;
                (IoBuf::zeroed(BLOCK), if well { Ok(()) } else { Err(failed()) })
            };
            let mut fetch = Box::pin(
                reads
                    .list(LocalBlock(0), versions(&order, 0..1))
                    .fetch(&stats, read),
            );
            assert!((&mut fetch).now_or_never().is_none());
            let joined = join();
            assert!(joined.joined().now_or_never().is_none());
            gate.notify_one();
            assert_eq!(fetch.now_or_never().expect("it ends").is_ok(), well);
            assert_eq!(
                joined.joined().now_or_never().expect("it has ended").is_ok(),
                well
            );
            assert!(reads.under_way.borrow().is_empty());
        }
        let mut dropped = Box::pin(
            reads
                .list(LocalBlock(0), versions(&order, 0..1))
                .fetch(&stats, pending()),
        );
        assert!((&mut dropped).now_or_never().is_none());
        let joined = join();
        drop(dropped);
        assert!(joined.joined().now_or_never().expect("it has ended").is_err());
    }

    #[test]
    fn reads_at_the_origin_are_bounded() {
        let (reads, order, stats) = (OriginReads::new(), WriteOrder::new(0, None), Stats::default());
        let mut all: Vec<_> = (0..=ORIGIN_READS_MAX as u64)
            .map(|block| {
                let versions = versions(&order, block..block + 1);
                Box::pin(reads.list(LocalBlock(block), versions).fetch(&stats, pending()))
            })
            .collect();
        for fetch in &mut all {
            assert!(fetch.now_or_never().is_none());
        }
        assert_eq!(reads.at_origin(), ORIGIN_READS_MAX as u64);
        assert_eq!(
            reads.under_way.borrow().len(),
            ORIGIN_READS_MAX + 1,
            "others can join it"
        );
        assert_eq!(stats.counters.origin_reads_full.get(), 1);
    }
}
