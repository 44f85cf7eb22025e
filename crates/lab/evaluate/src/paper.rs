//! Values of the FlaZ paper and its slides, where they are known, and the goals beside them.
//!
//! They are quoted, for compressed against uncompressed caches on 8 cores. The paper's figures by cell are not known, so ranges are compared.

/// A goal, and the paper's value of the same figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// What it is about.
    pub name: &'static str,
    /// The paper's value.
    pub paper: f64,
    /// What is wanted.
    pub goal: f64,
    /// Whether less is better.
    pub is_limit: bool,
    /// How values are printed.
    pub unit: Unit,
}

/// Unit of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Change in percent.
    Percent,
    /// A factor.
    Times,
}

impl Goal {
    const fn percent(name: &'static str, paper: f64, goal: f64) -> Self {
        Self {
            name,
            paper,
            goal,
            is_limit: false,
            unit: Unit::Percent,
        }
    }

    /// Whether a value is as wanted.
    #[must_use]
    pub fn is_met(&self, value: f64) -> bool {
        match self.is_limit {
            true => value <= self.goal,
            false => value >= self.goal,
        }
    }
}

/// Best cell of TPC-H.
pub const TPCH: Goal = Goal::percent("TPC-H, best cell", 99.0, 150.0);
/// Best cell of PostMark.
pub const POSTMARK: Goal = Goal::percent("PostMark, best cell", 20.0, 40.0);
/// Best cell of the file server.
pub const FILE_SERVER: Goal = Goal::percent("file server, best cell", 11.0, 25.0);
/// Worst cell of all.
pub const WORST: Goal = Goal::percent("worst cell", -15.0, 0.0);
/// Hit ratio of the cell that gains most.
pub const HITS_MOST: Goal = Goal::percent("hit ratio, best cell", 145.0, 200.0);
/// Hit ratio of the load that gains least, at the size where it gains most.
pub const HITS_LEAST: Goal = Goal::percent("hit ratio, load that gains least", 22.0, 60.0);
/// Processor time.
pub const PROCESSOR: Goal = Goal {
    name: "processor, worst cell",
    paper: 4.5,
    goal: 1.5,
    is_limit: true,
    unit: Unit::Times,
};
/// Throughput while regions are reclaimed.
pub const RECLAIM: Goal = Goal {
    name: "slowest moment while reclaiming",
    paper: 0.5,
    goal: 0.95,
    is_limit: false,
    unit: Unit::Times,
};

/// Slide 19.
pub const CACHE_SIZE: &str = "TPC-H up to +99 %, PostMark up to +20 %, SPECsfs up to +11 %; PostMark with one instance -6 to -15 %, TPC-H \
                              with a small cache -7 %";
/// Slide 20.
pub const HIT_RATIO: &str = "+22 to +145 %";
/// Slide 21.
pub const PROCESSOR_TIME: &str = "up to 4.5 times";
/// Slide 22.
pub const EXTENT: &str = "32 to 64 KiB are best";
/// Slide 23.
pub const SPLITTING: &str = "splitting reads: +25 % throughput, -62 % latency in PostMark with one instance";
/// Slide 24.
pub const RECLAIMING: &str = "half of the throughput while the cleaner runs";
