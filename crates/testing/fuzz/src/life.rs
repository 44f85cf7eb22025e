//! Uses a mutated image and judges the result: opened, checked, read, written, stopped or killed, opened again.
//!
//! For every image: no panic, a limited number of steps, and data that keep the image's [`Promise`]. Data written while
//! the image is used is read back, also after reopening, whatever the image was.

use std::collections::BTreeMap;
use std::ops::Range;

use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, STRIPE_BYTES, Volume};
use flaz_sim::DiskImage;

use crate::choices::Choices;
use crate::mutation::{Promise, mutate};
use crate::sectors::{BLOCK, SECTOR, TRIMMED, sector, sectors};
use crate::shape::{DIRTY_SHAPES, SHAPES};
use crate::victim::{STRIPE_BLOCKS_USED, Victim};
use crate::world::{Served, World};

/// More polls than any run needs.
const STEPS_MAX: u64 = 2_000_000;
/// Version of the first write: above all versions in the images.
const VERSION_FIRST: u32 = 10_000;

/// Prints the mutations of the image when a panic passes.
struct Tell<'t>(&'t str, &'t [String]);

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the image was: {}", self.0);
            for line in self.1 {
                eprintln!("  then {line}");
            }
        }
    }
}

/// The expected data of a cache.
struct Judge<'v> {
    victim: &'v Victim,
    promise: Promise,
    /// Sectors that were written in this run: their last version.
    written: BTreeMap<u64, u32>,
    /// Sectors of which a write failed: it may have happened or not.
    refused: BTreeMap<u64, Vec<u32>>,
}

impl Judge<'_> {
    fn judge(&self, offset: u64, data: &[u8]) {
        for (at, bytes) in data.chunks_exact(SECTOR as usize).enumerate() {
            let number = offset / SECTOR + at as u64;
            let right = &self.victim.truth[(number * SECTOR) as usize..][..SECTOR as usize];
            if let Some(&version) = self.written.get(&number) {
                assert!(
                    bytes == sector(number, version),
                    "sector {number} is not what was written last (version {version}): {}",
                    describe(bytes)
                );
            } else if bytes != right {
                let tried = self.refused.get(&number);
                if tried.is_some_and(|tried| tried.iter().any(|&version| bytes == sector(number, version))) {
                    continue;
                }
                let held = || self.victim.history.had(number, bytes);
                let fill = || bytes.iter().all(|byte| *byte == bytes[0]);
                let kept = match self.promise {
                    Promise::Right => false,
                    Promise::Held => held(),
                    Promise::HeldOrSameFilled => held() || fill(),
                    Promise::HeldByEither => held() || fill() || self.victim.twin_history.had(number, bytes),
                };
                assert!(
                    kept,
                    "sector {number} reads as {}, promised: {:?}",
                    describe(bytes),
                    self.promise
                );
            }
        }
    }

    /// Reads. If blocks are dirty, damaged ones return errors; the others are checked.
    async fn read(&self, served: &Served, at: u64, len: u64) {
        if self.victim.shape.mode != Mode::WriteBack {
            self.judge(at, &served.read(at, len).await);
        } else if let Ok(data) = served.try_read(at, len).await {
            self.judge(at, &data);
        } else if len > BLOCK {
            for at in (at..at + len).step_by(BLOCK as usize) {
                if let Ok(data) = served.try_read(at, BLOCK).await {
                    self.judge(at, &data);
                }
            }
        }
    }

    /// Reads the used part of each stripe; the rest of the origin is similar.
    async fn read_all(&self, served: &Served) {
        const CHUNK: u64 = 24 * BLOCK;
        let size = served.size().min(self.victim.truth.len() as u64) / SECTOR * SECTOR;
        for stripe in (0..size).step_by(STRIPE_BYTES as usize) {
            for at in (stripe..stripe + STRIPE_BLOCKS_USED * BLOCK).step_by(CHUNK as usize) {
                let len = CHUNK.min(size.saturating_sub(at));
                if len == 0 {
                    return;
                }
                self.read(served, at, len).await;
            }
        }
    }

    /// Reads the data written in this run.
    async fn read_written(&self, served: &Served) {
        for first in self.written.keys().filter(|number| number.is_multiple_of(8)) {
            self.read(served, first * SECTOR, BLOCK).await;
        }
    }

    async fn write_some(&mut self, served: &Served, choices: &mut Choices<'_>) {
        let sectors_all = served.size().min(self.victim.truth.len() as u64) / SECTOR;
        if sectors_all < 64 {
            return;
        }
        let steps = 4 + choices.below(12);
        for step in 0..steps {
            let version = VERSION_FIRST + step as u32;
            let kind = choices.below(8);
            let blocks = sectors_all / 8 - 7;
            let (first, count) = match kind {
                0 => (choices.below(sectors_all - 16), 1 + choices.below(12)),
                1..4 => (choices.below(blocks) * 8, 8 * (1 + choices.below(7))),
                _ => (choices.below(STRIPE_BLOCKS_USED) * 8, 8 * (1 + choices.below(7))),
            };
            let (first, count) = (first.min(sectors_all - 64), count.min(64));
            let version = if kind == 1 { TRIMMED } else { version };
            let done = if kind == 1 {
                let done = served.volume.trim(first * SECTOR, count * SECTOR, false).await;
                served.stored().await;
                done
            } else {
                let data = sectors(first, count, version);
                served.try_write(first * SECTOR, &data).await
            };
            self.note(first..first + count, version, done);
        }
    }

    fn note(&mut self, numbers: Range<u64>, version: u32, done: Result<(), IoError>) {
        if self.victim.shape.mode != Mode::WriteBack {
            done.as_ref().expect("the origin is well");
        }
        for number in numbers {
            if done.is_ok() {
                self.written.insert(number, version);
                self.refused.remove(&number);
            } else {
                let before = self.written.remove(&number);
                let tried = self.refused.entry(number).or_default();
                tried.extend(before.into_iter().chain([version]));
            }
        }
    }
}

/// A short description of a sector.
fn describe(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| *byte == bytes[0]) {
        return format!("{:#04x} throughout", bytes[0]);
    }
    format!(
        "number {}, version {}",
        crate::structure::number(&bytes[..8]),
        crate::structure::number(&bytes[16..20])
    )
}

/// Opens the cache on two disks, uses it, and ends as specified. Returns the disks afterwards, and how it started.
fn live(
    seed: u64,
    origin: &DiskImage,
    image: &DiskImage,
    judge: &mut Judge<'_>,
    choices: &mut Choices<'_>,
) -> Option<(Start, DiskImage, DiskImage)> {
    let world = World::new(seed, origin, image);
    world.sim.set_step_limit(STEPS_MAX);
    let shape = judge.victim.shape;
    let (checks, stops) = (choices.below(2) == 1, choices.below(2) == 1);
    let start = world.sim.block_on(async {
        if checks {
            let _ = world.check().await;
        }
        let served = world.open(&shape).await.ok()?;
        let start = served.cache.start;
        judge.read_all(&served).await;
        judge.write_some(&served, choices).await;
        judge.read_written(&served).await;
        if stops {
            // A failed clean stop counts as a crash.
            let _ = served.stop().await;
        } else {
            drop(served);
        }
        Some(start)
    })?;
    let (origin, image) = world.killed();
    Some((start, origin, image))
}

/// Number of starts of a mutated cache by kind of start. Tests use it to check that they tested something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// It was opened in this way.
    pub start: Option<Start>,
}

/// A run of a cache on a mutated device: `data` selects the shape, the mutations and the operations.
///
/// # Panics
/// If the engine does, if it does not end, or if it returns wrong data.
pub fn cache_life(data: &[u8]) -> Outcome {
    let mut choices = Choices::new(data);
    let victim = Victim::get(choices.below(SHAPES.len() as u64) as usize);
    life_of(victim, &mut choices)
}

/// The same for a cache in write-back with dirty blocks.
///
/// # Panics
/// As [`cache_life`].
pub fn dirty_life(data: &[u8]) -> Outcome {
    let mut choices = Choices::new(data);
    let victim = Victim::dirty(choices.below(DIRTY_SHAPES.len() as u64) as usize);
    life_of(victim, &mut choices)
}

fn life_of(victim: &Victim, choices: &mut Choices<'_>) -> Outcome {
    let seed = choices.number(1);
    let life = choices.number(3).to_be_bytes();
    let mutated = mutate(victim, choices);
    let _tell = Tell(victim.shape.name, &mutated.log);
    live_twice(victim, seed, &mutated.image, mutated.promise, &life)
}

fn live_twice(victim: &Victim, seed: u64, image: &DiskImage, promise: Promise, life: &[u8]) -> Outcome {
    let mut judge = Judge {
        victim,
        promise,
        written: BTreeMap::new(),
        refused: BTreeMap::new(),
    };
    // Independent of the bytes of the mutation, so that a change of the mutation does not change the operations. The
    // decisions repeat.
    let life: Vec<u8> = (0..256u32)
        .map(|at| {
            let byte = life[at as usize % life.len()];
            flaz_sim::rng::splitmix(u64::from(byte) << 32 | u64::from(at)) as u8
        })
        .collect();
    let mut choices = Choices::new(&life);
    let Some((start, origin, image)) = live(seed, &victim.origin, image, &mut judge, &mut choices) else {
        return Outcome { start: None };
    };
    let again = live(seed + 1, &origin, &image, &mut judge, &mut choices);
    // A forged structure may be accepted and detected later, when it can no longer be distinguished from lost dirty
    // blocks.
    let forged = victim.shape.mode == Mode::WriteBack && promise >= Promise::HeldOrSameFilled;
    assert!(
        again.is_some() || forged,
        "a cache that was open does not open again"
    );
    Outcome { start: Some(start) }
}

/// A cache whose index image is `data`: opened, read, stopped, as in [`cache_life`].
///
/// # Panics
/// As [`cache_life`].
pub fn index_image(data: &[u8]) -> Outcome {
    // A table, and pages.
    [0, 8].map(|shape| index_image_of(Victim::get(shape), data))[0]
}

fn index_image_of(victim: &Victim, data: &[u8]) -> Outcome {
    let mutated = crate::mutation::with_index(victim, data);
    let log = [format!("the index image is {} other bytes", data.len())];
    let _tell = Tell(victim.shape.name, &log);
    live_twice(victim, 1, &mutated, Promise::HeldOrSameFilled, &[1])
}
