//! HTML pages with drawings: one file, no scripts, no network access, readable in light and dark mode, on paper and by
//! screen readers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`table`] | tables |
//! | [`drawing`] | SVG: scales with round ticks, axes, lines, bars, labels |
//! | [`text`] | text in a page |
//! | [`well_formed`] | a check for tests |
//!
//! Elements have classes; the style sheet defines their appearance in light and dark mode.
#![forbid(unsafe_code)]

pub mod drawing;
pub mod table;
pub mod text;
pub mod well_formed;

use crate::text::escape;

/// Style of all pages.
pub const BASE_STYLE: &str = include_str!("base.css");

/// Nothing is loaded and nothing is executed.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A whole page: `style` comes after [`BASE_STYLE`], `main` is the markup between header and end.
#[must_use]
pub fn document(title: &str, style: &str, main: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{BASE_STYLE}{style}</style>\n</head>\n<body>\n<main>\n{main}</main>\n</body>\n\
         </html>\n",
        escape(title)
    )
}
