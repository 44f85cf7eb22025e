//! `flaz top`: all caches of this host, one line each, with the rates of the last interval.
//!
//! | module | contents |
//! |---|---|
//! | `sample` | asks all daemons, at the same time |
//! | `table`, `number` | from reports to lines: pure |
//! | `screen` | the lines on a terminal, and keys |
//!
//! Without a terminal the lines are printed one table after the other, as iostat does.

mod number;
mod sample;
mod screen;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::args::interval;
use crate::commands::output;
use crate::error::Failure;
use crate::number::whole;
use sample::Sampler;
use table::{COLUMNS_MIN, Column, Table, table};

/// `flaz top`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct TopArgs {
    /// Seconds between two samples
    #[arg(long, short, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    pub interval: Duration,
    /// Stop after N samples. The first sample has the averages since the start of each cache
    #[arg(long, short = 'n', value_name = "N", value_parser = whole(1..=u64::MAX))]
    pub count: Option<u64>,
    /// Sort by this column
    #[arg(long, short, value_name = "COLUMN", value_enum, default_value_t = Column::Name, hide_possible_values = true)]
    pub sort: Column,
    /// Reverse the order
    #[arg(long, short)]
    pub reverse: bool,
    /// Print one table after the other, even on a terminal
    #[arg(long, short)]
    pub plain: bool,
    /// Control socket of a cache that is not in a runtime directory. May be repeated
    #[arg(long, value_name = "PATH")]
    pub control: Vec<PathBuf>,
}

const HELP: &str = "\
Shows every cache whose control socket is in a runtime directory of root or of this user; root sees the caches of every user. On a \
terminal the table is updated in place; otherwise, and with --plain, the tables are printed one after the other.

Keys: q quit, s next sort column, r reverse, arrows scroll.

Columns:
  CACHE   name of the configuration, else file name of the cache
          device; if the cache does not answer, that of its socket
  STATE   running, starts, stops, BYPASS (the cache device failed),
          silent (no answer), gone (no daemon), denied
  MODE    wt write-through, wb write-back, wa write-around,
          pt pass-through
  READ/s  reads of clients (WRIT/s: writes)
  HIT%    share of the blocks of these reads that were in the cache
  B/s     bytes that clients read and wrote
  P99     99 % of the reads and writes took less
  DIRTY   data that the origin does not have yet
  EFF     effective capacity divided by the size: data that fits into
          a byte of the cache device
  SSD/s   bytes written to the cache device
  ERRS    failed requests and damaged blocks since the start

Wider terminals show more:
  FULL%   share of the cache device in use
  AGE     upper limit of the age of the oldest dirty data
  READ B/s, WRIT B/s    bytes that clients read, and wrote
  ORIG RD/s, ORIG WR/s  bytes read from the origin, and written
  CPU%    CPU time of the server, in percent of one core
  NBD     connected NBD clients
  HEALTH  as in `flaz status`

Sort columns: name, state, mode, reads, hits, writes, bytes, latency, dirty, effective, ssd, errors, full, age, read-bytes, \
written-bytes, origin-read, origin-written, cpu, clients, health.

Examples:
  flaz top
  flaz top --interval 1 --sort ssd
  flaz top --interval 10 --count 6 > caches.txt";

/// Runs `flaz top`.
///
/// # Errors
/// The output, or the terminal, fails.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let sampler = Sampler::new(args.control.clone(), args.interval);
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !args.plain {
        screen::run(args, sampler)
    } else {
        lines(args, sampler)
    }
}

/// Prints one table after the other.
fn lines(args: &TopArgs, mut sampler: Sampler) -> Result<(), Failure> {
    let mut printed = 0;
    loop {
        let begun = Instant::now();
        let rows = sampler.sample();
        let none = rows.is_empty();
        let table = table(rows, COLUMNS_MIN, args.sort, args.reverse);
        let gap = if printed > 0 { "\n" } else { "" };
        output::print(&format!("{gap}{}", text(&table, none)))?;
        printed += 1;
        if args.count.is_some_and(|count| printed >= count) {
            return Ok(());
        }
        std::thread::sleep(args.interval.saturating_sub(begun.elapsed()));
    }
}

/// What is shown without any cache.
const NONE: &str = "no cache is running on this host, or none that this user may ask: see `flaz serve`";

fn text(table: &Table, none: bool) -> String {
    let mut text = format!("{}\n", table.head);
    for line in table.rows.iter().chain(&table.total) {
        text += &line.text;
        text.push('\n');
    }
    if none {
        text += NONE;
        text.push('\n');
    }
    text
}
