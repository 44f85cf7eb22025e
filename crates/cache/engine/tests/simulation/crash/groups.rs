//! Workloads on caches that store neighbours together: groups form, single members are written, trimmed and dropped, and the regions
//! of the groups are reclaimed.
//!
//! The caches are of the smallest size. Groups lie in some spots, which are read often. Other spots, of which a write fills a region,
//! take turns with ballast to reclaim the regions of main.

use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::time::Duration;

use flaz_codec::{CodecChoice, Dictionary};
use flaz_device::{Device, IoBuf};
use flaz_engine::format::dictionary::{DictionarySlot, StoredDictionary};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::policy::PolicyKind;
use flaz_engine::units::BLOCK_BYTES;
use flaz_engine::write_budget::WriteBudget;
use flaz_sim::{Rng, SimDisk};

use super::oracle::Spot;
use super::sectors::{BLOCK_SECTORS, SECTOR, fill};
use super::workload::{Generator, Op, Place, SPOTS, STRIPE_SECTORS, Shape, Step};

/// Bases from here on are of caches with groups.
pub const FIRST_BASE: u64 = 1 << 56;
/// Spots with groups, in stripes of both shards.
const GROUPED: [usize; 4] = [0, 1, 3, 4];
/// Spots whose contents do not compress, in stripes of both shards.
const LARGE: [usize; 2] = [5, 6];
const LARGE_BLOCKS: u64 = 28;
/// Time of a read of the cache device: slow, so that blocks are written while reclaim reads their neighbours.
pub const CACHE_READ: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(30);
/// Regions of a shard.
const REGIONS: u64 = 6;

/// The shape of a cache with groups, from one without.
pub fn adapt(shape: Shape, rng: &mut Rng) -> Shape {
    let mut spots = shape.spots.to_vec();
    for spot in GROUPED {
        // Some groups reach beyond the spot.
        let first = 4 * rng.between(3, 8) + rng.below(4);
        let count = rng.between(10, 20);
        spots[spot] = spot_at(spot, first, count);
    }
    for spot in LARGE {
        spots[spot] = spot_at(spot, 16 + rng.below(16), LARGE_BLOCKS);
    }
    let shard_count = u64::from(shape.wish.shard_count.expect("there is"));
    let mut settings = shape.settings;
    settings.codec = CodecChoice::Auto;
    settings.policy = PolicyKind::S3Fifo;
    settings.sequential_cutoff = 0;
    settings.write_budget = WriteBudget::None;
    let mut wish = shape.wish;
    let mut front = 192 << 10;
    if rng.coin() {
        wish.dictionary_bytes = Some(4 << 10);
        front += 64 << 10;
    }
    Shape {
        cache_len: front + shard_count * REGIONS * (128 << 10),
        wish,
        spots: spots.into(),
        large: None,
        grouped: true,
        settings,
        ..shape
    }
}

fn spot_at(stripe: usize, block: u64, blocks: u64) -> Spot {
    Spot {
        first: stripe as u64 * STRIPE_SECTORS + block * BLOCK_SECTORS,
        count: blocks * BLOCK_SECTORS,
    }
}

/// The next request.
pub fn op(generator: &mut Generator<'_>) -> Op {
    let fua = generator.rng.below(8) == 0;
    let member = member(generator);
    let (grouped, large) = (
        one_of(&mut generator.rng, GROUPED),
        one_of(&mut generator.rng, LARGE),
    );
    let (grouped, large) = (generator.whole(grouped), generator.whole(large));
    match generator.rng.below(100) {
        0..=19 => Op::Write {
            place: member,
            version: generator.version(),
            fua,
        },
        20..=25 => Op::Trim { place: member, fua },
        26..=27 => Op::WriteZeroes {
            place: member,
            may_unmap: generator.rng.coin(),
            fua,
        },
        28..=47 => Op::Read { place: grouped },
        48..=57 => write_large(generator, large),
        58..=62 => Op::Read { place: large },
        63..=72 => generator.ballast(),
        73..=79 => Op::Flush,
        // Until the intents are cleared: a start drops the blocks of stripes with intents.
        80..=87 => Op::Pause {
            us: 7_000_000 + generator.rng.below(7_000_000),
        },
        _ => generator.usual_op(),
    }
}

fn one_of<const N: usize>(rng: &mut Rng, all: [usize; N]) -> usize {
    all[rng.below(N as u64) as usize]
}

/// A block or two of a spot with groups, mostly whole ones.
fn member(generator: &mut Generator<'_>) -> Place {
    let spot = one_of(&mut generator.rng, GROUPED);
    let blocks = generator.whole(spot).count / BLOCK_SECTORS;
    let rng = &mut generator.rng;
    let count = match rng.below(8) {
        0 => 2 * BLOCK_SECTORS,
        1 => 1 + rng.below(BLOCK_SECTORS),
        _ => BLOCK_SECTORS,
    };
    let first = rng.below(blocks) * BLOCK_SECTORS;
    Place {
        spot,
        first,
        count: count.min(blocks * BLOCK_SECTORS - first),
    }
}

fn write_large(generator: &mut Generator<'_>, place: Place) -> Op {
    Op::Write {
        place,
        // Of the versions that do not compress.
        version: 8 * generator.version(),
        fua: false,
    }
}

/// Fills a cache, until there are groups in main, and some of them have been divided.
pub fn filling(generator: &mut Generator<'_>) -> Vec<Step> {
    let mut ops = Vec::new();
    for spot in 0..SPOTS {
        let place = generator.whole(spot);
        let version = generator.version();
        ops.push(match LARGE.contains(&spot) {
            true => write_large(generator, place),
            false => Op::Write {
                place,
                version,
                fua: false,
            },
        });
    }
    for round in 0..12 {
        for spot in LARGE {
            let place = generator.whole(spot);
            ops.push(write_large(generator, place));
            ops.push(generator.ballast());
            ops.push(Op::Read { place });
            for spot in GROUPED {
                ops.push(Op::Read {
                    place: generator.whole(spot),
                });
            }
        }
        if round > 6 {
            let place = member(generator);
            let version = generator.version();
            ops.push(Op::Write {
                place,
                version,
                fua: false,
            });
        }
    }
    let step = |(n, op)| Step {
        phase: 0,
        client: (n % 2) as u32,
        op,
    };
    ops.into_iter().enumerate().map(step).collect()
}

/// Gives each shard a dictionary, for the contents of [`fill`].
pub async fn store_dictionaries(disk: &SimDisk, superblock: &Superblock) {
    static CONTENTS: OnceLock<Vec<u8>> = OnceLock::new();
    let contents = CONTENTS.get_or_init(|| {
        let mut blocks = vec![0; 64 * BLOCK_BYTES];
        for (number, block) in (0..).zip(blocks.chunks_exact_mut(BLOCK_BYTES)) {
            fill(number * BLOCK_SECTORS, 8 * number + 4 + number % 3, block);
        }
        Dictionary::train(&blocks, BLOCK_BYTES, 4000).expect("they have something in common")
    });
    let geometry = &superblock.geometry;
    for shard in 0..geometry.shard_count {
        let slot = DictionarySlot {
            cache: superblock.cache_id(),
            shard,
            number: 0,
        };
        let stored = StoredDictionary {
            generation: 1,
            contents: contents.clone(),
        };
        let mut bytes = stored.to_bytes(slot);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        let written = disk.write_at(geometry.dictionary_offset(shard, 0), IoBuf::copy_of(&bytes), true);
        written.await.1.expect("the disk is well");
    }
}
