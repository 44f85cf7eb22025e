//! Damaged pages that are replaced by what the log says.

use std::ops::Range;

use super::super::rebuilding::LostPages;
use super::*;

/// Begins to rebuild one page.
fn begin(index: &mut PagedIndex, page: PageRead) -> Option<(Range<LocalBlock>, u64)> {
    let damaged = DamagedPage {
        page,
        of_changes: false,
        why: String::new(),
    };
    let LostPages { mut pages, checked } = index.begin_rebuild(&damaged)?;
    assert_eq!((pages.len(), pages[0].0), (1, page));
    Some((pages.remove(0).1, checked))
}

#[test]
fn a_rebuilt_page_lacks_what_has_left_meanwhile() {
    let (mut index, mut device) = written();
    let read = index.missing(LocalBlock(0)..LocalBlock(1))[0];
    let (blocks, checked) = begin(&mut index, read).expect("it is away");
    let of_log: Vec<_> = (blocks.start.0..blocks.end.0)
        .map(|n| (LocalBlock(n), far(n)))
        .collect();
    let region_of = |entry: Entry| (entry.location().offset() / (16 << 20)) as u32;
    let freed = region_of(far(7));
    let gone = (0..100 * PAGE_BLOCKS).filter(|n| region_of(far(*n)) == freed);
    index.retire(freed, gone.count() as u32);
    assert!(index.put_rebuilt(read, &of_log, checked, false));
    for (block, entry) in &of_log {
        let left = (region_of(*entry) != freed).then_some(*entry);
        assert_eq!(index.get(*block), left, "{block:?}");
    }
    assert!(begin(&mut index, read).is_none(), "it is in memory");
    // It is written elsewhere.
    write_all(&mut index, &mut device);
    for n in 0..100 * PAGE_BLOCKS {
        load(&mut index, &mut device, LocalBlock(n));
    }
    let again = index.missing(LocalBlock(0)..LocalBlock(1))[0];
    assert_ne!(again.slot(), read.slot());
    load(&mut index, &mut device, LocalBlock(0));
    assert_eq!(index.get(LocalBlock(7)), None);
}

/// A later read of a damaged page succeeds, and a block is stored there before the rebuild ends. In its slot, the page is as it was.
#[test]
fn a_page_that_was_in_memory_is_not_rebuilt() {
    let (mut index, mut device) = written();
    index.set_memory(1 << 20, 1 << 20);
    let read = index.missing(LocalBlock(0)..LocalBlock(1))[0];
    let (blocks, checked) = begin(&mut index, read).expect("it is away");
    let of_log: Vec<_> = (blocks.start.0..blocks.end.0)
        .map(|n| (LocalBlock(n), far(n)))
        .collect();
    load(&mut index, &mut device, LocalBlock(0));
    index.insert(LocalBlock(7), far(1 << 20));
    for n in 1..100 {
        load(&mut index, &mut device, LocalBlock(n * PAGE_BLOCKS + 100));
    }
    index.set_memory(0, 1 << 20);
    for n in 1..100 {
        load(&mut index, &mut device, LocalBlock(n * PAGE_BLOCKS + 100));
    }
    let again = index.missing(LocalBlock(0)..LocalBlock(1))[0];
    assert_eq!(again, read, "only its change is in memory");
    assert!(!index.put_rebuilt(read, &of_log, checked, false));
    load(&mut index, &mut device, LocalBlock(0));
    assert_eq!(index.get(LocalBlock(7)), Some(far(1 << 20)));
}

/// The changes of some pages are in one slot, which cannot be read.
#[test]
fn pages_whose_changes_are_damaged_are_rebuilt_together() {
    let plan = PagePlan {
        deltas_min: 4 << 10,
        ..PagePlan::new(1000, 0, 9)
    };
    let (mut index, mut device) = (PagedIndex::new(plan), Device::default());
    let mut model = BTreeMap::new();
    let mut set = |index: &mut PagedIndex, device: &mut Device, block: u64, entry: Entry| {
        load(index, device, LocalBlock(block));
        index.insert(LocalBlock(block), entry);
        model.insert(LocalBlock(block), entry);
    };
    for block in 0..100 * PAGE_BLOCKS {
        set(&mut index, &mut device, block, far(block));
    }
    for change in 0..20 {
        for page in 0..100 {
            let block = page * PAGE_BLOCKS + change * 20;
            set(&mut index, &mut device, block, far(block + 1 + change));
        }
    }
    let all = LocalBlock(0)..LocalBlock(100 * PAGE_BLOCKS);
    let most_shared = |index: &mut PagedIndex| {
        let missing = index.missing(all.clone());
        let sharing = |page: &PageRead| missing.iter().filter(|other| other.shares_changes(page)).count();
        let shared = missing.iter().map(|page| (sharing(page), *page));
        shared.max_by_key(|(sharing, _)| *sharing).expect("some are away")
    };
    // One of them is in memory.
    let (sharing, page) = most_shared(&mut index);
    assert!(sharing > 2, "{sharing} pages share their changes");
    load(&mut index, &mut device, page.first);
    let expected = sharing - 1;
    let shares = |other: &PageRead| other.shares_changes(&page);
    let page = index
        .missing(all.clone())
        .into_iter()
        .find(shares)
        .expect("others are away");
    let slot = page.changes_slot().expect("it has changes");
    let (row, _) = rows::row_of(page.slot());
    let bytes = device.0.get_mut(&slot).and_then(|versions| versions.last_mut());
    bytes.expect("it was written")[40] ^= 1;
    let damaged = device.put(&mut index, page).expect_err("its changes are damaged");
    assert!(damaged.of_changes);
    let LostPages { pages, checked } = index.begin_rebuild(&damaged).expect("it is away");
    assert_eq!(pages.len(), expected);
    let in_use = index.slots.in_use() as usize;
    for (page, blocks) in &pages {
        let entries: Vec<_> = (model.range(blocks.clone()))
            .map(|(block, entry)| (*block, *entry))
            .collect();
        assert!(index.put_rebuilt(*page, &entries, checked, true));
        assert!(!index.put_rebuilt(*page, &entries, checked, true), "it is there");
    }
    assert_eq!(
        index.slots.in_use() as usize,
        in_use - expected,
        "the slots of the pages are good"
    );
    // No page depends on the damaged slot, and none will.
    assert!(index.rows.is_empty(row) && !index.rows.can_write(row));
    let all = entries(&mut index, &mut device);
    assert_eq!(all, model.into_iter().collect::<Vec<_>>());
}
