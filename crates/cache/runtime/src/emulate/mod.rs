//! Emulates a slow device on a fast one: every operation takes as long as the modelled device would take.
//!
//! | module | contents |
//! |---|---|
//! | `arrival` | devices that serve requests in the order of arrival |
//! | `disk` | the arm and the platter of a disk |
//! | `elevator` | a disk that orders the requests that wait |
//!
//! A modelled write is stable when it completes, so a flush takes no time of its own, and a discard none at all. The
//! time of the real device is not added but runs in parallel: the emulation is exact as long as the real device is
//! faster than the model.
//!
//! Invariants: time comes only from the [`Env`], so that in a simulation the same requests take the same time; all
//! clones share one model; its lock is held only during arithmetic.

mod arrival;
mod disk;
mod elevator;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use flaz_device::{Device, DeviceError, Env, IoBuf, Nanos};

use elevator::{Elevator, Turn};

/// Performance of a modelled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Time from the start of an access to its first byte; with [`Seek::Arm`], the mean of random accesses.
    pub latency: Duration,
    /// Which accesses take that time.
    pub seek: Seek,
    /// Bytes per second of all reads together.
    pub read_bytes_per_second: u64,
    /// Bytes per second of all writes together.
    pub write_bytes_per_second: u64,
    /// Number of accesses served concurrently: 1 for a disk with one actuator.
    pub parallelism: u32,
    /// Limit of operations per second, if any.
    pub operations_per_second: Option<u32>,
}

/// How the time to the first byte depends on the previous access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Not at all: flash, a network.
    None,
    /// None for an access that continues the previous one, and the latency for any other. Requests are served in the order of arrival.
    Fixed,
    /// Of the way of an arm and the turn of a platter whose rate is that of reads. The requests that wait are ordered by that. The limits
    /// of concurrent accesses and of operations per second do not apply.
    Arm,
}

impl Model {
    /// The hard disk of the FlaZ paper: 12.6 ms, 100 MB/s reading, 90 MB/s writing.
    pub const HDD: Self = Self {
        latency: Duration::from_micros(12_600),
        seek: Seek::Fixed,
        read_bytes_per_second: 100_000_000,
        write_bytes_per_second: 90_000_000,
        parallelism: 1,
        operations_per_second: None,
    };
    /// The same disk with command queueing: its times depend on where the arm and the platter are.
    pub const QUEUEING_HDD: Self = Self {
        seek: Seek::Arm,
        ..Self::HDD
    };
    /// The SSD of the FlaZ paper: 0.17 ms, 277 MB/s reading, 202 MB/s writing.
    pub const SSD: Self = Self {
        latency: Duration::from_micros(170),
        seek: Seek::None,
        read_bytes_per_second: 277_000_000,
        write_bytes_per_second: 202_000_000,
        // The paper's drive (Intel X25-E) has ten flash channels.
        parallelism: 10,
        operations_per_second: None,
    };
    /// A small cloud volume: 1 ms, 125 MB/s, 3,000 operations per second.
    pub const NETWORK_VOLUME: Self = Self {
        latency: Duration::from_millis(1),
        seek: Seek::None,
        read_bytes_per_second: 125_000_000,
        write_bytes_per_second: 125_000_000,
        // The remote side is a cluster: only the two rates limit it.
        parallelism: 256,
        operations_per_second: Some(3000),
    };
}

impl Model {
    /// Time in which bytes are transferred.
    fn transfer(&self, direction: Direction, len: u64) -> Duration {
        let rate = match direction {
            Direction::Read => self.read_bytes_per_second,
            Direction::Write => self.write_bytes_per_second,
        };
        let nanos = u128::from(len) * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// A request to a modelled device.
#[derive(Clone, Copy, Debug)]
struct Access {
    direction: Direction,
    offset: u64,
    len: u64,
}

/// The state of a modelled device.
#[derive(Debug)]
enum Server {
    Arrival(arrival::Queue),
    Elevator(Elevator),
}

/// A device that is as slow as a [`Model`]. Clones, on any thread, are the same modelled device.
#[derive(Clone, Debug)]
pub struct Emulated<D, E> {
    device: D,
    env: E,
    server: Arc<Mutex<Server>>,
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
        let server = match model.seek {
            Seek::Arm => Server::Elevator(Elevator::new(model, device.len())),
            Seek::None | Seek::Fixed => Server::Arrival(arrival::Queue::new(model)),
        };
        Self {
            device,
            env,
            server: Arc::new(Mutex::new(server)),
        }
    }

    /// The underlying device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Runs an operation of the underlying device, and waits until the modelled one has ended it.
    async fn serve<T>(&self, access: Access, operation: impl Future<Output = T>) -> T {
        let waiting = match &mut *lock(&self.server) {
            Server::Arrival(queue) => Err(queue.accept(self.env.now(), access)),
            Server::Elevator(elevator) => Ok(elevator.enter(self.env.now(), access)),
        };
        match waiting {
            Err(end) => {
                let answer = operation.await;
                self.sleep_until(end).await;
                answer
            }
            Ok(number) => {
                let place = Place { number, device: self };
                let answer = operation.await;
                place.ended().await;
                answer
            }
        }
    }

    async fn sleep_until(&self, moment: Nanos) {
        let left = moment.since(self.env.now());
        if !left.is_zero() {
            self.env.sleep(left).await;
        }
    }
}

fn lock(server: &Mutex<Server>) -> MutexGuard<'_, Server> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a request in an elevator, which it leaves when this is dropped.
struct Place<'a, D: Device, E: Env> {
    number: u64,
    device: &'a Emulated<D, E>,
}

impl<D: Device, E: Env> Place<'_, D, E> {
    /// Waits until the request has ended.
    async fn ended(&self) {
        loop {
            let turn = poll_fn(|context| {
                self.with(|elevator, now, woken| elevator.poll(now, self.number, context.waker(), woken))
            });
            match turn.await {
                Turn::Ends(end) => return self.device.sleep_until(end).await,
                Turn::KeepsTime(until) => self.device.sleep_until(until).await,
            }
        }
    }

    /// Does something with the elevator, and wakes tasks after that.
    fn with<T>(&self, act: impl FnOnce(&mut Elevator, Nanos, &mut Vec<Waker>) -> T) -> T {
        let mut woken = Vec::new();
        let result = match &mut *lock(&self.device.server) {
            Server::Elevator(elevator) => act(elevator, self.device.env.now(), &mut woken),
            Server::Arrival(_) => unreachable!("only an elevator has places"),
        };
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

impl<D: Device, E: Env> Drop for Place<'_, D, E> {
    fn drop(&mut self) {
        self.with(|elevator, now, woken| elevator.leave(now, self.number, woken));
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
        let access = Access {
            direction: Direction::Read,
            offset,
            len: buf.len() as u64,
        };
        self.serve(access, self.device.read_at(offset, buf)).await
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let access = Access {
            direction: Direction::Write,
            offset,
            len: buf.len() as u64,
        };
        self.serve(access, self.device.write_at(offset, buf, fua)).await
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
        let access = Access {
            direction: Direction::Write,
            offset,
            len,
        };
        self.serve(access, self.device.write_zeroes(offset, len, may_unmap, fua))
            .await
    }
}
