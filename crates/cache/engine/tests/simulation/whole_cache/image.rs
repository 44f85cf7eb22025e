//! A small cache after a clean stop, the location of everything in it, and changes to it that keep its checksums valid.

use std::ops::Range;

use flaz_engine::check::Object;
use flaz_engine::format::extent::{EXTENT_HEADER_BYTES, header_copy_bytes};
use flaz_engine::format::geometry::{Geometry, PAGE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::shard_state::ShardState;
use flaz_engine::format::summary::Summary;
use flaz_engine::policy::PolicyKind;
use flaz_engine::volume::Volume;
use flaz_sim::DiskImage;

use crate::whole_cache::rig::{BLOCK, Rig, SMALLEST, SMALLEST_LEN, plain_disk, settings};

/// Length of the origin.
pub const ORIGIN_LEN: u64 = 512 << 10;

/// Contents of the origin: no two blocks are equal, some are same-filled, the others compress to less than half.
fn contents(number: u64) -> Vec<u8> {
    const NOISE_BYTES: usize = 1400;
    if number % 10 == 9 {
        return vec![number as u8; 4096];
    }
    let mut noise = vec![0; NOISE_BYTES];
    flaz_sim::Rng::new(number).fill(&mut noise);
    let text = format!("block {number:04} of the victim, and so on; ");
    noise.into_iter().chain(text.bytes().cycle()).take(4096).collect()
}

/// A cache and its origin.
pub struct Victim {
    pub cache: DiskImage,
    pub origin: DiskImage,
    /// The contents of the origin, which every reader should see.
    pub right: Vec<u8>,
    pub geometry: Geometry,
    pub state: ShardState,
    /// Headers of all extents.
    pub extents: Vec<Range<u64>>,
    /// Their copies.
    pub copies: Vec<Range<u64>>,
    /// Stored fragments, without padding.
    pub fragments: Vec<Range<u64>>,
    /// The summary of the full region.
    pub summary: Range<u64>,
    /// The index image.
    pub index: Range<u64>,
}

impl Victim {
    /// Raw and same-filled blocks in a full and an open region, with overwritten and trimmed blocks.
    pub fn new() -> Self {
        let victim = Self::of_codec("none");
        assert!(!victim.summary.is_empty(), "a region is full");
        victim
    }

    /// The same with a codec. There may be no full region then.
    pub fn of_codec(codec: &str) -> Self {
        let rig = Rig::new(1, plain_disk(ORIGIN_LEN), plain_disk(SMALLEST_LEN));
        for number in 0..ORIGIN_LEN / BLOCK {
            rig.origin.poke(number * BLOCK, &contents(number));
        }
        let geometry = rig.create(ORIGIN_LEN, SMALLEST).geometry;
        let findings = rig.sim.block_on(async {
            let open = rig.opened(settings(codec, PolicyKind::Fifo)).await;
            open.prefetch(0..50).await;
            for number in 3..6 {
                open.write(number * BLOCK, &[b'a' + number as u8, 0].repeat(2048))
                    .await;
            }
            open.volume.trim(7 * BLOCK, BLOCK, false).await.expect("trims");
            open.stored().await;
            open.stop().await.expect("stops");
            rig.check().await.expect("has a superblock")
        });
        let state =
            ShardState::parse(&rig.disk.peek(geometry.shard_state_offset(0), 4096), 0).expect("valid");
        let region = |number: u32| geometry.region_offset(0, number);
        let (mut extents, mut copies, mut fragments, mut summary) =
            (Vec::new(), Vec::new(), Vec::new(), 0..0);
        for finding in findings {
            match finding.object.expect("nothing is wrong") {
                Object::Extent(header) => {
                    let (end, copied) = (
                        finding.offset + finding.len,
                        header_copy_bytes(header.record_count.into()),
                    );
                    extents.push(finding.offset..finding.offset + u64::from(header.header_bytes));
                    copies.push(end - copied as u64..end);
                }
                Object::Fragment { stored, .. } => {
                    fragments.push(finding.offset..finding.offset + 8 + u64::from(stored));
                }
                Object::Summary { .. } => {
                    let end = finding.offset + finding.len;
                    let tail = rig.disk.peek(end - 64, 64);
                    let len = Summary::parse_len(&tail, geometry.region_bytes).expect("valid") as u64;
                    summary = end - len..end;
                }
                _ => {}
            }
        }
        assert!(extents.len() > 1 && fragments.len() > 40);
        assert_eq!(state.image_regions.len(), 1);
        let start = region(state.image_regions[0]);
        Self {
            cache: rig.disk.snapshot(),
            origin: rig.origin.snapshot(),
            right: rig.origin.peek(0, ORIGIN_LEN as usize),
            geometry,
            index: start..start + state.image_bytes,
            state,
            extents,
            copies,
            fragments,
            summary,
        }
    }

    /// Everything on the device except the data of blocks, by name.
    pub fn metadata(&self) -> Vec<(&'static str, Range<u64>)> {
        let page = |offset: u64| offset..offset + 4096;
        let slot = |offset: u64| offset..offset + SUPERBLOCK_BYTES as u64;
        let sector = |copy| {
            let start = self.geometry.manifest_sector_offset(0, 0, copy);
            start..start + u64::from(self.geometry.sector_bytes)
        };
        let intents = self.geometry.intent_offset();
        let mut all = vec![
            ("superblock", slot(SUPERBLOCK_SLOTS[0])),
            ("superblock", slot(SUPERBLOCK_SLOTS[1])),
            ("manifest", sector(0)),
            ("manifest", sector(1)),
            ("shard state", page(self.geometry.shard_state_offset(0))),
            ("intents", intents..intents + self.geometry.intent_len()),
            ("index image", self.index.clone()),
            ("summary", self.summary.clone()),
        ];
        all.extend(self.extents.iter().map(|range| ("extent header", range.clone())));
        all.extend(
            self.copies
                .iter()
                .map(|range| ("copy of extent header", range.clone())),
        );
        all
    }

    /// A copy with `change` applied to a range, whose checksum at `checksum` is then updated.
    fn sealed(&self, range: Range<u64>, checksum: usize, change: impl FnOnce(&mut [u8])) -> DiskImage {
        let mut image = self.cache.clone();
        let mut bytes = image.read(range.start, (range.end - range.start) as usize);
        change(&mut bytes);
        image.write(range.start, &bytes);
        reseal(&mut image, range, checksum);
        image
    }

    /// With changed sectors of the manifest, the same in both copies.
    pub fn with_manifest(&self, change: impl Fn(&mut [u8])) -> DiskImage {
        let mut image = self.cache.clone();
        for copy in 0..2 {
            let start = self.geometry.manifest_sector_offset(0, 0, copy);
            let sector = start..start + u64::from(self.geometry.sector_bytes);
            let mut bytes = image.read(sector.start, 512);
            change(&mut bytes);
            image.write(sector.start, &bytes);
            reseal(&mut image, sector, 4);
        }
        image
    }

    /// With a changed superblock, and no second one.
    pub fn with_superblock(&self, change: impl FnOnce(&mut [u8])) -> DiskImage {
        let [first, second] = SUPERBLOCK_SLOTS;
        let generation = |slot: u64| {
            let bytes = self.cache.read(slot + 40, 8);
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let (last, other) = if generation(first) > generation(second) {
            (first, second)
        } else {
            (second, first)
        };
        let mut bytes = self.cache.read(last, SUPERBLOCK_BYTES);
        change(&mut bytes);
        // The strings have a checksum of their own, in the page.
        let texts = crc32c::crc32c(&bytes[PAGE_BYTES..]);
        bytes[116..120].copy_from_slice(&texts.to_le_bytes());
        let mut image = self.cache.clone();
        image.write(last, &bytes);
        image.write(other, &[0; PAGE_BYTES]);
        reseal(&mut image, last..last + PAGE_BYTES as u64, 12);
        image
    }

    /// With a changed shard state.
    pub fn with_state(&self, change: impl FnOnce(&mut [u8])) -> DiskImage {
        let offset = self.geometry.shard_state_offset(0);
        self.sealed(offset..offset + 4096, 8, change)
    }

    /// With a changed index image.
    pub fn with_index(&self, change: impl FnOnce(&mut Vec<u8>)) -> DiskImage {
        let mut bytes = self
            .cache
            .read(self.index.start, (self.index.end - self.index.start) as usize);
        change(&mut bytes);
        let mut image = self.with_state(|state| {
            state[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            state[40..44].copy_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        });
        image.write(self.index.start, &bytes);
        image
    }

    /// With a changed header of extent `number`.
    pub fn with_extent(&self, number: usize, change: impl FnOnce(&mut [u8])) -> DiskImage {
        assert!(self.geometry.header_bytes() > EXTENT_HEADER_BYTES);
        self.sealed(self.extents[number].clone(), 4, change)
    }

    /// With a changed summary of the full region.
    pub fn with_summary(&self, change: impl FnOnce(&mut [u8])) -> DiskImage {
        let len = (self.summary.end - self.summary.start) as usize;
        self.sealed(self.summary.clone(), len - 64 + 4, change)
    }

    /// The contents of block `number`.
    pub fn block(&self, number: u64) -> &[u8] {
        &self.right[(number * BLOCK) as usize..][..BLOCK as usize]
    }
}

/// Updates the checksum of a range, `checksum` bytes from its start.
fn reseal(image: &mut DiskImage, range: Range<u64>, checksum: usize) {
    let mut bytes = image.read(range.start, (range.end - range.start) as usize);
    bytes[checksum..checksum + 4].fill(0);
    let sum = crc32c::crc32c(&bytes);
    image.write(range.start + checksum as u64, &sum.to_le_bytes());
}
