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

/// Colours and dashes of series, for pages that use [`series_class`].
pub const SERIES_STYLE: &str = include_str!("series.css");

/// Colours of [`SERIES_STYLE`], and kinds of lines.
const COLOURS: usize = 6;
const DASHES: usize = 3;

/// The classes of series `number`; they repeat after 18.
#[must_use]
pub fn series_class(number: usize) -> String {
    match number / COLOURS % DASHES {
        0 => format!("c{}", number % COLOURS),
        dash => format!("c{} dash{dash}", number % COLOURS),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_series_look_different() {
        let classes: std::collections::BTreeSet<String> = (0..18).map(series_class).collect();
        assert_eq!(classes.len(), 18);
        assert_eq!(
            [
                series_class(0),
                series_class(7),
                series_class(17),
                series_class(18)
            ],
            ["c0", "c1 dash1", "c5 dash2", "c0"]
        );
        for class in classes.iter().flat_map(|class| class.split(' ')) {
            assert!(SERIES_STYLE.contains(&format!(".{class} ")), "{class}");
        }
    }
}
