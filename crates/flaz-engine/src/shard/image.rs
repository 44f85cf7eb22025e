//! The index image: what a clean stop leaves in free regions, so that the next start is warm at once.
//!
//! ```text
//! header (48 B): magic u64, index bytes u64, regions u32, open regions u32, rings' lengths u32 x 2, reserved u64 x 2
//! regions:       state u8, ring u8, reserved u16, used u32, fill u64          (16 B each)
//! rings:         region numbers u32, oldest first: probation, main
//! open regions:  number u32, extents u32, records u32, reserved u32; extents (24 B each); records (8 B each)
//! index:         see Index::write_image
//! ```

use std::rc::Rc;

use flaz_device::{Device, Env, IoBuf};

use super::regions::{Region, RegionState};
use super::{Platform, Shard};
use crate::format::FormatError;
use crate::format::shard_state::{IMAGE_REGIONS_MAX, ShardState};
use crate::format::summary::SummaryExtent;
use crate::index::{Entry, Place};
use crate::policy::Ring;
use crate::units::{Epoch, Sequence, UNIT_BYTES};

const MAGIC: u64 = u64::from_le_bytes(*b"FLZIMAGE");
const HEADER_BYTES: usize = 48;
/// Bytes of the image written or read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Why an index image could not be written or read. The shard then starts cold.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The device failed.
    #[error("index image of shard {shard}: {source}")]
    Device {
        /// The shard.
        shard: u32,
        /// What happened.
        source: flaz_device::DeviceError,
    },
    /// The state page or the image is not valid.
    #[error("index image of shard {shard}: {source}")]
    Format {
        /// The shard.
        shard: u32,
        /// What is wrong.
        source: FormatError,
    },
    /// The parts of the image do not fit each other or the geometry.
    #[error("index image of shard {shard}: {what}")]
    Contents {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
    /// The cache device failed earlier; nothing may be left that looks valid.
    #[error("shard {shard}: the cache device failed; the cache will start cold")]
    Failed {
        /// The shard.
        shard: u32,
    },
}

/// An open region in an image.
#[derive(Debug)]
pub(crate) struct OpenRegionImage {
    pub(crate) number: u32,
    pub(crate) extents: Vec<SummaryExtent>,
    pub(crate) records: Vec<u64>,
}

impl<P: Platform> Shard<P> {
    /// Stops admission and reclaim, and waits until everything is on the cache device.
    pub async fn stop(self: &Rc<Self>) {
        self.stopping.set(true);
        self.jobs_changed.notify_one();
        self.reclaim_wanted.notify_one();
        loop {
            let jobs_left = !self.jobs.borrow().is_empty() || self.storing.get();
            if !jobs_left && !self.reclaiming.get() {
                break;
            }
            if jobs_left && !self.reclaiming.get() {
                // Stored blocks may need a region that the reclaim task no longer frees.
                let low = self.log.borrow().regions.free.len() < super::regions::FREE_REGIONS_LOW;
                if low && !self.failed.get() {
                    self.reclaim_one(true).await;
                    continue;
                }
            }
            self.idle.notified().await;
        }
        self.log.borrow_mut().seal_all();
        self.pump_writes();
        while self.log.borrow().writing() {
            self.idle.notified().await;
        }
    }

    /// Writes the image and the state page. Nothing is valid before the superblock says so.
    ///
    /// # Errors
    /// [`ImageError`] when the cache device failed now or earlier.
    pub async fn save(self: &Rc<Self>) -> Result<(), ImageError> {
        let shard = self.number;
        if self.failed.get() || self.stats.counters.cache_errors.get() > 0 {
            return Err(ImageError::Failed { shard });
        }
        let image = self.fit_image().await?;
        let regions: Vec<u32> = {
            let log = self.log.borrow();
            let wanted = image.len().div_ceil(self.geometry.region_bytes as usize);
            log.regions.free.iter().copied().take(wanted).collect()
        };
        let device = |source| ImageError::Device { shard, source };
        for (number, part) in regions
            .iter()
            .zip(image.chunks(self.geometry.region_bytes as usize))
        {
            let start = self.geometry.shard_offset(shard) + u64::from(*number) * self.geometry.region_bytes;
            for (i, chunk) in part.chunks(CHUNK_BYTES).enumerate() {
                let mut buf =
                    IoBuf::zeroed(chunk.len().next_multiple_of(self.geometry.sector_bytes as usize));
                buf[..chunk.len()].copy_from_slice(chunk);
                let position = start + (i * CHUNK_BYTES) as u64;
                self.cache
                    .write_at(position, buf, false)
                    .await
                    .1
                    .map_err(device)?;
            }
        }
        let state = ShardState {
            cache: self.cache_id,
            shard,
            epoch: self.epoch,
            next_sequence: self.log.borrow().next_sequence,
            image_bytes: image.len() as u64,
            image_checksum: crc32c::crc32c(&image),
            image_regions: regions,
        };
        let page = IoBuf::copy_of(&state.to_bytes());
        self.cache
            .write_at(self.geometry.shard_state_offset(shard), page, false)
            .await
            .1
            .map_err(device)
    }

    /// The image, after freeing as many regions as it needs.
    async fn fit_image(self: &Rc<Self>) -> Result<Vec<u8>, ImageError> {
        loop {
            let image = self.image();
            let regions = image.len().div_ceil(self.geometry.region_bytes as usize);
            if regions <= self.log.borrow().regions.free.len().min(IMAGE_REGIONS_MAX) {
                return Ok(image);
            }
            if !self.reclaim_one(false).await {
                let what = format!("{regions} regions are needed, and none can be freed");
                return Err(ImageError::Contents {
                    shard: self.number,
                    what,
                });
            }
        }
    }

    fn image(&self) -> Vec<u8> {
        let (log, index) = (self.log.borrow(), self.index.borrow());
        let regions = &log.regions;
        let open: Vec<_> = log.open_regions().collect();
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&(index.image_bytes() as u64).to_le_bytes());
        for count in [
            regions.table.len(),
            open.len(),
            regions.rings[0].len(),
            regions.rings[1].len(),
        ] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        out.extend_from_slice(&[0; 16]);
        for region in &regions.table {
            let state = match region.state {
                RegionState::Free | RegionState::Reclaiming => 0,
                RegionState::Open => 1,
                RegionState::Full => 2,
            };
            out.extend_from_slice(&[state, region.ring.number(), 0, 0]);
            out.extend_from_slice(&region.used.to_le_bytes());
            out.extend_from_slice(&region.fill.0.to_le_bytes());
        }
        for number in regions.rings.iter().flatten() {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for (number, extents, records) in open {
            for count in [number, extents.len() as u32, records.len() as u32, 0] {
                out.extend_from_slice(&count.to_le_bytes());
            }
            for extent in extents {
                out.extend_from_slice(&extent.offset.to_le_bytes());
                out.extend_from_slice(&extent.len.to_le_bytes());
                out.extend_from_slice(&extent.sequence.0.to_le_bytes());
                out.extend_from_slice(&extent.epoch.0.to_le_bytes());
                out.extend_from_slice(&u32::from(extent.record_count).to_le_bytes());
            }
            for record in records {
                out.extend_from_slice(&record.to_le_bytes());
            }
        }
        index.write_image(&mut out);
        out
    }

    /// Takes over what the last clean stop left. Returns the number of index entries that were refused.
    ///
    /// # Errors
    /// [`ImageError`]: the shard is then as empty as before.
    pub async fn load_image(self: &Rc<Self>, epoch: Epoch) -> Result<usize, ImageError> {
        let shard = self.number;
        let state = self.read_state(epoch).await?;
        let image = self.read_image(&state).await?;
        let contents = |what: String| ImageError::Contents { shard, what };
        self.restore(&image, state.next_sequence).map_err(contents)
    }

    async fn read_state(&self, epoch: Epoch) -> Result<ShardState, ImageError> {
        let shard = self.number;
        let page = IoBuf::new(crate::format::geometry::PAGE_BYTES);
        let (page, result) = self
            .cache
            .read_at(self.geometry.shard_state_offset(shard), page)
            .await;
        result.map_err(|source| ImageError::Device { shard, source })?;
        let state = ShardState::parse(&page, shard).map_err(|source| ImageError::Format { shard, source })?;
        let contents = |what: String| Err(ImageError::Contents { shard, what });
        if state.cache != self.cache_id {
            return contents(format!(
                "it belongs to cache {:#x}, this is {:#x}",
                state.cache, self.cache_id
            ));
        }
        if state.epoch != epoch {
            return contents(format!(
                "it was written in epoch {}, the superblock says {}",
                state.epoch.0, epoch.0
            ));
        }
        let room = state.image_regions.len() as u64 * self.geometry.region_bytes;
        let in_range = state
            .image_regions
            .iter()
            .all(|&number| number < self.geometry.regions_per_shard);
        if state.image_bytes > room || !in_range {
            return contents(format!(
                "{} bytes do not fit regions {:?}",
                state.image_bytes, state.image_regions
            ));
        }
        Ok(state)
    }

    async fn read_image(&self, state: &ShardState) -> Result<Vec<u8>, ImageError> {
        let shard = self.number;
        let mut image = Vec::with_capacity(state.image_bytes as usize);
        let mut left = state.image_bytes as usize;
        for &number in &state.image_regions {
            let start = self.geometry.shard_offset(shard) + u64::from(number) * self.geometry.region_bytes;
            let mut part = left.min(self.geometry.region_bytes as usize);
            left -= part;
            let mut at = start;
            while part > 0 {
                let len = part.min(CHUNK_BYTES);
                let buf = IoBuf::new(len.next_multiple_of(self.geometry.sector_bytes as usize));
                let (buf, result) = self.cache.read_at(at, buf).await;
                result.map_err(|source| ImageError::Device { shard, source })?;
                image.extend_from_slice(&buf[..len]);
                part -= len;
                at += len as u64;
            }
        }
        let computed = crc32c::crc32c(&image);
        if computed != state.image_checksum {
            let source = FormatError::Checksum {
                what: "index image",
                stored: state.image_checksum,
                computed,
            };
            return Err(ImageError::Format { shard, source });
        }
        Ok(image)
    }

    /// Takes the parts of an image over, each checked against the geometry and the others.
    fn restore(&self, image: &[u8], next_sequence: Sequence) -> Result<usize, String> {
        let mut input = Input(image);
        if input.u64()? != MAGIC {
            return Err("no magic number".into());
        }
        let index_bytes = input.u64()?;
        let counts = [input.u32()?, input.u32()?, input.u32()?, input.u32()?];
        input.skip(HEADER_BYTES - 32)?;
        let [regions, open, ..] = counts;
        if regions != self.geometry.regions_per_shard {
            return Err(format!(
                "{regions} regions, expected {}",
                self.geometry.regions_per_shard
            ));
        }
        let mut log = self.log.borrow_mut();
        let mut fresh = super::regions::Regions::all_free(regions);
        for number in 0..regions as usize {
            fresh.table[number] = input.region(self.geometry.region_bytes)?;
        }
        for (ring, len) in Ring::ALL.into_iter().zip(&counts[2..]) {
            for _ in 0..*len {
                let number = input.u32()?;
                let region = fresh
                    .table
                    .get(number as usize)
                    .ok_or("a ring names a region that is not there")?;
                if region.state != RegionState::Full || region.ring != ring {
                    return Err(format!("region {number} is in a ring and not full"));
                }
                fresh.ring(ring).push_back(number);
            }
        }
        let mut listed: Vec<u32> = fresh.rings.iter().flatten().copied().collect();
        listed.sort_unstable();
        listed.dedup();
        let full = fresh
            .table
            .iter()
            .filter(|region| region.state == RegionState::Full)
            .count();
        if listed.len() != full || listed.len() != fresh.rings[0].len() + fresh.rings[1].len() {
            return Err("rings and regions do not agree".into());
        }
        let mut reopened = Vec::new();
        for _ in 0..open {
            reopened.push(input.open_region()?);
        }
        let opened = fresh
            .table
            .iter()
            .filter(|region| region.state == RegionState::Open)
            .count();
        if opened != reopened.len() || opened > 2 {
            return Err("open regions do not agree".into());
        }
        fresh.free = (0..regions)
            .filter(|&n| fresh.table[n as usize].state == RegionState::Free)
            .collect();
        if input.0.len() as u64 != index_bytes {
            return Err(format!(
                "{} bytes of index, expected {index_bytes}",
                input.0.len()
            ));
        }
        let refused = {
            let table = &mut fresh.table;
            let (region_bytes, extent_bytes) =
                (self.geometry.region_bytes, u64::from(self.geometry.extent_bytes));
            let whole_blocks = self.whole_blocks();
            self.index.borrow_mut().read_image(input.0, |block, entry| {
                let in_range = self.global(block).0 < whole_blocks;
                let region = entry_region(table, entry, region_bytes, extent_bytes).filter(|_| in_range);
                region.map(|region| region.live += 1).is_some()
            })?
        };
        log.regions = fresh;
        log.next_sequence = next_sequence;
        for region in reopened {
            let Some(ring) = log
                .regions
                .table
                .get(region.number as usize)
                .map(|r| (r.ring, r.state))
            else {
                return Err("an open region is not there".into());
            };
            if ring.1 != RegionState::Open || log.has_open(ring.0) {
                return Err(format!(
                    "region {} is not the open one of its ring",
                    region.number
                ));
            }
            log.reopen(ring.0, region.number, region.extents, region.records);
        }
        Ok(refused)
    }
}

/// The region of an entry, if the entry lies in what has been filled of it.
fn entry_region(
    table: &mut [Region],
    entry: Entry,
    region_bytes: u64,
    extent_bytes: u64,
) -> Option<&mut Region> {
    let start = entry.location().offset();
    let region = table.get_mut(usize::try_from(start / region_bytes).ok()?)?;
    let (within, len) = match entry.place() {
        Place::Fragment { sectors, .. } => (start % region_bytes / 512 * 512, u64::from(sectors) * 512),
        Place::Fill { .. } => (start % region_bytes, UNIT_BYTES),
    };
    let filled =
        region.state != RegionState::Free && within + len <= u64::from(region.used).min(region_bytes);
    (filled && len <= extent_bytes).then_some(region)
}

/// What is left of an image.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("image ends early")?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    fn skip(&mut self, len: usize) -> Result<(), String> {
        self.0 = self.0.get(len..).ok_or("image ends early")?;
        Ok(())
    }

    fn region(&mut self, region_bytes: u64) -> Result<Region, String> {
        let [state, ring, ..] = self.take::<4>()?;
        let state = match state {
            0 => RegionState::Free,
            1 => RegionState::Open,
            2 => RegionState::Full,
            other => return Err(format!("unknown region state {other}")),
        };
        let ring = Ring::from_number(ring).ok_or_else(|| format!("unknown ring {ring}"))?;
        let used = self.u32()?;
        if u64::from(used) > region_bytes || !used.is_multiple_of(512) {
            return Err(format!("a region of {region_bytes} bytes with {used} used"));
        }
        let fill = Sequence(self.u64()?);
        if state == RegionState::Free {
            return Ok(Region::FREE);
        }
        Ok(Region {
            state,
            ring,
            fill,
            used,
            ..Region::FREE
        })
    }

    fn open_region(&mut self) -> Result<OpenRegionImage, String> {
        let (number, extents, records) = (self.u32()?, self.u32()?, self.u32()?);
        self.skip(4)?;
        let bytes = u64::from(extents) * 24 + u64::from(records) * 8;
        if bytes > self.0.len() as u64 {
            return Err(format!(
                "open region {number} promises {bytes} bytes, {} are left",
                self.0.len()
            ));
        }
        let extents = (0..extents)
            .map(|_| {
                Ok(SummaryExtent {
                    offset: self.u32()?,
                    len: self.u32()?,
                    sequence: Sequence(self.u64()?),
                    epoch: Epoch(self.u32()?),
                    record_count: u16::try_from(self.u32()?).map_err(|_| "too many records in an extent")?,
                })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let records = (0..records).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(OpenRegionImage {
            number,
            extents,
            records,
        })
    }
}
