//! Hostile input for flaz: the functions that a fuzzer calls, and the generation of useful inputs.
//!
//! A [`Target`] is a function of bytes that panics if something is wrong. Most inputs of the larger targets are not the
//! hostile bytes themselves but *decisions* ([`choices`]): which real image is used ([`victim`]), how it is changed and
//! sealed again ([`mutation`]), and how it is then opened and used ([`life`]). A fuzzer that mutates the decisions thus
//! mutates images by structure, and a failure is a short string.
//!
//! | module | contents |
//! |---|---|
//! | [`formats`], [`codecs`], [`nbd`], [`traces`] | targets without I/O: structures, streams, the protocol, traces of the lab |
//! | [`life`] | a whole cache on a mutated device |
//! | [`server`] | the NBD server over a socket |
//! | [`choices`], [`structure`], [`victim`], [`mutation`] | creation and mutation of images |
//! | [`sectors`], [`world`] | self-describing data; a cache between simulated disks |
//! | [`driver`] | inputs without a fuzzer: corpus and seeds |
//!
//! The same targets run under libFuzzer (`fuzz/` in the root of the repository), in the tests of this crate for a
//! limited number of seeds, and endlessly in its program. `docs/testing.md` says what the targets check.
#![forbid(unsafe_code)]

pub mod choices;
pub mod codecs;
pub mod driver;
pub mod formats;
pub mod life;
pub mod mutation;
pub mod nbd;
pub mod sectors;
pub mod server;
pub mod shape;
pub mod structure;
pub mod traces;
pub mod victim;
pub mod world;

/// A function that gets hostile bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also that of its directory of inputs.
    pub name: &'static str,
    /// Panics if something is wrong.
    pub run: fn(&[u8]),
    /// Maximum useful length of an input in bytes.
    pub len_max: usize,
    /// Number of seeds in the tests, in addition to the corpus. It depends on the cost of an input.
    pub seeds: u64,
}

/// All targets.
pub const TARGETS: [Target; 17] = [
    target("cache", |data| _ = life::cache_life(data), 256, 2000),
    target("dirty-cache", |data| _ = life::dirty_life(data), 256, 1000),
    target("index-image", |data| _ = life::index_image(data), 8192, 300),
    target("superblock", formats::superblock, 8193, 20_000),
    target("shard-state", formats::shard_state, 4097, 20_000),
    target("intent", formats::intent, 513, 20_000),
    target("extent", formats::extent, 16_384, 10_000),
    target("fragment", formats::fragment, 4105, 20_000),
    target("dictionary", formats::dictionary, 8193, 2000),
    target("summary", formats::summary, 4097, 20_000),
    target("manifest", formats::manifest, 513, 20_000),
    target("pool", formats::pool, 61, 20_000),
    target("codec", codecs::codec_stream, 4097, 10_000),
    target("trace", traces::trace, 4097, 10_000),
    target("nbd-handshake", nbd::negotiation, 4096, 20_000),
    target("nbd-requests", nbd::requests, 1024, 20_000),
    target("nbd-session", server::session, 1024, 500),
];

const fn target(name: &'static str, run: fn(&[u8]), len_max: usize, seeds: u64) -> Target {
    Target {
        name,
        run,
        len_max,
        seeds,
    }
}

/// Calls the target of this name.
///
/// # Panics
/// If there is none, and if it fails.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(data);
}
