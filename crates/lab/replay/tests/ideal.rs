//! The engine against an ideal model of its policy.
//!
//! Not a unit test of [`flaz_replay::studies::table`]: that would compile the engine once more.

use std::collections::{HashMap, HashSet, VecDeque};

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_random::Random;
use flaz_replay::studies::table::{Data, replay};

/// Block-level S3-FIFO with a ghost as large as the cache (Yang et al., SOSP 2023) and a correlation window of a quarter of
/// probation, from the start: main soon has its size with these references.
fn ideal(references: &[u32], capacity: usize) -> f64 {
    let (mut small, mut main, mut ghost) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let mut cached: HashMap<u32, u8> = HashMap::new();
    let mut remembered: HashSet<u32> = HashSet::new();
    let (mut entered, mut given) = (HashMap::new(), 0usize);
    let mut hits = 0usize;
    for &block in references {
        if let Some(uses) = cached.get_mut(&block) {
            let counts = entered.get(&block).is_none_or(|at| given - at >= capacity / 40);
            *uses = (*uses + u8::from(counts)).min(3);
            hits += 1;
            continue;
        }
        while cached.len() >= capacity {
            if small.len() >= capacity / 10 {
                let Some(old) = small.pop_front() else { break };
                entered.remove(&old);
                if cached[&old] > 0 {
                    cached.insert(old, 0);
                    main.push_back(old);
                } else {
                    cached.remove(&old);
                    remembered.insert(old);
                    ghost.push_back(old);
                    if ghost.len() > capacity {
                        remembered.remove(&ghost.pop_front().expect("not empty"));
                    }
                }
            } else {
                let Some(old) = main.pop_front() else { break };
                let uses = cached[&old];
                if uses > 0 {
                    cached.insert(old, uses - 1);
                    main.push_back(old);
                } else {
                    cached.remove(&old);
                }
            }
        }
        cached.insert(block, 0);
        if remembered.contains(&block) {
            main.push_back(block)
        } else {
            small.push_back(block);
            given += 1;
            entered.insert(block, given);
        }
    }
    hits as f64 / references.len() as f64
}

/// A synthetic trace with skewed popularity and an occasional scan.
fn skewed(len: usize, blocks: u32) -> Vec<u32> {
    let mut random = Random::new(7);
    (0..len)
        .map(|at| {
            if at % 20_000 < 2000 {
                return ((at * 7 + at / 20_000 * 2000) % blocks as usize) as u32;
            }
            // The inverse of a power law: roughly Zipf with exponent 0.9.
            let rank = (f64::from(blocks).powf(0.1) - 1.0)
                .mul_add(random.unit(), 1.0)
                .powf(10.0) as u32;
            (rank.min(blocks) - 1).wrapping_mul(48_271) % blocks
        })
        .collect()
}

#[test]
fn the_engine_matches_the_ideal_hit_ratio() {
    let references = skewed(160_000, 30_011);
    for (data, factor) in [(Data::Random, 1), (Data::TwoToOne, 2)] {
        let capacity = 4000;
        let stats = replay(
            &references,
            30_011,
            capacity,
            data,
            PolicyKind::S3Fifo,
            CodecChoice::default(),
        )
        .expect("the cache is large enough")
        .stats;
        let counts = &stats.counts;
        let engine = counts.hit_blocks as f64 / references.len() as f64;
        let model = ideal(&references, capacity as usize * factor);
        assert_eq!(counts.refused_queue_full, 0);
        assert!(
            counts.regions_reclaimed > 50,
            "only {} regions were reclaimed",
            counts.regions_reclaimed
        );
        assert!(
            (engine - model).abs() < 0.02,
            "{data:?}: engine {engine:.3}, ideal {model:.3}"
        );
    }
}
