//! Several concurrent writers (or readers), each with its own medium, and their bandwidth.
//!
//! There are two definitions of bandwidth. The *naive* one is the sum of each writer's rate over its own time; it
//! overstates a writer that was fast because the others had already finished. The *precise* one is all bytes divided by
//! the time from the first writer's start to the last one's end.

use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::medium::Medium;
use crate::pass::{self, Pass, Span};
use crate::ticker::{Ticker, is_interrupted};

/// Maximum number of concurrent writers.
pub const WRITERS_MAX: usize = 256;

/// Bytes transferred by a test, and the time taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Bytes of all writers.
    pub bytes: u64,
    /// From the first start to the last end, in seconds.
    pub seconds: f64,
    /// Sum of each writer's bytes per second over its own time.
    pub naive_bytes_per_s: f64,
}

impl Moved {
    /// From the writers' spans.
    ///
    /// # Panics
    /// Without spans.
    #[must_use]
    pub fn of(spans: &[Span]) -> Self {
        let start = spans.iter().map(|span| span.start).min();
        let end = spans.iter().map(|span| span.end).max();
        let (start, end) = start.zip(end).expect("at least one writer");
        Self {
            bytes: spans.iter().map(|span| span.bytes).sum(),
            seconds: seconds(start, end),
            naive_bytes_per_s: spans
                .iter()
                .map(|span| span.bytes as f64 / seconds(span.start, span.end))
                .sum(),
        }
    }

    /// The precise rate.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Never zero, so that a rate is always finite.
fn seconds(start: Instant, end: Instant) -> f64 {
    end.duration_since(start).as_secs_f64().max(1e-9)
}

/// Executes one pass on each medium, all concurrently. A failed one does not stop the others.
///
/// # Errors
/// The error of the first failed writer; [`crate::ticker::interrupted`].
///
/// # Panics
/// Without media, or if a writer panics.
pub fn run(media: &[impl Medium], passes: &[Pass<'_>], ticker: &Ticker<'_>) -> io::Result<Moved> {
    assert_eq!(media.len(), passes.len(), "a pass for each medium");
    if let ([medium], [pass]) = (media, passes) {
        return pass::run(medium, pass, ticker).map(|span| Moved::of(&[span]));
    }
    let ready = Barrier::new(media.len());
    let spans: Vec<io::Result<Span>> = thread::scope(|scope| {
        let writers: Vec<_> = media
            .iter()
            .zip(passes)
            .map(|(medium, pass)| {
                let ready = &ready;
                scope.spawn(move || {
                    ready.wait();
                    pass::run(medium, pass, ticker)
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer does not panic"))
            .collect()
    });
    let mut good = Vec::with_capacity(spans.len());
    let mut bad = None;
    for span in spans {
        match span {
            Ok(span) => good.push(span),
            // Being stopped is not the cause.
            Err(error) if bad.is_none() || !is_interrupted(&error) => bad = Some(error),
            Err(_) => {}
        }
    }
    match bad {
        Some(error) => Err(error),
        None => Ok(Moved::of(&good)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn naive_and_precise_differ_when_writers_do_not_overlap() {
        let zero = Instant::now();
        let at = |seconds| zero + Duration::from_secs(seconds);
        let span = |start, end, bytes| Span {
            start: at(start),
            end: at(end),
            bytes,
        };
        // Two writers of 100 B/s, one after the other.
        let moved = Moved::of(&[span(0, 1, 100), span(1, 2, 100)]);
        assert_eq!((moved.bytes_per_s(), moved.naive_bytes_per_s), (100.0, 200.0));
        let moved = Moved::of(&[span(0, 2, 100), span(0, 2, 300)]);
        assert_eq!((moved.bytes_per_s(), moved.naive_bytes_per_s), (200.0, 200.0));
    }
}
