//! What is measured.

use std::fmt;

/// Requests before the measurement: they fill the cache, also those that admit blocks only after several requests.
pub(super) const WARM_REQUESTS: u64 = 150_000;
/// Requests that are counted.
pub(super) const REQUESTS: u64 = 50_000;

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

pub(super) const SYSTEMS: [&str; 5] = ["dmcache", "bcache", "flaz:none", "flaz:lz4", "flaz:zstd:1"];
const COMPRESSED: [&str; 2] = ["flaz:lz4", "flaz:zstd:1"];

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Zipf reads.
    Zipf,
    /// Zipf reads and writes.
    Mixed,
    /// A scan over a warm cache.
    Scan,
    /// A restart after a clean stop, and after a kill.
    Restart,
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
            Part::Scan => "scan",
            Part::Restart => "restart",
        }
    }
}

/// A boot of the machine.
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
    let one_size = |part, modes: &[&str]| Boot {
        part,
        saved_percent: SAVED_PERCENT,
        cells: modes
            .iter()
            .flat_map(|mode| {
                SYSTEMS
                    .iter()
                    .map(move |system| cell(system, mode, ONE_WORKING_MIB, part))
            })
            .collect(),
    };
    vec![
        zipf(SAVED_PERCENT, &SYSTEMS),
        one_size(Part::Mixed, &["write-through", "write-back"]),
        zipf(75, &COMPRESSED),
        zipf(2, &COMPRESSED),
        one_size(Part::Restart, &["write-through"]),
        one_size(Part::Scan, &["write-through"]),
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
