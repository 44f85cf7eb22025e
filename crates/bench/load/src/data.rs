//! The data of a campaign for each level. It is generated before the clock starts, with different bytes for each
//! writing pass.

use std::num::NonZeroUsize;

use flaz_bench::campaign_file::{Achieved, Duplicates};
use flaz_bench::cell::Level;
use flaz_data::spec::{CHUNK_BYTES_MAX, DISTANCE_BYTES_DEFAULT};
use flaz_data::{CALIBRATED, DataSpec, Family, Generator, Pool, Seed, duplicates};

use crate::error::LoadError;
use crate::plan::{FamilyWord, Plan, REPLAY, Replay};

/// What the bytes of a target depend on, besides the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Index of the level in the plan.
    pub level: usize,
    /// Chunk size of the data: the record for IOzone's, else that of the plan.
    pub chunk_bytes: u64,
    /// Number of the writing pass, so that no pass writes the bytes of another.
    pub pass: u64,
}

/// The data of one level, with records of `record_bytes`, for the pass `pass`.
///
/// # Errors
/// Such data cannot be generated.
pub fn spec(plan: &Plan, level: &Level, record_bytes: u64, pass: u64) -> Result<DataSpec, LoadError> {
    let percent =
        |percent| flaz_data::Level::new(percent).map_err(|error| LoadError::Plan(error.to_string()));
    let (family, share) = match level {
        Level::Percent(share) => (family(plan.data.family)?, share.get()),
        Level::Named(name) => match name.as_str() {
            "zeros" => (Family::Zeros, 100.0),
            "random" => (Family::Random, 0.0),
            "random-level" => (Family::RandomLevel, 50.0),
            REPLAY => (replay(plan)?, 50.0),
            _ => {
                return Err(LoadError::Plan(format!(
                    "'{name}' is not a level: expected a percentage that compression saves, zeros, random, \
                     random-level or replay"
                )));
            }
        },
    };
    let mut spec = DataSpec::new(family, percent(share)?);
    spec.chunk_bytes = chunk_bytes(plan, &spec.family, record_bytes);
    spec.dedup = percent(plan.data.dedup_pct)?;
    spec.seed = Seed {
        campaign: plan.seed,
        run: pass,
    };
    spec.check()?;
    Ok(spec)
}

fn replay(plan: &Plan) -> Result<Family, LoadError> {
    let distribution = plan
        .data
        .replay
        .as_ref()
        .and_then(Replay::distribution)
        .ok_or_else(|| {
            LoadError::Plan(
            "the level replay requires --distribution FILE; `flaz study PATH --distribution FILE` writes one"
                .to_owned(),
        )
        })?;
    Ok(Family::Replay(distribution))
}

fn family(word: FamilyWord) -> Result<Family, LoadError> {
    Ok(match word {
        FamilyWord::Run => Family::Run,
        FamilyWord::Copies => Family::Copies {
            distance_bytes: DISTANCE_BYTES_DEFAULT,
        },
        FamilyWord::Alphabet => Family::Alphabet,
        FamilyWord::Iozone => Family::Iozone,
        FamilyWord::Replay => {
            return Err(LoadError::Plan(
                "the family replay has no percentages: expected the level replay, zeros, random or \
                 random-level"
                    .to_owned(),
            ));
        }
    })
}

fn chunk_bytes(plan: &Plan, family: &Family, record_bytes: u64) -> u64 {
    match family {
        Family::Iozone => record_bytes.min(CHUNK_BYTES_MAX),
        _ => plan.data.chunk_bytes,
    }
}

/// Generates data, and keeps the last pool.
#[derive(Debug)]
pub struct Data<'p> {
    plan: &'p Plan,
    bytes: usize,
    target_bytes: u64,
    threads: NonZeroUsize,
    pool: Option<(Contents, Pool)>,
    /// Bytes generated, and the seconds taken, summed over all threads.
    made: (u64, f64),
}

impl<'p> Data<'p> {
    /// Data for a target of `target_bytes` bytes, in pieces of up to `piece_bytes`.
    #[must_use]
    pub fn new(plan: &'p Plan, target_bytes: u64, piece_bytes: u64) -> Self {
        let unit = piece_bytes.max(4096).max(plan.data.chunk_bytes);
        let bytes = plan
            .pool_bytes
            .min(target_bytes.next_multiple_of(unit))
            .next_multiple_of(unit);
        Self {
            plan,
            bytes: bytes as usize,
            target_bytes,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            pool: None,
            made: (0, 0.0),
        }
    }

    /// The data that a pass writes in a visit.
    ///
    /// # Errors
    /// Such data cannot be generated.
    pub fn contents(&self, level: usize, record_bytes: u64, pass: u64) -> Result<Contents, LoadError> {
        let spec = spec(self.plan, &self.plan.data.levels[level], record_bytes, pass)?;
        Ok(Contents {
            level,
            chunk_bytes: spec.chunk_bytes,
            pass,
        })
    }

    fn generator(&self, contents: Contents) -> Result<Generator, LoadError> {
        let level = &self.plan.data.levels[contents.level];
        Ok(Generator::new(spec(
            self.plan,
            level,
            contents.chunk_bytes,
            contents.pass,
        )?)?)
    }

    /// The data in memory.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn pool(&mut self, contents: Contents) -> Result<&Pool, LoadError> {
        if self.pool.as_ref().is_none_or(|(held, _)| *held != contents) {
            // Free the old pool first: there may not be enough memory for both.
            self.pool = None;
            let (pool, speed) = Pool::fill(self.generator(contents)?, self.bytes, self.threads)?;
            self.made.0 += speed.bytes;
            self.made.1 += speed.elapsed.as_secs_f64() * speed.threads as f64;
            return Ok(&self.pool.insert((contents, pool)).1);
        }
        match &self.pool {
            Some((_, pool)) => Ok(pool),
            None => unreachable!("a pool was found a moment ago"),
        }
    }

    /// The bytes at `offset` of the data, without a pool.
    ///
    /// # Errors
    /// Such data cannot be generated.
    pub fn fill(&self, contents: Contents, offset: u64, bytes: &mut [u8]) -> Result<(), LoadError> {
        self.generator(contents)?.fill(offset % self.bytes as u64, bytes);
        Ok(())
    }

    /// Gigabytes (10^9) generated per second and thread so far, if any.
    #[must_use]
    pub fn gb_per_s_thread(&self) -> Option<f64> {
        (self.made.1 > 0.0).then(|| self.made.0 as f64 / 1e9 / self.made.1)
    }

    /// Savings of codecs on the data of a level.
    ///
    /// # Errors
    /// Such data cannot be generated.
    pub fn achieved(&self, level: usize, record_bytes: u64) -> Result<Vec<Achieved>, LoadError> {
        let contents = self.contents(level, record_bytes, 0)?;
        let rows = flaz_data::measure(
            &self.generator(contents)?,
            self.bytes as u64,
            &CALIBRATED,
            self.threads,
        );
        Ok(rows
            .into_iter()
            .map(|row| Achieved {
                codec: row.codec.to_string().replace(':', "-"),
                chunk_bytes: row.window_bytes,
                saved_pct: row.saved.mean_percent,
                spread_pct: row.saved.stddev_points,
            })
            .collect())
    }

    /// Share of duplicates in the data of a level, in the pool and in what a pass writes.
    ///
    /// # Errors
    /// Such data cannot be generated.
    pub fn duplicates(&self, level: usize, record_bytes: u64) -> Result<Duplicates, LoadError> {
        let contents = self.contents(level, record_bytes, 0)?;
        // The pool is rounded up to whole records; data beyond the end of the target is not written.
        let pool_bytes = self.target_bytes.min(self.bytes as u64);
        let found = duplicates::count(&self.generator(contents)?, pool_bytes, self.threads);
        Ok(Duplicates {
            block_bytes: found.block_bytes,
            requested_pct: self.plan.data.dedup_pct,
            pool_bytes,
            pool_pct: found.percent(),
            pass_bytes: self.target_bytes,
            pass_pct: found.percent_repeated(self.target_bytes),
        })
    }
}
