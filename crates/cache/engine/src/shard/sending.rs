//! Writes of extents and summaries to the cache device, and the handling of failed ones.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceError, Env, IoBuf};

use super::group_commit::Due;
use super::log::{Copies, PendingWrite, WriteId};
use super::{Platform, Shard};
use crate::format::extent::{ExtentHeader, Record, RecordKind};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::stats::{count, raise};
use crate::units::{Location, UNIT_BYTES};

/// Attempts to write an essential extent or summary before the cache device is fenced.
const TRIES_MAX: u32 = 3;

impl<P: Platform> Shard<P> {
    /// Sends queued writes of the log to the device, up to the limit. Called whenever writes were queued, so that the queue's peak
    /// is measured.
    pub(super) fn pump_writes(self: &Rc<Self>) {
        raise(&self.stats.peaks.cache_writes, self.log.writes_in_flight() as u64);
        while let Some(write) = self.log.take_write() {
            let shard = Rc::clone(self);
            self.env.spawn(async move {
                let PendingWrite { id, bytes } = write;
                // A later start cannot find what was never sent, so its writers may go to the origin.
                let result = match shard.log.begin_write(id, shard.cache.is_fenced()) {
                    true => Some(shard.write_out(id, bytes).await),
                    false => None,
                };
                shard.write_ended(id, result).await;
                shard.pump_writes();
            });
        }
    }

    /// Writes an extent, a summary or a manifest sector; essential ones are retried.
    async fn write_out(self: &Rc<Self>, id: WriteId, bytes: Option<(u64, IoBuf)>) -> Result<(), DeviceError> {
        match (id, bytes) {
            (WriteId::Opening { region }, _) => {
                self.try_often(id, async || {
                    self.log
                        .write_manifest(&self.cache, &[region], Copies::Both)
                        .await
                })
                .await
            }
            (WriteId::Extent(_), Some((position, buf))) => self.write_bytes(id, position, buf).await,
            (WriteId::Summary { region }, Some((position, buf))) => {
                self.write_bytes(id, position, buf).await?;
                // A region that the manifest calls full must be complete. After a fence it may lack an extent.
                if !planted(PlantedBug::FullUnflushed)
                    && let Err(error) = self.cache.flush().await
                {
                    self.fence("the cache device failed a flush");
                    return Err(error);
                }
                self.log.note_whole(region);
                self.try_often(id, async || {
                    self.log.write_manifest(&self.cache, &[region], Copies::One).await
                })
                .await
            }
            (_, None) => unreachable!("extents and summaries have bytes"),
        }
    }

    async fn write_bytes(self: &Rc<Self>, id: WriteId, position: u64, buf: IoBuf) -> Result<(), DeviceError> {
        if let WriteId::Extent(_) = id {
            let header = ExtentHeader::position_of(&buf);
            assert_eq!(header, Some(position), "an extent goes where it says");
        }
        let buf = RefCell::new(Some(buf));
        self.try_often(id, async || {
            let bytes = buf.borrow_mut().take().expect("it comes back");
            let started = self.env.now();
            // After the fence, only extents that contain moved dirty blocks are written.
            let (back, result) = self.cache.write_fenced(position, bytes, false).await;
            if let WriteId::Extent(_) = id {
                self.commits.note_write(self.env.now().since(started));
            }
            buf.replace(Some(back));
            result
        })
        .await
    }

    /// Writes once; an essential write is retried, and if it still fails, the device is fenced.
    async fn try_often(
        self: &Rc<Self>,
        id: WriteId,
        write: impl AsyncFn() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut tries = 1;
        loop {
            match write().await {
                Err(error) if self.must_land(id) => {
                    if tries == TRIES_MAX {
                        self.fence("an extent, a summary or the manifest could not be written");
                        return Err(error);
                    }
                    self.cache_error(&error);
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Handles the end of a write. `result` is none if it was withheld.
    async fn write_ended(self: &Rc<Self>, id: WriteId, result: Option<Result<(), DeviceError>>) {
        let there = matches!(result, Some(Ok(())));
        if let Some(Err(error)) = result {
            self.cache_error(&error);
        }
        match id {
            WriteId::Extent(_) if there => count(&self.stats.counters.extents_written, 1),
            WriteId::Extent(lsn) => {
                let lost = self.log.records_of(lsn);
                // Recovery finds nothing behind a missing extent: the next records go to another region.
                self.log.abandon(lsn);
                // Until the write has ended, no extent behind it has landed.
                if let Some((ring, start, records)) = lost {
                    self.drop_extent(ring, start, records).await;
                }
            }
            WriteId::Opening { .. } | WriteId::Summary { .. } => {}
        }
        self.log.end_write(id);
        self.commit();
    }

    /// Whether a write is essential: without it the cache must be fenced. If blocks may be dirty, every extent is: with one
    /// missing, later ones in its region could not be acknowledged. The manifest and every summary are always essential: behind a
    /// missing extent, recovery finds the records of the region only by the summary.
    fn must_land(&self, id: WriteId) -> bool {
        let needed = !matches!(id, WriteId::Extent(_)) || self.writeback.has_dirty_records();
        needed && !self.cache.is_fenced()
    }

    /// Drops the blocks of an extent that did not reach the device.
    async fn drop_extent(self: &Rc<Self>, ring: Ring, start: Location, records: Vec<u64>) {
        let end = Location(start.0 + u64::from(self.id.layout.extent_bytes) / UNIT_BYTES);
        let records = records.into_iter().filter_map(|bits| Record::unpack(bits).ok());
        for (record, block) in records.flat_map(|record| record.blocks().map(move |block| (record, block))) {
            let block = self.local(block);
            self.load_page(block).await;
            let entry = self.map.lookup(block);
            match entry {
                // A writer of a dirty block handles the failure itself, and a moved dirty block is still at its old location.
                Some(entry) if entry.dirty() => {}
                Some(entry) if (start..end).contains(&entry.location()) => self.drop_if_same(block, entry),
                // The lost record may be the only one that makes older copies stale: queue it again.
                None if record.kind == RecordKind::Tombstone => {
                    self.map.make_stale_again(block, ring);
                    self.settle_later(block);
                }
                _ => {}
            }
        }
    }

    /// Seals the open extents that writers wait for, if that is due: see [`super::group_commit`].
    pub(super) fn commit(self: &Rc<Self>) {
        let writing = self.order.writing();
        match self.commits.due(self.log.awaited(), writing, self.env.now()) {
            Due::Now => self.commits.note_commit(writing),
            Due::Within(left) => return self.commit_within(left),
            Due::Later => return,
        }
        for (len, records) in self.log.seal_wanted().into_iter().flatten() {
            count(&self.stats.counters.ack_extents, 1);
            count(&self.stats.counters.ack_extent_bytes, len);
            count(&self.stats.counters.ack_extent_blocks, records);
        }
        self.pump_writes();
    }

    /// Looks again after some time, unless a task will do so anyway.
    fn commit_within(self: &Rc<Self>, left: Duration) {
        if self.commits.start_timer() {
            let shard = Rc::clone(self);
            self.env.spawn(async move {
                shard.env.sleep(left).await;
                shard.commits.end_timer();
                shard.commit();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::local::Semaphore;
    use flaz_device::{DeviceOp, Env, IoBuf};
    use flaz_sim::{DiskConfig, Rng};
    use futures_util::future::join_all;

    use super::TRIES_MAX;
    use crate::format::geometry::GeometryOptions;
    use crate::policy::Ring;
    use crate::shard::simulated::{Disks, append, contents, raw};
    use crate::units::BLOCK_BYTES;

    /// Extents and their blocks: `depth` writers, whose client and server take some time for each write, on a device with the given
    /// time for a write.
    fn extents_of(depth: usize, device: Duration) -> (u64, u64) {
        const WRITES: u64 = 200;
        let config = DiskConfig {
            write_latency: device..=device,
            ..DiskConfig::fast(64 << 20)
        };
        let disks = Disks::on(1, config, GeometryOptions::default());
        let (client, server) = (Semaphore::new(1), Semaphore::new(1));
        let busy = async |who: &Semaphore, us| {
            let _permit = who.acquire(1).await;
            disks.env.sleep(Duration::from_micros(us)).await;
        };
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(1).fill(&mut data);
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            join_all((0..depth as u64).map(async |writer| {
                for block in (0..WRITES).map(|nth| writer * WRITES + nth) {
                    busy(&client, 8).await;
                    let blocks = block..block + 1;
                    let lock = shard.lock_blocks(&blocks).await;
                    busy(&server, 11).await;
                    let offset = block * BLOCK_BYTES as u64;
                    let written = shard.write_back(offset, IoBuf::copy_of(&data), false, &blocks, &lock);
                    assert!(written.await.is_ok());
                }
            }))
            .await;
            let counters = &shard.stats.counters;
            (counters.ack_extents.get(), counters.ack_extent_blocks.get())
        })
    }

    #[test]
    fn many_writers_share_extents_and_one_waits_for_nobody() {
        for us in [100, 170] {
            let (extents, blocks) = extents_of(16, Duration::from_micros(us));
            assert!(
                blocks >= 6 * extents,
                "{blocks} blocks in {extents} extents at {us} us"
            );
        }
        let (extents, blocks) = extents_of(1, Duration::from_micros(40));
        assert_eq!(extents, blocks);
    }

    /// A dirty block was being moved when the device was fenced. Its old copy is still there.
    #[test]
    fn no_summary_lists_an_extent_refused_by_the_device() {
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(1).fill(&mut data);
        let region = disks.sim.block_on(async {
            let first = disks.shard(1);
            first.writeback.note_dirty_record();
            append(&first, Ring::Main, 0, raw(&data));
            first.log.close_regions();
            assert!(first.make_log_stable().await);
            append(&first, Ring::Main, 0, raw(&data));
            let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
            for nth in 1..=TRIES_MAX {
                disks.cache.fail_nth(DeviceOp::Write, u64::from(nth));
            }
            assert!(!first.make_log_stable().await);
            disks.env.sleep(Duration::from_secs(1)).await;
            assert!(!first.log.writing());
            region
        });
        disks.sim.kill_tasks();
        // Nothing of it has landed.
        disks.cache.poke(disks.region(region), &[0; 2 * BLOCK_BYTES]);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            assert_eq!(contents(&second, 0).await, Some(data));
        });
    }
}
