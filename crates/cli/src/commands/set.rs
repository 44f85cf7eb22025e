//! `flaz set`: changes settings of a running cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{output, target};
use crate::args::SetArgs;
use crate::configuration;
use crate::control::client::ANSWER;
use crate::control::{Reply, Request};
use crate::error::Failure;
use crate::page;
use crate::settings::SettingsPatch;

/// Runs `flaz set`.
///
/// # Errors
/// A setting is invalid, there is no daemon, or the daemon refuses.
pub fn run(args: &SetArgs) -> Result<(), Failure> {
    let (cache, assignments) = split(args)?;
    let patch = SettingsPatch::parse(&assignments)?;
    let mut client =
        target::require(cache.as_deref(), args.control.as_deref()).map_err(Failure::or_in_use)?;
    let request = if args.until_restart {
        Request::SetUntilRestart(patch.clone())
    } else {
        Request::Set(patch.clone())
    };
    match client.ask(&request, ANSWER)? {
        Reply::Settings(settings) if args.json => output::print_json(&settings, true)?,
        Reply::Settings(settings) => {
            output::confirm(&format!("{}\n", page::settings_after(&settings, &patch)))?;
        }
        _ => return Err(client.unexpected("set").into()),
    }
    if let Some(cache) = cache.filter(|_| !args.until_restart) {
        warn_if_overridden(&cache, &patch);
    }
    Ok(())
}

/// A key of the configuration overrides the stored setting at the next start.
fn warn_if_overridden(cache: &Path, patch: &SettingsPatch) {
    let Some(found) = configuration::of_cache(cache) else {
        return;
    };
    for key in patch.keys().into_iter().filter_map(|key| found.key(key)) {
        tracing::warn!(
            "{} is also set in {}:{}, which overrides this change at the next start: change it there, or remove it there",
            key.name,
            found.path.display(),
            key.line
        );
    }
}

/// With --control all words are assignments; without it the first one is the cache.
fn split(args: &SetArgs) -> Result<(Option<PathBuf>, Vec<&str>), Failure> {
    let has_assignment = |word: &OsString| word.as_encoded_bytes().contains(&b'=');
    let (cache, assignments) = match (&args.control, args.words.as_slice()) {
        (None, [cache, assignments @ ..]) => (Some(PathBuf::from(cache)), assignments),
        (Some(_), [cache, assignments @ ..]) if !has_assignment(cache) => {
            (Some(PathBuf::from(cache)), assignments)
        }
        (_, words) => (None, words),
    };
    if assignments.is_empty() {
        return Err(Failure::Usage(
            "set: expected CACHE (or --control PATH) and at least one KEY=VALUE, for example `flaz set \
             /dev/nvme0n1p3 mode=write-around`"
                .to_owned(),
        ));
    }
    let assignments = assignments.iter().map(|word| match word.to_str() {
        Some(text) => Ok(text),
        None => Err(Failure::Usage(format!(
            "set: '{}': expected KEY=VALUE",
            word.display()
        ))),
    });
    Ok((cache, assignments.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(control: Option<&str>, words: &[&str]) -> SetArgs {
        SetArgs {
            words: words.iter().map(OsString::from).collect(),
            control: control.map(PathBuf::from),
            until_restart: false,
            json: false,
        }
    }

    #[test]
    fn the_cache_is_the_first_word_unless_the_socket_is_named() {
        let given = args(None, &["/a=b", "mode=write-around"]);
        let (cache, assignments) = split(&given).unwrap();
        assert_eq!((cache, assignments.len()), (Some(PathBuf::from("/a=b")), 1));
        let given = args(Some("/s"), &["mode=write-around"]);
        assert_eq!(split(&given).unwrap().0, None);
        let given = args(Some("/s"), &["/c", "mode=write-around"]);
        assert_eq!(split(&given).unwrap().0, Some(PathBuf::from("/c")));
        assert!(split(&args(None, &["/c"])).is_err());
        assert!(split(&args(None, &["mode=write-around"])).is_err());
    }
}
