//! `flaz create`: runs all checks, then formats.

use std::error::Error;
use std::path::Path;

use flaz_engine::cache::CacheError;
use flaz_engine::format::FormatError;

use super::output;
use crate::args::CreateArgs;
use crate::configuration;
use crate::configuration::draft::{Draft, Wanted};
use crate::control::shell::quoted;
use crate::error::{Failure, chain};
use crate::host;
use crate::page;
use crate::safety::{self, Claim, Node, OriginAdvice, Permission};
use crate::size::HumanBytes;
use flaz_server::CreateSpec;

/// Advice of the creating commands about a missing origin.
pub(super) const ORIGIN_MISSING: &str = "specify the device or file to cache with --origin";

/// Runs `flaz create`.
///
/// # Errors
/// The cache device or the origin is refused, or formatting failed. A file created for this is removed again.
pub fn run(args: &CreateArgs) -> Result<(), Failure> {
    let Some(origin_path) = &args.origin else {
        return shared(args);
    };
    let advice = OriginAdvice {
        missing: ORIGIN_MISSING,
        is_cache: "expected the device or file to cache. Check the order, `flaz create CACHE --origin ORIGIN`; if this is the origin, \
                   use --force",
    };
    let origin = origin(origin_path, args.force, &advice)?;
    let draft = args.name.as_deref().map(|name| {
        Draft::of(Wanted {
            name,
            cache: &args.cache,
            volume: None,
            origin: origin_path,
            replace: args.force,
        })
    });
    let draft = draft.transpose()?;
    let permission = Permission {
        size_bytes: args.size,
        sparse: args.sparse,
        force: args.force,
        discard_dirty: args.discard_dirty,
    };
    let claim = safety::claim_for_create(&args.cache, Some(&origin), permission)?;
    let made = claim.was_made();
    let spec = CreateSpec {
        cache: claim,
        origin: origin_path.clone(),
        codec: args.codec,
        extent_bytes: args.extent_size,
        region_bytes: args.region_size,
        shards: args.shards,
        index_memory: args.index_memory,
    };
    let report = match host::create(&spec) {
        Ok(report) => report,
        Err(error) => {
            if made {
                remove_made(&args.cache);
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
    note_discarded(&spec.cache);
    if let Some(draft) = draft {
        draft.write()?;
    }
    if args.json {
        output::print_json(&report, true)
    } else {
        output::confirm(&page::created(&report, args.name.as_deref()))
    }
}

/// Checks the origin of a new cache.
///
/// # Errors
/// It is refused.
pub(super) fn origin(path: &Path, force: bool, advice: &OriginAdvice) -> Result<Node, Failure> {
    let origin = safety::origin(path, force, advice)?;
    if let Some(uses) = safety::uses_text(path) {
        tracing::warn!(
            "origin {}: {uses}: it must not be in use while it is served, because changes that bypass the \
             cache are not detected",
            path.display()
        );
    }
    Ok(origin)
}

fn remove_made(cache: &Path) {
    if let Err(error) = std::fs::remove_file(cache) {
        tracing::warn!("{} was created but cannot be removed: {error}", cache.display());
    }
}

/// Records that the dirty blocks of the overwritten caches were discarded, so that new caches of their origins are not refused.
fn note_discarded(claim: &Claim) {
    if !claim.discarded().is_empty() {
        let state_dir = configuration::state_dir_of(claim.path());
        flaz_server::note_discarded(state_dir.as_deref(), claim.path(), claim.discarded());
    }
}

/// Runs `flaz create --shared`.
fn shared(args: &CreateArgs) -> Result<(), Failure> {
    let permission = Permission {
        size_bytes: args.size,
        sparse: false,
        force: args.force,
        discard_dirty: args.discard_dirty,
    };
    let claim = safety::claim_for_create(&args.cache, None, permission)?;
    let report = host::pool::manage::create_shared(&claim, args.region_size).inspect_err(|_| {
        if claim.was_made() {
            remove_made(&args.cache);
        }
    });
    let report = report.map_err(Failure::host("create", &args.cache))?;
    claim.wipe_foreign_signatures()?;
    note_discarded(&claim);
    if args.json {
        return output::print_json(&report, true);
    }
    output::confirm(&format!(
        "Created       {}, {} for volumes, in chunks of {}, uuid {}\nNext          flaz volume add {} NAME --origin ORIGIN\n",
        args.cache.display(),
        HumanBytes(report.size_bytes),
        HumanBytes(report.chunk_bytes),
        report.uuid,
        quoted(&args.cache)
    ))
}

/// Whether options request an impossible layout; otherwise the device is too small.
fn is_asked_for(args: &CreateArgs, error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let of_layout = |error: &CacheError| match error {
        CacheError::Format(FormatError::Field { what, field, .. }) => {
            *what == "geometry" && !["sector size", "origin size", "device size"].contains(field)
        }
        _ => false,
    };
    let asked = args.region_size.is_some() || args.shards.is_some() || args.index_memory.is_some();
    asked && error.downcast_ref().is_some_and(of_layout)
}
