//! A configuration: one TOML table whose keys are `cache`, `volume` and the options of `flaz serve`.
//!
//! The values go through the parsers of the options. Unknown keys, wrong types and relative paths are refused, with the
//! line.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::builder::ArgAction;
use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Args, Command, FromArgMatches};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Given, is_name, name_of};
use crate::args::{ServeArgs, with_negative_values};
use crate::error::Failure;
use crate::host::pool::Place;

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Options for a single start.
const FOR_ONE_START: [&str; 4] = [
    "discard-cache",
    "discard-dirty",
    "emulate-origin",
    "emulate-cache",
];
/// Names of values that are paths.
const PATHS: [&str; 2] = ["PATH", "DIRECTORY"];
/// An option of the command line replaces these keys of a file, besides the key of the same name.
const REPLACED: [(&str, &[&str]); 2] = [
    ("ublk", &["nbd-device"]),
    ("nbd-device", &["ublk", "ublk-queues", "ublk-depth"]),
];

/// Why a configuration is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {what}", path.display())]
pub struct ConfigurationError {
    path: PathBuf,
    /// From 1.
    line: usize,
    what: String,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name of the option, without `--`.
    pub name: String,
    /// Its line in the file, from 1.
    pub line: usize,
    /// The option with its value.
    words: Vec<OsString>,
}

/// A configuration that was read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its name: that of the file, without its end.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The cache: its device, or `DEVICE:VOLUME`.
    pub cache: PathBuf,
    /// The cache device.
    pub device: PathBuf,
    /// The origin.
    pub origin: PathBuf,
    keys: Vec<Key>,
}

/// The paths in a configuration that may be refused for another reason: enough to reach its daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The cache device.
    pub cache: Option<PathBuf>,
    /// The origin.
    pub origin: Option<PathBuf>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The directory for per-host state.
    pub state_dir: Option<PathBuf>,
}

impl Paths {
    /// Reads them as far as the file is TOML and they are absolute.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        match text(path) {
            Ok(text) => Self::parse(&text),
            Err(_) => Self::default(),
        }
    }

    fn parse(text: &str) -> Self {
        let Ok(table) = DeTable::parse(text) else {
            return Self::default();
        };
        let path = |key: &str| {
            let path = Path::new(table.get_ref().get(key)?.get_ref().as_str()?);
            path.is_absolute().then(|| path.to_owned())
        };
        let volume = table.get_ref().get("volume");
        let volume = volume.and_then(|volume| volume.get_ref().as_str());
        Self {
            cache: path("cache").map(|device| match volume {
                Some(volume) => Place::path_of(&device, volume),
                None => device,
            }),
            origin: path("origin"),
            control: path("control"),
            state_dir: path("state-dir"),
        }
    }
}

/// The text of the file of a configuration.
fn text(path: &Path) -> Result<String, Failure> {
    let reading = || format!("reading the configuration {}", path.display());
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        // A service that starts again and again does not create the file.
        io::ErrorKind::NotFound => Failure::Usage(format!(
            "{}: no such configuration: restore the file, or write it with `flaz create --name`; `flaz list` shows the caches of \
             this host",
            path.display()
        )),
        _ => Failure::system(reading())(error),
    })?;
    if !metadata.is_file() {
        return Err(Failure::Usage(format!(
            "{}: expected a configuration, which is a regular file",
            path.display()
        )));
    }
    let bytes = metadata.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{}: a configuration has at most {FILE_BYTES_MAX} bytes, this file has {bytes}",
            path.display()
        )));
    }
    fs::read_to_string(path).map_err(Failure::system(reading()))
}

impl Configuration {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The file cannot be read, or is refused.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let Some(name) = name_of(path) else {
            return Err(Failure::Usage(format!(
                "{}: expected the name of a configuration, NAME.toml: at most 64 letters, digits, '-', '_' and '.', not \
                 beginning with '.'",
                path.display()
            )));
        };
        Self::parse(name, path, &text(path)?).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(name: &str, path: &Path, text: &str) -> Result<Self, ConfigurationError> {
        let parser = Parser {
            name,
            path,
            text,
            command: serve_command(),
        };
        parser.configuration()
    }

    /// The key of an option.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The options of `flaz serve` with this configuration: those of the file, unless the command line has `given` others.
    ///
    /// # Errors
    /// The options do not fit together.
    pub fn serve(&self, given: &Given) -> Result<ServeArgs, Failure> {
        let replaced = |key: &&Key| {
            let others = REPLACED.iter().filter(|(option, _)| given.has(option));
            !given.has(&key.name)
                && !others
                    .into_iter()
                    .any(|(_, keys)| keys.contains(&key.name.as_str()))
        };
        let kept = self.keys.iter().filter(replaced);
        let words = kept
            .flat_map(|key| key.words.iter().cloned())
            .chain(given.words());
        let mut args = parse(&mut serve_command(), &self.cache, words).map_err(|error| {
            Failure::Usage(format!(
                "{}, with the command line: {}",
                self.path.display(),
                reason(&error)
            ))
        })?;
        args.name = Some(self.name.clone());
        Ok(args)
    }
}

/// `flaz serve`, alone.
fn serve_command() -> Command {
    with_negative_values(ServeArgs::augment_args(
        Command::new("serve").no_binary_name(true),
    ))
}

fn parse(
    command: &mut Command,
    cache: &Path,
    words: impl Iterator<Item = OsString>,
) -> Result<ServeArgs, clap::Error> {
    let line = words.chain([OsString::from("--"), cache.into()]);
    let matches = command.try_get_matches_from_mut(line)?;
    ServeArgs::from_arg_matches(&matches)
}

/// What an option's parser says about a value, or about options that do not fit together.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    if error.kind() == ErrorKind::InvalidValue
        && let Some(values) = error.get(ContextKind::ValidValue)
    {
        return format!("expected one of {values}");
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

struct Parser<'a> {
    name: &'a str,
    path: &'a Path,
    text: &'a str,
    command: Command,
}

impl Parser<'_> {
    fn configuration(self) -> Result<Configuration, ConfigurationError> {
        let table = DeTable::parse(self.text)
            .map_err(|error| self.error(error.span().map_or(0, |span| span.start), error.message()))?;
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let (mut cache, mut volume, mut keys) = (None, None, Vec::new());
        for (key, value) in entries {
            if key.get_ref() == "cache" {
                cache = Some(self.cache(value)?);
            } else if key.get_ref() == "volume" {
                volume = Some(self.volume(value)?);
            } else {
                keys.push(self.key(key.get_ref(), key.span().start, value)?);
            }
        }
        let missing = |key: &str, what: &str| {
            self.error(
                0,
                &format!("expected `{key} = \"/PATH\"`: the path of {what}; there is no such key"),
            )
        };
        let device = cache.ok_or_else(|| missing("cache", "the cache device"))?;
        let cache = volume.map_or_else(|| device.clone(), |volume| Place::path_of(&device, &volume));
        let words = keys
            .iter()
            .flat_map(|key| key.words.iter().cloned())
            .collect::<Vec<_>>();
        let whole = parse(&mut self.command.clone(), &cache, words.into_iter())
            .map_err(|error| self.error(0, &reason(&error)))?;
        let origin = whole.origin.ok_or_else(|| missing("origin", "the origin"))?;
        Ok(Configuration {
            name: self.name.to_owned(),
            path: self.path.to_owned(),
            cache,
            device,
            origin,
            keys,
        })
    }

    fn cache(&self, value: &Spanned<DeValue<'_>>) -> Result<PathBuf, ConfigurationError> {
        let at = value.span().start;
        let path = value
            .get_ref()
            .as_str()
            .ok_or_else(|| self.error(at, &expected("cache", "a path", value)))?;
        self.absolute("cache", at, path)?;
        Ok(path.into())
    }

    fn volume(&self, value: &Spanned<DeValue<'_>>) -> Result<String, ConfigurationError> {
        let name = value.get_ref().as_str().filter(|name| is_name(name));
        name.map(str::to_owned).ok_or_else(|| {
            let text = expected("volume", "the name of a volume of the cache device", value);
            self.error(value.span().start, &text)
        })
    }

    fn key(&self, name: &str, at: usize, value: &Spanned<DeValue<'_>>) -> Result<Key, ConfigurationError> {
        let known = self
            .command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(name));
        if FOR_ONE_START.contains(&name) {
            let text = format!(
                "{name}: an option for one start: give it on the command line, `flaz serve {} --{name}`",
                self.name
            );
            return Err(self.error(at, &text));
        }
        let Some(option) = known else {
            let text = format!("unknown key '{name}': expected one of {}", self.keys().join(", "));
            return Err(self.error(at, &text));
        };
        let values = self.values(name, option, value)?;
        let words: Vec<_> = values
            .iter()
            .map(|value| match value {
                None => format!("--{name}").into(),
                Some(value) => format!("--{name}={value}").into(),
            })
            .collect();
        for (value, word) in values.iter().zip(&words) {
            let Some(value) = value else { continue };
            if option
                .get_value_names()
                .is_some_and(|names| PATHS.contains(&names[0].as_str()))
            {
                self.absolute(name, at, value)?;
            }
            if let Some(path) = value.strip_prefix("unix:") {
                self.absolute(name, at, path)?;
            }
            // Only what is wrong with this value: what it requires may be another key.
            let alone = parse(
                &mut self.command.clone(),
                Path::new("/"),
                [OsString::clone(word)].into_iter(),
            );
            if let Err(error) = alone
                && matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue)
            {
                let why = reason(&error);
                return Err(self.error(at, &format!("{name}: {why}, found '{value}'")));
            }
        }
        Ok(Key {
            name: name.to_owned(),
            line: self.line(at),
            words,
        })
    }

    /// The values of an option, each an occurrence of it. `None`: the option without a value.
    fn values(
        &self,
        name: &str,
        option: &Arg,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<Option<String>>, ConfigurationError> {
        let at = value.span().start;
        let is_flag = !option.get_action().takes_values();
        let is_list = matches!(option.get_action(), ArgAction::Append);
        // The default name of a block device is that of the configuration.
        let may_be_true = option
            .get_num_args()
            .is_some_and(|number| number.min_values() == 0);
        let wanted = match (is_flag, may_be_true, is_list) {
            (true, ..) => "true or false",
            (_, true, _) => "a value, or true or false",
            (.., true) => "a list of values",
            _ => "one value",
        };
        match value.get_ref() {
            DeValue::Boolean(false) if is_flag || may_be_true => Ok(Vec::new()),
            DeValue::Boolean(true) if is_flag => Ok(vec![None]),
            DeValue::Boolean(true) if may_be_true => Ok(vec![Some(self.name.to_owned())]),
            DeValue::Array(values) if is_list => values
                .iter()
                .map(|value| match scalar(value.get_ref()) {
                    Some(text) => Ok(Some(text)),
                    None => Err(self.error(value.span().start, &expected(name, "a value", value))),
                })
                .collect(),
            other if !is_flag => scalar(other)
                .map(|text| vec![Some(text)])
                .ok_or_else(|| self.error(at, &expected(name, wanted, value))),
            _ => Err(self.error(at, &expected(name, wanted, value))),
        }
    }

    fn absolute(&self, name: &str, at: usize, path: &str) -> Result<(), ConfigurationError> {
        if path.starts_with('/') {
            return Ok(());
        }
        let text = format!("{name}: expected an absolute path, which begins with '/', found '{path}'");
        Err(self.error(at, &text))
    }

    /// All keys, in the order of `flaz serve --help`.
    fn keys(&self) -> Vec<&str> {
        let options = self.command.get_arguments().filter_map(Arg::get_long);
        let kept = options.filter(|name| !FOR_ONE_START.contains(name));
        ["cache", "volume"].into_iter().chain(kept).collect()
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at.min(self.text.len())]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }

    fn error(&self, at: usize, what: &str) -> ConfigurationError {
        ConfigurationError {
            path: self.path.to_owned(),
            line: self.line(at),
            what: what.to_owned(),
        }
    }
}

fn expected(name: &str, wanted: &str, found: &Spanned<DeValue<'_>>) -> String {
    format!("{name}: expected {wanted}, found {}", article(found.get_ref()))
}

fn article(value: &DeValue<'_>) -> String {
    let kind = value.type_str();
    let vowel = kind.starts_with(['a', 'e', 'i', 'o']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// The text of a string or number, as on a command line.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_engine::settings::Mode;

    use super::*;
    use crate::args::{self, Command as Parsed};

    const PATH: &str = "/etc/flaz/disk.toml";
    const CACHE: &str = "cache = \"/dev/c\"\norigin = \"/dev/o\"\n";

    fn read(text: &str) -> Configuration {
        Configuration::parse("disk", Path::new(PATH), text).unwrap()
    }

    fn refused(text: &str) -> String {
        Configuration::parse("disk", Path::new(PATH), text)
            .unwrap_err()
            .to_string()
    }

    fn given(line: &[&str]) -> Given {
        let words = ["flaz", "serve", "disk"].iter().chain(line);
        let Parsed::Serve(serve) = args::parse(words).unwrap().command else {
            panic!("not serve")
        };
        serve.given
    }

    #[test]
    fn keys_are_options_of_serve() {
        let text = format!(
            "# A comment.\n{CACHE}\
             nbd = [\"unix:/run/a.sock\", \"tcp:localhost\"]\ninsecure-tcp = true\n\
             ublk = true\nublk-depth = 32\nkeep-device = false\nmode = 'write-back'\ndirty-limit = 10\n\
             device-timeout = 2.5\nsequential-cutoff = \"4M\"\n"
        );
        let found = read(&text);
        assert_eq!(found.cache, Path::new("/dev/c"));
        assert_eq!(found.key("mode").unwrap().line, 9);
        let serve = found.serve(&Given::default()).unwrap();
        assert_eq!(serve.origin.as_deref(), Some(Path::new("/dev/o")));
        assert_eq!(serve.nbd.len(), 2);
        assert!(serve.insecure_tcp && !serve.keep_device);
        assert_eq!(
            serve.ublk,
            Some(Some("disk".to_owned())),
            "true means the name of the configuration"
        );
        assert_eq!((serve.ublk_depth, serve.mode), (Some(32), Some(Mode::WriteBack)));
        assert_eq!(
            (serve.dirty_limit, serve.sequential_cutoff),
            (Some(10), Some(4 << 20))
        );
        assert_eq!(serve.device_timeout, Duration::from_millis(2500));
        assert_eq!(serve.name.as_deref(), Some("disk"));
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let text =
            format!("{CACHE}ublk = \"a\"\nublk-queues = 2\nmode = \"write-back\"\nnbd = [\"unix:/a\"]\n");
        let found = read(&text);
        let serve = found
            .serve(&given(&["--mode=write-around", "--nbd", "unix:b"]))
            .unwrap();
        assert_eq!(serve.mode, Some(Mode::WriteAround));
        assert_eq!(serve.nbd.len(), 1);
        assert_eq!(serve.ublk_queues, Some(2));
        let serve = found.serve(&given(&["--nbd-device=b"])).unwrap();
        assert!(serve.ublk.is_none() && serve.ublk_queues.is_none() && serve.nbd_device.is_some());
        let serve = found.serve(&given(&["--ublk=b"])).unwrap();
        assert_eq!(
            (serve.ublk, serve.ublk_queues),
            (Some(Some("b".to_owned())), Some(2))
        );
    }

    #[test]
    fn options_that_are_replaced_exist() {
        let command = serve_command();
        let options: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        let replaced = REPLACED
            .iter()
            .flat_map(|(option, keys)| [*option].into_iter().chain(keys.iter().copied()));
        for name in FOR_ONE_START.into_iter().chain(replaced) {
            assert!(options.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_refusal_names_file_and_line_and_what_was_expected() {
        for (text, line, expected) in [
            (
                "moed = 'write-back'\n",
                3,
                "unknown key 'moed': expected one of cache, volume, origin, nbd,",
            ),
            (
                "mode = 'write-behind'\n",
                3,
                "write-through, write-back, write-around, pass-through, found 'write-behind'",
            ),
            ("\nmode = 3\n", 4, "expected one of write-through"),
            (
                "dirty-limit = 51\n",
                3,
                "3: dirty-limit: expected 1 to 50 percent of the cache device, such as 25, found '51'",
            ),
            (
                "write-budget = 'half'\n",
                3,
                "3: write-budget: expected none, bytes per day",
            ),
            (
                "read-only = 'yes'\n",
                3,
                "read-only: expected true or false, found a string",
            ),
            (
                "mode = ['write-back']\n",
                3,
                "mode: expected one value, found an array",
            ),
            ("nbd = [3.5, true]\n", 3, "nbd: expected a value, found a boolean"),
            (
                "nbd = ['unix:a.sock']\n",
                3,
                "expected an absolute path, which begins with '/', found 'a.sock'",
            ),
            ("state-dir = 'state'\n", 3, "expected an absolute path"),
            (
                "discard-cache = true\n",
                3,
                "an option for one start: give it on the command line",
            ),
            ("emulate-origin = 'hdd'\n", 3, "an option for one start"),
            ("[settings]\nmode = 'write-back'\n", 3, "unknown key 'settings'"),
            ("mode = 'write-back'\nmode = 'write-back'\n", 4, "duplicate"),
            ("mode = \n", 3, "value"),
            ("block-size = 4096\n", 1, "required"),
            ("ublk = true\nnbd-device = true\n", 1, "cannot be used with"),
            ("ublk = 'a/b'\n", 3, "at most 64 letters"),
        ] {
            let message = refused(&format!("{CACHE}{text}"));
            assert!(
                message.starts_with(&format!("{PATH}:{line}: ")),
                "{text}: {message}"
            );
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
        }
        assert!(refused("origin = '/o'\n").contains("expected `cache = \"/PATH\"`"));
        assert!(refused("cache = '/c'\n").contains("expected `origin = \"/PATH\"`"));
        assert!(refused("cache = 'c'\norigin = '/o'\n").contains("absolute"));
        assert!(refused("cache = 1\norigin = '/o'\n").contains("cache: expected a path, found an integer"));
    }

    #[test]
    fn the_shipped_example_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/example.toml.sample");
        let text = fs::read_to_string(path).unwrap();
        read(&text).serve(&Given::default()).unwrap();
        // With each line that is commented out on its own.
        let mut lines = 0;
        for line in text.lines() {
            let Some(line) = line
                .strip_prefix("#")
                .filter(|line| line.contains(" = ") && !line.starts_with(' '))
            else {
                continue;
            };
            lines += 1;
            let alone = format!("{CACHE}ublk = true\n{line}\n");
            let alone = if line.starts_with("nbd-device") {
                format!("{CACHE}{line}\n")
            } else {
                alone
            };
            read(&alone);
        }
        assert!(lines > 5, "the example has settings");
    }
}
