//! Warm starts: how long a full cache takes from the first look at its superblock to the first hit, after a clean stop
//! and after a crash.
//!
//! What is measured is the index image, or the summaries of all regions, and all around them: superblock, state pages,
//! intents, everything read from a real file past the page cache, every entry checked. The fragments themselves play no
//! part in it, so the device stores none but the last, and of the others the headers of their extents: a cache of 10 GiB
//! is filled in seconds and takes some hundred megabytes of disk.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flaz_device::file::{FileDevice, OpenMode};
use flaz_device::rt::{Config, Rt, Runtime};
use flaz_device::{Device, DeviceError, Env, IoBuf};
use flaz_engine::cache::{CreateOptions, LocalCache, Start, create, read_superblock};
use flaz_engine::codec::CodecSpec;
use flaz_engine::format::geometry::{Geometry, GeometryWish};
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::{Platform, Recovered};
use flaz_engine::units::{BlockNumber, STRIPE_BLOCKS};
use flaz_engine::volume::{STRIPE_BYTES, Volume};

use super::nbd::Files;
use super::{BenchError, Options, Row, Spread};
use crate::replay::{Data, contents};

/// Regions of each shard that are left free: for the image, and so that nothing is reclaimed.
const FREE_REGIONS: u64 = 3;
/// Stripes that are written to before a crash, so that their intents are set; few enough to set none around them.
const INTENT_STRIPES: u64 = 12;
/// Stripes that are read into the cache at a time: as much as the queues of admissions take.
const STRIPES_AT_ONCE: u64 = 4;
const BLOCK: u64 = 4096;

/// A file that keeps all metadata, and of the extents those that are written while `storing`, of others the headers.
struct Sparse {
    file: FileDevice,
    geometry: Geometry,
    storing: Cell<bool>,
    read_bytes: Cell<u64>,
}

impl Device for Sparse {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn alignment(&self) -> u32 {
        self.file.alignment()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        self.read_bytes.set(self.read_bytes.get() + buf.len() as u64);
        self.file.read_at(offset, buf).await
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let extent = buf.starts_with(b"FLZX");
        if offset >= self.geometry.data_offset() && extent && !self.storing.get() {
            let mut header = IoBuf::new(self.geometry.header_bytes().min(buf.len()));
            let len = header.len();
            header.copy_from_slice(&buf[..len]);
            let (_, result) = self.file.write_at(offset, header, fua).await;
            return (buf, result);
        }
        self.file.write_at(offset, buf, fua).await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.file.flush().await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.file.discard(offset, len).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.file.write_zeroes(offset, len, may_unmap, fua).await
    }
}

/// An origin that is made up as it is read: every block compresses 2:1.
struct MadeUp {
    len: u64,
}

impl Device for MadeUp {
    fn len(&self) -> u64 {
        self.len
    }

    fn alignment(&self) -> u32 {
        BLOCK as u32
    }

    async fn read_at(&self, offset: u64, mut buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        for (number, block) in (offset / BLOCK..).zip(buf.chunks_exact_mut(BLOCK as usize)) {
            contents(number, Data::TwoToOne, block);
        }
        (buf, Ok(()))
    }

    async fn write_at(&self, _offset: u64, buf: IoBuf, _fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        (buf, Ok(()))
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    async fn write_zeroes(
        &self,
        _offset: u64,
        _len: u64,
        _may_unmap: bool,
        _fua: bool,
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Real time, one thread, the two devices above.
struct Bench;

impl Platform for Bench {
    type Env = Rt;
    type Cache = Sparse;
    type Origin = MadeUp;
}

/// One warm start.
struct Warm {
    seconds: f64,
    read_bytes: u64,
    blocks: u64,
}

fn settings() -> Settings {
    Settings {
        mode: Mode::WriteThrough,
        policy: PolicyKind::S3Fifo,
        codec: CodecSpec::default(),
        sequential_cutoff: 0,
        dirty_percent: flaz_engine::settings::DIRTY_PERCENT_DEFAULT,
    }
}

/// Makes an empty cache in a new file.
async fn make(path: &Path, len: u64) -> Result<(Rc<Sparse>, Rc<MadeUp>), BenchError> {
    // Twice what fits at 2:1 would fit; four times is never read to its end.
    let origin = MadeUp { len: len * 4 };
    let wish = GeometryWish::default();
    let metadata = Geometry::plan(len, BLOCK as u32, origin.len, wish)?.data_offset();
    std::fs::File::create(path)?.set_len(len + metadata)?;
    let file = FileDevice::open(path, OpenMode::default())?;
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        wish,
        codec: CodecSpec::default(),
        origin_len: origin.len,
        origin_identity: "bench".into(),
        origin_path: "bench".into(),
    };
    let geometry = create(&file, options).await?.geometry;
    let cache = Sparse {
        file,
        geometry,
        storing: Cell::new(false),
        read_bytes: Cell::new(0),
    };
    Ok((Rc::new(cache), Rc::new(origin)))
}

async fn open(
    cache: &Rc<Sparse>,
    origin: &Rc<MadeUp>,
) -> Result<(LocalCache<Bench>, CachedVolume<LocalShards<Bench>, MadeUp>), BenchError> {
    let open = LocalCache::<Bench>::open(Rt, Rc::clone(cache), Rc::clone(origin), settings()).await?;
    let volume = CachedVolume::new(open.shards(), Rc::clone(origin), origin.len, 0);
    Ok((open, volume))
}

/// Fills the cache until all shards are full. Gives a block whose fragment was really stored.
async fn fill(cache: &Rc<Sparse>, origin: &Rc<MadeUp>) -> Result<u64, BenchError> {
    let (open, volume) = open(cache, origin).await?;
    let geometry = open.superblock().geometry;
    let shards = open.shards();
    let has_room = |stripe: u64| {
        let block = BlockNumber(stripe * STRIPE_BLOCKS);
        let shard = shards.iter().nth(block.in_shard(geometry.shard_count).0 as usize);
        shard.is_some_and(|shard| shard.stats().holdings.free_bytes > FREE_REGIONS * geometry.region_bytes)
    };
    let stripes = origin.len / STRIPE_BYTES;
    let mut next = 0;
    let mut full = 0;
    // Stripes go to the shards in turn: when as many in a row as there are shards find no room, all are full.
    while full < u64::from(geometry.shard_count) && next < stripes {
        let batch = next..(next + STRIPES_AT_ONCE).min(stripes);
        next = batch.end;
        for stripe in batch {
            if !has_room(stripe) {
                full += 1;
                continue;
            }
            full = 0;
            volume.prefetch(stripe * STRIPE_BYTES, STRIPE_BYTES).await?;
        }
        while open.stats().holdings.admission_queue > 0 {
            Rt.yield_now().await;
        }
    }
    cache.storing.set(true);
    volume.prefetch(next * STRIPE_BYTES, STRIPE_BYTES).await?;
    drop(volume);
    open.stop().await?;
    Ok(next * STRIPE_BLOCKS)
}

/// Starts, reads a block, and stops again.
async fn start(cache: &Rc<Sparse>, origin: &Rc<MadeUp>, block: u64) -> Result<Warm, BenchError> {
    cache.read_bytes.set(0);
    let started = Instant::now();
    let (open, volume) = open(cache, origin).await?;
    let read = volume.read(block * BLOCK, BLOCK as u32).await?;
    let seconds = started.elapsed().as_secs_f64();
    let stats = open.stats();
    let mut expected = [0; BLOCK as usize];
    contents(block, Data::TwoToOne, &mut expected);
    if !matches!(open.start, Start::Warm(_)) || stats.counts.hit_blocks != 1 || read[0][..] != expected {
        return Err("the start was not warm, or its first read no hit".into());
    }
    let warm = Warm {
        seconds,
        read_bytes: cache.read_bytes.get(),
        blocks: stats.holdings.cached_blocks,
    };
    drop(volume);
    open.stop().await?;
    Ok(warm)
}

/// Looks at a cache made before, with a runtime of its own.
async fn attach(path: &Path, origin_len: u64) -> Result<(Rc<Sparse>, Rc<MadeUp>), BenchError> {
    let file = FileDevice::open(path, OpenMode::default())?;
    let geometry = read_superblock(&file).await?.geometry;
    let cache = Sparse {
        file,
        geometry,
        storing: Cell::new(true),
        read_bytes: Cell::new(0),
    };
    Ok((Rc::new(cache), Rc::new(MadeUp { len: origin_len })))
}

/// Starts, writes, and is gone without a stop: the intents of the writes are set.
fn crash(path: &Path, origin_len: u64) -> Result<(), BenchError> {
    Runtime::new(Config::default())?.block_on(async {
        let (cache, origin) = attach(path, origin_len).await?;
        let (_open, volume) = open(&cache, &origin).await?;
        let apart = (origin.len / STRIPE_BYTES / INTENT_STRIPES).max(1);
        for stripe in (0..INTENT_STRIPES).map(|n| n * apart) {
            let block = stripe * STRIPE_BLOCKS;
            let mut buf = IoBuf::new(BLOCK as usize);
            contents(block, Data::TwoToOne, &mut buf);
            volume.write(block * BLOCK, [buf].into(), false).await?;
        }
        Ok(())
    })
}

/// Times the start after a crash.
fn recover(path: &Path, origin_len: u64) -> Result<(f64, Recovered), BenchError> {
    Runtime::new(Config::default())?.block_on(async {
        let (cache, origin) = attach(path, origin_len).await?;
        let started = Instant::now();
        let (open, volume) = open(&cache, &origin).await?;
        let seconds = started.elapsed().as_secs_f64();
        let recovered = open.recovered;
        if open.start != Start::Recovered || recovered.blocks == 0 || recovered.stripes == 0 {
            return Err(format!(
                "the start was not that after a crash but {:?}: {recovered:?}",
                open.start
            )
            .into());
        }
        drop(volume);
        open.stop().await?;
        // The tasks of the cache end.
        Rt.sleep(Duration::from_millis(1)).await;
        Ok((seconds, recovered))
    })
}

/// Rows of warm starts.
///
/// # Errors
/// The cache cannot be made, filled or started.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let gib: u64 = if options.quick { 1 } else { 10 };
    let files = Files::new(options)?;
    let path = files.path().join("warm.cache");
    bar.set_message(format!("filling a cache of {gib} GiB"));
    let (mut warm, mut crashed) = (Vec::new(), Vec::new());
    let mut direct = true;
    let mut origin_len = 0;
    Runtime::new(Config::default())?.block_on(async {
        let (cache, origin) = make(&path, gib << 30).await?;
        origin_len = origin.len;
        direct = cache.file.is_direct();
        let block = fill(&cache, &origin).await?;
        for run in 0..runs {
            bar.set_message(format!("warm start, run {} of {runs}", run + 1));
            warm.push(start(&cache, &origin, block).await?);
        }
        // The tasks of the last cache end.
        Rt.sleep(Duration::from_millis(1)).await;
        Ok::<(), BenchError>(())
    })?;
    for run in 0..runs {
        bar.set_message(format!("start after a crash, run {} of {runs}", run + 1));
        crash(&path, origin_len)?;
        crashed.push(recover(&path, origin_len)?);
    }
    let figures = |of: fn(&Warm) -> f64| {
        let all: Vec<f64> = warm.iter().map(of).collect();
        Spread::of(&all).ok_or_else(|| "no runs".to_owned())
    };
    let of_crashes = |of: fn(&(f64, Recovered)) -> f64| {
        let all: Vec<f64> = crashed.iter().map(of).collect();
        Spread::of(&all).ok_or_else(|| "no runs".to_owned())
    };
    let row = |what: String, budget, reached, unit| Row {
        what,
        peer: "-".into(),
        budget,
        reached,
        unit,
    };
    let from = if direct { "" } else { ", page cache" };
    Ok(vec![
        row(
            format!("warm start of a full {gib} GiB cache, to the first hit{from}"),
            "2 s",
            figures(|warm| warm.seconds),
            " s",
        ),
        row(
            "the same, millions of blocks".into(),
            "-",
            figures(|warm| warm.blocks as f64 / 1e6),
            " M",
        ),
        row(
            "the same, bytes read".into(),
            "-",
            figures(|warm| warm.read_bytes as f64 / f64::from(1 << 20)),
            " MiB",
        ),
        row(
            format!("start after a crash of the same cache{from}"),
            "-",
            of_crashes(|(seconds, _)| *seconds),
            " s",
        ),
        row(
            "the same, millions of fragments a second, one thread".into(),
            "5 / 20",
            of_crashes(|(seconds, recovered)| recovered.records as f64 / seconds / 1e6),
            " M/s",
        ),
        row(
            "the same, bytes read".into(),
            "-",
            of_crashes(|(_, recovered)| recovered.bytes_read as f64 / f64::from(1 << 20)),
            " MiB",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_starts_warm_again_and_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = Runtime::new(Config::default()).expect("a runtime");
        runtime.block_on(async {
            let len = 64 << 20;
            let (cache, origin) = make(&folder.path().join("cache"), len).await.expect("is made");
            let block = fill(&cache, &origin).await.expect("is filled");
            for _ in 0..3 {
                let warm = start(&cache, &origin, block).await.expect("starts warm");
                // All but the free regions is full, of fragments of half a block.
                let full = warm.blocks as f64 * 2056.0 / len as f64;
                assert!((0.9..1.0).contains(&full), "{full:.3} of the cache is full");
                assert!(
                    warm.read_bytes > warm.blocks * 8,
                    "{} bytes were read",
                    warm.read_bytes
                );
            }
            Rt.sleep(Duration::from_millis(1)).await;
        });
        drop(runtime);
        let path = folder.path().join("cache");
        let mut dropped = 0;
        for _ in 0..2 {
            crash(&path, 4 * (64 << 20)).expect("is gone");
            let (_, recovered) = recover(&path, 4 * (64 << 20)).expect("is recovered");
            assert!(recovered.stripes >= INTENT_STRIPES, "{recovered:?}");
            assert!(recovered.blocks > 20_000, "{recovered:?}");
            dropped += recovered.dropped;
        }
        assert!(dropped > 0, "some of the stripes were cached");
    }
}
