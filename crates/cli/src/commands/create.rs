//! `flaz create`: runs all checks, then formats.

use std::error::Error;

use flaz_engine::cache::CacheError;
use flaz_engine::format::FormatError;

use super::output;
use crate::args::CreateArgs;
use crate::configuration::draft::Draft;
use crate::error::{Failure, chain};
use crate::host;
use crate::page;
use crate::safety::{self, Permission};
use flaz_server::CreateSpec;

/// Runs `flaz create`.
///
/// # Errors
/// The cache device or the origin is refused, or formatting failed. A file created for this is removed again.
pub fn run(args: &CreateArgs) -> Result<(), Failure> {
    let origin = safety::origin(&args.origin, args.force)?;
    if let Some(uses) = safety::uses_text(&args.origin) {
        tracing::warn!(
            "origin {}: {uses}: it must not be in use while it is served, because changes that bypass the \
             cache are not detected",
            args.origin.display()
        );
    }
    let draft = Draft::of(args)?;
    let permission = Permission {
        size_bytes: args.size,
        sparse: args.sparse,
        force: args.force,
        discard_dirty: args.discard_dirty,
    };
    let claim = safety::claim_for_create(&args.cache, &origin, permission)?;
    let made = claim.was_made();
    let spec = CreateSpec {
        cache: claim,
        origin: args.origin.clone(),
        codec: args.codec,
        extent_bytes: args.extent_size,
        region_bytes: args.region_size,
        shards: args.shards,
    };
    let report = match host::create(&spec) {
        Ok(report) => report,
        Err(error) => {
            if made && let Err(error) = std::fs::remove_file(&args.cache) {
                tracing::warn!(
                    "{} was created but cannot be removed: {error}",
                    args.cache.display()
                );
            }
            if is_asked_for(args, error.as_ref()) {
                return Err(Failure::Usage(format!(
                    "create {}: {}",
                    args.cache.display(),
                    chain(error.as_ref())
                )));
            }
            return Err(Failure::host("create", &args.cache)(error));
        }
    };
    spec.cache.wipe_foreign_signatures()?;
    if let Some(draft) = draft {
        draft.write()?;
    }
    if args.json {
        output::print_json(&report, true)
    } else {
        output::confirm(&page::created(&report, args.name.as_deref()))
    }
}

/// Whether options request an impossible layout; otherwise the device is too small.
fn is_asked_for(args: &CreateArgs, error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let of_layout = |error: &CacheError| match error {
        CacheError::Format(FormatError::Field { what, field, .. }) => {
            *what == "geometry" && !["sector size", "origin size", "device size"].contains(field)
        }
        _ => false,
    };
    let asked = args.region_size.is_some() || args.shards.is_some();
    asked && error.downcast_ref().is_some_and(of_layout)
}
