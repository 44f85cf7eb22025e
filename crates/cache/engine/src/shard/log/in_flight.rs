//! The list of everything in flight to the cache device: opened regions, extents, summaries.
//!
//! Invariants:
//! - Every sealed extent is on the list until it has landed or is lost. A withheld extent stays, so that its position is
//!   never reached.
//! - Every closed region is on the list, in the order of closing, until it may enter its ring.
//! - An extent is sent only after the manifest has its region.
//! - A summary is sent only after every extent of its region has ended.

use std::collections::VecDeque;

use flaz_device::IoBuf;

use super::lsn::Lsn;
use crate::format::summary::Summary;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{Location, Sequence};

/// A write: the manifest's entry for an opened region, an extent, or a region's summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum WriteId {
    Opening { region: u32 },
    Extent(Lsn),
    Summary { region: u32 },
}

/// A write that is ready for the device.
#[derive(Debug)]
pub(in crate::shard) struct PendingWrite {
    pub(in crate::shard) id: WriteId,
    /// Byte offset on the cache device, and the data. `None` for a region that is opened.
    pub(in crate::shard) bytes: Option<(u64, IoBuf)>,
}

/// The progress of an extent's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Sealed, waiting to be sent.
    Queued,
    /// Taken from the queue, not sent yet.
    Taken,
    /// Sent to the device.
    Sent,
    /// Never to be sent: the device was fenced first.
    Withheld,
}

/// A sealed extent.
#[derive(Debug)]
pub(super) struct Extent {
    pub(super) lsn: Lsn,
    pub(super) ring: Ring,
    pub(super) region: u32,
    /// Start of the extent in its region.
    pub(super) offset: u32,
    /// Start of the extent in the shard's part of the device.
    pub(super) start: Location,
    /// Byte offset on the cache device.
    pub(super) position: u64,
    /// Extents are sent in this order.
    pub(super) sequence: Sequence,
    /// Dirty blocks are moved to it: their old locations may no longer be readable.
    pub(super) moves_dirty: bool,
    pub(super) stage: Stage,
    /// The extent's bytes; blocks are read from here until the extent has landed.
    pub(super) buf: Option<IoBuf>,
}

impl Extent {
    fn is_being_written(&self) -> bool {
        self.stage != Stage::Withheld
    }
}

/// The progress of a summary's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SummaryStage {
    Queued,
    Sent,
    Ended,
}

/// A region that is closed and not in its ring yet.
#[derive(Debug)]
pub(super) struct EndedRegion {
    pub(super) region: u32,
    pub(super) ring: Ring,
    /// The last extent opened when the region was closed.
    pub(super) at: Lsn,
    /// The first extent of the region that did not reach the device, and its offset. Recovery finds later extents only
    /// through the summary, which it trusts once the region is full.
    pub(super) missing: Option<(Lsn, u32)>,
    /// What was appended to it, missing extents included.
    pub(super) contents: Summary,
    /// Byte offset of the summary on the device, and its length.
    pub(super) place: (u64, usize),
    pub(super) stage: SummaryStage,
}

impl EndedRegion {
    fn is_ended(&self) -> bool {
        self.stage == SummaryStage::Ended
    }
}

/// See the module's documentation. A few dozen items at most.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Regions that the manifest does not have yet, and whether their entry is being written.
    openings: Vec<(u32, bool)>,
    extents: Vec<Extent>,
    ended: VecDeque<EndedRegion>,
}

impl InFlight {
    pub(super) fn push(&mut self, extent: Extent) {
        assert!(extent.stage == Stage::Queued && extent.buf.is_some());
        self.extents.push(extent);
    }

    pub(super) fn push_opening(&mut self, region: u32) {
        assert!(!self.is_writing(region), "nothing of an earlier use is under way");
        self.openings.push((region, false));
    }

    pub(super) fn push_ended(&mut self, region: EndedRegion) {
        assert!(
            self.ended.iter().all(|ended| ended.region != region.region),
            "a region ends once"
        );
        self.ended.push_back(region);
    }

    fn is_opening(&self, region: u32) -> bool {
        self.openings.iter().any(|(opening, _)| *opening == region)
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter()
    }

    /// The contents of the closed regions that are not in their rings yet.
    pub(super) fn ended(&self) -> impl Iterator<Item = (u32, &Summary)> {
        self.ended.iter().map(|ended| (ended.region, &ended.contents))
    }

    pub(super) fn get(&self, lsn: Lsn) -> Option<&Extent> {
        self.extents.iter().find(|extent| extent.lsn == lsn)
    }

    pub(super) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut Extent> {
        self.extents.iter_mut().find(|extent| extent.lsn == lsn)
    }

    /// Number of writes queued or in flight.
    pub(super) fn writes(&self) -> usize {
        let extents = self.extents.iter().filter(|extent| extent.is_being_written());
        let summaries = self.ended.iter().filter(|region| !region.is_ended());
        self.openings.len() + extents.count() + summaries.count()
    }

    /// Bytes of the extents that are queued or in flight.
    pub(super) fn bytes(&self) -> u64 {
        let extents = self.extents.iter().filter(|extent| extent.is_being_written());
        extents
            .filter_map(|extent| Some(extent.buf.as_ref()?.len() as u64))
            .sum()
    }

    /// Memory of the buffers of the extents.
    pub(super) fn buffer_bytes(&self) -> usize {
        let buffers = self.extents.iter().filter_map(|extent| extent.buf.as_ref());
        buffers.map(IoBuf::capacity).sum()
    }

    /// Number of writes taken that have not ended.
    pub(super) fn taken(&self) -> usize {
        let taken = |extent: &&Extent| matches!(extent.stage, Stage::Taken | Stage::Sent);
        let sent = |region: &&EndedRegion| region.stage == SummaryStage::Sent;
        let opening = self.openings.iter().filter(|(_, sent)| *sent).count();
        opening + self.extents.iter().filter(taken).count() + self.ended.iter().filter(sent).count()
    }

    fn extents_of(&self, region: u32) -> usize {
        let of_region = |extent: &&Extent| extent.region == region && extent.is_being_written();
        self.extents.iter().filter(of_region).count()
    }

    /// Whether a write of a region is queued or in flight.
    pub(super) fn is_writing(&self, region: u32) -> bool {
        let mut ended = self.ended.iter();
        self.is_opening(region)
            || self.extents_of(region) > 0
            || ended.any(|ended| ended.region == region && !ended.is_ended())
    }

    /// Takes the next write: the entry of an opened region, a summary whose extents have all ended, or the extent that was
    /// sealed first.
    pub(super) fn take(&mut self) -> Option<PendingWrite> {
        if let Some((region, sent)) = self.openings.iter_mut().find(|(_, sent)| !sent) {
            *sent = true;
            return Some(PendingWrite {
                id: WriteId::Opening { region: *region },
                bytes: None,
            });
        }
        let ready = self
            .ended
            .iter()
            .position(|ended| ended.stage == SummaryStage::Queued && self.extents_of(ended.region) == 0);
        if let Some(at) = ready {
            let ended = &mut self.ended[at];
            ended.stage = SummaryStage::Sent;
            let (region, (position, len)) = (ended.region, ended.place);
            let mut buf = IoBuf::new(len);
            ended.contents.write(&mut buf);
            return Some(PendingWrite {
                id: WriteId::Summary { region },
                bytes: Some((position, buf)),
            });
        }
        let openings = &self.openings;
        let is_opening = |region| {
            openings.iter().any(|(opening, _)| *opening == region)
                && !planted(PlantedBug::ExtentBeforeManifest)
        };
        let queued = (self.extents.iter_mut())
            .filter(|extent| extent.stage == Stage::Queued && !is_opening(extent.region));
        let extent = queued.min_by_key(|extent| extent.sequence)?;
        assert!(extent.stage == Stage::Queued);
        extent.stage = Stage::Taken;
        let bytes = extent.buf.as_ref().expect("a queued extent has its bytes");
        Some(PendingWrite {
            id: WriteId::Extent(extent.lsn),
            bytes: Some((extent.position, IoBuf::copy_of(bytes))),
        })
    }

    /// A write has succeeded or failed, or will never be sent.
    pub(super) fn end_write(&mut self, id: WriteId) {
        match id {
            WriteId::Opening { region } => {
                assert!(self.is_opening(region), "a region is opened once");
                self.openings.retain(|(opening, _)| *opening != region);
            }
            WriteId::Extent(lsn) => {
                let at = self.extents.iter().position(|extent| extent.lsn == lsn);
                let at = at.expect("an extent ends once");
                if self.extents[at].stage == Stage::Withheld {
                    self.extents[at].buf = None;
                } else {
                    self.extents.remove(at);
                }
            }
            WriteId::Summary { region } => {
                let mut ended = self.ended.iter_mut();
                let ended = ended.rfind(|ended| ended.region == region);
                let ended = ended.expect("a summary is of an ended region");
                assert!(!ended.is_ended(), "a summary ends once");
                ended.stage = SummaryStage::Ended;
            }
        }
    }

    /// The region that was closed first, if none of its writes is queued or in flight. Regions leave the list in the order
    /// of closing, regardless of the order of completion: the oldest region of a ring must be reclaimed first.
    pub(super) fn pop_ended(&mut self) -> Option<u32> {
        let region = self.ended.front()?.region;
        if self.is_writing(region) {
            return None;
        }
        self.ended.pop_front();
        Some(region)
    }

    /// Records that an extent of a closed region did not reach the device.
    pub(super) fn note_missing(&mut self, region: u32, lsn: Lsn) {
        let Some(offset) = self.get(lsn).map(|extent| extent.offset) else {
            return;
        };
        if let Some(ended) = self.ended.iter_mut().rfind(|ended| ended.region == region) {
            let missing = (lsn, offset);
            ended.missing = Some(ended.missing.map_or(missing, |first| first.min(missing)));
        }
    }

    /// Offset of the first extent of a region that is not on the device.
    pub(super) fn first_gap(&self, region: u32) -> Option<u32> {
        let under_way = (self.extents.iter())
            .filter(|extent| extent.region == region)
            .map(|extent| extent.offset);
        let missing = (self.ended.iter())
            .filter(|ended| ended.region == region)
            .filter_map(|ended| Some(ended.missing?.1));
        under_way.chain(missing).min()
    }

    /// The first position in `ring` that recovery would not reach, because an extent is in flight, or missing in a region
    /// without a summary.
    pub(super) fn first_not_landed(&self, ring: Ring) -> Option<Lsn> {
        let under_way = (self.extents.iter())
            .filter(|extent| extent.ring == ring)
            .map(|extent| extent.lsn);
        let missing = (self.ended.iter())
            .filter(|ended| ended.ring == ring && !ended.is_ended())
            .filter_map(|ended| Some(ended.missing?.0));
        under_way.chain(missing).min()
    }

    /// Whether all extents up to `upto` have ended, the summaries of the regions closed by then, and the summaries of all
    /// regions with a missing extent.
    pub(super) fn all_ended(&self, upto: Lsn) -> bool {
        let mut ended = self.ended.iter().filter(|ended| !ended.is_ended());
        self.extents.iter().all(|extent| extent.lsn > upto)
            && ended.all(|ended| ended.at > upto && ended.missing.is_none())
    }
}
