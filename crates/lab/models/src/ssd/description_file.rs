//! Descriptions of devices as TOML: presets and files.

use std::fs::File;
use std::io::{self, Read};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::description::{Controller, Description, Flash, Link};

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The presets: names and files.
const PRESETS: [(&str, &str); 4] = [
    ("sf1222", include_str!("../../presets/sf1222.toml")),
    ("sf1222-raw", include_str!("../../presets/sf1222-raw.toml")),
    ("sf1200", include_str!("../../presets/sf1200.toml")),
    (
        "sf1200x2-raid0",
        include_str!("../../presets/sf1200x2-raid0.toml"),
    ),
];

/// Why a description is refused.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// There is neither a preset nor a file.
    #[error(
        "{}: no such device: expected {}, or a TOML file with a description (its name ends in .toml)",
        _0.display(), preset_names()
    )]
    Unknown(PathBuf),
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has invalid contents.
    #[error("{}, {place}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// Line, key, what was expected and found.
        place: String,
    },
}

/// The names of the presets, for messages and help.
#[must_use]
pub fn preset_names() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

/// The preset with this name.
#[must_use]
pub fn preset(name: &str) -> Option<Description> {
    let (_, text) = PRESETS.iter().find(|(known, _)| *known == name)?;
    Some(parse(name, text).expect("tests read every preset"))
}

/// The text of the preset with this name, as a start for a file.
#[must_use]
pub fn preset_text(name: &str) -> Option<&'static str> {
    PRESETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}

/// The description `device`: a preset, or a file whose name ends in `.toml`.
///
/// # Errors
/// [`DescriptionError`].
pub fn find(device: &Path) -> Result<Description, DescriptionError> {
    if let Some(found) = device.to_str().and_then(preset) {
        return Ok(found);
    }
    if device.extension().is_none_or(|end| end != "toml") {
        return Err(DescriptionError::Unknown(device.to_owned()));
    }
    let mut text = String::new();
    File::open(device)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|source| DescriptionError::Read {
            path: device.to_owned(),
            source,
        })?;
    let name = device.file_stem().unwrap_or_default().to_string_lossy();
    parse(&name, &text).map_err(|place| DescriptionError::Contents {
        path: device.to_owned(),
        place,
    })
}

type Number = Spanned<f64>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    title: String,
    #[serde(default = "one_drive")]
    drives: Number,
    price_usd: Option<Number>,
    link: WrittenLink,
    flash: WrittenFlash,
    controller: WrittenController,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLink {
    write_mb_per_s: Number,
    read_mb_per_s: Number,
    command_us: Number,
    read_us_per_kib: Number,
    read_stored_us_per_kib: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFlash {
    channels: Number,
    dies_per_channel: Number,
    planes_per_die: Number,
    blocks_per_plane: Number,
    pages_per_block: Number,
    page_kib: Number,
    read_us: Number,
    program_us: Number,
    erase_us: Number,
    cycles: Number,
    overhead_percent: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenController {
    user_gb: Number,
    unit_kib: Number,
    engine: Spanned<String>,
    lowest_fraction: Number,
    buffer_kib: Number,
}

fn one_drive() -> Number {
    Spanned::new(0..0, 1.0)
}

/// The text of a file, for the lines of errors.
struct Source<'a>(&'a str);

impl Source<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = &self.0.as_bytes()[..span.start.min(self.0.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// The key at the beginning of a line, if there is one.
    fn key(&self, line: usize) -> Option<&str> {
        let (key, _) = self.0.lines().nth(line - 1)?.split_once('=')?;
        Some(key.trim())
    }

    fn refuse<T>(&self, span: &Range<usize>, key: &str, expected: &str, found: &str) -> Result<T, String> {
        Err(format!(
            "line {}: {key}: expected {expected}, found {found}",
            self.line(span)
        ))
    }

    fn number(&self, key: &str, found: &Number, range: RangeInclusive<f64>) -> Result<f64, String> {
        let value = *found.get_ref();
        if range.contains(&value) {
            return Ok(value);
        }
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.refuse(&found.span(), key, &expected, &value.to_string())
    }

    fn whole(&self, key: &str, found: &Number, range: RangeInclusive<u32>) -> Result<u32, String> {
        let value = *found.get_ref();
        let (low, high) = (f64::from(*range.start()), f64::from(*range.end()));
        if value.fract() == 0.0 && (low..=high).contains(&value) {
            return Ok(value as u32);
        }
        let expected = format!("a whole number from {low} to {high}");
        self.refuse(&found.span(), key, &expected, &value.to_string())
    }

    fn power_of_two(&self, key: &str, found: &Number, range: RangeInclusive<u32>) -> Result<u32, String> {
        let value = self.whole(key, found, range.clone())?;
        if value.is_power_of_two() {
            return Ok(value);
        }
        let expected = format!("a power of two from {} to {}", range.start(), range.end());
        self.refuse(&found.span(), key, &expected, &value.to_string())
    }
}

/// Reads a description. An error names the line, the key, the expected and the actual value.
fn parse(name: &str, text: &str) -> Result<Description, String> {
    let source = Source(text);
    let written: Written = toml::from_str(text).map_err(|error| {
        let line = source.line(&error.span().unwrap_or(0..0));
        let key = source
            .key(line)
            .filter(|key| !error.message().contains(&format!("`{key}`")))
            .map_or_else(String::new, |key| format!("{key}: "));
        format!("line {line}: {key}{}", error.message())
    })?;
    let link = &written.link;
    let controller = &written.controller;
    let engine = controller.engine.get_ref().parse();
    let engine = engine.or_else(|error| {
        source.refuse(
            &controller.engine.span(),
            "engine",
            &format!("a codec ({error})"),
            controller.engine.get_ref(),
        )
    })?;
    let device = Description {
        name: name.to_owned(),
        title: written.title.clone(),
        drives: source.whole("drives", &written.drives, 1..=64)?,
        price_usd: written
            .price_usd
            .as_ref()
            .map(|price| source.number("price_usd", price, 0.01..=1e6))
            .transpose()?,
        link: Link {
            write_mb_per_s: source.number("write_mb_per_s", &link.write_mb_per_s, 1.0..=1e5)?,
            read_mb_per_s: source.number("read_mb_per_s", &link.read_mb_per_s, 1.0..=1e5)?,
            command_us: source.number("command_us", &link.command_us, 0.0..=1e4)?,
            read_us_per_kib: source.number("read_us_per_kib", &link.read_us_per_kib, 0.0..=1e3)?,
            read_stored_us_per_kib: source.number(
                "read_stored_us_per_kib",
                &link.read_stored_us_per_kib,
                0.0..=1e3,
            )?,
        },
        flash: flash(&source, &written.flash)?,
        controller: Controller {
            user_gb: source.number("user_gb", &controller.user_gb, 0.001..=1e5)?,
            unit_kib: source.power_of_two("unit_kib", &controller.unit_kib, 4..=1024)?,
            engine,
            lowest_fraction: source.number("lowest_fraction", &controller.lowest_fraction, 0.01..=1.0)?,
            buffer_kib: source.whole("buffer_kib", &controller.buffer_kib, 0..=1 << 20)?,
        },
    };
    match device.geometry() {
        Ok(_) => Ok(device),
        Err(why) => source.refuse(
            &controller.user_gb.span(),
            "user_gb",
            &format!("less than the flash holds ({why})"),
            &format!("{} GB", device.controller.user_gb),
        ),
    }
}

fn flash(source: &Source<'_>, written: &WrittenFlash) -> Result<Flash, String> {
    Ok(Flash {
        channels: source.whole("channels", &written.channels, 1..=64)?,
        dies_per_channel: source.whole("dies_per_channel", &written.dies_per_channel, 1..=64)?,
        planes_per_die: source.whole("planes_per_die", &written.planes_per_die, 1..=16)?,
        blocks_per_plane: source.whole("blocks_per_plane", &written.blocks_per_plane, 16..=1 << 20)?,
        pages_per_block: source.whole("pages_per_block", &written.pages_per_block, 1..=1 << 14)?,
        page_kib: source.power_of_two("page_kib", &written.page_kib, 1..=64)?,
        read_us: source.number("read_us", &written.read_us, 0.0..=1e5)?,
        program_us: source.number("program_us", &written.program_us, 1.0..=1e5)?,
        erase_us: source.number("erase_us", &written.erase_us, 0.0..=1e6)?,
        cycles: source.whole("cycles", &written.cycles, 1..=10_000_000)?,
        overhead_percent: source.number("overhead_percent", &written.overhead_percent, 0.0..=100.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_has_its_own_title() {
        let mut titles: Vec<String> = PRESETS
            .iter()
            .map(|(name, text)| {
                parse(name, text)
                    .unwrap_or_else(|error| panic!("{name}: {error}"))
                    .title
            })
            .collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), PRESETS.len());
        assert!(preset("sf9").is_none());
    }

    /// The preset with the line that begins with `key` replaced.
    fn with(key: &str, line: &str) -> (usize, String) {
        let text = preset_text("sf1222").unwrap();
        let at = text.lines().position(|line| line.starts_with(key)).expect(key);
        let lines: Vec<&str> = text
            .lines()
            .enumerate()
            .map(|(number, old)| if number == at { line } else { old })
            .collect();
        (at + 1, lines.join("\n"))
    }

    #[test]
    fn errors_have_line_key_and_what_was_expected() {
        for (key, line, parts) in [
            (
                "program_us",
                "program_us = 0",
                &["program_us: expected a number from 1 to 100000, found 0"][..],
            ),
            (
                "program_us",
                "program_us = \"fast\"",
                &["program_us: invalid type: string \"fast\""],
            ),
            (
                "program_us",
                "progam_us = 1300",
                &["unknown field `progam_us`", "`program_us`"],
            ),
            (
                "channels",
                "channels = 2.5",
                &["channels: expected a whole number from 1 to 64, found 2.5"],
            ),
            (
                "unit_kib",
                "unit_kib = 5",
                &["unit_kib: expected a power of two from 4 to 1024, found 5"],
            ),
            (
                "engine",
                "engine = \"lz5\"",
                &["engine: expected a codec", "lz4", "found lz5"],
            ),
            (
                "user_gb",
                "user_gb = 70",
                &["user_gb: expected less than the flash holds", "found 70 GB"],
            ),
            ("cycles", "cycles =", &[]),
            ("price_usd", "price_usd = nan", &["price_usd: expected a number"]),
        ] {
            let (number, text) = with(key, line);
            let error = parse("x", &text).unwrap_err();
            assert!(error.starts_with(&format!("line {number}: ")), "{line}: {error}");
            for part in parts {
                assert!(error.contains(part), "{line}: no '{part}' in {error}");
            }
        }
        let (_, without) = with("cycles", "");
        assert!(
            parse("x", &without)
                .unwrap_err()
                .contains("missing field `cycles`")
        );
        assert!(parse("x", "").unwrap_err().contains("line 1"));
    }

    #[test]
    fn a_name_is_a_preset_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, preset_text("sf1222").unwrap()).unwrap();
        let mine = find(&path).unwrap();
        assert_eq!((mine.name.as_str(), mine.drives), ("mine", 1));
        let unknown = find(Path::new("sf1223")).unwrap_err().to_string();
        assert!(
            unknown.contains("sf1223: no such device") && unknown.contains("sf1222,"),
            "{unknown}"
        );
        let missing = find(&folder.path().join("no.toml")).unwrap_err().to_string();
        assert!(missing.contains("no.toml: cannot be read"), "{missing}");
        std::fs::write(&path, "title = 1\n").unwrap();
        let wrong = find(&path).unwrap_err().to_string();
        assert!(wrong.contains("mine.toml, line 1: title: "), "{wrong}");
    }
}
