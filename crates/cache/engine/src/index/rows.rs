//! Changes of pages on the device. Slots are in rows of eight. Seven of them are for pages, the fourth one is for the *page of changes* of
//! these seven: so one write stores the changes of seven pages, and one read returns a page and its changes.
//!
//! ```text
//! for each of the seven   length (2 bytes), changes (see `super::delta`)
//! then                    zeroes
//! ```
//!
//! Invariants:
//! - Changes count only if the row says so: then the page in the slot is the version that they were written for. All others in a page of
//!   changes are those of an older version, or of a page that was in the slot before.
//! - The checksum of a row is that of its page of changes as it was written last: an older one is as invalid as damage.
//! - While a page of changes is written, its contents count, and are in memory; nothing is read from its slot.
//! - If that write fails, its contents go back to memory. From then on no page of changes is written, so that these contents are few.
//!
//! The device is not asked what is in a slot after a crash: see [`super::paged`].

use std::collections::BTreeSet;

use super::slots::{CHANGES_SLOT, ROW_SLOTS};

/// Pages of a row.
pub(super) const ROW_PAGES: usize = ROW_SLOTS as usize - 1;
const LEN_BYTES: usize = 2;

/// The slots of a row that pages are in.
pub(super) fn page_slots(row: u32) -> [u32; ROW_PAGES] {
    let before = |at: u32| row * ROW_SLOTS + at + u32::from(at >= CHANGES_SLOT);
    std::array::from_fn(|at| before(at as u32))
}

/// The slot of a row where its changes are.
pub(super) fn changes_slot(row: u32) -> u32 {
    row * ROW_SLOTS + CHANGES_SLOT
}

/// The row of the page in a slot, and which of its pages that is.
pub(super) fn row_of(slot: u32) -> (u32, usize) {
    let at = slot % ROW_SLOTS;
    debug_assert_ne!(at, CHANGES_SLOT, "a page is in slot {slot}");
    (slot / ROW_SLOTS, (at - u32::from(at > CHANGES_SLOT)) as usize)
}

/// The contents of a page of changes: those of each page of the row, or none.
pub(super) type Parts = [Option<Vec<u8>>; ROW_PAGES];

/// Most bytes of the changes of a page in a page of changes of so many bytes: twice its share, because few pages have as many.
pub(super) fn most(page_bytes: usize) -> usize {
    2 * page_bytes / ROW_PAGES
}

/// Bytes of a page of changes that changes can take.
pub(super) fn room(page_bytes: usize) -> usize {
    page_bytes - ROW_PAGES * LEN_BYTES
}

/// A page of changes that fit in its room.
pub(super) fn to_bytes(parts: &Parts, page_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(page_bytes);
    for part in parts {
        let part = part.as_deref().unwrap_or_default();
        bytes.extend((part.len() as u16).to_le_bytes());
        bytes.extend(part);
    }
    assert!(bytes.len() <= page_bytes, "they fit");
    bytes.resize(page_bytes, 0);
    bytes
}

/// The changes of one of the pages of a row, in their page of changes.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn part(bytes: &[u8], checksum: u32, at: usize) -> Result<&[u8], String> {
    let computed = crc32c::crc32c(bytes);
    if computed != checksum {
        return Err(format!(
            "changes have checksum {computed:#010x}, expected {checksum:#010x}"
        ));
    }
    let (mut part, mut rest) = (&bytes[..0], bytes);
    for _ in 0..=at {
        let next = rest.split_first_chunk::<LEN_BYTES>();
        let next = next.and_then(|(len, rest)| rest.split_at_checked(u16::from_le_bytes(*len).into()));
        let Some(next) = next else {
            return Err(format!(
                "{} bytes, expected changes of {ROW_PAGES} pages",
                bytes.len()
            ));
        };
        (part, rest) = next;
    }
    Ok(part)
}

/// Where the changes of a page are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    /// There are none.
    No,
    /// They are being written.
    Writing(&'a [u8]),
    /// In the page of changes, which has this checksum.
    Yes(u32),
}

/// A row. Five bytes, because there is one for each few pages.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    checksum: [u8; 4],
    /// A bit for each page: it has changes in the page of changes.
    pages: u8,
}

const _: () = assert!(size_of::<Row>() == 5);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Up to the last one that has had changes.
    rows: Vec<Row>,
    /// Slots of the area.
    slots: u32,
    /// Pages of changes that are being written.
    writing: Vec<(u32, Parts)>,
    /// Rows whose page of changes could not be read: it is not written again.
    damaged: BTreeSet<u32>,
    /// A write has failed.
    has_failed: bool,
}

impl Rows {
    /// Of an area of so many slots.
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            ..Self::default()
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
    }

    fn row(&self, row: u32) -> Row {
        self.rows.get(row as usize).copied().unwrap_or_default()
    }

    /// Whether changes of the pages of a row can be written now.
    pub(super) fn can_write(&self, row: u32) -> bool {
        let is_writing = self.writing.iter().any(|(other, _)| *other == row);
        let is_usable = changes_slot(row) < self.slots && !self.damaged.contains(&row);
        !self.has_failed && is_usable && !is_writing
    }

    /// The page of changes of a row cannot be read.
    pub(super) fn note_damaged(&mut self, row: u32) {
        self.damaged.insert(row);
    }

    #[cfg(test)]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether those of any row are.
    pub(super) fn are_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Where the changes of the page in a slot are.
    pub(super) fn stored(&self, slot: u32) -> Stored<'_> {
        let (row, at) = row_of(slot);
        let Row { checksum, pages } = self.row(row);
        if pages >> at & 1 == 0 {
            return Stored::No;
        }
        match self.writing.iter().find(|(other, _)| *other == row) {
            Some((_, parts)) => Stored::Writing(parts[at].as_deref().expect("it has changes")),
            None => Stored::Yes(u32::from_le_bytes(checksum)),
        }
    }

    /// Whether no page of a row has changes on the device.
    pub(super) fn is_empty(&self, row: u32) -> bool {
        self.row(row).pages == 0
    }

    /// The changes of the page in a slot do not count any more: another one will be there, or all of it is written.
    pub(super) fn clear(&mut self, slot: u32) {
        let (row, at) = row_of(slot);
        if let Some(row) = self.rows.get_mut(row as usize) {
            row.pages &= !(1 << at);
        }
    }

    fn set(&mut self, row: u32, checksum: u32, pages: u8) {
        let len = row as usize + 1;
        if self.rows.len() < len {
            if self.rows.capacity() < len {
                self.rows
                    .reserve_exact((len / 16).max(16) + len - self.rows.len());
            }
            self.rows.resize_with(len, Row::default);
        }
        self.rows[row as usize] = Row {
            checksum: checksum.to_le_bytes(),
            pages,
        };
    }

    /// A write of the changes of a row begins. They count from now on, and no others do.
    pub(super) fn begin_write(&mut self, row: u32, parts: Parts, bytes: &[u8]) {
        assert!(self.can_write(row), "row {row}");
        let pages = (0..ROW_PAGES).filter(|at| parts[*at].is_some());
        self.set(row, crc32c::crc32c(bytes), pages.map(|at| 1 << at).sum());
        self.writing.push((row, parts));
    }

    /// It has ended. If it failed: the changes that still count, with the slots of their pages.
    pub(super) fn end_write(&mut self, row: u32, succeeded: bool) -> Vec<(u32, Vec<u8>)> {
        let at = self.writing.iter().position(|(other, _)| *other == row);
        let (_, mut parts) = self.writing.swap_remove(at.expect("it was begun"));
        if succeeded {
            return Vec::new();
        }
        self.has_failed = true;
        let pages = std::mem::take(&mut self.rows[row as usize]).pages;
        let left = (0..ROW_PAGES).filter(|at| pages >> at & 1 > 0);
        let left = left.map(|at| (page_slots(row)[at], parts[at].take().expect("it has changes")));
        left.collect()
    }

    // Images.

    /// Rows with changes: number, checksum, a bit for each page that has some.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32, u8)> + '_ {
        let rows = (0..).zip(&self.rows).filter(|(_, row)| row.pages > 0);
        rows.map(|(number, row)| (number, u32::from_le_bytes(row.checksum), row.pages))
    }

    /// Adds a row behind all others.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn add(&mut self, row: u32, checksum: u32, pages: u8) -> Result<(), String> {
        let is_in_area = row < self.slots.div_ceil(ROW_SLOTS) && changes_slot(row) < self.slots;
        let is_behind = row as usize >= self.rows.len();
        if !is_in_area || !is_behind || pages == 0 || u32::from(pages) >> ROW_PAGES != 0 {
            return Err(format!("row {row} has changes of the pages {pages:#b}"));
        }
        self.set(row, checksum, pages);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_in_a_row() {
        for slot in (0..1000).filter(|slot| slot % ROW_SLOTS != CHANGES_SLOT) {
            let (row, at) = row_of(slot);
            assert_eq!(page_slots(row)[at], slot);
        }
        assert_eq!((changes_slot(0), changes_slot(7)), (3, 59));
    }

    #[test]
    fn a_page_of_changes_reads_back() {
        for page_bytes in [512, 4096] {
            let (most, room) = (most(page_bytes), room(page_bytes));
            let mut parts = Parts::default();
            (parts[0], parts[2]) = (Some(vec![1; most]), Some(vec![2, 3]));
            (parts[5], parts[6]) = (Some(vec![4; most]), Some(vec![5; room - 2 * most - 2]));
            let mut bytes = to_bytes(&parts, page_bytes);
            let checksum = crc32c::crc32c(&bytes);
            for (at, expected) in parts.iter().enumerate() {
                let expected = expected.as_deref().unwrap_or_default();
                assert_eq!(part(&bytes, checksum, at), Ok(expected));
            }
            bytes[0] ^= 1;
            assert!(part(&bytes, checksum, 2).is_err(), "it is damaged");
            let forged = vec![0xff; page_bytes];
            assert!(part(&forged, crc32c::crc32c(&forged), 0).is_err());
            assert!(part(&[], 0, 0).is_err());
        }
    }

    #[test]
    fn changes_count_until_their_page_has_left() {
        let mut rows = Rows::new(84);
        assert!(rows.can_write(10) && !rows.can_write(11));
        rows = Rows::new(83);
        assert!(
            rows.can_write(9) && !rows.can_write(10),
            "it has no slot for changes"
        );
        let mut parts = Parts::default();
        (parts[0], parts[3]) = (Some(vec![1]), Some(vec![2]));
        let bytes = to_bytes(&parts, 4096);
        rows.begin_write(9, parts.clone(), &bytes);
        assert!(!rows.can_write(9) && rows.can_write(8));
        assert_eq!(rows.stored(72), Stored::Writing(&[1]));
        assert_eq!(rows.stored(77), Stored::No);
        rows.clear(72);
        assert_eq!(rows.end_write(9, true), []);
        let found = (rows.stored(72), rows.stored(76));
        assert_eq!(found, (Stored::No, Stored::Yes(crc32c::crc32c(&bytes))));
        rows.begin_write(9, parts, &bytes);
        rows.clear(76);
        assert_eq!(rows.end_write(9, false), [(72, vec![1])]);
        assert!(rows.is_empty(9) && !rows.can_write(8), "no more are written");
    }
}
