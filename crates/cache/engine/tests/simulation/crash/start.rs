//! The starting points of scenarios: a filled cache, and its records of a block.

use std::rc::Rc;

use flaz_codec::CodecChoice;
use flaz_engine::cache::{CreateOptions, create};
use flaz_engine::check::{Finding, Object, walk};
use flaz_sim::{DiskConfig, DiskImage, Sim, SimDisk};

use super::groups;
use super::oracle::Ground;
use super::run::{Past, Script, Start, live};
use super::sectors::{BLOCK_SECTORS, Print, SECTOR, print_of};
use super::workload::{Scenario, Shape};

/// Most runs of the filler until the cache of a base is full.
const FILL_TURNS_MAX: u64 = 12;

/// The records of a block in the extents on a cache device, in words.
pub fn records_of(start: &Start, block: u64) -> Vec<String> {
    let sim = Sim::new(0);
    let disk = SimDisk::from_image(&sim.env(), &start.cache.without_write_cache());
    let (mut told, mut extent, mut intents) = (Vec::new(), String::new(), 0);
    let mut note = |finding: Finding, _, _| match &finding.object {
        Ok(Object::Intents { set, .. }) => intents = *set,
        Ok(Object::Index { shard, .. }) => told.push(format!("an index image of shard {shard}")),
        Ok(Object::Extent(header)) => {
            extent = format!(
                "extent at {} of {} bytes, {}, fill {:#x}, sequence {:#x}, epoch {}",
                finding.offset,
                header.extent_bytes,
                header.ring,
                header.generation.0,
                header.sequence.0,
                header.epoch.0
            );
        }
        Ok(
            Object::Fragment { block: found, .. }
            | Object::SameFilled { block: found, .. }
            | Object::Tombstone { block: found }
            | Object::Cleaned { block: found },
        ) if found.0 == block => {
            told.push(format!("{} in {extent}", finding.kind));
        }
        _ => {}
    };
    let walked = sim.block_on(walk(&disk, &mut note));
    let first = block * BLOCK_SECTORS;
    let bytes = start
        .origin
        .read(first * SECTOR as u64, BLOCK_SECTORS as usize * SECTOR);
    let sectors = (first..).zip(bytes.chunks_exact(SECTOR));
    let prints: Vec<String> = sectors
        .map(|(sector, bytes)| print_of(sector, bytes).to_string())
        .collect();
    told.push(format!("the origin has {}", prints.join(", ")));
    told.insert(
        0,
        match walked {
            Ok(superblock) => format!(
                "{:?}, epoch {}, {intents} intents set",
                superblock.state, superblock.epoch.0
            ),
            Err(error) => error.to_string(),
        },
    );
    told
}

/// A filled cache, stopped cleanly.
///
/// # Errors
/// As [`live`].
pub fn filled(base: u64, shape: &Shape) -> Result<Start, String> {
    let sim = Sim::new(base);
    let origin_config = DiskConfig {
        alignment: shape.origin_alignment,
        discard_mode: shape.origin_discard,
        background: Some(std::sync::Arc::new(|page, bytes| {
            super::sectors::fill(page * super::sectors::BLOCK_SECTORS, 0, bytes);
        })),
        ..DiskConfig::slow(shape.origin_len)
    };
    let mut cache_config = DiskConfig::fast(shape.cache_len);
    if shape.grouped {
        cache_config.read_latency = groups::CACHE_READ;
    }
    let disk = SimDisk::new(&sim.env(), cache_config);
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(u128::from(base) << 64 | 0xf1a2),
        created_unix_s: 0,
        wish: shape.wish.into(),
        codec: CodecChoice::default(),
        origin_len: shape.origin_len,
        origin_identity: "sim".into(),
        origin_path: "sim".into(),
    };
    let created = sim.block_on(create(&disk, options));
    let superblock = created.map_err(|error| error.to_string())?;
    if shape.wish.dictionary_bytes.is_some() {
        // The openings are too short to train one.
        sim.block_on(groups::store_dictionaries(&disk, &superblock));
    }
    let mut start = Start {
        cache: disk.snapshot(),
        origin: DiskImage::new(origin_config),
        ground: Rc::new(Ground::known(&shape.spots, |_| Print::of_version(0))),
        past: Past::default(),
        memory: None,
        policies: vec![None],
        sizes: vec![shape.origin_len],
    };
    for turn in 0..FILL_TURNS_MAX {
        let filler = Scenario::filler(base, turn, shape);
        let script = Script {
            seed: filler.seed,
            steps: &filler.steps,
            stop: true,
            watch_end: true,
            ..Script::default()
        };
        let life = live(shape, &start, &script)?;
        let full = match shape.grouped {
            true => life.did.groups_divided > 0,
            false => life.did.reclaimed_blocks > 0,
        };
        start = life.into_start();
        if full {
            break;
        }
    }
    Ok(start)
}
