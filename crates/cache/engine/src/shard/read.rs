//! Reads: hits from the cache device, misses from the origin, both concurrently for a partial hit.
//!
//! A miss is answered first and admitted afterwards. Two readers of one missed block cause one origin read: see
//! [`super::origin_reads`].

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::deadline::is_timeout;
use flaz_device::{Env, IoBuf, Nanos, Priority};
use futures_util::future::{join, join_all};

use super::fragment::{self, FragmentError, Restored};
use super::gather::{Limits, neighbours};
use super::load::Hit;
use super::order::Version;
use super::origin_reads::Run;
use super::{Platform, Shard, Shared};
use crate::index::Entry;
use crate::settings::Mode;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock};
use crate::volume::IoError;

/// Number of hits of a request from which decoding is spread over the cores.
const DECODE_SPLIT_BLOCKS_MIN: usize = 32;

/// Maximum number of blocks of a request that is read without index pages if the entries of all are cached: a page of a database.
const CACHED_RUN_MAX: usize = 4;

/// Neighbouring hits that are read together.
#[derive(Debug)]
struct Gather {
    start: u64,
    end: u64,
    hits: Vec<Hit>,
}

/// The result of a lookup for a request.
#[derive(Debug, Default)]
struct Found {
    blocks: u64,
    hits: Vec<Hit>,
    missed: Vec<usize>,
}

impl<P: Platform> Shard<P> {
    /// Reads `len` bytes at byte `offset` of the exported device; the range lies in one stripe of this shard.
    /// With `bypass`, misses are not admitted.
    ///
    /// # Errors
    /// [`IoError`] when the origin fails for a block that is not cached.
    pub async fn read(self: &Rc<Self>, offset: u64, len: usize, bypass: bool) -> Result<IoBuf, IoError> {
        let cut = self.whole_blocks() * BLOCK_BYTES as u64;
        if self.dirty_allowed() && offset < cut && cut < offset + len as u64 {
            // The partial block at the origin's end is never cached; blocks before it may be dirty.
            let head = (cut - offset) as usize;
            let mut out = IoBuf::new(len);
            out[..head].copy_from_slice(&self.read_range(offset, head, bypass).await?);
            out[head..].copy_from_slice(&self.read_range(cut, len - head, bypass).await?);
            return Ok(out);
        }
        self.read_range(offset, len, bypass).await
    }

    async fn read_range(self: &Rc<Self>, offset: u64, len: usize, bypass: bool) -> Result<IoBuf, IoError> {
        let started = self.env.now();
        let first = offset / BLOCK_BYTES as u64;
        let last = (offset + len as u64 - 1) / BLOCK_BYTES as u64;
        let whole = last < self.whole_blocks();
        let passes = self.mode() == Mode::PassThrough && !self.any_dirty_now(&(first..last + 1)).await;
        if passes || !whole {
            let result = self.origin.read_range(offset, len).await;
            let blocks = last - first + 1;
            self.count_read(started, len, 0, blocks);
            return result;
        }
        let bypass = bypass || self.mode() == Mode::PassThrough;
        let blocks = (last - first + 1) as usize;
        let local = self.local(BlockNumber(first));
        self.follow_read(local..LocalBlock(local.0 + blocks as u64), bypass);
        let (mut out, found) = match self.read_one_cached(local, blocks).await? {
            Some(out) => (out, 1),
            None => Box::pin(self.read_many(local, blocks, bypass)).await?,
        };
        self.follow_outcome(found, blocks as u64 - found);
        self.count_read(started, len, found, blocks as u64 - found);
        let skip = (offset - first * BLOCK_BYTES as u64) as usize;
        if skip > 0 {
            out.copy_within(skip..skip + len, 0);
        }
        out.set_len(len);
        Ok(out)
    }

    fn count_read(&self, started: Nanos, len: usize, found: u64, missed: u64) {
        let now = self.env.now();
        let took = now.since(started);
        self.weigh_read(found, missed > 0, now);
        let counters = &self.stats.counters;
        count(&counters.reads, 1);
        count(&counters.read_bytes, len as u64);
        count(&counters.hit_blocks, found);
        count(&counters.miss_blocks, missed);
        let latencies = &mut *self.stats.latencies.borrow_mut();
        if missed == 0 {
            count(&counters.read_hits, 1);
            latencies.read_hit.record(took);
        } else {
            count(
                if found > 0 {
                    &counters.read_partial_hits
                } else {
                    &counters.read_misses
                },
                1,
            );
            latencies.read_miss.record(took);
        }
    }

    /// The fast path: one cached block. The only allocation is the reply's pooled buffer.
    async fn read_one_cached(
        self: &Rc<Self>,
        block: LocalBlock,
        blocks: usize,
    ) -> Result<Option<IoBuf>, IoError> {
        if blocks != 1 {
            return Ok(None);
        }
        let entry = match self.map.lookup_cached(block) {
            Some(entry) => entry,
            None => {
                let is_loaded = self.map.is_loaded(block);
                self.load_page(block).await;
                let entry = self.map.lookup(block);
                let Some(entry) = entry else { return Ok(None) };
                if !is_loaded {
                    self.map.cache_entry(block, entry);
                }
                entry
            }
        };
        // The hit is counted here only if it succeeds; otherwise `read_many` repeats the lookup.
        let mut out = IoBuf::new(BLOCK_BYTES);
        Ok(self.load_hit(block, entry, &mut out).await?.then(|| {
            self.map.count_use(block, entry, |entry| self.counts_read(entry));
            out
        }))
    }

    /// Reads blocks whose entries are cached. False: some are not, or cannot be read.
    async fn read_without_pages(
        self: &Rc<Self>,
        first: LocalBlock,
        blocks: usize,
        out: &mut [u8],
    ) -> Result<bool, IoError> {
        let block = |index: usize| LocalBlock(first.0 + index as u64);
        let entries = (0..blocks).map_while(|index| self.map.lookup_cached(block(index)));
        let entries: Vec<Entry> = entries.collect();
        if entries.len() < blocks {
            return Ok(false);
        }
        let mut hits = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            self.is_known(block(index))?;
            self.map
                .count_use(block(index), *entry, |entry| self.counts_read(entry));
            let place = &mut out[index * BLOCK_BYTES..][..BLOCK_BYTES];
            match self.load_from_memory(block(index), *entry, place) {
                Some(Ok(())) => {}
                Some(Err(_)) => return Ok(false),
                None => hits.push(self.hit(index, block(index), *entry)),
            }
        }
        Ok(self.read_hits(hits, out).await?.is_empty())
    }

    /// Caches the entries of blocks that were read, and whose pages were loaded for that.
    fn cache_entries(&self, first: LocalBlock, blocks: usize) {
        for block in (0..blocks as u64).map(|index| LocalBlock(first.0 + index)) {
            if let Some(entry) = self.map.lookup(block) {
                self.map.cache_entry(block, entry);
            }
        }
    }

    /// The general path. Returns whole blocks and how many of them were cached.
    async fn read_many(
        self: &Rc<Self>,
        first: LocalBlock,
        blocks: usize,
        bypass: bool,
    ) -> Result<(IoBuf, u64), IoError> {
        let mut out = IoBuf::new(blocks * BLOCK_BYTES);
        if blocks <= CACHED_RUN_MAX && self.read_without_pages(first, blocks, &mut out).await? {
            return Ok((out, blocks as u64));
        }
        let run = run_of(first, blocks);
        let last = LocalBlock(run.end.0 - 1);
        let is_loaded = blocks > CACHED_RUN_MAX || self.map.is_loaded(first) && self.map.is_loaded(last);
        self.load_run(run).await;
        let mut found = self.look_up(first, blocks, &mut out)?;
        if !is_loaded {
            self.cache_entries(first, blocks);
        }
        let hits = std::mem::take(&mut found.hits);
        let (bad, missed) = if hits.is_empty() {
            (
                Ok(Vec::new()),
                self.read_missed(first, &found.missed, bypass).await,
            )
        } else if found.missed.is_empty() {
            (self.read_hits(hits, &mut out).await, Ok(Vec::new()))
        } else {
            join(
                self.read_hits(hits, &mut out),
                self.read_missed(first, &found.missed, bypass),
            )
            .await
        };
        for (index, data, at) in missed? {
            out[index * BLOCK_BYTES..][..data.len() - at].copy_from_slice(&data[at..]);
        }
        let mut bad = bad?;
        found.blocks -= bad.len() as u64;
        if self.writeback.has_dirty_records() {
            // After a bad copy, repeat the lookup: there may be a newer copy, and if it is dirty, the origin is out of date.
            let mut gone = Vec::new();
            for index in bad {
                let block = LocalBlock(first.0 + index as u64);
                self.load_page(block).await;
                let entry = self.map.lookup(block);
                let place = &mut out[index * BLOCK_BYTES..][..BLOCK_BYTES];
                match entry {
                    Some(_) => self.read_block(block, place).await?,
                    None => {
                        self.is_known(block)?;
                        gone.push(index);
                    }
                }
            }
            bad = gone;
        }
        for (index, data, at) in self.read_missed(first, &bad, bypass).await? {
            out[index * BLOCK_BYTES..][..data.len() - at].copy_from_slice(&data[at..]);
        }
        Ok((out, found.blocks))
    }

    /// Looks up the blocks of a request, whose pages have been loaded: those in memory go to `out`, the rest are hits on the device
    /// or misses.
    fn look_up(self: &Rc<Self>, first: LocalBlock, blocks: usize, out: &mut [u8]) -> Result<Found, IoError> {
        let mut found = Found::default();
        for index in 0..blocks {
            let block = LocalBlock(first.0 + index as u64);
            let place = &mut out[index * BLOCK_BYTES..][..BLOCK_BYTES];
            let entry = self.map.touch(block, |entry| self.counts_read(entry));
            self.is_known(block)?;
            let Some(entry) = entry else {
                found.missed.push(index);
                continue;
            };
            match self.load_from_memory(block, entry, place) {
                Some(Ok(())) => found.blocks += 1,
                Some(Err(error)) => {
                    self.drop_bad(block, entry, Some(&error))?;
                    found.missed.push(index);
                }
                None => {
                    found.blocks += 1;
                    found.hits.push(self.hit(index, block, entry));
                }
            }
        }
        Ok(found)
    }

    /// Reads and restores hits into `out`; returns the indexes of those that could not be read.
    async fn read_hits(self: &Rc<Self>, hits: Vec<Hit>, out: &mut [u8]) -> Result<Vec<usize>, IoError> {
        let total = hits.len();
        let groups = gather(hits, self.id.layout.region_bytes);
        let split = total >= DECODE_SPLIT_BLOCKS_MIN && self.env.parallelism() > 1;
        let mut bad = Vec::new();
        let mut lost = Ok(());
        // The reads of all groups are issued together; each is decoded when it arrives.
        let reads = groups.into_iter().map(|group| async move {
            let pins: Vec<_> = group
                .hits
                .iter()
                .map(|hit| self.log.pin(hit.identity.location))
                .collect();
            // A failed read of a group does not mean that each block in it is bad.
            let known = group.hits.len() > 1 || self.map.is_damaged(group.hits[0].block);
            let len = group.end - group.start;
            let read = self.read_cache_again(group.start, len, known).await;
            let (buf, at) = match read {
                Ok(read) => read,
                Err(error) if group.hits.len() == 1 || is_timeout(&error) => {
                    let none = group.hits.iter().map(|_| Err(None)).collect();
                    return (group, none, Vec::new(), Some(pins));
                }
                Err(_) => {
                    let plain = self.read_apart(&group.hits).await;
                    return (group, plain, Vec::new(), Some(pins));
                }
            };
            let mut restored = Vec::new();
            if self.weighs() {
                let bytes = |hit: &Hit| &buf[at + (hit.identity.location.offset() - group.start) as usize..];
                let hits = group.hits.iter();
                restored.extend(hits.map(|hit| Restored::of(bytes(hit), hit.identity.block)));
            }
            let started = self.env.now();
            let plain = if split {
                self.decode_elsewhere(buf, at, &group).await
            } else {
                self.codecs
                    .decode(|decoders| decode(decoders, &buf[at..], &group))
            };
            let took = self.env.now().since(started).as_nanos() as u64;
            count(&self.stats.counters.unpacked_blocks, group.hits.len() as u64);
            count(&self.stats.counters.unpack_ns, took);
            // A bad block is dropped before its region is used again: the block may then be at the same place, and be good.
            let pins = plain.iter().any(Result::is_err).then_some(pins);
            (group, plain, restored, pins)
        });
        let mut weighed = Vec::new();
        for (group, plain, restored, _pins) in join_all(reads).await {
            let mut restored = restored.into_iter();
            for (hit, result) in group.hits.iter().zip(plain) {
                let by = restored.next();
                match result {
                    Ok(block) => {
                        self.map.not_damaged(hit.block);
                        out[hit.index * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&block);
                        weighed.extend(by.map(|by| (*hit, by)));
                    }
                    Err(error) => {
                        self.load_page(hit.block).await;
                        lost = lost.and(self.drop_bad(hit.block, hit.entry, error.as_ref()));
                        bad.push(hit.index);
                    }
                }
            }
        }
        lost?;
        let block_of = |hit: &Hit| &out[hit.index * BLOCK_BYTES..][..BLOCK_BYTES];
        self.weigh_hits(&weighed, block_of);
        bad.sort_unstable();
        Ok(bad)
    }

    /// Reads hits one by one after a read of the group failed. All failures together count as one failure of the device.
    async fn read_apart(self: &Rc<Self>, hits: &[Hit]) -> Vec<Decoded> {
        let reads = (hits.iter()).map(|hit| self.read_cache_again(hit.start, hit.end - hit.start, true));
        let (mut counted, mut plain) = (false, Vec::with_capacity(hits.len()));
        for (hit, read) in hits.iter().zip(join_all(reads).await) {
            plain.push(match read {
                Ok((buf, at)) => {
                    let mut block = IoBuf::new(BLOCK_BYTES);
                    let skip = at + (hit.identity.location.offset() - hit.start) as usize;
                    self.unpack(&buf[skip..], &hit.identity, &mut block)
                        .map(|()| block)
                        .map_err(Some)
                }
                Err(error) => {
                    // A late read has already been counted.
                    if !counted && !is_timeout(&error) && !self.map.is_damaged(hit.block) {
                        counted = true;
                        self.cache_error(&error);
                    }
                    Err(None)
                }
            });
        }
        plain
    }

    /// Decodes a group on another core.
    async fn decode_elsewhere(&self, buf: IoBuf, at: usize, group: &Gather) -> Vec<Decoded> {
        let copy = Gather {
            start: group.start,
            end: group.end,
            hits: group.hits.clone(),
        };
        let (elsewhere, dictionaries) = self.codecs.elsewhere();
        let restore = move || elsewhere.decode(dictionaries, |decoders| decode(decoders, &buf[at..], &copy));
        self.env.compute(Priority::Read, restore).await
    }

    /// Reads missed blocks (sorted indexes) from the origin, neighbours together. Returns runs of data: the index of the first
    /// block, the buffer, and the offset of the run in it.
    async fn read_missed(
        self: &Rc<Self>,
        first: LocalBlock,
        missed: &[usize],
        bypass: bool,
    ) -> Result<Vec<(usize, Shared, usize)>, IoError> {
        // From here until all reads are listed nothing awaits: a block could be read twice.
        self.load_run(missed_of(first, missed)).await;
        let mut runs = self.origin_reads.split(first, missed, &self.order);
        // There is usually one run: no boxed future for it.
        if runs.len() == 1 {
            let (index, run) = runs.pop().expect("one");
            return Ok(self
                .read_run(index, first, run, bypass)
                .await?
                .into_iter()
                .collect());
        }
        let reads = runs
            .into_iter()
            .map(|(index, run)| self.read_run(index, first, run, bypass));
        let mut all = Vec::new();
        for result in join_all(reads).await {
            all.extend(result?);
        }
        Ok(all)
    }

    /// Begins to read a run, see [`Shard::fetch`], or to wait for the read that has its data.
    fn read_run(
        self: &Rc<Self>,
        index: usize,
        first: LocalBlock,
        run: Run,
        bypass: bool,
    ) -> impl Future<Output = Result<Option<(usize, Shared, usize)>, IoError>> {
        let first = LocalBlock(first.0 + index as u64);
        let own = match run {
            Run::Own { blocks } => Some(self.fetch(first, blocks, bypass)),
            Run::Join { .. } => None,
        };
        async move {
            if let Some(own) = own {
                return Ok(Some((index, own.await?, 0)));
            }
            let Run::Join { read, from, blocks } = run else {
                unreachable!("the other runs are read by this request")
            };
            count(&self.stats.counters.joined_reads, 1);
            let Ok(data) = read.joined().await else {
                // Another block of that read may have caused the failure.
                self.load_run(run_of(first, blocks)).await;
                let data = self.fetch(first, blocks, bypass).await?;
                return Ok(Some((index, data, 0)));
            };
            let slice = &data[from * BLOCK_BYTES..(from + blocks) * BLOCK_BYTES];
            Ok(Some((index, Arc::new(IoBuf::copy_of(slice)), 0)))
        }
    }

    /// Begins to read whole blocks, whose index pages have been loaded, from the origin for all waiting readers: the blocks are looked
    /// up, and the read is listed, before this returns. The future reads them, and offers them for admission.
    fn fetch(
        self: &Rc<Self>,
        first: LocalBlock,
        blocks: usize,
        bypass: bool,
    ) -> impl Future<Output = Result<Shared, IoError>> {
        let missed = |block| self.map.lookup(block).is_none();
        let versions: Vec<Option<Version>> = (0..blocks as u64)
            .map(|i| LocalBlock(first.0 + i))
            .map(|block| missed(block).then(|| self.order.version(block)))
            .collect();
        let listed = self.origin_reads.list(first, versions);
        async move {
            let offset = self.global(first).offset();
            let at_origin = async {
                let _reading = self.origin.shared().read();
                self.origin.read(offset, IoBuf::new(blocks * BLOCK_BYTES)).await
            };
            let (read, data) = listed
                .fetch(&self.stats, at_origin)
                .await
                .map_err(IoError::Origin)?;
            if bypass {
                count(&self.stats.counters.refused_sequential, blocks as u64);
            } else {
                self.offer_read(first, read.versions(), &data);
            }
            Ok(data)
        }
    }
}

fn run_of(first: LocalBlock, blocks: usize) -> Range<LocalBlock> {
    first..LocalBlock(first.0 + blocks as u64)
}

/// The range of the blocks with these sorted indexes.
fn missed_of(first: LocalBlock, missed: &[usize]) -> Range<LocalBlock> {
    let at = |index: usize| LocalBlock(first.0 + index as u64);
    missed
        .first()
        .zip(missed.last())
        .map_or(first..first, |(&low, &high)| at(low)..at(high + 1))
}

type Decoded = Result<IoBuf, Option<FragmentError>>;

fn decode(decoders: &mut flaz_codec::Decoders, bytes: &[u8], group: &Gather) -> Vec<Decoded> {
    // Hits of one fragment follow each other.
    (group.hits)
        .chunk_by(|a, b| a.identity.location == b.identity.location)
        .flat_map(|hits| {
            let identities: Vec<_> = hits.iter().map(|hit| hit.identity).collect();
            let skip = (identities[0].location.offset() - group.start) as usize;
            fragment::unpack_members(decoders, &bytes[skip..], &identities)
        })
        .map(|decoded| decoded.map_err(Some))
        .collect()
}

/// Groups hits whose fragments are close to each other.
fn gather(mut hits: Vec<Hit>, region_bytes: u64) -> Vec<Gather> {
    hits.sort_unstable_by_key(|hit| hit.identity.location);
    let groups = neighbours(&hits, Limits::OF_HITS, region_bytes, |hit| hit.start..hit.end);
    let gather = |(range, hits): (Range<u64>, &[Hit])| Gather {
        start: range.start,
        end: range.end,
        hits: hits.to_vec(),
    };
    groups.map(gather).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::{DiskConfig, Rng};
    use futures_util::FutureExt;

    use crate::format::geometry::GeometryOptions;
    use crate::policy::Ring;
    #[cfg(feature = "planted-bugs")]
    use crate::shard::log::Append;
    #[cfg(feature = "planted-bugs")]
    use crate::shard::simulated::store;
    use crate::shard::simulated::{Disks, append, raw};
    use crate::units::BLOCK_BYTES;
    #[cfg(feature = "planted-bugs")]
    use crate::units::LocalBlock;
    #[cfg(feature = "planted-bugs")]
    use crate::volume::IoError;

    /// Two blocks in different regions are read, one of which is damaged. Returns whether its region was pinned until the other one was
    /// read, if that took longer.
    fn is_damage_pinned(seed: u64) -> Option<bool> {
        let us = Duration::from_micros;
        let config = DiskConfig {
            read_latency: us(100)..=us(2_000),
            ..DiskConfig::fast(8 << 20)
        };
        let disks = Disks::on(seed, config, GeometryOptions::default());
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(seed).fill(&mut data);
        let region = disks.sim.block_on(async {
            let first = disks.shard(1);
            append(&first, Ring::Main, 0, raw(&data));
            append(&first, Ring::Probation, 1, raw(&data));
            assert!(first.make_log_stable().await);
            first.log.open_numbers()[Ring::Main.index()].expect("one is open")
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            let fragment = disks.region(region) + disks.geometry.header_bytes() as u64;
            disks.cache.flip_bit(fragment + 100, 0);
            let decoded = || second.stats.counters.unpacked_blocks.get();
            let mut read = pin!(second.read(0, 2 * BLOCK_BYTES, false));
            let mut pinned = None;
            while (&mut read).now_or_never().is_none() && decoded() < 2 {
                if decoded() == 1 {
                    pinned = Some(second.log.is_pinned(region));
                }
                disks.env.sleep(us(10)).await;
            }
            pinned
        })
    }

    /// Blocks in pages far apart are read again and again: first with their pages, then mostly without, also several at once. A block
    /// that was written since is found.
    #[cfg(feature = "planted-bugs")]
    #[test]
    fn blocks_that_are_read_often_need_no_index_pages() {
        const BLOCKS: u64 = 16;
        crate::planted::page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            let data = |block: u64| [block as u8; BLOCK_BYTES];
            let store = async |block: u64, data: &[u8]| {
                let what = Append::Packed {
                    codec: flaz_codec::CodecId::RAW,
                    stored: data,
                    plain_crc: crc32c::crc32c(data),
                    dirty: false,
                };
                store(&shard, Ring::Main, block, what).await;
            };
            for block in 0..1000 {
                store(block, &data(block)).await;
                if block % 16 == 15 {
                    assert!(shard.make_log_stable().await);
                }
            }
            let page_reads = || shard.stats().counts.index_page_reads;
            let mut reads = Vec::new();
            for turn in 0..10 {
                let before = page_reads();
                for n in 0..BLOCKS {
                    let (block, len) = (n * 61, 1 + n % 2);
                    let read = shard.read(block * BLOCK_BYTES as u64, len as usize * BLOCK_BYTES, false);
                    let read = read.await.expect("the devices work");
                    for (block, read) in (block..block + len).zip(read.chunks_exact(BLOCK_BYTES)) {
                        let changed = u64::from(turn > 5 && block == 61);
                        assert!(read == data(block + changed), "turn {turn}, block {block}");
                    }
                }
                reads.push(page_reads() - before);
                if turn == 5 {
                    store(61, &data(62)).await;
                }
            }
            assert!(reads[0] > BLOCKS / 2 && reads[9] * 4 < reads[0], "{reads:?}");
        });
        crate::planted::page_index(false);
    }

    /// A dirty block is damaged in an extent that is in memory, and its entry is cached: its page is loaded before it is handled.
    #[cfg(feature = "planted-bugs")]
    #[test]
    fn a_cached_entry_of_a_damaged_block_in_memory_is_handled() {
        crate::planted::page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            for block in 1..1000 {
                let same = Append::SameFilled {
                    value: block as u8,
                    dirty: false,
                };
                store(&shard, Ring::Main, block, same).await;
                if block % 16 == 0 {
                    assert!(shard.make_log_stable().await);
                }
            }
            let data = [1; BLOCK_BYTES];
            let damaged = Append::Packed {
                codec: flaz_codec::CodecId::RAW,
                stored: &data,
                plain_crc: !crc32c::crc32c(&data),
                dirty: true,
            };
            shard.writeback.note_dirty_record();
            store(&shard, Ring::Main, 0, damaged).await;
            for turn in 0..3 {
                for block in 1..1000 {
                    shard.load_page(LocalBlock(block)).await;
                }
                assert!(!shard.map.is_loaded(LocalBlock(0)), "its page has left");
                let read = shard.read(0, BLOCK_BYTES, false).await;
                assert!(
                    matches!(read, Err(IoError::DirtyLost { block: 0 })),
                    "turn {turn}"
                );
            }
        });
        crate::planted::page_index(false);
    }

    /// Otherwise the region could be freed and filled again, and then a good block of the same place be dropped.
    #[test]
    fn the_region_of_a_damaged_block_is_pinned_until_the_block_is_dropped() {
        let outcomes: Vec<bool> = (0..20).filter_map(is_damage_pinned).collect();
        assert!(outcomes.len() > 10, "one of two reads takes longer");
        assert!(!outcomes.contains(&false), "{outcomes:?}");
    }
}
