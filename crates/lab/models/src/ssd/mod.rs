//! An SSD that compresses.
//!
//! ```text
//! description -> geometry -> ftl        which flash block has which unit; cleaning, wear
//!       |             \-> drive         the ftl in time: link, buffer, flash
//!       \-> rates, amplification        the same as formulas
//!                  \-> evaluation -> text, html; beside `published`
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`description`], [`description_file`] | the numbers of a device; presets and TOML files |
//! | [`mix`] | how well the written data compresses |
//! | [`ftl`] | flash translation layer: units of variable size, packed; greedy cleaning |
//! | [`amplification`] | write amplification in closed form |
//! | [`rates`] | rates in closed form |
//! | [`drive`] | when a request completes |
//! | [`published`] | published figures beside those of the model |
//! | [`evaluation`] | everything about a device in one report |
//! | [`text`], [`html`] | the report for a terminal and for a browser |

pub mod amplification;
pub mod description;
pub mod description_file;
pub mod drive;
pub mod evaluation;
pub mod ftl;
pub mod html;
pub mod mix;
pub mod published;
pub mod rates;
pub mod text;

pub use description::Description;
pub use description_file::{DescriptionError, preset_names};
