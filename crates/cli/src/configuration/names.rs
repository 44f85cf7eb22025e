//! Names in place of paths: every command that takes a cache takes the NAME of its configuration too.
//!
//! Names are replaced here, before a command runs; commands see paths.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::file::Paths;
use super::{Configuration, SUFFIX, find, is_name};
use crate::args::{Command, IdleArgs, ServeArgs, SetArgs, TargetArgs};
use crate::commands::volume::VolumeCommand;
use crate::error::Failure;

/// The word by which a user names a cache.
#[derive(Debug)]
enum Word {
    Path,
    Name(Configuration),
    /// A configuration that is refused.
    Refused(Refused),
    /// It could be a name, but is neither that of a configuration nor that of a file.
    Nothing(String),
}

/// A configuration that is refused, and what can be used of it.
#[derive(Debug)]
struct Refused {
    file: PathBuf,
    why: String,
    paths: Paths,
}

/// What the word for the cache was, to explain a failure.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A path, or the command has no such word.
    Path,
    /// A configuration: its file, and the path of the cache in it.
    Configuration {
        /// The file.
        file: PathBuf,
        /// The cache device.
        cache: PathBuf,
    },
    /// Nothing that exists.
    Nothing(String),
}

impl Meaning {
    fn of(found: &Configuration) -> Self {
        Self::Configuration {
            file: found.path.clone(),
            cache: found.cache.clone(),
        }
    }

    /// A failure of the command. If the cache device is missing, it says whether the configuration is missing instead.
    #[must_use]
    pub fn explain(self, failure: Failure) -> Failure {
        let missing = failure.missing_cache();
        match self {
            Self::Configuration { file, cache } if missing == Some(&cache) => {
                Failure::MissingCache { cache, file }
            }
            Self::Nothing(name) if missing == Some(Path::new(&name)) => Failure::MissingName {
                files: files(&name),
                name,
            },
            _ => failure,
        }
    }
}

/// The files that could be the configuration of this name, on one line.
fn files(name: &str) -> String {
    let paths = super::directories().into_iter();
    let paths = paths.map(|directory| directory.join(format!("{name}.{SUFFIX}")).display().to_string());
    paths.collect::<Vec<_>>().join(" or ")
}

/// Replaces the name of a configuration in a command by the paths that it stands for.
///
/// # Errors
/// A configuration is refused, or a word is the name of a configuration and of a file.
pub fn resolve(command: &mut Command) -> Result<Meaning, Failure> {
    match command {
        Command::Serve(args) => serve(args),
        Command::Status(args) => daemon(&mut args.target, Some(&mut args.idle)),
        Command::Set(args) => set(args),
        Command::Flush(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Resize(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Detach(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Advise(args) => target(&mut args.target, None),
        Command::Stop(args) => daemon(&mut args.target, None),
        Command::Volume(args) => volume(&mut args.what),
        Command::Check(args) => cache(&mut args.cache),
        Command::Dump(args) => cache(&mut args.cache),
        Command::RemoveDevice(args) => {
            device(&mut args.name);
            Ok(Meaning::Path)
        }
        _ => Ok(Meaning::Path),
    }
}

/// Looks up a word.
///
/// # Errors
/// As [`resolve`].
fn word(word: &Path) -> Result<Word, Failure> {
    if word.extension().is_some_and(|end| end == SUFFIX) {
        return read(word);
    }
    let Some(name) = word.to_str().filter(|name| is_name(name)) else {
        return Ok(Word::Path);
    };
    // A link to a file that is missing would be ambiguous too.
    let is_file = word.symlink_metadata().is_ok();
    match find(name) {
        None if is_file => Ok(Word::Path),
        None => Ok(Word::Nothing(name.to_owned())),
        Some(path) if is_file => Err(Failure::Usage(format!(
            "'{name}' is ambiguous: there is the configuration {} and a file with this name in the current directory: \
             expected ./{name} for the file, or {} for the configuration",
            path.display(),
            path.display()
        ))),
        Some(path) => read(&path),
    }
}

fn read(path: &Path) -> Result<Word, Failure> {
    match Configuration::read(path) {
        Ok(found) => Ok(Word::Name(found)),
        Err(Failure::Usage(why)) => Ok(Word::Refused(Refused {
            file: path.to_owned(),
            why,
            paths: Paths::read(path),
        })),
        Err(other) => Err(other),
    }
}

impl Refused {
    /// The paths by which a daemon can be asked. With `control`, its cache need not be known.
    fn paths(self, control: Option<&Path>) -> Result<(Paths, String), Failure> {
        let Self { why, paths, .. } = self;
        if paths.cache.is_some() || control.is_some() {
            return Ok((paths, why));
        }
        Err(Failure::Usage(format!(
            "{why}; without its `cache`, a daemon cannot be found: give the path of its cache, or its control socket \
             with --control PATH"
        )))
    }
}

/// Passes the configuration that a word names to `replace`.
fn replaced(
    found: Word,
    replace: impl FnOnce(Configuration) -> Result<(), Failure>,
) -> Result<Meaning, Failure> {
    match found {
        Word::Path => Ok(Meaning::Path),
        Word::Nothing(name) => Ok(Meaning::Nothing(name)),
        Word::Refused(refused) => Err(Failure::Usage(refused.why)),
        Word::Name(found) => {
            let meaning = Meaning::of(&found);
            replace(found).map(|()| meaning)
        }
    }
}

fn serve(args: &mut ServeArgs) -> Result<Meaning, Failure> {
    replaced(word(&args.cache)?, |found| {
        *args = found.serve(&args.given)?;
        Ok(())
    })
}

fn cache(path: &mut PathBuf) -> Result<Meaning, Failure> {
    replaced(word(path)?, |found| {
        *path = found.cache;
        Ok(())
    })
}

fn target(target: &mut TargetArgs, idle: Option<&mut IdleArgs>) -> Result<Meaning, Failure> {
    let Some(cache) = target.cache.as_deref() else {
        return Ok(Meaning::Path);
    };
    replaced(word(cache)?, |found| {
        let options = found.serve(&super::Given::default())?;
        target.cache = Some(options.cache);
        target.control = target.control.take().or(options.control);
        if let Some(idle) = idle {
            idle.origin = idle.origin.take().or(options.origin);
            idle.state_dir = idle.state_dir.take().or(options.state_dir);
        }
        Ok(())
    })
}

/// The same for commands that only ask a daemon, or read: a daemon that runs can be asked whatever has become of its
/// configuration.
fn daemon(args: &mut TargetArgs, idle: Option<&mut IdleArgs>) -> Result<Meaning, Failure> {
    let Some(Word::Refused(refused)) = args.cache.as_deref().map(word).transpose()? else {
        return target(args, idle);
    };
    let file = refused.file.clone();
    let (paths, why) = refused.paths(args.control.as_deref())?;
    args.cache = paths.cache;
    args.control = args.control.take().or(paths.control);
    args.refused = Some(why);
    if let Some(idle) = idle {
        idle.origin = idle.origin.take().or(paths.origin);
        idle.state_dir = idle.state_dir.take().or(paths.state_dir);
    }
    Ok(args
        .cache
        .clone()
        .map_or(Meaning::Path, |cache| Meaning::Configuration { file, cache }))
}

fn volume(command: &mut VolumeCommand) -> Result<Meaning, Failure> {
    match command {
        // They take a device.
        VolumeCommand::Add(_) | VolumeCommand::Remove(_) | VolumeCommand::List(_) | VolumeCommand::Set(_) => {
            Ok(Meaning::Path)
        }
        VolumeCommand::Resize(args) => {
            let mut idle = IdleArgs {
                origin: args.origin.take(),
                state_dir: None,
            };
            let resolved = target(&mut args.target, Some(&mut idle));
            args.origin = idle.origin;
            resolved
        }
    }
}

/// The first word is the cache, unless it is a setting and the control socket is given.
fn set(args: &mut SetArgs) -> Result<Meaning, Failure> {
    let is_setting = |word: &OsString| word.as_encoded_bytes().contains(&b'=');
    let Some(first) = args.words.first_mut().filter(|word| !is_setting(word)) else {
        return Ok(Meaning::Path);
    };
    let found = word(Path::new(first))?;
    if let Word::Refused(refused) = found {
        let file = refused.file.clone();
        let (paths, why) = refused.paths(args.control.as_deref())?;
        tracing::warn!("{why}");
        args.control = args.control.take().or(paths.control);
        let Some(cache) = paths.cache else {
            args.words.remove(0);
            return Ok(Meaning::Path);
        };
        *first = cache.clone().into();
        return Ok(Meaning::Configuration { file, cache });
    }
    replaced(found, |found| {
        let options = found.serve(&super::Given::default())?;
        *first = options.cache.into();
        args.control = args.control.take().or(options.control);
        Ok(())
    })
}

/// `flaz remove-device NAME`: the block device of a configuration may have another name. A configuration that is refused must
/// not keep a user from removing a device.
fn device(name: &mut String) {
    let options = find(name)
        .and_then(|path| Configuration::read(&path).ok())
        .and_then(|found| found.serve(&super::Given::default()).ok());
    if let Some(found) = options.and_then(|options| options.device_name()) {
        *name = found;
    }
}
