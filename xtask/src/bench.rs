//! `make bench`: measures the performance budgets. Each is measured next to its peer in the same run and reported as a
//! ratio with its spread.
//!
//! Runs are interleaved (A B C A B C ..), so that changes in the speed of the machine affect all of them. The benchmark
//! is not a test: its figures depend on the machine, and a row that could not be measured says why.

mod auto;
mod engine;
mod hit_latency;
mod load;
mod modes;
mod nbd;
mod options;
mod real_data;
mod row;
mod server;
mod study;
mod ublk;
mod warm;
mod write_back;

pub use options::{BenchError, Options};
use row::Row;

/// Measures everything and prints the table.
///
/// # Errors
/// The files or the measured program cannot be created. A missing peer only affects its own rows.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let runs = if options.quick { 2 } else { options.runs };
    let bar = if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        indicatif::ProgressBar::new_spinner()
    } else {
        indicatif::ProgressBar::hidden()
    };
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let wanted = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    let mut rows = Vec::new();
    if wanted("engine") {
        rows.extend(engine::rows(runs, options.quick, &bar));
    }
    if wanted("study") {
        rows.extend(study::rows(options, runs, &bar)?);
    }
    if wanted("load") {
        rows.extend(load::rows(options, runs, &bar)?);
    }
    if wanted("warm") {
        rows.extend(warm::rows(options, runs, &bar)?);
    }
    if wanted("nbd") {
        rows.extend(nbd::rows(options, runs, &bar)?);
    }
    if wanted("auto") {
        rows.extend(auto::rows(&auto::REAL, options, runs, &bar)?);
        rows.extend(hit_latency::rows(options, runs, &bar)?);
    }
    if wanted("auto-busy") {
        rows.extend(auto::rows(&auto::BUSY, options, runs, &bar)?);
    }
    if wanted("auto-random") {
        rows.extend(auto::rows(&auto::RANDOM, options, runs, &bar)?);
    }
    if wanted("modes") {
        rows.extend(modes::rows(options, runs, &bar)?);
    }
    if wanted("write-back") {
        rows.extend(write_back::rows(options, runs, &bar)?);
    }
    if wanted("ublk") {
        rows.extend(ublk::rows(options, runs, &bar)?);
    }
    bar.finish_and_clear();
    if options.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:<52} {:<26} {:<20} reached: median (min to max)",
        "what", "beside", "must / want"
    );
    for row in &rows {
        println!("{row}");
    }
    Ok(())
}
