//! The requests of the demo: read-mostly, small, skewed.
//!
//! A request selects a piece of a file by Zipf-distributed popularity (the seed assigns popularity to pieces), then an
//! offset and a length in the piece. A client's sequence depends only on the seed, its number and the phase, never on
//! time, so the three runs get the same requests in the same order.
//!
//! Invariant: a client only writes to pieces whose popularity rank modulo the number of clients is its number, so no
//! two clients ever write to one block. Reads go to all pieces.

use std::sync::Arc;

use flaz_random::{Random, scale};

use crate::dataset::{DataSet, Piece};
use crate::zipf::Zipf;

/// Lengths of requests: (blocks, percent). Limited by the end of the piece.
pub const REQUEST_BLOCKS: [(u32, u64); 5] = [(1, 50), (2, 20), (4, 15), (8, 10), (16, 5)];
/// Maximum length of a request in blocks.
pub const REQUEST_BLOCKS_MAX: u32 = 16;

/// One request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read `blocks` blocks from `first`.
    Read {
        /// First block.
        first: u32,
        /// Number of blocks.
        blocks: u32,
    },
    /// Write `blocks` blocks at `first`, with the contents of the image at `donor`, so that the kind of data is the
    /// same.
    Write {
        /// First block.
        first: u32,
        /// Number of blocks.
        blocks: u32,
        /// First block of the image to copy from.
        donor: u32,
    },
}

/// State shared by all clients.
#[derive(Debug, Clone)]
pub struct Workload {
    seed: u64,
    clients: u32,
    write_share: f64,
    zipf: Arc<Zipf>,
    /// Pieces by popularity, most popular first.
    by_rank: Arc<[Piece]>,
}

impl Workload {
    /// The workload over all pieces of `data`; `write_share` of the requests are writes.
    ///
    /// # Panics
    /// If `data` has no pieces or there are no clients.
    pub fn new(data: &DataSet, seed: u64, clients: u32, skew: f64, write_share: f64) -> Self {
        assert!(clients > 0, "a workload needs clients");
        let order = Random::stream(seed, 0x0f11e).permutation(data.pieces.len() as u32);
        let by_rank: Arc<[Piece]> = order
            .into_iter()
            .map(|piece| data.pieces[piece as usize])
            .collect();
        let zipf = Arc::new(Zipf::new(by_rank.len() as u32, skew));
        Self {
            seed,
            clients,
            write_share,
            zipf,
            by_rank,
        }
    }

    /// Number of clients.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// The requests of one client in one phase.
    pub fn requests(&self, client: u32, phase: u32) -> Requests {
        let random = Random::stream(self.seed, (u64::from(phase) << 32) | (u64::from(client) + 1));
        Requests {
            workload: self.clone(),
            client,
            random,
        }
    }

    /// Share of the requests that go to the most popular pieces with the share `share` of the blocks.
    pub fn share_of_hottest(&self, share: f64) -> f64 {
        let total: u64 = self.by_rank.iter().map(|piece| u64::from(piece.blocks)).sum();
        let mut blocks = 0;
        let within = |piece: &&Piece| {
            blocks += u64::from(piece.blocks);
            blocks as f64 <= share * total as f64
        };
        let top = self.by_rank.iter().take_while(within).count();
        self.zipf.share_of_top(top as u32)
    }
}

/// An endless sequence of requests.
#[derive(Debug)]
pub struct Requests {
    workload: Workload,
    client: u32,
    random: Random,
}

impl Requests {
    /// The next request.
    pub fn next(&mut self) -> Operation {
        let Workload {
            clients,
            write_share,
            zipf,
            by_rank,
            ..
        } = &self.workload;
        let write = self.random.unit() < *write_share;
        let rank = zipf.draw(&mut self.random);
        let rank = if write {
            own_rank(rank, self.client, *clients, zipf.ranks())
        } else {
            Some(rank)
        };
        let blocks = length(self.random.below(100));
        let place = self.random.bits();
        let donor = self.random.bits();
        // A client without its own piece (fewer pieces than clients) reads instead.
        let (piece, write) = match rank {
            Some(rank) => (by_rank[rank as usize], write),
            None => (by_rank[0], false),
        };
        let blocks = blocks.min(piece.blocks);
        let first = piece.first + scaled(place, piece.blocks - blocks + 1);
        if write {
            let image = by_rank[scaled(donor, by_rank.len() as u32) as usize];
            let blocks = blocks.min(image.blocks);
            Operation::Write {
                first,
                blocks,
                donor: image.first,
            }
        } else {
            Operation::Read { first, blocks }
        }
    }
}

/// The rank closest to `rank` that belongs to `client`.
fn own_rank(rank: u32, client: u32, clients: u32, ranks: u32) -> Option<u32> {
    let own = rank - rank % clients + client;
    if own < ranks {
        Some(own)
    } else {
        own.checked_sub(clients)
    }
}

fn length(percent: u64) -> u32 {
    let mut left = percent;
    for (blocks, parts) in REQUEST_BLOCKS {
        if left < parts {
            return blocks;
        }
        left -= parts;
    }
    REQUEST_BLOCKS_MAX
}

/// Converts random bits to a number below `limit`.
fn scaled(bits: u64, limit: u32) -> u32 {
    scale(bits, limit.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DataSummary;
    use std::collections::HashMap;

    fn data(pieces: &[u32]) -> DataSet {
        let mut first = 0;
        let pieces = pieces
            .iter()
            .map(|&blocks| {
                let piece = Piece { first, blocks };
                first += blocks;
                piece
            })
            .collect();
        DataSet {
            image: Default::default(),
            checksums: vec![0; first as usize],
            pieces,
            summary: DataSummary::default(),
        }
    }

    #[test]
    fn requests_depend_only_on_seed_client_and_phase() {
        let set = data(&[64; 100]);
        let draw = |seed, client, phase| {
            let mut requests = Workload::new(&set, seed, 4, 0.9, 0.05).requests(client, phase);
            (0..50).map(|_| requests.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2, 0), draw(1, 2, 0));
        assert_ne!(draw(1, 2, 0), draw(1, 3, 0));
        assert_ne!(draw(1, 2, 0), draw(1, 2, 1));
        assert_ne!(draw(1, 2, 0), draw(2, 2, 0));
    }

    #[test]
    fn requests_stay_in_their_pieces_and_no_block_has_two_writers() {
        let sizes: Vec<u32> = (0..97).map(|number| 1 + number * 7 % 64).collect();
        let set = data(&sizes);
        let workload = Workload::new(&set, 9, 4, 0.9, 0.3);
        let piece_of = |block: u32| set.pieces.partition_point(|piece| piece.first <= block) - 1;
        let mut writers: HashMap<u32, u32> = HashMap::new();
        let (mut reads, mut writes) = (0u32, 0u32);
        for client in 0..4 {
            let mut requests = workload.requests(client, 1);
            for _ in 0..20_000 {
                let (first, blocks) = match requests.next() {
                    Operation::Read { first, blocks } => {
                        reads += 1;
                        (first, blocks)
                    }
                    Operation::Write { first, blocks, donor } => {
                        writes += 1;
                        assert!(donor + blocks <= set.blocks());
                        for block in first..first + blocks {
                            assert_eq!(*writers.entry(block).or_insert(client), client, "block {block}");
                        }
                        (first, blocks)
                    }
                };
                assert!((1..=REQUEST_BLOCKS_MAX).contains(&blocks));
                assert_eq!(piece_of(first), piece_of(first + blocks - 1));
            }
        }
        let share = f64::from(writes) / f64::from(reads + writes);
        assert!((share - 0.3).abs() < 0.01, "{share}");
    }

    #[test]
    fn fewer_pieces_than_clients_still_work() {
        let set = data(&[8, 8]);
        let workload = Workload::new(&set, 1, 4, 0.9, 0.5);
        for client in 0..4 {
            let mut requests = workload.requests(client, 0);
            for _ in 0..100 {
                let write = matches!(requests.next(), Operation::Write { .. });
                assert!(!write || client < 2, "client {client} has no piece of its own");
            }
        }
    }

    #[test]
    fn request_lengths_have_the_stated_shares() {
        assert_eq!(REQUEST_BLOCKS.iter().map(|(_, parts)| parts).sum::<u64>(), 100);
        let count = |wanted| (0..100).filter(|&percent| length(percent) == wanted).count() as u64;
        for (blocks, parts) in REQUEST_BLOCKS {
            assert_eq!(count(blocks), parts);
        }
    }

    #[test]
    fn the_hottest_quarter_gets_most_requests() {
        let workload = Workload::new(&data(&[64; 1000]), 1, 4, 0.9, 0.05);
        let share = workload.share_of_hottest(0.25);
        assert!((0.7..0.85).contains(&share), "{share}");
        assert!(workload.share_of_hottest(1.0) > 0.999);
    }
}
