//! Writes of the changes of a row of pages: see [`crate::index::rows`].
//!
//! A write begins with the frames of the row whose turn it is to leave memory. If the page of changes has some already, it is read first; so
//! frames may change, and leave the row, before the write is complete. When it is complete, it has all changes of these pages, those of
//! their neighbours that are on the device, and those that are in memory.
//!
//! If a write fails, its contents are no longer on the device: pages in memory have them, and those of other pages stay in memory as changes.

use super::{Delta, Frame, PageWrite, PagedIndex, Stored, Written, WrittenFrame};
use crate::index::delta::{DELTA_BYTES_MAX, Which};
use crate::index::rows::{self, Parts};
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// If the other pages of a row have fewer bytes of changes in memory than one part in so many of those of the page that leaves, the page
/// itself is written: that costs the same write, and leaves no changes.
const OTHERS_SHARE: usize = 4;

/// Where changes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Those in memory of a page that is not, after those on the device.
    Memory,
    /// The page in the frame with this number.
    Frame(u32),
}

/// The changes of a page in a write.
struct Content {
    slot: u32,
    /// Those that are on the device, if there are some.
    old: Option<Vec<u8>>,
    /// Those that replace them, if there are some.
    new: Option<(Source, Vec<u8>)>,
}

impl Content {
    fn len(&self) -> usize {
        let new = self.new.as_ref().map(|(_, new)| new);
        new.or(self.old.as_ref()).map_or(0, Vec::len)
    }

    fn is_from(&self, frame: u32) -> bool {
        (self.new.as_ref()).is_some_and(|(source, _)| *source == Source::Frame(frame))
    }

    /// How soon it is left out if a page of changes has no room: that of a page in memory, which can be written as a whole instead, before
    /// others, and the largest first.
    fn goes_first(&self) -> Option<(bool, usize)> {
        let (source, new) = self.new.as_ref()?;
        Some((matches!(source, Source::Frame(_)), new.len()))
    }
}

/// Leaves new changes out until all fit in so many bytes. (The old ones do.)
fn fit(contents: &mut [Content], room: usize) {
    while contents.iter().map(Content::len).sum::<usize>() > room {
        let first = contents.iter_mut().max_by_key(|content| content.goes_first());
        let gone = first.and_then(|content| content.new.take());
        assert!(gone.is_some(), "the old ones fit");
    }
}

impl PagedIndex {
    /// Decides how a page leaves memory. `Some`: the changes of its row are written, with those of the pages in these frames, which leave
    /// memory, too. `None`: the page itself is written. `frames`: those of the row that leave memory.
    pub(super) fn writes_changes(&self, row: u32, number: u32, frames: &[u32]) -> Option<Vec<u32>> {
        if !self.rows.can_write(row) {
            return None;
        }
        let fits = |number: &u32| {
            let frame = self.frame(*number);
            !frame.is_writing && self.changes_of(frame, Which::All).is_some()
        };
        let frames: Vec<u32> = frames.iter().copied().filter(fits).collect();
        let recent = || {
            self.changes_of(self.frame(number), Which::Recent)
                .map_or(0, |recent| recent.len())
        };
        let leaves_alone = || frames.len() == 1 && OTHERS_SHARE * self.row_bytes(row) < recent();
        (frames.contains(&number) && !leaves_alone()).then_some(frames)
    }

    /// `None`: they do not fit in a page of changes.
    fn changes_of(&self, frame: &Frame, which: Which) -> Option<Vec<u8>> {
        let most = rows::most(self.plan.page_bytes);
        frame.touched.encode(which, &frame.leaf, frame.checked, most)
    }

    /// Begins to write the changes of a row, of which these frames leave memory.
    pub(super) fn begin_changes(&mut self, row: u32, frames: &[u32]) -> PageWrite {
        let frames = frames.iter().map(|number| self.begin_frame(*number)).collect();
        let mut write = PageWrite {
            slot: rows::changes_slot(row),
            what: Written::Changes(row, frames),
            bytes: Vec::new(),
        };
        if self.rows.is_empty(row) {
            self.complete(&mut write, &[])
                .expect("some of its pages have changed");
        }
        write
    }

    /// Completes a write of changes. `old`: the contents of its slot. From now on, changes that were in memory are part of the write. It stays
    /// incomplete if nothing is to be written any more, or has room: then the pages themselves are to be written.
    ///
    /// # Errors
    /// The contents are not those that were written last; what is wrong, in words. The write stays incomplete.
    pub fn complete(&mut self, write: &mut PageWrite, old: &[u8]) -> Result<(), String> {
        let Written::Changes(row, frames) = &mut write.what else {
            return Ok(());
        };
        if !self.rows.can_write(*row) {
            return Ok(());
        }
        let mut contents = Vec::new();
        for (at, slot) in rows::page_slots(*row).into_iter().enumerate() {
            let old = match self.rows.stored(slot) {
                Stored::No => None,
                Stored::Yes(checksum) => Some(rows::part(old, checksum, at)?.to_vec()),
                Stored::Writing(_) => return Err("they are being written".into()),
            };
            let new = self.new_content(slot, frames, old.as_deref())?;
            contents.push(Content { slot, old, new });
        }
        fit(&mut contents, rows::room(self.plan.page_bytes));
        if contents.iter().all(|content| content.new.is_none()) {
            return Ok(());
        }
        let (row, begun) = (*row, std::mem::take(frames));
        for written in begun {
            match contents.iter().any(|content| content.is_from(written.number)) {
                true => {
                    frames.push(self.begin_frame(written.number));
                    self.set_stored(written.number);
                }
                false => self.give_up_frame(written),
            }
        }
        let mut parts = Parts::default();
        for (Content { slot, old, new }, part) in contents.into_iter().zip(&mut parts) {
            if let Some((Source::Memory, _)) = new {
                self.deltas.take(slot);
            }
            *part = new.map(|(_, new)| new).or(old);
        }
        write.bytes = rows::to_bytes(&parts, self.plan.page_bytes);
        self.rows.begin_write(row, parts, &write.bytes);
        Ok(())
    }

    /// The changes of the page in a slot in a write with these frames, if they are not the `old` ones on the device.
    fn new_content(
        &self,
        slot: u32,
        frames: &[WrittenFrame],
        old: Option<&[u8]>,
    ) -> Result<Option<(Source, Vec<u8>)>, String> {
        for WrittenFrame { number, id, .. } in frames {
            let frame = self.frames[*number as usize].as_ref();
            let frame = frame.filter(|frame| frame.id == *id && frame.slot() == Some(slot));
            if let Some(all) = frame.and_then(|frame| self.changes_of(frame, Which::All)) {
                return Ok(Some((Source::Frame(*number), all)));
            }
        }
        let most = rows::most(self.plan.page_bytes);
        let moved = match (old, self.deltas.get(slot)) {
            (_, None) => None,
            (Some(old), Some(_)) if planted(PlantedBug::MovedChangesLost) => Some(old.to_vec()),
            (Some(old), Some(delta)) => self.joined(old, delta)?.encode(LocalBlock(0), most),
            (None, Some(delta)) => Some(delta.to_vec()).filter(|delta| delta.len() <= most),
        };
        // Otherwise those in memory stay there.
        Ok(moved.map(|moved| (Source::Memory, moved)))
    }

    /// Changes of a page, then later ones, as if it began with block 0.
    fn joined(&self, changes: &[u8], later: &[u8]) -> Result<Delta, String> {
        let changes = Delta::decode(changes, LocalBlock(0))?;
        Ok(changes.then(Delta::decode(later, LocalBlock(0))?, &self.retired))
    }

    /// A frame is not part of a write of changes any more: its page is written as a whole instead.
    fn give_up_frame(&mut self, written: WrittenFrame) {
        if let Some(frame) = self.frame_of_write(written) {
            frame.is_writing = false;
            self.touch_all(written.number);
        }
    }

    /// A write of changes cannot be completed, because those on the device cannot be read.
    pub fn note_damaged_changes(&mut self, write: &PageWrite) {
        if let Written::Changes(row, _) = &write.what {
            self.rows.note_damaged(*row);
        }
    }

    /// A write of changes could not be completed: the pages are written instead.
    pub(super) fn give_up_changes(&mut self, frames: &[WrittenFrame]) {
        frames.iter().for_each(|written| self.give_up_frame(*written));
    }

    /// A write of changes has ended.
    pub(super) fn end_changes(&mut self, row: u32, frames: &[WrittenFrame], succeeded: bool) {
        for (slot, left) in self.rows.end_write(row, succeeded) {
            let frames = (0..).zip(&self.frames);
            let mut frames = frames.filter_map(|(number, frame)| Some((number, frame.as_ref()?)));
            match frames.find(|(_, frame)| frame.slot() == Some(slot)) {
                Some((number, _)) => self.change(number, |frame| frame.touched.set_stored(false)),
                None => {
                    let delta = match self.deltas.take(slot) {
                        None => left,
                        Some(later) => {
                            let both = self.joined(&left, &later).expect("they were encoded here");
                            // Each has a thousand changes of 13 bytes at most.
                            both.encode(LocalBlock(0), DELTA_BYTES_MAX).expect("they are few")
                        }
                    };
                    self.deltas.put(slot, &delta);
                }
            }
        }
        for written in frames {
            if let Some(frame) = self.frame_of_write(*written) {
                frame.is_writing = false;
                let dirty = frame.leaf.any_dirty();
                if let Some((saved, version)) = frame.saved.as_mut().filter(|_| succeeded) {
                    (saved.dirty, *version) = (dirty, written.version);
                }
                self.leave(*written);
            }
        }
    }
}
