//! Neighbours to compress again: restoring and packing them, together or each alone. Pure.

use std::ops::Range;

use flaz_codec::{CodecId, Decoders};
use flaz_device::IoBuf;

use super::Shared;
use super::fragment::{self, FragmentError, Packed, Packer};
use super::keep::Survivor;
use super::log::Append;
use super::second_stage::{SecondStage, Stored};
use crate::format::extent::{FragmentIdentity, fragment_bytes};
use crate::format::group::Members;
use crate::planted::{PlantedBug, planted};

/// A block that reclaim stores again, and its fragment.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) survivor: Survivor,
    pub(super) data: Shared,
    /// Where the fragment is in `data`.
    pub(super) place: Range<usize>,
}

/// A block that was compressed again.
#[derive(Debug)]
pub(super) struct Repacked {
    codec: CodecId,
    pub(super) stored: Vec<u8>,
    plain_crc: u32,
}

impl Repacked {
    /// What stores the block, a clean one.
    pub(super) fn as_append(&self) -> Append<'_> {
        Append::Packed {
            codec: self.codec,
            stored: &self.stored,
            plain_crc: self.plain_crc,
            dirty: false,
        }
    }
}

/// Blocks that were compressed together.
#[derive(Debug)]
pub(super) struct PackedGroup {
    pub(super) blocks: Vec<Survivor>,
    pub(super) members: Members,
    pub(super) codec: CodecId,
    pub(super) stream: Vec<u8>,
    pub(super) plain_crcs: Vec<u32>,
    pub(super) saved_bytes: u64,
}

/// The dictionary that a fragment needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DictionaryAge {
    /// The current one; or there is none, and it needs none.
    Current,
    /// None, although there is one now.
    None,
    /// An earlier one. The fragment is compressed again in any case, so that the earlier dictionary's number becomes free.
    Earlier,
}

/// A member of an aligned four.
pub(super) struct Member {
    pub(super) kept: Kept,
    pub(super) identity: FragmentIdentity,
    /// The blocks in its fragment.
    pub(super) of: usize,
    /// How it is stored, unless by the second codec.
    pub(super) stored: Option<Stored>,
    /// The dictionary that its fragment needs, compared with the current one.
    pub(super) dictionary: DictionaryAge,
    /// It need not be stored again, unless in a group.
    pub(super) is_guest: bool,
}

impl Member {
    /// Whether its fragment must not stay as it is.
    pub(super) fn is_bound(&self) -> bool {
        self.dictionary == DictionaryAge::Earlier
    }
}

/// Neighbours to compress again.
pub(super) struct Set {
    pub(super) members: Vec<Member>,
    /// Together; otherwise each alone.
    pub(super) together: bool,
}

/// What a codec thread makes of a set.
pub(super) struct Outcome {
    pub(super) set: Set,
    /// The members that could not be restored.
    pub(super) damaged: Vec<(usize, FragmentError)>,
    pub(super) group: Option<PackedGroup>,
    /// The others, unless there is a group: what they take now. `None`: no less than before.
    pub(super) alone: Vec<(usize, Option<Repacked>)>,
    /// One of them, as a sample for a dictionary, if it is wanted.
    pub(super) sample: Option<IoBuf>,
}

/// Whether the members are all blocks of one group.
pub(super) fn is_whole_group(members: &[Member]) -> bool {
    members.first().is_some_and(|first| {
        let at = first.identity.location;
        let is_here = |member: &Member| member.identity.location == at;
        first.of > 1 && first.of == members.len() && members.iter().all(is_here)
    })
}

/// Without the second codec: what is left of groups.
pub(super) fn of_broken_group(four: Vec<Member>) -> Set {
    let mut members = few(four);
    members.retain(|member| member.of > 1 || member.stored == Some(Stored::Raw));
    Set {
        members,
        together: false,
    }
}

/// Members to store alone: those that the second codec may make smaller or must store again, and what is left of groups of which at most
/// half stays.
pub(super) fn alone(members: Vec<Member>) -> Vec<Member> {
    let (mut bound, others): (Vec<_>, Vec<_>) = (members.into_iter())
        .filter(|member| !member.is_guest)
        .partition(Member::is_bound);
    bound.extend(few(others));
    bound
}

/// Single blocks that the second codec may make smaller, and what is left of groups of which at most half stays.
fn few(mut members: Vec<Member>) -> Vec<Member> {
    let places: Vec<_> = members.iter().map(|member| member.identity.location).collect();
    let stay = |at| places.iter().filter(|place| **place == at).count();
    members.retain(|member| match member.of {
        1 => member.stored.is_some(),
        of => 2 * stay(member.identity.location) <= of,
    });
    members
}

/// Without high effort: a set without members that only this would make smaller, unless in a group.
pub(super) fn without_quickly(mut set: Set) -> Set {
    for member in &mut set.members {
        member.stored = member.stored.filter(|stored| *stored != Stored::Quickly);
    }
    if !set.together {
        set.members = alone(set.members);
    }
    set
}

/// Bytes of the fragments of some members, each counted once.
fn bytes_of(members: &[Member]) -> usize {
    let mut places: Vec<_> = members
        .iter()
        .map(|member| (member.identity.location, member.kept.place.len()))
        .collect();
    places.sort_unstable();
    places.dedup_by_key(|(location, _)| *location);
    places.iter().map(|(_, bytes)| bytes).sum()
}

/// Restores and verifies the members of a set, whatever they are stored with.
fn restore(decoders: &mut Decoders, members: &[Member]) -> Vec<Result<IoBuf, FragmentError>> {
    let mut restored: Vec<Option<Result<IoBuf, FragmentError>>> = members.iter().map(|_| None).collect();
    for at in 0..members.len() {
        if restored[at].is_some() {
            continue;
        }
        let here = members[at].identity.location;
        let same: Vec<usize> = (at..members.len())
            .filter(|other| members[*other].identity.location == here)
            .collect();
        let identities: Vec<_> = same.iter().map(|other| members[*other].identity).collect();
        let kept = &members[at].kept;
        let bytes = &kept.data[kept.place.clone()];
        let found = fragment::unpack_members(decoders, bytes, &identities);
        for (other, found) in same.into_iter().zip(found) {
            restored[other] = Some(match found {
                Err(FragmentError::Checksum { .. }) if planted(PlantedBug::RepackedDamaged) => {
                    fragment::unpack_unverified(decoders, bytes)
                }
                found => found,
            });
        }
    }
    restored.into_iter().flatten().collect()
}

pub(super) fn pack_set(
    packer: &mut Packer,
    decoders: &mut Decoders,
    set: Set,
    wants_sample: bool,
) -> Outcome {
    let mut outcome = Outcome {
        damaged: Vec::new(),
        group: None,
        alone: Vec::new(),
        sample: None,
        set,
    };
    let members = &outcome.set.members;
    let mut whole = Vec::new();
    for (at, restored) in restore(decoders, members).into_iter().enumerate() {
        match restored {
            Ok(block) => whole.push((at, block)),
            Err(error) => outcome.damaged.push((at, error)),
        }
    }
    if wants_sample {
        let is_sample = |at: usize| members[at].stored != Some(Stored::Raw);
        let sample = whole.iter().find(|(at, _)| is_sample(*at));
        outcome.sample = sample.map(|(_, block)| IoBuf::copy_of(block));
    }
    if outcome.set.together && whole.len() == members.len() {
        let blocks: Vec<u8> = whole.iter().flat_map(|(_, block)| block.to_vec()).collect();
        let before = bytes_of(members);
        let is_bound = members.iter().any(Member::is_bound);
        let group = packer.pack_group(&blocks).filter(|stream| {
            let now = fragment_bytes(fragment::checksums_bytes(members.len()) + stream.len());
            is_bound || SecondStage::saves_together(before, now)
        });
        outcome.group = group.map(|stream| PackedGroup {
            blocks: members.iter().map(|member| member.kept.survivor).collect(),
            members: Members::of(members.iter().map(|member| member.kept.survivor.block)).expect("some"),
            codec: packer.packed_as(),
            saved_bytes: before.saturating_sub(stream.len()) as u64,
            plain_crcs: whole.iter().map(|(_, block)| crc32c::crc32c(block)).collect(),
            stream,
        });
    }
    if outcome.group.is_none() {
        packer.next_request();
        for (at, block) in whole {
            let member = &members[at];
            let is_wanted = (member.stored.is_some() || member.is_bound()) && !member.is_guest;
            if !outcome.set.together || is_wanted {
                let in_any_case = member.of > 1 || member.is_bound();
                outcome.alone.push((at, pack_alone(packer, &block, in_any_case)));
            }
        }
    }
    outcome
}

/// Packs one block. `None`: it does not shrink, and need not be stored otherwise.
fn pack_alone(packer: &mut Packer, block: &[u8], in_any_case: bool) -> Option<Repacked> {
    let mut stored = Vec::new();
    match packer.pack(block, &mut stored) {
        Packed::Compressed { codec, plain_crc, .. } => Some(Repacked {
            codec,
            stored,
            plain_crc,
        }),
        Packed::Raw { plain_crc } if in_any_case => Some(Repacked {
            codec: CodecId::RAW,
            stored: block.to_vec(),
            plain_crc,
        }),
        Packed::SameFilled(_) | Packed::Raw { .. } => None,
    }
}
