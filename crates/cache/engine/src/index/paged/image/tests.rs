use std::collections::BTreeMap;

use flaz_random::Random;

use super::*;
use crate::format::geometry::GeometryOptions;
use crate::units::Location;

const SLOT_BYTES: usize = 512;

fn geometry() -> Geometry {
    let wish = GeometryOptions {
        region_bytes: Some(128 << 10),
        extent_bytes: Some(32 << 10),
        shard_count: Some(1),
        index_memory: Some(1 << 20),
        ..GeometryOptions::default()
    };
    Geometry::plan(64 << 20, 512, 256 << 20, wish).expect("fits")
}

/// Pages of about twenty entries.
fn plan(geometry: &Geometry, mark: u64) -> PagePlan {
    let slots = geometry.shard_index_len() / SLOT_BYTES as u64;
    PagePlan {
        region_bytes: geometry.region_bytes,
        ..PagePlan::small(slots as u32, SLOT_BYTES, mark)
    }
}

/// An index, the device, and what must be in the index.
struct Rig {
    geometry: Geometry,
    index: PagedIndex,
    device: BTreeMap<u32, Vec<u8>>,
    model: BTreeMap<LocalBlock, Entry>,
    random: Random,
    next: u64,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let geometry = geometry();
        Self {
            index: PagedIndex::new(plan(&geometry, 7)),
            geometry,
            device: BTreeMap::new(),
            model: BTreeMap::new(),
            random: Random::new(seed),
            next: 0,
        }
    }

    /// With some thousand blocks.
    fn filled(seed: u64) -> Self {
        let mut rig = Self::new(seed);
        for _ in 0..300 {
            rig.step();
        }
        rig
    }

    fn write(&mut self) {
        for mut write in self.index.begin_writes(8) {
            if write.reads_first() {
                let old = &self.device[&write.slot()];
                self.index.complete(&mut write, old).expect("it was written");
            }
            self.device.insert(write.slot(), write.bytes.clone());
            self.index.end_write(&write, true);
        }
    }

    fn load(&mut self, block: LocalBlock) {
        while !self.index.make_room(1, true) {
            self.write();
        }
        for read in self.index.missing(block..LocalBlock(block.0 + 1)) {
            let in_slot = |slot: u32| &self.device[&slot][..];
            let changes = read.changes_slot().map_or(&[][..], in_slot);
            let put = self.index.put(read, in_slot(read.slot()), changes);
            put.expect("it was written");
        }
    }

    fn region_of(&self, entry: Entry) -> u32 {
        (entry.location().offset() / self.geometry.region_bytes) as u32
    }

    /// Stores some neighbours, each alone or together, in the next region, from which all others are dropped first.
    fn step(&mut self) {
        let (regions, bytes) = (
            u64::from(self.geometry.regions_per_shard),
            self.geometry.region_bytes,
        );
        let region = (self.next % regions) as u32;
        self.next += 1;
        let there: Vec<_> = self.model.iter().map(|(block, entry)| (*block, *entry)).collect();
        for (block, entry) in &there {
            if entry.dirty() && self.region_of(*entry) == region {
                self.load(*block);
                self.index.clean(*block);
            }
        }
        let gone = there.iter().filter(|(_, entry)| self.region_of(*entry) == region);
        let gone: Vec<LocalBlock> = gone.map(|(block, _)| *block).collect();
        self.index.forget_uses(region);
        self.index.retire(region, gone.len() as u32);
        for block in gone {
            self.model.remove(&block);
        }
        for place in 0..self.random.below(40) {
            let offset = u64::from(region) * bytes + 512 + place * 3072;
            let first = LocalBlock(4 * self.random.below(4000));
            let dirty = self.random.below(5) == 0;
            let (at, count) = (Location::at(offset), 1 + self.random.below(4));
            let entry = match self.random.below(4) {
                0 => Entry::same_filled(at, 3).with_dirty(dirty),
                1 => Entry::fragment(at, 2000).with_dirty(dirty),
                _ => Entry::group(at, 3000),
            };
            let members = if entry.is_group() { count } else { 1 };
            for block in (first.0..first.0 + members).map(LocalBlock) {
                self.load(block);
                self.index.insert(block, entry);
                self.model.insert(block, entry);
            }
            if self.random.below(3) == 0 {
                self.index.note_use(entry);
            }
        }
    }

    fn image(&mut self) -> Vec<u8> {
        while self.index.leave_changed() {
            assert!(self.index.image().is_none(), "changes are not written");
            self.write();
        }
        assert!(self.index.deltas.len() > 0 || self.index.page_count() < 20);
        self.index.image().expect("all is written")
    }

    /// What a start does with an image.
    fn start(&self, image: &[u8]) -> Result<PagedIndex, String> {
        let mut image = PageImage::parse(image, &self.geometry)?;
        let pages = image.pages();
        let mut found = Vec::new();
        for (slots, pages) in image.runs(&pages) {
            let in_slot = |slot| self.device.get(&slot).cloned().unwrap_or(vec![0; SLOT_BYTES]);
            let bytes: Vec<u8> = slots.clone().flat_map(in_slot).collect();
            found.extend(pages.iter().map(|page| image.entries(*page, slots.start, &bytes)));
        }
        for entries in found {
            let entries = entries?;
            let regions = self.geometry.regions_per_shard;
            if entries.iter().any(|(_, entry)| self.region_of(*entry) >= regions) {
                return Err("no region".into());
            }
            image.count(&entries)?;
        }
        let mut index = PagedIndex::new(plan(&self.geometry, 8));
        if !index.fits(&image) {
            return Err("another size".into());
        }
        index.inherit(image);
        Ok(index)
    }
}

#[test]
fn an_image_has_what_the_index_had() {
    for seed in 0..4 {
        let mut rig = Rig::new(seed);
        for turn in 0..8 {
            for _ in 0..200 {
                rig.step();
            }
            let image = rig.image();
            let again = rig.start(&image).expect("nothing is damaged");
            let before = std::mem::replace(&mut rig.index, again);
            assert!(
                rig.index.page_count() > 100 || turn == 0,
                "{}",
                rig.index.page_count()
            );
            assert_eq!(rig.index.len(), rig.model.len());
            assert_eq!(rig.index.fragments(), before.fragments());
            assert_eq!(rig.index.slots.in_use() as usize, rig.index.page_count());
            assert_eq!(rig.index.deltas.bytes(), before.deltas.bytes());
            for region in 0..rig.geometry.regions_per_shard {
                assert_eq!(rig.index.dirty_in(region), before.dirty_in(region));
            }
            for (block, entry) in rig.model.clone() {
                rig.load(block);
                let found = rig.index.get(block).expect("it is there");
                assert!(found.same_place(entry));
                assert_eq!(rig.index.uses_of(entry), before.uses_of(entry));
            }
        }
    }
}

/// Whatever an image says, its checksum included, it is refused, or the index can be used.
#[test]
fn a_forged_image_is_refused_or_can_be_used() {
    let mut rig = Rig::filled(9);
    let image = rig.image();
    let deltas = rig.index.deltas.bytes() + rig.index.deltas.len() * DELTA_HEAD_BYTES;
    let (mut refused, mut random) = (0, Random::new(1));
    for turn in 0..3000 {
        let mut forged = image.clone();
        for _ in 0..1 + random.below(3) {
            let at = match turn % 3 {
                0 => random.index(HEAD_BYTES),
                1 => random.index(forged.len()),
                // The changes.
                _ => forged.len() - 1 - random.index(deltas),
            };
            forged[at] = random.below(256) as u8;
        }
        if turn % 7 == 0 {
            forged.truncate(random.index(forged.len()));
        }
        let Ok(index) = rig.start(&forged) else {
            refused += 1;
            continue;
        };
        let before = std::mem::replace(&mut rig.index, index);
        for _ in 0..5 {
            let block = LocalBlock(random.below(16_000));
            rig.load(block);
            rig.index.remove(block);
        }
        rig.index = before;
    }
    assert!(refused > 1500, "{refused}");
    rig.start(&image).expect("the right one is accepted");
}

/// The number of retirements is never at its end.
#[test]
fn a_forged_number_of_retirements_is_refused() {
    let mut rig = Rig::new(11);
    rig.step();
    let mut image = rig.image();
    image[16..24].fill(0xff);
    assert!(rig.start(&image).is_err());
    image[23] = 0x7f;
    rig.index = rig.start(&image).expect("there is room for more");
    for _ in 0..100 {
        rig.model.clear();
        rig.index.retire(1, 0);
    }
}

/// Whatever a page says, with the right checksum, the image is refused, or the index can be used, and stopped again.
#[test]
fn a_forged_page_is_refused_or_can_be_used() {
    let mut rig = Rig::filled(12);
    let image = rig.image();
    let device = rig.device.clone();
    let deltas = rig.index.deltas.bytes() + rig.index.deltas.len() * DELTA_HEAD_BYTES;
    let pages = image.len() - deltas - rig.index.page_count() * PAGE_ENTRY_BYTES;
    let (mut used, mut random) = (0, Random::new(2));
    for _ in 0..2000 {
        let mut forged = image.clone();
        let entry = pages + random.index(rig.index.page_count()) * PAGE_ENTRY_BYTES;
        let slot = u32::from_le_bytes(forged[entry + 8..entry + 12].try_into().expect("4 bytes"));
        let bytes = rig.device.get_mut(&slot).expect("it is there");
        let at = [random.index(80), SLOT_BYTES - 8 + random.index(8)][random.index(2)];
        bytes[at] = random.below(256) as u8;
        let checksum = crc32c::crc32c(bytes).to_le_bytes();
        forged[entry + 12..entry + 16].copy_from_slice(&checksum);
        if let Ok(index) = rig.start(&forged) {
            used += 1;
            let before = std::mem::replace(&mut rig.index, index);
            for _ in 0..20 {
                let block = LocalBlock(random.below(16_000));
                rig.load(block);
                rig.index.remove(block);
                rig.index.insert(block, Entry::fragment(Location(64), 100));
            }
            let again = rig.image();
            rig.start(&again).expect("it is right");
            rig.index = before;
        }
        rig.device.clone_from(&device);
    }
    assert!(used > 20, "{used}");
}

#[test]
fn a_damaged_page_is_found() {
    let mut rig = Rig::filled(10);
    let image = rig.image();
    let slots: Vec<u32> = rig.device.keys().copied().collect();
    let read = PageImage::parse(&image, &rig.geometry).expect("it is right");
    let (pages, rows) = (
        read.pages(),
        read.rows.iter().map(|(row, ..)| rows::changes_slot(row)),
    );
    let in_use: Vec<u32> = pages.iter().map(|page| page.slot).chain(rows).collect();
    assert!(in_use.len() > pages.len() + 5, "some have changes on the device");
    for slot in slots {
        let at = rig.random.index(SLOT_BYTES);
        rig.device.get_mut(&slot).expect("it is there")[at] ^= 1;
        let is_in_use = in_use.contains(&slot);
        assert_eq!(rig.start(&image).is_err(), is_in_use, "slot {slot}");
        rig.device.get_mut(&slot).expect("it is there")[at] ^= 1;
    }
}
