//! Opening and changing a pool: volumes, their chunks, and the size of the device.
//!
//! Invariants: one writer of the table and the superblock at a time. What is in memory is what the device says, stable; after a
//! failed write, the device may say something else about chunks that are in `pending`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::local::Semaphore;
use flaz_device::{Device, DeviceError, DeviceOp, IoBuf};
use uuid::Uuid;

use crate::chunks::ChunksOf;
use crate::device::{VolumeDevice, VolumeMap};
use crate::error::PoolError;
use crate::format::{
    Owner, PoolLayout, PoolSuperblock, SLOTS, SUPERBLOCK_BYTES, TableSector, VOLUMES_MAX, VolumeEntry,
};
use crate::planted::{PlantedBug, planted};
use crate::reading::{Found, read};
use crate::table::Table;

/// With a chunk that it asks for, a volume gets more: this share of the free ones, and so many at most.
const TAKEN_SHARE: u32 = 64;
const TAKEN_MAX: u32 = 16;
/// Numbers of volumes are below this.
const NUMBER_MAX: u32 = u32::MAX - 1;

/// What a new volume gets.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Of the volume's cache.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Bytes of its cache device before the first region.
    pub front_bytes: u64,
    /// Chunks without which its cache cannot work.
    pub least: u32,
    /// Chunks that no other volume gets.
    pub at_least: u32,
    /// Most chunks that it gets; 0: no limit.
    pub at_most: u32,
}

/// Is told of each failed flush of the device of the pool with this UUID, before the pool flushes again: the device may have dropped
/// writes of volumes of other processes, and reports that once.
pub type Tell = Box<dyn Fn(Uuid)>;

/// A volume that is being added. It exists once it is committed.
#[derive(Debug)]
pub struct Prepared(VolumeEntry);

impl Prepared {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }
}

/// A pool, driven by one thread.
pub struct Pool<D> {
    pub(crate) device: Rc<D>,
    superblock: RefCell<PoolSuperblock>,
    pub(crate) table: RefCell<Table>,
    /// Generation of each sector of the table.
    generations: RefCell<Vec<u64>>,
    /// Of the volumes that are in use here.
    maps: RefCell<BTreeMap<u32, Arc<VolumeMap>>>,
    /// Chunks whose entry could not be written: their owners get them at the next attempt, and no other chunk.
    pub(crate) pending: RefCell<BTreeMap<Owner, u32>>,
    /// It is not known which chunk the device names for a part that was moved.
    pub(crate) unknown: Cell<bool>,
    pub(crate) writer: Semaphore,
    failed_flushes: Cell<u64>,
    tell: Tell,
    /// The volume that is being added.
    prepared: RefCell<Option<VolumeEntry>>,
}

impl<D: Device> Pool<D> {
    /// Lays out a pool without volumes on a device. Its old contents are lost.
    ///
    /// # Errors
    /// [`PoolError`]: a size cannot be used (then nothing is written), or the device fails.
    pub async fn create(device: Rc<D>, uuid: Uuid, chunk_bytes: u64) -> Result<Rc<Self>, PoolError> {
        let (layout, chunks) = PoolLayout::plan(device.len(), device.alignment().max(512), chunk_bytes)?;
        let superblock = PoolSuperblock {
            uuid,
            generation: 0,
            layout,
            chunks,
            chunks_before: chunks,
            shrink_to: None,
            next_volume: 1,
            volumes: Vec::new(),
            budget: None,
        };
        // An old superblock must not survive an interrupted create.
        for slot in SLOTS {
            device
                .write_at(slot, IoBuf::zeroed(SUPERBLOCK_BYTES), false)
                .await
                .1?;
        }
        device.flush().await?;
        let table = Table::new(&vec![None; chunks as usize], chunks, |_| true)?;
        let pool = Rc::new(Self::of(
            device,
            superblock,
            table,
            vec![0; layout.table_sectors() as usize],
        ));
        for sector in 0..layout.sectors_of(chunks) {
            pool.write_sector(sector, false).await?;
        }
        pool.device.flush().await?;
        let superblock = pool.superblock();
        pool.write_superblock(superblock).await?;
        Ok(pool)
    }

    /// Opens the pool on a device.
    ///
    /// # Errors
    /// [`PoolError`]: there is none, it is damaged, or the device fails.
    pub async fn open(device: Rc<D>) -> Result<Rc<Self>, PoolError> {
        Self::open_telling(device, Box::new(|_| ())).await
    }

    /// The same, for a device that other processes use, too.
    ///
    /// # Errors
    /// As there.
    pub async fn open_telling(device: Rc<D>, tell: Tell) -> Result<Rc<Self>, PoolError> {
        // The caller holds the table's lock, so the flush makes exactly what was read stable.
        let found = read(&*device).await?;
        if let Err(error) = device.flush().await {
            tell(found.superblock.uuid);
            return Err(error.into());
        }
        let mut pool = Self::of(device, found.superblock, found.table, found.generations);
        pool.tell = tell;
        Ok(Rc::new(pool))
    }

    /// Reads again what other processes have changed. The caller keeps them from changing more until it has made its own change, and
    /// alone changes the chunks of the volumes that it has opened. With `to_change`, what was read is stable, and copies that differ are
    /// made equal: they do after a kill, or if one is damaged, and later damage to the newer one must not bring the older one back.
    ///
    /// # Errors
    /// [`PoolError`]: the pool is damaged, or the device fails. Nothing has changed then.
    pub async fn reload(&self, to_change: bool) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.read_again(to_change).await
    }

    /// The writer reads again.
    pub(crate) async fn read_again(&self, to_change: bool) -> Result<(), PoolError> {
        if to_change {
            let flushed = self.device.flush().await.map_err(PoolError::from);
            self.noted(flushed)?;
        }
        let Found {
            superblock,
            table,
            generations,
            differ,
            slots_differ,
        } = read(&*self.device).await?;
        if superblock.uuid != self.superblock.borrow().uuid {
            return Err(PoolError::Contradiction(
                "the device has another pool now".to_owned(),
            ));
        }
        self.superblock.replace(superblock);
        self.table.replace(table);
        self.generations.replace(generations);
        if to_change {
            // Whether a failed write has reached the device is known now.
            self.pending.borrow_mut().clear();
            self.unknown.set(false);
        }
        self.note_maps();
        if to_change {
            self.maps.borrow().values().for_each(|map| map.gate().known());
            if slots_differ {
                let now = self.superblock();
                self.write_superblock(now).await?;
            }
            for sector in differ {
                self.write_sector(sector, true).await?;
            }
        }
        Ok(())
    }

    /// What is in memory is what the device says, and the device names one chunk of each part. To be called before a change.
    pub(crate) async fn settle(&self) -> Result<(), PoolError> {
        if self.unknown.get() {
            self.read_again(true).await?;
        }
        if planted(PlantedBug::CopyForgotten) {
            return Ok(());
        }
        while let Some(chunk) = { self.table.borrow().copies().next() } {
            self.write_sector(self.sector_of(chunk), true).await?;
        }
        Ok(())
    }

    /// The maps that are in use say what the table says.
    fn note_maps(&self) {
        let mut maps = self.maps.borrow_mut();
        maps.retain(|number, _| self.entry(*number).is_some());
        if self.unknown.get() {
            return;
        }
        for (number, map) in maps.iter() {
            self.note_map(*number, map);
        }
    }

    fn note_map(&self, number: u32, map: &VolumeMap) {
        map.set_chunks(self.superblock.borrow().chunks_before);
        let mut parts = vec![None; map.parts() as usize];
        for (chunk, index) in self.table.borrow().of_volume(number) {
            parts[index as usize] = Some(chunk);
        }
        let pending = self.pending.borrow();
        for (index, chunk) in (0..).zip(parts) {
            // What a failed write has left may not be stable.
            let owner = Owner {
                volume: number,
                index,
            };
            if map.chunk(index) != chunk && !pending.contains_key(&owner) {
                map.set(index, chunk);
            }
        }
    }

    /// The volume with a number.
    fn entry(&self, number: u32) -> Option<VolumeEntry> {
        let (superblock, prepared) = (self.superblock.borrow(), self.prepared.borrow());
        let mut volumes = superblock.volumes.iter().chain(prepared.iter());
        volumes.find(|volume| volume.number == number).cloned()
    }

    fn of(device: Rc<D>, superblock: PoolSuperblock, table: Table, generations: Vec<u64>) -> Self {
        Self {
            device,
            superblock: RefCell::new(superblock),
            table: RefCell::new(table),
            generations: RefCell::new(generations),
            maps: RefCell::default(),
            pending: RefCell::default(),
            unknown: Cell::new(false),
            writer: Semaphore::new(1),
            failed_flushes: Cell::new(0),
            tell: Box::new(|_| ()),
            prepared: RefCell::default(),
        }
    }

    fn map_of(&self, volume: &VolumeEntry) -> Arc<VolumeMap> {
        let superblock = self.superblock.borrow();
        Arc::new(VolumeMap::new(
            superblock.layout,
            superblock.chunks_before,
            volume.front_bytes,
        ))
    }

    /// Identity and volumes.
    #[must_use]
    pub fn superblock(&self) -> PoolSuperblock {
        self.superblock.borrow().clone()
    }

    /// Number of free chunks that may be taken.
    #[must_use]
    pub fn free_chunks(&self) -> u32 {
        self.table.borrow().free()
    }

    /// Number of free chunks that a volume may take: the others are kept for other volumes.
    #[must_use]
    pub fn free_chunks_for(&self, volume: u32) -> u32 {
        let table = self.table.borrow();
        let superblock = self.superblock.borrow();
        let owned = table.owned_by(volume);
        let guaranteed = superblock.volumes.iter().find(|other| other.number == volume);
        let guaranteed = guaranteed.map_or(0, |own| own.guarantee().saturating_sub(owned));
        table
            .free()
            .saturating_sub(self.kept_for_others(volume))
            .max(guaranteed.min(table.free()))
    }

    /// Chunks that other volumes do not have yet, but are guaranteed.
    fn kept_for_others(&self, volume: u32) -> u32 {
        let (table, superblock) = (self.table.borrow(), self.superblock.borrow());
        let others = superblock.volumes.iter().filter(|other| other.number != volume);
        others
            .map(|other| other.guarantee().saturating_sub(table.owned_by(other.number)))
            // A forged superblock may guarantee more chunks than there can be.
            .fold(0, u32::saturating_add)
    }

    /// Number of chunks of a volume.
    #[must_use]
    pub fn chunks_of(&self, volume: u32) -> u32 {
        self.table.borrow().owned_by(volume)
    }

    /// A volume by name.
    ///
    /// # Errors
    /// [`PoolError::NoVolume`].
    pub fn volume(&self, name: &str) -> Result<VolumeEntry, PoolError> {
        let superblock = self.superblock.borrow();
        let volume = superblock.volumes.iter().find(|volume| volume.name == name);
        volume
            .cloned()
            .ok_or_else(|| PoolError::NoVolume(name.to_owned()))
    }

    /// Where the parts of a volume lie.
    ///
    /// # Errors
    /// [`PoolError::NoVolume`].
    pub fn map(&self, volume: u32) -> Result<Arc<VolumeMap>, PoolError> {
        if let Some(map) = self.maps.borrow().get(&volume) {
            return Ok(Arc::clone(map));
        }
        let entry = self
            .entry(volume)
            .ok_or_else(|| PoolError::NoVolume(volume.to_string()))?;
        let map = self.map_of(&entry);
        self.note_map(volume, &map);
        self.maps.borrow_mut().insert(volume, Arc::clone(&map));
        Ok(map)
    }

    /// The cache device of a volume, on the thread of the pool.
    ///
    /// # Errors
    /// [`PoolError::NoVolume`].
    pub fn open_volume(self: &Rc<Self>, volume: u32) -> Result<VolumeDevice<D, ChunksOf<D>>, PoolError>
    where
        D: Clone,
    {
        let chunks = self.chunks(volume);
        Ok(VolumeDevice::new(
            (*self.device).clone(),
            self.map(volume)?,
            chunks,
        ))
    }

    /// The device that the volumes share.
    #[must_use]
    pub fn device(&self) -> &Rc<D> {
        &self.device
    }

    /// The chunks of a volume.
    #[must_use]
    pub fn chunks(self: &Rc<Self>, volume: u32) -> ChunksOf<D> {
        ChunksOf::new(self, volume)
    }

    // Volumes.

    /// Begins to add a volume: it gets a number and the chunks of its front. A volume that is not committed leaves nothing.
    ///
    /// # Errors
    /// [`PoolError`]: the name is taken, there is no room, or the device fails.
    pub async fn prepare(self: &Rc<Self>, options: VolumeOptions) -> Result<Prepared, PoolError> {
        let number = {
            let _permit = self.writer.acquire(1).await;
            let mut next = self.superblock();
            if next.volumes.iter().any(|volume| volume.name == options.name) {
                return Err(PoolError::NameTaken(options.name));
            }
            if next.volumes.len() >= VOLUMES_MAX {
                return Err(PoolError::field(
                    "volumes",
                    format!("at most {VOLUMES_MAX}"),
                    VOLUMES_MAX + 1,
                ));
            }
            let number = next.next_volume;
            if number >= NUMBER_MAX {
                return Err(PoolError::field(
                    "volumes added so far",
                    format!("at most {NUMBER_MAX}"),
                    number,
                ));
            }
            let volume = entry(number, &options);
            // Stable first: chunks that a failed attempt took are never those of another volume.
            next.next_volume += 1;
            let mut with = next.clone();
            with.volumes.push(volume.clone());
            check_shares(&with)?;
            self.write_superblock(next).await?;
            self.maps.borrow_mut().insert(number, self.map_of(&volume));
            self.prepared.replace(Some(volume));
            number
        };
        let prepared = Prepared(entry(number, &options));
        for index in 0..self.map(number)?.front_parts() {
            if let Err(error) = self.take(&prepared.0, index).await {
                self.abandon(prepared);
                return Err(error);
            }
        }
        Ok(prepared)
    }

    /// The volume exists, stable, on return.
    ///
    /// # Errors
    /// [`PoolError`]: the device fails. The volume may exist or not.
    pub async fn commit(&self, prepared: Prepared) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        let mut next = self.superblock();
        next.volumes.push(prepared.0);
        self.prepared.replace(None);
        self.write_superblock(next).await
    }

    /// Gives up a volume that was prepared.
    pub fn abandon(&self, prepared: Prepared) {
        self.forget(prepared.0.number);
    }

    /// Removes a volume; its cache is lost. Nobody uses it any more.
    ///
    /// # Errors
    /// [`PoolError`]: there is none, or the device fails.
    pub async fn remove(&self, name: &str) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        let number = self.volume(name)?.number;
        let mut next = self.superblock();
        next.volumes.retain(|volume| volume.number != number);
        self.write_superblock(next).await?;
        self.forget(number);
        Ok(())
    }

    /// Its entries in the table count no more.
    fn forget(&self, number: u32) {
        self.prepared.replace(None);
        self.table.borrow_mut().give_all(number);
        self.pending
            .borrow_mut()
            .retain(|owner, _| owner.volume != number);
        self.maps.borrow_mut().remove(&number);
    }

    /// Guarantees and limits the chunks of a volume.
    ///
    /// # Errors
    /// [`PoolError`]: there is no such volume, the guarantees do not fit together, or the device fails.
    pub async fn set_share(
        &self,
        name: &str,
        at_least: Option<u32>,
        at_most: Option<u32>,
    ) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        let number = self.volume(name)?.number;
        let mut next = self.superblock();
        let volume = next.volumes.iter_mut().find(|volume| volume.number == number);
        let volume = volume.expect("it was found");
        volume.at_least = at_least.unwrap_or(volume.at_least);
        volume.at_most = at_most.unwrap_or(volume.at_most);
        check_shares(&next)?;
        self.write_superblock(next).await
    }

    // Chunks.

    /// Gives a part of a volume that the superblock lists, or that is being added, a chunk, unless it has one.
    ///
    /// # Errors
    /// [`PoolError::NoChunk`]: there is none for it; or the device fails.
    pub async fn take_part(&self, number: u32, index: u32) -> Result<(), PoolError> {
        let volume = self.entry(number);
        let volume = volume.ok_or_else(|| PoolError::NoVolume(number.to_string()))?;
        self.take(&volume, index).await
    }

    /// Gives a part of a volume a chunk, unless it has one.
    async fn take(&self, volume: &VolumeEntry, index: u32) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.settle().await?;
        let map = self.map(volume.number)?;
        if map.chunk(index).is_some() {
            return Ok(());
        }
        let owner = Owner {
            volume: volume.number,
            index,
        };
        let pending = self.pending.borrow_mut().remove(&owner);
        let first = match pending {
            Some(chunk) => chunk,
            None => self.assign(volume, owner)?,
        };
        let mut taken = vec![(owner, first)];
        // The next parts too, as far as the same sector says so: they will be wanted soon, and one write does for all.
        let more = (self.table.borrow().free() / TAKEN_SHARE).min(TAKEN_MAX);
        for index in (index + 1..map.parts_now()).take(more as usize) {
            let owner = Owner { index, ..owner };
            let sector = self.sector_of(first);
            let next = self.table.borrow_mut().first_free();
            let is_near = next.is_some_and(|chunk| self.sector_of(chunk) == sector);
            if map.chunk(index).is_some() || self.pending.borrow().contains_key(&owner) || !is_near {
                break;
            }
            let Ok(chunk) = self.assign(volume, owner) else {
                break;
            };
            taken.push((owner, chunk));
        }
        let written = self.write_sector(self.sector_of(first), true).await;
        for (owner, chunk) in taken {
            match written {
                Ok(()) => map.set(owner.index, Some(chunk)),
                Err(_) => drop(self.pending.borrow_mut().insert(owner, chunk)),
            }
        }
        Ok(written?)
    }

    /// A free chunk gets an owner, in memory.
    fn assign(&self, volume: &VolumeEntry, owner: Owner) -> Result<u32, PoolError> {
        self.may_take(volume)?;
        let chunk = self.table.borrow_mut().first_free();
        let chunk = chunk.ok_or_else(|| no_chunk(volume, "all are in use"))?;
        self.table.borrow_mut().take(chunk, owner);
        Ok(chunk)
    }

    /// Whether a volume may have another chunk.
    fn may_take(&self, volume: &VolumeEntry) -> Result<(), PoolError> {
        let table = self.table.borrow();
        let owned = table.owned_by(volume.number);
        let limit = self.map(volume.number)?.limit();
        if owned >= limit || volume.at_most > 0 && owned >= volume.at_most {
            return Err(no_chunk(volume, "it has as many as it may have"));
        }
        if table.free() == 0 {
            return Err(no_chunk(volume, "all are in use"));
        }
        if owned >= volume.guarantee() && table.free() <= self.kept_for_others(volume.number) {
            return Err(no_chunk(volume, "the free ones are guaranteed to others"));
        }
        Ok(())
    }

    /// The chunk of a part of a volume becomes free, if it has one.
    ///
    /// # Errors
    /// [`PoolError::NoVolume`], or the device fails: the part has no chunk, and the chunk is not free. It can be given back again; if
    /// the part takes a chunk, it gets the same one.
    pub async fn give_part(&self, number: u32, index: u32) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.settle().await?;
        let map = self.map(number)?;
        let owner = Owner {
            volume: number,
            index,
        };
        let pending = self.pending.borrow_mut().remove(&owner);
        let Some(chunk) = map.chunk(index).or(pending) else {
            return Ok(());
        };
        map.set(index, None);
        self.table.borrow_mut().give(chunk);
        let written = self.write_sector(self.sector_of(chunk), true).await;
        if written.is_err() {
            // The device may have the entry or not: the part gets no other chunk, and this one only with a new entry.
            self.table.borrow_mut().take(chunk, owner);
            self.pending.borrow_mut().insert(owner, chunk);
        }
        Ok(written?)
    }

    // Size.

    /// Uses what the device has become longer, up to `len` bytes of it, and calls off a shrink. Returns the number of chunks.
    ///
    /// # Errors
    /// [`PoolError::Device`]: the device fails.
    pub async fn grow(&self, len: u64) -> Result<u32, PoolError> {
        let _permit = self.writer.acquire(1).await;
        self.call_off().await?;
        let mut next = self.superblock();
        let chunks = next.layout.chunks_of(self.device.len().min(len));
        if chunks > next.chunks {
            // The sectors of the new chunks, stable before the superblock says that there are such chunks.
            let (first, end) = (
                next.layout.sectors_of(next.chunks),
                next.layout.sectors_of(chunks),
            );
            for sector in first..end {
                self.write_sector(sector, false).await?;
            }
            next.chunks = chunks;
            next.chunks_before = next.chunks_before.max(chunks);
            let before = next.chunks_before;
            self.write_superblock(next).await?;
            self.table.borrow_mut().resize(chunks);
            self.maps.borrow().values().for_each(|map| map.set_chunks(before));
        }
        Ok(self.table.borrow().len())
    }

    // On the device.

    pub(crate) fn sector_of(&self, chunk: u32) -> u32 {
        chunk / self.superblock.borrow().layout.chunks_per_sector()
    }

    /// Writes both copies of a sector of the table; with `stable`, each is stable before the next.
    pub(crate) async fn write_sector(&self, number: u32, stable: bool) -> Result<(), DeviceError> {
        let (layout, pool) = {
            let superblock = self.superblock.borrow();
            (superblock.layout, superblock.id())
        };
        let generation = {
            let mut generations = self.generations.borrow_mut();
            generations[number as usize] += 1;
            generations[number as usize]
        };
        let first = number * layout.chunks_per_sector();
        let last = (first + layout.chunks_per_sector()).min(layout.chunks_max);
        let table = &self.table;
        let owner = |chunk| (chunk < table.borrow().len()).then(|| table.borrow().owner(chunk))?;
        let sector = TableSector {
            pool,
            number,
            generation,
            owners: (first..last).map(owner).collect(),
        };
        let mut buf = IoBuf::new(layout.sector_bytes as usize);
        sector.write(&mut buf);
        for copy in 0..2 {
            let position = layout.table_offset(number, copy);
            let written = self.device.write_at(position, IoBuf::copy_of(&buf), stable).await;
            if written.1.is_err() && stable && !self.device.fua_stands_alone() {
                self.note_failed_flush();
            }
            written.1?;
        }
        self.table.borrow_mut().erased(first..last);
        Ok(())
    }

    /// Number of failed flushes of the cache device, by the pool or by a volume on its thread.
    #[must_use]
    pub fn failed_flushes(&self) -> u64 {
        self.failed_flushes.get()
    }

    pub(crate) fn note_failed_flush(&self) {
        self.failed_flushes.set(self.failed_flushes() + 1);
        (self.tell)(self.superblock.borrow().uuid);
    }

    /// A flush of the pool may have failed: the device may have dropped writes of volumes, and reports that once.
    pub(crate) fn noted<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        if let Err(PoolError::Device(error)) = &result
            && error.op == DeviceOp::Flush
        {
            self.note_failed_flush();
        }
        result
    }

    /// Writes both slots, one after the other; then `next` is the superblock. If that fails, the device gets the present one again,
    /// as far as it takes writes.
    pub(crate) async fn write_superblock(&self, mut next: PoolSuperblock) -> Result<(), PoolError> {
        next.generation += 1;
        let written = self.noted(self.write_slots(&next).await);
        if written.is_ok() {
            self.superblock.replace(next);
            return Ok(());
        }
        let mut now = self.superblock();
        now.generation = next.generation + 1;
        if self.noted(self.write_slots(&now).await).is_ok() {
            self.superblock.replace(now);
        }
        written
    }

    async fn write_slots(&self, superblock: &PoolSuperblock) -> Result<(), PoolError> {
        let bytes = superblock.to_bytes()?;
        for turn in 0..2 {
            let slot = SLOTS[((superblock.generation + turn) % 2) as usize];
            self.device.flush().await?;
            self.device
                .write_at(slot, IoBuf::copy_of(&bytes), false)
                .await
                .1?;
            self.device.flush().await?;
        }
        Ok(())
    }
}

fn entry(number: u32, options: &VolumeOptions) -> VolumeEntry {
    VolumeEntry {
        number,
        uuid: options.uuid,
        name: options.name.clone(),
        front_bytes: options.front_bytes,
        least: options.least,
        at_least: options.at_least,
        at_most: options.at_most,
    }
}

fn no_chunk(volume: &VolumeEntry, why: &'static str) -> PoolError {
    PoolError::NoChunk {
        volume: volume.name.clone(),
        why,
    }
}

/// The guarantees must fit together.
pub(crate) fn check_shares(superblock: &PoolSuperblock) -> Result<(), PoolError> {
    let sum: u64 = superblock
        .volumes
        .iter()
        .map(|volume| u64::from(volume.guarantee()))
        .sum();
    if sum > u64::from(superblock.usable()) {
        let bytes = |chunks: u64| chunks * superblock.layout.chunk_bytes;
        return Err(PoolError::Guarantees {
            sum: bytes(sum),
            most: bytes(superblock.usable().into()),
        });
    }
    superblock.to_bytes().map(drop)
}
