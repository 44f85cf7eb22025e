//! Pages with drawings: one file, no scripts, no network, readable in light and dark, on paper and by screen readers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`drawing`] | SVG: scales with round ticks, axes, lines, bars, labels |
//! | [`text`] | text as it stands in a page |
//! | [`well_formed`] | for tests: whether a page is |
//!
//! Pages say by class what a thing is; the style sheet says what it looks like, in light and in dark.
#![forbid(unsafe_code)]

pub mod drawing;
pub mod text;
pub mod well_formed;

use crate::text::escape;

/// Style of what every page has.
pub const BASE_STYLE: &str = include_str!("base.css");

/// Nothing is loaded from anywhere, and nothing runs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A whole page: `style` comes after [`BASE_STYLE`], `main` is the markup between the header and the end.
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
