//! Contents of a disk outside of any simulation, and the choice of what survives a power cut.

use std::fmt;

use super::config::DiskConfig;
use super::contents::Contents;
use super::volatile::{Medium, Unflushed, VolatileWrite};
use crate::rng::{Rng, splitmix};

/// Contents of a disk at one moment. Cheap to clone; can be moved to another thread or simulation.
#[derive(Clone)]
pub struct DiskImage {
    config: DiskConfig,
    contents: Contents,
    /// After the death of a process: the contents that are not durable.
    unflushed: Option<Unflushed>,
}

impl DiskImage {
    /// The contents of a new disk.
    ///
    /// # Panics
    /// If the configuration is inconsistent.
    #[must_use]
    pub fn new(config: DiskConfig) -> Self {
        let alignment = config.alignment;
        assert!(
            alignment.is_power_of_two() && alignment >= 512,
            "alignment {alignment}: expected a power of two, 512 at least"
        );
        assert!(
            config.len.is_multiple_of(u64::from(alignment)),
            "size {} is not a multiple of the alignment {alignment}",
            config.len
        );
        let contents = Contents::new(config.background.clone());
        Self::from_parts(config, contents)
    }

    pub(super) fn from_parts(config: DiskConfig, contents: Contents) -> Self {
        Self {
            config,
            contents,
            unflushed: None,
        }
    }

    pub(super) fn medium(&self) -> Medium {
        let cache_bytes_max = self.config.write_cache_bytes_max;
        Medium::restored(self.contents.clone(), self.unflushed.clone(), cache_bytes_max)
    }

    /// The same contents, all durable, on a disk without a volatile write cache: faster if no power cut follows.
    #[must_use]
    pub fn without_write_cache(&self) -> Self {
        let config = DiskConfig {
            write_cache_bytes_max: 0,
            ..self.config.clone()
        };
        Self::from_parts(config, self.contents.clone())
    }

    /// The configuration of its disk.
    #[must_use]
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.config.len
    }

    /// Whether the size is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.config.len == 0
    }

    /// `len` bytes at `offset`.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.contents.read(offset, &mut out);
        out
    }

    /// Changes bytes durably, at any alignment.
    ///
    /// # Panics
    /// If the range exceeds the image.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.config.len),
            "write over the end of the image"
        );
        self.contents.write(offset, bytes);
        if let Some(unflushed) = &mut self.unflushed {
            unflushed.write(offset, bytes);
        }
    }
}

impl fmt::Debug for DiskImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskImage({} bytes)", self.config.len)
    }
}

/// A disk at one moment of a simulation, with its volatile writes and those in flight. All images that a crash at this
/// moment can leave can be created from it, later and on any thread. Cheap to create and to clone.
#[derive(Clone)]
pub struct DiskMoment {
    config: DiskConfig,
    medium: Medium,
}

impl DiskMoment {
    pub(super) fn new(config: DiskConfig, medium: Medium) -> Self {
        Self { config, medium }
    }

    /// The writes that a power cut may undo, in order of issue.
    #[must_use]
    pub fn volatile_writes(&self) -> Vec<VolatileWrite> {
        self.medium.volatile_writes()
    }

    /// The writes that the death of the process may cut short, in order of issue: those in flight, as far as readers
    /// have not seen them yet.
    #[must_use]
    pub fn unlanded_writes(&self) -> Vec<VolatileWrite> {
        self.medium.unlanded_writes()
    }

    /// The image after a power cut. `survives` is called with the index of a volatile write (as in
    /// [`DiskMoment::volatile_writes`]) and the number of a sector of the disk, and returns whether it survives.
    #[must_use]
    pub fn cut(&self, survives: impl FnMut(usize, u64) -> bool) -> DiskImage {
        DiskImage::from_parts(self.config.clone(), self.medium.crash(survives))
    }

    /// The image after the death of the process: everything that readers could see, and of the writes in flight (as in
    /// [`DiskMoment::unlanded_writes`]) the sectors that `survives` chooses. Unflushed data stays unflushed: a power
    /// cut of a disk created from this image may undo it.
    #[must_use]
    pub fn kill(&self, survives: impl FnMut(usize, u64) -> bool) -> DiskImage {
        let (contents, unflushed) = self.medium.kill(survives);
        DiskImage {
            config: self.config.clone(),
            contents,
            unflushed,
        }
    }
}

impl fmt::Debug for DiskMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskMoment({} bytes)", self.config.len)
    }
}

/// Which volatile writes survive a power cut. Indices are those of
/// [`SimDisk::volatile_writes`](super::SimDisk::volatile_writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPlan {
    /// All of them.
    Everything,
    /// None of them.
    Nothing,
    /// All except this one.
    Without(usize),
    /// Only this one.
    Only(usize),
    /// Those whose bit is set; from the 65th on, none.
    Subset(u64),
    /// As the seed decides: each write whole (1/4), not at all (1/4), or each of its sectors with probability 1/2.
    Random(u64),
}

impl CrashPlan {
    /// Useful plans for `volatile` volatile writes: all, none, each missing, each alone, all subsets of up to 8 writes,
    /// and otherwise `random` seeded subsets with torn sectors.
    #[must_use]
    pub fn explore(volatile: usize, random: u64, seed: u64) -> Vec<Self> {
        let mut plans = vec![Self::Nothing];
        if volatile == 0 {
            return plans;
        }
        if volatile <= 8 {
            plans.extend((1..1 << volatile).map(Self::Subset));
        } else {
            plans.push(Self::Everything);
            plans.extend((0..volatile).flat_map(|index| [Self::Without(index), Self::Only(index)]));
        }
        plans.extend((0..random).map(|n| Self::Random(splitmix(seed ^ splitmix(n)))));
        plans
    }

    /// The choice for (index of a write, sector), for [`DiskMoment::cut`] and [`DiskMoment::kill`].
    pub fn chooser(&self) -> impl FnMut(usize, u64) -> bool + use<> {
        let plan = *self;
        let mut rng = Rng::new(match plan {
            Self::Random(seed) => seed,
            _ => 0,
        });
        move |write, _sector| match plan {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Without(index) => write != index,
            Self::Only(index) => write == index,
            Self::Subset(bits) => write < 64 && bits >> write & 1 == 1,
            Self::Random(seed) => match splitmix(seed ^ write as u64) % 4 {
                0 => true,
                1 => false,
                _ => rng.coin(),
            },
        }
    }
}
