//! The flash translation layer: which block of the flash has which unit of the host.
//!
//! A *block* here is one block of every plane, programmed and erased together. Units are packed into the open block back to
//! back, in granules of 1/64 of a unit; what remains at its end is lost. When fewer than two blocks are free, the block with
//! the fewest live granules is cleaned (greedy): its live units are appended to the open block. A free block with the fewest
//! erases is opened next. There are no contents, and no randomness: the same writes give the same state.
//!
//! Invariants, which [`Ftl::check`] checks: the live granules of a block are those of the units that are in it; the list of a
//! block has every unit that is in it; no block has more granules than fit; a block is open, free or full.
//!
//! A unit may be twice in the list of a block, if it was written again while the block was open. Cleaning moves it once,
//! because after that it is in another block.

/// Granules of a unit that is stored uncompressed.
pub const GRANULES_PER_UNIT: u8 = 64;
/// Blocks that are free before a block is cleaned.
const FREE_MIN: usize = 2;
/// Blocks that the host's data may not fill: those that are free, and the open one.
const SPARE_BLOCKS: u64 = FREE_MIN as u64 + 1;

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    units: u32,
    blocks: u32,
    block_granules: u32,
}

impl Geometry {
    /// `units` of the host on `blocks` of `block_granules`.
    ///
    /// # Errors
    /// They do not fit uncompressed, with room for cleaning; or the numbers are too large.
    pub fn new(units: u64, blocks: u64, block_granules: u64) -> Result<Self, String> {
        let waste = u64::from(GRANULES_PER_UNIT) - 1;
        let usable = blocks
            .saturating_sub(SPARE_BLOCKS)
            .saturating_mul(block_granules.saturating_sub(waste));
        let fit = usable / u64::from(GRANULES_PER_UNIT);
        if units == 0 || units > fit {
            return Err(format!(
                "{fit} units fit, with room for cleaning, and the host has {units}"
            ));
        }
        let narrow = |value: u64| u32::try_from(value).map_err(|_| format!("{value} is more than 2^32"));
        Ok(Self {
            units: narrow(units)?,
            blocks: narrow(blocks)?,
            block_granules: narrow(block_granules)?,
        })
    }

    /// Units of the host.
    #[must_use]
    pub fn units(self) -> u32 {
        self.units
    }

    /// A model of the same proportions: about `blocks` blocks of `units_per_block` units. It is as fast to simulate as it is
    /// small, and large enough to have the same write amplification.
    ///
    /// # Errors
    /// As [`Geometry::new`].
    pub fn miniature(self, blocks: u32, units_per_block: u32) -> Result<Self, String> {
        let space = f64::from(self.blocks) * f64::from(self.block_granules);
        let part = f64::from(self.units) / space;
        let granules = u64::from(units_per_block) * u64::from(GRANULES_PER_UNIT);
        // The spare blocks of a small model are more of it.
        let units = part * f64::from(blocks) * granules as f64;
        Self::new(units as u64, u64::from(blocks) + SPARE_BLOCKS, granules)
    }
}

/// What a write made the flash do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Granules programmed for the host.
    pub written: u64,
    /// Granules read and programmed again by cleaning.
    pub moved: u64,
    /// Blocks erased.
    pub erased: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.moved += other.moved;
        self.erased += other.erased;
    }
}

/// How worn the blocks are: erases of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wear {
    /// The fewest.
    pub least: u32,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub most: u32,
}

#[derive(Debug, Default)]
struct Block {
    /// Granules of units that are here.
    live: u32,
    /// Granules used.
    used: u32,
    erases: u32,
    /// Units written here, in order; the newest place of a unit counts.
    list: Vec<u32>,
}

/// The translation layer.
#[derive(Debug)]
pub struct Ftl {
    geometry: Geometry,
    /// Stored granules of each unit; 0 if it has no contents.
    sizes: Vec<u8>,
    /// Block of each unit that has contents.
    places: Vec<u32>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    open: u32,
    total: Work,
}

impl Ftl {
    /// An empty device.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let units = geometry.units as usize;
        Self {
            geometry,
            sizes: vec![0; units],
            places: vec![0; units],
            blocks: (0..geometry.blocks).map(|_| Block::default()).collect(),
            free: (1..geometry.blocks).collect(),
            open: 0,
            total: Work::default(),
        }
    }

    /// The sizes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Everything so far.
    #[must_use]
    pub fn total(&self) -> Work {
        self.total
    }

    /// Stored granules of a unit; 0 if it has no contents.
    #[must_use]
    pub fn size(&self, unit: u32) -> u8 {
        self.sizes[unit as usize]
    }

    /// Granules that fit into the open block.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.geometry.block_granules - self.blocks[self.open as usize].used
    }

    /// The wear.
    #[must_use]
    pub fn wear(&self) -> Wear {
        let erases = || self.blocks.iter().map(|block| block.erases);
        Wear {
            least: erases().min().unwrap_or(0),
            mean: erases().map(f64::from).sum::<f64>() / self.blocks.len() as f64,
            most: erases().max().unwrap_or(0),
        }
    }

    /// Writes a unit that is stored in `granules`.
    ///
    /// # Panics
    /// If there is no such unit, or `granules` is not from 1 to 64.
    pub fn write(&mut self, unit: u32, granules: u8) -> Work {
        assert!(
            (1..=GRANULES_PER_UNIT).contains(&granules),
            "a unit of {granules} granules"
        );
        self.forget(unit);
        self.append(unit, granules);
        let mut work = Work {
            written: granules.into(),
            ..Work::default()
        };
        while self.free.len() < FREE_MIN {
            self.clean(&mut work);
        }
        self.total += work;
        work
    }

    /// Gives the contents of a unit up.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn forget(&mut self, unit: u32) {
        let size = std::mem::take(&mut self.sizes[unit as usize]);
        if size > 0 {
            self.blocks[self.places[unit as usize] as usize].live -= u32::from(size);
        }
    }

    fn append(&mut self, unit: u32, granules: u8) {
        if self.room() < granules.into() {
            self.open_next();
        }
        let block = &mut self.blocks[self.open as usize];
        block.live += u32::from(granules);
        block.used += u32::from(granules);
        block.list.push(unit);
        self.sizes[unit as usize] = granules;
        self.places[unit as usize] = self.open;
    }

    /// Opens the free block with the fewest erases.
    fn open_next(&mut self) {
        let erases = |block: &u32| (self.blocks[*block as usize].erases, *block);
        let least = (0..self.free.len()).min_by_key(|at| erases(&self.free[*at]));
        self.open = self
            .free
            .swap_remove(least.expect("cleaning leaves a free block"));
    }

    /// Moves the live units of the block with the fewest live granules, and erases it. The geometry guarantees that it has
    /// fewer than fit, so that there is more room afterwards.
    fn clean(&mut self, work: &mut Work) {
        let is_full = |at: &u32| *at != self.open && self.blocks[*at as usize].used > 0;
        let victim = (0..self.geometry.blocks)
            .filter(is_full)
            .min_by_key(|at| (self.blocks[*at as usize].live, self.blocks[*at as usize].erases))
            .expect("the host's units fill more than the open block");
        let mut list = std::mem::take(&mut self.blocks[victim as usize].list);
        for unit in list.drain(..) {
            let size = self.sizes[unit as usize];
            if size > 0 && self.places[unit as usize] == victim {
                self.append(unit, size);
                work.moved += u64::from(size);
            }
        }
        let block = &mut self.blocks[victim as usize];
        block.live = 0;
        block.used = 0;
        block.erases += 1;
        block.list = list; // keeps the allocation
        work.erased += 1;
        self.free.push(victim);
    }

    /// Checks the invariants: for tests.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut live = vec![0_u32; self.blocks.len()];
        for (unit, size) in self.sizes.iter().enumerate().filter(|(_, size)| **size > 0) {
            let place = self.places[unit] as usize;
            live[place] += u32::from(*size);
            if !self.blocks[place].list.contains(&(unit as u32)) {
                return Err(format!("unit {unit} is not in the list of block {place}"));
            }
        }
        for (at, block) in self.blocks.iter().enumerate() {
            let is_free = self.free.contains(&(at as u32));
            if block.live != live[at] || block.live > block.used || block.used > self.geometry.block_granules
            {
                return Err(format!(
                    "block {at}: {} live of {} used, expected {} live, and at most {} used",
                    block.live, block.used, live[at], self.geometry.block_granules
                ));
            }
            if is_free && (block.used > 0 || at == self.open as usize) {
                return Err(format!("block {at} is free and used"));
            }
        }
        if self.free.len() < FREE_MIN {
            return Err(format!("{} free blocks", self.free.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::super::amplification::amplification;
    use super::*;
    use flaz_random::Random;

    #[test]
    fn a_geometry_that_cannot_be_cleaned_is_refused() {
        assert!(Geometry::new(100, 4, 64 * 64).unwrap_err().contains("fit"));
        assert!(Geometry::new(63, 4, 64 * 64).is_ok());
        assert!(Geometry::new(0, 4, 64 * 64).is_err());
        assert!(Geometry::new(10, 2, 64 * 64).is_err());
        assert!(Geometry::new(10, 9, 3).is_err());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u32, u8),
        Forget(u32),
    }

    fn steps(units: u32) -> impl Strategy<Value = Vec<Step>> {
        let write = (0..units, 1..=GRANULES_PER_UNIT).prop_map(|(unit, size)| Step::Write(unit, size));
        let step = prop_oneof![9 => write, 1 => (0..units).prop_map(Step::Forget)];
        proptest::collection::vec(step, 1..2000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// A plain map has the same sizes; the counts add up; the invariants hold after every step that cleans.
        #[test]
        fn the_translation_layer_agrees_with_a_map(steps in steps(97), blocks in 5_u64..9) {
            let granules = 97 * 64 / (blocks - 3) + 128;
            let mut ftl = Ftl::new(Geometry::new(97, blocks, granules).expect("they fit"));
            let mut model: HashMap<u32, u8> = HashMap::new();
            let (mut written, mut erased) = (0_u64, 0_u64);
            for step in steps {
                match step {
                    Step::Write(unit, size) => {
                        let work = ftl.write(unit, size);
                        prop_assert_eq!(work.written, u64::from(size));
                        written += u64::from(size);
                        erased += work.erased;
                        model.insert(unit, size);
                        if work.erased > 0 {
                            ftl.check().map_err(TestCaseError::fail)?;
                        }
                    }
                    Step::Forget(unit) => {
                        ftl.forget(unit);
                        model.remove(&unit);
                    }
                }
            }
            ftl.check().map_err(TestCaseError::fail)?;
            for unit in 0..97 {
                prop_assert_eq!(ftl.size(unit), model.get(&unit).copied().unwrap_or(0));
            }
            prop_assert_eq!((ftl.total().written, ftl.total().erased), (written, erased));
            let wear = ftl.wear();
            prop_assert!((wear.mean * blocks as f64 - erased as f64).abs() < 1e-6);
            // The fewest erases are opened first; only static data may keep a block from wear.
            prop_assert!(wear.least <= wear.most);
        }
    }

    /// Write amplification of uniform random writes in the steady state, from a device full of its data.
    fn simulated(granules: u8) -> (f64, f64) {
        // 64 GiB of flash and 60 GB for the host, as of the preset.
        let full = Geometry::new(60_000_000_000 / 4096, 2048, (32 << 20) / 64).unwrap();
        let geometry = full.miniature(384, 2048).unwrap();
        let mut ftl = Ftl::new(geometry);
        let mut random = Random::named(7, "units");
        for unit in 0..geometry.units() {
            ftl.write(unit, granules);
        }
        let mut write = |ftl: &mut Ftl, times: u32| {
            let before = ftl.total();
            for _ in 0..geometry.units() * times {
                ftl.write(random.below(geometry.units().into()) as u32, granules);
            }
            let after = ftl.total();
            let (written, moved) = (after.written - before.written, after.moved - before.moved);
            1.0 + moved as f64 / written as f64
        };
        write(&mut ftl, 3);
        let found = write(&mut ftl, 2);
        let ratio = 64.0 * 1024.0_f64.powi(3) / 60e9 / (f64::from(granules) / 64.0);
        (found, amplification(ratio))
    }

    /// The closed form is that of large blocks. s = 1, 0.75, 0.5 and 0.25.
    #[test]
    fn random_writes_amplify_as_in_the_closed_form() {
        for granules in [64, 48, 32, 16] {
            let (found, expected) = simulated(granules);
            assert!(
                (found / expected - 1.0).abs() < 0.03,
                "{granules}/64: simulated {found:.3}, closed form {expected:.3}"
            );
        }
    }

    #[test]
    fn sequential_overwriting_moves_almost_nothing_and_wears_evenly() {
        let geometry = Geometry::new(10_000, 40, 64 * 300).unwrap();
        let mut ftl = Ftl::new(geometry);
        for _ in 0..10 {
            for unit in 0..geometry.units() {
                ftl.write(unit, 64);
            }
        }
        let total = ftl.total();
        assert!(total.moved * 50 < total.written, "{total:?}");
        let wear = ftl.wear();
        assert!(wear.most - wear.least <= 2 && wear.mean > 7.0, "{wear:?}");
    }
}
