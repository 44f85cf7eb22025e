//! A model of a block device under concurrent clients: for every sector, the writes that its contents may be from.
//!
//! The rule is that of a regular register: a read may return any write that overlapped it in time, or a write that ended
//! before it and was not overwritten by a write between the two. Time is a counter of starts and ends.

use std::cell::{Cell, RefCell};

use flaz_sim::Rng;

pub const SECTOR: u64 = 512;

#[derive(Clone, Debug)]
struct Version {
    /// Fingerprint of the sector's contents.
    print: u64,
    start: u64,
    /// `None` while in flight.
    end: Option<u64>,
    /// It ended with an error: it may have happened or not.
    doubtful: bool,
    id: u64,
}

/// The allowed contents of each sector of the device.
pub struct Model {
    sectors: RefCell<Vec<Vec<Version>>>,
    now: Cell<u64>,
    next_id: Cell<u64>,
}

/// A write in progress.
#[must_use]
pub struct Writing {
    first: usize,
    count: usize,
    id: u64,
}

pub fn print_of(sector: &[u8]) -> u64 {
    // FNV-1a over words: fast enough, and collisions do not matter to correctness of a passing test.
    sector.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

impl Model {
    pub fn new(len: u64) -> Self {
        let zero = Version {
            print: print_of(&[0; 512]),
            start: 0,
            end: Some(0),
            doubtful: false,
            id: 0,
        };
        Self {
            sectors: RefCell::new(vec![vec![zero]; (len / SECTOR) as usize]),
            now: Cell::new(1),
            next_id: Cell::new(1),
        }
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    pub fn write_starts(&self, offset: u64, data: &[u8]) -> Writing {
        assert!(offset.is_multiple_of(SECTOR) && (data.len() as u64).is_multiple_of(SECTOR));
        let (start, id) = (self.tick(), self.next_id.get());
        self.next_id.set(id + 1);
        let first = (offset / SECTOR) as usize;
        let mut sectors = self.sectors.borrow_mut();
        for (i, bytes) in data.chunks_exact(SECTOR as usize).enumerate() {
            let version = Version {
                print: print_of(bytes),
                start,
                end: None,
                doubtful: false,
                id,
            };
            sectors[first + i].push(version);
        }
        Writing {
            first,
            count: data.len() / SECTOR as usize,
            id,
        }
    }

    pub fn write_ends(&self, writing: Writing, ok: bool) {
        let end = self.tick();
        let mut sectors = self.sectors.borrow_mut();
        for sector in &mut sectors[writing.first..writing.first + writing.count] {
            if let Some(version) = sector.iter_mut().find(|version| version.id == writing.id) {
                version.end = Some(end);
                version.doubtful = !ok;
            }
        }
    }

    pub fn read_starts(&self) -> u64 {
        self.tick()
    }

    /// Checks the data returned by a read that started at `start` and ends now. `forget`: no other read is in flight, so
    /// overwritten versions can be dropped.
    pub fn read_ends(&self, start: u64, offset: u64, data: &[u8]) -> Result<(), String> {
        let sectors = self.sectors.borrow();
        let first = (offset / SECTOR) as usize;
        for (i, bytes) in data.chunks_exact(SECTOR as usize).enumerate() {
            let versions = &sectors[first + i];
            let print = print_of(bytes);
            let allowed = versions
                .iter()
                .any(|v| v.print == print && !overwritten(versions, v, start));
            if !allowed {
                let stale = versions.iter().find(|v| v.print == print);
                return Err(format!(
                    "sector {} read from {start} on returned {}, allowed were {:?}",
                    first + i,
                    stale.map_or("what nobody wrote".to_owned(), |v| format!(
                        "the overwritten {v:?}"
                    )),
                    versions
                        .iter()
                        .filter(|v| !overwritten(versions, v, start))
                        .collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    /// Drops versions that no read starting at `oldest` or later may return.
    pub fn forget_before(&self, oldest: u64) {
        for versions in self.sectors.borrow_mut().iter_mut() {
            if versions.len() > 8 {
                let all = versions.clone();
                versions.retain(|v| !overwritten(&all, v, oldest));
            }
        }
    }
}

/// Whether a write that began after `version` had ended, and ended before `start`, lies between the two.
fn overwritten(versions: &[Version], version: &Version, start: u64) -> bool {
    let Some(end) = version.end else { return false };
    versions.iter().any(|other| {
        !other.doubtful && other.start > end && other.end.is_some_and(|other_end| other_end < start)
    })
}

/// Data of any compressibility, different from all other data of the same generator.
pub fn some_data(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    for block in data.chunks_mut(4096) {
        match rng.below(8) {
            0 => block.fill(rng.below(256) as u8),
            1 | 2 => rng.fill(block),
            kind => {
                // Partly random bytes, the rest repeats: ratios from about 1.2 to 10.
                let random = block.len() * kind as usize / 10;
                rng.fill(&mut block[..random]);
                let tail = rng.next_u64().to_le_bytes();
                for (i, byte) in block[random..].iter_mut().enumerate() {
                    *byte = tail[i % 8];
                }
            }
        }
    }
    data
}
