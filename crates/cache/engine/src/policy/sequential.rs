//! Recognises long sequential reads and writes, so that a backup or a copy does not wash out the cache.
//!
//! A stream is known by the offset at which it would go on. Several may be interleaved; the one that has not moved
//! for longest is forgotten first. The detector looks at requests as they come in, before they are split by shard:
//! a shard sees only every n-th stripe of a stream.

/// Streams that are followed at the same time.
pub const STREAMS_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Offset at which the next request of this stream begins, in bytes.
    next: u64,
    /// Bytes of the stream so far; 0: the entry is free.
    len: u64,
    /// When it last moved, counted in requests.
    moved: u64,
}

const FREE: Stream = Stream {
    next: 0,
    len: 0,
    moved: 0,
};

/// Follows up to [`STREAMS_MAX`] sequential streams.
#[derive(Debug)]
pub struct SequentialDetector {
    cutoff: u64,
    requests: u64,
    streams: [Stream; STREAMS_MAX],
}

impl SequentialDetector {
    /// `cutoff`: bytes after which a stream counts as sequential; 0: off.
    #[must_use]
    pub fn new(cutoff: u64) -> Self {
        SequentialDetector {
            cutoff,
            requests: 0,
            streams: [FREE; STREAMS_MAX],
        }
    }

    /// Bytes after which a stream counts as sequential; 0: off.
    #[must_use]
    pub fn cutoff(&self) -> u64 {
        self.cutoff
    }

    /// Changes the cut-off. Streams that are being followed stay known, unless it is switched off.
    pub fn set_cutoff(&mut self, cutoff: u64) {
        if cutoff == 0 {
            self.streams = [FREE; STREAMS_MAX];
        }
        self.cutoff = cutoff;
    }

    /// A request of `len` bytes at `offset`: the bytes of its stream so far, itself included.
    ///
    /// 0 where the detector is off or the request is empty.
    pub fn observe(&mut self, offset: u64, len: u64) -> u64 {
        if self.cutoff == 0 || len == 0 {
            return 0;
        }
        self.requests += 1;
        let known = self
            .streams
            .iter()
            .position(|stream| stream.len != 0 && stream.next == offset);
        let index = known.unwrap_or_else(|| self.oldest());
        let so_far = if known.is_some() {
            self.streams[index].len
        } else {
            0
        };
        let stream = Stream {
            next: offset.saturating_add(len),
            len: so_far.saturating_add(len),
            moved: self.requests,
        };
        self.streams[index] = stream;
        stream.len
    }

    /// The same, as an answer: whether the request belongs to a stream that has reached the cut-off, so that its
    /// misses should not be admitted.
    pub fn bypasses(&mut self, offset: u64, len: u64) -> bool {
        let stream_len = self.observe(offset, len);
        self.cutoff != 0 && stream_len >= self.cutoff
    }

    /// A free entry, or the one that has not moved for longest.
    fn oldest(&self) -> usize {
        // Free entries have never moved, so they come first.
        (0..STREAMS_MAX)
            .min_by_key(|&index| self.streams[index].moved)
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn a_stream_adds_up_and_reaches_the_cutoff() {
        let mut detector = SequentialDetector::new(256 * KIB);
        for step in 0..3 {
            assert!(!detector.bypasses(step * 64 * KIB, 64 * KIB), "step {step}");
        }
        assert!(detector.bypasses(192 * KIB, 64 * KIB));
        assert_eq!(detector.observe(256 * KIB, 4 * KIB), 260 * KIB);
    }

    #[test]
    fn a_gap_begins_another_stream() {
        let mut detector = SequentialDetector::new(1);
        assert_eq!(detector.observe(0, 8 * KIB), 8 * KIB);
        assert_eq!(detector.observe(12 * KIB, 4 * KIB), 4 * KIB);
        // The first is still where it was.
        assert_eq!(detector.observe(8 * KIB, 4 * KIB), 12 * KIB);
    }

    #[test]
    fn as_many_streams_as_there_is_room_for_interleave() {
        let mut detector = SequentialDetector::new(1);
        for round in 0..10 {
            for stream in 0..STREAMS_MAX as u64 {
                let begin = stream << 40;
                assert_eq!(detector.observe(begin + round * KIB, KIB), (round + 1) * KIB);
            }
        }
    }

    #[test]
    fn the_stream_that_rested_longest_is_forgotten() {
        let mut detector = SequentialDetector::new(1);
        for stream in 0..STREAMS_MAX as u64 {
            detector.observe(stream << 40, KIB);
        }
        assert_eq!(
            detector.observe(KIB, KIB),
            2 * KIB,
            "stream 0 moves, so stream 1 rests longest"
        );
        detector.observe(1 << 60, KIB);
        assert_eq!(
            detector.observe((1 << 40) + KIB, KIB),
            KIB,
            "stream 1 was forgotten"
        );
        assert_eq!(detector.observe(2 * KIB, KIB), 3 * KIB, "stream 0 was not");
    }

    #[test]
    fn off_follows_nothing() {
        let mut detector = SequentialDetector::new(0);
        assert_eq!(detector.observe(0, KIB), 0);
        assert!(!detector.bypasses(KIB, u64::MAX));
        detector.set_cutoff(2 * KIB);
        assert!(
            !detector.bypasses(2 * KIB, KIB),
            "what came while it was off does not count"
        );
        assert!(detector.bypasses(3 * KIB, KIB));
        detector.set_cutoff(0);
        detector.set_cutoff(2 * KIB);
        assert_eq!(detector.observe(4 * KIB, KIB), KIB, "switching off forgets");
    }

    #[test]
    fn empty_and_enormous_requests_do_no_harm() {
        let mut detector = SequentialDetector::new(1);
        assert_eq!(detector.observe(7, 0), 0);
        assert_eq!(detector.observe(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(detector.observe(u64::MAX, u64::MAX), u64::MAX);
    }
}
