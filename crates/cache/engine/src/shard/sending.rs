//! Extents and summaries on their way to the cache device, and what becomes of those that fail.

use std::cell::RefCell;
use std::rc::Rc;

use flaz_device::{DeviceError, Env, IoBuf};

use super::log::{Copies, Lsn, PendingWrite, WriteId};
use super::{Platform, Shard};
use crate::format::extent::{ExtentHeader, Record, RecordKind};
use crate::planted::{PlantedBug, planted};
use crate::stats::{count, raise};
use crate::units::{Location, UNIT_BYTES};

/// Times that an extent or a summary is written, where much depends on it, before the cache device is fenced.
const TRIES_MAX: u32 = 3;

impl<P: Platform> Shard<P> {
    /// Sends queued writes of the log to the device, as far as the limit allows. Called whenever some were queued, so that
    /// the peak is that of the queue.
    pub(super) fn pump_writes(self: &Rc<Self>) {
        raise(&self.stats.peaks.cache_writes, self.log.writes_in_flight() as u64);
        while let Some(write) = self.log.take_write() {
            let shard = Rc::clone(self);
            self.env.spawn(async move {
                let PendingWrite { id, bytes } = write;
                // Nothing comes back from what was never sent: its writers may go to the origin.
                let result = match shard.log.begin_write(id, shard.cache.is_fenced()) {
                    true => Some(shard.write_out(id, bytes).await),
                    false => None,
                };
                shard.write_ended(id, result);
                shard.pump_writes();
            });
        }
    }

    /// Writes something of the log, once more where much depends on it.
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
                // A region that the manifest calls full is all there. It may have an extent that the device was fenced for.
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
            // Once the device is fenced, only extents come here to which dirty blocks had been moved by then.
            let (back, result) = self.cache.write_fenced(position, bytes, false).await;
            buf.replace(Some(back));
            result
        })
        .await
    }

    /// Writes once, or more often if the cache is worth nothing without this write; then the device is fenced.
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

    /// What follows when a write has ended, or was withheld (`result` is none).
    fn write_ended(self: &Rc<Self>, id: WriteId, result: Option<Result<(), DeviceError>>) {
        let there = matches!(result, Some(Ok(())));
        if let Some(Err(error)) = result {
            self.cache_error(&error);
        }
        match id {
            WriteId::Extent(_) if there => count(&self.stats.counters.extents_written, 1),
            WriteId::Extent(lsn) => {
                self.drop_extent(lsn);
                // Recovery finds nothing behind a missing extent: what comes next goes elsewhere.
                self.log.abandon(lsn);
            }
            WriteId::Opening { .. } | WriteId::Summary { .. } => {}
        }
        self.log.end_write(id);
        self.commit_what_waits();
        self.log.wake();
    }

    /// Whether the cache is worth nothing without this write. Where blocks may be dirty, every extent: with one missing,
    /// what follows it in its region could not be acknowledged. And the manifest always, and every summary: where it follows
    /// an extent that is missing, recovery finds nothing of the region without it.
    fn must_land(&self, id: WriteId) -> bool {
        let needed = !matches!(id, WriteId::Extent(_)) || self.writeback.has_dirty_records();
        needed && !self.cache.is_fenced()
    }

    /// Forgets the blocks of an extent that did not reach the device.
    fn drop_extent(self: &Rc<Self>, lsn: Lsn) {
        let Some((ring, start, records)) = self.log.records_of(lsn) else {
            return;
        };
        let end = Location(start.0 + u64::from(self.id.geometry.extent_bytes) / UNIT_BYTES);
        for record in records.into_iter().filter_map(|bits| Record::unpack(bits).ok()) {
            let block = self.local(record.block);
            let entry = self.map.lookup(block);
            match entry {
                // Whoever wrote it there sees to it that it is read no more, and whoever moved it there has left the same
                // where it was.
                Some(entry) if entry.dirty() => {}
                Some(entry) if (start..end).contains(&entry.location()) => self.drop_if_same(block, entry),
                // What was to say so is lost, and may be all that did: say it again.
                None if record.kind == RecordKind::Tombstone => {
                    self.map.make_stale_again(block, ring);
                    self.settle_later(block);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::{DeviceOp, Env};
    use flaz_sim::Rng;

    use super::TRIES_MAX;
    use crate::format::geometry::GeometryOptions;
    use crate::policy::Ring;
    use crate::shard::simulated::{Disks, append, contents, raw};
    use crate::units::BLOCK_BYTES;

    /// A dirty block was being moved when the device was fenced. Where it was it still is.
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
