//! The result of a replay.

/// The result of a replay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Requested blocks.
    pub references: usize,
    /// Hits among them.
    pub hits: usize,
    /// Blocks written after a miss.
    pub admitted: usize,
    /// Blocks reinserted because they were used.
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
