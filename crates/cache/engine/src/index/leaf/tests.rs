use std::collections::BTreeMap;

use flaz_random::Random;

use super::*;
use crate::units::Location;

fn entry(n: u64) -> Entry {
    Entry::fragment(Location(n + 1), 2000)
}

/// A page that has no room for one more.
fn full(step: u64) -> Leaf {
    let mut leaf = Leaf::new(LocalBlock(8));
    for n in 0.. {
        match leaf.insert(LocalBlock(8 + n * step), entry(n * 600), PAGE_BYTES) {
            Ok(old) => assert_eq!(old, None),
            Err(Full) => break,
        }
    }
    leaf
}

/// The invariants of the stretches, and what is computed from all entries.
fn check(leaf: &Leaf) {
    let again = Leaf::parse(&leaf.to_bytes(5, PAGE_BYTES), leaf.first, 5).expect("it is whole");
    assert_eq!(again.bytes, leaf.bytes);
    assert_eq!((again.len, again.dirty), (leaf.len, leaf.dirty));
    assert!(
        leaf.memory_bytes() <= leaf.bytes.len() + 2 * ROOM_STEP,
        "memory is not wasted"
    );
}

#[test]
fn entries_are_found_replaced_and_removed() {
    let mut leaf = full(3);
    let len = leaf.len();
    assert_eq!(leaf.get(LocalBlock(8 + 9)), Some(entry(1800)));
    assert_eq!(
        (leaf.get(LocalBlock(8 + 10)), leaf.get(LocalBlock(7))),
        (None, None)
    );
    assert_eq!(leaf.get(LocalBlock((1 << BLOCK_BITS) - 1)), None);
    assert_eq!(leaf.remove(LocalBlock(8 + 9)), Some(entry(1800)));
    assert_eq!(leaf.remove(LocalBlock(8 + 9)), None);
    assert_eq!(leaf.insert(LocalBlock(8 + 9), entry(1799), PAGE_BYTES), Ok(None));
    assert_eq!(
        leaf.insert(LocalBlock(8 + 9), entry(1801), PAGE_BYTES),
        Ok(Some(entry(1799)))
    );
    assert_eq!(leaf.len(), len);
    check(&leaf);
}

#[test]
fn a_page_agrees_with_a_map() {
    for kind in 0..4 {
        let mut random = Random::new(kind);
        let most = [72, 500, 2000, PAGE_BYTES][kind as usize];
        let (mut leaf, mut model) = (Leaf::new(LocalBlock(40)), BTreeMap::new());
        let (mut next, mut fullest) = (1000, 0);
        for step in 0..40_000 {
            let block = match kind {
                0 => 40 + random.below(60),
                1 => 40 + step % 500,
                2 => 40 + random.below(3000),
                _ => 40 + (random.below(1 << 20) << random.below(20)),
            };
            let block = LocalBlock(block);
            next += random.below(600);
            let dirty = random.below(4) == 0;
            let entry = match random.below(6) {
                0 => Entry::same_filled(Location(next - next % 64), step as u8).with_dirty(dirty),
                1 | 2 => Entry::group(Location(next - next % 512), 5000),
                3 => Entry::fragment(Location(1 + random.below(Location::MAX.0)), 3000),
                _ => Entry::fragment(Location(next), 200 + random.below(3800) as usize).with_dirty(dirty),
            };
            let near = model.range(block..).next().map_or(block, |(near, _)| *near);
            if random.below(100) < if step % 4000 < 2500 { 30 } else { 70 } {
                let used = leaf.used_bytes();
                assert_eq!(leaf.remove(near), model.remove(&near));
                assert!(leaf.used_bytes() <= used, "a removal takes no room");
            } else if let (1, Some(old)) = (random.below(4), model.get_mut(&near)) {
                let new = old.with_dirty(!old.dirty());
                let used = leaf.used_bytes();
                assert_eq!(
                    leaf.insert(near, new, used),
                    Ok(Some(*old)),
                    "the dirty bit takes no room"
                );
                *old = new;
            } else if let Ok(old) = leaf.insert(block, entry, most) {
                assert_eq!(old, model.insert(block, entry));
            } else {
                assert!(leaf.used_bytes() + 4 * CODE_MAX > most, "there is room");
            }
            fullest = fullest.max(leaf.used_bytes());
            assert!(leaf.used_bytes() <= most);
            assert_eq!(leaf.get(block), model.get(&block).copied());
            if step % 64 == 0 {
                check(&leaf);
                let dirty = model.values().any(|entry| entry.dirty());
                assert_eq!((leaf.len(), leaf.any_dirty()), (model.len(), dirty));
                assert!(
                    leaf.entries()
                        .eq(model.iter().map(|(block, entry)| (*block, *entry)))
                );
                let again = Leaf::of(leaf.first, leaf.entries());
                assert!(again.entries().eq(leaf.entries()));
                check(&again);
            }
        }
        assert!(fullest > most * 9 / 10, "{kind}: {fullest} of {most}");
    }
}

#[test]
fn a_full_page_is_split_at_a_group() {
    for step in 1..6 {
        let mut leaf = full(step);
        let all: Vec<_> = leaf.entries().collect();
        let used = leaf.used_bytes();
        let upper = leaf.split(LocalBlock(9));
        assert_eq!(upper.first().0 % 4, 0);
        assert!(leaf.entries().last().expect("half").0 < upper.first());
        let both: Vec<_> = leaf.entries().chain(upper.entries()).collect();
        assert_eq!(both, all);
        assert!(leaf.used_bytes().abs_diff(upper.used_bytes()) < used / 10);
        check(&leaf);
        check(&upper);
    }
}

#[test]
fn a_page_of_two_groups_is_split_between_them() {
    let mut leaf = Leaf::new(LocalBlock(8));
    for block in [8, 9, 10, 11, 12] {
        leaf.insert(LocalBlock(block), entry(block << 30), PAGE_BYTES)
            .expect("room");
    }
    let upper = leaf.split(LocalBlock(9));
    assert_eq!((leaf.len(), upper.len(), upper.first()), (4, 1, LocalBlock(12)));
}

#[test]
fn blocks_in_order_fill_pages() {
    let mut leaf = full(4);
    let (len, last) = (leaf.len(), leaf.entries().last().expect("full").0);
    let next = LocalBlock(last.0 + 4);
    let upper = leaf.split(next);
    assert_eq!((leaf.len(), upper.len(), upper.first()), (len, 0, next));
}

/// Blocks that were stored one after another, in order, and by chance: bytes of an entry.
#[test]
fn an_entry_takes_few_bytes() {
    let each = |leaf: &Leaf| leaf.used_bytes() as f64 / leaf.len() as f64;
    let (mut random, mut at) = (Random::new(1), 1);
    let mut fragment = move || {
        let bytes = 1000 + random.below(2000) as usize;
        at += bytes.div_ceil(8) as u64;
        Entry::fragment(Location(at - bytes.div_ceil(8) as u64), bytes)
    };
    let mut leaf = Leaf::new(LocalBlock(0));
    let mut random = Random::new(2);
    for block in 0..1500 {
        leaf.insert(LocalBlock(block), fragment(), PAGE_BYTES)
            .expect("room");
    }
    assert!(each(&leaf) < 2.3, "{}", each(&leaf));
    // Runs of sixteen, each of which overwrites what is there.
    for _ in 0..300 {
        let first = 16 * random.below(50);
        for block in first..first + 16 {
            leaf.insert(LocalBlock(block), fragment(), PAGE_BYTES)
                .expect("room");
        }
    }
    assert!(each(&leaf) < 2.9, "{}", each(&leaf));
    let mut leaf = Leaf::new(LocalBlock(0));
    for n in 0..400 {
        let block = LocalBlock(random.below(1 << 12));
        leaf.insert(block, entry(random.below(1 << 36)), PAGE_BYTES)
            .unwrap_or_else(|_| panic!("{n} entries fit"));
    }
    assert!(each(&leaf) < 8.5, "{}", each(&leaf));
}

#[test]
fn two_small_pages_become_one() {
    let (mut low, mut high) = (Leaf::new(LocalBlock(0)), Leaf::new(LocalBlock(400)));
    for n in 0..120 {
        low.insert(LocalBlock(n), entry(n), PAGE_BYTES).expect("room");
        high.insert(LocalBlock(400 + n), entry(n), PAGE_BYTES)
            .expect("room");
    }
    let both = low.used_bytes() + high.used_bytes() - HEAD_BYTES;
    assert!(low.can_take(&high, both) && !low.can_take(&high, both - 1));
    let all: Vec<_> = low.entries().chain(high.entries()).collect();
    low.take(&high);
    assert_eq!(low.entries().collect::<Vec<_>>(), all);
    check(&low);
    assert!(low.can_take(&Leaf::new(LocalBlock(1 << 30)), 0), "it is empty");
}

#[test]
fn pages_read_back_and_hostile_ones_are_refused() {
    let leaf = full(3);
    let bytes = leaf.to_bytes(77, PAGE_BYTES);
    let parse = |bytes: &[u8]| Leaf::parse(bytes, LocalBlock(8), 77);
    assert!(parse(&bytes).expect("it is whole").entries().eq(leaf.entries()));
    assert!(
        Leaf::parse(&bytes, LocalBlock(12), 77).is_err(),
        "of other blocks"
    );
    assert!(
        Leaf::parse(&bytes, LocalBlock(8), 78).is_err(),
        "of another opening"
    );
    assert!(parse(&bytes[..leaf.used_bytes() - 1]).is_err(), "too short");
    assert!(parse(&bytes[..9]).is_err() && parse(&[0; PAGE_BYTES + 1]).is_err());
    let mut bad = bytes.clone();
    bad[6] = 0xff;
    assert!(parse(&bad).is_err(), "too many entries");
    bad = bytes;
    let second = HEAD_BYTES + 1 + usize::from(bad[HEAD_BYTES]);
    let (first, rest) = bad.split_at_mut(second);
    rest[..20].copy_from_slice(&first[HEAD_BYTES..HEAD_BYTES + 20]);
    assert!(parse(&bad).is_err(), "a block twice");
}

/// Whatever is accepted can be used.
#[test]
fn any_bytes_are_a_page_or_refused() {
    let mut random = Random::new(4);
    let pages = [1, 2, 3].map(|step| full(step).to_bytes(7, PAGE_BYTES));
    let mut accepted = 0;
    for turn in 0..20_000 {
        let mut bytes = pages[turn % 3].clone();
        for _ in 0..=random.below(3) {
            let at = HEAD_BYTES + random.index(600);
            bytes[at] = random.below(256) as u8;
        }
        let Ok(mut leaf) = Leaf::parse(&bytes, LocalBlock(8), 7) else {
            continue;
        };
        accepted += 1;
        assert!(leaf.entries().is_sorted_by(|(one, _), (other, _)| one < other));
        let block = LocalBlock(8 + random.below(2000));
        let old = leaf.get(block);
        assert_eq!(leaf.remove(block), old);
        let inserted = leaf.insert(block, entry(3), PAGE_BYTES);
        assert!(matches!(inserted, Ok(None) | Err(Full)));
        assert_eq!(leaf.entries().count(), leaf.len());
    }
    assert!(accepted > 1000, "{accepted}");
}

/// Pages that are filled in order lose some entries before they are full: no change but an insertion takes room, not even one that encodes
/// many entries anew.
#[test]
fn a_full_page_never_takes_more_than_it_has() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut leaf = Leaf::new(LocalBlock(0));
        let (mut block, mut unit) = (0, 1 << random.below(30));
        let most = PAGE_BYTES - random.index(40);
        loop {
            let bytes = 1000 + random.below(3000) as usize;
            let next = Entry::fragment(Location(unit), bytes);
            if leaf.insert(LocalBlock(block), next, most) == Err(Full) {
                break;
            }
            unit += bytes.div_ceil(8) as u64;
            block += 1 + random.below(20) / 19 * random.below(30);
            if random.below(200) == 0 {
                leaf.remove(LocalBlock(random.below(block)));
            }
            if random.below(300) == 0 {
                let gone = random.below(100);
                leaf.retain(|entry| entry.location().0 % 100 != gone);
            }
            assert!(leaf.used_bytes() <= most);
        }
        let mut upper = leaf.split(LocalBlock(block));
        assert!(leaf.used_bytes() <= most && upper.used_bytes() <= most);
        upper.remove(LocalBlock(block));
        let full = leaf.used_bytes();
        if upper.len() == 0 {
            assert!(leaf.can_take(&upper, most / 2));
            leaf.take(&upper);
            assert_eq!(leaf.used_bytes(), full);
        }
        while leaf.len() > 1 {
            let before = leaf.used_bytes();
            let blocks: Vec<_> = leaf.entries().map(|(block, _)| block).collect();
            leaf.remove(blocks[random.index(blocks.len())]);
            assert!(leaf.used_bytes() <= before, "a removal takes no room");
        }
    }
}
