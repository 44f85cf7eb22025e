//! The share of a cache device that a volume has, beside other volumes.
//!
//! A volume takes space when it needs it, as long as there is any. When all is in use, the volume that would gain more by it gets space
//! of another one. The measure is the volume's *need*: hits on the policy's ghost (blocks that left the cache a short time ago) for
//! each MiB of its cache, which is about what one more MiB would serve. What one MiB less would cost is not less than that in a
//! cache whose blocks are ordered by use.
//!
//! The process of the volume that needs space asks the others, the one with the smallest need first, through their control sockets. One
//! that gives space back takes none for a while, and no more than it was left with until it runs short itself.
//!
//! Invariants: a volume does not go below its guarantee, nor below what its shards and its dirty blocks need, for the sake of another
//! one; space goes to a volume only if its need is clearly larger, so that it does not go to and fro.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use flaz_control::place::Places;
use flaz_control::report::ShareReport;
use flaz_control::size::HumanBytes;
use flaz_control::{Client, Reply, Request};
use flaz_device::Device;
use flaz_engine::cache::CacheError;
use flaz_engine::cache::resize::Resizing;
use flaz_engine::shard::Shrinking;
use flaz_pool::{PoolBudget, PoolSuperblock, VolumeEntry};
use flaz_runtime::{Config, Runtime};
use uuid::Uuid;

use super::Daemon;
use super::make_room::Asked;
use crate::error::HostError;
use crate::order::{ANSWER_WITHIN, Order};
use crate::pool::shrink::call_off_abandoned;
use crate::pool::{HostPool, Member, Place};
use crate::safety::Access;

/// How long the process of another volume has to answer.
const PEER_WITHIN: Duration = Duration::from_secs(2);
/// How long another process may keep this one from looking at the pool.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// How long a volume that gave space back takes none.
const PAUSE: Duration = Duration::from_secs(60);
/// Space goes to another volume in portions of this share of what the giver has.
const PORTION: u32 = 8;
/// Another volume's need is clearly larger from this multiple of the own one, and this difference, on.
const RATIO: u64 = 2;
const DIFFERENCE: u64 = 10;

/// What is known of a volume's share. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// At the last look; `None` before the first.
    look: Option<Look>,
    /// Ghost hits since the start, at the last look.
    ghost_hits: u64,
    /// Requests for space that found none, at the last look.
    shortages: u64,
    need: u64,
    /// When space was last given to another volume.
    gave: Option<Instant>,
    /// The last request of a shrink of the device.
    pub(super) asked: Option<Asked>,
}

/// The superblock of the pool, as far as it concerns one volume.
#[derive(Clone, Debug)]
struct Look {
    entry: VolumeEntry,
    others: Vec<Uuid>,
    chunk_bytes: u64,
    /// Those that this volume may take.
    free_chunks: u32,
    /// The device becomes smaller.
    shrinks: bool,
    budget: Option<PoolBudget>,
}

impl Look {
    fn at(member: &Member) -> Result<Self, HostError> {
        let number = member.entry.number;
        let look = async move |pool: HostPool| Ok((pool.superblock(), pool.free_chunks_for(number)));
        let (superblock, free_chunks) = member.client.ask_within(LOOK_WITHIN, Access::Read, look)?;
        let PoolSuperblock {
            layout,
            volumes,
            shrink_to,
            budget,
            ..
        } = superblock;
        let (own, others): (Vec<_>, Vec<_>) = volumes.into_iter().partition(|entry| entry.number == number);
        let entry = own.into_iter().next().ok_or("the volume was removed")?;
        Ok(Self {
            entry,
            others: others.into_iter().map(|entry| entry.uuid).collect(),
            chunk_bytes: layout.chunk_bytes,
            free_chunks,
            shrinks: shrink_to.is_some(),
            budget,
        })
    }
}

/// Ghost hits a day for each MiB.
fn need_of(ghost_hits: u64, span: Duration, held_bytes: u64) -> u64 {
    let days = span.as_secs_f64() / 86_400.0;
    let mib = (held_bytes as f64 / f64::from(1 << 20)).max(1.0);
    // A saturating conversion.
    (ghost_hits as f64 / days.max(1e-9) / mib) as u64
}

/// Whether space should go to a volume with the need `theirs` from one with the need `own`.
fn is_clearly_larger(theirs: u64, own: u64) -> bool {
    theirs >= own.saturating_mul(RATIO).saturating_add(DIFFERENCE)
}

/// How many of its `held` chunks a volume gives at once, if it keeps `least`.
fn portion(held: u32, least: u32) -> u32 {
    (held / PORTION).max(1).min(held.saturating_sub(least))
}

impl Daemon {
    /// The share of the volume, for a report.
    pub(super) fn share_report(&self) -> Option<ShareReport> {
        let member = self.held.member.as_ref()?;
        let known = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let map = member.part.map();
        let bytes = |chunks: u32| u64::from(chunks) * map.chunk_bytes();
        let entry = known.look.as_ref().map_or(&member.entry, |look| &look.entry);
        Some(ShareReport {
            volume: entry.name.clone(),
            held_bytes: bytes(map.chunks()),
            at_least_bytes: bytes(entry.at_least),
            at_most_bytes: (entry.at_most > 0).then(|| bytes(entry.at_most)),
            free_bytes: bytes(known.look.as_ref().map_or(0, |look| look.free_chunks)),
            need: known.need,
            write_budget: member.credit.report(),
        })
    }

    /// Whether the cache is that of a volume, for which [`Daemon::keep_balance`] is to be called from time to time, on a thread of its
    /// own: it waits for other processes.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.held.member.is_some()
    }

    /// Looks at the share from time to time: `span` has passed since the last call. Errors are logged.
    pub fn keep_balance(&self, span: Duration) {
        if let Err(error) = self.balance(span)
            && !self.is_stopping()
        {
            tracing::warn!("the share of the cache device is not changed: {error}");
        }
    }

    /// Looks at the share.
    ///
    /// # Errors
    /// The pool cannot be read, or a thread does not answer.
    pub(super) fn balance(&self, span: Duration) -> Result<(), HostError> {
        let Some(member) = &self.held.member else {
            return Ok(());
        };
        let look = Look::at(member)?;
        // The shards say what they have written.
        let parts = self.threads.ask(ANSWER_WITHIN, Order::Stats)?;
        member.credit.renew(&member.client, look.budget)?;
        if look.shrinks {
            call_off_abandoned(&member.client, &Place::of(&self.spec.cache).device)?;
        }
        let ghost_hits = parts.iter().map(|part| part.total.counts.ghost_hits).sum();
        let map = member.part.map();
        let held = map.chunks();
        let mut known = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let hits = std::mem::replace(&mut known.ghost_hits, ghost_hits);
        let recent = need_of(
            ghost_hits.saturating_sub(hits),
            span,
            u64::from(held) * look.chunk_bytes,
        );
        known.need = match known.look {
            // Bursts count less than what lasts.
            Some(_) => known.need / 2 + recent / 2,
            None => recent,
        };
        let shortages = map.shortages();
        let is_short = shortages > std::mem::replace(&mut known.shortages, shortages);
        known.look = Some(look.clone());
        let entry = &look.entry;
        let need = if held < entry.guarantee() {
            u64::MAX
        } else {
            known.need
        };
        let gave = known.gave;
        drop(known);

        self.follow_growth(member)?;
        let most = if entry.at_most > 0 {
            entry.at_most
        } else {
            u32::MAX
        };
        if self.go_on_giving()?.is_some() {
            return Ok(());
        }
        if held > most {
            map.set_limit(most);
            self.begin_to_give(held - most)?;
            return Ok(());
        }
        if !is_short || held >= most || gave.is_some_and(|at| at.elapsed() < PAUSE) {
            return Ok(());
        }
        if look.free_chunks > 0 {
            map.set_limit(u32::MAX);
            return Ok(());
        }
        let wanted = u64::from(most - held).saturating_mul(look.chunk_bytes);
        let got = ask_peers(&look, wanted, need);
        if got > 0 {
            tracing::info!("{} of the cache device go to this volume", HumanBytes(got));
            let chunks = (got / look.chunk_bytes) as u32;
            map.set_limit(map.limit().max(held.saturating_add(chunks)));
        }
        Ok(())
    }

    /// Uses what the device has become longer.
    fn follow_growth(&self, member: &Member) -> Result<(), HostError> {
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, then) = (member.part.len(), lifecycle.superblock().geometry.device_len);
        if now <= then || self.is_stopping() {
            return Ok(());
        }
        let around = self.devices.surroundings();
        let grow = lifecycle.begin_resize(&around, &self.threads, now);
        match Runtime::new(Config::default())?.block_on(grow) {
            // The layout has no room for more.
            Ok(_) | Err(CacheError::Resize(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// How far space that is being given back is; `None`: none is.
    pub(super) fn go_on_giving(&self) -> Result<Option<Shrinking>, HostError> {
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if !lifecycle.is_giving_back() {
            return Ok(None);
        }
        if self.is_stopping() {
            return Err("the daemon is stopping".into());
        }
        let going = lifecycle.continue_give_back(&self.threads);
        Ok(match Runtime::new(Config::default())?.block_on(going)? {
            Resizing::Shrinking(state) => Some(state),
            Resizing::Done => None,
        })
    }

    /// Begins to give chunks back. Returns whether any will be free.
    pub(super) fn begin_to_give(&self, chunks: u32) -> Result<bool, HostError> {
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopping() {
            return Err("the daemon is stopping".into());
        }
        let giving = lifecycle.begin_give_back(&self.threads, chunks.into());
        let begun = Runtime::new(Config::default())?.block_on(giving)?;
        Ok(begun != Resizing::Done)
    }

    /// Gives space back for another volume, whose need is `need`, if it is clearly larger than the own one. Returns how much, in bytes;
    /// it takes a while until it is free.
    ///
    /// # Errors
    /// The cache is not that of a volume, or cannot give anything back now.
    pub fn give_space(&self, bytes: u64, need: u64) -> Result<u64, HostError> {
        let member = self.held.member.as_ref();
        let member = member.ok_or("the cache shares its device with no other volume")?;
        if self.is_stopping() {
            // A stop may hold `lifecycle` for a long time, and status reports need `share`.
            return Ok(0);
        }
        let mut known = self.share.lock().unwrap_or_else(PoisonError::into_inner);
        let look = known.look.as_ref().ok_or("the volume has just started")?;
        let (map, chunk_bytes) = (member.part.map(), look.chunk_bytes);
        let held = map.chunks();
        let wanted = u32::try_from(bytes / chunk_bytes).unwrap_or(u32::MAX);
        let chunks = wanted.min(portion(held, look.entry.guarantee()));
        if chunks == 0 || !is_clearly_larger(need, known.need) || self.go_on_giving()?.is_some() {
            return Ok(0);
        }
        // Before: nothing that is given back is taken again.
        let limit = map.limit();
        map.set_limit(held - chunks);
        if !self.begin_to_give(chunks).inspect_err(|_| map.set_limit(limit))? {
            map.set_limit(limit);
            return Ok(0);
        }
        known.gave = Some(Instant::now());
        let bytes = u64::from(chunks) * chunk_bytes;
        tracing::info!("{} of the cache device go to another volume", HumanBytes(bytes));
        Ok(bytes)
    }
}

/// Asks the processes of other volumes for space, the one that needs it least first. Returns the bytes that one gives.
fn ask_peers(look: &Look, bytes: u64, need: u64) -> u64 {
    let mut peers: Vec<(u64, PathBuf)> = look.others.iter().filter_map(need_of_peer).collect();
    peers.sort();
    peers.retain(|(theirs, _)| is_clearly_larger(need, *theirs));
    peers
        .into_iter()
        .find_map(|(_, socket)| {
            let asked = Client::connect(&socket, None)
                .and_then(|mut peer| peer.ask(&Request::GiveSpace { bytes, need }, PEER_WITHIN));
            match asked {
                Ok(Reply::Gives { bytes: bytes @ 1.. }) => Some(bytes),
                _ => None,
            }
        })
        .unwrap_or(0)
}

/// The need of the volume with this cache, and the control socket of its process, if it is served.
fn need_of_peer(uuid: &Uuid) -> Option<(u64, PathBuf)> {
    Places::of_process()
        .control_candidates(uuid, None)
        .into_iter()
        .find_map(|socket| {
            let reply = Client::connect(&socket, None)
                .and_then(|mut peer| peer.ask(&Request::Status {}, PEER_WITHIN));
            match reply {
                Ok(Reply::Status(report)) => Some((report.live?.share?.need, socket)),
                _ => None,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_is_ghost_hits_for_each_part_of_the_cache() {
        let second = Duration::from_secs(1);
        assert_eq!(need_of(1, second, 1 << 20), 86_400);
        assert_eq!(need_of(1, second, 1 << 30), 84);
        assert_eq!(need_of(0, second, 1 << 30), 0);
        assert!(need_of(u64::MAX, Duration::ZERO, 0) > 1 << 60, "no overflow");
    }

    /// Two volumes never give to each other in turns.
    #[test]
    fn space_does_not_go_to_and_fro() {
        for own in [0, 1, 9, 10, 11, 1000, u64::MAX / 2, u64::MAX - 1] {
            for theirs in [0, 1, 9, 10, 11, 1000, 5000, u64::MAX - 1] {
                assert!(!(is_clearly_larger(theirs, own) && is_clearly_larger(own, theirs)));
            }
            assert!(is_clearly_larger(u64::MAX, own), "below its guarantee");
        }
        assert!(!is_clearly_larger(11, 10) && is_clearly_larger(30, 10));
    }

    #[test]
    fn a_guarantee_is_kept() {
        assert_eq!([portion(64, 0), portion(5, 0), portion(0, 0)], [8, 1, 0]);
        assert_eq!([portion(64, 60), portion(64, 64), portion(64, 70)], [4, 0, 0]);
    }
}
