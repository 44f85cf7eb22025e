use std::collections::{BTreeMap, VecDeque};

use flaz_random::Random;

use super::super::Index;
use super::super::slots::{CHANGES_SLOT, ROW_SLOTS};
use super::*;
use crate::units::Location;

/// The device: all versions written to each slot, oldest first.
#[derive(Default)]
struct Device(BTreeMap<u32, Vec<Vec<u8>>>);

impl Device {
    fn write(&mut self, write: &PageWrite) {
        self.0.entry(write.slot()).or_default().push(write.bytes.clone());
    }

    fn read(&self, slot: u32) -> &[u8] {
        self.0[&slot].last().expect("it was written")
    }

    /// Reads a page and its changes, and brings it into memory.
    fn put(&self, index: &mut PagedIndex, read: PageRead) -> Result<(), DamagedPage> {
        let changes = read.changes_slot().map_or(&[][..], |slot| self.read(slot));
        index.put(read, self.read(read.slot()), changes)
    }

    /// Completes a write.
    fn complete(&self, index: &mut PagedIndex, mut write: PageWrite) -> PageWrite {
        if write.reads_first() {
            let old = self.read(write.slot());
            index.complete(&mut write, old).expect("it was written");
        }
        write
    }

    /// Writes what is complete.
    fn end(&mut self, index: &mut PagedIndex, write: &PageWrite) {
        if !write.reads_first() {
            self.write(write);
        }
        index.end_write(write, !write.reads_first());
    }
}

/// An index with the fewest pages in memory.
fn small(slots: u32) -> PagedIndex {
    PagedIndex::new(PagePlan::new(slots, 0, 9))
}

/// Blocks that a page has at least, if they are stored in order at places that are far from each other.
const PAGE_BLOCKS: u64 = 510;

/// An entry that takes seven bytes beside its neighbours.
fn far(n: u64) -> Entry {
    let scattered = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 28;
    Entry::fragment(Location(scattered | 1), 100)
}

/// Writes all changed pages that do not leave memory, too.
fn write_all(index: &mut PagedIndex, device: &mut Device) {
    while changed(index) > 0 {
        for write in begin_all(index, device) {
            device.end(index, &write);
        }
    }
}

/// Begins to write all changed pages, as if it was their turn to leave memory. They stay in memory afterwards.
fn begin_all(index: &mut PagedIndex, device: &Device) -> Vec<PageWrite> {
    let all = 0..index.frames.len() as u32;
    let changed = |n: &u32| index.frames[*n as usize].as_ref().is_some_and(Frame::is_changed);
    let changed: Vec<u32> = all.filter(changed).collect();
    changed.iter().for_each(|n| index.set_stay(*n, Stay::Leaving));
    let writes = index.begin_writes(usize::MAX);
    changed.iter().for_each(|n| index.set_stay(*n, Stay::Used));
    writes
        .into_iter()
        .map(|write| device.complete(index, write))
        .collect()
}

fn changed(index: &PagedIndex) -> usize {
    let frames = index.frames.iter().flatten();
    frames.filter(|frame| frame.is_changed()).count()
}

/// Brings the page of a block into memory.
fn load(index: &mut PagedIndex, device: &mut Device, block: LocalBlock) {
    while !index.make_room(1, true) {
        let writes = index.begin_writes(8);
        assert!(!writes.is_empty(), "there are slots");
        for write in writes {
            let write = device.complete(index, write);
            device.end(index, &write);
        }
    }
    for read in index.missing(block..LocalBlock(block.0 + 1)) {
        device.put(index, read).expect("it was written");
    }
}

fn entry(random: &mut Random, block: LocalBlock, step: u64) -> Entry {
    let dirty = random.below(4) == 0;
    match random.below(6) {
        0 => Entry::same_filled(Location(64 * step), step as u8).with_dirty(dirty),
        // Members of one group have the same place.
        1 | 2 => Entry::group(Location(64 * (1 + block.0 / 4 % 1000)), 5000),
        _ => Entry::fragment(Location(step + 1), 200 + random.below(3800) as usize).with_dirty(dirty),
    }
}

/// All entries, page by page.
fn entries(index: &mut PagedIndex, device: &mut Device) -> Vec<(LocalBlock, Entry)> {
    let (mut all, mut next) = (Vec::new(), Some(LocalBlock(0)));
    while let Some(from) = next {
        load(index, device, from);
        let (some, behind) = index.page_of(from);
        all.extend(some);
        next = behind;
    }
    all
}

/// Where blocks come from: scattered, in runs, close together, and farther apart than a page can name.
fn block(random: &mut Random, kind: u64, step: u64) -> LocalBlock {
    let number = match kind {
        0 => random.below(1 << 30),
        1 => step * 7 % 300_000,
        2 => random.below(90_000),
        _ => random.below(200) << 21 | random.below(600),
    };
    LocalBlock(number)
}

/// Writes that have ended.
#[derive(Default)]
struct Writes {
    /// Pages that failed.
    failed: usize,
    of_rows: usize,
}

impl Writes {
    /// Ends a write, which may fail.
    fn end(&mut self, index: &mut PagedIndex, device: &mut Device, write: PageWrite, random: &mut Random) {
        let is_of_row = matches!(write.what, Written::Changes(..));
        self.of_rows += usize::from(is_of_row);
        // After one of them has failed, no changes are written any more.
        let may_fail = !is_of_row || self.of_rows > 10;
        let succeeded = !write.reads_first() && !(may_fail && random.below(4) == 0);
        if !write.reads_first() && (succeeded || random.below(2) == 0) {
            device.write(&write);
        }
        self.failed += usize::from(!succeeded && !is_of_row);
        index.end_write(&write, succeeded);
    }
}

#[test]
fn a_paged_index_agrees_with_the_table() {
    let mut of_rows = 0;
    for (kind, deltas_min) in (0..4).flat_map(|kind| [0, 1 << 10, 16 << 10].map(|deltas| (kind, deltas))) {
        let mut random = Random::new(kind);
        let plan = PagePlan {
            deltas_min,
            entry_cache_bytes: 1 << 10,
            ..PagePlan::new(20_000, 0, 9)
        };
        let (mut paged, mut device) = (PagedIndex::new(plan), Device::default());
        let (mut deltas, mut cached) = (0, Cached::default());
        let mut table = Index::new(LocalBlock(1 << 30), 100_000);
        let mut model = BTreeMap::new();
        let (mut under_way, mut writes): (Option<PageWrite>, _) = (None, Writes::default());
        for step in 0..40_000_u64 {
            let block = block(&mut random, kind, step);
            if !paged.make_room(1, true)
                && let Some(write) = under_way.take()
            {
                writes.end(&mut paged, &mut device, write, &mut random);
            }
            load(&mut paged, &mut device, block);
            // A page that is read may be divided by its changes.
            assert!(paged.frames_in_use() <= FRAMES_MIN + 2);
            let removes = random.below(100) < if step < 24_000 { 25 } else { 70 };
            let block = match model.range(block..).next() {
                // Mostly one that is there.
                Some((near, _)) if removes && paged.has(*near) => *near,
                _ => block,
            };
            if removes {
                let old = paged.remove(block);
                assert_eq!(old, table.remove(block));
                assert_eq!(old, model.remove(&block));
            } else if random.below(8) == 0 {
                assert_eq!(paged.clean(block), table.clean(block));
                model
                    .entry(block)
                    .and_modify(|entry| *entry = entry.with_dirty(false));
            } else {
                let entry = entry(&mut random, block, step);
                let old = paged.insert(block, entry);
                assert_eq!(old, table.insert(block, entry));
                assert_eq!(old, model.insert(block, entry));
            }
            assert_eq!(paged.get(block), model.get(&block).copied());
            cached.check(&mut paged, &model, block);
            deltas = deltas.max(check_deltas(&paged));
            // Writes take a while, and some fail.
            match under_way.take() {
                None if random.below(50) == 0 => under_way = paged.begin_writes(1).pop(),
                Some(write) if random.below(20) == 0 => match write.reads_first() && random.below(5) > 0 {
                    true => under_way = Some(device.complete(&mut paged, write)),
                    false => writes.end(&mut paged, &mut device, write, &mut random),
                },
                write => under_way = write,
            }
        }
        if let Some(write) = under_way {
            writes.end(&mut paged, &mut device, write, &mut random);
        }
        // Blocks in order change many entries of few pages.
        let many = deltas_min > 0 && kind != 1;
        assert_eq!(deltas > 4, many, "{deltas} pages with changes");
        of_rows += writes.of_rows;
        assert_eq!((paged.len(), paged.fragments), (table.len(), table.fragments));
        assert_eq!(
            entries(&mut paged, &mut device),
            model.into_iter().collect::<Vec<_>>()
        );
        let first = Some(paged.directory.find(LocalBlock(0)));
        let pages = std::iter::successors(first, |at| paged.directory.next(*at));
        let saved = |at: &Position| match paged.directory.place(*at) {
            Place::Away(_) => true,
            Place::Frame(frame) => paged.frame(frame).saved.is_some(),
        };
        let saved = pages.filter(saved).count();
        let in_use = paged.slots.in_use() as usize;
        assert_eq!(
            in_use,
            saved + writes.failed,
            "only slots that cannot be written are lost"
        );
    }
    assert!(of_rows > 30, "{of_rows} writes of changes");
}

/// The blocks whose entries were cached last.
#[derive(Default)]
struct Cached(VecDeque<LocalBlock>);

impl Cached {
    /// Caches the entry of a block, which is in memory. What is known of others without their pages is right.
    fn check(&mut self, index: &mut PagedIndex, model: &BTreeMap<LocalBlock, Entry>, block: LocalBlock) {
        if let Some(entry) = model.get(&block) {
            index.cache_entry(block, *entry);
            self.0.push_front(block);
        }
        self.0.truncate(32);
        for block in &self.0 {
            let found = index.get_cached(*block);
            assert!(
                found.is_none() || found == model.get(block).copied(),
                "{block:?}: {found:?}"
            );
        }
    }
}

/// Checks that changes are of pages that are not in memory, and within the memory for them. Returns the number of these pages.
fn check_deltas(index: &PagedIndex) -> usize {
    let count = index.deltas.len();
    if count % 16 == 1 {
        let first = Some(index.directory.find(LocalBlock(0)));
        let pages = std::iter::successors(first, |at| index.directory.next(*at));
        let has_delta = |at: &Position| match index.directory.place(*at) {
            Place::Away(saved) => index.deltas.get(saved.slot).is_some(),
            Place::Frame(_) => false,
        };
        assert_eq!(pages.filter(has_delta).count(), count);
        let frames = index.frames.iter().flatten().map(Frame::memory_bytes);
        assert_eq!(index.frame_bytes, frames.sum::<usize>());
    }
    let (used, room) = (index.deltas.memory_bytes(), index.plan.deltas_min + 320);
    // The contents of the write that failed go back to memory.
    let back = if index.rows.has_failed() { PAGE_BYTES } else { 0 };
    assert!(used <= room + back, "{used} bytes, room for {room}");
    count
}

/// An index of some pages, all written, the first one away.
fn written() -> (PagedIndex, Device) {
    let (mut index, mut device) = (small(1000), Device::default());
    for n in 0..100 * PAGE_BLOCKS {
        load(&mut index, &mut device, LocalBlock(n));
        index.insert(LocalBlock(n), far(n));
    }
    assert!(!index.has(LocalBlock(0)), "it was used first");
    (index, device)
}

#[test]
fn an_older_version_of_a_page_is_refused() {
    let (mut index, mut device) = written();
    let one = LocalBlock(0)..LocalBlock(1);
    let old = device.read(index.missing(one.clone())[0].slot()).to_vec();
    load(&mut index, &mut device, LocalBlock(0));
    index.remove(LocalBlock(0));
    write_all(&mut index, &mut device);
    for n in 0..100 * PAGE_BLOCKS {
        load(&mut index, &mut device, LocalBlock(n));
    }
    let read = index.missing(one)[0];
    assert!(index.put(read, &old, &[]).is_err());
    let other = index.missing(LocalBlock(600)..LocalBlock(601))[0];
    let other = device.read(other.slot()).to_vec();
    assert!(index.put(read, &other, &[]).is_err());
    let now = device.read(read.slot()).to_vec();
    assert_eq!(index.put(read, &now, &[]), Ok(()));
    assert_eq!(index.get(LocalBlock(0)), None);
}

#[test]
fn a_page_that_changes_while_it_is_written_does_not_leave() {
    let (mut index, mut device) = written();
    load(&mut index, &mut device, LocalBlock(0));
    index.remove(LocalBlock(0));
    let writes = begin_all(&mut index, &device);
    index.remove(LocalBlock(1));
    for write in &writes {
        device.write(write);
        index.end_write(write, true);
    }
    assert_eq!(changed(&index), 1);
    for n in 0..100 * PAGE_BLOCKS {
        load(&mut index, &mut device, LocalBlock(n));
    }
    load(&mut index, &mut device, LocalBlock(0));
    assert_eq!((index.get(LocalBlock(0)), index.get(LocalBlock(1))), (None, None));
}

/// There is room before a page is read, also if the share that is kept free is smaller than a page.
#[test]
fn loads_keep_the_bound() {
    let near = |n: u64| Entry::fragment(Location(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 42 | 1), 100);
    let (mut index, mut device, mut random) = (small(2000), Device::default(), Random::new(1));
    load(&mut index, &mut device, LocalBlock(0));
    // The tables of regions grow to their size.
    index.insert(LocalBlock(0), Entry::fragment(Location(u64::MAX >> 42), 100));
    let most = index.memory_bytes() as u64 + (200 << 10);
    index.set_memory(most, most);
    let mut full = 0;
    for n in 0..300 * PAGE_BLOCKS {
        let block = match n < 200 * PAGE_BLOCKS {
            true => LocalBlock(n),
            false => LocalBlock(random.below(200 * PAGE_BLOCKS)),
        };
        load(&mut index, &mut device, block);
        let used = index.memory_bytes() as u64;
        assert!(used <= most, "step {n}: {used} bytes of {most}");
        full += u64::from(used > most - 2 * PAGE_BYTES as u64);
        index.insert(block, near(n));
    }
    assert!(full > 1000, "memory was full in {full} steps only");
    assert!(index.deltas.len() > 20 && index.frames_in_use() > FRAMES_MIN);
}

/// A page with few changes leaves without a write, and comes back with them: also a block that was removed, and one whose new copy left with
/// its region, while the page on the device has an older one in another region.
#[test]
fn few_changes_stay_in_memory() {
    let (mut index, mut device) = written();
    index.plan.deltas_min = 64 << 10;
    let (old, new) = (far(2).location(), Location(3 << 20));
    let region_of = |place: Location| (place.offset() / index.plan.region_bytes) as u32;
    let region = region_of(new);
    assert_ne!(region_of(old), region);
    load(&mut index, &mut device, LocalBlock(0));
    write_all(&mut index, &mut device);
    index.remove(LocalBlock(0));
    index.insert(
        LocalBlock(1),
        Entry::fragment(far(7).location(), 700).with_dirty(true),
    );
    index.insert(LocalBlock(2), Entry::fragment(new, 100));
    let slots = index.slots.in_use();
    let away = |index: &mut PagedIndex, device: &mut Device| {
        for n in 0..20 * FRAMES_MIN as u64 {
            load(index, device, LocalBlock((10 + n % 80) * PAGE_BYTES as u64 / 8));
        }
        assert!(!index.has(LocalBlock(0)));
    };
    away(&mut index, &mut device);
    assert_eq!((index.deltas.len(), index.slots.in_use()), (1, slots));
    index.abandon();
    assert!(
        index.is_unknown(LocalBlock(0)),
        "a dirty block is among the changes"
    );
    index.is_abandoned = false;
    for turn in 0..3 {
        load(&mut index, &mut device, LocalBlock(0));
        assert_eq!(index.get(LocalBlock(0)), None);
        assert!(index.get(LocalBlock(1)).is_some_and(|entry| entry.dirty()));
        assert_eq!(index.get(LocalBlock(2)).is_some(), turn == 0);
        assert_eq!(index.get(LocalBlock(3)), Some(far(3)));
        away(&mut index, &mut device);
        if turn == 0 {
            index.retire(region, 1);
        }
    }
}

/// Changes on the device divide a page that was just read. Those in memory go to the part that has their blocks: also removals, and many at
/// once.
#[test]
fn changes_of_a_divided_page_go_to_their_part() {
    for many in [false, true] {
        let (mut index, mut device) = written();
        load(&mut index, &mut device, LocalBlock(0));
        let at = index.directory.find(LocalBlock(0));
        let Place::Frame(number) = index.directory.place(at) else {
            unreachable!("it was loaded")
        };
        let next = index.directory.next(at).map(|next| index.directory.first(next));
        let end = next.expect("there are more pages").0;
        for block in (0..end / 2).step_by(2) {
            index.remove(LocalBlock(block));
        }
        let before = index.page_count();
        index.plan.used_bytes_max = index.frame(number).leaf.used_bytes();
        let new = |block: u64| far(block + 7);
        let stored = Delta {
            checked: index.retired.count(),
            removed: Vec::new(),
            set: (0..end / 2)
                .map(|block| (LocalBlock(block), new(block)))
                .collect(),
        };
        index.apply(stored);
        assert!(index.page_count() > before, "the page is divided");
        let (_, upper) = index.position(LocalBlock(end - 1)).expect("it is in memory");
        assert_ne!(upper, number);
        let removed: Vec<LocalBlock> = (end - if many { 20 } else { 2 }..end - 1)
            .map(LocalBlock)
            .collect();
        index.apply(Delta {
            checked: index.retired.count(),
            removed: removed.clone(),
            set: vec![(LocalBlock(end - 1), new(end))],
        });
        assert!(removed.iter().all(|block| index.get(*block).is_none()));
        assert_eq!(index.get(LocalBlock(end - 1)), Some(new(end)));
        // Of both parts.
        let mut removed = vec![LocalBlock(0), LocalBlock(end - 1)];
        removed.extend((1..10).filter(|_| many).map(LocalBlock));
        removed.sort_unstable();
        index.apply(Delta {
            checked: index.retired.count(),
            removed: removed.clone(),
            set: Vec::new(),
        });
        assert!(removed.iter().all(|block| index.get(*block).is_none()));
    }
}

#[test]
fn a_page_whose_write_failed_stays_in_memory() {
    let (mut index, mut device) = written();
    load(&mut index, &mut device, LocalBlock(0));
    index.remove(LocalBlock(0));
    let in_use = index.slots.in_use();
    let writes = begin_all(&mut index, &device);
    for write in &writes {
        index.end_write(write, false);
    }
    let failed = writes.len() as u32;
    assert_eq!(
        index.slots.in_use(),
        in_use + failed,
        "their slots are not used again"
    );
    index.plan.frames_min = 0;
    assert!(!index.make_room(1, true));
    assert!(index.has(LocalBlock(0)) && index.get(LocalBlock(0)).is_none());
}

#[test]
fn hits_cause_no_write() {
    let (mut index, mut device) = written();
    write_all(&mut index, &mut device);
    load(&mut index, &mut device, LocalBlock(0));
    for _ in 0..5 {
        index.hit(LocalBlock(0), |_| true);
    }
    assert_eq!(index.get(LocalBlock(0)).map(Entry::hits), Some(2));
    assert_eq!(changed(&index), 0);
}

#[test]
fn pages_that_cannot_be_read_are_not_cached_or_unknown() {
    let (mut index, mut device) = written();
    let dirty = LocalBlock(50 * PAGE_BLOCKS);
    load(&mut index, &mut device, dirty);
    index.insert(dirty, Entry::fragment(Location(7), 100).with_dirty(true));
    for n in (0..100 * PAGE_BLOCKS).rev() {
        load(&mut index, &mut device, LocalBlock(n));
        write_all(&mut index, &mut device);
    }
    let away = LocalBlock(99 * PAGE_BLOCKS);
    load(&mut index, &mut device, dirty);
    for n in 0..80 {
        load(&mut index, &mut device, LocalBlock(n * PAGE_BLOCKS));
        assert_eq!(
            index.next_maybe_dirty(LocalBlock(0)).map(|first| first <= dirty),
            Some(true)
        );
    }
    for n in 0..FRAMES_MIN as u64 + 8 {
        load(&mut index, &mut device, LocalBlock((n % 49) * PAGE_BLOCKS));
        load(&mut index, &mut device, LocalBlock((51 + n % 40) * PAGE_BLOCKS));
    }
    assert!(!index.has(dirty) && !index.has(away));
    index.abandon();
    assert!(index.has(dirty) && index.missing(dirty..LocalBlock(dirty.0 + 1)).is_empty());
    assert!(index.is_unknown(dirty) && !index.is_unknown(away) && !index.is_unknown(LocalBlock(0)));
    for block in [dirty, away] {
        assert_eq!(index.get(block), None);
        assert_eq!(index.insert(block, Entry::fragment(Location(7), 100)), None);
        assert_eq!(
            (index.get(block), index.remove(block), index.clean(block)),
            (None, None, false)
        );
        assert_eq!(index.hit(block, |_| true), None);
        assert_eq!(index.page_of(block).0.count(), 0);
    }
}

#[test]
#[should_panic(expected = "was not loaded")]
fn a_page_that_is_away_is_not_looked_up() {
    let (index, _) = written();
    let _ = index.get(LocalBlock(0));
}

/// 64 MB for 500 GB at 2:1: the directory, and enough pages.
#[test]
fn an_entry_takes_little_memory() {
    let (mut index, mut device) = (small(20_000), Device::default());
    let mut random = Random::new(1);
    for n in 0..600_000_u64 {
        let block = LocalBlock(random.below(1 << 22));
        load(&mut index, &mut device, block);
        index.insert(block, Entry::fragment(Location(n + 1), 100));
    }
    let each = index.tables_bytes() as f64 / index.len() as f64;
    let used: usize = index
        .frames
        .iter()
        .flatten()
        .map(|frame| frame.leaf.used_bytes())
        .sum();
    let fill = used as f64 / index.frames_in_use() as f64 / PAGE_BYTES as f64;
    assert!(
        each < 0.1 && fill > 0.5,
        "{each} bytes of directory an entry, pages {fill:.2} full"
    );
}

/// Without a free slot, pages overwrite their own slots, and no entry is lost.
#[test]
fn a_full_area_is_written_in_place() {
    let entry = |n: u64, turn: u64| Entry::fragment(far(n).location(), 100 + turn as usize);
    let blocks = (FRAMES_MIN + 16) as u64 * PAGE_BLOCKS;
    let filled = |slots: u32| {
        let (mut index, mut device) = (small(slots), Device::default());
        for n in 0..blocks {
            load(&mut index, &mut device, LocalBlock(n));
            index.insert(LocalBlock(n), entry(n, 0));
        }
        write_all(&mut index, &mut device);
        (index, device)
    };
    let pages = filled(1000).0.page_count() as u32;
    let mut of_pages = (0..).filter(|slot| slot % ROW_SLOTS != CHANGES_SLOT);
    let slots = of_pages.nth(pages as usize).expect("there are more");
    let (mut index, mut device) = filled(slots);
    assert!(index.slots.take().is_none(), "no slot is free");
    let mut random = Random::new(8);
    for turn in 1..400 {
        let block = LocalBlock(random.below(blocks));
        load(&mut index, &mut device, block);
        index.insert(block, entry(block.0, turn));
        load(&mut index, &mut device, block);
        assert_eq!(index.get(block), Some(entry(block.0, turn)));
    }
    assert_eq!(entries(&mut index, &mut device).len() as u64, blocks);
}

/// An empty page has no slot and no directory entry after its eviction.
#[test]
fn empty_pages_are_removed() {
    let (mut index, mut device) = (small(1000), Device::default());
    // Every other page is emptied, while its neighbours are not in memory.
    let pages = 3 * FRAMES_MIN as u64;
    let blocks = |page: u64| page << 21..(page << 21) + 200;
    for block in (0..pages).flat_map(blocks) {
        load(&mut index, &mut device, LocalBlock(block));
        index.insert(LocalBlock(block), far(block));
    }
    for block in (1..pages).step_by(2).flat_map(blocks) {
        load(&mut index, &mut device, LocalBlock(block));
        index.remove(LocalBlock(block));
    }
    let left = entries(&mut index, &mut device).len() as u64;
    assert_eq!(left, pages.div_ceil(2) * 200);
    assert!(index.page_count() as u64 <= pages / 2 + FRAMES_MIN as u64);
}

/// No page is read after the pages were abandoned, because it would lack later writes that bypassed the cache.
#[test]
fn abandoned_pages_are_not_read() {
    let (mut index, device) = written();
    let read = index.missing(LocalBlock(0)..LocalBlock(1))[0];
    assert!(index.is_wanted(read));
    index.abandon();
    assert!(!index.is_wanted(read));
    device.put(&mut index, read).expect("it is ignored");
    assert_eq!(
        (index.is_lost(LocalBlock(0)), index.get(LocalBlock(0))),
        (true, None)
    );
}

/// Regions are freed at any time: their blocks are gone at once, wherever their pages are, and blocks that are stored in them again are
/// not.
#[test]
fn blocks_of_freed_regions_are_gone_at_once() {
    const REGIONS: u64 = 12;
    const REGION_BYTES: u64 = 128 << 10;
    let plan = |deltas_min| PagePlan {
        used_bytes_max: 120,
        frames_min: 6,
        region_bytes: REGION_BYTES,
        deltas_min,
        entry_cache_bytes: 1 << 10,
        ..PagePlan::new(20_000, 0, 9)
    };
    let region_of = |entry: Entry| (entry.location().offset() / REGION_BYTES) as u32;
    for (kind, deltas_min) in (0..3).flat_map(|kind| [0, 1 << 10, 16 << 10].map(|deltas| (kind, deltas))) {
        let mut random = Random::new(kind);
        let (mut paged, mut device) = (PagedIndex::new(plan(deltas_min)), Device::default());
        let mut table = Index::new(LocalBlock(1 << 30), 10_000);
        let mut model = BTreeMap::new();
        let (mut retired, mut pages, mut cached) = (0, 0, Cached::default());
        for step in 0..40_000_u64 {
            let block = match kind {
                0 => LocalBlock(random.below(3000)),
                1 => LocalBlock(random.below(1 << 24)),
                _ => LocalBlock(step * 3 % 5000),
            };
            load(&mut paged, &mut device, block);
            match random.below(10) {
                0 => {
                    let old = paged.remove(block);
                    assert_eq!((old, old), (table.remove(block), model.remove(&block)));
                }
                1 => {
                    assert_eq!(paged.clean(block), table.clean(block));
                    let clean = |entry: &mut Entry| *entry = entry.with_dirty(false);
                    model.entry(block).and_modify(clean);
                }
                _ => {
                    let start = random.below(REGIONS) * REGION_BYTES;
                    let entry = match random.below(3) {
                        0 => Entry::group(Location::at(start + block.0 / 4 % 100 * 512 + 512), 5000),
                        1 => Entry::same_filled(Location::at(start + 512), step as u8),
                        _ => Entry::fragment(Location::at(start + 8 + step % 10_000 * 8), 2000),
                    };
                    let entry = entry.with_dirty(!entry.is_group() && random.below(10) == 0);
                    let old = paged.insert(block, entry);
                    assert_eq!(
                        (old, old),
                        (table.insert(block, entry), model.insert(block, entry))
                    );
                }
            }
            assert_eq!(paged.get(block), model.get(&block).copied());
            cached.check(&mut paged, &model, block);
            check_deltas(&paged);
            if random.below(60) == 0 {
                let region = random.below(REGIONS + 1) as u32;
                let gone: Vec<_> = model
                    .iter()
                    .map(|(block, entry)| (*block, *entry))
                    .filter(|(_, entry)| region_of(*entry) == region)
                    .collect();
                let dirty = gone.iter().filter(|(_, entry)| entry.dirty());
                assert_eq!(paged.dirty_in(region) as usize, dirty.clone().count());
                for (block, _) in dirty {
                    load(&mut paged, &mut device, *block);
                    assert!(paged.clean(*block) && table.clean(*block));
                }
                paged.retire(region, gone.len() as u32);
                for (block, _) in gone {
                    table.remove(block);
                    model.remove(&block);
                }
                retired += 1;
                assert_eq!((paged.len(), paged.fragments), (table.len(), table.fragments));
            }
            let mut at = Some(LocalBlock(0));
            while let Some(from) = at.filter(|_| step % 2000 == 0) {
                load(&mut paged, &mut device, from);
                at = paged.check_page(from);
                pages = pages.max(paged.page_count());
            }
        }
        assert!(retired > 500);
        let found = entries(&mut paged, &mut device);
        assert_eq!(found, model.into_iter().collect::<Vec<_>>());
        assert!(pages < 1000, "{pages} pages for {} blocks", found.len());
    }
}

#[test]
#[should_panic(expected = "blocks of region 0 are dirty")]
fn a_region_with_dirty_blocks_is_not_freed() {
    let mut index = small(10);
    index.insert(LocalBlock(1), Entry::fragment(Location(9), 100).with_dirty(true));
    index.retire(0, 1);
}

mod rebuilt;
