//! `flaz advise`: asks a running cache what more capacity, or another codec, would be worth.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | options, the request |
//! | `text` | the page for a terminal |
//! | `html` | the page for a browser |

mod html;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use clap::Args;

use crate::args::TargetArgs;
use crate::commands::output_file::OutputFiles;
use crate::commands::{output, target};
use crate::control::client::ANSWER;
use crate::control::{Reply, Request};
use crate::error::Failure;

/// `flaz advise`.
#[derive(Args, Debug)]
#[command(after_help = "\
A running cache always simulates caches of 1/4 to 4 times its capacity on a sample of its blocks, in at most 1 MiB of memory. The \
simulation gives the share of misses that a larger cache turns into hits; the estimate applies it to the measured misses. To estimate \
how many blocks would fit with another codec, some stored blocks are also compressed with other codecs. Latencies are those \
measured since the start. The weight of a read halves every 12 hours, so the estimates describe about the last day.

+- is half of a 95 % interval; if its ends are not equally far, both are given. The recommendation is another codec if reads then take at least 5 % less time; else twice or four times \
the capacity if reads then take at least 20 % less time; else half the capacity if reads then take at most 5 % more time; each at the \
pessimistic end of its interval.

Examples:
  flaz advise /dev/nvme0n1p3
  flaz advise disk --html advice.html              a page with the curve
  flaz advise disk --json                          described by docs/json/advise.schema.json")]
pub struct AdviseArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Write a page with tables and the curve to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz advise`.
///
/// # Errors
/// The cache is not running, or its daemon is too old; the page cannot be written.
pub fn run(args: &AdviseArgs) -> Result<(), Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    let page = (args.html.as_deref())
        .map(|path| OutputFiles::default().take(path))
        .transpose()?;
    let mut client = target::require(cache, control).map_err(Failure::or_in_use)?;
    let Reply::Advice(report) = client.ask(&Request::Advise {}, ANSWER)? else {
        return Err(client.unexpected("advise").into());
    };
    if let Some(file) = page {
        file.write(html::page(&report).as_bytes())?;
    }
    if args.json {
        output::print_json(&report, true)
    } else {
        output::print(&text::page(&report, output::in_colour()))
    }
}
