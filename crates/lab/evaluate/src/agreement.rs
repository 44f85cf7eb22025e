//! Virtual time beside real time: a cell of each load, in both.
//!
//! The cell is the one whose virtual run is shortest, of those with a compressed cache that has hits and reclaims regions; so it is the same
//! for the same options, on any machine. It is simulated again with the times of this machine's cores, and then run. One pass warms the
//! cache in both.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::cell::{CellError, Measured, Setup, run};
use crate::contents::Contents;
use crate::real_time;
use crate::report::AgreementReport;
use crate::workload::Workload;

/// Longest pass of a cell in real time. A longer load is cut.
const PASS_MAX: Duration = Duration::from_secs(25);

/// A load, and the cell to run.
#[derive(Clone, Debug)]
pub struct Chosen {
    load: Workload,
    setup: Setup,
}

impl Chosen {
    /// The cell.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}

/// Chooses a cell of a load. `None`: none has hits and a codec.
#[must_use]
pub fn choose<'a>(
    load: &Workload,
    cells: impl IntoIterator<Item = (&'a Setup, &'a Measured)>,
) -> Option<Chosen> {
    let known = cells
        .into_iter()
        .filter(|(setup, measured)| setup.is_compressed() && measured.hit_blocks > 0);
    let (setup, _) = known.min_by_key(|(_, measured)| (measured.regions_reclaimed == 0, measured.elapsed))?;
    Some(Chosen {
        load: load.clone(),
        setup: *setup,
    })
}

/// Runs chosen cells in virtual and in real time, one after another. `progress` is called after each.
///
/// # Errors
/// The system has no memory, thread or socket left.
pub fn compare(chosen: &[Chosen], progress: &dyn Fn()) -> Result<Vec<AgreementReport>, CellError> {
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    let speeds = real_time::here::here()?;
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let contents = Arc::new(Contents::default());
    let compare = |chosen: &Chosen| {
        let setup = Setup {
            speeds,
            cores,
            warming: 1,
            ..chosen.setup
        };
        let (load, simulated) = cut(&chosen.load, &setup, &contents)?;
        let served = real_time::run(&load, &setup, &contents)?;
        progress();
        Ok(report(&load, &setup, &simulated, &served))
    };
    chosen.iter().map(compare).collect()
}

/// The load, or its beginning if a pass takes too long, and its run in virtual time.
fn cut(load: &Workload, setup: &Setup, contents: &Arc<Contents>) -> Result<(Workload, Measured), CellError> {
    let mut load = load.clone();
    loop {
        let measured = run(&load, setup, contents)?;
        let (count, share) = (
            load.requests().len(),
            PASS_MAX.as_secs_f64() / measured.elapsed.as_secs_f64(),
        );
        if share >= 1.0 || count <= 1 {
            return Ok((load, measured));
        }
        load = load.beginning(((count as f64 * share * 0.9) as usize).max(1));
    }
}

fn report(load: &Workload, setup: &Setup, simulated: &Measured, served: &Measured) -> AgreementReport {
    let read_us = |it: &Measured| it.read_latency.as_secs_f64() * 1e6 / it.reads.max(1) as f64;
    let (simulated_seconds, served_seconds) = (simulated.elapsed.as_secs_f64(), served.elapsed.as_secs_f64());
    AgreementReport {
        load: load.name().to_owned(),
        requests: load.requests().len() as u64,
        machine: setup.machine.name.to_owned(),
        codec: setup.codec.to_string(),
        cache_bytes: setup.cache_bytes.unwrap_or(0),
        virtual_seconds: simulated_seconds,
        real_seconds: served_seconds,
        ratio: served_seconds / simulated_seconds.max(1e-9),
        virtual_hit_ratio: simulated.hit_ratio(),
        real_hit_ratio: served.hit_ratio(),
        virtual_read_us: read_us(simulated),
        real_read_us: read_us(served),
        regions_reclaimed: served.regions_reclaimed,
    }
}
