//! The benchmark of flaz: what results are, what they prove, and what makers' claims are worth. Independent of the cache
//! engine; `docs/bench.md` says how verdicts come about.
//!
//! | module | what it holds |
//! |---|---|
//! | [`statistics`] | numbers to numbers |
//! | [`cell`], [`unit`] | what was measured, and in what |
//! | [`campaign_file`], [`table_file`] | results as they stand in files |
//! | [`import`] | output of fio and IOzone |
//! | [`results`], [`background`] | results out of a file of any kind, and what it says beside them |
//! | [`comparison`] | two results, cell by cell: `flaz bench compare` |
//! | [`claim`] | results against what a maker says: `flaz bench claim` |
//! | [`mod@report`] | results as tables and charts: `flaz bench report` |
//! | [`mod@detect`] | what a device does to data, from rates: `flaz bench detect` |
//! | [`layout`] | tables for a terminal |
//! | [`error`] | what can be wrong with all that |
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
