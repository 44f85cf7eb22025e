//! The policies by block: no regions, exact ghosts, nothing kept free.
//!
//! These are the models behind the design's table, found by comparing variants with it. The study shows what a cache
//! with regions loses compared with them.

use std::collections::VecDeque;

use flaz_engine::policy::HITS_MAX;

use super::outcome::Outcome;

/// Share of the blocks in probation, in thousandths: the one closest to the table of those tried.
const PROBATION_PER_MILLE: usize = 85;

/// Number of blocks in the ghost of S3-FIFO per cached block, in thousandths.
const S3_GHOST_PER_MILLE: usize = 950;

/// The same for second touch: the table's ghost has twice the size of the cache.
const SECOND_TOUCH_GHOST_PER_MILLE: usize = 2000;

/// An exact ghost: the last `capacity` blocks, first in first out; a block that is taken frees its entry.
struct ExactGhost {
    /// For each block the number of its newest entry, or 0.
    stamps: Vec<u32>,
    queue: VecDeque<(u32, u32)>,
    live: usize,
    capacity: usize,
    stamp: u32,
}

impl ExactGhost {
    fn new(distinct: usize, capacity: usize) -> Self {
        ExactGhost {
            stamps: vec![0; distinct],
            queue: VecDeque::new(),
            live: 0,
            capacity,
            stamp: 0,
        }
    }

    fn insert(&mut self, block: u32) {
        self.stamp += 1;
        let stamp = &mut self.stamps[block as usize];
        if *stamp == 0 {
            self.live += 1;
        }
        *stamp = self.stamp;
        self.queue.push_back((block, self.stamp));
        while self.live > self.capacity
            && let Some((oldest, stamp)) = self.queue.pop_front()
        {
            if self.stamps[oldest as usize] == stamp {
                self.stamps[oldest as usize] = 0;
                self.live -= 1;
            }
        }
    }

    fn take(&mut self, block: u32) -> bool {
        let stamp = &mut self.stamps[block as usize];
        if *stamp == 0 {
            return false;
        }
        *stamp = 0;
        self.live -= 1;
        true
    }
}

/// Uses of each block, and whether it is cached.
struct Blocks {
    cached: Vec<bool>,
    hits: Vec<u8>,
}

impl Blocks {
    fn new(distinct: usize) -> Self {
        Blocks {
            cached: vec![false; distinct],
            hits: vec![0; distinct],
        }
    }

    fn hit(&mut self, block: u32) -> bool {
        let cached = self.cached[block as usize];
        if cached {
            let hits = &mut self.hits[block as usize];
            *hits = (*hits + 1).min(HITS_MAX);
        }
        cached
    }

    fn enter(&mut self, block: u32) {
        self.cached[block as usize] = true;
        self.hits[block as usize] = 0;
    }

    fn leave(&mut self, block: u32) {
        self.cached[block as usize] = false;
    }

    /// Uses up one use of a block, if it has one.
    fn spend(&mut self, block: u32) -> bool {
        let hits = &mut self.hits[block as usize];
        if *hits == 0 {
            return false;
        }
        *hits -= 1;
        true
    }
}

/// Removes the oldest unused block from `queue`; used ones move to its end.
fn evict(queue: &mut VecDeque<u32>, blocks: &mut Blocks, outcome: &mut Outcome) {
    while let Some(block) = queue.pop_front() {
        if !blocks.spend(block) {
            blocks.leave(block);
            return;
        }
        outcome.reinserted += 1;
        queue.push_back(block);
    }
}

/// Plain FIFO: every miss is admitted, and nothing is reinserted.
pub fn fifo(references: &[u32], distinct: usize, capacity: usize) -> Outcome {
    let mut outcome = Outcome::of(references.len());
    let mut blocks = Blocks::new(distinct);
    let mut queue = VecDeque::with_capacity(capacity);
    for &block in references {
        if blocks.hit(block) {
            outcome.hits += 1;
            continue;
        }
        if queue.len() >= capacity
            && let Some(oldest) = queue.pop_front()
        {
            blocks.leave(oldest);
        }
        blocks.enter(block);
        queue.push_back(block);
        outcome.admitted += 1;
    }
    outcome
}

/// FIFO with reinsertion: every miss is admitted.
pub fn fifo_with_reinsertion(references: &[u32], distinct: usize, capacity: usize) -> Outcome {
    one_queue(references, distinct, capacity, None)
}

/// FIFO with reinsertion: blocks in a ghost of twice the cache size are admitted.
pub fn second_touch(references: &[u32], distinct: usize, capacity: usize) -> Outcome {
    let ghost = ExactGhost::new(distinct, capacity * SECOND_TOUCH_GHOST_PER_MILLE / 1000);
    one_queue(references, distinct, capacity, Some(ghost))
}

fn one_queue(references: &[u32], distinct: usize, capacity: usize, mut ghost: Option<ExactGhost>) -> Outcome {
    let mut outcome = Outcome::of(references.len());
    let mut blocks = Blocks::new(distinct);
    let mut queue = VecDeque::with_capacity(capacity);
    for &block in references {
        if blocks.hit(block) {
            outcome.hits += 1;
            continue;
        }
        if let Some(ghost) = &mut ghost
            && !ghost.take(block)
        {
            ghost.insert(block);
            continue;
        }
        if queue.len() >= capacity {
            evict(&mut queue, &mut blocks, &mut outcome);
        }
        blocks.enter(block);
        queue.push_back(block);
        outcome.admitted += 1;
    }
    outcome
}

/// S3-FIFO: promotion after one use, which is used up; the ghost contains only blocks dropped from probation.
pub fn s3_fifo(references: &[u32], distinct: usize, capacity: usize) -> Outcome {
    let main_max = capacity - capacity * PROBATION_PER_MILLE / 1000;
    let mut ghost = ExactGhost::new(distinct, capacity * S3_GHOST_PER_MILLE / 1000);
    let mut outcome = Outcome::of(references.len());
    let mut blocks = Blocks::new(distinct);
    let (mut probation, mut main) = (VecDeque::new(), VecDeque::new());
    for &block in references {
        if blocks.hit(block) {
            outcome.hits += 1;
            continue;
        }
        let remembered = ghost.take(block);
        while probation.len() + main.len() >= capacity {
            if main.len() > main_max || probation.is_empty() {
                evict(&mut main, &mut blocks, &mut outcome);
            } else if let Some(oldest) = probation.pop_front() {
                if blocks.spend(oldest) {
                    main.push_back(oldest);
                    outcome.reinserted += 1;
                } else {
                    blocks.leave(oldest);
                    ghost.insert(oldest);
                }
            }
        }
        blocks.enter(block);
        if remembered {
            main.push_back(block)
        } else {
            probation.push_back(block)
        }
        outcome.admitted += 1;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_keeps_used_blocks_only_with_reinsertion() {
        let references = [0, 1, 0, 2, 0, 1];
        // 0 is used, so 1 leaves when 2 is added.
        let outcome = fifo_with_reinsertion(&references, 3, 2);
        assert_eq!((outcome.hits, outcome.admitted, outcome.reinserted), (2, 4, 2));
        // 0 is the oldest, so it leaves when 2 is added, and 1 when 0 is added again.
        let outcome = fifo(&references, 3, 2);
        assert_eq!((outcome.hits, outcome.admitted, outcome.reinserted), (1, 5, 0));
    }

    #[test]
    fn second_touch_admits_no_block_used_once() {
        let once: Vec<u32> = (0..100).collect();
        assert_eq!(second_touch(&once, 100, 10).admitted, 0);
        let outcome = second_touch(&[0, 0, 0], 1, 10);
        assert_eq!((outcome.hits, outcome.admitted), (1, 1));
    }

    #[test]
    fn s3_fifo_keeps_a_used_block_through_a_scan() {
        let mut references = vec![0, 0];
        references.extend(1..1000);
        references.push(0);
        let outcome = s3_fifo(&references, 1000, 100);
        assert_eq!((outcome.hits, outcome.reinserted), (2, 1));
        assert_eq!(
            fifo_with_reinsertion(&references, 1000, 100).hits,
            1,
            "FIFO with reinsertion loses it at the second round"
        );
    }

    #[test]
    fn ghosts_forget_the_oldest() {
        let mut ghost = ExactGhost::new(4, 2);
        (0..3).for_each(|block| ghost.insert(block));
        assert_eq!([0, 1, 2].map(|block| ghost.take(block)), [false, true, true]);
        assert_eq!(ghost.live, 0);
        ghost.insert(3);
        ghost.insert(0);
        ghost.insert(3);
        ghost.insert(1);
        assert_eq!(
            [0, 1, 3].map(|block| ghost.take(block)),
            [false, true, true],
            "3 came back later than 0"
        );
    }
}
