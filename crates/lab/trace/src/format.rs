//! The formats, and their detection by contents and name.

use std::fmt;
use std::str::FromStr;

use crate::{arc, blkparse, iolog, msr, oracle, own, vscsi};

/// Magic number of blktrace's binary files, after its lowest byte, the version; little-endian.
const BLKTRACE: [u8; 3] = [0x74, 0x61, 0x65];

/// A format, and whether a line is one of it.
type Rule = (Format, fn(&str) -> bool);

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text of `blkparse`.
    Blkparse,
    /// fio's iolog, versions 2 and 3.
    Iolog,
    /// CSV of MSR Cambridge.
    Msr,
    /// VMware's vscsiStats, as published by CloudPhysics.
    Vscsi,
    /// `.lis` of the ARC paper.
    Arc,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
    /// flaz's own.
    Flaz,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 7] = [
        Self::Blkparse,
        Self::Iolog,
        Self::Msr,
        Self::Vscsi,
        Self::Arc,
        Self::OracleGeneral,
        Self::Flaz,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blkparse => "blkparse",
            Self::Iolog => "iolog",
            Self::Msr => "msr",
            Self::Vscsi => "vscsi",
            Self::Arc => "arc",
            Self::OracleGeneral => "oracle-general",
            Self::Flaz => "flaz",
        }
    }

    /// Whether it distinguishes reads from writes.
    #[must_use]
    pub fn has_kinds(self) -> bool {
        !matches!(self, Self::Arc | Self::OracleGeneral)
    }

    /// Names of all formats, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The format of a file of this name whose data begins with `head`. The contents of text
    /// decide, then the name, then the contents of records, which are less distinct.
    ///
    /// # Errors
    /// Why it is none of them.
    pub(crate) fn detect(name: &str, head: &[u8]) -> Result<Self, String> {
        if head.is_empty() {
            return Err("the file is empty".to_owned());
        }
        if head.get(1..4) == Some(&BLKTRACE[..]) {
            return Err(
                "the binary format of blktrace: convert it to text with `blkparse -i FILE`".to_owned(),
            );
        }
        if let Some(format) = Self::by_text(head) {
            return Ok(format);
        }
        let by_records = || match head {
            _ if vscsi::is_beginning(head) => Some(Self::Vscsi),
            _ if oracle::is_beginning(head) => Some(Self::OracleGeneral),
            _ => None,
        };
        let format = Self::by_name(name).or_else(by_records);
        format.ok_or_else(|| format!("none of the formats {}: name it with --format", Self::names()))
    }

    fn by_text(head: &[u8]) -> Option<Self> {
        // The last line may be cut.
        let end = head.iter().rposition(|byte| *byte == b'\n').unwrap_or(head.len());
        let text = std::str::from_utf8(head.get(..end)?).ok()?;
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next()?;
        let rules: [Rule; 5] = [
            (Self::Flaz, own::is_header),
            (Self::Iolog, iolog::is_header),
            (Self::Msr, msr::is_line),
            (Self::Blkparse, blkparse::is_event),
            (Self::Arc, arc::is_line),
        ];
        rules
            .into_iter()
            .find(|(_, fits)| fits(first))
            .map(|(format, _)| format)
    }

    fn by_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let plain = name
            .strip_suffix(".gz")
            .or_else(|| name.strip_suffix(".zst"))
            .unwrap_or(&name);
        let rules = [
            ("oraclegeneral", Self::OracleGeneral),
            ("vscsi", Self::Vscsi),
            (".iolog", Self::Iolog),
            ("blkparse", Self::Blkparse),
            (".flaztrace", Self::Flaz),
        ];
        let ends = [(".lis", Self::Arc), (".csv", Self::Msr)];
        let inside = rules.iter().find(|(part, _)| plain.contains(part));
        let found = inside.or_else(|| ends.iter().find(|(end, _)| plain.ends_with(end)));
        found.map(|(_, format)| *format)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::names()))
    }
}
