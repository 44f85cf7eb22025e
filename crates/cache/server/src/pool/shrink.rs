//! A shared cache device that becomes smaller. (`flaz_pool::shrink` says how a part of a volume moves.)
//!
//! The command asks the process of each volume to give back what it has too much, and then to move what lies beyond the new end. It
//! does the same for volumes that are not served, while it holds them. If it fails, the device keeps its size; if it is killed, it
//! can be repeated, or the process of any volume cancels the shrink.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use flaz_control::place::Places;
use flaz_control::report::{SharedShrinkReport, ShrinkProgress};
use flaz_control::size::HumanBytes;
use flaz_control::{Client, ControlError, Reply, Request};
use flaz_device::Env;
use flaz_pool::{PoolError, PoolSuperblock, VolumeEntry};
use flaz_runtime::Rt;
use flaz_runtime::file::{ByteLock, is_byte_locked, lock_byte};

use super::client::{HostPool, PoolClient};
use super::member::{hold, open_file};
use super::place::Place;
use super::{RESIZE, volume_byte};
use crate::daemon::Daemon;
use crate::error::HostError;
use crate::safety::{Access, Claim};

/// How long one request moves chunks.
const STEP: Duration = Duration::from_millis(200);
/// Interval between two rounds.
const LOOK: Duration = Duration::from_millis(100);
/// How long a move waits for writes in flight to its part. New ones wait as long.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a move waits for other processes that change the pool.
const MOVE_WITHIN: Duration = Duration::from_secs(30);
/// How long the process of a volume has for a step.
const PEER_WITHIN: Duration = Duration::from_secs(120);
/// The shrink fails after so long without progress.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// What the command does for a shrink.
pub struct Help<'a> {
    /// Opens the cache of a volume that is not served, and stops it after the function.
    #[expect(clippy::type_complexity, reason = "a function that takes a function")]
    pub with_idle: &'a dyn Fn(&Path, &dyn Fn(&Daemon) -> Result<(), HostError>) -> Result<(), HostError>,
    /// Shows how far it is.
    pub show: &'a mut dyn FnMut(&ShrinkProgress),
}

/// A volume, as the table has it.
struct Volume {
    entry: VolumeEntry,
    held: u32,
    /// Chunks beyond the end.
    beyond: u32,
}

/// A shrink under way.
struct Shrink<'a> {
    device: &'a Path,
    claim: &'a Claim,
    client: &'a PoolClient,
    chunk_bytes: u64,
    /// What each volume keeps.
    keep: BTreeMap<u32, u32>,
    /// Why a volume did not do its part in the last round.
    waits_for: Option<String>,
}

/// Why a volume did not do its part.
enum Trouble {
    /// It may do it in the next round.
    Wait(HostError),
    /// It cannot.
    Fatal(HostError),
}

impl From<HostError> for Trouble {
    fn from(error: HostError) -> Self {
        Self::Wait(error)
    }
}

/// Shares `chunks` chunks among volumes that have more together: none gets less than it is guaranteed, and those that have more than
/// that give in proportion to it.
fn shares(volumes: &[(u32, u32, u32)], chunks: u32) -> BTreeMap<u32, u32> {
    let sum = |part: &dyn Fn(u32, u32) -> u32| -> u64 {
        let parts = volumes
            .iter()
            .map(|(_, guarantee, held)| u64::from(part(*guarantee, *held)));
        parts.sum()
    };
    let spare = sum(&|guarantee, held| held.saturating_sub(guarantee));
    let needed = sum(&|guarantee, held| held.max(guarantee)).saturating_sub(chunks.into());
    let keep = |(number, guarantee, held): &(u32, u32, u32)| {
        let own = u64::from(held.saturating_sub(*guarantee));
        let give = (own * needed).div_ceil(spare.max(1)).min(own) as u32;
        (*number, held - give)
    };
    volumes.iter().map(keep).collect()
}

/// Moves one part of a volume that this process holds, if the volumes have given enough back. Returns how many are left, and whether
/// one was moved.
///
/// # Errors
/// The device fails, or another process keeps the pool locked.
pub(crate) fn move_next(client: &PoolClient, number: u32) -> Result<(u64, bool), HostError> {
    client.ask_within(MOVE_WITHIN, Access::ReadWrite, async move |pool: HostPool| {
        let parts = pool.parts_beyond(number);
        let left = parts.len() as u64;
        let Some(part) = parts.first().filter(|_| pool.chunks_too_many() == 0) else {
            return Ok((left, false));
        };
        match pool.move_part(number, *part, Rt.sleep(PATIENCE)).await {
            Ok(()) => Ok((left - 1, true)),
            Err(PoolError::Moving { .. } | PoolError::NoChunk { .. }) => Ok((left, false)),
            Err(error) => Err(error.into()),
        }
    })
}

/// Moves parts of a volume that this process holds, for a short time, or until `ends`. Returns how many are left.
///
/// # Errors
/// As [`move_next`].
pub(crate) fn move_some(client: &PoolClient, number: u32, ends: impl Fn() -> bool) -> Result<u64, HostError> {
    let begun = Instant::now();
    loop {
        let (left, moved) = move_next(client, number)?;
        if left == 0 || !moved || begun.elapsed() > STEP || ends() {
            return Ok(left);
        }
    }
}

/// Calls a shrink off whose command has gone.
///
/// # Errors
/// The device fails, or another process keeps the pool locked.
pub(crate) fn call_off_abandoned(client: &PoolClient, device: &Path) -> Result<(), HostError> {
    let file = File::open(device)?;
    if is_byte_locked(&file, RESIZE, ByteLock::Shared)? {
        return Ok(());
    }
    let called_off = client.ask_within(MOVE_WITHIN, Access::ReadWrite, async move |pool: HostPool| {
        // The next command holds it before it changes the pool.
        let abandoned =
            pool.superblock().shrink_to.is_some() && !is_byte_locked(&file, RESIZE, ByteLock::Shared)?;
        if abandoned {
            pool.cancel_shrink().await?;
        }
        Ok(abandoned)
    })?;
    if called_off {
        tracing::warn!("flaz resize was interrupted: the cache device keeps its size");
    }
    Ok(())
}

/// Shrinks the pool to `chunks` chunks.
///
/// # Errors
/// The volumes need more, or one does not do its part, or the device fails: the pool has its old size.
pub(super) fn shrink(
    claim: &Claim,
    client: &PoolClient,
    chunks: u32,
    help: &mut Help<'_>,
) -> Result<(), HostError> {
    let (superblock, held) = client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
        pool.begin_shrink(chunks).await?;
        let superblock = pool.superblock();
        let held = superblock
            .volumes
            .iter()
            .map(|volume| pool.chunks_of(volume.number));
        let held: Vec<u32> = held.collect();
        Ok((superblock, held))
    })?;
    let PoolSuperblock { layout, volumes, .. } = superblock;
    let volumes: Vec<_> = volumes
        .iter()
        .zip(held)
        .map(|(volume, held)| (volume.number, volume.guarantee(), held))
        .collect();
    let mut shrink = Shrink {
        device: claim.path(),
        claim,
        client,
        chunk_bytes: layout.chunk_bytes,
        keep: shares(&volumes, chunks),
        waits_for: None,
    };
    let done = shrink.finish(help);
    if done.is_err() {
        let called_off = client.ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
            Ok(pool.cancel_shrink().await?)
        });
        if let Err(error) = called_off {
            tracing::warn!("the shrink cannot be cancelled: {error}; repeat `flaz resize`");
        }
    }
    done
}

impl Shrink<'_> {
    fn finish(&mut self, help: &mut Help<'_>) -> Result<(), HostError> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            let progress = self.round(help)?;
            (help.show)(&progress);
            let left = progress.regions_left.saturating_add(progress.dirty_bytes_left);
            if left < least {
                (least, since) = (left, Instant::now());
            }
            if left == 0 {
                let ended = self
                    .client
                    .ask_blocking(Access::ReadWrite, async move |pool: HostPool| {
                        Ok(pool.end_shrink().await?)
                    });
                if ended? {
                    return Ok(());
                }
            }
            if since.elapsed() > STALLED_AFTER {
                let why = self
                    .waits_for
                    .take()
                    .unwrap_or_else(|| "the volumes are busy".to_owned());
                return Err(format!("{} keeps its size: {why}", self.device.display()).into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// One step of each volume. Returns what is left.
    fn round(&mut self, help: &Help<'_>) -> Result<ShrinkProgress, HostError> {
        let (volumes, too_many) = self.client.ask_blocking(Access::Read, async |pool: HostPool| {
            let volumes = pool.superblock().volumes.into_iter().map(|entry| Volume {
                held: pool.chunks_of(entry.number),
                beyond: pool.parts_beyond(entry.number).len() as u32,
                entry,
            });
            Ok((volumes.collect::<Vec<_>>(), pool.chunks_too_many()))
        })?;
        self.waits_for = None;
        let mut sum = ShrinkProgress {
            regions_left: 0,
            dirty_bytes_left: 0,
        };
        for volume in volumes {
            let keep = self.keep.get(&volume.entry.number).copied();
            let give = match (too_many, keep) {
                (1.., Some(keep)) => volume.held.saturating_sub(keep),
                _ => 0,
            };
            if give == 0 && volume.beyond == 0 {
                continue;
            }
            let stepped = match self.step(&volume, give, help) {
                Ok(stepped) => stepped,
                Err(Trouble::Fatal(error)) => return Err(error),
                Err(Trouble::Wait(error)) => {
                    self.waits_for = Some(format!("volume {}: {error}", volume.entry.name));
                    ShrinkProgress {
                        regions_left: (give + volume.beyond).into(),
                        dirty_bytes_left: 0,
                    }
                }
            };
            sum.regions_left += stepped.regions_left;
            sum.dirty_bytes_left += stepped.dirty_bytes_left;
        }
        Ok(sum)
    }

    /// A volume gives chunks back, and moves those that lie beyond the end.
    fn step(&self, volume: &Volume, give: u32, help: &Help<'_>) -> Result<ShrinkProgress, Trouble> {
        let keep_bytes = match give {
            0 => u64::MAX,
            _ => u64::from(volume.held - give) * self.chunk_bytes,
        };
        match ask(&volume.entry, keep_bytes)? {
            Some(progress) => Ok(progress),
            None if give > 0 => {
                let path = Place::path_of(self.device, &volume.entry.name);
                let give = |daemon: &Daemon| {
                    while daemon.make_room(keep_bytes)?.regions_left > u64::from(volume.beyond) {
                        std::thread::sleep(LOOK);
                    }
                    Ok(())
                };
                (help.with_idle)(&path, &give).map_err(|error| {
                    let text = format!("volume {} cannot give space back: {error}", volume.entry.name);
                    Trouble::Fatal(text.into())
                })?;
                Ok(ShrinkProgress {
                    regions_left: volume.beyond.into(),
                    dirty_bytes_left: 0,
                })
            }
            None => Ok(ShrinkProgress {
                regions_left: self.move_idle(&volume.entry)?,
                dirty_bytes_left: 0,
            }),
        }
    }

    /// Moves parts of a volume that is not served. Returns how many are left.
    fn move_idle(&self, entry: &VolumeEntry) -> Result<u64, HostError> {
        let (file, number) = (self.claim.file(), entry.number);
        hold(self.device, file, &entry.name, number, Access::ReadWrite)?;
        // Waits for the requests of a process that was killed.
        let moved = open_file(self.device, number, Access::ReadWrite)
            .and_then(|_requests| move_some(self.client, number, || false));
        lock_byte(file, volume_byte(number), ByteLock::Released)?;
        moved
    }
}

/// Asks the process of a volume for a step. `None`: there is none.
fn ask(entry: &VolumeEntry, keep_bytes: u64) -> Result<Option<ShrinkProgress>, HostError> {
    for socket in Places::of_process().control_candidates(&entry.uuid, None) {
        let mut peer = match Client::connect(&socket, None) {
            Ok(peer) => peer,
            Err(ControlError::NotRunning { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        return match peer.ask(&Request::MakeRoom { keep_bytes }, PEER_WITHIN)? {
            Reply::Shrinking(progress) => Ok(Some(progress)),
            _ => Err(peer.unexpected("make-room").into()),
        };
    }
    Ok(None)
}

/// What is left of a shrink.
pub(super) fn left(pool: &HostPool) -> Option<SharedShrinkReport> {
    let superblock = pool.superblock();
    let bytes = |chunks: u32| u64::from(chunks) * superblock.layout.chunk_bytes;
    let beyond = superblock
        .volumes
        .iter()
        .map(|volume| pool.parts_beyond(volume.number).len());
    Some(SharedShrinkReport {
        size_bytes: bytes(superblock.shrink_to?),
        left_bytes: bytes(beyond.sum::<usize>() as u32),
    })
}

/// The size that cannot be, in words.
pub(super) fn refuse_small(
    device: &Path,
    superblock: &PoolSuperblock,
    wanted: u64,
) -> Result<u32, HostError> {
    let layout = superblock.layout;
    let (chunks, least) = (layout.chunks_of(wanted), superblock.chunks_least());
    if chunks >= least {
        return Ok(chunks);
    }
    let bytes = layout.chunk_offset(least);
    Err(format!(
        "{}: expected at least {} ({bytes} bytes), which its volumes need or are guaranteed, or a sixteenth of its size when it was \
         created; found {wanted} bytes; lower --at-least with `flaz volume set`, or remove a volume",
        device.display(),
        HumanBytes(bytes)
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_give_in_proportion_and_keep_their_guarantee() {
        let keep = |volumes: &[(u32, u32)], chunks: u32| -> Vec<u32> {
            let volumes: Vec<_> = (1..)
                .zip(volumes)
                .map(|(number, (least, held))| (number, *least, *held))
                .collect();
            shares(&volumes, chunks).into_values().collect()
        };
        assert_eq!(keep(&[(10, 50), (10, 20)], 100), [50, 20], "they fit");
        assert_eq!(keep(&[(10, 50), (10, 20)], 45), [30, 15]);
        assert_eq!(
            keep(&[(10, 50), (10, 20)], 20),
            [10, 10],
            "what they are guaranteed"
        );
        // One has not taken what it is guaranteed: that stays free.
        assert_eq!(keep(&[(10, 50), (30, 5)], 60), [30, 5]);
        for chunks in 17..90 {
            let volumes = [(3, 40), (9, 9), (5, 33), (0, 7)];
            let kept = keep(&volumes, chunks);
            assert!(kept.iter().sum::<u32>() <= chunks, "{chunks}: {kept:?}");
            assert!(
                kept.iter().zip(volumes).all(|(kept, (least, _))| *kept >= least),
                "{kept:?}"
            );
        }
    }
}
