//! The evaluation of benchmarks: results, comparisons, reports and the check of vendor claims. It is independent of the
//! cache engine. `docs/bench.md` explains the verdicts.
//!
//! | module | contents |
//! |---|---|
//! | [`statistics`] | statistical functions |
//! | [`cell`], [`unit`] | cells and units |
//! | [`campaign_file`], [`table_file`] | formats of result files |
//! | [`import`] | output of fio and IOzone |
//! | [`results`], [`background`] | results from a file of any kind, and the conditions of the measurement |
//! | [`comparison`] | comparison of two results: `flaz bench compare` |
//! | [`claim`] | check of vendor claims: `flaz bench claim` |
//! | [`mod@report`] | results as tables and charts: `flaz bench report` |
//! | [`mod@detect`] | detection of compression and deduplication from rates: `flaz bench detect` |
//! | [`layout`] | tables for a terminal |
//! | [`error`] | errors |
#![forbid(unsafe_code)]

pub mod background;
pub mod campaign_file;
pub mod cell;
pub mod claim;
pub mod comparison;
pub mod detect;
pub mod error;
pub mod import;
pub mod input;
pub mod layout;
pub mod report;
pub mod results;
pub mod statistics;
pub mod table_file;
mod text_file;
pub mod unit;
