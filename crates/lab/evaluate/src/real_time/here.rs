//! The times of this machine's cores: its codecs, and what it takes to serve a request over NBD.
//!
//! They are measured on loads of their own, hits of equal requests, and not on the loads that are evaluated with them.

use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_engine::units::BLOCK_BYTES;
use flaz_runtime::emulate::{Model, Seek};
use flaz_trace::recording::{Recorded, Stored};
use flaz_trace::{Op, Request};

use super::passes;
use crate::cell::{CellError, EXTENT_BYTES, Setup};
use crate::contents::Contents;
use crate::machine::Machine;
use crate::processor::Speeds;
use crate::workload::Workload;

/// Requests of a load.
const REQUESTS: u64 = 1024;
/// Passes of which the fastest counts: others are slower because the machine does something else.
const PASSES: u32 = 5;
/// Requests in flight where the server is never idle, and blocks of a large request.
const DEPTH: u32 = 16;
const LARGE: u64 = 32;
/// Size of the cache: all requests are hits.
const CACHE_BYTES: u64 = 256 << 20;

/// A device that takes no time.
const INSTANT: Model = Model {
    latency: Duration::ZERO,
    seek: Seek::None,
    read_bytes_per_second: u64::MAX,
    write_bytes_per_second: u64::MAX,
    parallelism: 1,
    operations_per_second: None,
};

/// Measures this machine. Takes some seconds.
///
/// # Errors
/// The system has no memory, thread or socket left.
pub fn here() -> Result<Speeds, CellError> {
    let memory = Machine {
        disk: INSTANT,
        ssd: INSTANT,
        ..Machine::ALL[0]
    };
    let ssd = Machine {
        disk: INSTANT,
        ..Machine::ALL[0]
    };
    let small = request_ns(memory, DEPTH, 1)?;
    let large = request_ns(memory, DEPTH, LARGE)?;
    let alone = request_ns(ssd, 1, 1)?;
    let block_ns = large.saturating_sub(small) / (LARGE - 1);
    let transfer = BLOCK_BYTES as u64 * 1_000_000_000 / Model::SSD.read_bytes_per_second;
    let device = Model::SSD.latency.as_nanos() as u64 + transfer;
    Ok(Speeds {
        name: "here",
        request_ns: small.saturating_sub(block_ns),
        block_ns,
        way_ns: alone.saturating_sub(device + small),
        ..Speeds::with_codecs_of_this_machine()
    })
}

/// Time from a request to the next one: of hits of `blocks` blocks, `depth` at a time.
fn request_ns(machine: Machine, depth: u32, blocks: u64) -> Result<u64, CellError> {
    let requests = (0..REQUESTS).map(|number| Recorded {
        request: Request {
            at_us: None,
            op: Op::Read,
            device: 0,
            // Not in order, so that neighbours are not read together.
            offset: number * 389 % REQUESTS * blocks * BLOCK_BYTES as u64,
            len: blocks * BLOCK_BYTES as u64,
        },
        depth,
        think_us: 0,
        sizes: vec![[Stored::bytes(BLOCK_BYTES as u64); 2]; blocks as usize],
    });
    let setup = Setup {
        machine,
        cache_bytes: Some(CACHE_BYTES),
        codec: CodecChoice::NONE,
        extent_bytes: EXTENT_BYTES,
        splits: true,
        speeds: Speeds::MODERN,
        cores: 1,
        warming: 1,
    };
    let load = Workload::new("hits", requests).map_err(|error| CellError {
        cache_bytes: CACHE_BYTES,
        reason: error.to_string(),
    })?;
    let measured = passes(&load, &setup, &Arc::new(Contents::default()), PASSES)?;
    Ok(measured.elapsed.as_nanos() as u64 / REQUESTS)
}
