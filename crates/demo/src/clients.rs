//! The clients: threads that send the workload's requests over NBD, each one at a time, and check all data.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flaz_nbd::Client;
use flaz_nbd::client::ClientError;
use hdrhistogram::Histogram;

use crate::dataset::DataSet;
use crate::error::DemoError;
use crate::interrupt::Interrupt;
use crate::oracle::{BLOCK_BYTES, Oracle, checksum};
use crate::workload::{Operation, REQUEST_BLOCKS_MAX, Requests, Workload};

/// Length of the time slices in which requests are counted.
pub const SLICE: Duration = Duration::from_millis(100);
/// Maximum latency in the histograms: longer ones count as this.
const LATENCY_US_MAX: u64 = 60_000_000;

/// When a phase ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this many requests of all clients together.
    Requests(u64),
    /// After this time.
    Elapsed(Duration),
}

/// Parameters of a phase.
#[derive(Debug)]
pub struct Phase<'a> {
    /// For messages: "the run without a cache".
    pub name: &'a str,
    /// Selects the sequences of requests.
    pub number: u32,
    /// Socket of the server.
    pub socket: &'a Path,
    /// The image, the source of the contents of writes.
    pub data: &'a DataSet,
    /// The requests.
    pub workload: &'a Workload,
    /// Expected contents of the disk.
    pub oracle: &'a Oracle<'a>,
    /// The stop request.
    pub until: Until,
}

/// Results of all clients.
#[derive(Debug)]
pub struct Observed {
    /// Duration of the phase.
    pub elapsed: Duration,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes read, each checked.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Latency of all requests, in microseconds.
    pub latency_us: Histogram<u64>,
    /// Requests completed in each [`SLICE`] since the start.
    pub slices: Vec<u32>,
}

impl Observed {
    /// Nothing yet.
    pub fn new() -> Self {
        let latency_us =
            Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("constant bounds that are valid");
        Self {
            elapsed: Duration::ZERO,
            reads: 0,
            writes: 0,
            bytes_read: 0,
            bytes_written: 0,
            latency_us,
            slices: Vec::new(),
        }
    }

    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    fn record(&mut self, since_start: Duration, latency: Duration) {
        self.latency_us
            .saturating_record((latency.as_micros() as u64).clamp(1, LATENCY_US_MAX));
        let slice = (since_start.as_micros() / SLICE.as_micros()) as usize;
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0);
        }
        self.slices[slice] += 1;
    }

    /// Contents that another client saw meanwhile.
    fn merge(&mut self, other: &Self) {
        self.count(other);
        if self.slices.len() < other.slices.len() {
            self.slices.resize(other.slices.len(), 0);
        }
        for (sum, count) in self.slices.iter_mut().zip(&other.slices) {
            *sum += count;
        }
    }

    /// Contents seen afterwards.
    pub fn follow(&mut self, next: &Self) {
        self.count(next);
        self.elapsed += next.elapsed;
        self.slices.extend(&next.slices);
    }

    fn count(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.latency_us += &other.latency_us;
    }
}

impl Phase<'_> {
    /// Runs the phase. `done` grows with each request, for a progress bar and the sampler.
    ///
    /// # Errors
    /// The first error of any client, with wrong data first; or [`DemoError::Interrupted`].
    pub fn run(&self, interrupt: &Interrupt, done: &AtomicU64) -> Result<Observed, DemoError> {
        let connections = (0..self.workload.clients())
            .map(|client| self.connect(client))
            .collect::<Result<Vec<_>, _>>()?;
        let abort = AtomicBool::new(false);
        let start = Instant::now();
        let results: Vec<Result<Observed, DemoError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = connections
                .into_iter()
                .zip(0..)
                .map(|(connection, client)| {
                    let (abort, done) = (&abort, done);
                    scope.spawn(move || {
                        let worker = Worker {
                            phase: self,
                            client,
                            start,
                            abort,
                            done,
                        };
                        let result = worker.run(connection, interrupt);
                        if result.is_err() {
                            abort.store(true, Ordering::Relaxed);
                        }
                        result
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        interrupt.check()?;
        let mut sum = Observed::new();
        let mut first_error = None;
        for result in results {
            match result {
                Ok(observed) => sum.merge(&observed),
                // Wrong data takes precedence over errors that it may have caused elsewhere.
                Err(error @ DemoError::WrongData { .. }) => return Err(error),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        sum.elapsed = start.elapsed();
        first_error.map_or(Ok(sum), Err)
    }

    fn connect(&self, client: u32) -> Result<Client, DemoError> {
        let connection =
            Client::connect(self.socket).map_err(|source| DemoError::Client { client, source })?;
        let expected = u64::from(self.data.blocks()) * BLOCK_BYTES as u64;
        if connection.size_bytes() < expected {
            return Err(DemoError::Status(format!(
                "the export has {} bytes, expected {expected}",
                connection.size_bytes()
            )));
        }
        Ok(connection)
    }
}

/// One client at work.
struct Worker<'a> {
    phase: &'a Phase<'a>,
    client: u32,
    start: Instant,
    abort: &'a AtomicBool,
    done: &'a AtomicU64,
}

impl Worker<'_> {
    fn run(&self, mut connection: Client, interrupt: &Interrupt) -> Result<Observed, DemoError> {
        let Phase {
            data,
            workload,
            until,
            number,
            ..
        } = self.phase;
        let image = File::open(&data.image).map_err(DemoError::file("open", &data.image))?;
        let mut requests: Requests = workload.requests(self.client, *number);
        let mut observed = Observed::new();
        let mut buffer = vec![0; REQUEST_BLOCKS_MAX as usize * BLOCK_BYTES];
        let clients = u64::from(workload.clients());
        let own_requests = match until {
            Until::Requests(all) => all / clients + u64::from(u64::from(self.client) < all % clients),
            Until::Elapsed(_) => u64::MAX,
        };
        for _ in 0..own_requests {
            if self.abort.load(Ordering::Relaxed) || interrupt.raised() {
                break;
            }
            if let Until::Elapsed(time) = until
                && self.start.elapsed() >= *time
            {
                break;
            }
            match requests.next() {
                Operation::Read { first, blocks } => {
                    let buffer = &mut buffer[..blocks as usize * BLOCK_BYTES];
                    self.read(&mut connection, first, buffer, &mut observed)?;
                }
                Operation::Write { first, blocks, donor } => {
                    let buffer = &mut buffer[..blocks as usize * BLOCK_BYTES];
                    image
                        .read_exact_at(buffer, u64::from(donor) * BLOCK_BYTES as u64)
                        .map_err(DemoError::file("read", &data.image))?;
                    self.write(&mut connection, first, buffer, &mut observed)?;
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        // As an application does at its end. It is not a request of the workload, so it is not counted.
        connection.flush().map_err(|source| DemoError::Client {
            client: self.client,
            source,
        })?;
        Ok(observed)
    }

    fn read(
        &self,
        connection: &mut Client,
        first: u32,
        buffer: &mut [u8],
        observed: &mut Observed,
    ) -> Result<(), DemoError> {
        let snapshot = self
            .phase
            .oracle
            .before_read(first, (buffer.len() / BLOCK_BYTES) as u32);
        // A server that reports a read without doing it must not pass because of the data of the previous read.
        buffer.fill(0xa5);
        self.timed(observed, || {
            connection.read(u64::from(first) * BLOCK_BYTES as u64, buffer)
        })?;
        self.phase
            .oracle
            .check(&snapshot, buffer)
            .map_err(|mismatch| DemoError::WrongData {
                during: self.phase.name.to_owned(),
                mismatch,
            })?;
        observed.reads += 1;
        observed.bytes_read += buffer.len() as u64;
        Ok(())
    }

    fn write(
        &self,
        connection: &mut Client,
        first: u32,
        buffer: &[u8],
        observed: &mut Observed,
    ) -> Result<(), DemoError> {
        for (block, contents) in (first..).zip(buffer.chunks(BLOCK_BYTES)) {
            self.phase.oracle.begin_write(block, checksum(contents));
        }
        self.timed(observed, || {
            connection.write(u64::from(first) * BLOCK_BYTES as u64, buffer)
        })?;
        for (block, _) in (first..).zip(buffer.chunks(BLOCK_BYTES)) {
            self.phase.oracle.end_write(block);
        }
        observed.writes += 1;
        observed.bytes_written += buffer.len() as u64;
        Ok(())
    }

    fn timed(
        &self,
        observed: &mut Observed,
        request: impl FnOnce() -> Result<(), ClientError>,
    ) -> Result<(), DemoError> {
        let begin = Instant::now();
        request().map_err(|source| DemoError::Client {
            client: self.client,
            source,
        })?;
        observed.record(self.start.elapsed(), begin.elapsed());
        Ok(())
    }
}

/// Compares the whole emulated disk with its expected contents, bypassing the server.
///
/// # Errors
/// [`DemoError::WrongData`] with the first block that differs, or a failed read.
pub fn check_disk(
    disk: &Path,
    blocks: u32,
    oracle: &Oracle<'_>,
    interrupt: &Interrupt,
) -> Result<(), DemoError> {
    const CHUNK_BLOCKS: u32 = 256;
    let file = File::open(disk).map_err(DemoError::file("open", disk))?;
    let mut buffer = vec![0; CHUNK_BLOCKS as usize * BLOCK_BYTES];
    let mut first = 0;
    while first < blocks {
        interrupt.check()?;
        let count = CHUNK_BLOCKS.min(blocks - first);
        let buffer = &mut buffer[..count as usize * BLOCK_BYTES];
        file.read_exact_at(buffer, u64::from(first) * BLOCK_BYTES as u64)
            .map_err(DemoError::file("read", disk))?;
        oracle
            .check(&oracle.before_read(first, count), buffer)
            .map_err(|mismatch| DemoError::WrongData {
                during: "the final check of the emulated disk".into(),
                mismatch,
            })?;
        first += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
