use std::time::Duration;

use flaz_codec::CodecId;
use flaz_device::{DeviceOp, Env};
use flaz_sim::{DiskConfig, Rng};

use super::*;
use crate::format::extent::HEADER_BYTES_MIN;
use crate::format::geometry::GeometryOptions;
use crate::policy::Ring;
use crate::shard::errors::RecoverError;
use crate::shard::log::{Append, Positions};
use crate::shard::simulated::{Disks, append, contents, raw};
use crate::units::BLOCK_BYTES;

/// The damage to a region that was full and stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// A byte of its summary, outside the trailer.
    Summary,
    /// The trailer.
    Trailer,
    /// A bit of the header of the extent of this number.
    Header(u32),
    /// The first sector of that extent cannot be read.
    Unreadable(u32),
    /// A bit of the copy of that header.
    HeaderCopy(u32),
    /// All of the extent.
    Gone(u32),
    /// The fragment of that extent.
    Fragment(u32),
}
use Damage::{Fragment, Gone, Header, HeaderCopy, Summary as List, Trailer, Unreadable};

fn random_block(seed: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_BYTES];
    Rng::new(seed).fill(&mut data);
    data
}

/// Damages a region of three extents with one dirty block each, and recovers. Returns whether the blocks are found, and
/// a fourth one that was stored after them: in another region, if this one was closed before.
fn recovery_after(closed: bool, damage: &[Damage]) -> Result<Vec<bool>, RecoverError> {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    let data: Vec<Vec<u8>> = (0..4).map(random_block).collect();
    let (start, extents) = disks.sim.block_on(async {
        let first = disks.shard(1);
        let mut extents = Vec::new();
        for block in 0..3 {
            let start = first.log.used_of_open(Ring::Main);
            append(&first, Ring::Main, block, raw(&data[block as usize]));
            assert!(first.make_log_stable().await);
            extents.push(u64::from(start)..u64::from(first.log.used_of_open(Ring::Main)));
        }
        let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
        if closed {
            first.log.close_regions();
        }
        let last = u64::from(first.log.used_of_open(Ring::Main));
        append(&first, Ring::Main, 3, raw(&data[3]));
        assert!(first.make_log_stable().await);
        extents.push(last..u64::from(first.log.used_of_open(Ring::Main)));
        (disks.region(region), extents)
    });
    disks.sim.kill_tasks();
    let end = start + disks.geometry.region_bytes;
    for damage in damage {
        let position = match *damage {
            List => end - 80,
            Trailer => end - 64,
            Header(extent) => start + extents[extent as usize].start + 8,
            Unreadable(extent) => {
                disks.cache.mark_bad(start + extents[extent as usize].start, 512);
                continue;
            }
            Gone(extent) => {
                let extent = extents[extent as usize].clone();
                let zeroes = vec![0; (extent.end - extent.start) as usize];
                disks.cache.poke(start + extent.start, &zeroes);
                continue;
            }
            HeaderCopy(extent) => start + extents[extent as usize].end - 1,
            Fragment(extent) => {
                start + extents[extent as usize].start + disks.geometry.header_bytes() as u64 + 100
            }
        };
        disks.cache.flip_bit(position, 0);
    }
    disks.sim.block_on(async {
        let second = disks.shard(2);
        second.recover(|| ()).await?;
        let counted = second.stats.counters.cache_read_errors.get();
        assert_eq!(counted, disks.cache.stats().errors, "{damage:?}");
        let mut found = Vec::new();
        for (block, data) in data.iter().enumerate() {
            found.push(contents(&second, block as u64).await.as_ref() == Some(data));
        }
        Ok(found)
    })
}

/// Otherwise older copies of the blocks in such an extent would come back.
#[test]
fn header_and_summary_damage_is_found_in_a_full_region() {
    for summary in [List, Trailer] {
        let found = recovery_after(true, &[summary]).expect("the extents say the same");
        assert_eq!(found, [true; 4], "{summary:?}");
        for extent in 0..3 {
            let found = recovery_after(true, &[summary, Header(extent)]).expect("the copy says the same");
            assert_eq!(found, [true; 4], "{summary:?}, extent {extent}");
            let outcome = recovery_after(true, &[summary, Gone(extent)]);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "{summary:?}, extent {extent}: {outcome:?}"
            );
            // Reported when it is read.
            let found =
                recovery_after(true, &[summary, Fragment(extent)]).expect("the headers say what is there");
            let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
            assert_eq!(found, expected, "{summary:?}, extent {extent}");
        }
    }
}

#[test]
fn header_damage_is_repaired_or_found_in_an_open_region() {
    for extent in 0..4 {
        for one in [Header(extent), HeaderCopy(extent)] {
            let found = recovery_after(false, &[one]).expect("the other one says the same");
            assert_eq!(found, [true; 4], "{one:?}");
        }
        // The sector may have a part of the fragment.
        let found = recovery_after(false, &[Unreadable(extent)]).expect("the copy says what is there");
        assert!(
            (0..4).all(|block| found[block as usize] || block == extent),
            "{found:?}"
        );
        for all in [&[Gone(extent)][..], &[Header(extent), HeaderCopy(extent)]] {
            let outcome = recovery_after(false, all);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "{all:?}: {outcome:?}"
            );
        }
    }
    for extent in 0..3 {
        let found = recovery_after(false, &[Fragment(extent)]).expect("the headers say what is there");
        let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
        assert_eq!(found, expected, "extent {extent}");
    }
}

/// The data that a crash left beyond a hole was never stable, and recovery has closed the region before the hole. It
/// must not count as missing if the summary is damaged later.
#[test]
fn what_a_crash_left_behind_a_hole_is_not_missed_later() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    let hole = disks.sim.block_on(async {
        let first = disks.shard(1);
        let mut hole = 0;
        // All in flight together: none of them implies that an earlier one is stable.
        for block in 0..3 {
            if block == 1 {
                hole = first.log.used_of_open(Ring::Main);
            }
            append(
                &first,
                Ring::Main,
                block,
                Append::SameFilled {
                    value: 1,
                    dirty: true,
                },
            );
            first.log.seal_all();
        }
        first.pump_writes();
        disks.env.sleep(Duration::from_secs(1)).await;
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
            Append::SameFilled {
                value: 1,
                dirty: true,
            },
        );
        assert!(second.make_log_stable().await);
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

/// A full region whose end cannot be read, and whose extents reach up to it.
#[test]
fn an_unreadable_summary_of_a_full_region_is_done_without() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    let data = random_block(1);
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

/// A region is flushed with a block in it. Then two extents go to it, the first with a new version of the block, and
/// one to the next region, which lands before them and is flushed. Then the power fails: of the first extent only the
/// header has landed, or, with `gap`, nothing. Returns whether the block is as it was flushed; `None` if they landed in
/// another order.
fn after_a_flush_beside_a_region_that_has_ended(seed: u64, gap: bool) -> Option<Result<bool, RecoverError>> {
    let us = Duration::from_micros;
    let config = DiskConfig {
        write_latency: us(100)..=us(10_000),
        flush_latency: us(100)..=us(100),
        ..DiskConfig::fast(8 << 20)
    };
    let disks = Disks::on(seed, config, GeometryOptions::default());
    let data = random_block;
    let image = disks.sim.block_on(async {
        let first = disks.shard(1);
        first.writeback.note_dirty_record();
        append(&first, Ring::Main, 0, raw(&data(0)));
        assert!(first.make_log_stable().await);
        let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
        let used = first.log.used_of_open(Ring::Main);
        // For the data that a client writes to the other ring.
        let (mut other, mut extents) = (Positions::default(), Vec::new());
        other.raise(Ring::Probation, append(&first, Ring::Probation, 4, raw(&data(4))));
        first.log.seal_all();
        first.pump_writes();
        // The next extent is written twice, so that later ones overtake it.
        disks.cache.fail_nth(DeviceOp::Write, 2);
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
        // As a writer that sets an intent does.
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
        // The failed write may have landed.
        let found = contents(&second, 0).await;
        Ok(found == Some(data(0)) || found == Some(data(1)))
    }))
}

/// A client's flush does not cover a region whose extents and summary are still in flight.
#[test]
fn a_flush_makes_no_region_stable_before_it_landed() {
    for gap in [false, true] {
        let seeds = (0..1000).filter_map(|seed| after_a_flush_beside_a_region_that_has_ended(seed, gap));
        let outcomes: Vec<_> = seeds.collect();
        assert!(outcomes.len() > 5, "{} in that order", outcomes.len());
        let wrong = outcomes.iter().find(|outcome| !matches!(outcome, Ok(true)));
        assert!(wrong.is_none(), "gap: {gap}: {wrong:?}");
    }
}

/// Fills a region: with `raws` raw blocks, and then with same-filled blocks. Returns the region and the number of
/// blocks in it.
async fn fill_region(disks: &Disks, raws: u64) -> (u32, u64) {
    let shard = disks.shard(1);
    let (mut region, mut number) = (None, 0);
    loop {
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(number).fill(&mut data);
        let what = match number < raws {
            true => raw(&data),
            false => Append::SameFilled {
                value: number as u8,
                dirty: true,
            },
        };
        append(&shard, Ring::Main, number, what);
        let now = shard.log.open_numbers()[Ring::Main.index()];
        if now != *region.get_or_insert(now) {
            break;
        }
        number += 1;
        shard.pump_writes();
        disks.env.sleep(Duration::from_millis(1)).await;
    }
    assert!(shard.make_log_stable().await);
    (region.flatten().expect("it was open"), number)
}

/// The extents have the same records, and there may be no space between the last extent and the unreadable sectors.
#[test]
fn a_summary_whose_sectors_cannot_be_read_is_not_needed() {
    let (mut tight, mut raws) = (0, u64::MAX);
    for _ in 0..24 {
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        let (region, records) = disks.sim.block_on(fill_region(&disks, raws));
        disks.sim.kill_tasks();
        raws = raws.min(records) - 1;
        let end = disks.region(region) + disks.geometry.region_bytes;
        let tail = disks
            .cache
            .peek(end - SUMMARY_GUESS_BYTES, SUMMARY_GUESS_BYTES as usize);
        let len = Summary::parse_len(&tail, summary_bytes_max(&disks.geometry)).expect("it is full") as u64;
        let summary = Summary::parse(&disks.cache.peek(end - len, len as usize)).expect("it is whole");
        let used = check_extents(&summary.extents, &disks.geometry).expect("in order");
        let len = len.next_multiple_of(512);
        let gap = disks.geometry.region_bytes - len - used;
        tight += u32::from(gap < disks.geometry.header_bytes() as u64);
        disks.cache.mark_bad(end - len, len);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            for block in 0..records {
                assert!(contents(&second, block).await.is_some(), "block {block}");
            }
        });
    }
    assert!(tight > 0, "there always is");
}

/// An extent counts only with its contents, whether they can be decoded or not: a clean block that needs a dictionary, one that was
/// damaged before it moved here, a note that a block is lost.
#[test]
fn an_extent_counts_if_its_contents_have_landed() {
    let data: Vec<Vec<u8>> = (0..2).map(random_block).collect();
    let with_dictionary = Append::Packed {
        codec: CodecId::ZSTD.with_dictionary(1),
        stored: &data[1][..500],
        plain_crc: 0,
        dirty: false,
    };
    let damaged = Append::Packed {
        codec: CodecId::RAW,
        stored: &data[1],
        plain_crc: 0,
        dirty: true,
    };
    // For block 0; then a good one follows for block 1.
    for what in [raw(&data[1]), with_dictionary, damaged, Append::LOST] {
        for torn in [false, true] {
            let disks = Disks::new(8 << 20, GeometryOptions::default());
            disks.sim.block_on(async {
                let first = disks.shard(1);
                append(&first, Ring::Main, 0, raw(&data[0]));
                append(&first, Ring::Main, 1, raw(&data[0]));
                assert!(first.make_log_stable().await);
                let start = first.log.used_of_open(Ring::Main);
                append(&first, Ring::Main, 0, what);
                first.log.seal_all();
                append(&first, Ring::Main, 1, raw(&data[1]));
                first.log.seal_all();
                first.pump_writes();
                disks.env.sleep(Duration::from_secs(1)).await;
                if torn {
                    let region = first.log.open_numbers()[Ring::Main.index()];
                    let extent = disks.region(region.expect("one is open")) + u64::from(start);
                    disks.cache.flip_bit(extent + HEADER_BYTES_MIN as u64 + 300, 0);
                }
                let second = disks.recovered(2).await;
                let version = usize::from(!torn);
                assert_eq!(contents(&second, 1).await.as_ref(), Some(&data[version]));
                let is_old = contents(&second, 0).await.as_ref() == Some(&data[0]);
                assert_eq!(is_old, torn, "{what:?}");
            });
        }
    }
}

/// Regions are taken over in the order of their generations: an extent that claims to be older than its region would count after newer
/// records of its blocks.
#[test]
fn an_extent_that_is_not_younger_than_its_region_does_not_count() {
    let disks = Disks::new(8 << 20, GeometryOptions::default());
    let (region, entry) = disks.sim.block_on(async {
        let first = disks.shard(1);
        append(&first, Ring::Main, 0, Append::Tombstone);
        let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
        first.log.close_regions();
        assert!(first.make_log_stable().await);
        let manifest = disks.shard(2).load_manifest().await.expect("it is well");
        (region, manifest.entries[region as usize])
    });
    let place = RegionPlace {
        layout: &disks.geometry,
        cache_id: 7,
        shard: 0,
        number: region,
    };
    let reader = Reader {
        device: &disks.cache,
        place: &place,
        entry: &entry,
        failed: &std::cell::Cell::new(0),
        bytes_read: 0,
    };
    let end = disks.region(region) + disks.geometry.region_bytes;
    let tail = disks
        .cache
        .peek(end - SUMMARY_GUESS_BYTES, SUMMARY_GUESS_BYTES as usize);
    let header_bytes = disks.geometry.header_bytes();
    let extent = disks.cache.peek(disks.region(region), header_bytes);
    for (later, counts) in [(0, false), (1, true)] {
        let sequence = Sequence(entry.generation.0 + later);
        let mut summary = Summary::parse(&tail).expect("it is whole");
        summary.extents[0].sequence = sequence;
        assert_eq!(reader.check(summary).is_some(), counts, "{later} later");
        let mut header = ExtentHeader::parse(&extent, header_bytes).expect("it is whole");
        header.sequence = sequence;
        assert_eq!(reader.is_ours(&header, 0, None), counts, "{later} later");
    }
}
