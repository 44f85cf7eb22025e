//! `flaz stop`: stops a running cache cleanly.

use flaz_engine::units::BLOCK_BYTES;

use super::{output, target};
use crate::args::StopArgs;
use crate::control::{Reply, Request};
use crate::error::Failure;
use crate::size::HumanBytes;

/// Runs `flaz stop`.
///
/// # Errors
/// There is no daemon, it is in use, it could not stop cleanly, or it exceeds the timeout.
pub fn run(args: &StopArgs) -> Result<(), Failure> {
    if let Some(why) = &args.target.refused {
        tracing::warn!("{why}");
    }
    let mut client = target::require(args.target.cache.as_deref(), args.target.control.as_deref())
        .map_err(Failure::or_in_use)?;
    let stop = Request::Stop {
        wait: true,
        force: args.force,
    };
    match client.ask(&stop, args.timeout)? {
        Reply::InUse { users } if args.if_idle => {
            output::print(&format!("left running: {}\n", users.join("; ")))
        }
        Reply::InUse { users } => Err(Failure::BadNews(format!(
            "not stopped: {}: disconnect or unmount first, or stop all the same with --force",
            users.join("; ")
        ))),
        // A daemon of an older version does not report the number.
        Reply::Done | Reply::Left { dirty_blocks: 0 } => {
            output::confirm("stopped cleanly: the next start is warm\n")
        }
        Reply::Left { dirty_blocks } => output::confirm(&format!(
            "stopped cleanly: the next start is warm; {} of dirty data is only on the cache device: the \
             origin is incomplete without it (write it back with `flaz flush`)\n",
            HumanBytes(dirty_blocks * BLOCK_BYTES as u64)
        )),
        _ => Err(client.unexpected("stop").into()),
    }
}
