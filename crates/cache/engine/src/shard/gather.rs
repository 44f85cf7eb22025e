//! Reading fragments that lie close together at once. Pure.

use std::ops::Range;

/// What is read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longest read, in bytes. One item may be longer.
    pub(super) bytes_max: u64,
    /// Bytes between two items that are read along rather than read apart.
    pub(super) gap_max: u64,
}

impl Limits {
    /// For the hits of a client's read.
    pub(super) const OF_HITS: Self = Self {
        bytes_max: 128 << 10,
        gap_max: 4 << 10,
    };
}

/// Cuts items, which are in the order of their places, into groups of neighbours in the same region. Gives with each group the
/// range that covers it.
///
/// # Panics
/// When the items are not in order.
pub(super) fn neighbours<T>(
    items: &[T],
    limits: Limits,
    region_bytes: u64,
    place: impl Fn(&T) -> Range<u64>,
) -> impl Iterator<Item = (Range<u64>, &[T])> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let (first, others) = rest.split_first()?;
        let mut range = place(first);
        let mut len = 1;
        for next in others.iter().map(&place) {
            assert!(
                next.start >= range.start,
                "items are in the order of their places"
            );
            let end = next.end.max(range.end);
            // The next region lies elsewhere.
            let same_region = next.start / region_bytes == range.start / region_bytes;
            let near = next.start <= range.end + limits.gap_max && end - range.start <= limits.bytes_max;
            if !(same_region && near) {
                break;
            }
            range.end = end;
            len += 1;
        }
        let group;
        (group, rest) = rest.split_at(len);
        Some((range, group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        bytes_max: 100,
        gap_max: 10,
    };

    fn groups(items: &[Range<u64>]) -> Vec<(Range<u64>, usize)> {
        let groups = neighbours(items, LIMITS, 1000, Clone::clone);
        groups.map(|(range, group)| (range, group.len())).collect()
    }

    #[test]
    fn items_are_read_together_up_to_the_limits() {
        assert_eq!(groups(&[]), []);
        assert_eq!(groups(&[0..20, 30..40, 51..60]), [(0..40, 2), (51..60, 1)]);
        assert_eq!(groups(&[0..60, 60..100, 100..110]), [(0..100, 2), (100..110, 1)]);
        assert_eq!(groups(&[0..500, 500..510]), [(0..500, 1), (500..510, 1)]);
        assert_eq!(groups(&[5..5, 5..20, 5..9]), [(5..20, 3)]);
        assert_eq!(
            groups(&[990..1000, 1000..1005]),
            [(990..1000, 1), (1000..1005, 1)]
        );
    }
}
