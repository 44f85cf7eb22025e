//! The result of a replay.

/// What a replay came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Blocks that were asked for.
    pub references: usize,
    /// Of those, found in the cache.
    pub hits: usize,
    /// Blocks written because they were missed.
    pub admitted: usize,
    /// Blocks written again because they were used.
    pub reinserted: usize,
}

impl Outcome {
    pub(super) fn of(references: usize) -> Self {
        Outcome {
            references,
            ..Outcome::default()
        }
    }

    pub(super) fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.references as f64
    }

    pub(super) fn writes_per_reference(&self) -> f64 {
        (self.admitted + self.reinserted) as f64 / self.references as f64
    }
}
