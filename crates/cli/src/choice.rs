//! Settings of the engine on the command line: parsers that list the possible values in `--help`, with one line for
//! each.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use flaz_control::settings::Emulation;
use flaz_engine::choice::{Choice, parse};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{AfterCrash, Mode, StrictFlush};

/// A setting whose values have descriptions on the command line.
pub trait Described: Choice + Send + Sync {
    /// The description in `--help`.
    fn help(self) -> &'static str;
}

impl Described for Mode {
    fn help(self) -> &'static str {
        match self {
            Self::WriteThrough => "Acknowledge when on the origin; also update the cached copy",
            Self::WriteBack => "Acknowledge when on the cache device; write to the origin later",
            Self::WriteAround => "Acknowledge when on the origin; drop the cached copy",
            Self::PassThrough => "Do not use the cache",
        }
    }
}

impl Described for PolicyKind {
    fn help(self) -> &'static str {
        match self {
            Self::S3Fifo => "S3-FIFO over two rings, probation and main: best hit ratio on real workloads",
            Self::SecondTouch => {
                "Admit a block at its second miss: writes a third to a half as much to the SSD"
            }
            Self::Fifo => "Admit every block, evict the oldest; each block is written to the SSD only once",
        }
    }
}

impl Described for AfterCrash {
    fn help(self) -> &'static str {
        match self {
            Self::Warm => "All blocks except those in areas being written",
            Self::Cold => "No blocks",
        }
    }
}

impl Described for StrictFlush {
    fn help(self) -> &'static str {
        match self {
            Self::Auto => "Always if the cache device has no volatile write cache, else never",
            Self::Always => "Before a flush is acknowledged",
            Self::Never => "Within milliseconds after a flush is acknowledged",
        }
    }
}

impl Described for Emulation {
    fn help(self) -> &'static str {
        match self {
            Self::Hdd => "Hard disk: 12.6 ms, 100 MB/s read, 90 MB/s written",
            Self::Ssd => "SATA SSD: 0.17 ms, 277 MB/s read, 202 MB/s written",
            Self::NetworkVolume => "Cloud network volume: 1 ms, 125 MB/s, 3,000 IOPS",
        }
    }
}

/// Parses the name of a value; `--help` and shell completions list the names.
#[must_use]
pub fn choice<T: Described>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL
        .iter()
        .map(|value| PossibleValue::new(value.name()).help(value.help()));
    PossibleValuesParser::new(values).try_map(|name| parse::<T>(&name))
}

/// The names of all values, for a sentence: `a, b or c`.
#[must_use]
pub fn names<T: Choice>() -> String {
    let names: Vec<_> = T::ALL.iter().map(|value| value.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_for_a_sentence() {
        assert_eq!(names::<PolicyKind>(), "s3-fifo, second-touch or fifo");
        assert_eq!(names::<AfterCrash>(), "warm or cold");
    }
}
