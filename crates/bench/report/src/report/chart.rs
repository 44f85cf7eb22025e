//! A chart: a drawing with its title, description and values.

use flaz_page::BASE_STYLE;
use flaz_page::drawing::Drawing;

use crate::input::SOURCES_MAX;

/// Colours and shapes of charts.
pub(super) const STYLE: &str = include_str!("style.css");

/// A chart.
#[derive(Debug)]
pub struct Chart {
    /// Base name of its files: letters, digits, `-`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Explanation for the reader.
    pub caption: String,
    pub(super) section: Section,
    pub(super) drawing: Drawing,
    /// Its numbers.
    pub csv: String,
}

/// Section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Differences,
    Rates,
    Samples,
    Truth,
}

impl Chart {
    /// The drawing as a separate file.
    #[must_use]
    pub fn svg(&self) -> String {
        self.drawing.file(&[BASE_STYLE, STYLE])
    }
}

/// The class that sets the colour of the series with index `place`.
pub(super) fn class(place: usize) -> String {
    format!("s{}", place % SOURCES_MAX)
}

/// Converts a name to a part of a file name.
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
