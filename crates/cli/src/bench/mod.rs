//! `flaz bench`: converts options to calls of `flaz_bench`, and prints the results.

pub mod args;
pub mod detect;
mod permission;
mod report;
pub mod run;

use std::path::Path;

use flaz_bench::claim::{self, Claim, ClaimOptions};
use flaz_bench::comparison::{self, Margin, Options, Rule};
use flaz_bench::error::BenchError;

use crate::commands::{bench_data, output};
use crate::error::Failure;
use args::{BenchArgs, BenchCommand, ClaimArgs, CompareArgs, RuleArg};

/// Runs `flaz bench`.
///
/// # Errors
/// A file or an option is invalid.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        BenchCommand::Run(args) => run::run(args),
        BenchCommand::Compare(args) => compare(args),
        BenchCommand::Report(args) => report::run(args),
        BenchCommand::Detect(args) => detect::run(args),
        BenchCommand::Claim(args) => claim(args),
        BenchCommand::Data(args) => bench_data::run(args),
    }
}

fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let options = Options {
        rule: match args.rule {
            RuleArg::Welch => Rule::Welch,
            RuleArg::Stddev => Rule::Stddev,
        },
        runs: args.runs,
        margin: if args.aa.is_empty() {
            Margin::Percent(args.delta)
        } else {
            Margin::Repeats(args.aa.clone())
        },
        seed: args.seed,
        ..Options::default()
    };
    let comparison = comparison::compare(&args.a, &args.b, &options)?;
    if args.json {
        output::print_json(&comparison, true)
    } else {
        output::print(&comparison.text(output::in_colour()))
    }
}

fn claim(args: &ClaimArgs) -> Result<(), Failure> {
    let options = ClaimOptions {
        runs: args.runs,
        seed: args.seed,
        ..ClaimOptions::default()
    };
    let claims = claims_of(&args.claims.claim, args.claims.claims.as_deref())?;
    let report = claim::check(&args.results, &claims, &options)?;
    if args.json {
        output::print_json(&report, true)
    } else {
        output::print(&report.text(output::in_colour()))
    }
}

fn claims_of(given: &[String], file: Option<&Path>) -> Result<Vec<Claim>, BenchError> {
    let mut claims = match file {
        Some(path) => claim::read_claims(path)?,
        None => Vec::new(),
    };
    for text in given {
        claims.push(text.parse()?);
    }
    Ok(claims)
}
