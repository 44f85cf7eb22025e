//! The superblock: identity, geometry and state of a cache, in two slots that are written one after the other.
//!
//! A slot is a page with the numbers of the cache and of its volumes, followed by the strings of the volumes: names, and
//! the identity of the origin. There is space for [`VOLUMES_MAX`] volumes; one is supported for now.
//!
//! The valid slot with the higher generation counts. An update writes one slot and flushes, so that a torn write leaves
//! the older one; then it writes the same bytes to the other slot.

use flaz_codec::{CodecChoice, CodecId};
use std::num::{NonZeroU32, NonZeroU64};
use uuid::Uuid;

use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::geometry::{Geometry, PAGE_BYTES, SUPERBLOCK_BYTES};
use crate::format::layout::Layout;
use crate::format::stored_settings::{RawSettings, budget_number};
use crate::format::{FormatError, checksum_without};
use crate::settings::{AfterCrash, StoredSettings};
use crate::units::Epoch;
use crate::volume::STRIPE_BYTES;

/// First eight bytes of a cache device.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FLAZCACH");
/// The format version that this build reads and writes.
pub const VERSION: u32 = 11;
const WHAT: &str = "superblock";
const NUMBERS_EXPECTED: &str = "numbers that others can follow";
/// Largest accepted generation: no cache is written that often.
const GENERATION_MAX: u64 = u64::MAX / 2;
/// No superblock has this epoch: contents are voided by a valid-from epoch one higher, which would not fit.
pub(crate) const EPOCH_END: u32 = u32::MAX;
/// Feature: the cache may hold dirty blocks. Software that does not support it must not use the cache.
const FEATURE_DIRTY: u64 = 1;
const FEATURE_CONTRADICTED: u64 = 2;
const FEATURES: u64 = FEATURE_DIRTY | FEATURE_CONTRADICTED;
/// Longest identity of an origin, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 192;
/// Longest path of an origin, in bytes.
pub const PATH_BYTES_MAX: usize = 640;
/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Number of volumes that the format has space for.
pub const VOLUMES_MAX: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U64,
    version: U32,
    checksum: U32,
    features: U64,
    uuid: [u8; 16],
    generation: U64,
    created_unix_s: U64,
    device_len: U64,
    region_bytes: U64,
    sector_bytes: U32,
    extent_bytes: U32,
    shard_count: U32,
    regions_per_shard: U32,
    stripe_bytes: U32,
    state: U32,
    epoch: U32,
    valid_from_epoch: U32,
    codec: U32,
    codec_level: I32,
    volume_count: U32,
    texts_checksum: U32,
    stripes_max: U64,
    index_table_offset: U64,
    index_table_bytes: U64,
    settings: RawSettings,
    regions_max: U32,
    dictionary_bytes: U32,
    /// The number of [`WriteBudget`](crate::write_budget::WriteBudget); its kind is in the settings.
    write_budget: U64,
    budget_used: U64,
    index_memory: U64,
    reserved_middle: [u8; 320],
    volumes: [RawVolume; VOLUMES_MAX],
    reserved_end: [u8; 512],
}

const _: () = assert!(size_of::<RawSuperblock>() == PAGE_BYTES);

/// The numeric fields of a volume.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawVolume {
    uuid: [u8; 16],
    origin_len: U64,
    first_stripe: U64,
    fingerprint: U32,
    /// 0 if the origin has not grown.
    created_len: U64,
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<RawVolume>() == 48);

/// The strings of a volume.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTexts {
    name_len: U16,
    identity_len: U16,
    path_len: U16,
    reserved: [u8; 2],
    name: [u8; NAME_BYTES_MAX],
    identity: [u8; IDENTITY_BYTES_MAX],
    path: [u8; PATH_BYTES_MAX],
    reserved_end: [u8; 56],
}

const _: () = assert!(size_of::<RawTexts>() == 960);
const _: () = assert!(PAGE_BYTES + VOLUMES_MAX * size_of::<RawTexts>() <= 64 << 10);

/// Whether the cache was stopped cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Stopped cleanly: every shard's index image is valid.
    Clean,
    /// In use, or its server died.
    Open,
    /// Created and never served, or detached: nothing is cached.
    Empty,
}

/// Identity, geometry and state of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the cache.
    pub uuid: Uuid,
    /// Increases with every write of a superblock.
    pub generation: u64,
    /// When the cache was created, seconds since 1970.
    pub created_unix_s: u64,
    /// Layout of the device.
    pub geometry: Geometry,
    /// Whether the cache was stopped cleanly.
    pub state: State,
    /// Epoch of the latest opening.
    pub epoch: Epoch,
    /// Contents from before this epoch are void.
    pub valid_from_epoch: Epoch,
    /// State after a crash of this opening. Not stored as such: for [`AfterCrash::Cold`], while the cache is open, the
    /// superblock on the device marks even this opening as void.
    pub after_crash: AfterCrash,
    /// The cache may hold dirty blocks: set before the first block is dirty, cleared at a clean stop that leaves none.
    pub dirty: bool,
    /// An opening found that the device had lost writes of the manifest before a clean stop: no opening reads the log.
    pub contradicted: bool,
    /// Default codec for new blocks.
    pub codec: CodecChoice,
    /// The other settings that were chosen for this cache.
    pub settings: StoredSettings,
    /// Bytes taken from the write budget that time had not refilled at the clean stop. `None`: unknown, because the cache was not
    /// stopped cleanly. Not stored while *open*.
    pub budget_used: Option<u64>,
    /// Bytes of memory for the index that were chosen when the cache was created.
    pub index_memory: Option<NonZeroU64>,
    /// Fingerprint of the origin at a clean stop, or at this opening: see [`crate::fingerprint`]. Stored only while
    /// *clean*.
    pub origin_fingerprint: Option<NonZeroU32>,
    /// Bytes of the origin when the cache was created, at most those of now: a block device that was left over may have any size
    /// in between.
    pub origin_created_len: u64,
    /// Identity of the origin.
    pub origin_identity: String,
    /// Path of the origin when the cache was created.
    pub origin_path: String,
}

impl Superblock {
    /// First four bytes of the UUID, as in extents.
    #[must_use]
    pub fn cache_id(&self) -> u32 {
        let bytes = self.uuid.as_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The contents of a slot: [`SUPERBLOCK_BYTES`].
    ///
    /// # Errors
    /// [`FormatError::Field`] if identity or path are too long, or epoch, generation or settings would be refused when read
    /// back.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        if self.epoch.0 == EPOCH_END || self.generation > GENERATION_MAX {
            let found = format!("{} and {}", self.epoch.0, self.generation);
            return Err(FormatError::field(
                WHAT,
                "epoch and generation",
                NUMBERS_EXPECTED,
                found,
            ));
        }
        for (field, text, max) in [
            ("origin identity", &self.origin_identity, IDENTITY_BYTES_MAX),
            ("origin path", &self.origin_path, PATH_BYTES_MAX),
        ] {
            if text.len() > max {
                return Err(FormatError::field(
                    WHAT,
                    field,
                    format!("at most {max} bytes"),
                    text.len(),
                ));
            }
        }
        let (identity, path) = (self.origin_identity.as_bytes(), self.origin_path.as_bytes());
        let mut texts = RawTexts::new_zeroed();
        texts.identity_len = U16::new(identity.len() as u16);
        texts.identity[..identity.len()].copy_from_slice(identity);
        texts.path_len = U16::new(path.len() as u16);
        texts.path[..path.len()].copy_from_slice(path);
        let mut texts_page = [0; SUPERBLOCK_BYTES - PAGE_BYTES];
        texts_page[..size_of::<RawTexts>()].copy_from_slice(texts.as_bytes());
        let mut volumes = [RawVolume::new_zeroed(); VOLUMES_MAX];
        // The cache has a single volume.
        volumes[0].uuid = *self.uuid.as_bytes();
        volumes[0].origin_len = U64::new(self.geometry.origin_len);
        if self.origin_created_len != self.geometry.origin_len {
            volumes[0].created_len = U64::new(self.origin_created_len);
        }
        if self.state == State::Clean {
            volumes[0].fingerprint = U32::new(self.origin_fingerprint.map_or(0, NonZeroU32::get));
        }
        let geometry = &self.geometry;
        let mut raw = RawSuperblock {
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            checksum: U32::new(0),
            features: U64::new(
                u64::from(self.dirty) * FEATURE_DIRTY + u64::from(self.contradicted) * FEATURE_CONTRADICTED,
            ),
            uuid: *self.uuid.as_bytes(),
            generation: U64::new(self.generation),
            created_unix_s: U64::new(self.created_unix_s),
            device_len: U64::new(geometry.device_len),
            region_bytes: U64::new(geometry.region_bytes),
            sector_bytes: U32::new(geometry.sector_bytes),
            extent_bytes: U32::new(geometry.extent_bytes),
            shard_count: U32::new(geometry.shard_count),
            regions_per_shard: U32::new(geometry.regions_per_shard),
            stripe_bytes: U32::new(STRIPE_BYTES as u32),
            state: U32::new(match self.state {
                State::Clean => 0,
                State::Open => 1,
                State::Empty => 2,
            }),
            epoch: U32::new(self.epoch.0),
            valid_from_epoch: U32::new(match (self.state, self.after_crash) {
                (State::Open, AfterCrash::Cold) => self.epoch.0.saturating_add(1),
                _ => self.valid_from_epoch.0,
            }),
            codec: U32::new(u32::from(self.codec.id().0)),
            codec_level: I32::new(i32::from(self.codec.level())),
            volume_count: U32::new(1),
            texts_checksum: U32::new(crc32c::crc32c(&texts_page)),
            stripes_max: U64::new(geometry.stripes_max),
            index_table_offset: U64::new(index_offset(geometry)),
            index_table_bytes: U64::new(geometry.index_bytes),
            settings: RawSettings::of(&self.settings)?,
            regions_max: U32::new(geometry.regions_max),
            dictionary_bytes: U32::new(geometry.dictionary_bytes),
            write_budget: U64::new(budget_number(self.settings.write_budget)),
            budget_used: U64::new(match self.state {
                State::Open => 0,
                State::Clean | State::Empty => self.budget_used.unwrap_or(u64::MAX),
            }),
            index_memory: U64::new(self.index_memory.map_or(0, NonZeroU64::get)),
            reserved_middle: [0; 320],
            volumes,
            reserved_end: [0; 512],
        };
        raw.checksum = U32::new(crc32c::crc32c(raw.as_bytes()));
        Ok([raw.as_bytes(), &texts_page].concat())
    }

    /// Parses one slot of [`SUPERBLOCK_BYTES`] and checks it against a device of `device_len` bytes.
    ///
    /// # Errors
    /// [`FormatError`]: not a superblock, damaged, newer, or invalid for this device.
    pub fn parse(slot: &[u8], device_len: u64) -> Result<Self, FormatError> {
        let (page, texts_page) = slot
            .split_at_checked(PAGE_BYTES)
            .filter(|(_, texts)| texts.len() == SUPERBLOCK_BYTES - PAGE_BYTES)
            .ok_or_else(|| FormatError::field(WHAT, "bytes", SUPERBLOCK_BYTES, slot.len()))?;
        let raw = RawSuperblock::read_from_bytes(page)
            .map_err(|_| FormatError::field(WHAT, "bytes", PAGE_BYTES, page.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic {
                what: WHAT,
                expected: MAGIC,
                found: raw.magic.get(),
            });
        }
        let computed = checksum_without(page, 12);
        if raw.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: WHAT,
                stored: raw.checksum.get(),
                computed,
            });
        }
        if raw.version.get() != VERSION {
            return Err(FormatError::Version {
                expected: VERSION,
                found: raw.version.get(),
            });
        }
        if raw.features.get() & !FEATURES != 0 {
            return Err(FormatError::Features(raw.features.get() & !FEATURES));
        }
        let fail =
            |field, expected: &str, found: String| Err(FormatError::field(WHAT, field, expected, found));
        if u64::from(raw.stripe_bytes.get()) != STRIPE_BYTES {
            return fail("stripe size", "1048576", raw.stripe_bytes.get().to_string());
        }
        if raw.volume_count.get() != 1 {
            return fail("volumes", "1", raw.volume_count.get().to_string());
        }
        let computed = crc32c::crc32c(texts_page);
        if raw.texts_checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: "texts of the superblock",
                stored: raw.texts_checksum.get(),
                computed,
            });
        }
        let (texts, _) = RawTexts::read_from_prefix(texts_page)
            .map_err(|_| FormatError::field(WHAT, "bytes", SUPERBLOCK_BYTES, slot.len()))?;
        if raw.epoch.get() == EPOCH_END || raw.generation.get() > GENERATION_MAX {
            let found = format!("{} and {}", raw.epoch.get(), raw.generation.get());
            return fail("epoch and generation", NUMBERS_EXPECTED, found);
        }
        let volume = &raw.volumes[0];
        let geometry = Geometry {
            layout: Layout {
                sector_bytes: raw.sector_bytes.get(),
                extent_bytes: raw.extent_bytes.get(),
                region_bytes: raw.region_bytes.get(),
                shard_count: raw.shard_count.get(),
                regions_max: raw.regions_max.get(),
                stripes_max: raw.stripes_max.get(),
                index_bytes: raw.index_table_bytes.get(),
                dictionary_bytes: raw.dictionary_bytes.get(),
            },
            device_len: raw.device_len.get(),
            regions_per_shard: raw.regions_per_shard.get(),
            origin_len: volume.origin_len.get(),
        };
        geometry.check(device_len)?;
        if raw.index_table_offset.get() != index_offset(&geometry) {
            return fail(
                "position of index pages",
                &index_offset(&geometry).to_string(),
                raw.index_table_offset.get().to_string(),
            );
        }
        if volume.first_stripe.get() != 0 {
            return fail(
                "first stripe of the volume",
                "0",
                volume.first_stripe.get().to_string(),
            );
        }
        let origin_created_len = match volume.created_len.get() {
            0 => geometry.origin_len,
            len => len,
        };
        if origin_created_len > geometry.origin_len {
            return fail(
                "origin length at the creation of the cache",
                "at most that of now",
                origin_created_len.to_string(),
            );
        }
        let state = match raw.state.get() {
            0 => State::Clean,
            1 => State::Open,
            2 => State::Empty,
            other => return fail("state", "0 (clean), 1 (open) or 2 (empty)", other.to_string()),
        };
        // The contents of such a cache would be void at once, including dirty blocks.
        if state == State::Clean && raw.valid_from_epoch.get() > raw.epoch.get() {
            return fail(
                "valid-from epoch",
                "at most the epoch, after a clean stop",
                raw.valid_from_epoch.get().to_string(),
            );
        }
        let text = |bytes: &[u8], len: U16, field| {
            let len = usize::from(len.get());
            bytes
                .get(..len)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .map(str::to_owned)
                .ok_or_else(|| FormatError::field(WHAT, field, "UTF-8 of the length given", len))
        };
        let codec = u8::try_from(raw.codec.get())
            .ok()
            .zip(i8::try_from(raw.codec_level.get()).ok());
        let Some((id, level)) = codec else {
            return fail(
                "codec",
                "a known codec and level",
                format!("{} level {}", raw.codec.get(), raw.codec_level.get()),
            );
        };
        let level = if CodecChoice::new(CodecId(id), None).is_ok_and(|spec| spec.level() == level) {
            None
        } else {
            Some(level)
        };
        let codec = CodecChoice::new(CodecId(id), level)
            .map_err(|error| FormatError::field(WHAT, "codec", "a known codec and level", error))?;
        Ok(Self {
            uuid: Uuid::from_bytes(raw.uuid),
            generation: raw.generation.get(),
            created_unix_s: raw.created_unix_s.get(),
            geometry,
            state,
            epoch: Epoch(raw.epoch.get()),
            valid_from_epoch: Epoch(raw.valid_from_epoch.get()),
            after_crash: AfterCrash::Warm,
            dirty: raw.features.get() & FEATURE_DIRTY != 0,
            contradicted: raw.features.get() & FEATURE_CONTRADICTED != 0,
            codec,
            settings: raw.settings.parse(raw.write_budget.get())?,
            budget_used: match (state, raw.budget_used.get()) {
                (State::Open, _) | (_, u64::MAX) => None,
                (State::Clean | State::Empty, bytes) => Some(bytes),
            },
            index_memory: NonZeroU64::new(raw.index_memory.get()),
            origin_fingerprint: NonZeroU32::new(volume.fingerprint.get()).filter(|_| state == State::Clean),
            origin_created_len,
            origin_identity: text(&texts.identity, texts.identity_len, "origin identity")?,
            origin_path: text(&texts.path, texts.path_len, "origin path")?,
        })
    }
}

/// The position of the area for index pages; 0 without one.
fn index_offset(geometry: &Geometry) -> u64 {
    match geometry.index_bytes {
        0 => 0,
        _ => geometry.index_offset(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;
    use crate::settings::Mode;
    use crate::write_budget::WriteBudget;

    fn superblock() -> Superblock {
        Superblock {
            uuid: Uuid::from_bytes([7; 16]),
            generation: 3,
            created_unix_s: 1_700_000_000,
            geometry: Geometry::plan(64 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits"),
            state: State::Clean,
            epoch: Epoch(2),
            valid_from_epoch: Epoch(1),
            after_crash: AfterCrash::Warm,
            dirty: true,
            contradicted: true,
            codec: CodecChoice::default(),
            settings: StoredSettings {
                mode: Some(Mode::WriteBack),
                sequential_cutoff: Some(4 << 20),
                write_budget: NonZeroU64::new(40_000_000_000).map(WriteBudget::BytesPerDay),
                ..StoredSettings::default()
            },
            budget_used: Some(12_345_678),
            index_memory: NonZeroU64::new(64 << 20),
            origin_fingerprint: NonZeroU32::new(77),
            origin_created_len: 1 << 30,
            origin_identity: "file:inode=5".into(),
            origin_path: "/dev/slow".into(),
        }
    }

    #[test]
    fn a_superblock_reads_back_and_finds_every_flipped_byte() {
        let mut page = superblock().to_bytes().expect("fits");
        assert_eq!(Superblock::parse(&page, 64 << 20), Ok(superblock()));
        for at in 0..SUPERBLOCK_BYTES {
            page[at] ^= 4;
            assert!(Superblock::parse(&page, 64 << 20).is_err(), "byte {at}");
            page[at] ^= 4;
        }
    }

    #[test]
    fn what_was_used_of_a_budget_is_kept_by_a_clean_stop_alone() {
        for (state, kept) in [
            (State::Clean, Some(5)),
            (State::Empty, Some(5)),
            (State::Open, None),
        ] {
            let stopped = Superblock {
                state,
                budget_used: Some(5),
                origin_fingerprint: None,
                ..superblock()
            };
            let page = stopped.to_bytes().expect("fits");
            let found = Superblock::parse(&page, 64 << 20).expect("valid");
            assert_eq!(found.budget_used, kept, "{state:?}");
        }
        let unknown = Superblock {
            budget_used: None,
            ..superblock()
        };
        let page = unknown.to_bytes().expect("fits");
        assert_eq!(Superblock::parse(&page, 64 << 20), Ok(unknown));
    }

    #[test]
    fn the_size_of_an_origin_before_it_grew_is_kept() {
        let mut grown = superblock();
        grown.geometry.origin_len += 512;
        let page = grown.to_bytes().expect("fits");
        assert_eq!(Superblock::parse(&page, 64 << 20), Ok(grown.clone()));
        grown.origin_created_len = grown.geometry.origin_len + 512;
        let page = grown.to_bytes().expect("fits");
        let error = Superblock::parse(&page, 64 << 20).expect_err("it has shrunk");
        assert!(error.to_string().contains("at the creation"), "{error}");
    }

    #[test]
    fn a_superblock_of_the_previous_version_is_refused() {
        let mut page = superblock().to_bytes().expect("fits");
        page[8..12].copy_from_slice(&(VERSION - 1).to_le_bytes());
        let checksum = checksum_without(&page[..PAGE_BYTES], 12);
        page[12..16].copy_from_slice(&checksum.to_le_bytes());
        let error = Superblock::parse(&page, 64 << 20)
            .expect_err("an old version")
            .to_string();
        let versions = format!(
            "made by an older flaz (format {}, this program has {VERSION}): detach it with that version",
            VERSION - 1
        );
        assert!(error.contains(&versions), "{error}");
    }

    #[test]
    fn an_area_for_index_pages_is_at_its_place() {
        let wish = GeometryOptions {
            index_memory: Some(1 << 20),
            ..GeometryOptions::default()
        };
        let geometry = Geometry::plan(64 << 20, 512, 1 << 30, wish).expect("fits");
        assert_eq!(geometry.index_bytes, 1 << 20, "a 64th");
        assert!(geometry.index_offset() + geometry.index_bytes <= geometry.data_offset());
        let with_area = Superblock {
            geometry,
            ..superblock()
        };
        let page = with_area.to_bytes().expect("fits");
        assert_eq!(Superblock::parse(&page, 64 << 20), Ok(with_area));
        let without = superblock().to_bytes().expect("fits");
        for (at, value) in [
            (128, geometry.index_offset() + 4096),
            (128, 0),
            (136, (1 << 20) + 512),
            (136, 0),
            (136, 64 << 20),
            (136, u64::MAX - 4095),
        ] {
            for page in [&page, &without] {
                let mut page = page.clone();
                if page[at..at + 8] == value.to_le_bytes() {
                    continue;
                }
                page[at..at + 8].copy_from_slice(&value.to_le_bytes());
                let checksum = checksum_without(&page[..PAGE_BYTES], 12);
                page[12..16].copy_from_slice(&checksum.to_le_bytes());
                assert!(Superblock::parse(&page, 64 << 20).is_err(), "{value} at {at}");
            }
        }
    }

    #[test]
    fn a_superblock_of_a_larger_device_is_refused() {
        let page = superblock().to_bytes().expect("fits");
        let error = Superblock::parse(&page, 32 << 20).expect_err("the device is too small");
        assert!(error.to_string().contains("device size"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let mut long = superblock();
        long.origin_path = "x".repeat(PATH_BYTES_MAX + 1);
        assert!(long.to_bytes().is_err());
    }
}
