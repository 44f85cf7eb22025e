//! `flaz stop`: ends a running cache cleanly.

use super::{output, target};
use crate::args::StopArgs;
use crate::control::{Reply, Request};
use crate::error::Failure;

/// Runs `flaz stop`.
///
/// # Errors
/// No daemon, it could not stop cleanly, or it takes longer than the user will wait.
pub fn run(args: &StopArgs) -> Result<(), Failure> {
    let mut client = target::require(args.target.cache.as_deref(), args.target.control.as_deref())?;
    match client.ask(&Request::Stop { wait: true }, args.timeout)? {
        Reply::Done => output::print("stopped cleanly: the next start is warm\n"),
        _ => Err(client.unexpected("stop").into()),
    }
}
