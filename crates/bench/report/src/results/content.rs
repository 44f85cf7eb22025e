//! The contents of one file of any kind.

use std::path::Path;

use super::set::Kind;
use crate::campaign_file::Campaign;
use crate::error::InputError;
use crate::import::{Imported, Program};
use crate::table_file::Table;
use crate::text_file::read_text;

/// Parsed contents.
pub(super) enum Content {
    Campaign(Box<Campaign>),
    Table(Table),
    Imported(Kind, Imported),
}

pub(super) fn read_content(path: &Path) -> Result<Content, InputError> {
    let text = read_text(path)?;
    let refused = |(line, problem)| InputError {
        path: path.to_owned(),
        line,
        problem,
    };
    match Program::of(&text) {
        Some(program) => {
            let kind = match program {
                Program::Fio => Kind::Fio,
                Program::Iozone => Kind::Iozone,
            };
            let imported = program.read(&text).map_err(refused)?;
            Ok(Content::Imported(kind, imported))
        }
        None if text.trim_start().starts_with('{') => Campaign::from_json(&text)
            .map(|campaign| Content::Campaign(Box::new(campaign)))
            .map_err(|problem| refused((None, problem))),
        None => Table::from_csv(&text).map(Content::Table).map_err(refused),
    }
}
