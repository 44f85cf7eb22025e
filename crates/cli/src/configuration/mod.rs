//! Configurations: `/etc/flaz/NAME.toml` names a cache, its origin, its front ends and settings.
//!
//! | module | contents |
//! |---|---|
//! | [`file`] | a configuration: keys and values, strictly checked |
//! | [`given`] | the options of a command line, which override those of a file |
//! | [`names`] | replaces NAME by the paths of its configuration, for all commands |
//! | [`draft`] | the configuration that `flaz create --name` writes |
//! | [`units`] | drop-ins that order `flaz@NAME.service` after its devices |
//!
//! A key is an option of `flaz serve` without `--`, and its value is parsed by that option. So a file and a command line
//! mean the same, and a new option is a new key.
//!
//! Invariants: a program changes no configuration but to create it. All paths in it are absolute.

pub mod draft;
pub mod file;
pub mod given;
pub mod names;
pub mod units;

use std::path::{Path, PathBuf};

use crate::host::pool::Place;

pub use file::Configuration;
pub use given::Given;

/// The directory of configurations for all users of this machine.
const SYSTEM_DIRECTORY: &str = "/etc/flaz";
/// The end of the name of a configuration's file.
const SUFFIX: &str = "toml";

/// Directories with configurations; the first one that has a NAME counts, and new ones are written to the first.
///
/// `$FLAZ_CONFIG_DIR` alone if it is set; else `/etc/flaz`, for other users than root after `$XDG_CONFIG_HOME/flaz`.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let given = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let is_root = rustix::process::geteuid().is_root();
    directories_of(
        given("FLAZ_CONFIG_DIR"),
        given("XDG_CONFIG_HOME"),
        given("HOME"),
        is_root,
    )
}

fn directories_of(
    own: Option<PathBuf>,
    xdg: Option<PathBuf>,
    home: Option<PathBuf>,
    is_root: bool,
) -> Vec<PathBuf> {
    if let Some(own) = own {
        return vec![std::path::absolute(&own).unwrap_or(own)];
    }
    let home = xdg
        .filter(|path| path.is_absolute())
        .or_else(|| {
            home.filter(|path| path.is_absolute())
                .map(|home| home.join(".config"))
        })
        .filter(|_| !is_root);
    let users = home.map(|home| home.join("flaz"));
    users
        .into_iter()
        .chain([PathBuf::from(SYSTEM_DIRECTORY)])
        .collect()
}

/// Whether a word can be the name of a configuration.
#[must_use]
pub fn is_name(word: &str) -> bool {
    crate::args::configuration_name(word).is_ok()
}

/// The file of a configuration, if there is one with this name.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    if !is_name(name) {
        return None;
    }
    let mut paths = directories()
        .into_iter()
        .map(|directory| directory.join(format!("{name}.{SUFFIX}")));
    paths.find(|path| path.is_file())
}

/// The files of all configurations in some directories, by name. One that is hidden by another of the same name is left out.
#[must_use]
pub fn all(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for directory in directories {
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| name_of(path).is_some() && path.is_file());
        paths.retain(|path| found.iter().all(|other| other.file_name() != path.file_name()));
        found.append(&mut paths);
    }
    found.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    found
}

/// The name of the configuration in a file, if it can be one.
#[must_use]
pub fn name_of(path: &Path) -> Option<&str> {
    let is_toml = path.extension().is_some_and(|end| end == SUFFIX);
    let name = path.file_stem()?.to_str()?;
    (is_toml && is_name(name)).then_some(name)
}

/// The configuration of a cache that was named by its path, if there is one that can be read.
#[must_use]
pub fn of_cache(cache: &Path) -> Option<Configuration> {
    let real = |path: &Path| {
        let place = Place::of(path);
        let device = std::fs::canonicalize(&place.device).unwrap_or(place.device);
        match place.volume {
            Some(volume) => Place::path_of(&device, &volume),
            None => device,
        }
    };
    let wanted = real(cache);
    all(&directories())
        .iter()
        .filter_map(|path| Configuration::read(path).ok())
        .find(|found| found.cache == cache || real(&found.cache) == wanted)
}

/// The state directory of a cache that was named by its path: that of its configuration, if it names one, else the default.
#[must_use]
pub fn state_dir_of(cache: &Path) -> Option<PathBuf> {
    let serve = of_cache(cache).and_then(|found| found.serve(&Given::default()).ok());
    serve
        .and_then(|serve| serve.state_dir)
        .or_else(flaz_server::default_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_slash_and_do_not_begin_with_a_dot() {
        for name in ["disk", "my-disk.2", "a_b"] {
            assert!(is_name(name), "{name}");
        }
        for other in ["", ".disk", "a/b", "a b", "ä", "../x", "disk.toml", ".toml"] {
            assert!(!is_name(other), "{other}");
            assert_eq!(find(other), None);
        }
    }

    #[test]
    fn users_have_their_own_directory_before_the_system() {
        let of = |own: &str, xdg: &str, home: &str, is_root| {
            let given = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
            directories_of(given(own), given(xdg), given(home), is_root)
        };
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(of("", "/x", "/home/u", true), paths(&["/etc/flaz"]));
        assert_eq!(of("", "/x", "/home/u", false), paths(&["/x/flaz", "/etc/flaz"]));
        assert_eq!(
            of("", "", "/home/u", false),
            paths(&["/home/u/.config/flaz", "/etc/flaz"])
        );
        assert_eq!(of("", "relative", "", false), paths(&["/etc/flaz"]));
        assert_eq!(of("/own", "/x", "/home/u", false), paths(&["/own"]));
        assert!(of("own", "", "", true)[0].is_absolute());
    }

    #[test]
    fn only_files_of_configurations_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (own, system) = (folder.path().join("own"), folder.path().join("system"));
        for directory in [&own, &system] {
            std::fs::create_dir(directory).unwrap();
        }
        for path in [
            "own/b.toml",
            "system/a.toml",
            "system/b.toml",
            "system/c.toml.sample",
            "system/.x.toml",
        ] {
            std::fs::write(folder.path().join(path), "").unwrap();
        }
        std::fs::create_dir(system.join("d.toml")).unwrap();
        let found = all(&[own.clone(), system.clone(), folder.path().join("none")]);
        assert_eq!(found, [system.join("a.toml"), own.join("b.toml")]);
    }
}
