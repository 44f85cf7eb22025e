//! The rounds: every kind of data once in each, in random order.
//!
//! Invariants: data is made before the clock starts; two samples have no block in common; all of the part that is used
//! was written before the first sample.

use std::io;
use std::time::Duration;

use flaz_bench::detect::{Pattern, Sample};
use flaz_bench::random::Random;
use flaz_device::IoBuf;

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
    /// Writes in all.
    pub fn writes(&self) -> u64 {
        self.slots + u64::from(self.rounds) * Pattern::all().len() as u64
    }
}

/// Writes random data to every place, then the rounds. `tick` is called after each write.
///
/// # Errors
/// The sink's.
pub fn measure(sink: &mut impl Sink, shape: &Shape, mut tick: impl FnMut()) -> io::Result<Vec<Sample>> {
    let mut buffer = IoBuf::zeroed(shape.sample_bytes as usize);
    let mut maker = Maker::new(shape.seed);
    for slot in 0..shape.slots {
        maker.fill(Pattern::Random, &mut buffer);
        sink.write(&buffer, slot * shape.sample_bytes)?;
        tick();
    }
    // Of random data everything is kept. From there on a place has what the device says of its last sample.
    let mut kept_in = vec![shape.sample_bytes as f64; shape.slots as usize];
    let mut kept_before = sink.kept_bytes();
    let mut random = Random::named(shape.seed, "order");
    let mut samples = Vec::new();
    let mut slot = 0;
    for round in 0..shape.rounds as usize {
        let mut order = Pattern::all();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        for pattern in order {
            maker.fill(pattern, &mut buffer);
            let seconds = sink
                .write(&buffer, slot as u64 * shape.sample_bytes)?
                .as_secs_f64();
            let kept_after = sink.kept_bytes();
            let kept = kept_before.zip(kept_after).map(|(before, after)| {
                let kept = kept_in[slot] + after as f64 - before as f64;
                kept_in[slot] = kept.clamp(0.0, shape.sample_bytes as f64);
                kept_in[slot] / shape.sample_bytes as f64
            });
            kept_before = kept_after;
            samples.push(Sample {
                round,
                pattern,
                bytes_per_s: shape.sample_bytes as f64 / seconds.max(f64::MIN_POSITIVE),
                kept,
            });
            slot = (slot + 1) % shape.slots as usize;
            tick();
        }
    }
    Ok(samples)
}
