//! Tests of the policies through their interface.

use super::*;

fn sizes(probation: u64, main: u64, total: u64) -> RingSizes {
    RingSizes {
        probation,
        main,
        total,
    }
}

#[test]
fn a_policy_has_the_name_of_its_kind() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.build(0).name(), kind.name());
    }
}

#[test]
fn ring_numbers_are_those_of_the_format() {
    assert_eq!(Ring::ALL.map(Ring::number), [0, 1]);
    for ring in Ring::ALL {
        assert_eq!(Ring::from_number(ring.number()), Some(ring));
        assert_ne!(ring.other(), ring);
    }
    assert_eq!(Ring::from_number(2), None);
}

#[test]
fn block_keys_differ_in_their_high_bits() {
    let mut high: Vec<u64> = (0..4096).map(|block| block_key(block) >> 44).collect();
    high.sort_unstable();
    high.dedup();
    assert!(
        high.len() > 4080,
        "neighbours must not share a bucket: {} of 4096 differ",
        high.len()
    );
}

#[test]
fn s3_fifo_promotes_what_was_used_and_remembers_the_rest() {
    let mut policy = S3Fifo::new(10_000);
    let (used, unused) = (block_key(1), block_key(2));
    assert_eq!(policy.admit(used), Admission::To(Ring::Probation));
    assert_eq!(policy.admit(unused), Admission::To(Ring::Probation));
    assert_eq!(
        policy.reclaim(Ring::Probation, used, 3, Price::USUAL),
        Fate::Keep {
            ring: Ring::Main,
            hits: 2
        }
    );
    assert_eq!(
        policy.reclaim(Ring::Probation, unused, 0, Price::USUAL),
        Fate::Drop
    );
    assert_eq!(
        policy.admit(unused),
        Admission::Remembered(Ring::Main),
        "the ghost remembers it"
    );
    assert_eq!(policy.admit(unused), Admission::To(Ring::Probation), "once");
}

#[test]
fn s3_fifo_forgets_what_main_drops() {
    let mut policy = S3Fifo::new(10_000);
    let key = block_key(1);
    assert_eq!(
        policy.reclaim(Ring::Main, key, 2, Price::USUAL),
        Fate::Keep {
            ring: Ring::Main,
            hits: 1
        }
    );
    assert_eq!(
        policy.reclaim(Ring::Main, key, 1, Price::USUAL),
        Fate::Keep {
            ring: Ring::Main,
            hits: 0
        }
    );
    assert_eq!(policy.reclaim(Ring::Main, key, 0, Price::USUAL), Fate::Drop);
    assert_eq!(policy.admit(key), Admission::To(Ring::Probation));
}

/// In main only: a block that leaves probation without a use is remembered, one that has been there is not.
#[test]
fn s3_fifo_asks_two_uses_of_a_large_block_in_main() {
    let mut policy = S3Fifo::new(10_000);
    let kept = |hits| Fate::Keep {
        ring: Ring::Main,
        hits,
    };
    let key = block_key(1);
    assert_eq!(policy.reclaim(Ring::Probation, key, 1, Price::DOUBLE), kept(0));
    assert_eq!(policy.reclaim(Ring::Main, key, 2, Price::DOUBLE), kept(1));
    assert_eq!(policy.reclaim(Ring::Main, key, 1, Price::USUAL), kept(0));
    assert_eq!(policy.reclaim(Ring::Main, key, 1, Price::DOUBLE), Fate::Drop);
}

#[test]
fn a_block_of_twice_the_mean_has_the_double_price() {
    for (bytes, mean) in [(0, 0), (4104, 0), (8, 2056), (4104, 4104), (4104, 2053)] {
        assert_eq!(Price::of(bytes, mean), Price::USUAL, "{bytes} of {mean}");
    }
    for (bytes, mean) in [(4104, 2052), (4104, 1), (u64::MAX, 1)] {
        assert_eq!(Price::of(bytes, mean), Price::DOUBLE, "{bytes} of {mean}");
    }
}

#[test]
fn s3_fifo_takes_from_the_ring_that_is_over_its_share() {
    let policy = S3Fifo::new(0);
    assert_eq!(policy.victim(sizes(64, 0, 64)), Ring::Probation);
    assert_eq!(policy.victim(sizes(5, 58, 64)), Ring::Probation);
    assert_eq!(policy.victim(sizes(4, 59, 64)), Ring::Main);
    assert_eq!(policy.victim(sizes(u64::MAX, 0, u64::MAX)), Ring::Probation);
}

/// More regions than these are not noted.
#[test]
fn no_window_is_longer_than_its_share() {
    for kind in PolicyKind::ALL {
        for total in [0, 128 << 10, 768 << 10, 1 << 30, 1 << 50, u64::MAX] {
            for probation in [0, total / 100, total / 10, total] {
                let window = kind.build(0).window(sizes(probation, 0, total));
                assert!(
                    window <= total / WINDOW_SHARE,
                    "{kind}: {window} of {total}, {probation} in probation"
                );
            }
        }
    }
}

#[test]
fn reads_of_bursts_count_until_main_has_grown() {
    let policy = S3Fifo::new(0);
    let window = |probation| policy.window(sizes(probation, 0, 4_000_000));
    for narrow in [0, 280_000, 560_000] {
        assert_eq!(window(narrow), 70_000, "a quarter of 7 %, probation of {narrow}");
    }
    for wide in [560_001, 4_000_000] {
        assert_eq!(window(wide), 0, "probation of {wide}");
    }
}

#[test]
fn second_touch_admits_at_the_second_miss() {
    let mut policy = SecondTouch::new(10_000);
    let key = block_key(1);
    assert_eq!(policy.admit(key), Admission::Refuse);
    assert_eq!(policy.admit(key), Admission::Remembered(Ring::Main));
    assert_eq!(
        policy.admit(key),
        Admission::Refuse,
        "the ghost forgets what it let in"
    );
}

#[test]
fn policies_with_one_ring_empty_the_other_first() {
    for kind in [PolicyKind::SecondTouch, PolicyKind::Fifo] {
        let policy = kind.build(0);
        assert_eq!(policy.victim(sizes(1, 62, 64)), Ring::Probation);
        assert_eq!(policy.victim(sizes(0, 63, 64)), Ring::Main);
    }
}

#[test]
fn second_touch_writes_again_what_was_used() {
    let mut policy = SecondTouch::new(0);
    for ring in Ring::ALL {
        assert_eq!(
            policy.reclaim(ring, block_key(1), 2, Price::USUAL),
            Fate::Keep {
                ring: Ring::Main,
                hits: 1
            }
        );
        assert_eq!(policy.reclaim(ring, block_key(1), 0, Price::USUAL), Fate::Drop);
    }
}

#[test]
fn fifo_admits_all_and_writes_nothing_again() {
    let mut policy = PolicyKind::Fifo.build(10_000);
    for block in 0..1000 {
        let key = block_key(block);
        assert_eq!(policy.admit(key), Admission::To(Ring::Main));
        for ring in Ring::ALL {
            assert_eq!(policy.reclaim(ring, key, HITS_MAX, Price::USUAL), Fate::Drop);
        }
        assert_eq!(
            policy.admit(key),
            Admission::To(Ring::Main),
            "nothing is remembered"
        );
    }
    policy.cached_blocks(u64::MAX);
    assert_eq!(policy.memory_bytes(), 0);
}

#[test]
fn reclaim_ends_however_hot_the_cache_is() {
    for kind in [PolicyKind::S3Fifo, PolicyKind::SecondTouch] {
        let mut policy = kind.build(10_000);
        let mut dropped = 0;
        for block in 0..100_000 {
            let ring = Ring::ALL[block as usize % 2];
            match policy.reclaim(ring, block_key(block), HITS_MAX, Price::USUAL) {
                Fate::Drop => dropped += 1,
                Fate::Keep { ring, hits } => {
                    assert_eq!(ring, Ring::Main, "{kind}");
                    assert!(hits < HITS_MAX, "{kind}: a use is spent");
                }
            }
        }
        assert!(
            dropped >= (100_000 - 625) / 8,
            "{kind} dropped {dropped} of 100,000"
        );
        assert!(dropped <= 100_000 / 8 + 1, "{kind} dropped {dropped} of 100,000");
    }
}

#[test]
fn memory_stays_below_the_budget_of_each_cached_block() {
    for kind in PolicyKind::ALL {
        for capacity in [100_000_u64, 2_621_440] {
            let mut policy = kind.build(capacity);
            // Blocks compress better and better, then worse again; keys come in all the time.
            for per_cent in (100..=400).step_by(7).chain((100..=400).rev().step_by(13)) {
                let blocks = capacity * per_cent / 100;
                policy.cached_blocks(blocks);
                for block in 0..1000 {
                    let key = block_key(per_cent * 1_000_000 + block);
                    let _ = policy.admit(key);
                    let _ = policy.reclaim(Ring::Probation, key, 0, Price::USUAL);
                }
                let bytes_a_block = policy.memory_bytes() as f64 / blocks as f64;
                assert!(
                    bytes_a_block <= 1.55,
                    "{kind}: {bytes_a_block} bytes a block at {blocks} blocks"
                );
            }
        }
    }
}

/// With little memory, a block enters main if a neighbour of it was dropped lately, and again the next time.
#[test]
fn a_ghost_with_little_memory_remembers_neighbours() {
    let mut policy = PolicyKind::S3Fifo.build(1000);
    policy.limit_memory(4096, 1 << 20);
    assert_eq!(policy.key(64), policy.key(95), "32 blocks share a key");
    assert_ne!(policy.key(63), policy.key(64));
    let key = policy.key(70);
    assert_eq!(policy.reclaim(Ring::Probation, key, 0, Price::USUAL), Fate::Drop);
    for block in [64, 70, 95, 70] {
        assert_eq!(policy.admit(policy.key(block)), Admission::Remembered(Ring::Main));
    }
    assert_eq!(policy.admit(policy.key(96)), Admission::To(Ring::Probation));
    let mut policy = PolicyKind::S3Fifo.build(1000);
    policy.limit_memory(1 << 20, 1000);
    assert_ne!(
        policy.key(64),
        policy.key(65),
        "there is memory for single blocks"
    );
}
