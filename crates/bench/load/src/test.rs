//! The 13 throughput tests and the four IOPS tests, described as data.
//!
//! Tests that use the same open file belong to a *group*, as in IOzone's `-i`: a rewrite follows a write, a reread a
//! read. A campaign shuffles groups.

use std::fmt;
use std::str::FromStr;

use flaz_bench::unit::Unit;
use serde::{Deserialize, Serialize};

use crate::pattern::Order;

/// Record size of the IOPS tests.
pub const IOPS_RECORD_BYTES: u64 = 4096;

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Records in order, into a new file.
    Write,
    /// The same again, over existing data.
    Rewrite,
    /// Records in order.
    Read,
    /// The same again.
    Reread,
    /// Each record once, shuffled.
    RandomRead,
    /// Each record once, shuffled, over existing data.
    RandomWrite,
    /// From the last record to the first.
    BackwardsRead,
    /// Record 0, as many times as there are records.
    RecordRewrite,
    /// Every 17th record, then again from the next one.
    StridedRead,
    /// As `write`, through a stream with a buffer in user space.
    Fwrite,
    /// As `rewrite`, through a stream.
    Frewrite,
    /// As `read`, through a stream.
    Fread,
    /// As `reread`, through a stream.
    Freread,
    /// As `write`, counted in operations of 4 KiB per second.
    WriteIops,
    /// As `read`, counted in operations of 4 KiB per second.
    ReadIops,
    /// As `random_read`, counted in operations of 4 KiB per second.
    RandomReadIops,
    /// As `random_write`, counted in operations of 4 KiB per second.
    RandomWriteIops,
}

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From it.
    Read,
    /// To it.
    Write,
}

/// Tests that run directly one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// write, rewrite
    Write,
    /// read, reread
    Read,
    /// random_read, random_write
    Random,
    /// backwards_read
    Backwards,
    /// record_rewrite
    RecordRewrite,
    /// strided_read
    Strided,
    /// fwrite, frewrite
    StreamWrite,
    /// fread, freread
    StreamRead,
    /// write_iops
    WriteIops,
    /// read_iops
    ReadIops,
    /// random_read_iops, random_write_iops
    RandomIops,
}

impl Test {
    /// The 13 throughput tests, in IOzone's order.
    pub const THROUGHPUT: [Self; 13] = [
        Self::Write,
        Self::Rewrite,
        Self::Read,
        Self::Reread,
        Self::RandomRead,
        Self::RandomWrite,
        Self::BackwardsRead,
        Self::RecordRewrite,
        Self::StridedRead,
        Self::Fwrite,
        Self::Frewrite,
        Self::Fread,
        Self::Freread,
    ];

    /// The four IOPS tests.
    pub const IOPS: [Self; 4] = [
        Self::WriteIops,
        Self::ReadIops,
        Self::RandomReadIops,
        Self::RandomWriteIops,
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::THROUGHPUT.into_iter().chain(Self::IOPS)
    }

    /// Its name, as in published tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random_read",
            Self::RandomWrite => "random_write",
            Self::BackwardsRead => "backwards_read",
            Self::RecordRewrite => "record_rewrite",
            Self::StridedRead => "strided_read",
            Self::Fwrite => "fwrite",
            Self::Frewrite => "frewrite",
            Self::Fread => "fread",
            Self::Freread => "freread",
            Self::WriteIops => "write_iops",
            Self::ReadIops => "read_iops",
            Self::RandomReadIops => "random_read_iops",
            Self::RandomWriteIops => "random_write_iops",
        }
    }

    /// Whether it writes or reads.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::Write
            | Self::Rewrite
            | Self::RandomWrite
            | Self::RecordRewrite
            | Self::Fwrite
            | Self::Frewrite
            | Self::WriteIops
            | Self::RandomWriteIops => Direction::Write,
            _ => Direction::Read,
        }
    }

    /// The order of its records.
    #[must_use]
    pub fn order(self) -> Order {
        match self {
            Self::RandomRead | Self::RandomWrite | Self::RandomReadIops | Self::RandomWriteIops => {
                Order::Shuffled
            }
            Self::BackwardsRead => Order::Backwards,
            Self::RecordRewrite => Order::First,
            Self::StridedRead => Order::Strided,
            _ => Order::Forward,
        }
    }

    /// Whether it uses a stream with a buffer in user space, and thus the page cache.
    #[must_use]
    pub fn is_stream(self) -> bool {
        matches!(self.group(), Group::StreamWrite | Group::StreamRead)
    }

    /// Whether it counts operations of 4 KiB and not bytes.
    #[must_use]
    pub fn is_iops(self) -> bool {
        Self::IOPS.contains(&self)
    }

    /// The unit of its samples.
    #[must_use]
    pub fn unit(self) -> Unit {
        if self.is_iops() {
            Unit::OperationsPerSecond
        } else {
            Unit::BytesPerSecond
        }
    }

    /// Its group.
    #[must_use]
    pub fn group(self) -> Group {
        match self {
            Self::Write | Self::Rewrite => Group::Write,
            Self::Read | Self::Reread => Group::Read,
            Self::RandomRead | Self::RandomWrite => Group::Random,
            Self::BackwardsRead => Group::Backwards,
            Self::RecordRewrite => Group::RecordRewrite,
            Self::StridedRead => Group::Strided,
            Self::Fwrite | Self::Frewrite => Group::StreamWrite,
            Self::Fread | Self::Freread => Group::StreamRead,
            Self::WriteIops => Group::WriteIops,
            Self::ReadIops => Group::ReadIops,
            Self::RandomReadIops | Self::RandomWriteIops => Group::RandomIops,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses a word that names one or more tests.
///
/// # Errors
/// It names none; the message lists the valid words.
pub fn parse_tests(word: &str) -> Result<Vec<Test>, String> {
    match word.trim() {
        "throughput" => Ok(Test::THROUGHPUT.to_vec()),
        "iops" => Ok(Test::IOPS.to_vec()),
        "streaming" => Ok(vec![Test::Write, Test::Read]),
        "all" => Ok(Test::all().collect()),
        name => Test::from_str(name).map(|test| vec![test]),
    }
}

impl FromStr for Test {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().find(|test| test.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::all().map(Self::name).collect();
            format!(
                "'{text}' is not a test: expected throughput, iops, streaming, all, or one of {}",
                names.join(", ")
            )
        })
    }
}

impl Group {
    /// Its tests, in order of execution.
    pub fn tests(self) -> impl Iterator<Item = Test> {
        Test::all().filter(move |test| test.group() == self)
    }

    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Write,
        Self::Read,
        Self::Random,
        Self::Backwards,
        Self::RecordRewrite,
        Self::Strided,
        Self::StreamWrite,
        Self::StreamRead,
        Self::WriteIops,
        Self::ReadIops,
        Self::RandomIops,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_names_parse_and_match_published_tables() {
        for test in Test::all() {
            assert_eq!(test.name().parse(), Ok(test));
            assert_eq!(serde_json::to_value(test).unwrap(), test.name());
        }
        let table = include_str!("../../report/tests/data/sf1222-throughput.csv");
        for line in table.lines().skip(1) {
            let name = line.split(',').nth(2).unwrap();
            assert!(Test::THROUGHPUT.iter().any(|test| test.name() == name), "{name}");
        }
    }

    #[test]
    fn words_select_several_tests() {
        assert_eq!(parse_tests("throughput").unwrap().len(), 13);
        assert_eq!(parse_tests("iops").unwrap().len(), 4);
        assert_eq!(parse_tests("all").unwrap().len(), 17);
        assert_eq!(parse_tests(" reread ").unwrap(), [Test::Reread]);
        assert!(parse_tests("raed").unwrap_err().contains("backwards_read"));
    }

    #[test]
    fn every_test_is_in_one_group() {
        let listed: Vec<Test> = Group::ALL.into_iter().flat_map(Group::tests).collect();
        assert_eq!(listed.len(), 17);
        assert!(Test::all().all(|test| listed.contains(&test)));
    }
}
