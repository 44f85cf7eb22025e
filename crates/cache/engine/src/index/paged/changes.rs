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

/// The changes of a page in a write.
enum Part {
    /// Those of the page in the frame with this number.
    Frame(u32, Vec<u8>),
    /// Those that are in memory, or these and those on the device.
    Moved(Vec<u8>),
    /// Those that are on the device, if there are some.
    Kept(Option<Vec<u8>>),
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
        let share = rows::share(self.plan.page_bytes);
        frame.touched.encode(which, &frame.leaf, frame.checked, share)
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

    /// Completes a write of changes. `old`: the contents of its slot. From now on, changes that were in memory are part of the write.
    ///
    /// # Errors
    /// The contents are not those that were written last; what is wrong, in words. Then the write has failed.
    pub fn complete(&mut self, write: &mut PageWrite, old: &[u8]) -> Result<(), String> {
        let Written::Changes(row, frames) = &mut write.what else {
            return Ok(());
        };
        let mut parts = Vec::new();
        for (at, slot) in rows::page_slots(*row).into_iter().enumerate() {
            let old = match self.rows.stored(slot) {
                Stored::No => None,
                Stored::Yes(checksum) => Some(rows::part(old, checksum, at)?.to_vec()),
                Stored::Writing(_) => return Err("they are being written".into()),
            };
            parts.push((slot, self.part(slot, frames, old)?));
        }
        let has_contents = |(_, part): &(u32, Part)| !matches!(part, Part::Kept(None));
        if !self.rows.can_write(*row) || !parts.iter().any(has_contents) {
            return Err("nothing is to be written any more".into());
        }
        let (row, begun) = (*row, std::mem::take(frames));
        begun.iter().for_each(|written| self.end_frame(*written));
        let mut contents = Parts::default();
        for ((slot, part), to) in parts.into_iter().zip(&mut contents) {
            *to = match part {
                Part::Frame(number, all) => {
                    frames.push(self.begin_frame(number));
                    self.set_stored(number);
                    Some(all)
                }
                Part::Moved(moved) => {
                    self.deltas.take(slot);
                    Some(moved)
                }
                Part::Kept(old) => old,
            };
        }
        write.bytes = rows::to_bytes(&contents, self.plan.page_bytes);
        self.rows.begin_write(row, contents, &write.bytes);
        Ok(())
    }

    /// The changes of the page in a slot, of which those on the device are `old`, in a write with these frames.
    fn part(&self, slot: u32, frames: &[WrittenFrame], old: Option<Vec<u8>>) -> Result<Part, String> {
        let leaving = frames.iter().map(|written| written.number);
        for number in leaving.filter(|number| {
            self.frames[*number as usize]
                .as_ref()
                .is_some_and(|frame| frame.slot() == Some(slot))
        }) {
            if let Some(all) = self.changes_of(self.frame(number), Which::All) {
                return Ok(Part::Frame(number, all));
            }
        }
        let share = rows::share(self.plan.page_bytes);
        let moved = match (&old, self.deltas.get(slot)) {
            (_, None) => None,
            (Some(old), Some(_)) if planted(PlantedBug::MovedChangesLost) => Some(old.clone()),
            (Some(old), Some(delta)) => self.joined(old, delta)?.encode(LocalBlock(0), share),
            (None, Some(delta)) => Some(delta.to_vec()).filter(|delta| delta.len() <= share),
        };
        // Otherwise those in memory stay there.
        Ok(moved.map_or(Part::Kept(old), Part::Moved))
    }

    /// Changes of a page, then later ones, as if it began with block 0.
    fn joined(&self, changes: &[u8], later: &[u8]) -> Result<Delta, String> {
        let changes = Delta::decode(changes, LocalBlock(0))?;
        Ok(changes.then(Delta::decode(later, LocalBlock(0))?, &self.retired))
    }

    /// The frame of a write is not written any more.
    fn end_frame(&mut self, written: WrittenFrame) {
        if let Some(frame) = self.frame_of_write(written) {
            frame.is_writing = false;
        }
    }

    /// A write of changes could not be completed: the pages are written instead.
    pub(super) fn give_up_changes(&mut self, frames: &[WrittenFrame]) {
        for written in frames {
            if let Some(frame) = self.frame_of_write(*written) {
                frame.is_writing = false;
                self.touch_all(written.number);
            }
        }
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
