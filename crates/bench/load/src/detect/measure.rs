//! The rounds: every kind of data once in each, in random order; and a second series of them where the first one says yes.
//!
//! Invariants: data is made before the clock starts; two samples have no block in common; all of the part that is used
//! was written before the first sample.

use std::io;
use std::time::Duration;

use flaz_bench::detect::{DetectError, Detection, Facts, Pattern, Sample, detect};
use flaz_device::IoBuf;
use flaz_random::Random;

use super::data::Maker;

/// What is written to: a file, a device, or a model of one.
pub trait Sink {
    /// Writes all of `data` at `offset`, until it is on the medium; the time that took.
    ///
    /// # Errors
    /// What the system says.
    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<Duration>;

    /// Bytes that the device says it keeps, of all that is on it; nothing of one that does not say.
    fn kept_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// How much is written.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of each kind in a round.
    pub sample_bytes: u64,
    /// Places for samples, one behind the other: at least one.
    pub slots: u64,
    /// Rounds.
    pub rounds: u32,
    /// What data and order are drawn from.
    pub seed: u64,
}

impl Shape {
    /// Writes before and in the first series of rounds.
    pub fn writes(&self) -> u64 {
        self.slots + self.series_writes()
    }

    /// Writes of a series of rounds.
    fn series_writes(&self) -> u64 {
        u64::from(self.rounds) * Pattern::all().len() as u64
    }
}

/// What is measured, before and between series of rounds.
#[derive(Debug)]
pub struct Measurement<'a, S> {
    sink: &'a mut S,
    shape: &'a Shape,
    buffer: IoBuf,
    maker: Maker,
    /// Draws the order.
    random: Random,
    /// Where the next sample goes.
    slot: usize,
    /// What the device says of the last sample of each place.
    kept_in: Vec<f64>,
    kept_before: Option<u64>,
}

impl<'a, S: Sink> Measurement<'a, S> {
    /// Writes random data to every place. `tick` is called after each write.
    ///
    /// # Errors
    /// The sink's.
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
            // Of random data everything is kept.
            kept_in: vec![shape.sample_bytes as f64; shape.slots as usize],
            kept_before: sink.kept_bytes(),
            sink,
            shape,
        })
    }

    /// A series of rounds. `tick` is called after each write.
    ///
    /// # Errors
    /// The sink's.
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

/// Detection by a sink: a series of rounds, and where that says yes by rates, another one that must say so as well.
///
/// `step` hears of each write, and of writes that are added.
///
/// # Errors
/// The sink's; inside, that of what was measured.
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

/// How far a measurement is.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A write is done.
    Written,
    /// So many are to be done besides those of [`Shape::writes`].
    Added(u64),
}
