//! A chart: a drawing with what it is called, what it says, and its numbers.

use flaz_page::BASE_STYLE;
use flaz_page::drawing::Drawing;

use crate::input::SOURCES_MAX;

/// Colours and shapes of what charts have.
pub(super) const STYLE: &str = include_str!("style.css");

/// A chart.
#[derive(Debug)]
pub struct Chart {
    /// What its files are called: letters, digits, `-`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// What one needs to know to read it.
    pub caption: String,
    pub(super) section: Section,
    pub(super) drawing: Drawing,
    /// Its numbers.
    pub csv: String,
}

/// Where on the page a chart belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Differences,
    Rates,
    Samples,
    Truth,
}

impl Chart {
    /// The drawing as a file of its own.
    #[must_use]
    pub fn svg(&self) -> String {
        self.drawing.file(&[BASE_STYLE, STYLE])
    }
}

/// The class that gives the series at `place` its colour.
pub(super) fn class(place: usize) -> String {
    format!("s{}", place % SOURCES_MAX)
}

/// A name as part of a file's name.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}
