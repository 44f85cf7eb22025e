//! Shapes of the generated caches: size, settings, and how their last run ended.

use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Mode;
use flaz_engine::volume::STRIPE_BYTES;

/// Stripes per shard: some with intents, and others.
pub(crate) const STRIPES: u64 = 3;

/// How the last run of a cache ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Stopped cleanly.
    Clean,
    /// The process was killed; intents are set.
    Killed,
    /// The power failed; unflushed data is partly lost.
    Cut,
    /// The process was killed while a region was being reclaimed.
    Reclaiming,
}

/// The parameters of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// For messages.
    pub name: &'static str,
    pub(crate) sector_bytes: u32,
    pub(crate) shard_count: u32,
    pub(crate) origin_len: u64,
    pub(crate) regions_per_shard: u64,
    /// Codec for new blocks.
    pub codec: &'static str,
    /// Admission and replacement policy.
    pub policy: PolicyKind,
    /// Write-back, with the last writes not yet on the origin.
    pub mode: Mode,
    /// How its last run ended.
    pub end: End,
    /// Its index is in pages, as far as the engine has its planted defects: see `flaz_engine::planted::page_index`.
    pub paged: bool,
}

impl Shape {
    /// What this thread creates and opens from now on has this kind of index.
    pub(crate) fn apply(&self) {
        #[cfg(feature = "planted-bugs")]
        flaz_engine::planted::page_index(self.paged);
    }
}

/// Shapes in write-through. Corpus inputs select one by a number modulo their count.
pub const SHAPES: [Shape; 9] = [
    shape("clean", 512, 1, "lz4", PolicyKind::S3Fifo, End::Clean),
    shape("killed", 512, 1, "auto", PolicyKind::S3Fifo, End::Killed),
    shape("cut", 512, 1, "none", PolicyKind::Fifo, End::Cut),
    shape("reclaiming", 512, 1, "none", PolicyKind::Fifo, End::Reclaiming),
    shape(
        "clean, two shards of 4 KiB sectors",
        4096,
        2,
        "zstd",
        PolicyKind::S3Fifo,
        End::Clean,
    ),
    shape(
        "killed, two shards of 4 KiB sectors",
        4096,
        2,
        "zlib",
        PolicyKind::Fifo,
        End::Killed,
    ),
    shape("cut, three shards", 512, 3, "lzo", PolicyKind::S3Fifo, End::Cut),
    shape(
        "reclaiming, two shards",
        512,
        2,
        "none",
        PolicyKind::Fifo,
        End::Reclaiming,
    ),
    paged(shape(
        "clean, index in pages",
        512,
        1,
        "lz4",
        PolicyKind::S3Fifo,
        End::Clean,
    )),
];

/// Shapes in write-back, with dirty blocks. Selected in the same way.
pub const DIRTY_SHAPES: [Shape; 4] = [
    dirty(shape(
        "dirty, clean",
        512,
        1,
        "auto",
        PolicyKind::S3Fifo,
        End::Clean,
    )),
    dirty(shape(
        "dirty, killed",
        512,
        1,
        "lz4",
        PolicyKind::Fifo,
        End::Killed,
    )),
    dirty(shape(
        "dirty, cut, two shards of 4 KiB sectors",
        4096,
        2,
        "zstd",
        PolicyKind::S3Fifo,
        End::Cut,
    )),
    paged(dirty(shape(
        "dirty, clean, two shards, index in pages",
        512,
        2,
        "none",
        PolicyKind::Fifo,
        End::Clean,
    ))),
];

const fn paged(shape: Shape) -> Shape {
    Shape { paged: true, ..shape }
}

const fn dirty(shape: Shape) -> Shape {
    Shape {
        mode: Mode::WriteBack,
        // Dirty blocks are not evicted to free space.
        regions_per_shard: 12,
        ..shape
    }
}

const fn shape(
    name: &'static str,
    sector_bytes: u32,
    shard_count: u32,
    codec: &'static str,
    policy: PolicyKind,
    end: End,
) -> Shape {
    Shape {
        name,
        sector_bytes,
        shard_count,
        // The last stripe is incomplete.
        origin_len: shard_count as u64 * STRIPES * STRIPE_BYTES - (256 << 10),
        regions_per_shard: 7,
        codec,
        policy,
        mode: Mode::WriteThrough,
        end,
        paged: false,
    }
}
