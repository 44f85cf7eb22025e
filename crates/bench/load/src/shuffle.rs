//! A shuffle of 0 to N - 1 as a function of the position, without a table.
//!
//! A table of the 4 KiB records of a terabyte would take a gigabyte, and reading it would displace cache contents
//! during the measurement. This is a generalised Feistel network: numbers below a * b, where a and b are close to the
//! square root of N, are split into a quotient and a remainder, and keyed functions of each are added to the other in
//! turn (Black and Rogaway: Ciphers with Arbitrary Finite Domains, 2002, method 3). Results of N or above are permuted
//! again until one is below.

use flaz_random::Key;

/// Rounds of the network. Four are sufficient for a shuffle that does not have to resist attacks; small N need more.
const ROUNDS: u64 = 6;
/// Separates this from other uses of the same seed.
const PURPOSE: u64 = 0x73_6875_6666_6c65;

/// A permutation of 0 to N - 1.
#[derive(Clone, Debug)]
pub struct Shuffle {
    count: u64,
    /// Number of quotients.
    a: u64,
    /// Number of remainders.
    b: u64,
    keys: [Key; ROUNDS as usize],
}

impl Shuffle {
    /// A shuffle of `count` numbers; equal seeds give equal ones.
    #[must_use]
    pub fn new(count: u64, seed: u64) -> Self {
        let b = count.isqrt().max(1);
        let key = Key::new(seed, PURPOSE);
        Self {
            count,
            a: count.div_ceil(b).max(1),
            b,
            keys: std::array::from_fn(|round| key.part(round as u64)),
        }
    }

    /// The number at position `place`.
    ///
    /// # Panics
    /// If the position is `count` or above.
    #[inline]
    #[must_use]
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "place {place} of {}", self.count);
        let mut number = place;
        loop {
            number = self.once(number);
            // It returns to its start at the latest, because this is a permutation of a * b numbers.
            if number < self.count {
                return number;
            }
        }
    }

    #[inline]
    fn once(&self, number: u64) -> u64 {
        let (mut quotient, mut remainder) = (number / self.b, number % self.b);
        for (round, key) in self.keys.iter().enumerate() {
            if round % 2 == 0 {
                quotient += key.below(remainder, self.a);
                if quotient >= self.a {
                    quotient -= self.a;
                }
            } else {
                remainder += key.below(quotient, self.b);
                if remainder >= self.b {
                    remainder -= self.b;
                }
            }
        }
        quotient * self.b + remainder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_seeds_are_unrelated() {
        const N: u64 = 100_000;
        let shuffle = Shuffle::new(N, 1);
        let steps = (1..N)
            .filter(|&at| shuffle.at(at) == shuffle.at(at - 1) + 1)
            .count();
        // One is expected of a true shuffle.
        assert!(steps < 10, "{steps} records in order");
        let fixed = (0..N).filter(|&at| shuffle.at(at) == at).count();
        assert!(fixed < 10, "{fixed} records in place");
        let other = Shuffle::new(N, 2);
        let same = (0..N).filter(|&at| shuffle.at(at) == other.at(at)).count();
        assert!(same < 10, "{same} records alike");
    }

    #[test]
    fn shuffled_distances_match_a_true_shuffle() {
        const N: u64 = 10_000;
        let shuffle = Shuffle::new(N, 3);
        let mean = (1..N)
            .map(|at| shuffle.at(at).abs_diff(shuffle.at(at - 1)) as f64)
            .sum::<f64>()
            / (N - 1) as f64;
        // A third of N, with a standard deviation of N / sqrt(18 N).
        assert!((mean / N as f64 - 1.0 / 3.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_shuffle_of_a_large_range_stays_within_it() {
        let count = (1 << 40) + 12_345;
        let shuffle = Shuffle::new(count, 9);
        assert!((0..1000).all(|at| shuffle.at(at * 1_000_000_007) < count));
    }
}
