//! Measures rounds: each writes every kind of data once, in random order. If the first series gives a positive result,
//! a second series must confirm it.
//!
//! Invariants: data is generated before the clock starts; two samples share no block; the whole area was written before
//! the first sample.

use std::io;
use std::time::Duration;

use flaz_bench::detect::{DetectError, Detection, Facts, Pattern, Sample, detect};
use flaz_device::IoBuf;
use flaz_random::Random;

use super::data::Maker;

/// What is written to: a file, a device, or a model of one.
pub trait Sink {
    /// Writes all of `data` at `offset`, until it is on the medium; returns the time taken.
    ///
    /// # Errors
    /// The system's error.
    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<Duration>;

    /// Bytes that the device reports as stored, for all its data; `None` if it does not report that.
    fn kept_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// Amounts of data.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of each kind per round.
    pub sample_bytes: u64,
    /// Number of consecutive places for samples, at least one.
    pub slots: u64,
    /// Rounds.
    pub rounds: u32,
    /// Seed of data and order.
    pub seed: u64,
}

impl Shape {
    /// Number of writes before and in the first series of rounds.
    pub fn writes(&self) -> u64 {
        self.slots + self.series_writes()
    }

    /// Number of writes in a series of rounds.
    fn series_writes(&self) -> u64 {
        u64::from(self.rounds) * Pattern::all().len() as u64
    }
}

/// The state of a measurement, before and between series.
#[derive(Debug)]
pub struct Measurement<'a, S> {
    sink: &'a mut S,
    shape: &'a Shape,
    buffer: IoBuf,
    maker: Maker,
    /// Determines the order.
    random: Random,
    /// Place of the next sample.
    slot: usize,
    /// Stored bytes that the device reported for the last sample of each place.
    kept_in: Vec<f64>,
    kept_before: Option<u64>,
}

impl<'a, S: Sink> Measurement<'a, S> {
    /// Writes random data to every place. `tick` is called after each write.
    ///
    /// # Errors
    /// The sink's error.
    pub fn start(sink: &'a mut S, shape: &'a Shape, mut tick: impl FnMut()) -> io::Result<Self> {
        let mut buffer = IoBuf::zeroed(shape.sample_bytes as usize);
        let mut maker = Maker::new(shape.seed);
        for slot in 0..shape.slots {
            maker.fill(Pattern::Random, &mut buffer);
            sink.write(&buffer, slot * shape.sample_bytes)?;
            tick();
        }
        Ok(Self {
            buffer,
            maker,
            random: Random::named(shape.seed, "order"),
            slot: 0,
            // All of the random data is stored.
            kept_in: vec![shape.sample_bytes as f64; shape.slots as usize],
            kept_before: sink.kept_bytes(),
            sink,
            shape,
        })
    }

    /// Runs a series of rounds. `tick` is called after each write.
    ///
    /// # Errors
    /// The sink's error.
    pub fn series(&mut self, mut tick: impl FnMut()) -> io::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for round in 0..self.shape.rounds as usize {
            let mut order = Pattern::all();
            self.random.shuffle(&mut order);
            for pattern in order {
                samples.push(self.sample(round, pattern)?);
                tick();
            }
        }
        Ok(samples)
    }

    fn sample(&mut self, round: usize, pattern: Pattern) -> io::Result<Sample> {
        let sample_bytes = self.shape.sample_bytes;
        self.maker.fill(pattern, &mut self.buffer);
        let seconds = self
            .sink
            .write(&self.buffer, self.slot as u64 * sample_bytes)?
            .as_secs_f64();
        let kept_after = self.sink.kept_bytes();
        let kept_in = &mut self.kept_in[self.slot];
        let kept = self.kept_before.zip(kept_after).map(|(before, after)| {
            let kept = *kept_in + after as f64 - before as f64;
            *kept_in = kept.clamp(0.0, sample_bytes as f64);
            *kept_in / sample_bytes as f64
        });
        self.kept_before = kept_after;
        self.slot = (self.slot + 1) % self.shape.slots as usize;
        Ok(Sample {
            round,
            pattern,
            bytes_per_s: sample_bytes as f64 / seconds.max(f64::MIN_POSITIVE),
            kept,
        })
    }
}

/// Runs the detection on a sink: a series of rounds and, if its rates give a positive result, another one that must
/// confirm it.
///
/// `step` is called for each write, and for writes that are added.
///
/// # Errors
/// The sink's error; the inner result has the error of the evaluation.
pub fn measured(
    sink: &mut impl Sink,
    shape: &Shape,
    target: &str,
    facts: &Facts,
    mut step: impl FnMut(Step),
) -> io::Result<Result<Detection, DetectError>> {
    let mut measurement = Measurement::start(sink, shape, || step(Step::Written))?;
    let first = measurement.series(|| step(Step::Written))?;
    let found = detect(target, &[&first], facts.clone());
    if !found.as_ref().is_ok_and(Detection::wants_confirmation) {
        return Ok(found);
    }
    step(Step::Added(shape.series_writes()));
    let second = measurement.series(|| step(Step::Written))?;
    Ok(detect(target, &[&first, &second], facts.clone()))
}

/// Progress of a measurement.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A write is complete.
    Written,
    /// This many writes are added to those of [`Shape::writes`].
    Added(u64),
}
