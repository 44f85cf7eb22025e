//! What recovery does not find and should: extents that were stable, behind one that is damaged.
//!
//! Where a region has no summary that can be read, it ends at the first place without an extent: a write that the power cut short
//! looks like that, and so does damage. What is known to have been stable tells them apart: the marks among the intents,
//! what extents behind that place say, and what is left of the summary.

use flaz_device::DeviceError;
use flaz_device::deadline::is_timeout;

use super::scan::Found;
use super::{Platform, Shard};
use crate::format::extent::ExtentHeader;
use crate::format::intent::DurableMark;
use crate::format::summary::Promise;
use crate::policy::Ring;
use crate::units::{Epoch, Sequence};

/// What an extent must follow to be of a filling.
#[derive(Clone, Copy)]
pub(super) struct Filling {
    pub(super) ring: Ring,
    pub(super) fill: Sequence,
    /// Of the extent before it.
    pub(super) last: Sequence,
}

impl Filling {
    pub(super) fn of(header: &ExtentHeader) -> Self {
        Self {
            ring: header.ring,
            fill: header.fill,
            last: header.sequence,
        }
    }
}

impl<P: Platform> Shard<P> {
    /// Whether a region without a readable summary has extents that were stable, and that the walk did not come to: one before
    /// them is damaged. Older copies of their blocks would come back.
    ///
    /// What is left of the summary may say so, or the headers of extents behind the damaged one. Where the first header is
    /// missing the latter say nothing: what a discard leaves may be anything.
    pub(super) async fn hides_stable(
        &self,
        number: u32,
        found: Option<&Found>,
        promise: Option<Promise>,
        valid_from: Epoch,
        marks: [DurableMark; 2],
    ) -> Result<bool, DeviceError> {
        let whole = |ring: Ring, fill| is_stable(marks[ring.index()], fill, self.id.geometry.region_bytes);
        if let Some(promise) = promise.filter(|promise| whole(promise.ring, promise.fill)) {
            let counts = promise.fill >= Sequence::first_of(valid_from);
            let (extents, records) = found.map_or((0, 0), |found| (found.extents.len(), found.records.len()));
            let same = found.is_none_or(|found| found.fill == promise.fill);
            // Either of them may be what is damaged of the summary.
            if counts && same && promise.extents as usize > extents && promise.records as usize > records {
                return Ok(true);
            }
        }
        let Some(found) = found else { return Ok(false) };
        let filling = Filling {
            ring: found.ring,
            fill: found.fill,
            last: found.last_sequence(),
        };
        let used = u64::from(found.used);
        let told = self.told_stable(number, used, filling, valid_from).await?;
        Ok(told.is_some_and(|told| whole(found.ring, found.fill) || told > used))
    }

    /// Up to where a region was stable, as the headers of this filling tell that can be found from `from` on; nothing, if there
    /// is none. Each of them is looked for as far as an extent and a header reach.
    pub(super) async fn told_stable(
        &self,
        number: u32,
        from: u64,
        mut filling: Filling,
        valid_from: Epoch,
    ) -> Result<Option<u64>, DeviceError> {
        let (region_bytes, sector) = (
            self.id.geometry.region_bytes,
            u64::from(self.id.geometry.sector_bytes),
        );
        let mut told = None;
        let mut from = from;
        while from < region_bytes {
            let len = self.hidden_bytes_max().min(region_bytes - from);
            let bytes = match self.read_region(number, from, len).await {
                Ok(bytes) => bytes,
                Err(error) if is_timeout(&error) => return Err(error),
                // It may be where the summary was. What the walk needs, it has read.
                Err(_) => break,
            };
            let header_at = |at: u64| {
                self.header_at(
                    number,
                    from + at,
                    &bytes[at as usize..],
                    valid_from,
                    Some(filling),
                )
            };
            let header = (0..len)
                .step_by(sector as usize)
                .find_map(|at| Some((at, header_at(at)?)));
            let Some((at, header)) = header else { break };
            told = told.max(Some(u64::from(header.stable_bytes)));
            filling = Filling::of(&header);
            from += at + u64::from(header.extent_bytes);
        }
        Ok(told)
    }

    /// How far behind a damaged header the next one ends.
    pub(super) fn hidden_bytes_max(&self) -> u64 {
        let bytes = u64::from(self.id.geometry.extent_bytes) + self.id.geometry.header_bytes() as u64;
        bytes.next_multiple_of(u64::from(self.id.geometry.sector_bytes))
    }
}

/// Whether what ends at `end` in filling `fill` was stable when the mark was written, which goes with its summary: all fillings
/// of that ring before it were.
pub(super) fn is_stable(mark: DurableMark, fill: Sequence, end: u64) -> bool {
    fill < mark.fill || fill == mark.fill && end <= u64::from(mark.used)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::{DiskConfig, Rng};

    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::log::{Append, Positions};
    use crate::shard::recover::RecoverError;
    use crate::shard::simulated::{Disks, append, contents, raw};
    use crate::units::BLOCK_BYTES;

    /// What is damaged of a region that was full and stable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Damage {
        /// A byte of its summary that is not in the trailer.
        Summary,
        /// The trailer.
        Trailer,
        /// A bit of the header of its extent of this number.
        Header(u32),
        /// All of that header.
        Gone(u32),
        /// The fragment of that one.
        Fragment(u32),
    }
    use Damage::{Fragment, Gone, Header, Summary as List, Trailer};

    /// Recovery after a region of three extents, with one dirty block each, was damaged in this way, and whether it finds them,
    /// and a fourth one that was stored after them: in another region, if this one was closed before.
    fn recovery_after(closed: bool, damage: &[Damage]) -> Result<Vec<bool>, RecoverError> {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let data: Vec<Vec<u8>> = (0..4)
            .map(|seed| {
                let mut data = vec![0; BLOCK_BYTES];
                Rng::new(seed).fill(&mut data);
                data
            })
            .collect();
        let (start, extents) = disks.sim.block_on(async {
            let first = disks.shard(1);
            let mut extents = Vec::new();
            for block in 0..3 {
                extents.push(first.log.durable_marks()[Ring::Main.index()].used);
                append(&first, Ring::Main, block, raw(&data[block as usize]));
                assert!(first.make_log_stable().await);
            }
            let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
            if closed {
                first.log.close_regions();
            }
            let last = first.log.durable_marks()[Ring::Main.index()].used;
            extents.push(if closed { 0 } else { last });
            append(&first, Ring::Main, 3, raw(&data[3]));
            assert!(first.make_log_stable().await);
            if closed {
                first.write_intents(0, &[], true).await.expect("it is well");
            }
            (disks.region(region), extents)
        });
        disks.sim.kill_tasks();
        let end = start + disks.geometry.region_bytes;
        for damage in damage {
            let position = match *damage {
                List => end - 80,
                Trailer => end - 64,
                Header(extent) => start + u64::from(extents[extent as usize]) + 8,
                Gone(extent) => {
                    let header = start + u64::from(extents[extent as usize]);
                    disks.cache.poke(header, &[0; 512]);
                    continue;
                }
                Fragment(extent) => {
                    start + u64::from(extents[extent as usize]) + disks.geometry.header_bytes() as u64 + 100
                }
            };
            disks.cache.flip_bit(position, 0);
        }
        disks.sim.block_on(async {
            let second = disks.shard(2);
            second.recover(|| ()).await?;
            let mut found = Vec::new();
            for (block, data) in data.iter().enumerate() {
                found.push(contents(&second, block as u64).await.as_ref() == Some(data));
            }
            Ok(found)
        })
    }

    /// Older copies of what such an extent hides would come back.
    #[test]
    fn header_and_summary_damage_is_found_in_a_full_region() {
        for summary in [List, Trailer] {
            let found = recovery_after(true, &[summary]).expect("the extents say the same");
            assert_eq!(found, [true; 4], "{summary:?}");
            for extent in 0..3 {
                // Of the first and the last one only the summary knows.
                if summary == List || extent == 1 {
                    let outcome = recovery_after(true, &[summary, Gone(extent)]);
                    assert!(
                        matches!(outcome, Err(RecoverError::Damaged { .. })),
                        "{summary:?}, extent {extent}: {outcome:?}"
                    );
                }
                // It is told when it is read.
                let found = recovery_after(true, &[summary, Fragment(extent)])
                    .expect("the headers say what is there");
                let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
                assert_eq!(found, expected, "{summary:?}, extent {extent}");
            }
        }
    }

    /// No mark tells that it was stable, but what was stored behind it does.
    #[test]
    fn header_damage_is_found_in_an_open_region() {
        for extent in 0..4 {
            let outcome = recovery_after(false, &[Header(extent)]);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "extent {extent}: {outcome:?}"
            );
        }
        // Nothing of it is there: what lies behind tells, unless it is the first one of its region.
        for extent in 1..3 {
            let outcome = recovery_after(false, &[Gone(extent)]);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "extent {extent}: {outcome:?}"
            );
        }
        for extent in 0..3 {
            let found = recovery_after(false, &[Fragment(extent)]).expect("the headers say what is there");
            let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
            assert_eq!(found, expected, "extent {extent}");
        }
    }

    /// What a crash has left behind a hole was never stable, and recovery has closed the region before it. That must not be
    /// taken for something that damage hides, should the summary be damaged later.
    #[test]
    fn what_a_crash_left_behind_a_hole_is_not_missed_later() {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let hole = disks.sim.block_on(async {
            let first = disks.shard(1);
            let mut hole = 0;
            // On their way together: none of them says that one before it was stable.
            for block in 0..3 {
                if block == 1 {
                    hole = first.log.durable_marks()[Ring::Main.index()].used;
                }
                append(
                    &first,
                    Ring::Main,
                    block,
                    Append::Fill {
                        value: 1,
                        dirty: true,
                    },
                );
                first.log.seal_all();
            }
            assert!(first.make_log_stable().await);
            u64::from(hole)
        });
        disks.sim.kill_tasks();
        let start = disks.region(0);
        disks.cache.poke(start + hole, &[0; 512]);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            append(
                &second,
                Ring::Main,
                3,
                Append::Fill {
                    value: 1,
                    dirty: true,
                },
            );
            assert!(second.make_log_stable().await);
            second.write_intents(0, &[], true).await.expect("it is well");
        });
        disks.sim.kill_tasks();
        disks.cache.flip_bit(start + disks.geometry.region_bytes - 80, 0);
        disks.sim.block_on(async {
            let third = disks.recovered(3).await;
            for (block, value) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
                assert_eq!(
                    contents(&third, block).await,
                    Some(vec![value; BLOCK_BYTES]),
                    "block {block}"
                );
            }
        });
    }

    /// A region of which the end alone cannot be read, and that is full up to there.
    #[test]
    fn an_unreadable_summary_of_a_full_region_is_done_without() {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(1).fill(&mut data);
        let (region, blocks) = disks.sim.block_on(async {
            let first = disks.shard(1);
            let open = || first.log.open_numbers()[Ring::Main.index()];
            append(&first, Ring::Main, 0, raw(&data));
            let region = open().expect("one is open");
            let mut blocks = 1;
            while open() == Some(region) {
                append(&first, Ring::Main, blocks, raw(&data));
                blocks += 1;
                if blocks % 8 == 0 {
                    assert!(first.make_log_stable().await);
                }
            }
            assert!(first.make_log_stable().await);
            first.write_intents(0, &[], true).await.expect("it is well");
            (disks.region(region), blocks)
        });
        disks.sim.kill_tasks();
        let sector = u64::from(disks.geometry.sector_bytes);
        disks
            .cache
            .mark_bad(region + disks.geometry.region_bytes - sector, sector);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            for block in 0..blocks {
                assert_eq!(
                    contents(&second, block).await.as_ref(),
                    Some(&data),
                    "block {block}"
                );
            }
        });
    }

    /// A region is flushed with a block in it, then two extents go to it, the first with the block anew, and one to the region
    /// behind it, which lands before them and is flushed. Then the power fails: of the first extent the header alone has
    /// landed, or, with `gap`, nothing. Whether the block is as it was flushed; none if they landed in another order.
    fn after_a_flush_beside_a_region_that_has_ended(
        seed: u64,
        gap: bool,
    ) -> Option<Result<bool, RecoverError>> {
        let us = Duration::from_micros;
        let config = DiskConfig {
            write_latency: us(100)..=us(10_000),
            flush_latency: us(100)..=us(100),
            ..DiskConfig::fast(8 << 20)
        };
        let disks = Disks::on(seed, config, GeometryWish::default());
        let data = |seed| {
            let mut data = vec![0; BLOCK_BYTES];
            Rng::new(seed).fill(&mut data);
            data
        };
        let image = disks.sim.block_on(async {
            let first = disks.shard(1);
            first.writeback.note_dirty_record();
            append(&first, Ring::Main, 0, raw(&data(0)));
            assert!(first.make_log_stable().await);
            let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
            let used = first.log.durable_marks()[Ring::Main.index()].used;
            // Of what a client writes to the other ring.
            let (mut other, mut extents) = (Positions::default(), Vec::new());
            other.raise(Ring::Probation, append(&first, Ring::Probation, 4, raw(&data(4))));
            first.log.seal_all();
            first.pump_writes();
            for (block, seed) in [(0, 1), (2, 2), (3, 3)] {
                extents.push(append(&first, Ring::Main, block, raw(&data(seed))));
                first.log.seal_all();
                if block == 2 {
                    first.log.close_regions();
                }
                first.pump_writes();
            }
            while first.log.is_under_way(extents[2]) || !first.log.has_landed(&other) {
                disks.env.sleep(us(10)).await;
            }
            first.log.promise(&other);
            first.flush().await.expect("flushes");
            // As some writer does that sets an intent.
            first.write_intents(0, &[], true).await.expect("it is well");
            if !first.log.is_under_way(extents[0]) {
                return None;
            }
            let start = (disks.region(region) + u64::from(used)) / 512;
            let header = start..start + disks.geometry.header_bytes() as u64 / 512;
            let extent = start..header.end + 9;
            Some(disks.cache.moment().cut(|_, sector| match gap {
                true => !extent.contains(&sector),
                false => header.contains(&sector),
            }))
        })?;
        disks.sim.kill_tasks();
        disks.cache.restore(&image);
        Some(disks.sim.block_on(async {
            let second = disks.shard(2);
            second.recover(|| ()).await?;
            Ok(contents(&second, 0).await == Some(data(0)))
        }))
    }

    /// A flush of a client says nothing of a region whose extents and summary are still on their way.
    #[test]
    fn a_flush_makes_no_region_stable_before_it_landed() {
        for gap in [false, true] {
            let seeds = (0..100).filter_map(|seed| after_a_flush_beside_a_region_that_has_ended(seed, gap));
            let outcomes: Vec<_> = seeds.collect();
            assert!(outcomes.len() > 5, "{} in that order", outcomes.len());
            let wrong = outcomes.iter().find(|outcome| !matches!(outcome, Ok(true)));
            assert!(wrong.is_none(), "gap: {gap}: {wrong:?}");
        }
    }
}
