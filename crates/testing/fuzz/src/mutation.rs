//! Mutations of real images by structure: fields changed and sealed again, structures moved, older versions restored,
//! devices spliced and cut.
//!
//! What readers may see afterwards depends on the mutations, see [`Mutated`].

use flaz_engine::format::manifest::{MANIFEST_ENTRY_BYTES, MANIFEST_HEADER_BYTES};
use flaz_engine::format::summary::Summary;
use flaz_engine::settings::Mode;
use flaz_engine::units::Sequence;
use flaz_sim::{DiskConfig, DiskImage};

use crate::choices::Choices;
use crate::sectors::SECTOR;
use crate::shape::End;
use crate::structure::{Kind, Place, fields, number, seal};
use crate::victim::Victim;

/// Maximum number of mutations of one image.
const MUTATIONS_MAX: u32 = 6;

/// Size of a superblock slot in bytes.
const SUPERBLOCK_SLOT_BYTES: u64 = 64 << 10;

/// What may be read from a mutated cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// The contents of the origin: the damage is of a kind that media cause (any number of places after a clean stop,
    /// one sector after a crash). With dirty blocks: the last writes or errors, after one damage and a clean stop.
    Right,
    /// Any contents that a sector ever had: newer records were removed, or older ones restored, all of them the cache's
    /// own.
    Held,
    /// As above, or sectors of equal bytes: records were forged, and a same-filled block consists only of a record. A
    /// forged record can also restore an older version, but never other data, because a fragment's checksum covers its
    /// identity and no mutation forges it.
    HeldOrSameFilled,
    /// As above, or the contents of the other cache: the superblock is the other's, so its structures are accepted. (A
    /// host record would detect that; here there is none.)
    HeldByEither,
}

/// An image after its mutations.
pub struct Mutated {
    /// The cache device.
    pub image: DiskImage,
    /// What may be read.
    pub promise: Promise,
    /// The mutations as text.
    pub log: Vec<String>,
}

/// The image with another index image in shard 0, and a matching state page.
#[must_use]
pub fn with_index(victim: &Victim, bytes: &[u8]) -> DiskImage {
    let mut work = Work::new(victim);
    let place = victim.places.iter().find(|place| place.kind == Kind::Image);
    let place = place.expect("it was stopped cleanly");
    let mut bytes = bytes[..bytes.len().min(victim.geometry.region_bytes as usize)].to_vec();
    work.put(place, &mut bytes);
    work.image
}

/// The image during the mutations.
struct Work<'v> {
    victim: &'v Victim,
    image: DiskImage,
    promise: Promise,
    damaged: u32,
    log: Vec<String>,
}

/// Applies the mutations that `choices` select to the image.
#[must_use]
pub fn mutate(victim: &Victim, choices: &mut Choices<'_>) -> Mutated {
    let mut work = Work::new(victim);
    for _ in 0..MUTATIONS_MAX {
        if choices.is_over() {
            break;
        }
        work.step(choices);
    }
    Mutated {
        image: work.image,
        promise: work.promise,
        log: work.log,
    }
}

impl<'v> Work<'v> {
    fn new(victim: &'v Victim) -> Self {
        Self {
            victim,
            image: victim.cache.clone(),
            promise: Promise::Right,
            damaged: 0,
            log: Vec::new(),
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(16) {
            0..6 => self.field(choices),
            6 => self.damage_structure(choices),
            7 => self.damage_anywhere(choices),
            8 => self.swap(choices),
            9 => self.copy(choices),
            10 => self.replay(choices),
            11 => self.splice(choices),
            12 => self.manifest(choices),
            13 => self.relist(choices),
            14 => self.resize_index(choices),
            _ => self.truncate(choices),
        }
    }

    fn note(&mut self, promise: Promise, what: String) {
        self.promise = self.promise.max(promise);
        self.log.push(what);
    }

    /// Bytes were damaged, with unchanged checksums.
    fn damage(&mut self, start: u64, len: u64, what: String) {
        self.damaged += 1;
        let superblocks = start < 2 * SUPERBLOCK_SLOT_BYTES;
        let sector = u64::from(self.victim.geometry.sector_bytes);
        let one_sector = self.damaged == 1 && start / sector == (start + len.max(1) - 1) / sector;
        let clean = self.victim.shape.end == End::Clean;
        let right = if self.victim.shape.mode == Mode::WriteBack {
            // Damage to data that was just written, or to its stable mark, looks like data that was never written.
            clean && self.damaged == 1 && (one_sector || !superblocks)
        } else {
            one_sector || (clean && !superblocks && self.promise == Promise::Right)
        };
        self.note(if right { Promise::Right } else { Promise::Held }, what);
    }

    fn place(&self, choices: &mut Choices<'_>, kinds: &[Kind]) -> Option<Place> {
        let kind = *choices.pick(kinds);
        let of: Vec<_> = self
            .victim
            .places
            .iter()
            .filter(|place| place.kind == kind)
            .collect();
        (!of.is_empty()).then(|| **choices.pick(&of))
    }

    fn bytes(&self, place: &Place) -> Vec<u8> {
        self.image.read(place.start, place.len as usize)
    }

    fn put(&mut self, place: &Place, bytes: &mut [u8]) {
        seal(place.kind, bytes);
        self.image.write(place.start, bytes);
        if place.kind == Kind::Image {
            self.reseal_state(place, bytes);
        }
    }

    /// Makes the state page of a shard match its index image.
    fn reseal_state(&mut self, image: &Place, bytes: &[u8]) {
        let start = self.victim.geometry.shard_state_offset(image.shard);
        let mut page = self.image.read(start, 4096);
        page[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        page[40..44].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
        seal(Kind::State, &mut page);
        self.image.write(start, &page);
    }

    /// Changes some fields of a structure.
    fn field(&mut self, choices: &mut Choices<'_>) {
        let Some(place) = self.place(choices, &Kind::SEALED) else {
            return;
        };
        let Some(other) = self.place(choices, &[place.kind]) else {
            return;
        };
        let (mut bytes, other) = (self.bytes(&place), self.bytes(&other));
        for _ in 0..1 + choices.below(3) {
            let fields = fields(place.kind, &bytes);
            let (at, width) = *choices.pick(&fields);
            let Some(old) = bytes.get(at..at + width) else {
                continue;
            };
            let elsewhere = other.get(at..at + width).map_or(0, number);
            let value = choices.value(number(old), elsewhere, width);
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            let what = format!("{place:?}: {width} bytes at {at} are {value:#x}");
            self.note(Promise::HeldOrSameFilled, what);
        }
        self.put(&place, &mut bytes);
    }

    /// Changes some bytes of a structure but not its checksum.
    fn damage_structure(&mut self, choices: &mut Choices<'_>) {
        let Some(place) = self.place(choices, &Kind::SEALED) else {
            return;
        };
        let at = place.start + choices.below(place.len);
        let byte = self.image.read(at, 1)[0] ^ choices.byte().max(1);
        self.image.write(at, &[byte]);
        self.damage(at, 1, format!("{place:?}: byte {at} of the device is {byte:#x}"));
    }

    /// Writes zeroes or noise anywhere.
    fn damage_anywhere(&mut self, choices: &mut Choices<'_>) {
        let sectors = self.image.len() / SECTOR;
        let start = choices.below(sectors) * SECTOR;
        let len = match choices.below(4) {
            0..3 => SECTOR,
            _ => choices.below(256) * SECTOR,
        };
        let len = len.min(self.image.len() - start);
        let mut bytes = vec![0; len as usize];
        if choices.below(2) == 1 {
            flaz_sim::Rng::new(start).fill(&mut bytes);
        }
        self.image.write(start, &bytes);
        self.damage(start, len, format!("{len} bytes at {start} are damaged"));
    }

    /// Changes the position that a structure contains to that of another place, if `rehome` says so.
    fn rehome(&self, from: &Place, to: &Place, bytes: &mut [u8], choices: &mut Choices<'_>) -> bool {
        if choices.below(2) == 0 {
            return false;
        }
        let target = self.image.read(to.start, to.len as usize);
        let (len, target_len) = (bytes.len(), target.len());
        let mut take = |at: usize, target_at: usize, width: usize| {
            if let (Some(place), Some(value)) = (
                bytes.get_mut(at..at + width),
                target.get(target_at..target_at + width),
            ) {
                place.copy_from_slice(value);
            }
        };
        match from.kind {
            Kind::Extent => {
                take(32, 32, 8);
                if choices.below(2) == 1 {
                    take(24, 24, 8);
                    take(16, 16, 8);
                }
            }
            Kind::Summary => {
                take(len - 32, target_len - 32, 8);
                if choices.below(2) == 1 {
                    take(len - 40, target_len - 40, 8);
                }
            }
            Kind::Intent => take(8, 8, 4),
            Kind::State => take(12, 12, 4),
            Kind::Manifest => take(12, 12, 4),
            _ => return false,
        }
        seal(from.kind, bytes);
        true
    }

    /// Writes a structure to the place of another one of its kind.
    fn write_over(&mut self, from: &Place, to: &Place, bytes: &[u8], choices: &mut Choices<'_>) {
        let mut bytes = bytes.to_vec();
        let rehomed = self.rehome(from, to, &mut bytes, choices);
        // Summaries end with their region; all other structures begin at its start.
        let start = match from.kind {
            Kind::Summary => to.start + to.len - bytes.len() as u64,
            _ => to.start,
        };
        let bytes = &bytes[..bytes.len().min((self.image.len() - start) as usize)];
        self.image.write(start, bytes);
        let what = format!("{from:?} is at {start}, rehomed: {rehomed}");
        if rehomed {
            self.note(Promise::HeldOrSameFilled, what);
        } else if matches!(from.kind, Kind::Superblock | Kind::Intent | Kind::Manifest) {
            // Some of these fit in other places as they are: an older superblock is one.
            self.note(Promise::Held, what);
        } else {
            self.damage(start, bytes.len() as u64, what);
        }
    }

    fn swap(&mut self, choices: &mut Choices<'_>) {
        const KINDS: [Kind; 7] = [
            Kind::Region,
            Kind::Extent,
            Kind::Summary,
            Kind::State,
            Kind::Intent,
            Kind::Superblock,
            Kind::Manifest,
        ];
        let Some(one) = self.place(choices, &KINDS) else {
            return;
        };
        let Some(other) = self.place(choices, &[one.kind]) else {
            return;
        };
        let (first, second) = (self.bytes(&one), self.bytes(&other));
        self.write_over(&one, &other, &first, choices);
        self.write_over(&other, &one, &second, choices);
    }

    fn copy(&mut self, choices: &mut Choices<'_>) {
        const KINDS: [Kind; 7] = [
            Kind::Region,
            Kind::Extent,
            Kind::Summary,
            Kind::State,
            Kind::Intent,
            Kind::Superblock,
            Kind::Manifest,
        ];
        let Some(from) = self.place(choices, &KINDS) else {
            return;
        };
        let Some(to) = self.place(choices, &[from.kind]) else {
            return;
        };
        let bytes = self.bytes(&from);
        self.write_over(&from, &to, &bytes, choices);
    }

    /// A range of the device, by structure or by sectors.
    fn range(&self, choices: &mut Choices<'_>) -> (u64, u64) {
        const KINDS: [Kind; 9] = [
            Kind::Region,
            Kind::Extent,
            Kind::Summary,
            Kind::State,
            Kind::Intent,
            Kind::Superblock,
            Kind::Image,
            Kind::Manifest,
            Kind::Page,
        ];
        match self.place(choices, &KINDS).filter(|_| choices.below(3) > 0) {
            Some(place) => (place.start, place.len),
            None => {
                let start = choices.below(self.image.len() / SECTOR) * SECTOR;
                (start, (choices.below(512) * SECTOR).min(self.image.len() - start))
            }
        }
    }

    /// Restores an older version of a range.
    fn replay(&mut self, choices: &mut Choices<'_>) {
        let older = choices.pick(&self.victim.older);
        let (start, len) = self.range(choices);
        let len = len.min(self.image.len() - start);
        self.image.write(start, &older.read(start, len as usize));
        self.note(Promise::Held, format!("{len} bytes at {start} are older"));
    }

    /// Copies a range from another cache.
    fn splice(&mut self, choices: &mut Choices<'_>) {
        let (start, len) = self.range(choices);
        let len = len.min(self.image.len() - start);
        self.image
            .write(start, &self.victim.twin.read(start, len as usize));
        // Intents are the only structure without the identity of its cache.
        let geometry = &self.victim.geometry;
        let intents = geometry.intent_offset()..geometry.intent_offset() + geometry.intent_len();
        let what = format!("{len} bytes at {start} are another cache's");
        if start < 2 * SUPERBLOCK_SLOT_BYTES {
            self.note(Promise::HeldByEither, what);
        } else if start < intents.end && start + len > intents.start {
            self.note(Promise::Held, what);
        } else {
            self.damage(start, len, what);
        }
    }

    /// Lets the manifest say of a region what it says of another one, or something else.
    fn manifest(&mut self, choices: &mut Choices<'_>) {
        let Some(place) = self.place(choices, &[Kind::Manifest]) else {
            return;
        };
        let (mut bytes, regions) = (
            self.bytes(&place),
            u64::from(self.victim.geometry.regions_per_shard),
        );
        let mut entry = || MANIFEST_HEADER_BYTES + choices.below(regions) as usize * MANIFEST_ENTRY_BYTES;
        let (from, to) = (entry(), entry());
        if bytes.len() < from.max(to) + MANIFEST_ENTRY_BYTES {
            return;
        }
        bytes.copy_within(from..from + MANIFEST_ENTRY_BYTES, to);
        // Another state, mostly.
        if choices.below(4) > 0 {
            bytes[to + 10] = bytes[to + 10] & 0x8f | (choices.below(6) as u8) << 4;
        }
        if choices.below(2) == 0 {
            // It counts, whatever the other copy says.
            bytes[16..24].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        }
        self.put(&place, &mut bytes);
        self.note(
            Promise::HeldOrSameFilled,
            format!("{place:?} has another entry at {to}, of that at {from}"),
        );
    }

    /// Writes a summary with another list of extents and records.
    fn relist(&mut self, choices: &mut Choices<'_>) {
        let (Some(place), Some(region)) = (
            self.place(choices, &[Kind::Summary]),
            self.place(choices, &[Kind::Region]),
        ) else {
            return;
        };
        let Ok(mut summary) = Summary::parse(&self.bytes(&place)) else {
            return;
        };
        for _ in 0..1 + choices.below(4) {
            let extents = summary.extents.len().max(1) as u64;
            let records = summary.records.len().max(1) as u64;
            let (extent, record) = (choices.below(extents) as usize, choices.below(records) as usize);
            match choices.below(8) {
                0 => summary.extents.truncate(extent),
                1 => summary.records.truncate(record),
                2 if !summary.extents.is_empty() => summary.extents.push(summary.extents[extent]),
                3 if !summary.records.is_empty() => summary.records.push(summary.records[record]),
                4 => {
                    if let Some(one) = summary.extents.get_mut(extent) {
                        one.sequence = Sequence(choices.value(one.sequence.0, summary.generation.0, 8));
                    }
                }
                5 => {
                    if let Some(one) = summary.extents.get_mut(extent) {
                        one.record_count = choices.value(one.record_count.into(), records, 2) as u16;
                    }
                }
                6 => summary.generation = Sequence(choices.value(summary.generation.0, 0, 8)),
                _ => {
                    if let Some(one) = summary.records.get_mut(record) {
                        *one = choices.value(*one, 0, 8);
                    }
                }
            }
        }
        // Usually the number of records fits.
        if choices.below(4) > 0 {
            let listed = summary
                .extents
                .iter()
                .map(|extent| usize::from(extent.record_count))
                .sum();
            summary.records.resize(std::cmp::min(listed, 1 << 12), 0);
        }
        let to = if choices.below(2) == 0 {
            region
        } else {
            let end = place.start + place.len;
            Place {
                start: end - region.len,
                ..region
            }
        };
        summary.position = to.start;
        let len = flaz_engine::format::summary::summary_bytes(
            summary.extents.len(),
            summary.records.len(),
            self.victim.geometry.sector_bytes,
        );
        if len > to.len {
            return;
        }
        let mut area = vec![0; len as usize];
        summary.write(&mut area);
        self.image.write(to.start + to.len - len, &area);
        let what = format!("{to:?} has another summary: {summary:?}");
        self.note(Promise::HeldOrSameFilled, what);
    }

    /// Inserts bytes into an index image or removes some.
    fn resize_index(&mut self, choices: &mut Choices<'_>) {
        let Some(place) = self.place(choices, &[Kind::Image]) else {
            return;
        };
        let mut bytes = self.bytes(&place);
        let at = choices.below(bytes.len() as u64) as usize;
        let count = choices.below(64) as usize * 4;
        if choices.below(2) == 0 {
            bytes.drain(at..(at + count).min(bytes.len()));
        } else {
            let fill = choices.byte();
            bytes.splice(at..at, std::iter::repeat_n(fill, count));
        }
        bytes.truncate(self.victim.geometry.region_bytes as usize);
        let what = format!("{place:?} has {} bytes, changed at {at}", bytes.len());
        self.put(&place, &mut bytes);
        self.note(Promise::HeldOrSameFilled, what);
    }

    /// Shortens the device.
    fn truncate(&mut self, choices: &mut Choices<'_>) {
        let alignment = u64::from(self.image.config().alignment);
        let len = choices.below(self.image.len() / alignment) * alignment;
        let mut short = DiskImage::new(DiskConfig {
            len,
            ..self.image.config().clone()
        });
        short.write(0, &self.image.read(0, len as usize));
        // Only as the last mutation, because later ones would not find their place.
        if choices.is_over() {
            self.image = short;
            self.note(Promise::Held, format!("the device ends at {len}"));
        }
    }
}
