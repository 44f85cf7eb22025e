//! The offsets of a test and their order: iterators of offsets and lengths, without I/O.
//!
//! N is the number of records of a file. Every order has N accesses, and all but [`Order::First`] access each record
//! exactly once.

use crate::shuffle::Shuffle;

/// Distance of a strided read, in records.
pub const STRIDE_RECORDS: u64 = 17;

/// The order of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// 0, 1, 2, ..
    Forward,
    /// N - 1, N - 2, .., 0.
    Backwards,
    /// One shuffle of 0 to N - 1, fixed by a seed.
    Shuffled,
    /// 0, 17, 34, ..; after the end 1, 18, 35, ..; and so on.
    Strided,
    /// 0, N times.
    First,
}

/// An access to one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Bytes from the beginning of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// The accesses of one writer in one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The order.
    pub order: Order,
    /// Number of records.
    pub records: u64,
    /// Size of each in bytes.
    pub record_bytes: usize,
    /// Seed of the shuffle.
    pub seed: u64,
}

impl Pattern {
    /// Total bytes of all accesses.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records * self.record_bytes as u64
    }

    /// The accesses.
    #[must_use]
    pub fn accesses(&self) -> Accesses {
        Accesses {
            pattern: *self,
            done: 0,
            strided: 0,
            shuffle: Shuffle::new(self.records, self.seed),
        }
    }
}

/// The accesses of a [`Pattern`].
#[derive(Clone, Debug)]
pub struct Accesses {
    pattern: Pattern,
    done: u64,
    /// The next record of a strided read.
    strided: u64,
    shuffle: Shuffle,
}

impl Accesses {
    fn record(&mut self) -> u64 {
        let records = self.pattern.records;
        match self.pattern.order {
            Order::Forward => self.done,
            Order::Backwards => records - 1 - self.done,
            Order::Shuffled => self.shuffle.at(self.done),
            Order::First => 0,
            Order::Strided => {
                let record = self.strided;
                self.strided = if record + STRIDE_RECORDS < records {
                    record + STRIDE_RECORDS
                } else {
                    record % STRIDE_RECORDS + 1
                };
                record
            }
        }
    }
}

impl Iterator for Accesses {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        if self.done == self.pattern.records {
            return None;
        }
        let record = self.record();
        self.done += 1;
        Some(Access {
            offset: record * self.pattern.record_bytes as u64,
            bytes: self.pattern.record_bytes,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.pattern.records - self.done).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(order: Order, records: u64) -> Vec<u64> {
        let pattern = Pattern {
            order,
            records,
            record_bytes: 512,
            seed: 7,
        };
        let accesses: Vec<Access> = pattern.accesses().collect();
        assert!(
            accesses
                .iter()
                .all(|access| access.bytes == 512 && access.offset % 512 == 0)
        );
        accesses.iter().map(|access| access.offset / 512).collect()
    }

    #[test]
    fn short_files_have_the_expected_order() {
        assert_eq!(records(Order::Forward, 4), [0, 1, 2, 3]);
        assert_eq!(records(Order::Backwards, 4), [3, 2, 1, 0]);
        assert_eq!(records(Order::First, 4), [0, 0, 0, 0]);
        assert_eq!(records(Order::Strided, 4), [0, 1, 2, 3]);
        let long = records(Order::Strided, 40);
        assert_eq!(long[..7], [0, 17, 34, 1, 18, 35, 2]);
        assert_eq!(long[15..22], [5, 22, 39, 6, 23, 7, 24]);
    }

    #[test]
    fn each_record_is_touched_once() {
        for order in [Order::Forward, Order::Backwards, Order::Shuffled, Order::Strided] {
            for count in [1, 2, 3, 16, 17, 18, 33, 34, 35, 1000, 4097] {
                let mut all = records(order, count);
                assert_eq!(all.len() as u64, count);
                all.sort_unstable();
                assert!(all.iter().copied().eq(0..count), "{order:?} of {count}");
            }
        }
    }

    #[test]
    fn zero_records_have_no_access() {
        assert!(records(Order::Strided, 0).is_empty() && records(Order::Shuffled, 0).is_empty());
    }
}
