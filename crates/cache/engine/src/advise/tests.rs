//! Tests of the advisor alone, on references whose hit ratios are known from simulated caches with all blocks.

use flaz_codec::Effort;
use flaz_device::Nanos;
use flaz_random::Random;

use super::*;
use crate::policy::block_key;

const NOW: Nanos = Nanos(1);
const BLOCKS: u64 = 200_000;

fn space(blocks: u64) -> Space {
    Space {
        region_bytes: blocks * 4096 / 64,
        regions: 64,
    }
}

/// Skewed references with a scan now and then.
fn references(count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut random = Random::new(seed);
    (0..count as u64).map(move |at| match at % 20_000 {
        scan @ 0..2000 => 1_000_000 + at / 20_000 * 2000 + scan,
        _ => {
            let rank = ((BLOCKS as f64).powf(0.1) - 1.0)
                .mul_add(random.unit(), 1.0)
                .powf(10.0) as u64;
            rank.wrapping_mul(0x9e37_79b9) % BLOCKS
        }
    })
}

/// Sizes with `auto`, from samples in a cache with LZ4.
fn sizes(new: f64, stay: f64) -> AutoSizes {
    let source = Source {
        in_use: Some(LZ4),
        samples: true,
        trials: true,
    };
    AutoSizes { new, stay, source }
}

/// Follows all references; `hits` says which of them the real cache has.
fn follow(
    advisor: &mut Advisor,
    references: impl Iterator<Item = u64>,
    bytes: impl Fn(u64) -> u64,
    hit: impl Fn(u64) -> bool,
) {
    for block in references {
        let key = block_key(block);
        if key & advisor.mask() == 0 {
            advisor.read(key, false, NOW);
            advisor.stored(key, bytes(block), StoredAs::Read(Ring::Probation));
        }
        let hit = hit(block);
        advisor.count(u64::from(hit), u64::from(!hit));
        assert!(
            advisor.memory_bytes() + History::BYTES_MAX <= MEMORY_BYTES_MAX,
            "{}",
            advisor.memory_bytes()
        );
    }
}

/// The hit ratio of one cache on all references.
fn exact(blocks: u64, count: usize, size: u64) -> f64 {
    let mut table = Table::new(60_000);
    let simulation = Simulation {
        slots: 60_000,
        ..Simulation::live(1)
    };
    let mut cache = SimulatedCache::new(REAL, &simulation, PolicyKind::S3Fifo, space(blocks), 0);
    let mut hits = 0;
    for block in references(count, 1) {
        let key = block_key(block);
        let slot = match table.find(key) {
            Some(slot) => slot,
            None => table
                .insert(key, Sizes::estimated(to_size(size), to_size(size)))
                .expect("room"),
        };
        table.hold(slot);
        hits += u32::from(cache.read(&mut table, slot, true, 0));
        table.release(slot);
    }
    f64::from(hits) / count as f64
}

/// A cache of 10,000 blocks, of which a sample follows an eighth: the curve is that of whole caches.
#[test]
fn the_sample_has_the_hit_ratios_of_the_whole() {
    const COUNT: usize = 300_000;
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(10_000), 1, false, NOW);
    follow(&mut advisor, references(COUNT, 1), |_| 4096, |_| false);
    let observed = Observed {
        hits: exact(10_000, COUNT, 4096) * COUNT as f64,
        ..advisor.observed(NOW)
    };
    assert!(observed.shift >= 2, "it is a sample: {observed:?}");
    for multiple in [0.5, 2.0, 4.0] {
        let whole = exact((10_000.0 * multiple) as u64, COUNT, 4096);
        let estimate = observed.hit_ratio_at(multiple);
        assert!(
            (estimate.value - whole).abs() < 0.02,
            "{multiple}: {estimate:?}, expected {whole:.3}"
        );
        assert!(
            estimate.low <= whole && whole <= estimate.high,
            "{multiple}: {estimate:?}, expected {whole:.3}"
        );
    }
    // Blocks that compress 2:1 are as good as twice the capacity.
    let half = exact(10_000, COUNT, 2048) - exact(20_000, COUNT, 4096);
    assert!(half.abs() < 0.005, "{half}");
}

/// Blocks that a reclaim makes smaller, as `auto` does: the simulated caches know it, also of the blocks that only they keep.
#[test]
fn blocks_that_shrink_when_they_stay_take_less_space() {
    let simulated = |new: u64, kept: Option<u64>| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
        for (number, block) in references(300_000, 1).enumerate() {
            let key = block_key(block);
            if key & advisor.mask() == 0 {
                advisor.read(key, false, NOW);
                advisor.stored(key, new, StoredAs::Read(Ring::Probation));
                if let Some(kept) = kept.filter(|_| number % 3 == 0) {
                    advisor.stored(key, kept, StoredAs::Kept);
                }
            }
            advisor.count(0, 1);
        }
        let observed = advisor.observed(NOW);
        assert_eq!(observed.shift, SHIFT_MIN, "the samples are the same");
        observed.simulated()
    };
    let (large, shrinking, small) = (
        simulated(4096, None),
        simulated(4096, Some(2048)),
        simulated(2048, None),
    );
    // Most of the space is for blocks that stay.
    assert!(
        shrinking > large + 0.5 * (small - large) && small > large + 0.02,
        "{large} with large blocks, {shrinking} with shrinking ones, {small} with small ones"
    );
}

/// While the real cache fills, it keeps nothing; smaller ones do. What is expected of the blocks that stay counts also for those that
/// were stored before it was known, until blocks are kept.
#[test]
fn what_is_expected_of_blocks_that_stay_counts_until_they_are_known() {
    let simulated = |expected: f64, known: bool| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
        for (number, block) in references(300_000, 1).enumerate() {
            let key = block_key(block);
            if number == 50_000 {
                advisor.expect_kept(expected);
            }
            if key & advisor.mask() == 0 {
                advisor.read(key, false, NOW);
                advisor.stored(key, 3072, StoredAs::Read(Ring::Probation));
                if known && number % 3 == 0 {
                    advisor.stored(key, 3072, StoredAs::Kept);
                }
            }
            advisor.count(0, 1);
        }
        assert_eq!(advisor.shift, SHIFT_MIN, "the samples are the same");
        if known {
            assert!(advisor.kept.ratio() > 0.98, "{}", advisor.kept.ratio());
        }
        advisor.observed(NOW).simulated()
    };
    let (as_they_are, smaller, known) = (simulated(1.0, false), simulated(0.5, false), simulated(0.5, true));
    assert!(smaller > as_they_are + 0.02, "{smaller}, {as_they_are}");
    assert!((known - as_they_are).abs() < 0.005, "{known}, {as_they_are}");
}

/// Whatever the blocks take in the real cache, one of the simulated ones has them uncompressed, but for those of one value.
#[test]
fn a_cache_without_compression_is_simulated_with_its_own_sizes() {
    let hit_ratios = |bytes: fn(u64) -> u64| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(2000), 1, false, NOW);
        follow(&mut advisor, references(300_000, 1), bytes, |_| false);
        let observed = advisor.observed(NOW);
        assert_eq!(observed.shift, SHIFT_MIN, "the samples are the same");
        let uncompressed = observed.cache_hits[UNCOMPRESSED].iter().sum::<f64>() / observed.sampled_reads;
        let measured = Observed {
            hits: observed.simulated() * observed.reads,
            ..observed
        };
        let estimate = measured.with_codec(NONE, None).hit_ratio.value;
        assert!(
            (estimate - uncompressed).abs() < 1e-6,
            "{estimate}, simulated {uncompressed}"
        );
        (observed.simulated(), uncompressed)
    };
    let (expected, same) = hit_ratios(|_| 4104);
    assert!((same - expected).abs() < 1e-9, "{same}, expected {expected}");
    for bytes in [|_| 1000, |block| 300 + block % 16 * 250] {
        let (compressed, without) = hit_ratios(bytes);
        assert!(compressed > expected + 0.02, "{compressed}, {expected} without");
        assert!(
            (without - expected).abs() < 1e-9,
            "{without}, expected {expected}"
        );
    }
    let (_, half_of_one_value) = hit_ratios(|block| block % 2 * 1000);
    assert!(
        half_of_one_value > expected + 0.02,
        "{half_of_one_value}, {expected} without"
    );
}

/// With another codec in use, a simulated cache has blocks as `auto` would store them. With `auto` in use, it has what the others have.
#[test]
fn a_cache_with_auto_is_simulated_with_blocks_that_shrink_when_they_stay() {
    let follow = |in_use: bool, new: f64, stay: f64| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
        match in_use {
            true => advisor.expect_kept(stay / new),
            false => advisor.expect_auto(Some(sizes(new, stay))),
        }
        if in_use {
            advisor.expect_auto(None);
        }
        let bytes = if in_use { 3072.0 * new } else { 3072.0 };
        follow(&mut advisor, references(300_000, 1), |_| bytes as u64, |_| false);
        advisor.check();
        advisor.observed(NOW)
    };
    let real = |observed: Observed| observed.simulated();
    let by_auto =
        |observed: Observed| observed.cache_hits[STORED_BY_AUTO].iter().sum::<f64>() / observed.reads;
    for (new, stay) in [(1.0, 1.0), (1.0, 0.5), (0.75, 0.25)] {
        let (lz4, auto) = (follow(false, new, stay), follow(true, new, stay));
        assert_eq!(auto.shift, SHIFT_MIN, "the samples are the same");
        let expected = real(auto);
        assert!(
            (by_auto(lz4) - expected).abs() < 1e-3,
            "{}, expected {expected}",
            by_auto(lz4)
        );
        assert_eq!(by_auto(auto), expected, "it is in use");
        assert!(
            expected >= real(lz4) + 0.05 * (1.0 - stay),
            "{expected}, {} without",
            real(lz4)
        );
        let measured = Observed {
            hits: lz4.simulated() * lz4.reads,
            ..lz4
        };
        let estimate = measured.with_codec(AUTO, None).hit_ratio.value;
        // Of the misses, as large a share becomes hits; the sample has a few of the hottest blocks too many.
        let (gain, simulated) = (estimate - real(lz4), expected - real(lz4));
        assert!(
            (gain - simulated).abs() <= 0.5 * simulated,
            "{gain}, simulated {simulated}"
        );
    }
}

/// When the source of the sizes with `auto` changes, the hits counted so far are replaced by those of the curve.
#[test]
fn hits_with_sizes_of_before_do_not_count() {
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
    follow(&mut advisor, references(300_000, 1), |_| 3072, |_| false);
    let by_auto = |advisor: &Advisor| {
        let observed = advisor.observed(NOW);
        observed.cache_hits[STORED_BY_AUTO].iter().sum::<f64>() / observed.reads - observed.simulated()
    };
    assert_eq!(by_auto(&advisor), 0.0, "nothing is known");
    advisor.expect_auto(Some(sizes(0.5, 0.5)));
    let gain = advisor.observed(NOW).gain(2.0);
    assert!(gain > 0.04 && (by_auto(&advisor) - gain).abs() < 1e-9, "{gain}");
    let known = by_auto(&advisor);
    advisor.expect_auto(Some(sizes(0.6, 0.4)));
    assert_eq!(by_auto(&advisor), known, "the data changes");
    advisor.expect_auto(None);
    assert_eq!(by_auto(&advisor), 0.0, "it is in use");
    advisor.expect_auto(Some(sizes(0.5, 0.5)));
    assert!((by_auto(&advisor) - gain).abs() < 1e-9, "another one is in use");
    // With another policy, everything starts over, with these sizes.
    advisor.fit(PolicyKind::Fifo, space(4000), NOW);
    follow(&mut advisor, references(300_000, 2), |_| 3072, |_| false);
    assert!(by_auto(&advisor) > 0.02, "{}", by_auto(&advisor));
}

/// A sample that is as small as it can be, and still has too many blocks, starts over.
#[test]
fn a_sample_that_cannot_be_smaller_begins_anew() {
    let simulation = Simulation {
        shift_min: SHIFT_MAX,
        ..Simulation::live(1)
    };
    let mut advisor = Advisor::simulating(simulation, PolicyKind::S3Fifo, space(1 << 37), false, NOW);
    let sampled = |number: u64| number << SHIFT_MAX;
    for number in 0..3 * SLOTS_MAX as u64 / 2 {
        advisor.read(sampled(number), false, NOW);
        advisor.stored(sampled(number), 0, StoredAs::Read(Ring::Probation));
        advisor.count(0, 1);
        assert!(advisor.memory_bytes() + History::BYTES_MAX <= MEMORY_BYTES_MAX);
    }
    assert_eq!(advisor.shift, SHIFT_MAX);
    let counted = advisor.observed(NOW).reads as usize;
    assert!((1..SLOTS_MAX).contains(&counted), "{counted}");
    advisor.check();
}

/// A client's write of a block that stays is as large as a new one, until a reclaim compresses it again; a dirty block is not.
#[test]
fn what_clients_write_is_not_smaller_in_main_at_once() {
    let size_after = |stored_as: &[StoredAs]| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
        advisor.expect_auto(Some(sizes(1.0, 0.5)));
        let mut keys = (0..).map(block_key);
        let key = keys
            .find(|key| key & advisor.mask() == 0)
            .expect("one is sampled");
        advisor.read(key, false, NOW);
        for stored_as in stored_as {
            advisor.stored(key, 3200, *stored_as);
        }
        let slot = advisor.table.find(key).expect("it is cached");
        advisor.caches[STORED_BY_AUTO].size_of(advisor.table.sizes(slot), Ring::Main)
    };
    let (new, again) = (to_size(3200), to_size(1600));
    let read = StoredAs::Read(Ring::Probation);
    let written = StoredAs::Written(Ring::Main);
    assert_eq!(size_after(&[read]), again);
    assert_eq!(size_after(&[read, written]), new);
    assert_eq!(size_after(&[read, written, StoredAs::Moved]), new);
    assert_eq!(size_after(&[read, written, StoredAs::Kept]), again);
    // Blocks of which only the size after a reclaim is known, as after a warm start.
    assert_eq!(size_after(&[StoredAs::Kept]), again);
    assert_eq!(size_after(&[StoredAs::Moved]), new);
}

/// Sizes with `auto` are learned while the simulated cache has blocks: the sums stay those of its blocks.
#[test]
fn a_simulated_cache_counts_its_blocks_as_large_as_they_were_last() {
    let (mut advisor, mut random) = (
        Advisor::new(PolicyKind::S3Fifo, space(9000), 1, false, NOW),
        Random::new(5),
    );
    let shift = advisor.shift;
    for (number, block) in references(600_000, 1).enumerate() {
        let key = block_key(block);
        if key & advisor.mask() != 0 {
            continue;
        }
        match number % 7 {
            0 => advisor.write(key, Written::Admitted),
            1 => advisor.write(key, Written::Dropped),
            _ => advisor.read(key, false, NOW),
        }
        let stored_as = match number % 11 {
            0 => StoredAs::Kept,
            1 => StoredAs::Moved,
            2 => StoredAs::Written(Ring::Main),
            3 => StoredAs::Written(Ring::Probation),
            4 => StoredAs::Read(Ring::Main),
            _ => StoredAs::Read(Ring::Probation),
        };
        advisor.stored(key, random.below(700), stored_as);
        if number % 50 < 7 {
            let (new, stay) = (0.2 + random.unit(), 0.1 + random.unit());
            advisor.expect_auto((random.below(8) > 0).then_some(sizes(new, stay)));
            advisor.check();
        }
    }
    assert!(advisor.full > 0, "blocks were reclaimed");
    assert!(advisor.shift > shift, "the sample was thinned out");
}

/// However much the blocks compress, however many there are: the sample stays within its memory.
#[test]
fn the_memory_is_bounded() {
    for (blocks, bytes) in [(1000, 4096), (100_000, 200), (1 << 28, 2048)] {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(blocks), 1, false, NOW);
        let mut random = Random::new(9);
        let shift = advisor.mask().count_ones();
        let all = (0..400_000).map(|_| (random.unit() * 1e7) as u64 * (u64::from(shift > 6) * 4096).max(1));
        advisor.expect_auto(Some(sizes(0.5, 0.1)));
        follow(&mut advisor, all, |_| bytes, |_| false);
        // Writes leave old versions in the rings.
        for block in (0..200_000_u64).map(|it| it % 5000) {
            let key = block_key(block);
            if key & advisor.mask() == 0 {
                advisor.write(key, Written::Admitted);
            }
            assert!(advisor.memory_bytes() + History::BYTES_MAX <= MEMORY_BYTES_MAX);
        }
    }
    // All shards together.
    for shards in 1..=SHARDS_MAX {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(5000), shards, false, NOW);
        follow(&mut advisor, references(60_000, 3), |_| 1000, |_| false);
        let all = advisor.memory_bytes() * shards as usize + History::BYTES_MAX;
        assert!(all <= MEMORY_BYTES_MAX, "{all} bytes with {shards} shards");
    }
}

#[test]
fn older_reads_count_half() {
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(10_000), 1, false, NOW);
    let key = (0..)
        .map(block_key)
        .find(|key| key & advisor.mask() == 0)
        .expect("one is sampled");
    for _ in 0..100 {
        advisor.count(1, 1);
        advisor.read(key, false, NOW);
    }
    let before = advisor.observed(NOW);
    let later = NOW.after(HALF_LIFE);
    advisor.read(key, false, later);
    let after = advisor.observed(later);
    assert_eq!((before.reads, after.reads), (200.0, 100.0));
    assert_eq!((before.sampled, after.sampled), (100.0, 51.0));
    assert!(
        (after.seconds - HALF_LIFE.as_secs_f64() / 2.0).abs() < 1.0,
        "{after:?}"
    );
}

/// With the same load, the estimate after days is that of the first hours.
#[test]
fn an_estimate_stays_as_counts_fade() {
    let gain_after = |half_lives: u64| {
        let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, false, NOW);
        for (number, block) in references(300_000, 1).enumerate() {
            let now = NOW.after(HALF_LIFE * (number as u64 * half_lives / 300_000) as u32);
            let key = block_key(block);
            if key & advisor.mask() == 0 {
                advisor.read(key, false, now);
                advisor.stored(key, 4096, StoredAs::Read(Ring::Probation));
            }
            advisor.count(0, 1);
        }
        let end = NOW.after(HALF_LIFE * half_lives as u32);
        advisor.observed(end).hit_ratio_at(2.0).value
    };
    let (one, many) = (gain_after(1), gain_after(12));
    assert!(
        one > 0.05 && (one - many).abs() < 0.03,
        "{one} at first, {many} later"
    );
}

/// A cache that was warm at its start: sizes of new blocks that were not stored since are not known, so they teach nothing of what a
/// reclaim makes of blocks.
#[test]
fn a_codec_that_stores_blocks_again_as_they_are_changes_no_size() {
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(4000), 1, true, NOW);
    let mut sampled = references(100_000, 1).map(block_key);
    for number in 0..100_000 {
        let key = sampled.next().expect("another one");
        if key & advisor.mask() == 0 {
            advisor.read(key, false, NOW);
            match number % 5 {
                0 => advisor.stored(key, 2048, StoredAs::Kept),
                1 => advisor.stored(key, 2048, StoredAs::Moved),
                2 => advisor.stored(key, 2048, StoredAs::Read(Ring::Main)),
                3 => advisor.stored(key, 2048, StoredAs::Written(Ring::Main)),
                _ => advisor.stored(key, 2048, StoredAs::Read(Ring::Probation)),
            }
        }
    }
    assert_eq!(advisor.kept.ratio(), 1.0);
}

/// A cache that gets more space, or another policy, is followed.
#[test]
fn the_sample_follows_the_space() {
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(2000), 1, false, NOW);
    follow(&mut advisor, references(50_000, 1), |_| 4096, |_| false);
    let small = advisor.observed(NOW).gain(2.0);
    advisor.fit(PolicyKind::S3Fifo, space(150_000), NOW);
    follow(&mut advisor, references(300_000, 2), |_| 4096, |_| false);
    let large = advisor.observed(NOW);
    assert!(large.gain(2.0) < small, "most blocks fit now: {large:?}");
    assert!(large.reads > 300_000.0, "what was counted stays");
    advisor.fit(PolicyKind::Fifo, space(150_000), NOW);
    assert_eq!(
        advisor.observed(NOW).reads,
        0.0,
        "another policy: all counts begin anew"
    );
}

/// Of a cache that was warm at its start, what was counted before the simulated caches were full does not count.
#[test]
fn a_warm_start_does_not_count_as_cold() {
    let mut advisor = Advisor::new(PolicyKind::S3Fifo, space(1000), 1, true, NOW);
    follow(&mut advisor, references(100_000, 1), |_| 4096, |_| true);
    let observed = advisor.observed(NOW);
    assert_eq!(observed.full as usize, MULTIPLES.len());
    assert!(observed.reads < 96_000.0, "{observed:?}");
}

#[test]
fn a_codec_that_halves_blocks_doubles_the_capacity() {
    let mut samples = CodecSamples::default();
    let mut random = Random::new(1);
    for _ in 0..200 {
        let mut block = vec![0; BLOCK_BYTES];
        random.fill(&mut block[..2024]);
        let compressed = Compressed::of(&block, None, Effort::Usual, &Common::Nothing);
        samples.sample(&compressed, 4096, [Duration::from_nanos(1500); FORMS]);
    }
    let (none, error) = samples.capacity_factor(0, None);
    assert!((none - 1.0).abs() < 1e-9 && error < 1e-9);
    let (lz4, error) = samples.capacity_factor(LZ4, None);
    assert!((lz4 - 2.0).abs() < 0.05 && error < 0.01, "{lz4} {error}");
    assert_eq!(samples.decode_ns[1] / samples.count(), 1500.0);
}

/// Neighbours that are equal: together they take about a quarter.
#[test]
fn the_estimate_of_auto_is_between_single_blocks_and_groups() {
    let mut samples = CodecSamples {
        dictionary_bytes: 65536.0,
        ..CodecSamples::default()
    };
    let mut usual = samples;
    let mut random = Random::new(1);
    let mut took = [Duration::from_nanos(1000); FORMS];
    took[FORMS - 1] = Duration::from_nanos(8000);
    for _ in 0..200 {
        let mut block = vec![0; BLOCK_BYTES];
        random.fill(&mut block[..2024]);
        let compressed = Compressed::of(&block, Some(&block.repeat(4)), Effort::High, &Common::Nothing);
        samples.sample(&compressed, 2048, took);
        let compressed = Compressed::of(&block, Some(&block.repeat(4)), Effort::Usual, &Common::Nothing);
        usual.sample(&compressed, 2048, took);
    }
    // A third of the blocks gains what groups gain: 0.07 + 0.93 * (2/3 + 1/3 * 1/4).
    let (auto, error) = samples.capacity_factor(AUTO, None);
    assert!((auto - 1.30).abs() < 0.05, "{auto}");
    // New blocks have LZ4 with usual effort, and its size here with high effort.
    for samples in [samples, usual] {
        let sizes = samples.auto_sizes(Some(LZ4)).expect("enough samples");
        assert!(
            (sizes.new - 1.0).abs() < 0.02 && (sizes.kept_ratio() - 0.75).abs() < 0.03,
            "{sizes:?}"
        );
        let twice = samples.auto_sizes(Some(NONE)).expect("enough samples");
        assert!(
            (twice.new * 2.0 - sizes.new).abs() < 0.03
                && (twice.kept_ratio() - sizes.kept_ratio()).abs() < 1e-9
        );
    }
    assert_eq!(CodecSamples::default().auto_sizes(None), None);
    assert!(error > 0.03 && error < 0.06, "{error}");
    let gains = [AUTO, LZ4].map(|codec| samples.unknown_gain(codec));
    assert!(
        gains[0] > 1.2 && gains[1] == 1.0,
        "{gains:?} without a dictionary"
    );
    let (lz4, _) = samples.capacity_factor(LZ4, Some(AUTO));
    assert!((lz4 * auto - 1.0).abs() < 0.02, "{lz4} with auto in use");
    let ns = samples.decode_ns[AUTO] / samples.count();
    assert!((ns - 2240.0).abs() < 1.0, "{ns}");
}
