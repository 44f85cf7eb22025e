//! Emulates a slow device on a fast one: every operation takes as long as the modelled device would take.
//!
//! The model: a request waits for one of `parallelism` servers (a disk has one: its actuator). It spends the
//! positioning time there, unless it continues the previous request on a device where that helps. Then it transfers its
//! bytes over one link that all servers share. A limit on operations per second, as cloud volumes have it, spaces the
//! starts of requests evenly. Requests are served in the order of arrival.
//!
//! A modelled write is stable when it completes, so a flush takes no time of its own, and a discard none at all. The
//! time of the real device is not added but runs in parallel: the emulation is exact as long as the real device is
//! faster than the model.
//!
//! Invariants: time comes only from the [`Env`], so that in a simulation the same requests take the same time; all
//! clones share one model; its lock is held only during arithmetic.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flaz_device::{Device, DeviceError, Env, IoBuf, Nanos};

/// Maximum number of servers in a model.
const PARALLELISM_MAX: u32 = 1024;

/// Performance of a modelled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Time from the start of an access to its first byte.
    pub latency: Duration,
    /// Whether an access that continues the previous one skips that time.
    pub sequential_is_free: bool,
    /// Bytes per second of all reads together.
    pub read_bytes_per_second: u64,
    /// Bytes per second of all writes together.
    pub write_bytes_per_second: u64,
    /// Number of accesses served concurrently: 1 for a disk with one actuator.
    pub parallelism: u32,
    /// Limit of operations per second, if any.
    pub operations_per_second: Option<u32>,
}

impl Model {
    /// The hard disk of the FlaZ paper: 12.6 ms, 100 MB/s reading, 90 MB/s writing.
    pub const HDD: Self = Self {
        latency: Duration::from_micros(12_600),
        sequential_is_free: true,
        read_bytes_per_second: 100_000_000,
        write_bytes_per_second: 90_000_000,
        parallelism: 1,
        operations_per_second: None,
    };
    /// The SSD of the FlaZ paper: 0.17 ms, 277 MB/s reading, 202 MB/s writing.
    pub const SSD: Self = Self {
        latency: Duration::from_micros(170),
        sequential_is_free: false,
        read_bytes_per_second: 277_000_000,
        write_bytes_per_second: 202_000_000,
        // The paper's drive (Intel X25-E) has ten flash channels.
        parallelism: 10,
        operations_per_second: None,
    };
    /// A small cloud volume: 1 ms, 125 MB/s, 3,000 operations per second.
    pub const NETWORK_VOLUME: Self = Self {
        latency: Duration::from_millis(1),
        sequential_is_free: false,
        read_bytes_per_second: 125_000_000,
        write_bytes_per_second: 125_000_000,
        // The remote side is a cluster: only the two rates limit it.
        parallelism: 256,
        operations_per_second: Some(3000),
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Times at which the parts of the modelled device become free.
#[derive(Debug)]
struct Queue {
    model: Model,
    servers: Vec<Nanos>,
    link_free: Nanos,
    /// Earliest start of the next operation, because of the limit on operations.
    next_start: Nanos,
    /// End offset of the previous access.
    position: Option<u64>,
    /// A gap between two accesses is passed over where that is faster than positioning.
    passes_gaps: bool,
}

impl Queue {
    fn new(model: Model) -> Self {
        let servers = vec![Nanos::default(); model.parallelism.clamp(1, PARALLELISM_MAX) as usize];
        Self {
            model,
            servers,
            link_free: Nanos::default(),
            next_start: Nanos::default(),
            position: None,
            passes_gaps: false,
        }
    }

    /// Adds a request that arrives at `now` and returns the time of its completion.
    fn accept(&mut self, now: Nanos, direction: Direction, offset: u64, len: u64) -> Nanos {
        let model = &self.model;
        let server = self
            .servers
            .iter_mut()
            .min()
            .expect("a model has at least one server");
        let mut start = now.max(*server);
        if let Some(limit) = model.operations_per_second.filter(|limit| *limit > 0) {
            start = start.max(self.next_start);
            self.next_start = start.after(Duration::from_secs(1) / limit);
        }
        let rate = match direction {
            Direction::Read => model.read_bytes_per_second,
            Direction::Write => model.write_bytes_per_second,
        };
        let gap = self.position.and_then(|position| offset.checked_sub(position));
        let positioning = match gap.filter(|_| model.sequential_is_free) {
            Some(0) => Duration::ZERO,
            Some(gap) if self.passes_gaps => model.latency.min(transfer_time(gap, rate)),
            _ => model.latency,
        };
        let positioned = start.after(positioning);
        let done = positioned.max(self.link_free).after(transfer_time(len, rate));
        self.link_free = done;
        *server = done;
        self.position = offset.checked_add(len);
        done
    }
}

fn transfer_time(len: u64, bytes_per_second: u64) -> Duration {
    let nanos = u128::from(len) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A device that is as slow as a [`Model`]. Clones, on any thread, are the same modelled device.
#[derive(Clone, Debug)]
pub struct Emulated<D, E> {
    device: D,
    env: E,
    queue: Arc<Mutex<Queue>>,
}

impl<D: Device, E: Env> Emulated<D, E> {
    /// Slows `device` down to `model`, and logs that.
    #[must_use]
    pub fn new(device: D, env: E, model: Model) -> Self {
        tracing::warn!(
            ?model,
            "EMULATION IS ON: this device is slowed down on purpose, for demos and tests"
        );
        Self::without_warning(device, env, model)
    }

    /// The same without a log message: for models of machines, whose devices are slow on purpose.
    #[must_use]
    pub fn without_warning(device: D, env: E, model: Model) -> Self {
        Self {
            device,
            env,
            queue: Arc::new(Mutex::new(Queue::new(model))),
        }
    }

    /// A disk that waits until a gap before the next access has passed under its head, where that is faster than positioning.
    #[must_use]
    pub fn passing_gaps(self) -> Self {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .passes_gaps = true;
        self
    }

    /// The underlying device.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn accept(&self, direction: Direction, offset: u64, len: u64) -> Nanos {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.accept(self.env.now(), direction, offset, len)
    }

    async fn sleep_until(&self, moment: Nanos) {
        let left = moment.since(self.env.now());
        if !left.is_zero() {
            self.env.sleep(left).await;
        }
    }
}

impl<D: Device, E: Env> Device for Emulated<D, E> {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn alignment(&self) -> u32 {
        self.device.alignment()
    }

    fn fua_stands_alone(&self) -> bool {
        self.device.fua_stands_alone()
    }

    fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let done = self.accept(Direction::Read, offset, buf.len() as u64);
        let answer = self.device.read_at(offset, buf).await;
        self.sleep_until(done).await;
        answer
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let done = self.accept(Direction::Write, offset, buf.len() as u64);
        let answer = self.device.write_at(offset, buf, fua).await;
        self.sleep_until(done).await;
        answer
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        self.device.status(offset, len, runs_max).await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush().await
    }

    fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    fn shares_space(&self) -> bool {
        self.device.shares_space()
    }

    fn has_space(&self, offset: u64, len: u64) -> bool {
        self.device.has_space(offset, len)
    }

    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.deallocate(offset, len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.allocate(offset, len).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.device.discard(offset, len).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let done = self.accept(Direction::Write, offset, len);
        let answer = self.device.write_zeroes(offset, len, may_unmap, fua).await;
        self.sleep_until(done).await;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Read, Write};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_disk_positions_then_transfers_and_serves_one_at_a_time() {
        let mut disk = Queue::new(Model::HDD);
        // 100,000 bytes at 100 MB/s are 1 ms, at 90 MB/s 1.111111 ms.
        assert_eq!(disk.accept(Nanos(0), Read, 0, 100_000), Nanos(13_600_000));
        assert_eq!(disk.accept(Nanos(0), Read, 5_000_000, 100_000), Nanos(27_200_000));
        assert_eq!(
            disk.accept(Nanos(20 * MS), Write, 0, 100_000),
            Nanos(27_200_000 + 12_600_000 + 1_111_111)
        );
        // After a pause it starts at once.
        assert_eq!(
            disk.accept(Nanos(1000 * MS), Read, 9_000_000, 100_000),
            Nanos(1_013_600_000)
        );
    }

    #[test]
    fn sequential_access_needs_no_positioning() {
        let mut disk = Queue::new(Model::HDD);
        assert_eq!(disk.accept(Nanos(0), Read, 0, 1_000_000), Nanos(22_600_000));
        assert_eq!(
            disk.accept(Nanos(0), Read, 1_000_000, 1_000_000),
            Nanos(32_600_000)
        );
        assert_eq!(
            disk.accept(Nanos(50 * MS), Write, 2_000_000, 900_000),
            Nanos(60 * MS)
        );
        // Two alternating streams are random accesses.
        assert_eq!(disk.accept(Nanos(60 * MS), Read, 0, 0), Nanos(72_600_000));
        assert_eq!(disk.accept(Nanos(60 * MS), Read, 2_900_000, 0), Nanos(85_200_000));
    }

    #[test]
    fn a_gap_can_be_passed() {
        let mut disk = Queue::new(Model::HDD);
        disk.passes_gaps = true;
        assert_eq!(disk.accept(Nanos(0), Read, 0, 100_000), Nanos(13_600_000));
        // 100,000 bytes further: 1 ms, and 1 ms for as many bytes.
        assert_eq!(disk.accept(Nanos(0), Read, 200_000, 100_000), Nanos(15_600_000));
        // Far ahead, and behind.
        assert_eq!(disk.accept(Nanos(0), Read, 9_000_000, 0), Nanos(28_200_000));
        assert_eq!(disk.accept(Nanos(0), Read, 8_900_000, 0), Nanos(40_800_000));
    }

    #[test]
    fn an_ssd_overlaps_positioning_but_shares_its_link() {
        let mut ssd = Queue::new(Model::SSD);
        let transfer = 277_000 * 1_000_000_000 / 277_000_000; // 1 ms
        for number in 1..=3 {
            let done = ssd.accept(Nanos(0), Read, number * 7_000_000, 277_000);
            assert_eq!(done, Nanos(170_000 + number * transfer));
        }
        // Small reads: ten at a time; the eleventh waits for the first server to become free.
        let mut ssd = Queue::new(Model::SSD);
        let first: Vec<_> = (0..10)
            .map(|number| ssd.accept(Nanos(0), Read, number << 20, 0))
            .collect();
        assert!(first.iter().all(|done| *done == Nanos(170_000)), "{first:?}");
        assert_eq!(ssd.accept(Nanos(0), Read, 99 << 20, 0), Nanos(340_000));
    }

    #[test]
    fn a_volume_with_a_limit_of_operations_spaces_them() {
        let mut volume = Queue::new(Model::NETWORK_VOLUME);
        let spacing = 1_000_000_000 / 3000;
        for number in 0..100 {
            let done = volume.accept(Nanos(0), Write, number * 1_000_000, 0);
            assert_eq!(done, Nanos(MS + number * spacing));
        }
        // Large transfers reach the other limit: 125 KB take 1 ms.
        let mut volume = Queue::new(Model::NETWORK_VOLUME);
        assert_eq!(volume.accept(Nanos(0), Write, 0, 125_000), Nanos(2 * MS));
        assert_eq!(volume.accept(Nanos(0), Read, 0, 125_000), Nanos(3 * MS));
        assert_eq!(volume.accept(Nanos(0), Read, 0, 125_000), Nanos(4 * MS));
    }

    #[test]
    fn extreme_figures_do_not_overflow() {
        let mut queue = Queue::new(Model {
            read_bytes_per_second: 0,
            parallelism: 0,
            ..Model::HDD
        });
        let done = queue.accept(Nanos(u64::MAX - 5), Read, u64::MAX - 1, u64::MAX);
        assert_eq!(done, Nanos(u64::MAX));
    }
}
