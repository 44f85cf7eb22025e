//! Start times: from the first read of the superblock of a full cache to the first hit, after a clean stop and after a
//! crash.
//!
//! The start reads the index image or the summaries of all regions, and other metadata (superblock, state pages,
//! intents) from a real file with direct I/O, and checks every entry. Fragments are not needed, so the device stores
//! only the last ones, and of the other extents only the headers. A cache of 10 GiB is thus filled in seconds and takes
//! a few hundred megabytes of disk.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flaz_codec::CodecChoice;
use flaz_device::{Device, DeviceError, Env, IoBuf};
use flaz_engine::advise::SharedSamples;
use flaz_engine::cache::lifecycle::{Lifecycle, OpenOptions};
use flaz_engine::cache::shard_set::{GroupParts, Reached, ShardGroup, ShardSet, ShardsState, Share};
use flaz_engine::cache::surroundings::Surroundings;
use flaz_engine::cache::{
    CreateOptions, LocalCache, ShardsUnreachable, Start, Trust, create, read_superblock,
};
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::Settings;
use flaz_engine::shard::{
    ImageError, OriginWrites, Platform, RecoverError, Recovered, ResizeStep, Shrinking,
};
use flaz_engine::units::{BlockNumber, Epoch, STRIPE_BLOCKS};
use flaz_engine::volume::{STRIPE_BYTES, Volume};
use flaz_runtime::file::{FileDevice, OpenMode};
use flaz_runtime::{Config, Rt, Runtime};
use rustix::time::{ClockId, clock_gettime};

use super::nbd::Files;
use super::options::{BenchError, Options};
use super::row::{Row, Spread};
use flaz_replay::studies::table::{Data, contents};

/// Free regions of each shard: for the image, and so that nothing is reclaimed.
const FREE_REGIONS: u64 = 3;
/// Number of stripes written before a crash, so that their intents are set.
const INTENT_STRIPES: u64 = 12;
/// Number of stripes read into the cache at a time: as many as the admission queues accept.
const STRIPES_AT_ONCE: u64 = 4;
const BLOCK: u64 = 4096;

/// A file that stores all metadata, the extents that are written while `storing`, and only the headers of other
/// extents.
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

/// An origin whose contents are generated when read: every block compresses 2:1.
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

/// Creates an empty cache in a new file.
async fn make(path: &Path, len: u64) -> Result<(Rc<Sparse>, Rc<MadeUp>), BenchError> {
    // Twice the size would fit at 2:1; four times is never read to its end.
    let origin = MadeUp { len: len * 4 };
    let wish = GeometryOptions::default();
    let metadata = Geometry::plan(len, BLOCK as u32, origin.len, wish)?.data_offset();
    std::fs::File::create(path)?.set_len(len + metadata)?;
    let file = FileDevice::open(path, OpenMode::default())?;
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        wish: wish.into(),
        codec: CodecChoice::default(),
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
    let open =
        LocalCache::<Bench>::open(Rt, Rc::clone(cache), Rc::clone(origin), Settings::default()).await?;
    let volume = CachedVolume::new(open.shards(), Rc::clone(origin), origin.len, 0);
    Ok((open, volume))
}

/// Fills the cache until all shards are full. Returns a block whose fragment was stored.
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
    // Stripes are assigned to shards in turn: if as many stripes in a row as there are shards find no space, all shards
    // are full.
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

/// Starts, reads a block, and stops.
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
        return Err("the start was not warm, or its first read was not a hit".into());
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

/// Opens an existing cache on its own runtime.
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

/// Starts, writes, and ends without a stop: the intents of the writes are set.
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

/// One start after a crash.
struct AfterCrash {
    seconds: f64,
    /// Processor time, if it was one thread.
    busy_seconds: f64,
    recovered: Recovered,
}

impl AfterCrash {
    fn checked(self) -> Result<Self, BenchError> {
        if self.recovered.blocks == 0 || self.recovered.stripes == 0 {
            return Err(format!("no data was recovered: {:?}", self.recovered).into());
        }
        Ok(self)
    }

    /// Millions of fragments per second for each of these times.
    fn rate(&self, seconds: f64) -> f64 {
        self.recovered.records as f64 / seconds / 1e6
    }
}

/// Processor seconds of this thread so far.
fn busy() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measures the start after a crash on one thread, and stops cleanly.
fn recover(path: &Path, origin_len: u64) -> Result<AfterCrash, BenchError> {
    Runtime::new(Config::default())?.block_on(async {
        let (cache, origin) = attach(path, origin_len).await?;
        let (started, busy_before) = (Instant::now(), busy());
        let (open, volume) = open(&cache, &origin).await?;
        let after = AfterCrash {
            seconds: started.elapsed().as_secs_f64(),
            busy_seconds: busy() - busy_before,
            recovered: open.recovered,
        };
        if open.start != Start::Recovered {
            return Err(format!("expected a start after a crash, found {:?}", open.start).into());
        }
        drop(volume);
        open.stop().await?;
        // The tasks of the cache end.
        Rt.sleep(Duration::from_millis(1)).await;
        after.checked()
    })
}

/// The shards of a cache on several threads for recovery, each with its own files. Nothing is served or stopped.
struct RecoveryThreads<'a> {
    count: u32,
    path: &'a Path,
    origin_len: u64,
    superblock: RefCell<Option<Superblock>>,
    origin_writes: OriginWrites,
}

impl RecoveryThreads<'_> {
    /// Recovers the shards of one thread.
    fn recover_share(
        path: &Path,
        origin_len: u64,
        share: Share,
        superblock: &Superblock,
        trust: Trust,
    ) -> Result<Result<Recovered, RecoverError>, BenchError> {
        Runtime::new(Config::default())?.block_on(async {
            let (cache, origin) = attach(path, origin_len).await?;
            let parts = GroupParts {
                share,
                around: Surroundings {
                    env: Rt,
                    cache,
                    origin,
                    host_records: None,
                    shared_budget: None,
                },
                origin_writes: OriginWrites::default(),
                codec_samples: SharedSamples::default(),
                index_memory: None,
            };
            let group = ShardGroup::<Bench>::new(parts, Settings::default());
            group.build(superblock).await?;
            Ok(group.recover_with(trust, || ()).await)
        })
    }
}

impl ShardSet for RecoveryThreads<'_> {
    async fn build(&self, superblock: &Superblock) -> Reached<()> {
        self.superblock.replace(Some(superblock.clone()));
        Ok(())
    }

    async fn load_images(&self, _epoch: Epoch) -> Reached<Result<u64, ImageError>> {
        Err(ShardsUnreachable("expected a start after a crash".to_owned()))
    }

    async fn recover(&self, trust: Trust) -> Reached<Result<Recovered, RecoverError>> {
        let superblock = self.superblock.borrow();
        let superblock = superblock.as_ref().expect("shards are built first");
        let (path, origin_len, step) = (self.path, self.origin_len, self.count);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..step)
                .map(|first| {
                    let share = Share { first, step };
                    scope.spawn(move || {
                        Self::recover_share(path, origin_len, share, superblock, trust)
                            .map_err(|error| error.to_string())
                    })
                })
                .collect();
            let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.collect()
        });
        let mut total = Recovered::default();
        for outcome in outcomes {
            let reached = outcome.unwrap_or_else(|_| Err("a thread panicked".to_owned()));
            match reached.map_err(ShardsUnreachable)? {
                Ok(part) => total.add(&part),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(total))
    }

    async fn permit_write_back(&self, _permitted: bool) -> Reached<()> {
        Ok(())
    }

    async fn start(&self) -> Reached<()> {
        Ok(())
    }

    async fn stop(&self) -> Reached<()> {
        Ok(())
    }

    async fn save(&self) -> Reached<Result<(), ImageError>> {
        Ok(Ok(()))
    }

    async fn state(&self) -> Reached<ShardsState> {
        Ok(ShardsState::default())
    }

    async fn grow_origin(&self, _len: u64) -> Reached<()> {
        Ok(())
    }

    async fn resize(&self, _step: ResizeStep) -> Reached<Shrinking> {
        Ok(Shrinking::default())
    }

    fn origin_writes(&self) -> &OriginWrites {
        &self.origin_writes
    }
}

/// Measures the same with the shards distributed over threads, as in a server, and ends without a stop.
fn recover_on(threads: u32, path: &Path, origin_len: u64) -> Result<AfterCrash, BenchError> {
    let started = Instant::now();
    let shards = RecoveryThreads {
        count: threads,
        path,
        origin_len,
        superblock: RefCell::new(None),
        origin_writes: OriginWrites::default(),
    };
    let opened = Runtime::new(Config::default())?.block_on(async {
        let (cache, origin) = attach(path, origin_len).await?;
        let superblock = read_superblock(&*cache).await?;
        let around = Surroundings::<Bench> {
            env: Rt,
            cache,
            origin,
            host_records: None,
            shared_budget: None,
        };
        let (_, opened) = Lifecycle::open(&around, superblock, OpenOptions::default(), &shards).await?;
        Ok::<_, BenchError>(opened)
    })?;
    if opened.start != Start::Recovered {
        return Err(format!("expected a start after a crash, found {:?}", opened.start).into());
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = AfterCrash {
        seconds,
        busy_seconds: seconds,
        recovered: opened.recovered,
    };
    after.checked()
}

/// Rows of start times.
///
/// # Errors
/// The cache cannot be created, filled or started.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let gib: u64 = if options.quick { 1 } else { 10 };
    let files = Files::new(options)?;
    let path = files.path().join("warm.cache");
    bar.set_message(format!("filling a cache of {gib} GiB"));
    let (mut warm, mut crashed, mut on_threads) = (Vec::new(), Vec::new(), Vec::new());
    // Servers use half as many by default, because they also serve clients.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
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
        on_threads.push(recover_on(threads, &path, origin_len)?);
        crashed.push(recover(&path, origin_len)?);
    }
    let figures = |of: fn(&Warm) -> f64| {
        let all: Vec<f64> = warm.iter().map(of).collect();
        Spread::of(&all).ok_or_else(|| "no runs".to_owned())
    };
    let of_crashes = |crashed: &[AfterCrash], of: fn(&AfterCrash) -> f64| {
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
            "the same, millions of fragments a second".into(),
            "-",
            figures(|warm| warm.blocks as f64 / warm.seconds / 1e6),
            " M/s",
        ),
        row(
            "the same, bytes read".into(),
            "-",
            figures(|warm| warm.read_bytes as f64 / f64::from(1 << 20)),
            " MiB",
        ),
        row(
            format!("start after a crash of the same cache, one thread{from}"),
            "-",
            of_crashes(&crashed, |after| after.seconds),
            " s",
        ),
        row(
            "the same, millions of fragments a second, one thread".into(),
            "5 / 20",
            of_crashes(&crashed, |after| after.rate(after.seconds)),
            " M/s",
        ),
        row(
            "the same, in a second of processor time".into(),
            "-",
            of_crashes(&crashed, |after| after.rate(after.busy_seconds)),
            " M/s",
        ),
        row(
            format!("the same, a thread for each of {threads} cores"),
            "-",
            of_crashes(&on_threads, |after| after.rate(after.seconds)),
            " M/s",
        ),
        row(
            "the same, bytes read".into(),
            "-",
            of_crashes(&crashed, |after| {
                after.recovered.bytes_read as f64 / f64::from(1 << 20)
            }),
            " MiB",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_starts_warm_repeatedly() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = Runtime::new(Config::default()).expect("a runtime");
        runtime.block_on(async {
            let len = 64 << 20;
            let (cache, origin) = make(&folder.path().join("cache"), len).await.expect("is made");
            let block = fill(&cache, &origin).await.expect("is filled");
            for _ in 0..3 {
                let warm = start(&cache, &origin, block).await.expect("starts warm");
                // All regions except the free ones are full of fragments of half a block.
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
            let one = |after: AfterCrash| {
                let recovered = after.recovered;
                assert!(recovered.stripes >= INTENT_STRIPES, "{recovered:?}");
                assert!(recovered.blocks > 20_000, "{recovered:?}");
                recovered
            };
            // The variant with threads ends without a stop: the blocks that it dropped are dropped again.
            let on_threads = one(recover_on(2, &path, 4 * (64 << 20)).expect("is recovered"));
            one(recover(&path, 4 * (64 << 20)).expect("is recovered"));
            dropped += on_threads.dropped;
        }
        assert!(dropped > 0, "some of the stripes were cached");
    }
}
