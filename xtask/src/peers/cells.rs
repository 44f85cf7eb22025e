//! What is measured.

use std::fmt;

/// Requests of a phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    /// Before the measurement: they fill the cache, also one that admits blocks only after several requests. Working sets of
    /// more than twice as many blocks get more: see `warm` in workloads.sh.
    pub warm: u64,
    /// Those that are counted.
    pub counted: u64,
}

/// The SSD of all systems.
pub(super) const SSD_MIB: u64 = 64;
/// Working sets of which the SSD is 1/32, 1/16, 1/8 and 1/4.
pub(super) const WORKING_MIB: [u64; 4] = [2048, 1024, 512, 256];
/// Kinds of data: the percentage that compression saves of them.
pub(super) const SAVED_PERCENTS: [u64; 3] = [2, 50, 75];
/// The data of everything but [`Part::Zipf`], and of systems without compression, for which the data makes no difference.
pub(super) const SAVED_PERCENT: u64 = 50;
/// The working set of everything but [`Part::Zipf`].
pub(super) const ONE_WORKING_MIB: u64 = 512;

/// What is measured, in the order of the tables.
pub(super) const SYSTEMS: [&str; 6] = ["dmcache", "vdo", "bcache", "flaz:none", "flaz:lz4", "flaz:zstd:1"];
/// The systems that do not compress.
pub(super) const PLAIN: [&str; 3] = ["dmcache", "bcache", "flaz:none"];
/// The origin without a cache.
pub(super) const BARE: &str = "bare";

/// What [`Part::Detach`] writes: 12,000 blocks.
pub(super) const DETACH_MIB: f64 = 12_000.0 / 256.0;

/// A little larger than the largest working set: bcache needs a few sectors of the origin.
const ORIGIN: &str = "2112M";
/// Requests of [`SLOW_ORIGIN`].
pub(super) const DETACH_REQUESTS_PER_SECOND: f64 = 200.0;
/// So slow that the disk limits a detach, not the processor.
const SLOW_ORIGIN: &str = "576M,throttling.iops-total=200,throttling.bps-total=104857600";

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Zipf reads.
    Zipf,
    /// Zipf reads and writes.
    Mixed,
    /// A scan over a warm cache, then a clean restart, then a kill.
    Warm,
    /// A crash of the machine.
    Crash,
    /// Completing the origin from a dirty cache.
    Detach,
    /// Requests per second, with disks as much slower as the processor is.
    Slowed,
    /// PostMark on ext4.
    Postmark,
    /// SQLite on ext4.
    Sqlite,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.workload())
    }
}

impl Part {
    /// Its name in a cell.
    fn workload(self) -> &'static str {
        match self {
            Part::Zipf => "zipf",
            Part::Mixed => "mixed",
            Part::Warm => "warm",
            Part::Crash => "crash",
            Part::Detach => "detach",
            Part::Slowed => "slowed",
            Part::Postmark => "postmark",
            Part::Sqlite => "sqlite",
        }
    }

    pub(super) fn requests(self) -> Requests {
        match self {
            Part::Zipf | Part::Mixed | Part::Warm => Requests {
                warm: 150_000,
                counted: 50_000,
            },
            // Where a cache is compared with itself, or programs run, fewer are enough.
            _ => Requests {
                warm: 100_000,
                counted: 20_000,
            },
        }
    }

    /// The disk of the origin, as an option of `tools/vm run`.
    pub(super) fn origin(self) -> &'static str {
        match self {
            Part::Detach => SLOW_ORIGIN,
            _ => ORIGIN,
        }
    }
}

/// Cells that are measured with the same data, in one boot of the machine; in [`Part::Crash`], each ends with a power cut.
#[derive(Debug)]
pub(super) struct Boot {
    pub part: Part,
    /// Percentage that compression saves of the data.
    pub saved_percent: u64,
    /// SYSTEM,MODE,SSD_MIB,WORKING_MIB,WORKLOAD,SEED: see measure.sh.
    pub cells: Vec<String>,
}

/// All boots, the most important first.
pub(super) fn boots() -> Vec<Boot> {
    let zipf = |saved_percent, systems: &[&str]| Boot {
        part: Part::Zipf,
        saved_percent,
        cells: WORKING_MIB
            .iter()
            .flat_map(|working| {
                systems
                    .iter()
                    .map(move |system| cell(system, "write-through", *working, Part::Zipf))
            })
            .collect(),
    };
    let one_size = |part, modes: &[&str], systems: &[&str]| Boot {
        part,
        saved_percent: SAVED_PERCENT,
        cells: modes
            .iter()
            .flat_map(|mode| {
                systems
                    .iter()
                    .map(move |system| cell(system, mode, ONE_WORKING_MIB, part))
            })
            .collect(),
    };
    let both = ["write-through", "write-back"];
    let with_bare: Vec<&str> = [BARE].into_iter().chain(SYSTEMS).collect();
    vec![
        zipf(SAVED_PERCENT, &SYSTEMS),
        zipf(75, &["vdo", "flaz:lz4", "flaz:zstd:1"]),
        zipf(2, &["flaz:lz4"]),
        one_size(Part::Mixed, &both, &SYSTEMS),
        one_size(Part::Warm, &["write-through"], &SYSTEMS),
        one_size(Part::Crash, &both, &SYSTEMS[..5]),
        one_size(Part::Detach, &["write-back"], &with_bare[..6]),
        one_size(Part::Slowed, &["write-through"], &with_bare[..6]),
        one_size(Part::Postmark, &["write-back"], &with_bare),
        one_size(Part::Sqlite, &["write-back"], &with_bare),
    ]
}

fn cell(system: &str, mode: &str, working_mib: u64, part: Part) -> String {
    // Each size has its own seed, all systems the same.
    format!(
        "{system},{mode},{SSD_MIB},{working_mib},{},{working_mib}",
        part.workload()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_gets_the_same_requests() {
        for boot in boots() {
            let system = |cell: &str| cell.split_once(',').unwrap().0.to_owned();
            let rest = |cell: &str| cell.split_once(',').unwrap().1.to_owned();
            let first = system(&boot.cells[0]);
            let of = |name: &str| -> Vec<String> {
                let cells = boot.cells.iter().filter(|cell| system(cell) == name);
                cells.map(|cell| rest(cell)).collect()
            };
            for cell in &boot.cells {
                assert_eq!(of(&system(cell)), of(&first), "{boot:?}");
            }
        }
    }
}
