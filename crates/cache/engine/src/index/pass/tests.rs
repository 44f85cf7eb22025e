use std::collections::{BTreeMap, BTreeSet};

use flaz_sim::Rng;

use super::super::merge::Step;
use super::*;
use crate::units::Location;

const PAGE_BYTES: usize = 128;
const PLAN: RunPlan = RunPlan {
    mark: 77,
    page_bytes: PAGE_BYTES,
};

/// Changes as of `count` records on blocks below `blocks`, some of which are changed more often than others.
fn changes(seed: u64, blocks: u64, count: u64) -> Vec<(LocalBlock, Change)> {
    let mut rng = Rng::new(seed);
    let mut next = |below| rng.below(below);
    let change = |step: u64| {
        let most = match next(2) {
            0 => blocks,
            _ => blocks.div_ceil(7),
        };
        let block = LocalBlock(next(most));
        (block, Change::any(&mut next, step))
    };
    (0..count).map(change).collect()
}

/// What they come to.
fn expected(changes: &[(LocalBlock, Change)]) -> Vec<(LocalBlock, Entry)> {
    let mut expected = BTreeMap::new();
    for &(block, change) in changes {
        match change {
            Change::Set(entry) => drop(expected.insert(block, entry)),
            Change::Drop => drop(expected.remove(&block)),
            Change::Clean => {
                if let Some(entry) = expected.get_mut(&block) {
                    *entry = entry.with_dirty(false);
                }
            }
        }
    }
    expected.into_iter().collect()
}

/// Slots for runs.
struct Device {
    free: Vec<u32>,
    chunks: BTreeMap<u32, Vec<u8>>,
}

impl Device {
    fn new(chunks: u32) -> Self {
        Self {
            free: (0..chunks).map(|n| n * CHUNK_SLOTS).collect(),
            chunks: BTreeMap::new(),
        }
    }

    fn give_back(&mut self, chunk: u32) {
        self.chunks.remove(&chunk).expect("it is in use");
        self.free.push(chunk);
    }

    fn write_run(&mut self, pass: &mut Pass, is_last: bool) {
        if self.free.is_empty() || !pass.begin_run(is_last) {
            return;
        }
        while let Some(bytes) = pass.next_chunk()
            && let Some(slot) = self.free.pop()
        {
            self.chunks.insert(slot, bytes);
            pass.chunk_written(slot);
        }
        pass.end_run();
    }

    fn read(&self, slots: &Range<u32>) -> &[u8] {
        let chunk = slots.start / CHUNK_SLOTS * CHUNK_SLOTS;
        let at = (slots.start - chunk) as usize * PAGE_BYTES;
        &self.chunks[&chunk][at..at + slots.len() * PAGE_BYTES]
    }

    /// The entries of a pass.
    fn entries(&mut self, pass: &mut Pass) -> Vec<(LocalBlock, Entry)> {
        let (mut found, mut merge) = (Vec::new(), pass.merge());
        loop {
            match merge.step() {
                Step::Entry(block, entry) => found.push((block, entry)),
                Step::Read(slots) => {
                    merge.supply(self.read(&slots)).expect("it was written");
                    while let Some(chunk) = merge.take_free() {
                        self.give_back(chunk);
                    }
                }
                Step::Done => break,
            }
        }
        for chunk in pass.take_chunks() {
            self.give_back(chunk);
        }
        assert!(self.chunks.is_empty(), "all were given back");
        found
    }
}

/// The entries of all passes, and the number of passes and of runs.
fn all(
    changes: &[(LocalBlock, Change)],
    blocks: u64,
    changes_max: usize,
    device: &mut Device,
) -> (Vec<(LocalBlock, Entry)>, usize, u32) {
    let mut pass = Pass::first(LocalBlock(blocks), changes_max, PLAN);
    let (mut found, mut passes) = (Vec::new(), 0);
    loop {
        for &(block, change) in changes {
            pass.push(block, change);
            assert!(pass.changes.capacity() <= changes_max, "no more memory than that");
            pass.take_dropped()
                .into_iter()
                .for_each(|chunk| device.give_back(chunk));
            if pass.is_nearly_full() {
                device.write_run(&mut pass, false);
            }
        }
        device.write_run(&mut pass, true);
        let range = pass.range();
        let before = found.len();
        found.extend(device.entries(&mut pass));
        let is_last = range.end == LocalBlock(blocks);
        assert!(is_last || range.end.0.is_multiple_of(GROUP_BLOCKS_MAX as u64));
        assert!(found[before..].iter().all(|(block, _)| range.contains(block)));
        passes += 1;
        if !pass.begin(range.end) {
            break;
        }
    }
    assert!(found.is_sorted_by(|(a, _), (b, _)| a < b));
    (found, passes, pass.runs_begun)
}

#[test]
fn passes_find_the_same_entries_as_a_map() {
    for (blocks, count, changes_max) in [
        (1, 100, 16),
        (9, 1000, 16),
        (400, 3000, 16),
        (401, 5000, 21),
        (1 << 40, 3000, 100),
        (5000, 20_000, 1000),
        (5000, 20_000, 30_000),
    ] {
        let changes = changes(blocks + count, blocks, count);
        let expected = expected(&changes);
        for chunks in [0, 1, 3, 20, 200] {
            let mut device = Device::new(chunks);
            let (found, passes, runs) = all(&changes, blocks, changes_max, &mut device);
            assert_eq!(
                found, expected,
                "{blocks} blocks, {count} changes, {chunks} chunks"
            );
            assert_eq!(device.free.len() as u32, chunks);
            let distinct: BTreeSet<_> = changes.iter().map(|(block, _)| block).collect();
            if chunks == 0 {
                let few = 2 + 3 * distinct.len() / changes_max;
                assert!(
                    passes <= few && runs == 0,
                    "{passes} passes, {changes_max} at a time"
                );
            } else if chunks == 20 && changes_max == 1000 {
                assert!(
                    (2..8).contains(&passes),
                    "half of the blocks have room: {passes} passes"
                );
            } else if chunks == 200 && changes_max >= 1000 {
                let fits = distinct.len() <= changes_max / 2;
                assert!(passes == 1 && fits == (runs == 0), "{passes} passes, {runs} runs");
            }
        }
    }
}

/// The first pass ends where it must, however late a block before its end is changed.
#[test]
fn changes_behind_the_end_are_ignored_and_those_before_are_not() {
    let set = |n: u64| Change::Set(Entry::fragment(Location(n + 1), 100));
    let mut pass = Pass::first(LocalBlock(1000), CHANGES_MIN, PLAN);
    for block in 0..=CHANGES_MIN as u64 {
        pass.push(LocalBlock(block * 10), set(block));
    }
    assert_eq!(pass.range(), LocalBlock(0)..LocalBlock(80));
    pass.push(LocalBlock(79), set(500));
    pass.push(LocalBlock(80), set(501));
    pass.push(LocalBlock(70), Change::Drop);
    let found = Device::new(0).entries(&mut pass);
    let found: Vec<u64> = found.into_iter().map(|(block, _)| block.0).collect();
    assert_eq!(found, [0, 10, 20, 30, 40, 50, 60, 79]);
    assert!(pass.begin(LocalBlock(80)));
    assert_eq!(pass.range(), LocalBlock(80)..LocalBlock(1000));
}

/// What a block is in one run, and what happens to it in the array.
#[test]
fn later_changes_count_in_whatever_run_they_are() {
    let one = Entry::fragment(Location(1), 100).with_dirty(true);
    let two = Entry::fragment(Location(9), 300);
    let all = [Change::Set(one), Change::Set(two), Change::Drop, Change::Clean];
    for n in 0..all.len().pow(3) {
        let [first, second, third] = [n / 16, n / 4 % 4, n % 4].map(|which| all[which]);
        let mut changes = Vec::new();
        for change in [first, second, third] {
            changes.push((LocalBlock(5), change));
            // Others fill the array.
            changes.extend((10..30).map(|block| (LocalBlock(block), Change::Set(two))));
        }
        let mut device = Device::new(50);
        let (found, _, runs) = self::all(&changes, 1000, CHANGES_MIN, &mut device);
        assert!(runs >= 3);
        assert_eq!(found, expected(&changes), "{first:?}, {second:?}, {third:?}");
    }
}

/// Pages of an earlier recovery, or of another run, are not taken for those that were written.
#[test]
fn other_pages_are_refused() {
    let changes = changes(3, 500, 2000);
    let mut pass = Pass::first(LocalBlock(500), 100, PLAN);
    let mut device = Device::new(50);
    for &(block, change) in &changes {
        pass.push(block, change);
        if pass.is_nearly_full() {
            device.write_run(&mut pass, false);
        }
    }
    assert!(pass.runs.len() > 2);
    let mut merge = pass.merge();
    let Step::Read(slots) = merge.step() else {
        panic!("runs are read first");
    };
    let other = device.chunks.keys().find(|chunk| !slots.contains(chunk));
    let other = *other.expect("there are others");
    let bytes = device.read(&(other..other + slots.len() as u32)).to_vec();
    let error = merge.supply(&bytes).expect_err("it is another page");
    assert!(error.contains("checksum"), "{error}");
}
