//! Names in place of paths: every command that takes a cache takes the NAME of its configuration too.
//!
//! Names are replaced here, before a command runs; commands see paths.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Configuration, SUFFIX, find, is_name};
use crate::args::{Command, IdleArgs, ServeArgs, SetArgs, TargetArgs};
use crate::commands::volume::VolumeCommand;
use crate::error::Failure;

/// Replaces the name of a configuration in a command by the paths that it stands for.
///
/// # Errors
/// A configuration is refused, or a word is the name of a configuration and of a file.
pub fn resolve(command: &mut Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve(args),
        Command::Status(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Set(args) => set(args),
        Command::Flush(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Resize(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Detach(args) => target(&mut args.target, Some(&mut args.idle)),
        Command::Stop(args) => target(&mut args.target, None),
        Command::Volume(args) => volume(&mut args.what),
        Command::Check(args) => cache(&mut args.cache),
        Command::Dump(args) => cache(&mut args.cache),
        Command::RemoveDevice(args) => {
            device(&mut args.name);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The configuration that a word stands for; `None` if it is a path.
///
/// # Errors
/// As [`resolve`].
fn configuration(word: &Path) -> Result<Option<Configuration>, Failure> {
    if word.extension().is_some_and(|end| end == SUFFIX) {
        return Configuration::read(word).map(Some);
    }
    let Some(name) = word.to_str().filter(|name| is_name(name)) else {
        return Ok(None);
    };
    let Some(path) = find(name) else { return Ok(None) };
    // A link to a file that is missing would be ambiguous too.
    if word.symlink_metadata().is_ok() {
        return Err(Failure::Usage(format!(
            "'{name}' is ambiguous: there is the configuration {} and a file with this name in the current directory: \
             expected ./{name} for the file, or {} for the configuration",
            path.display(),
            path.display()
        )));
    }
    Configuration::read(&path).map(Some)
}

fn serve(args: &mut ServeArgs) -> Result<(), Failure> {
    if let Some(found) = configuration(&args.cache)? {
        *args = found.serve(&args.given)?;
    }
    Ok(())
}

fn cache(path: &mut PathBuf) -> Result<(), Failure> {
    if let Some(found) = configuration(path)? {
        *path = found.cache;
    }
    Ok(())
}

fn target(target: &mut TargetArgs, idle: Option<&mut IdleArgs>) -> Result<(), Failure> {
    let Some(found) = target.cache.as_deref().map(configuration).transpose()?.flatten() else {
        return Ok(());
    };
    let options = found.serve(&super::Given::default())?;
    target.cache = Some(options.cache);
    target.control = target.control.take().or(options.control);
    if let Some(idle) = idle {
        idle.origin = idle.origin.take().or(options.origin);
        idle.state_dir = idle.state_dir.take().or(options.state_dir);
    }
    Ok(())
}

fn volume(command: &mut VolumeCommand) -> Result<(), Failure> {
    match command {
        // They take a device.
        VolumeCommand::Add(_) | VolumeCommand::Remove(_) | VolumeCommand::List(_) | VolumeCommand::Set(_) => {
            Ok(())
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
fn set(args: &mut SetArgs) -> Result<(), Failure> {
    let is_setting = |word: &OsString| word.as_encoded_bytes().contains(&b'=');
    let Some(word) = args.words.first_mut().filter(|word| !is_setting(word)) else {
        return Ok(());
    };
    if let Some(found) = configuration(Path::new(word))? {
        let options = found.serve(&super::Given::default())?;
        *word = options.cache.into();
        args.control = args.control.take().or(options.control);
    }
    Ok(())
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
