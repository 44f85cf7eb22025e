use super::*;
use crate::format::geometry::GeometryOptions;
use crate::units::Epoch;

const BLANK: Append<'static> = Append::SameFilled {
    value: 0,
    dirty: true,
};

const RAW: Append<'static> = Append::Packed {
    codec: flaz_codec::CodecId::RAW,
    stored: &[0; 4096],
    plain_crc: 0,
    dirty: false,
};

fn log() -> SegmentLog {
    let wish = GeometryOptions {
        shard_count: Some(1),
        ..GeometryOptions::default()
    };
    let geometry = Geometry::plan(8 << 20, 512, 16 << 20, wish).expect("fits");
    let identity = LogIdentity {
        cache: 7,
        shard: 0,
        epoch: Epoch(1),
    };
    SegmentLog::new(geometry, identity)
}

/// Appends a record, and gives the position of `ring` that covers it.
fn append(log: &SegmentLog, ring: Ring, block: u64) -> Positions {
    let appended = log.append(ring, BlockNumber(block), BLANK, Class::Client);
    let mut upto = Positions::default();
    upto.raise(ring, appended.expect("there is room").lsn);
    upto
}

/// Gives the device the next write but for those of the manifest, which have ended.
fn send(log: &SegmentLog) -> WriteId {
    loop {
        let write = log.take_write().expect("one is queued");
        assert!(log.begin_write(write.id, false));
        if !matches!(write.id, WriteId::Opening { .. }) {
            return write.id;
        }
        let told = log.state.borrow().told(|_| true);
        log.state.borrow_mut().manifest_written(&told, false);
        log.end_write(write.id);
    }
}

/// An extent is not sent before the manifest has its region.
#[test]
fn extents_wait_for_the_manifest_to_have_their_region() {
    let log = log();
    append(&log, Ring::Main, 0);
    log.seal_all();
    let opening = log.take_write().expect("the region is opened").id;
    assert!(matches!(opening, WriteId::Opening { .. }));
    assert!(log.take_write().is_none(), "the extent waits");
    assert!(log.begin_write(opening, false));
    log.end_write(opening);
    assert!(matches!(send(&log), WriteId::Extent(_)));
}

/// What the manifest is told of a region from its opening until it is free again.
#[test]
fn the_manifest_follows_the_life_of_a_region() {
    let log = log();
    let state_of = || (log.entry(0).state, log.entry(0).len);
    assert_eq!(state_of(), (RegionUse::Free, 0));
    append(&log, Ring::Main, 0);
    log.close_regions();
    let extent = send(&log);
    log.note_flushed(&log.landed_point());
    assert_eq!(state_of(), (RegionUse::Open, 0), "nothing has landed");
    log.end_write(extent);
    log.note_flushed(&log.landed_point());
    let len = log.entry(0).len;
    assert!(len > 0);
    assert_eq!(state_of(), (RegionUse::Open, len), "it has no summary yet");
    let summary = send(&log);
    log.note_whole(0);
    assert_eq!(state_of(), (RegionUse::Full, len));
    log.end_write(summary);
    let victim = log.take_oldest(Ring::Main).expect("it is full");
    assert_eq!(state_of(), (RegionUse::Reclaiming, len));
    log.put_back(victim);
    assert_eq!(
        state_of(),
        (RegionUse::Reclaiming, len),
        "what was dropped stays dropped"
    );
    let victim = log.take_oldest(Ring::Main).expect("it is full");
    log.empty_victim();
    assert_eq!(state_of(), (RegionUse::Free, 0));
    log.free(victim);
    assert_eq!(state_of(), (RegionUse::Free, 0));
}

/// A region that does not count after a crash takes what reclaim moves. While it does not suffice, another region becomes free, and takes
/// the rest. The first one counts when the reclaim has ended, and not before.
#[test]
fn one_region_does_not_count_until_the_reclaim_has_ended() {
    let log = log();
    let drain = || {
        while log.writing() {
            let id = send(&log);
            log.end_write(id);
        }
    };
    let moved = || {
        let appended = log.append(Ring::Main, BlockNumber(1), BLANK, Class::Reclaim);
        appended.expect("there is room");
    };
    let recovering = || -> Vec<u32> {
        let all = 0..log.region_count() as u32;
        all.filter(|number| log.entry(*number).state == RegionUse::Recovering)
            .collect()
    };
    while log.free_regions() > 1 {
        moved();
        log.close_regions();
        drain();
    }
    let victim = log.take_oldest(Ring::Main).expect("it is full");
    log.hold_for_reclaim(true);
    moved();
    let first = recovering();
    assert_eq!(first.len(), 1);
    log.close_regions();
    drain();
    log.grow(log.region_count() as u32 + 1, false);
    moved();
    assert_eq!(recovering(), first, "what moves to the other one counts at once");
    assert_eq!(log.end_recovering(), Some(first[0]));
    assert!(recovering().is_empty(), "both count");
    log.empty_victim();
    log.free(victim);
    assert!(!log.awaits_reclaim());
}

/// A dictionary's number is free when each region that may have fragments of it was freed.
#[test]
fn a_dictionary_is_in_use_as_long_as_a_region_may_have_its_fragments() {
    let log = log();
    let data = [0; 100];
    let stored = |codec| Append::Packed {
        codec,
        stored: &data,
        plain_crc: 0,
        dirty: false,
    };
    let zstd = flaz_codec::CodecId::ZSTD;
    let is_unused = || [0, 1].map(|number| log.is_dictionary_unused(number));
    let append = |ring, codec| {
        let appended = log.append(ring, BlockNumber(1), stored(codec), Class::Reclaim);
        appended.expect("there is room");
    };
    assert_eq!(is_unused(), [true, true], "nothing was stored");
    append(Ring::Probation, zstd);
    append(Ring::Main, flaz_codec::CodecId::LOST);
    assert_eq!(is_unused(), [true, true], "without a dictionary");
    append(Ring::Main, zstd.with_dictionary(1));
    assert_eq!(is_unused(), [true, false]);
    log.close_regions();
    append(Ring::Main, zstd.with_dictionary(0));
    log.close_regions();
    while log.writing() {
        let id = send(&log);
        log.end_write(id);
    }
    for expected in [[false, true], [true, true]] {
        // The first of main, then the second.
        let victim = log.take_oldest(Ring::Main).expect("it is full");
        assert_ne!(is_unused(), expected, "still there");
        log.empty_victim();
        log.free(victim);
        // The region of probation is older than both.
        let victim = log.take_oldest(Ring::Probation);
        if let Some(victim) = victim {
            log.empty_victim();
            log.free(victim);
        }
        assert_eq!(is_unused(), expected);
    }
}

#[test]
fn an_extent_lands_after_those_before_it_in_its_ring() {
    let log = log();
    let first = append(&log, Ring::Main, 0);
    log.seal_all();
    let second = append(&log, Ring::Main, 1);
    let other = append(&log, Ring::Probation, 2);
    log.seal_all();
    let ids = [send(&log), send(&log), send(&log)];
    for id in &ids[1..] {
        log.end_write(*id);
    }
    assert!(log.has_landed(&other));
    assert!(!log.has_landed(&first) && !log.has_landed(&second));
    log.end_write(ids[0]);
    assert!(log.has_landed(&first) && log.has_landed(&second));
}

#[test]
fn what_is_promised_is_kept_after_a_flush_that_began_later() {
    let log = log();
    assert!(log.keeps_promises());
    let upto = append(&log, Ring::Main, 0);
    log.seal_all();
    let before = log.landed_point();
    let id = send(&log);
    log.end_write(id);
    log.promise(&upto);
    assert!(!log.keeps_promises());
    log.raise_stable(&before);
    assert!(!log.keeps_promises());
    log.raise_stable(&log.landed_point());
    assert!(log.keeps_promises() && log.is_stable(Ring::Main, upto.at(Ring::Main)));
}

#[test]
fn what_is_behind_a_lost_extent_lands_with_the_summary() {
    let log = log();
    append(&log, Ring::Main, 0);
    log.seal_all();
    let behind = append(&log, Ring::Main, 1);
    log.seal_all();
    let [lost, landed] = [send(&log), send(&log)];
    let WriteId::Extent(lsn) = lost else {
        panic!("an extent goes first");
    };
    log.abandon(lsn);
    log.end_write(lost);
    log.end_write(landed);
    assert!(!log.has_landed(&behind));
    let point = log.seal_for_flush();
    assert!(!log.has_ended(&point));
    let summary = send(&log);
    assert!(matches!(summary, WriteId::Summary { .. }));
    log.end_write(summary);
    assert!(log.has_landed(&behind) && log.has_ended(&point));
    assert_eq!(log.full_regions(Ring::Main), 1);
}

#[test]
fn a_fenced_device_is_given_only_what_reclaim_moved() {
    let log = log();
    let upto = append(&log, Ring::Probation, 0);
    log.seal_all();
    let moved = log.append(Ring::Main, BlockNumber(1), BLANK, Class::Reclaim);
    let moved = moved.expect("there is room").lsn;
    log.seal_all();
    assert!(log.is_unsent(upto.at(Ring::Probation)) && !log.is_unsent(moved));
    // Two regions are opened, and two extents written.
    for _ in 0..4 {
        let id = log.take_write().expect("one is queued").id;
        let sent = log.begin_write(id, true);
        assert_eq!(sent, id == WriteId::Extent(moved));
        log.end_write(id);
    }
    assert!(!log.has_landed(&upto) && !log.writing());
}

/// Ages of blocks in probation follow from what is appended to probation, whatever is appended to main. Regions count whole, also
/// those that are closed early.
#[test]
fn ages_in_probation_count_what_came_after() {
    let log = log();
    let region_bytes = log.layout.region_bytes;
    let window = log.region_count() * region_bytes / crate::policy::WINDOW_SHARE;
    let mut rng = flaz_sim::Rng::new(1);
    let (mut blocks, mut regions, mut too_old) = (Vec::new(), vec![], 0);
    loop {
        let ring = Ring::ALL[rng.below(2) as usize];
        let ages =
            |blocks: &[Location]| -> Vec<_> { blocks.iter().map(|at| log.age_in_probation(*at)).collect() };
        let before = ages(&blocks);
        let Some(new) = log.append(ring, BlockNumber(1), RAW, Class::Client) else {
            break;
        };
        let at = new.entry.location();
        while let Some(write) = log.take_write() {
            assert!(log.begin_write(write.id, false));
            log.end_write(write.id);
        }
        if ring == Ring::Main {
            assert_eq!(log.age_in_probation(at), None, "it is in main");
            assert_eq!(ages(&blocks), before, "main has grown, not probation");
            continue;
        }
        blocks.push(at);
        let region = log.region_of(at);
        if regions.last() != Some(&region) {
            regions.push(region);
        }
        for (block, age) in blocks.iter().zip(ages(&blocks)) {
            let place = regions
                .iter()
                .rev()
                .position(|&region| region == log.region_of(*block));
            let after = place.expect("in one of them") as u64 * region_bytes;
            let offset = |at: Location| at.offset() % region_bytes;
            match age {
                // The block that was appended last has a header and its contents.
                Some(age) => assert_eq!(age, after + offset(at) + 8 + 4096 - offset(*block)),
                None => {
                    assert!(
                        after >= window,
                        "{after} bytes came after it, {window} are the window"
                    );
                    too_old += 1;
                }
            }
        }
        if rng.below(40) == 0 {
            log.close_regions();
        }
    }
    assert!(
        blocks.len() > 300 && regions.len() > 10 && too_old > 0,
        "{regions:?}"
    );
}

/// Records that no writer waits for are neither sealed for one, nor waited for.
#[test]
fn extents_without_a_writer_are_not_awaited() {
    let log = log();
    append(&log, Ring::Main, 0);
    assert!(log.awaited().is_none());
    log.seal_all();
    let other = send(&log);
    log.want(&append(&log, Ring::Probation, 1));
    let awaited = log.awaited().expect("a writer waits");
    assert!(awaited.records == 1 && !awaited.in_flight, "{awaited:?}");
    let sealed = log.seal_wanted().map(|sealed| sealed.map(|(_, records)| records));
    assert_eq!(sealed[Ring::Probation.index()], Some(1));
    assert!(log.awaited().is_none(), "nothing is open");
    log.want(&append(&log, Ring::Probation, 2));
    assert!(log.awaited().is_some_and(|awaited| awaited.in_flight));
    log.end_write(other);
}

/// Extents of a single writer have a short header; those of many have space for as many records as there can be.
#[test]
fn the_header_follows_the_records_of_the_last_extent() {
    let log = log();
    let longest = log.layout.header_bytes();
    let mut block = 0;
    let mut extent = |records: u64| {
        for _ in 0..records {
            block += 1;
            append(&log, Ring::Main, block);
        }
        log.seal_all();
        let state = log.state.borrow();
        let (_, extents, _) = state.open_regions().next().expect("one is open");
        usize::from(extents.last().expect("it was closed").header_bytes)
    };
    assert_eq!(extent(1), longest, "nothing is known");
    assert_eq!(extent(1), 128);
    assert_eq!(extent(8), 128);
    assert_eq!(extent(8), 256);
    assert_eq!(extent(20), 256);
    assert_eq!(extent(1), longest);
}

/// The share of fragments counts what regions have besides: headers, summaries, and what is lost at the ends.
#[test]
fn the_share_of_fragments_is_what_they_take_of_regions() {
    let log = log();
    let region_bytes = log.layout.region_bytes;
    let (mut blocks, mut regions) = (0, Vec::new());
    while regions.len() <= 9 {
        let appended = log.append(Ring::Main, BlockNumber(1), RAW, Class::Client);
        let at = appended.expect("regions are free").entry.location();
        if regions.last() != Some(&log.region_of(at)) {
            regions.push(log.region_of(at));
            let share = log.fragment_share();
            assert_eq!(share.is_some(), regions.len() > 4, "{regions:?}");
            if let Some(share) = share {
                let all = (regions.len() as u64 - 1) * region_bytes;
                let expected = (blocks * (8 + 4096)) as f64 / all as f64;
                assert!((share - expected).abs() < 0.005, "{share}, expected {expected}");
            }
        }
        blocks += 1;
        while let Some(write) = log.take_write() {
            assert!(log.begin_write(write.id, false));
            log.end_write(write.id);
        }
        if blocks % 100 == 0 && regions.len() > 4 {
            let share = log.fragment_share().expect("regions were closed");
            assert!((0.9..0.98).contains(&share), "{share}");
        }
        // Extents of a few blocks lose more than full ones.
        if regions.len() % 2 == 0 && blocks % 3 == 0 {
            log.seal_all();
        }
    }
}
