//! The tests: the 13 of throughput and the four of operations a second, each with what it does, as data.
//!
//! Tests that one reopening of a file serves belong to a *group*, as in IOzone's `-i`: a rewrite follows a write, a reread
//! a read. A group is what a campaign shuffles.

use std::fmt;
use std::str::FromStr;

use flaz_bench::unit::Unit;
use serde::{Deserialize, Serialize};

use crate::pattern::Order;

/// Record size of the tests that count operations.
pub const IOPS_RECORD_BYTES: u64 = 4096;

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Records in order, into a new file.
    Write,
    /// The same again, over what is there.
    Rewrite,
    /// Records in order.
    Read,
    /// The same again.
    Reread,
    /// Each record once, shuffled.
    RandomRead,
    /// Each record once, shuffled, over what is there.
    RandomWrite,
    /// From the last record to the first.
    BackwardsRead,
    /// Record 0, as often as there are records.
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
    /// As `write`, in operations of 4 KiB a second.
    WriteIops,
    /// As `read`, in operations of 4 KiB a second.
    ReadIops,
    /// As `random_read`, in operations of 4 KiB a second.
    RandomReadIops,
    /// As `random_write`, in operations of 4 KiB a second.
    RandomWriteIops,
}

/// Whether data goes to the device or comes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From it.
    Read,
    /// To it.
    Write,
}

/// Tests that are run one right after the other.
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
    /// The 13 tests of throughput, in IOzone's order.
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

    /// The four tests of operations a second.
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

    /// Its name, as published tables have it.
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

    /// Whether it goes through a stream with a buffer in user space, and so through the page cache.
    #[must_use]
    pub fn is_stream(self) -> bool {
        matches!(self.group(), Group::StreamWrite | Group::StreamRead)
    }

    /// Whether it counts operations, of 4 KiB, and not bytes.
    #[must_use]
    pub fn is_iops(self) -> bool {
        Self::IOPS.contains(&self)
    }

    /// What its samples count.
    #[must_use]
    pub fn unit(self) -> Unit {
        if self.is_iops() {
            Unit::OperationsPerSecond
        } else {
            Unit::BytesPerSecond
        }
    }

    /// What it is run with.
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

/// A word that names one or more tests.
///
/// # Errors
/// It names none; the words that do.
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
    /// Its tests, in the order in which they are run.
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
    fn names_read_back_and_are_the_published_ones() {
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
    fn words_stand_for_many() {
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
